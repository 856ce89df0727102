"""Stable sorts by merging.

Each line is cut into blocks.  An iteration of the parallel loops sorts one block by merges of runs,
which double in length.  If lines are several blocks, these are merged pair by pair, every element
in parallel: its place is its own number in its block plus the number of elements of the partner
block that come before it, which a binary search finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType, bool_, i32, i64, u8
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.codes import KeyCode
from bringup.loops.library.radix_sorts import SortLines, radix_sort
from bringup.loops.library.vector_sorts import vector_sort
from bringup.records import record

#: A block has at least so many elements: merging few takes as long as searching for one.
_LEAST_BLOCK = 32
#: Above every number of elements.
_FAR = 1 << 60


def sort(call: OpCall) -> StepLoops:
    """Sort ``outer * inner`` lines of ``length`` elements."""
    shape, dim = call.types[0].shape, call.attrs["dim"]
    lines, length = math.prod(shape[:dim] + shape[dim + 1 :]), shape[dim]
    if call.threads:
        keys = tuple(
            KeyCode(x.dtype, call.attrs["descending"])
            for x in call.operands[: call.attrs["num_keys"]]
        )
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        line = SortLines(call, call.operands, call.results, keys, outer, length, inner)
        return radix_sort(line)
    if "permute" in call.target.instructions:
        return vector_sort(call)
    share = ceil_div(length * lines, max(call.target.threads, 1))
    block = ceil_power_of_two(max(1, min(length, max(share, _LEAST_BLOCK))))
    sizes = [block << n for n in range((ceil_div(length, block) - 1).bit_length())]
    job = _Sort(call, math.prod(shape[:dim]), length, math.prod(shape[dim + 1 :]))
    if not sizes:
        return StepLoops(call, (job.blocks(block, call.results),))
    other = tuple(Buffer(f"t{n}", y.dtype, y.size) for n, y in enumerate(call.results))
    # The last merge writes the results.
    count = len(sizes)
    targets = [other if (count - n) % 2 else call.results for n in range(count + 1)]
    merges = (job.merge(w, targets[n], targets[n + 1]) for n, w in enumerate(sizes))
    return StepLoops(call, (job.blocks(block, targets[0]), *merges), other)


@record(eq=False)
class _Sort:
    """Lines of ``length`` elements, ``inner`` elements apart."""

    call: OpCall
    outer: int
    length: int
    inner: int

    @property
    def keys(self) -> int:
        """How many operands are keys."""
        count: int = self.call.attrs["num_keys"]
        return count

    def before(self, b: FuncBuilder, xs: Sequence[Scalar], ys: Sequence[Scalar]) -> Scalar:
        """Whether an element comes before another whatever their places; the first key decides
        first.
        """
        xs, ys = xs[: self.keys], ys[: self.keys]
        return _less(b, ys, xs) if self.call.attrs["descending"] else _less(b, xs, ys)

    # -- blocks ------------------------------------------------------------------------------------

    def blocks(self, block: int, targets: Sequence[Buffer]) -> Func:
        """Sort blocks, each in scratch memory of two halves, from one into the other and back."""
        roles: list[tuple[Role, Buffer]] = [("in", x) for x in self.call.operands]
        b = FuncBuilder(self.call.name, [*roles, *(("out", y) for y in targets)])
        with b.parallel(o=self.outer, c=ceil_div(self.length, block), i=self.inner) as (o, c, i):
            first = (o * self.length + c * block) * self.inner + i
            left = c * -block + self.length
            runs = [b.alloc(f"s{n}", x.dtype, 2 * block) for n, x in enumerate(self.call.operands)]
            with b.loop("e", block, until=left) as e:
                for x, run in zip(self.call.operands, runs, strict=True):
                    b.store(run, e, b.load(x, first + e * self.inner))
            passes = block.bit_length() - 1
            if passes:
                width = b.variable("width", b.constant(1, i32))
                taken = b.variable("taken", b.constant(0, i32))
                with b.loop("number", passes) as number:
                    size = b.load(width)
                    b.set(width, b.op("add", size, size))
                    with b.loop("e", block, until=left) as e:
                        self.take(b, runs, (size, taken), (number % 2 * block, e, left))
            with b.loop("e", block, until=left) as e:
                for run, y in zip(runs, targets, strict=True):
                    b.store(y, first + e * self.inner, b.load(run, e + passes % 2 * block))
        return b.func()

    def take(
        self,
        b: FuncBuilder,
        runs: Sequence[Buffer],
        state: tuple[Scalar, Buffer],
        place: tuple[Expr, Expr, Expr],
    ) -> None:
        """Take element ``e`` of a merge of two runs: the next one of the left run, unless the next
        one of the right run comes before it.

        state: the length of a run, and how many elements of the left run were taken.
        place: where the half that is read begins, ``e``, and how many elements there are.
        """
        (size, taken), (source, e, count) = state, place
        block = runs[0].size // 2
        number, zero, one = b.index(e, i32), b.constant(0, i32), b.constant(1, i32)
        offset = b.op("and", number, b.op("sub", b.op("add", size, size), one))
        lefts = b.op("select", b.compare("eq", offset, zero), zero, b.load(taken))
        rights = b.op("sub", offset, lefts)
        left = b.op("add", b.op("sub", number, offset), lefts)
        right = b.op("add", b.op("add", b.op("sub", number, offset), size), rights)
        exists, elements = [], []
        for at, used in ((left, lefts), (right, rights)):
            mask = [below(data(block + 1), min(block, count.last))]
            if count.first < block and not count.is_const:
                mask.append(Bound(count + data(block + 1) * -1, 1, _FAR))
            inside = b.inside(*mask, named=[at])
            exists.append(b.op("and", b.compare("lt", used, size), inside))
            index = source + data(block + 1)
            elements.append([b.load(run, index, *mask, named=[at]) for run in runs])
        after = b.op("and", exists[1], self.before(b, elements[1], elements[0]))
        takes_left = b.op("and", exists[0], b.not_(after))
        for run, x, y in zip(runs, *elements, strict=True):
            b.store(run, e + source * -1 + block, b.op("select", takes_left, x, y))
        b.set(taken, b.op("add", lefts, b.convert(takes_left, i32)))

    # -- merges ------------------------------------------------------------------------------------

    def merge(self, size: int, sources: Sequence[Buffer], targets: Sequence[Buffer]) -> Func:
        """Merge pairs of blocks of ``size`` elements, each element finding its place by itself."""
        roles: list[tuple[Role, Buffer]] = [("in", x) for x in sources]
        b = FuncBuilder(f"{self.call.name}_{size}", [*roles, *(("out", y) for y in targets)])
        dtype = i32 if 2 * self.length < 2**31 else i64
        with b.parallel(o=self.outer, e=self.length, i=self.inner) as (o, e, i):
            line = o * (self.length * self.inner) + i
            own = [b.load(x, line + e * self.inner) for x in sources]
            rank = self.rank(b, size, sources, own, (line, e, dtype))
            place = b.op("add", b.index(e // (2 * size) * (2 * size) + e % size, dtype), rank)
            for y, value in zip(targets, own, strict=True):
                b.store(y, line + data(self.length) * self.inner, value, named=[place])
        return b.func()

    def rank(
        self,
        b: FuncBuilder,
        size: int,
        sources: Sequence[Buffer],
        own: Sequence[Scalar],
        place: tuple[Expr, Expr, DType],
    ) -> Scalar:
        """How many elements of the partner block come before an element.

        place: where the line begins, the number of the element in it, and a dtype for numbers.
        """
        line, e, dtype = place
        is_right = b.inside(Bound(e // size % 2, 1, 2))
        partner = e // (2 * size) * (2 * size) + (e // size % 2) * -size + size
        one = b.constant(1, dtype)
        rank = b.variable("rank", b.constant(0, dtype))
        step = b.variable("step", b.constant(size, dtype))
        with b.loop("halving", size.bit_length()):
            count, more = b.load(rank), b.load(step)
            probe = b.op("sub", b.op("add", count, more), one)
            number = data(2 * size)
            mask = (below(number, size), below(partner + number, self.length))
            index = line + (partner + number) * self.inner
            keys = [b.load(x, index, *mask, named=[probe]) for x in sources[: self.keys]]
            # Of equal elements those of the left block come first.
            after = b.not_(self.before(b, own, keys))
            before = b.op("select", is_right, after, self.before(b, keys, own))
            found = b.op("and", before, b.inside(*mask, named=[probe]))
            further = b.op("add", count, more)
            b.set(rank, b.op("select", found, further, count))
            b.set(step, b.op("shr", more, one, kind="logical"))
        return b.load(rank)


def _less(b: FuncBuilder, xs: Sequence[Scalar], ys: Sequence[Scalar]) -> Scalar:
    """Whether the numbers ``xs`` are less than ``ys``: the first that differ decide; NaN is above
    all numbers.
    """
    result: Scalar | None = None
    for x, y in reversed(list(zip(xs, ys, strict=True))):
        less = _less_by_one(b, x, y)
        if result is not None:
            greater = _less_by_one(b, y, x)
            tie = b.op("and", b.not_(greater), result)
            less = b.op("or", less, tie)
        result = less
    assert result is not None
    return result


def _less_by_one(b: FuncBuilder, x: Scalar, y: Scalar) -> Scalar:
    if x.dtype is bool_:
        x, y = b.convert(x, u8), b.convert(y, u8)
    less = b.compare("lt", x, y)
    if not x.dtype.is_float:
        return less
    above = b.op("and", b.compare("ne", y, y), b.compare("eq", x, x))
    return b.op("or", less, above)
