"""What values an index takes: intervals under a mask where those suffice, every position where they
do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bringup.errors import GraphError
from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.integers import ceil_div

Array = np.ndarray[Any, Any]
Mask = Sequence[Bound]
Span = tuple[int, int]

#: Positions that are looked at one by one; what needs more stays undecided.
_MOST_POSITIONS = 1 << 20


@lru_cache(maxsize=1 << 12)
def span(expr: Expr, mask: tuple[Bound, ...] = ()) -> Span:
    """The least and the greatest value ``expr`` can have where every bound holds; both are bounds,
    not always attained.

    >>> a = Axis(0, 10)
    >>> span(Expr.of(a) + -2, (Bound(Expr.of(a), 2, 8),))
    (0, 5)
    """
    bounds = (*mask, *(more for each in mask for more in _undivided(each)))
    return _span(expr, _facts(mask), bounds)


def _span(expr: Expr, facts: Mapping[Atom, Span], bounds: Mask) -> Span:
    low, high = _span_of_atoms(expr, facts, bounds)
    parts: list[Bound] = []
    for bound in bounds:
        if _multiple(expr, bound.expr):
            parts.append(bound)
            least, most = _span_of_parts(expr, [bound], facts, bounds)
            low, high = max(low, least), min(high, most)
    if len(parts) > 1:
        # All of them together, such as the ends of rows and of columns; the narrowest first.
        parts.sort(key=lambda bound: (-len(bound.expr.terms), bound.high - bound.low))
        least, most = _span_of_parts(expr, parts, facts, bounds)
        low, high = max(low, least), min(high, most)
    whole = _undivided_sum(expr) if bounds else None
    if whole is not None:
        by, multiple = whole
        least, most = _span(multiple, facts, bounds)
        low, high = max(low, least // by), min(high, most // by)
    return low, high


def _undivided_sum(expr: Expr) -> tuple[int, Expr] | None:
    """``n`` and ``n*e + x`` for the sum ``e + x // n``, which is their quotient; else None.

    A column that a fused loop splits again stands in an index as such a sum, and in a bound whole.
    """
    for atom, c in expr.terms:
        if isinstance(atom, Div) and c == 1 and len(expr.terms) > 1:
            return atom.by, (expr + Expr(0, ((atom, -1),))) * atom.by + atom.of
    return None


def _span_of_parts(
    expr: Expr, parts: Iterable[Bound], facts: Mapping[Atom, Span], bounds: Mask
) -> Span:
    """The range of an expression as a sum of multiples of bounded ones and a rest."""
    low = high = 0
    for bound in parts:
        factor = _multiple(expr, bound.expr)
        if factor:
            expr = expr + bound.expr * -factor
            ends = sorted((factor * bound.low, factor * (bound.high - 1)))
            low, high = low + ends[0], high + ends[1]
    least, most = _span_of_atoms(expr, facts, bounds)
    return low + least, high + most


def _undivided(bound: Bound) -> Iterator[Bound]:
    """What a bound on ``e // n + …`` says about ``e + n*…``: the ends of blocks are such."""
    for atom, c in bound.expr.terms:
        if isinstance(atom, Div) and c == 1:
            others = bound.expr + Expr(0, ((atom, -1),))
            yield Bound(atom.of + others * atom.by, bound.low * atom.by, bound.high * atom.by)


def _facts(mask: Mask) -> dict[Atom, Span]:
    """What bounds on a multiple of one atom say about the atom."""
    facts: dict[Atom, Span] = {}
    for bound in mask:
        if len(bound.expr.terms) != 1:
            continue
        atom, c = bound.expr.terms[0]
        least, most = bound.low - bound.expr.const, bound.high - 1 - bound.expr.const
        if c < 0:
            least, most = -most, -least
        low, high = ceil_div(least, abs(c)), most // abs(c)
        before = facts.get(atom, (atom.first, atom.last))
        facts[atom] = max(before[0], low), min(before[1], high)
    return facts


def _span_of_atoms(expr: Expr, facts: Mapping[Atom, Span], bounds: Mask) -> Span:
    low = high = expr.const
    for atom, c in expr.terms:
        ends = sorted(c * end for end in _atom_span(atom, facts, bounds))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _atom_span(atom: Atom, facts: Mapping[Atom, Span], bounds: Mask) -> Span:
    low, high = atom.first, atom.last
    if isinstance(atom, (Div, Mod)):
        first, last = _span(atom.of, facts, bounds)
        if isinstance(atom, Div):
            low, high = first // atom.by, last // atom.by
        elif first // atom.by == last // atom.by:
            low, high = first % atom.by, last % atom.by
    known = facts.get(atom, (low, high))
    return max(low, known[0]), min(high, known[1])


