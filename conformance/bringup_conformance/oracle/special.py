"""The special-value table as programs: every cell of a row that the device supports, in every dtype
for which the cell holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType, as_dtype
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph
from bringup.integers import ceil_div
from bringup.ops.special_values import Special, allowed, special_value
from bringup.ops.table import OpDef
from bringup.types import TensorType
from bringup_conformance.cases import Cells
from bringup_conformance.execution.support import Support
from bringup_conformance.oracle.numbers import Array, nan_patterns
from bringup_conformance.oracle.verdict import Mismatch, Verdict, text_of
from bringup_conformance.rules.cells import cells_of, rule_of

#: How often each cell is repeated at least: NaN with its own pattern, then those of `nan_patterns`.
_PATTERNS = 5
# A factor that turns positions into words without pattern.
_SPREAD = 0x9E3779B97F4A7C15


def groups(row: OpDef, dtype: DType, numerics: Numerics, vector: int) -> list[Cells]:
    """The row's cells for a dtype: those of elementwise instructions in one group for each set of
    attributes, others one by one.

    vector: the device's; each cell is repeated past two of them.
    """
    packed: dict[tuple[Any, ...], list[Special]] = {}
    grouped: list[Cells] = []
    for cell in cells_of(row, dtype):
        if _flushed(cell, numerics):
            continue
        if _packs(row, cell, dtype):
            packed.setdefault(cell.attrs, []).append(cell)
        else:
            grouped.append(Cells((cell,), 1, False, (rule_of(row, dtype, cell),)))
    for cells in packed.values():
        repeats = max(_PATTERNS, ceil_div(2 * vector + 3, len(cells)))
        rules = tuple(rule_of(row, dtype, cell) for cell in cells)
        grouped.append(Cells(tuple(cells), repeats, True, rules))
    return grouped


def _flushed(cell: Special, numerics: Numerics) -> bool:
    """Whether a cell depends on a subnormal that the device may read as 0 or flush to 0."""
    results = (cell.result,) if isinstance(cell.result, str) else cell.result
    return numerics.flush_subnormals and any("SUBNORMAL" in t for t in (*cell.operands, *results))


def _type_of(array: Array) -> TensorType:
    return TensorType(array.shape, as_dtype(array.dtype))


def _packs(row: OpDef, cell: Special, dtype: DType) -> bool:
    """Whether the operands of a cell are scalars and its instruction works element by element."""
    types = [_type_of(special_value(text, dtype)) for text in cell.operands]
    if any(t.rank for t in types):
        return False
    vectors = [t.with_shape((2,)) for t in types]
    try:
        bound = row.bind({**_filled(row, types), **dict(cell.attrs)})
        return row.result_types(tuple(vectors), bound)[0].shape == (2,)
    except OpTypeError:
        return False


def _filled(row: OpDef, types: Sequence[TensorType]) -> dict[str, Any]:
    return dict(row.fill(tuple(types), {})) if row.fill is not None else {}


def program(
    row: OpDef, dtype: DType, parts: Iterable[Cells], support: Support
) -> tuple[Graph, tuple[Cells, ...], tuple[str, ...]]:
    """One instruction and one output for each group that the target supports; these groups; and
    why it does not support the others, each reason once.
    """
    builder, outputs, supported = Builder(), [], []
    reasons: dict[str, None] = {}
    for cells in parts:
        types = [_type_of(array) for array in operands(cells, dtype)]
        attrs = dict(cells.cells[0].attrs)
        reason = support.reason(row, types, attrs)
        if reason is not None:
            reasons[reason] = None
            continue
        with builder:
            results = row(*(builder.input(t) for t in types), **attrs)
        # Of several results a cell tells the first.
        outputs.append(results[0] if isinstance(results, tuple) else results)
        supported.append(cells)
    graph = builder.build(outputs, f"{row.name}_special")
    return graph, tuple(supported), tuple(reasons)


def operands(cells: Cells, dtype: DType) -> list[Array]:
    """The input arrays of one group."""
    if not cells.packed:
        return [special_value(text, dtype) for text in cells.cells[0].operands]
    columns = []
    for position in range(len(cells.cells[0].operands)):
        texts = [cell.operands[position] for cell in cells.cells]
        column = np.tile(np.array([special_value(t, dtype) for t in texts]), cells.repeats)
        columns.append(_with_payloads(column, texts, dtype) if "nan" in texts else column)
    return columns


def _with_payloads(column: Array, texts: Sequence[str], dtype: DType) -> Array:
    """A column in which every ``nan`` after the first has another bit pattern each time."""
    again = np.array([text == "nan" for text in texts] * (column.size // len(texts)))
    again[: len(texts)] = False
    patterns = nan_patterns(dtype, np.arange(column.size, dtype=np.uint64) * np.uint64(_SPREAD))
    if len(patterns) == 1:  # without payloads, NaN has the bits that a bitcast gives
        return column
    pattern = np.arange(column.size) // len(texts) % len(patterns)
    return np.where(again, np.choose(pattern, patterns).view(column.dtype), column)


def judge_cells(actual: Array, cells: Cells, dtype: DType, output: int) -> Verdict:
    """Compare one output with the results of its cells; names every cell that is wrong, once.

    dtype: of the output.
    """
    if not cells.packed:
        good = allowed(actual, cells.cells[0].result, dtype)
        wrong_cell = () if good else (_named(cells, 0, (), actual, dtype, output),)
        return Verdict(len(wrong_cell), 1, mismatches=wrong_cell)
    wrong, mismatches = 0, {}
    count = len(cells.cells)
    seen: dict[tuple[int, bytes], bool] = {}
    for index in range(actual.size):
        which = index % count
        key = (which, actual[index].tobytes())
        if key not in seen:
            seen[key] = allowed(actual[index].reshape(()), cells.cells[which].result, dtype)
        if not seen[key]:
            wrong += 1
            if which not in mismatches:
                mismatches[which] = _named(cells, which, (index,), actual[index], dtype, output)
    return Verdict(wrong, actual.size, mismatches=tuple(mismatches.values()))


def _named(
    cells: Cells, which: int, index: tuple[int, ...], actual: Array, dtype: DType, output: int
) -> Mismatch:
    cell = cells.cells[which]
    text = ", ".join(text_of(x, dtype) for x in np.asarray(actual).reshape(-1))
    attrs = "".join(f", {name}={value}" for name, value in cell.attrs)
    wanted = cell.result if isinstance(cell.result, str) else " or ".join(cell.result)
    told = f"({', '.join(cell.operands)}{attrs}) -> {text}"
    rule = cells.rules[which] if cells.rules else ""
    return Mismatch(output, index, told, wanted, wanted, wanted, rule)
