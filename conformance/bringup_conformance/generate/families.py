"""Families of fixed programs: what everybody writes first, every way of reading elements with every
way of using them, and programs with many inputs, outputs, launches and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType, f16, f32, i32
from bringup.graph import Builder, Literal, Value
from bringup.kernel.limits import Limits
from bringup.ops.build import (
    broadcast_to,
    like,
    pad,
    reduce,
    reverse,
    rows,
    slice_dim,
    splat,
    sum_,
    transpose,
)
from bringup.passes.base import as_results
from bringup.types import TensorType
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.choices import Stream, pick
from bringup_conformance.generate.hazards_control import inside, loop, mixed
from bringup_conformance.generate.indexed import READS as INDEXED_READS
from bringup_conformance.generate.programs import data_sets, program_case
from bringup_conformance.generate.sizes import LARGE

Shape = tuple[int, ...]
Values = Sequence[Value]
Made = Iterator[Case | Unsupported]


# -- what everybody writes first -------------------------------------------------------------------


def everyday(support: Support, vector: int, seed: int) -> Made:
    """A weighted sum, softmax and a dense layer in f32, on sizes around the device's vector."""
    for build in (weighted_sum, softmax, dense_layer):
        with Builder() as builder:
            output = build(builder, vector)
        graph = builder.build([output], build.__name__)
        data = data_sets(graph, ("signed", "small"), seed)
        yield program_case(support, graph, graph.name, data, level="smoke", split=True)


def weighted_sum(builder: Builder, vector: int) -> Value:
    """``sum(x + y * z)``."""
    x, y, z = (builder.input(f32[5, 4 * vector + 3]) for _ in range(3))
    return sum_(rows.add(x, rows.mul(y, z)), (0, 1))


def softmax(builder: Builder, vector: int) -> Value:
    """Softmax of rows."""
    result: Value = rows.softmax(builder.input(f32[7, 2 * vector + 5]), dims=(1,))
    return result


def dense_layer(builder: Builder, vector: int) -> Value:
    """``relu(x @ weights + bias)``."""
    x, weights = builder.input(f32[5, vector + 1]), builder.input(f32[vector + 1, 7])
    bias = builder.input(f32[7])
    product = rows.dot_general(x, weights, batch=((), ()), contract=((1,), (0,)))
    result: Value = rows.relu(rows.add(product, broadcast_to(bias, (5, 7), (1,))))
    return result


# -- every read with every use ---------------------------------------------------------------------
# Random programs rarely reach these sizes together: a read decides which loop a device runs across
# its lanes, and the use decides what becomes of the rest.

#: Makes a value of a shape from new inputs.
Read = Callable[[Builder, DType, Shape], Value]
#: The outputs of a program on what was read.
Use = Callable[[Value], Values]
_DTYPES = (f32, i32, f16)


def _scalar(builder: Builder, dtype: DType, shape: Shape) -> Value:
    return broadcast_to(builder.input(dtype[()]), shape, ())


def _row(builder: Builder, dtype: DType, shape: Shape) -> Value:
    last = len(shape) - 1
    result: Value = rows.broadcast_in_dim(
        builder.input(dtype[shape[last]]), shape=shape, dims=(last,)
    )
    return result


def _column(builder: Builder, dtype: DType, shape: Shape) -> Value:
    result: Value = rows.broadcast_in_dim(builder.input(dtype[shape[0]]), shape=shape, dims=(0,))
    return result


def _counted(_builder: Builder, dtype: DType, shape: Shape) -> Value:
    counts = rows.iota(type=i32[shape], dim=len(shape) - 1)
    odd = rows.and_(counts, rows.shr(counts, _spread(counts, 3), kind="logical"))
    result: Value = rows.convert(rows.and_(odd, _spread(odd, 1)), dtype=dtype)
    return result


def _spread(value: Value, number: int) -> Value:
    scalar = rows.constant(value=Literal.splat(number, value.dtype[()]))
    return broadcast_to(scalar, value.shape, ())


def _strided(builder: Builder, dtype: DType, shape: Shape) -> Value:
    wide = builder.input(dtype[(*shape[:-1], 2 * shape[-1])])
    zeros = (0,) * len(shape)
    steps = (*(1 for _ in shape[:-1]), 2)
    result: Value = rows.slice(wide, start=zeros, limit=wide.shape, stride=steps)
    return result


def _reversed(builder: Builder, dtype: DType, shape: Shape) -> Value:
    return reverse(builder.input(dtype[shape]), tuple(range(len(shape))))


