"""What the batch columns share: a batch dimension stands before all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.graph import Value
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.table import Batch

Flags = Sequence[bool]


def spread(x: Value, size: int) -> Value:
    """`x` repeated along a batch dimension."""
    return rows.broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, len(x.shape) + 1)))


def carried(operands: Sequence[Value], batched: Flags, size: int) -> list[Value]:
    """The operands, all with a batch dimension."""
    return [x if b else spread(x, size) for x, b in zip(operands, batched, strict=True)]


def shifted(dims: int | Sequence[int]) -> Any:
    """A dimension, or several, behind a batch dimension."""
    return dims + 1 if isinstance(dims, int) else tuple(d + 1 for d in dims)


def shifting(name: str, *keys: str) -> Batch:
    """The rule of rows that leave leading dimensions alone.

    name: of the row.
    keys: its attributes that hold a dimension, or a tuple of them.
    """

    def batch(operands: Sequence[Value], batched: Flags, size: int, /, **attrs: Any) -> Value:
        moved = {key: shifted(value) if key in keys else value for key, value in attrs.items()}
        row = getattr(rows, name)
        result: Value = row(*carried(operands, batched, size), **moved)
        return result

    return batch


def shifting_first(name: str, *keys: str) -> Batch:
    """`shifting` where the first operand alone has the leading dimensions.

    Examples of other operands are left to the decomposition.
    """
    shift = shifting(name, *keys)

    def batch(operands: Sequence[Value], batched: Flags, size: int, /, **attrs: Any) -> Any:
        if any(batched[1:]):
            return None
        return shift(operands, [True] * len(operands), size, **attrs)

    return batch


def to_front(x: Value, dim: int) -> Value:
    """`x` with one dimension moved before all others."""
    return build.transpose(x, (dim, *(d for d in range(len(x.shape)) if d != dim)))


def folded(x: Value, dim: int) -> Value:
    """`x` with the batch dimension joined into a dimension, numbered without it."""
    rest = list(range(1, len(x.shape)))
    moved = build.transpose(x, (*rest[:dim], 0, *rest[dim:]))
    sizes = moved.shape
    return build.reshape(moved, (*sizes[:dim], sizes[dim] * sizes[dim + 1], *sizes[dim + 2 :]))


def unfolded(x: Value, dim: int, size: int, rest: int) -> Value:
    """`folded` undone; rest: the size of the dimension for one example."""
    shape = (*x.shape[:dim], size, rest, *x.shape[dim + 1 :])
    return to_front(build.reshape(x, shape), dim)
