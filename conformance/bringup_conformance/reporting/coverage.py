"""What is there for each op and dtype: a reference, the device, a gradient, cases of this suite;
and why where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bringup.cli.coverage import IN_PART
from bringup.dtypes import BY_NAME, DType
from bringup.errors import BringupError
from bringup.graph import Instr, Value
from bringup.ops.evaluate import evaluate
from bringup.ops.table import OpDef, lookup
from bringup.runtime.devices import get
from bringup.tracing.autodiff import vjp_graph
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.levels import table
from bringup_conformance.execution.plan import SIMULATED, Plan, Unit
from bringup_conformance.execution.running import made_inputs
from bringup_conformance.execution.support import Support, single
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.special import operands

# What the suite says of a row that it does not know.
_NO_OPERANDS = "the suite has no operands for it"
#: Instructions of a case that are tried for a gradient.
_MOST = 16


@dataclass(frozen=True, slots=True)
class Covered:
    """One op and dtype; each fact is empty if it is so, else says why not."""

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
    """Why the reference gives no right types, on the smallest program."""
    case = min(cases, key=lambda each: sum(v.type.size for v in each.graph.inputs))
    with np.errstate(all="ignore"):
        found = evaluate(case.graph, _inputs(case))
    pairs = zip(found, case.graph.outputs, strict=True)
    right = all(x.dtype == v.dtype.numpy and x.shape == v.shape for x, v in pairs)
    return "" if right else "it gives other types than inferred"


def _inputs(case: Case) -> list[Array]:
    if case.data:
        return made_inputs(case, 0)
    return [array for cells in case.cells for array in operands(cells, BY_NAME[case.dtype])]


def _gradient(row: OpDef, dtype: DType, cases: Sequence[Case]) -> str:
    """Why no cotangent comes back; empty if one does for any variant and any other operands."""
    if dtype.is_storage:
        return "for storage alone: convert it first"
    reasons: dict[str, None] = {}
    for instr in _instructions(row, cases):
        reason = _no_flow(row, instr)
        if not reason:
            return ""
        reasons[reason] = None
    if not dtype.is_float:
        return "integers and booleans have none"
    return next(iter(reasons), "nothing to try it on")


def _no_flow(row: OpDef, instr: Instr) -> str:
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


def _instructions(row: OpDef, cases: Sequence[Case]) -> Iterator[Instr]:
    for case in cases:
        yield from [i for i in case.graph.instrs if i.op is row][:_MOST]


def _is_zero(value: Value) -> bool:
    made = value.producer
    if made is None or made.op.name != "constant":
        return False
    literal = made.attrs["value"]
    return bool(literal.is_splat and literal.scalar == 0)
