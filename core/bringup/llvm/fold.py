"""Accumulators of a fold: start, accumulate, finish."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph import Value
from bringup.kernel.form import Fold
from bringup.llvm import text as ir
from bringup.llvm.body import BodyEmitter, Position
from bringup.llvm.scalar import combine, identity, widen
from bringup.llvm.text import Builder, Val


def start(fold: Fold, lanes: int, empty: bool) -> Val:
    """The accumulator before the first element; the result itself if there is none."""
    if empty and fold.kind == "add" and fold.dtype.is_float:  # pragma: no cover - folded before
        return ir.zero(identity("add", fold.dtype, lanes).type)
    return identity(fold.kind, fold.dtype, lanes)


def accumulate(
    body: BodyEmitter,
    fold: Fold,
    value: Value,
    position: Position,
    acc: Val,
    lanes: int,
    mask: Val | None,
) -> Val:
    """Fold the body's value at a position into its accumulator, in the lanes of ``mask``."""
    b = body.b
    made = value.producer
    if fold.product and fold.dtype.is_float and made is not None and made.op.name == "mul":
        x, y = (body.lanes_of(v, position, lanes) for v in made.operands)
        after = b.fma(widen(b, x), widen(b, y), acc)
    else:
        after = combine(b, fold.kind, fold.dtype, acc, body.lanes_of(value, position, lanes))
    return after if mask is None else b.select(mask, after, acc)


def finish(b: Builder, fold: Fold, parts: Sequence[Val], *, across: bool) -> Val:
    """Combine the partial accumulators pairwise, and their lanes if they share a grid point."""
    live = list(parts)
    while len(live) > 1:
        half = (len(live) + 1) // 2
        pairs = [
            combine(b, fold.kind, fold.dtype, x, y)
            for x, y in zip(live[:half], live[half:], strict=False)
        ]
        live = pairs + live[len(pairs) : half]
    total = live[0]
    while across and total.type.lanes > 1:
        half = total.type.lanes // 2
        low = b.shufflevector(total, None, list(range(half)))
        high = b.shufflevector(total, None, list(range(half, 2 * half)))
        total = combine(b, fold.kind, fold.dtype, low, high)
    return total


__all__ = ["accumulate", "finish", "start"]
