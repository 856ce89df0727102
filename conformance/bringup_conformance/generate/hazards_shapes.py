"""Hazards of index maps, shared loops and memory plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.dtypes import DType, f16, f32, i32, u8
from bringup.graph import Value
from bringup.ops.build import (
    broadcast_to,
    convert,
    like,
    pad,
    reduce,
    reshape,
    reverse,
    rows,
    slice_dim,
    sum_,
    transpose,
)

if TYPE_CHECKING:
    from bringup_conformance.generate.hazards import PatternInputs

Values = Sequence[Value]


def _turned_twice(inputs: PatternInputs) -> Values:
    cube, box = inputs.new(3, 3, 3), inputs.new(2, 3, 5)
    again = transpose(transpose(cube, (1, 2, 0)), (1, 2, 0))
    return again, *(transpose(transpose(x, (1, 2, 0)), (1, 0, 2)) for x in (cube, box))


def _turned_sums(inputs: PatternInputs) -> Values:
    """So many reads turned round that it is the result that is."""
    operands = [inputs.new(inputs.w + 1, inputs.w + 8) for _ in range(7)]
    total = transpose(operands[0], (1, 0))
    for number, x in enumerate(operands[1:], 2):
        total = rows.sub(rows.max(total, like(total, number)), transpose(x, (1, 0)))
    return (total,)


def _turned_results(inputs: PatternInputs) -> Values:
    """More results turned round than fast memory holds at once."""
    operands = [inputs.new(inputs.w + 1, inputs.w + 8) for _ in range(14)]
    first = operands[0]
    positive = rows.compare(first, like(first, 0), direction="gt")
    chosen = [rows.select(positive, x, reverse(x, (0,))) for x in operands]
    return [transpose(x, (1, 0)) for x in chosen]


def _turned_flat(inputs: PatternInputs) -> Values:
    x = inputs.square()
    return reshape(transpose(x, (1, 0)), (x.type.size,)), reshape(x, (x.type.size,))


def _sliced_twice(inputs: PatternInputs) -> Values:
    x = inputs.row()
    n = x.shape[0]
    inner = rows.slice(x, start=(1,), limit=(n,), stride=(2,))
    outer = rows.slice(inner, start=(2,), limit=inner.shape, stride=(2,))
    back = rows.slice(inner, start=(inner.shape[0] - 1,), limit=(0,), stride=(-2,))
    return outer, back


def _neighbours(inputs: PatternInputs) -> Values:
    x = inputs.row()
    n = x.shape[0]
    low, high = slice_dim(x, 0, 0, n - 2), slice_dim(x, 0, 2, n)
    return rows.sub(low, high), reduce("min", low, (0,)), reduce("max", high, (0,))


def _parts_alike(inputs: PatternInputs) -> Values:
    """What differs in an attribute alone."""
    x = inputs.square()
    n = x.shape[0]
    sums = [sum_(x, (d,)) for d in (0, 1)]
    kinds = [reduce(kind, x, (0,)) for kind in ("max", "min")]
    parts = [slice_dim(x, 0, starts, n - 3 + starts) for starts in (0, 3)]
    return *sums, *kinds, *parts, transpose(x, (1, 0)), reverse(x, (0,)), reverse(x, (1,))


def _scaled(inputs: PatternInputs) -> Values:
    """Vectors along each dimension of a square."""
    x = inputs.square()
    scale, shift = inputs.new(x.shape[0]), inputs.new(x.shape[0])
    down, across = broadcast_to(scale, x.shape, (0,)), broadcast_to(shift, x.shape, (1,))
    return (rows.add(rows.mul(x, down), across),)


def _symmetric(inputs: PatternInputs) -> Values:
    x, y = inputs.square(), inputs.square()
    return rows.sub(rows.add(x, y), transpose(x, (1, 0))), rows.sub(transpose(y, (1, 0)), x)


def _counted(inputs: PatternInputs) -> Values:
    x = inputs.square()
    counts = [rows.iota(type=x.type, dim=d) for d in (0, 1)]
    return rows.add(x, counts[0]), rows.sub(counts[1], x)


def _joined(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    scaled = [rows.mul(x, like(x, 2)), rows.add(y, like(y, 3)), rows.mul(y, like(y, 3)), x]
    pair = rows.concatenate(rows.mul(x, like(x, 3)), rows.add(y, like(y, 2)), dim=0)
    return rows.concatenate(*scaled, dim=0), pair


def _padded(inputs: PatternInputs) -> Values:
    """Edges that are no zeros, in the middle of a launch and before a fold."""
    x, edge = inputs.row(), inputs.new()
    wide = pad(rows.add(x, x), edge, (3,), (2,), (1,))
    return wide, reduce("max", pad(x, 2, (1,), (4,)), (0,)), sum_(wide, (0,))


def _guarded(inputs: PatternInputs) -> Values:
    """Several results of one loop, with reads that have to be guarded."""
    x, y = inputs.row(), inputs.row()
    n = x.shape[0]
    right, left = pad(x, 5, (1,), (-1,)), pad(y, 3, (-2,), (2,))
    return rows.add(x, right), rows.sub(y, left), rows.max(right, broadcast_to(left, (n,)))


def _mirrored(inputs: PatternInputs) -> Values:
    x = inputs.table()
    return rows.sub(reverse(x, (1,)), x), rows.add(reverse(x, (0,)), reverse(x, (0, 1)))


def _centred(inputs: PatternInputs) -> Values:
    x = inputs.table()
    most, total = reduce("max", x, (1,)), sum_(x, (1,))
    spread = [broadcast_to(v, x.shape, (0,)) for v in (most, total)]
    return rows.sub(x, spread[0]), rows.add(x, spread[1])


def _moments(inputs: PatternInputs) -> Values:
    """Two folds of one read, and what is made of both."""
    x = inputs.table()
    first, second = sum_(x, (1,)), sum_(rows.mul(x, x), (1,))
    return first, second, rows.sub(second, first)


def _of_many_sizes(inputs: PatternInputs) -> Values:
    x = inputs.table()
    twice = rows.add(x, x)
    folded = sum_(twice, (1,))
    return twice, folded, sum_(folded, (0,)), slice_dim(twice, 0, 0, 2)


def _windows(inputs: PatternInputs) -> Values:
    """Starts within, below and beyond, of two arrays."""
    x, y = inputs.table(), inputs.table()
    starts = [inputs.new(dtype=i32) for _ in range(3)]
    sizes = (2, inputs.w)
    one = rows.dynamic_slice(x, starts[0], starts[1], sizes=sizes)
    other = rows.dynamic_slice(y, starts[2], starts[0], sizes=sizes)
    changed = rows.dynamic_update_slice(x, one, starts[2], starts[1])
    return rows.add(one, other), rows.add(changed, y)


def _picked(inputs: PatternInputs) -> Values:
    """Elements of two tables at two sets of indices."""
    x, y = inputs.table(), inputs.table()
    numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
    sizes = (1, x.shape[1])
    indices = [rows.and_(inputs.new(4, dtype=i32), like_of(i32, 4, 7)) for _ in range(2)]
    gathered = [
        rows.gather(v, i, **numbers, sizes=sizes, mode=mode)
        for v, i, mode in zip((x, y), indices, ("clip", "fill"), strict=True)
    ]
    return (rows.sub(*gathered),)


def like_of(dtype: DType, count: int, number: int) -> Value:
    """A vector of one number."""
    from bringup.ops.build import splat

    return splat(number, dtype[count])


# -- memory ----------------------------------------------------------------------------------------


def _product(inputs: PatternInputs, x: Value) -> Value:
    """A value that a launch of its own leaves in memory."""
    weights = inputs.new(x.shape[-1], x.shape[-1])
    product: Value = rows.dot_general(x, weights, batch=((), ()), contract=((1,), (0,)))
    return product


def _over_itself(inputs: PatternInputs) -> Values:
    """What is read shifted, turned and reversed dies where it is read."""
    x = inputs.square()
    by = _product(inputs, x)
    shifted = rows.add(pad(by, 0, (1, 0), (-1, 0)), by)
    turned = rows.sub(transpose(_product(inputs, shifted), (1, 0)), x)
    again = _product(inputs, turned)
    return (rows.sub(reverse(again, (0, 1)), again),)


def _alive_together(inputs: PatternInputs) -> Values:
    """Values of several sizes and dtypes in memory at once, read late and more than once."""
    x = inputs.square()
    one = _product(inputs, x)
    half = convert(rows.max(one, x), f16)
    two = _product(inputs, rows.sub(one, x))
    flags = rows.compare(one, two, direction="lt")
    three = _product(inputs, rows.add(two, convert(half, inputs.dtype)))
    small = convert(flags, u8)
    four = sum_(rows.mul(three, convert(small, inputs.dtype)), (0,))
    last = rows.add(three, broadcast_to(four, x.shape, (1,)))
    return rows.sub(last, one), rows.add(two, convert(half, inputs.dtype)), flags


def _alive_together_larger(inputs: PatternInputs) -> Values:
    """The same at another size: plans of one are none of the other."""
    return _alive_together(replace(inputs, w=2 * inputs.w + 1))


def _returned_and_read(inputs: PatternInputs) -> Values:
    """Outputs that later launches read, with scratch behind them; operands that are read first."""
    x = inputs.square()
    one = _product(inputs, x)
    two = _product(inputs, one)
    three = _product(inputs, two)
    return one, rows.add(_product(inputs, three), one)


def _narrow_and_wide(inputs: PatternInputs) -> Values:
    """As many elements of other widths, one after the other."""
    x = inputs.square()
    narrow = convert(_product(inputs, x), f16)
    folded = rows.sort(narrow, dim=0, num_keys=1, descending=False)
    wide = convert(rows.add(folded, folded), f32)
    turned = rows.sort(transpose(wide, (1, 0)), dim=1, num_keys=1, descending=True)
    return (rows.add(turned, wide), rows.sub(transpose(turned, (1, 0)), convert(folded, f32)))


PROGRAMS = {
    "turned-twice": _turned_twice,
    "turned-sums": _turned_sums,
    "turned-results": _turned_results,
    "turned-flat": _turned_flat,
    "sliced-twice": _sliced_twice,
    "neighbours": _neighbours,
    "parts-alike": _parts_alike,
    "scaled": _scaled,
    "symmetric": _symmetric,
    "counted": _counted,
    "joined-chains": _joined,
    "padded-edges": _padded,
    "guarded": _guarded,
    "mirrored": _mirrored,
    "centred-rows": _centred,
    "moments": _moments,
    "of-many-sizes": _of_many_sizes,
    "windows": _windows,
    "picked": _picked,
    "over-itself": _over_itself,
    "alive-together": _alive_together,
    "alive-together-larger": _alive_together_larger,
    "returned-and-read": _returned_and_read,
    "narrow-and-wide": _narrow_and_wide,
}
