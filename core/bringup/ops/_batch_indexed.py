"""The batch columns of the rows with data-dependent indices.

Examples that have their own indices are a batch dimension of the windows; where only the array has
examples, every window spans them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.dtypes import i32
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._windows import clamped
from bringup.ops.batching import Flags, carried, shifted, spread
from bringup.ops.build import rows
from bringup.types import TensorType

Dims = tuple[int, ...]


def _moved(attrs: dict[str, Any], array: bool, indices: bool) -> dict[str, Any]:
    """Dimension numbers for operands with a batch dimension: array, indices or both."""
    mine, theirs = attrs["batch"]
    offset: Dims = shifted(attrs["offset"])
    moved = {**attrs, "offset": offset, "index_dim": attrs["index_dim"] + indices}
    if array:
        moved |= {name: shifted(attrs[name]) for name in ("index_map", "collapsed")}
        mine = shifted(mine)
    if indices:
        theirs = shifted(theirs)
    if array and indices:
        mine, theirs = (0, *mine), (0, *theirs)
    elif array:
        moved["offset"] = (0, *offset)
    return {**moved, "batch": (mine, theirs)}


def batch_gather(
    operands: Sequence[Value], batched: Flags, size: int, /, *, sizes: Dims, **attrs: Any
) -> Value:
    """Windows of one element along the examples, or of all of them if the indices are shared."""
    x, indices = operands
    array, own = batched
    if array:
        sizes = (1 if own else size, *sizes)
    return rows.gather(x, indices, sizes=sizes, **_moved(attrs, array, own))


def batch_scatter(operands: Sequence[Value], batched: Flags, size: int, /, **attrs: Any) -> Value:
    """As `batch_gather`; each example writes into an array of its own."""
    x, indices, updates = operands
    x, updates = carried((x, updates), (batched[0], batched[2]), size)
    return rows.scatter(x, indices, updates, **_moved(attrs, True, batched[1]))


def batch_dynamic_slice(
    operands: Sequence[Value], batched: Flags, size: int, /, *, sizes: Dims
) -> Value:
    """A slice if the starts are shared, else windows of a gather."""
    x, *starts = operands
    if not any(batched[1:]):
        return rows.dynamic_slice(x, _first(starts), *starts, sizes=(size, *sizes))
    indices = _joined(starts, batched[1:], size)
    rank = len(sizes)
    attrs = {
        "offset": tuple(range(rank)),
        "index_map": tuple(range(rank)),
        "index_dim": 0,
        "collapsed": (),
        "batch": ((), ()),
        "mode": "clip",
    }
    return batch_gather((x, indices), (batched[0], True), size, sizes=sizes, **attrs)


def batch_dynamic_update_slice(operands: Sequence[Value], batched: Flags, size: int, /) -> Value:
    """An update if the starts are shared, else windows of a scatter, moved inside before."""
    x, update, *starts = operands
    x, update = carried((x, update), batched[:2], size)
    if not any(batched[2:]):
        return rows.dynamic_update_slice(x, update, _first(starts), *starts)
    lasts = [n - m for n, m in zip(x.shape[1:], update.shape[1:], strict=True)]
    inside = [clamped(start, last) for start, last in zip(starts, lasts, strict=True)]
    every = tuple(range(1, len(x.shape)))
    return rows.scatter(
        x,
        _joined(inside, batched[2:], size),
        update,
        kind="set",
        offset=every,
        index_map=every,
        index_dim=1,
        batch=((0,), (0,)),
        unique=True,
    )


def _first(starts: Sequence[Value]) -> Value:
    """The start along the examples."""
    return build.splat(0, starts[0].type if starts else TensorType((), i32))


def _joined(starts: Sequence[Value], batched: Flags, size: int) -> Value:
    """One index per example, components last."""
    each = [x if b else spread(x, size) for x, b in zip(starts, batched, strict=True)]
    wide = [build.reshape(x, (size, 1)) for x in each]
    return rows.concatenate(*wide, dim=1) if len(wide) > 1 else wide[0]
