"""Hazards of products as users run them, with a fused prologue and epilogue: casts, scales, masks
and patches of the factors; biases, activations, residuals and folds of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.dtypes import f16, i8, i32, u8
from bringup.graph import Value
from bringup.integers import ceil_div, round_up
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
    splat,
    sum_,
    transpose,
)

if TYPE_CHECKING:
    from bringup_conformance.generate.hazards import PatternInputs

Values = Sequence[Value]


def _product(x: Value, y: Value, contract: tuple[int, int] = (1, 0), **attrs: Any) -> Value:
    dims = tuple((d,) for d in contract)
    result: Value = rows.dot_general(x, y, **{"batch": ((), ()), "contract": dims, **attrs})
    return result


def _factors_made(inputs: PatternInputs) -> Values:
    """A factor cast and turned, then reversed; the other scaled by its rows and padded."""
    m, n, k = inputs.far
    left = transpose(convert(inputs.new(k, m, dtype=i8), inputs.dtype), (1, 0))
    scale = broadcast_to(inputs.new(n), (n, k - 3), (0,))
    right = pad(rows.mul(inputs.new(n, k - 3), scale), 2, (0, 1), (0, 2))
    return _product(left, right, (1, 1)), _product(reverse(left, (1,)), inputs.new(k, n))


def _results_used(inputs: PatternInputs) -> Values:
    """A dense layer with a residual, and folds of another product's rows and columns."""
    m, n, k = inputs.far
    x, weights = inputs.new(m, k), inputs.new(n, k)
    bias = broadcast_to(inputs.new(n), (m, n), (1,))
    layer = rows.max(rows.add(_product(x, weights, (1, 1)), bias), like(bias, 0))
    again = _product(rows.sub(x, like(x, 1)), weights, (1, 1))
    return rows.add(layer, inputs.new(m, n)), reduce("max", again, (1,)), convert(again, f16)


def _results_met(inputs: PatternInputs) -> Values:
    """A product stored both ways and compared; others meet what is read in every other way: turned,
    picked, repeated and tiled backwards from the middle.
    """
    m, n, k = inputs.far
    n = round_up(n, 4)  # so that columns can be stored by vectors
    products = [_product(inputs.new(m, k), inputs.new(k, n)) for _ in range(4)]
    five = ceil_div(n, 5) + 1
    repeated = broadcast_to(inputs.new(five), (five, 5), (0,))
    tiled = broadcast_to(inputs.new(5), (five, 5), (1,))
    back = [
        reverse(slice_dim(reshape(x, (5 * five,)), 0, 2, n + 2), (0,)) for x in (repeated, tiled)
    ]
    indices = rows.and_(inputs.new(m, dtype=i32), splat(7, i32[m]))
    numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
    table, where = inputs.new(8, n), reshape(indices, (m, 1))
    picked = rows.gather(table, where, **numbers, sizes=(1, n), mode="clip")
    across = [broadcast_to(x, (m, n), (1,)) for x in back]
    return (
        transpose(products[0], (1, 0)),
        rows.add(products[0], transpose(inputs.new(n, m), (1, 0))),
        rows.compare(products[1], like(products[1], 1), direction="lt"),
        rows.add(products[2], picked),
        rows.add(rows.sub(products[3], across[0]), across[1]),
    )


def _two_layers(inputs: PatternInputs) -> Values:
    """A product of a product, which stays in memory; sums of the second one."""
    m, n, k = inputs.far
    hidden = rows.max(_product(inputs.new(m, k), inputs.new(n, k), (1, 1)), inputs.new(m, n))
    second = _product(hidden, inputs.new(m, n), (1, 1))
    return second, sum_(second, (0,)), sum_(hidden, (1,))


def _bytes(inputs: PatternInputs) -> Values:
    """Bytes with and without sign, whose products two or four at a time go past 16 bits, and their
    sums with a zero point and a scale for each column.
    """
    m, n, k = inputs.far
    signed, unsigned = inputs.new(m, k, dtype=i8), inputs.new(m, k, dtype=u8)
    weights = inputs.new(n, k, dtype=i8)
    words = [convert(x, i32) for x in (signed, unsigned, weights)]
    total = _product(signed, weights, (1, 1), result=i32)
    mixed = _product(words[1], words[2], (1, 1))
    moved = _product(rows.sub(words[1], like(words[1], 128)), words[2], (1, 1))
    scale = broadcast_to(inputs.new(n), (m, n), (1,))
    return total, mixed, rows.mul(convert(moved, inputs.dtype), scale)


def _by_example(inputs: PatternInputs) -> Values:
    """Batches of both factors, and of one alone, with a mask below the diagonal."""
    m, n, k = inputs.far
    many, one = inputs.new(3, m, k), inputs.new(3, n, k)
    both = _product(many, one, (2, 2), batch=((0,), (0,)))
    counters = [rows.iota(type=both.type.with_dtype(i32), dim=d) for d in (1, 2)]
    seen = rows.compare(counters[0], counters[1], direction="ge")
    return rows.select(seen, both, like(both, -1)), _product(many, inputs.new(k, n), (2, 0))


def _patches(inputs: PatternInputs) -> Values:
    """Convolutions of images with a bias for each feature, features second and last."""
    features = inputs.far[1] // 4
    around = {"lo": (1, 1), "hi": (1, 1)}
    kernel = inputs.new(features, 11, 3, 3)
    first = rows.convolution(inputs.new(2, 11, 25, 27), kernel, strides=(2, 2), **around)
    bias = broadcast_to(inputs.new(features), first.shape, (1,))
    last = dict.fromkeys(("lhs_dims", "rhs_dims", "out_dims"), (0, 3, 1, 2))
    second = rows.convolution(
        inputs.new(2, 13, 15, 11), inputs.new(features, 3, 3, 11), **last, **around
    )
    again = rows.add(second, inputs.new(*second.shape))
    return rows.max(rows.add(first, bias), like(first, 0)), again


PROGRAMS = {
    "factors-made": _factors_made,
    "results-used": _results_used,
    "results-met": _results_met,
    "two-layers": _two_layers,
    "bytes": _bytes,
    "by-example": _by_example,
    "patches": _patches,
}
