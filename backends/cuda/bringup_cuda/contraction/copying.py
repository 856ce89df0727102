"""Tiles of a factor from global to shared memory.

Elements that need no prologue go by asynchronous copies of 16, 8 or 4 bytes, whatever their index
map: rows, columns and patches differ only in how many of them lie side by side.  All others are
loaded to registers before the products of a tile, computed there and stored after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.graph import Value
from bringup.kernel.contraction import Axes, Contraction, Factor, size, steps_of
from bringup.kernel.form import BufferDecl
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.text import Builder, Module, Val, const, vec
from bringup.records import record
from bringup_cuda.contraction.layout import CHUNK, Plan
from bringup_cuda.contraction.points import (
    Point,
    Points,
    both,
    decode,
    evaluate,
    holds,
    is_wide,
    number,
)


@dataclass(slots=True)
class _Place:
    """A coordinate of units: within the tile, and the point it stands for.

    ok: whether it exists; None for always.
    """

    at: Val
    points: list[Point]
    ok: Val | None


@record
class Threads:
    """The threads of a block: the number of this one, and how many there are."""

    mine: Val
    count: int


class Copier:
    """Emits the copies of one factor's tiles.

    base: point of the batch axes.  first: the tile's first row or column.
    """

    def __init__(
        self,
        b: Builder,
        made: Contraction,
        factor: Factor,
        plan: Plan,
        buffers: Sequence[tuple[BufferDecl, Val]],
        threads: Threads,
        base: Point,
        first: Val,
    ) -> None:
        self.b = b
        self.made = made
        self.plan = plan
        self.factor = factor
        self.buffers = buffers
        self.base = base
        self.steps = steps_of(made.kernel.stages[0].body, plan.value)
        self.spare: Val | None = None
        self._units = self._shares(threads)
        self._own: dict[str, _Place] = {}
        for own, _ in self._units:
            if own.text not in self._own:
                at = b.add(first, own)
                bound = None if size(factor.axes) % plan.layout.extent == 0 else size(factor.axes)
                self._own[own.text] = self._place(own, at, factor.axes, bound, not plan.along)
        self._starts = self._hoisted() if plan.asynchronous else {}

    def _shares(self, threads: Threads) -> list[tuple[Val, Val]]:
        """The units of this thread, as coordinates within the tile: own and inner."""
        b, plan = self.b, self.plan
        rounds = -(-plan.fast * plan.slow // threads.count)
        units: list[tuple[Val, Val]] = []
        wide = plan.fast % threads.count == 0
        per_line = plan.fast // threads.count if wide else 1
        fast0 = threads.mine if wide else b.urem(threads.mine, number(plan.fast))
        slow0 = number(0) if wide else b.udiv(threads.mine, number(plan.fast))
        step = 1 if wide else threads.count // plan.fast
        assert wide or threads.count % plan.fast == 0, "threads cover whole lines"
        for n in range(rounds):
            fast = b.add(fast0, number(n % per_line * threads.count))
            slow = b.add(slow0, number(n // per_line * step))
            fast = b.mul(fast, number(plan.lanes))
            slow = b.mul(slow, number(plan.group))
            units.append((slow, fast) if plan.along else (fast, slow))
        if plan.fast * plan.slow < threads.count:
            self.spare = b.icmp("ult", slow0, number(plan.slow))
        return units

    def _place(self, within: Val, at: Val, axes: Axes, bound: int | None, lanes: bool) -> _Place:
        b = self.b
        ok = None if bound is None else b.icmp("ult", at, number(bound))
        if not lanes or self.plan.lanes == 1:
            return _Place(within, [decode(b, at, axes)], ok)
        return _Place(within, neighbours(b, at, axes, self.plan.lanes), ok)

    def _inner(self, first: Val) -> dict[str, _Place]:
        """Every inner coordinate of the tile that starts at ``first``."""
        made, plan, b = self.made, self.plan, self.b
        total = size(made.inner)
        found: dict[str, _Place] = {}
        for _, inner in self._units:
            if inner.text not in found:
                bound = total if total % plan.layout.depth or not total else None
                place = self._place(inner, b.add(first, inner), made.inner, bound, plan.along)
                for axis, clip in made.clips.items():
                    stop = evaluate(b, clip, self.base, False)
                    place.ok = both(b, place.ok, b.icmp("slt", place.points[0][axis], stop))
                found[inner.text] = place
        return found

    def _groups(self, first: Val) -> list[dict[str, _Place]]:
        """Inner coordinates of the tile, of each access of a unit."""
        b = self.b
        return [self._inner(b.add(first, number(n))) for n in range(self.plan.group)]

    # -- asynchronous

    def _parts(self) -> tuple[Expr, Expr]:
        """The index as what is fixed for a row or column, and what moves with the tile."""
        index = self.steps[-1].attrs["index"]
        inner = set(self.made.inner)
        moving = tuple(t for t in index.terms if not inner.isdisjoint(_axes(t[0])))
        fixed = tuple(t for t in index.terms if t not in moving)
        return Expr(index.const, fixed), Expr(0, moving)

    def _hoisted(self) -> dict[str, Val]:
        """Addresses of rows or columns, without what moves with the tile."""
        b = self.b
        fixed, _ = self._parts()
        _, base = self.buffers[self.steps[-1].attrs["buffer"]]
        starts: dict[str, Val] = {}
        for name, place in self._own.items():
            point = {**self.base, **place.points[0]}
            at = evaluate(b, fixed, point, is_wide(fixed))
            starts[name] = b.gep(base, b.sext(at, ir.i64), self._element, "")
        return starts

    @property
    def _element(self) -> ir.Type:
        return memory_type(self.plan.value.dtype)

    def start(self, first: Val, slot: Val) -> None:
        """Begin to copy the tile at inner position ``first``; nothing for copies by registers."""
        if not self.plan.asynchronous:
            return
        if self.spare is None:
            self._start(first, slot)
            return
        with self.b.if_then(self.spare):
            self._start(first, slot)

    def _start(self, first: Val, slot: Val) -> None:
        b, plan = self.b, self.plan
        load = self.steps[-1]
        _, moving = self._parts()
        mask = load.attrs["mask"]
        places = self._inner(first)
        grain = plan.lanes * plan.value.dtype.itemsize
        for own, inner in self._units:
            mine, other = self._own[own.text], places[inner.text]
            point = {**self.base, **mine.points[0], **other.points[0]}
            at = evaluate(b, moving, point, is_wide(moving))
            source = b.gep(self._starts[own.text], b.sext(at, ir.i64), self._element, "")
            target = b.gep(slot, b.zext(plan.layout.offset(b, own, inner), ir.i64), ir.i8)
            ok = both(b, both(b, mine.ok, other.ok), holds(b, mask, point))
            amount = number(grain)
            if ok is not None:
                amount = b.select(ok, amount, number(0))
            kind = "cg" if grain == CHUNK else "ca"
            b.intrinsic(
                f"llvm.nvvm.cp.async.{kind}.shared.global.{grain}.s",
                ir.void,
                (target, source, amount),
                (),
            )

    # -- by registers

    def load(self, first: Val) -> list[Val]:
        """Load and compute this thread's elements of the tile at ``first``; none where copies are
        asynchronous.
        """
        if self.plan.asynchronous:
            return []
        results: list[Val] = []
        for places in self._groups(first):
            for own, inner in self._units:
                results.append(self._loaded(self._own[own.text], places[inner.text]))
        return results

    def _loaded(self, mine: _Place, other: _Place) -> Val:
        """What one access gives, after the prologue."""
        plan, b = self.plan, self.b
        points = [
            {
                **self.base,
                **mine.points[min(n, len(mine.points) - 1)],
                **other.points[min(n, len(other.points) - 1)],
            }
            for n in range(plan.lanes)
        ]
        alive = both(b, both(b, mine.ok, other.ok), self.spare)
        walk = self.made.inner if plan.along else self.factor.axes
        at = Points(b, self.buffers, points, walk, alive)
        values: dict[Value, Val] = {}
        at.run(self.steps, values)
        found = at.spread(values[plan.value])
        # A prologue may make something of nothing, which must not enter a sum.
        if alive is not None and len(self.steps) > 1:
            found = b.select(alive, found, ir.zero(found.type))
        return found

    def store(self, values: Sequence[Val], slot: Val) -> None:
        """Write what `load` gave into a tile in shared memory."""
        if not values:
            return
        if self.spare is None:
            self._store(values, slot)
            return
        with self.b.if_then(self.spare):
            self._store(values, slot)

    def _store(self, values: Sequence[Val], slot: Val) -> None:
        plan, count = self.plan, len(self._units)
        for n, (own, inner) in enumerate(self._units):
            parts = values[n::count]
            if plan.along is plan.layout.inner_minor:
                self._put(parts[0], slot, own, inner, plan.lanes)
                continue
            for lane in range(plan.lanes):
                mine = own if plan.along else self.b.add(own, number(lane))
                other = self.b.add(inner, number(lane)) if plan.along else inner
                self._put(self._word(parts, lane), slot, mine, other, len(parts))

    def _word(self, parts: Sequence[Val], lane: int) -> Val:
        """The same lane of every part, side by side."""
        b = self.b
        found = [b.extractelement(part, lane) for part in parts]
        if len(found) == 1:
            return found[0]
        made = ir.poison(vec(found[0].type, len(found)))
        for n, value in enumerate(found):
            made = b.insertelement(made, value, n)
        return made

    def _put(self, value: Val, slot: Val, own: Val, inner: Val, count: int) -> None:
        b, layout = self.b, self.plan.layout
        at = b.zext(layout.offset(b, own, inner), ir.i64)
        b.store(value, b.gep(slot, at, ir.i8), layout.dtype.itemsize * count)


def _axes(atom: object) -> frozenset[Axis]:
    return Expr(0, ((atom, 1),)).axes()  # type: ignore[arg-type]


def neighbours(b: Builder, first: Val, axes: Axes, lanes: int) -> list[Point]:
    """The points from a multiple of ``lanes`` on."""
    start = decode(b, first, axes)
    last = next((a for a in reversed(axes) if a.size > 1), axes[-1])
    if last.size % lanes == 0:
        return [{**start, last: b.add(start[last], number(n))} for n in range(lanes)]
    rest: list[Point] = [decode(b, b.add(first, number(n)), axes) for n in range(1, lanes)]
    return [start, *rest]


_SHARED = 3
#: What a kernel may have without asking for it at the launch.
STATIC_BYTES = 48 << 10


def shared_memory(module: Module, name: str, nbytes: int) -> tuple[Val, int]:
    """The address of ``nbytes`` of shared memory of the kernel ``name``, a multiple of 128, and how
    much of it the launch must ask for.
    """
    dynamic = nbytes > STATIC_BYTES
    start = module.global_variable(
        f"{name}_shared",
        ir.array(ir.i8, 0 if dynamic else nbytes),
        "" if dynamic else "undef",
        align=128,
        linkage="external" if dynamic else "internal",
        address_space=_SHARED,
    )
    return start, nbytes if dynamic else 0


def aligned(b: Builder, start: Val, alignment: int) -> Val:
    """The first multiple of ``alignment`` from an address in shared memory on: no launch promises
    more than that of `shared_memory`.
    """
    at = b.ptrtoint(start, ir.i64)
    rest = b.and_(b.sub(const(ir.i64, 0), at), const(ir.i64, alignment - 1))
    return b.gep(start, rest, ir.i8)