def _transposed(builder: Builder, dtype: DType, shape: Shape) -> Value:
    order = tuple(range(len(shape)))[::-1]
    result: Value = rows.transpose(builder.input(dtype[shape[::-1]]), permutation=order)
    return result


def _reshaped(builder: Builder, dtype: DType, shape: Shape) -> Value:
    result: Value = rows.reshape(builder.input(dtype[math.prod(shape)]), shape=shape)
    return result


def _padded(builder: Builder, dtype: DType, shape: Shape) -> Value:
    x = builder.input(dtype[(*shape[:-1], shape[-1] - 2)])
    around = (*(0 for _ in shape[:-1]), 1)
    return pad(x, builder.input(dtype[()]), around, around)


def _joined(builder: Builder, dtype: DType, shape: Shape) -> Value:
    cut = shape[0] // 3
    parts = [builder.input(dtype[(n, *shape[1:])]) for n in (cut, shape[0] - cut)]
    result: Value = rows.concatenate(*parts, dim=0)
    return result


READS: dict[str, Read] = {
    "scalar": _scalar, "row": _row, "column": _column, "iota": _counted, "strided": _strided,
    "reversed": _reversed, "transposed": _transposed, "reshaped": _reshaped, "padded": _padded,
    "joined": _joined, **INDEXED_READS,
}  # fmt: skip


def _folded(kind: str, dims: Callable[[int], Sequence[int]]) -> Use:
    return lambda value: (reduce(kind, value, tuple(dims(len(value.shape)))),)


def _centred(value: Value) -> Values:
    last = len(value.shape) - 1
    most = reduce("max", value, (last,))
    spread = rows.broadcast_in_dim(most, shape=value.shape, dims=tuple(range(last)))
    return (rows.sub(value, spread),)


def _kept(value: Value) -> Values:
    """A fold of what is stored as well."""
    twice = rows.add(value, value)
    return twice, *_folded("add", range)(twice)


def _shorter(value: Value) -> Values:
    """Two folds that differ in nothing but how far they go."""
    part = slice_dim(value, 0, 0, value.shape[0] - 1)
    whole = _folded("add", range)
    return *whole(part), *whole(value)


USES: dict[str, Use] = {
    "sum": _folded("add", range),
    "max": _folded("max", range),
    "sum_first": _folded("add", lambda _rank: (0,)),
    "min_last": _folded("min", lambda rank: (rank - 1,)),
    "map": lambda value: (rows.max(rows.add(value, value), _spread(value, 3)),),
    "centred": _centred,
    "kept": _kept,
    "shorter": _shorter,
}


