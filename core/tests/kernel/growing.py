"""Random small graphs, dense in what fusion and planning look for; also random kernels made of
them.
"""

from __future__ import annotations

from hypothesis import strategies as st

from bringup.dtypes import DType, bool_, f16, f32, f64, i8, i32, i64, u8
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.ops.build import convert, kept, rows, splat
from bringup.passes.outputs import materialize_outputs

DTYPES = (f32, f32, i32, f64, f16, i8, u8, i64, bool_)
SHAPES = ((4,), (2, 3), (1, 5), (3, 1, 2), (), (17,), (4, 6), (2, 3, 4), (33,), (0, 3))
#: What a device might set: everything, no rows, short rows, few buffers, small scratch.
LIMITS = (
    Limits(),
    Limits(stages=1),
    Limits(row_elements=4),
    Limits(buffers=4),
    Limits(tile_bytes=16),
)
_MOST_ELEMENTS = 200


class Growth:
    """A graph grown step by step from small numbers, so that it shrinks to few steps."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)
        self.values: list[Value] = []

    def below(self, limit: int) -> int:
        return next(self.numbers, 0) % limit

    def pick(self, like: Value | None = None) -> Value:
        """A value, mostly a late one; of the type of ``like``, which counts too."""
        found = [v for v in reversed(self.values) if like is None or v.type is like.type]
        return found[min(self.below(len(found)), self.below(len(found)))]

    def step(self) -> Value:
        x = self.pick()
        makers = (
            self.unary, self.binary, self.binary, self.move, self.move, self.move, self.fold,
            self.row, self.row, self.dot, self.choose, self.count, self.read, self.read,
        )  # fmt: skip
        return makers[self.below(len(makers))](x)

    def unary(self, x: Value) -> Value:
        names = ["neg", "abs"] if x.dtype is not bool_ else []
        names += ["floor", "exp", "tanh", "sqrt", "log"] if x.dtype.is_float else []
        choice = self.below(len(names) + 1)
        if choice < len(names):
            return getattr(rows, names[choice])(x)  # type: ignore[no-any-return]
        return convert(x, DTYPES[self.below(len(DTYPES))])

    def binary(self, x: Value) -> Value:
        names = ["add", "mul", "sub", "max", "min"] if x.dtype is not bool_ else ["and", "or"]
        names += ["xor"] if not x.dtype.is_float else ["div"]
        name = names[self.below(len(names))]
        y = splat(self.below(3), x.type) if self.below(5) == 1 else self.pick(x)
        pair = (x, y) if self.below(2) else (y, x)
        return getattr(rows, name)(*pair)  # type: ignore[no-any-return]

    def choose(self, x: Value) -> Value:
        y = self.pick(x)
        direction = ("eq", "ne", "lt", "le", "gt", "ge")[self.below(6)]
        return rows.select(rows.compare(x, y, direction=direction), x, self.pick(x))

    def count(self, x: Value) -> Value:
        rank = len(x.shape)
        if x.dtype is bool_ or not rank:
            return x
        return rows.add(x, rows.iota(type=x.type, dim=self.below(rank)))

    def fold(self, x: Value) -> Value:
        kinds = ("and", "or") if x.dtype is bool_ else ("add", "max", "min", "add", "mul")
        dims = tuple(d for d in range(len(x.shape)) if self.below(3))
        return rows.reduce(x, kind=kinds[self.below(len(kinds))], dims=dims)

    def row(self, x: Value) -> Value:
        """Something of x and one of its own reductions, as in softmax."""
        dims = tuple(d for d in range(len(x.shape)) if self.below(2))
        kinds = ("and", "or") if x.dtype is bool_ else ("max", "add")
        folded = rows.reduce(x, kind=kinds[self.below(2)], dims=dims)
        if folded.dtype.is_float and self.below(2):
            folded = rows.tanh(folded)
        names = ("and", "xor") if x.dtype is bool_ else ("sub", "mul")
        return getattr(rows, names[self.below(2)])(x, kept(folded, dims, x.shape))  # type: ignore[no-any-return]

    def dot(self, x: Value) -> Value:
        rank = len(x.shape)
        if not rank or x.dtype is bool_:
            return x
        y, at = self.pick(x), self.below(rank)
        batch = tuple(d for d in range(rank) if d != at and self.below(2))
        free = x.type.size // max(x.shape[at], 1)
        if free * free > _MOST_ELEMENTS:
            return x
        return rows.dot_general(x, y, batch=(batch, batch), contract=((at,), (at,)))

    def move(self, x: Value) -> Value:
        rank, shape, small = len(x.shape), x.shape, x.type.size < 40
        choice = self.below(7)
        if choice == 0:
            merged = (shape[0] * shape[1], *shape[2:]) if rank > 1 else (*shape, 1)
            return rows.reshape(x, shape=merged if self.below(2) else (x.type.size,))
        if choice == 1 and rank:
            turn = self.below(rank)
            order = tuple(range(rank))
            return rows.transpose(x, permutation=order[turn:] + order[:turn])
        if choice == 2 and small:
            at, n = self.below(rank + 1), 1 + self.below(3)
            dims = tuple(d for d in range(rank + 1) if d != at)
            return rows.broadcast_in_dim(x, shape=(*shape[:at], n, *shape[at:]), dims=dims)
        if choice == 3 and rank:
            return self.cut(x)
        if choice == 4 and rank and small:
            lo, hi, gap = (tuple(self.below(3) - (n > 1) for n in shape) for _ in range(3))
            value = splat(self.below(2), x.type.with_shape(()))
            return rows.pad(x, value, lo=lo, hi=hi, interior=tuple(max(g, 0) for g in gap))
        if choice == 5 and rank and small:
            return rows.concatenate(x, self.pick(x), dim=self.below(rank))
        if choice == 6 and rank and x.type.size % 2 == 0 and x.type.size:
            return rows.reshape(x, shape=(x.type.size // 2, 2))
        return x

    def read(self, x: Value) -> Value:
        """Entries of a dimension, or a window, at indices that are data."""
        rank, shape = len(x.shape), x.shape
        if not rank or not x.type.size:
            return x
        at = self.indices()
        if self.below(2):
            start = rows.reshape(rows.slice(at, start=(0,), limit=(1,)), shape=())
            sizes = tuple(max(1, n - self.below(3)) for n in shape)
            if self.below(2):
                return rows.dynamic_slice(x, *[start] * rank, sizes=sizes)
            part = rows.slice(self.pick(x), start=(0,) * rank, limit=sizes)
            return rows.dynamic_update_slice(x, part, *[start] * rank)
        dim = self.below(rank)
        if x.type.size // shape[dim] * at.type.size > _MOST_ELEMENTS:
            return x
        offset = tuple(d for d in range(rank) if d != dim)
        sizes = tuple(1 if d == dim else n for d, n in enumerate(shape))
        numbers = {"offset": offset, "index_map": (dim,), "index_dim": 1, "collapsed": (dim,)}
        return rows.gather(x, at, sizes=sizes, mode=("clip", "fill")[self.below(2)], **numbers)

    def indices(self) -> Value:
        """An input's integers, or counters; some lie outside."""
        known = [v for v in self.values if v.producer is None and v.dtype.is_integer]
        known = [v for v in known if v.type.size]
        if known and self.below(3):
            x = known[self.below(len(known))]
            return rows.reshape(x, shape=(x.type.size,))
        counts = rows.iota(type=i32[1 + self.below(6)], dim=0)
        return rows.add(rows.mul(counts, splat(self.below(3), counts.type)), splat(-1, counts.type))

    def cut(self, x: Value) -> Value:
        start, limit, stride = [], [], []
        for n in x.shape:
            low = self.below(n + 1)
            high = low + self.below(n - low + 1)
            backwards = self.below(4) == 1 and high > low
            start.append(high - 1 if backwards else low)
            limit.append(low - 1 if backwards else high)
            stride.append((-1 if backwards else 1) * (1 + self.below(2)))
        return rows.slice(x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))


def grown(numbers: list[int], dtypes: tuple[DType, ...] = DTYPES) -> Graph:
    """The graph that the numbers choose; its outputs are made by launches, once each."""
    growth = Growth(numbers)
    with Builder() as builder:
        dtype = dtypes[growth.below(len(dtypes))]
        shape = SHAPES[growth.below(len(SHAPES))]
        growth.values += [builder.input(dtype[shape]) for _ in range(1 + growth.below(3))]
        for _ in range(len(numbers) // 5):
            growth.values.append(growth.step())
        count = 1 + growth.below(3)
        return materialize_outputs().run(builder.build(growth.values[-count:]))


def _numbers(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 5039), min_size=least, max_size=most)


# Lists come out little longer than they must be; alone, the first would mean graphs of two steps.
graphs = st.one_of(_numbers(6, 30), _numbers(35, 60), _numbers(60, 120)).map(grown)


def launches(graph: Graph, limits: Limits, *, depth: bool) -> list[Launch]:
    """Fused as for a device that takes everything in kernels."""
    return fuse(graph, limits, depth=depth)