def _multiple(expr: Expr, part: Expr) -> int:
    """The factor with which the terms of ``part`` stand in ``expr``, 0 if they do not."""
    table = dict(expr.terms)
    factors = {table.get(atom, 0) / c for atom, c in part.terms}
    factor = factors.pop() if len(factors) == 1 else 0
    return int(factor) if factor == int(factor) else 0


def positions(axes: Sequence[Axis]) -> dict[Axis, Array] | None:
    """Every axis's values over all positions in row-major order, or None if those are too many."""
    count = math.prod(a.size for a in axes)
    if count > _MOST_POSITIONS:
        return None
    return dict(axis_values(axes, np.arange(count, dtype=np.int64)))


def axis_values(axes: Sequence[Axis], flat: Array) -> Iterator[tuple[Axis, Array]]:
    """Every axis's values at row-major positions."""
    step = 1
    for axis in reversed(axes):
        yield axis, flat // step % max(axis.size, 1)
        step *= axis.size or 1


def expr_value(expr: Expr, axes: Mapping[Axis, Array], operands: Sequence[Array] = ()) -> Array:
    """The value of an index expression at every position, as i64 that broadcasts with the axes'
    values.

    operands: values of the loaded indices it names.
    Raises GraphError where one lies outside its declared range.
    """
    total: Array = np.asarray(expr.const, np.int64)
    for atom, c in expr.terms:
        if isinstance(atom, Axis):
            part = axes[atom]
        elif isinstance(atom, Dyn):
            part = operands[atom.operand].astype(np.int64)
            if part.size and not atom.first <= part.min() <= part.max() <= atom.last:
                raise GraphError(f"{atom} takes values {part.min()} … {part.max()}")
        elif isinstance(atom, Div):
            part = expr_value(atom.of, axes, operands) // atom.by
        else:
            assert isinstance(atom, Mod), f"{atom} stands in no kernel"
            part = expr_value(atom.of, axes, operands) % atom.by
        total = total + c * part
    return total


def mask_value(mask: Mask, axes: Mapping[Axis, Array], operands: Sequence[Array] = ()) -> Array:
    """Whether every bound holds, at every position."""
    holds: Array = np.asarray(True)
    for bound in mask:
        at = expr_value(bound.expr, axes, operands)
        holds = holds & (bound.low <= at) & (at < bound.high)
    return holds


def outside(expr: Expr, mask: Mask, axes: Sequence[Axis], size: int) -> int | None:
    """A value outside ``0 … size - 1`` that ``expr`` takes where the mask holds; None if there is
    none or it is undecided.

    axes: those in scope.
    """
    low, high = span(expr, mask)
    if (low >= 0 and high < size) or any(a.size == 0 for a in axes) or low > high:
        return None
    used = expr.axes().union(*(b.expr.axes() for b in mask))
    table = positions([a for a in axes if a in used])
    loaded = any(isinstance(a, Dyn) for e in (expr, *(b.expr for b in mask)) for a in e.atoms())
    if table is None or loaded:
        return None
    at, holds = np.broadcast_arrays(expr_value(expr, table), mask_value(mask, table))
    wrong = at[holds & ((at < 0) | (at >= size))]
    return int(wrong[0]) if wrong.size else None


def uncovered(stores: Sequence[tuple[Expr, Mask, Sequence[Axis]]], size: int) -> str | None:
    """Why the stores do not write each of ``size`` elements exactly once; None if they do or it is
    undecided.

    stores: index, mask, and the axes that run.
    """
    if len(stores) == 1 and not stores[0][1]:
        index, _, axes = stores[0]
        count = math.prod(a.size for a in axes)
        if count != size:
            return f"{count} iterations write {size} elements"
        if is_row_major(index, axes):
            return None
    hits = np.zeros(size, np.int64)
    for index, mask, axes in stores:
        table = positions(axes)
        if table is None:
            return None
        count = math.prod(a.size for a in axes)
        at = np.broadcast_to(expr_value(index, table), (count,))
        hits += np.bincount(at[np.broadcast_to(mask_value(mask, table), (count,))], minlength=size)
    wrong = np.flatnonzero(hits != 1)
    return f"element {wrong[0]} is written {hits[wrong[0]]} times" if wrong.size else None


def is_row_major(index: Expr, axes: Sequence[Axis]) -> bool:
    """Whether the index numbers the axes' positions densely, in some order of the axes."""
    if index.const or any(not isinstance(atom, Axis) for atom, _ in index.terms):
        return False
    step = 1
    for atom, c in sorted(index.terms, key=lambda term: term[1]):
        if c != step:
            return False
        step *= atom.last + 1
    return {a for a in axes if a.size != 1} == {atom for atom, _ in index.terms}


__all__ = [
    "axis_values", "expr_value", "is_row_major", "mask_value", "outside", "positions", "span",
    "uncovered",
]  # fmt: skip