def pairs(support: Support, shapes: Shapes, read: str, seed: int, *, large: bool) -> Made:
    """A way of reading with each use, on a size of the device's and on one past any block or chunk.

    The seed says which sizes and dtypes meet.
    """
    w, n = max(shapes.vector, 3), LARGE[-1]
    small: tuple[Shape, ...] = ((w + 1,), (5, w - 1), (shapes.block + 1, 3))
    long: tuple[Shape, ...] = ((n,), (n // 9, 9), (7, n // 7)) if large else ()
    first = seed + list(READS).index(read)
    for number, use in enumerate(USES):
        dtype = _DTYPES[(first + number // 3) % 3]
        for sizes in filter(None, (small, long)):
            yield _pair(support, read, use, dtype[sizes[(first + number) % 3]], seed)


def _pair(
    support: Support, read: str, use: str, type_: TensorType, seed: int
) -> Case | Unsupported:
    with Builder() as builder:
        outputs = USES[use](READS[read](builder, type_.dtype, type_.shape))
    graph = builder.build(outputs, f"{read}_{use}")
    data = data_sets(graph, ("small", "signed") if type_.dtype is f16 else ("signed", "ramp"), seed)
    slug = f"{read}-{use}-{'x'.join(map(str, type_.shape))}"
    return program_case(
        support, graph, slug, data, dtype=type_.dtype.name, split=True, tags=("pair",)
    )


# -- many of one thing -----------------------------------------------------------------------------
# Dimensions, parts of a join, inputs, outputs, branches, trips, rows of a scan, launches.  Counts
# lie just past the powers of two at which tables and counters end.

#: A program of so many; what inputs it needs it makes.
Build = Callable[[Builder, int], Values]
#: Steps of a ladder: the seed takes one of each.
_RUNGS = ((5, 9, 17), (33, 65), (129, 257))
#: Dimensions that references of numpy have.
_RANK = 32
_COUNTER = i32[()]
_LINE = f32[7]


def many(support: Support, limits: Limits, name: str, seed: int, *, few: bool) -> Made:
    """A rung of each part of a ladder, the first alone where few elements are wanted."""
    choices = Stream(seed, "ladder", name)
    most = min(limits.rank, _RANK) if name == "rank" else _RUNGS[-1][-1]
    for part in _RUNGS[:1] if few else _RUNGS:
        count = min(pick(choices, part), most)
        with Builder() as builder:
            outputs = LADDERS[name](builder, count)
        graph = builder.build(outputs, f"{name}_{count}")
        data = data_sets(graph, ("small", "ramp"), seed, step=1)
        slug = f"many-{name}-{count}"
        case = program_case(support, graph, slug, data, tags=("ladder", f"many-{name}"))
        yield case
        if isinstance(case, Unsupported):
            continue
        if count == most:
            return


def _rank(builder: Builder, count: int) -> Values:
    """Dimensions of two among many of one, reversed and folded."""
    shape = tuple(2 if d % -(-count // 6) == 0 else 1 for d in range(count))
    x, y = builder.input(f32[shape]), builder.input(f32[shape[::-1]])
    order = tuple(range(count))[::-1]
    difference = rows.sub(transpose(x, order), y)
    return difference, sum_(difference, tuple(range(1, count, 2))), reverse(x, (0, count - 1))


def _parts(builder: Builder, count: int) -> Values:
    """Pieces of a line in another order, each other one computed."""
    x = builder.input(f32[3 * count])
    pieces = [slice_dim(x, 0, 3 * n, 3 * n + 1 + n % 3) for n in range(count)]
    changed = [rows.add(p, like(p, n)) if n % 2 else p for n, p in enumerate(pieces)]
    return rows.concatenate(*changed[::-1], dim=0), rows.concatenate(*pieces, dim=0)


def _inputs(builder: Builder, count: int) -> Values:
    """Differences of each input and all before it."""
    total = builder.input(_LINE)
    for _ in range(count - 1):
        total = rows.sub(builder.input(_LINE), total)
    return (total,)


def _outputs(builder: Builder, count: int) -> Values:
    """A result for each number, of two sizes."""
    x = builder.input(_LINE)
    results = [rows.add(x, like(x, n)) for n in range(count)]
    return [sum_(y, (0,)) if n % 3 == 2 else y for n, y in enumerate(results)]


def _last(builder: Builder, count: int) -> Value:
    """The number before last or the last of so many, as an input says."""
    offset = rows.and_(builder.input(_COUNTER), splat(1, _COUNTER))
    result: Value = rows.add(offset, splat(count - 2, _COUNTER))
    return result


def _branches(builder: Builder, count: int) -> Values:
    x = builder.input(_LINE)
    graphs = [inside(lambda v, n=n: (rows.add(v, like(v, n)),), _LINE) for n in range(count)]
    return as_results(rows.case(_last(builder, count), x, branches=tuple(graphs)))


def _trips(builder: Builder, count: int) -> Values:
    """A loop that swaps and counts, as often as an input says."""

    def step(counter: Value, x: Value, y: Value, total: Value) -> Values:
        after = rows.add(counter, splat(1, _COUNTER))
        return after, y, mixed(x, y), rows.add(total, counter)

    x, y = builder.input(_LINE), builder.input(_LINE)
    start = rows.and_(builder.input(_COUNTER), splat(1, _COUNTER))
    return loop(count, step, start, x, y, splat(0, _COUNTER))


def _scanned_rows(builder: Builder, count: int) -> Values:
    """A scan that keeps the largest row so far and how far each row is from it."""

    def step(carry: Value, x: Value) -> Values:
        after = rows.max(carry, x)
        return after, rows.sub(after, x)

    carry, stack = builder.input(_LINE), builder.input(f32[count, 7])
    attrs = {"body": inside(step, _LINE, _LINE), "length": count, "reverse": False}
    return as_results(rows.scan(carry, stack, **attrs, consts=0, carries=1))


def _launches(builder: Builder, count: int) -> Values:
    """Products of products, each of which is in memory before the next; the first is read last."""
    x = first = builder.input(f32[5, 5])
    for _ in range(count):
        product = rows.dot_general(x, first, batch=((), ()), contract=((1,), (0,)))
        x = rows.min(rows.max(product, like(x, 0)), like(x, 1))
    return rows.sub(x, first), x


LADDERS: dict[str, Build] = {
    "rank": _rank,
    "parts": _parts,
    "inputs": _inputs,
    "outputs": _outputs,
    "branches": _branches,
    "trips": _trips,
    "rows": _scanned_rows,
    "launches": _launches,
}
