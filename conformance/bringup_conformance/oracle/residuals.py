"""Results judged as a whole: the residuals of factors, solutions and transforms.

No bound by element fits the factors of a matrix: another order of the same additions moves them by
as much as the matrix is ill-conditioned, and signs may be free.  What every stable algorithm keeps
small is the residual, which the row of the op states together with its bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.dtypes import DType
from bringup.graph import Graph, Instr
from bringup.ops.table import opdef
from bringup_conformance.oracle.numbers import Array, nearest, widen
from bringup_conformance.oracle.verdict import WORST, Mismatch, Verdict


def judge_residuals(
    graph: Graph, results: Sequence[Array], inputs: Sequence[Array]
) -> tuple[Verdict, frozenset[int]]:
    """The verdict on the instructions that read inputs alone and whose results are outputs; and
    which outputs that was about.

    >>> from bringup.dtypes import f64
    >>> from bringup.graph import Builder
    >>> from bringup.ops.table import lookup
    >>> with Builder() as b:
    ...     g = b.build([lookup("cholesky")(b.input(f64[1, 1]))])
    >>> [judge_residuals(g, [np.array([[x]])], [np.array([[4.0]])])[0].ok for x in (2.0, 2.1)]
    [True, False]
    """
    arrays = dict(zip(graph.inputs, inputs, strict=True))
    values = dict(zip(graph.outputs, results, strict=True))
    numbers = {value: number for number, value in enumerate(graph.outputs)}
    total, judged = Verdict(), set[int]()
    for instr in graph.instrs:
        if opdef(instr).accuracy_for(instr.attrs).residual is None:
            continue
        if all(v in arrays for v in instr.operands) and all(v in values for v in instr.results):
            operands = [arrays[v] for v in instr.operands]
            own_results = [values[v] for v in instr.results]
            total = total + _judge(instr, operands, own_results, numbers[instr.results[0]])
            judged.update(numbers[v] for v in instr.results)
    return total, frozenset(judged)


def _judge(
    instr: Instr, operands: Sequence[Array], results: Sequence[Array], output: int
) -> Verdict:
    row, dtype = opdef(instr), instr.operands[0].dtype
    residual = row.accuracy_for(instr.attrs).residual
    assert residual is not None
    wide = [_wide(x, v.dtype) for x, v in zip(operands, instr.operands, strict=True)]
    wide_results = [_wide(x, v.dtype) for x, v in zip(results, instr.results, strict=True)]
    with np.errstate(all="ignore"):
        references = row.reference(*wide, **instr.attrs)
        whole = references if isinstance(references, tuple) else (references,)
        pairs = zip(whole, instr.results, strict=True)
        known = [_within_range(np.asarray(x), v.dtype) for x, v in pairs]
        judgements = residual(wide, wide_results, known, instr.attrs, dtype)
        verdicts = [_compared(what, error, allowed, output) for what, error, allowed in judgements]
    return sum(verdicts, Verdict())


def _wide(array: Array, dtype: DType) -> Array:
    return widen(array, dtype) if dtype.is_float else array


def _within_range(reference: Array, dtype: DType) -> Array:
    """NaN for what the dtype of the result does not hold."""
    if not dtype.is_float:
        return reference
    return np.where(np.isfinite(widen(nearest(reference, dtype), dtype)), reference, np.nan)


def _compared(what: str, error: Array, allowed: Array, output: int) -> Verdict:
    open_ = np.isinf(allowed)
    good = open_ | (error <= allowed)
    share = np.where(~open_ & (allowed > 0), error / np.where(allowed > 0, allowed, 1), 0)
    worst = np.flatnonzero(~good)[:WORST]
    mismatches = tuple(_mismatch(what, error, allowed, int(index), output) for index in worst)
    ratio = float(np.where(np.isnan(share), np.inf, share).max(initial=0))
    return Verdict(int((~good).sum()), good.size, int(open_.sum()), ratio, 0.0, mismatches)


def _mismatch(what: str, error: Array, allowed: Array, place: int, output: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(place, error.shape))
    size, limit = (f"{float(x.reshape(-1)[place]):.3g}" for x in (error, allowed))
    return Mismatch(output, index, f"off by {size} in {what}", "0", "0", limit)
