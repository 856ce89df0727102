"""The batch columns of the rows that slide windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.graph import Value
from bringup.ops.batching import Flags, carried, folded, unfolded
from bringup.ops.build import rows

Ints = tuple[int, ...]


def batch_reduce_window(
    operands: Sequence[Value], _batched: Flags, _size: int, /, *, kind: str, **attrs: Ints
) -> Value:
    """Windows of one example."""
    still = {"window": 1, "strides": 1, "lo": 0, "hi": 0, "dilation": 1}
    moved = {name: (still[name], *values) for name, values in attrs.items()}
    return rows.reduce_window(operands[0], kind=kind, **moved)


def batch_convolution(
    operands: Sequence[Value], batched: Flags, size: int, /, *, groups: int, **attrs: Any
) -> Value | None:
    """One convolution: examples of lhs join its batch, those of rhs its output features; where both
    have examples, each is a group of features.
    """
    if size == 0:
        return None
    lhs, rhs = operands
    at, features, *_ = attrs["lhs_dims"]
    count = rhs.shape[attrs["rhs_dims"][0] + batched[1]]
    if not batched[1]:
        made = rows.convolution(folded(lhs, at), rhs, groups=groups, **attrs)
        return unfolded(made, attrs["out_dims"][0], size, lhs.shape[at + 1])
    if batched[0] or groups > 1:
        (lhs,) = carried((lhs,), batched[:1], size)
        lhs, groups = folded(lhs, features), size * groups
    made = rows.convolution(lhs, folded(rhs, attrs["rhs_dims"][0]), groups=groups, **attrs)
    return unfolded(made, attrs["out_dims"][1], size, count)
