"""``BRINGUP_CHECK_NAN``: which operation made the first NaN of a result, and of what.

After each program its results are looked at.  Where one holds a NaN, the program is run again op by
op, by the references of the rows, and the NaN is followed from the result back to the instruction
that made it of operands without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup import config
from bringup.errors import NaNError
from bringup.graph import Graph, Instr, Value
from bringup.graph.printer import Numbering, format_instr
from bringup.ops.evaluate import evaluate, run_instr, subgraph_runs
from bringup.runtime import transfer
from bringup.runtime.compiled import Compiled
from bringup.runtime.devices import OpenDevice

Array = np.ndarray[Any, Any]
#: What made a NaN, and its operands' values.
Made = tuple[Instr, list[Array]]
#: Elements of an operand that a message shows.
_SHOWN = 6


def wanted() -> bool:
    """Whether the variable asks for it.  Raises BringupError if it holds no level."""
    return config.level("BRINGUP_CHECK_NAN") > 0


def execute(
    compiled: Compiled,
    graph: Graph,
    buffers: Sequence[Any],
    device: OpenDevice,
    donated: frozenset[int] = frozenset(),
) -> list[Any]:
    """Run a compiled graph on buffers, as `transfer.execute`, and look at what it gives.

    graph: equal to the compiled one, with the lines of this call.
    Raises NaNError for a NaN that no input had.
    """
    pairs = zip(buffers, graph.inputs, strict=True)
    inputs = [transfer.download(device.device, buffer, v.type) for buffer, v in pairs]
    assert compiled.executable is not None
    count = len(graph.outputs)
    made = transfer.execute(device.device, compiled.executable, buffers, count, donated)
    outputs = zip(made, graph.outputs, strict=True)
    results = [transfer.download(device.device, buffer, v.type) for buffer, v in outputs]
    if any(map(_has_nan, results)) and not any(map(_has_nan, inputs)):
        error = _error(graph, inputs, device)
        if error is not None:
            raise error
    return made


def _has_nan(array: Array) -> bool:
    return array.dtype.kind in "fV" and bool(np.isnan(array).any())


def _error(graph: Graph, inputs: Sequence[Array], device: OpenDevice) -> NaNError | None:
    """What to raise; nothing if the NaN is a constant of the user's."""
    with np.errstate(all="ignore"):
        found = _first(graph, inputs)
        if found is None and any(map(_has_nan, evaluate(graph, inputs))):
            return None
    if found is None:
        return NaNError(
            f"{graph.name} gave a NaN on {device}, and the references of its ops give none",
            fix="compare the device with the references: conformance run --backend=NAME",
        )
    instr, operands = found
    place = _place(instr, operands)
    notes = [_told(i, x, place) for i, x in enumerate(operands)]
    return NaNError(
        f"{instr.op.name} made a NaN of operands without any",
        location=instr.location,
        instruction=format_instr(instr, Numbering(instr.operands, (instr,))),
        notes=tuple(notes),
        fix="keep the operands where the op is defined, as with where on them, not on the result",
    )


def _place(instr: Instr, operands: Sequence[Array]) -> tuple[int, ...] | None:
    """Where the first NaN of an elementwise result is."""
    with np.errstate(all="ignore"):
        results = run_instr(instr, operands)
    nans = np.argwhere(np.isnan(results[0])) if _has_nan(results[0]) else np.empty((0, 0))
    alike = all(x.shape == results[0].shape for x in operands)
    return tuple(map(int, nans[0])) if alike and len(nans) else None


def _told(position: int, x: Array, place: tuple[int, ...] | None) -> str:
    if place is not None:
        index = f"[{', '.join(map(str, place))}]" if place else ""
        return f"operand {position}{index} is {x[place]}"
    text = np.array2string(x, threshold=_SHOWN, edgeitems=_SHOWN // 2, separator=", ")
    return f"operand {position} is {' '.join(text.split())}"


def _first(graph: Graph, inputs: Sequence[Array]) -> Made | None:
    """What made the NaN of a graph's outputs."""
    values = _values(graph, inputs)
    value = next((v for v in graph.outputs if _has_nan(values[v])), None)
    while value is not None and value.producer is not None:
        instr = value.producer
        came = [v for v in instr.operands if _reaches(values[v], values[value])]
        if not came:
            operands = [values[v] for v in instr.operands]
            return _inside(instr, operands) or ((instr, operands) if operands else None)
        value = came[0]
    return None


def _reaches(operand: Array, result: Array) -> bool:
    """Whether the NaNs of a result may be an operand's: of arrays of one shape by place, so that
    those of the branch that a select did not take are none of them.
    """
    if not _has_nan(operand):
        return False
    if operand.shape != result.shape or not operand.shape:
        return True
    return bool((np.isnan(operand) & np.isnan(result)).any())


def _inside(instr: Instr, operands: list[Array]) -> Made | None:
    """What made it in a sub-graph, in the first run of it that did."""
    for graph, inputs, outputs in subgraph_runs(instr, operands):
        if any(map(_has_nan, outputs)):
            return _first(graph, inputs)
    return None


def _values(graph: Graph, inputs: Sequence[Array]) -> dict[Value, Array]:
    values: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for instr in graph.instrs:
        results = run_instr(instr, [values[v] for v in instr.operands])
        values.update(zip(instr.results, results, strict=True))
    return values
