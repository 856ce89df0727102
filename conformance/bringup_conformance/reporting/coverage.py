"""Op coverage: whether each op and dtype has a reference, the device, a gradient and cases of this
suite, and the reason where it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain

import numpy as np

from bringup.cli.coverage import IN_PART
from bringup.dtypes import BY_NAME, DType
from bringup.errors import BringupError
from bringup.graph import Instr, Value
from bringup.ops.evaluate import evaluate
from bringup.ops.table import OpDef, lookup
from bringup.records import record
from bringup.runtime.devices import get
from bringup.tracing.autodiff import vjp_graph
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.levels import table
from bringup_conformance.execution.plan import SIMULATED, Plan, Unit
from bringup_conformance.execution.running import made_inputs
from bringup_conformance.execution.support import Support, single
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.special import operands

# The reason for a row that the suite does not know.
_NO_OPERANDS = "the suite has no operands for it"
#: Instructions of a case that are tried for a gradient.
_MAX_TRIED = 16


@record
class Covered:
    """One op and dtype.  Each of the last four is empty if it is there, and else says why not."""

    op: str
    dtype: str
    reference: str
    device: str
    gradient: str
    conformance: str


def coverage(backend: str = "") -> list[dict[str, str]]:
    """The facts of every op and every dtype it takes, as plain data.

    backend: the device, by name; the default one if empty.
    """
    target = DeviceTarget(get(backend or None))
    plan = Plan(target.capabilities, Support(target.missing), 0, SIMULATED)
    return [asdict(_covered(unit)) for unit in table(plan)]


def _covered(unit: Unit) -> Covered:
    row, dtype, items = lookup(unit.op), BY_NAME[unit.dtype], list(unit.make())
    cases = [item for item in items if isinstance(item, Case)]
    refused = [item.reason for item in items if isinstance(item, Unsupported)]
    device = next((reason for reason in refused if reason != _NO_OPERANDS), "")
    missing = "" if cases else "the device takes no operands of it" if device else _NO_OPERANDS
    return Covered(
        row.name,
        dtype.name,
        missing or _reference(cases),
        f"{IN_PART}{device}" if device and cases else device,
        _gradient(row, dtype, cases),
        missing,
    )


def _reference(cases: Sequence[Case]) -> str:
    """Why the reference gives wrong types on the smallest program; empty if it does not."""
    case = min(cases, key=lambda each: sum(v.type.size for v in each.graph.inputs))
    dtype = BY_NAME[case.dtype]
    inputs = [array for cells in case.cells for array in operands(cells, dtype)]
    with np.errstate(all="ignore"):
        results = evaluate(case.graph, made_inputs(case, 0) if case.data else inputs)
    pairs = zip(results, case.graph.outputs, strict=True)
    right = all(x.dtype == v.dtype.numpy and x.shape == v.shape for x, v in pairs)
    return "" if right else "it gives other types than inferred"


def _gradient(row: OpDef, dtype: DType, cases: Sequence[Case]) -> str:
    """Why no gradient flows; empty if one does for any variant and any operands."""
    if dtype.is_storage:
        return "for storage alone: convert it first"
    reasons: dict[str, None] = {}
    of_row = ([i for i in case.graph.instrs if i.op is row][:_MAX_TRIED] for case in cases)
    for instr in chain.from_iterable(of_row):
        reason = _no_flow(row, instr)
        if not reason:
            return ""
        reasons[reason] = None
    if not dtype.is_float:
        return "integers and booleans have none"
    return next(iter(reasons), "nothing to try it on")


def _no_flow(row: OpDef, instr: Instr) -> str:
    """Why no gradient flows through an instruction; empty if one does."""
    graph = single(row, [v.type for v in instr.operands], instr.attrs)
    wrt = [i for i, v in enumerate(graph.inputs) if v.dtype.is_float]
    of = [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]
    if not wrt or not of:
        return "no operand is a float" if not wrt else "its results are no floats"
    try:
        pulled = vjp_graph(graph, wrt, of)
    except BringupError as error:
        return error.what
    flows = any(not _is_zero(v) for v in pulled.outputs[len(graph.outputs) :])
    return "" if flows else "zero wherever it exists"


def _is_zero(value: Value) -> bool:
    literal = value.literal
    return bool(literal is not None and literal.is_splat and literal.scalar == 0)
