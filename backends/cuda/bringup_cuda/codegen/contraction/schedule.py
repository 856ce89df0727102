"""How a block of threads runs a contraction, as steps that can be printed and edited.

A block has a tile of rows times columns.  The tiles of both factors go to shared memory, some steps
of the inner axes ahead of the products; sums are a fragment.  They pass through shared memory, too,
so that the epilogue, which is the part of the fused kernel after its sum, reads and writes
neighbouring elements in wide accesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.kernel.contraction import size, vector
from bringup.llvm.simt.group_products import PIECE, ROWS
from bringup.loops import lower_kernel
from bringup.loops.form import Func, Let, Load, Store, statements
from bringup.loops.schedule import Schedule, Scheduled, Step
from bringup_cuda.codegen.contraction.planning import FRAGMENT, ContractionPlan
from bringup_cuda.codegen.contraction.staging import CopyPlan
from bringup_cuda.codegen.contraction.tiles import CHUNK, sum_dtype, sum_gap

#: Rows of tiles whose blocks follow each other, so that they find the same columns in L2.
_RASTER_ROWS = 8
#: Asynchronous copies of a thread that are written out; of more, half as many at a time.
_MOST_COPIES = 8
#: Threads of a warp down and across: four rows, so that one read serves eight threads.
_WARP_SHAPE = (4, 8)


def scheduled_contraction(plan: ContractionPlan, steps: Schedule | None = None) -> Scheduled:
    """The loops of a contraction as blocks of threads run them.

    steps: in place of those that follow from the plan.
    """
    if steps is not None:
        return Scheduled.of(lower_kernel(plan.contraction.kernel), steps)
    tiled = _Tiled(plan)
    before = tiled.func
    tiled.run()
    return Scheduled(before, Schedule(tuple(tiled.steps)), tiled.func)


class _Tiled:
    """The steps of one contraction, each applied as soon as it is chosen.

    The loops over rows are ``r.o`` over tiles and ``r.i`` within one, those over columns ``c.o``
    and ``c.i``, and those over inner indices ``k.o`` and ``k.i``.  Products are made in nests of
    ``r.i.in`` and ``c.i.in``.

    threads, unrolled, vectors: the loops that are bound, unrolled and vectorized at last.
    pieces: the loop over pieces of lines, by factor, where these are cut.
    """

    def __init__(self, plan: ContractionPlan) -> None:
        self.plan = plan
        self.contraction = plan.contraction
        self.func: Func = lower_kernel(plan.contraction.kernel)
        self.steps: list[Step] = []
        self.threads: list[str] = []
        self.unrolled: list[str] = []
        self.vectors: list[str] = []
        self.pieces: dict[str, list[str]] = {"left": [], "right": []}

    def add(self, name: str, *args: str | int, **options: str | int) -> None:
        """Apply a step."""
        step = Step(name, args, tuple(options.items()))
        self.func = step(self.func)
        self.steps.append(step)

    def run(self) -> None:
        """Choose and apply all steps."""
        self.grid()
        self.inner()
        self.sums()
        self.panels()
        left, right = self.factors()
        self.fill("left", left, self.plan.copies[0])
        self.fill("right", right, self.plan.copies[1])
        if self.plan.tensor is None:
            self.products(left, right)
        elif self.plan.tile.warpgroups:
            self.group_products(self.plan.tensor)
        else:
            self.tensor_products(self.plan.tensor)
        self.copies("left", self.plan.copies[0])
        self.copies("right", self.plan.copies[1])
        self.epilogue()
        self.add("bind", *self.threads, "thread")
        self.add("unroll", *self.unrolled)
        self.add("set_space", "r0", "fragment")
        self.add("vectorize", *self.vectors)
        later = [
            name
            for name, copy in zip(("left", "right"), self.plan.copies, strict=True)
            if copy.asynchronous
        ]
        tile = self.plan.tile
        pending = {"pending": 1} if tile.warpgroups else {}
        self.add("double_buffer", "k.o", tile.stages, *later, ahead=tile.prefetch, **pending)

    # -- loops -------------------------------------------------------------------------------------

    def grid(self) -> None:
        """Blocks of the batch and of tiles."""
        contraction, tile = self.contraction, self.plan.tile
        batch, rows, columns = (
            [f"g{axis.id}" for axis in axes]
            for axes in (contraction.batch, contraction.left.axes, contraction.right.axes)
        )
        if [f"g{axis.id}" for axis in contraction.kernel.grid] != [*batch, *rows, *columns]:
            self.add("reorder", *batch, *rows, *columns)
        self.add("split", self.fused(rows, "r"), "r.o", "r.i", tile.rows)
        self.add("split", self.fused(columns, "c"), "c.o", "c.i", tile.columns)
        down, across = self.plan.grid
        blocks = ["c.o", "r.o"]
        if down > _RASTER_ROWS and across > 1:
            group = next((n for n in (8, 7, 6, 5) if down % n == 0), _RASTER_ROWS)
            self.add("split", "r.o", "r.g", "r.h", group)
            blocks = ["r.g", "c.o", "r.h"]
        self.add("reorder", *blocks, "r.i", "c.i")
        self.add("bind", *batch, *blocks, "block")

    def fused(self, loops: Sequence[str], name: str) -> str:
        """One loop over all of some nested ones; its name."""
        whole = loops[0]
        for number, loop in enumerate(loops[1:], 2):
            outer, whole = whole, name if number == len(loops) else f"{name}{number}"
            self.add("fuse", outer, loop, whole)
        return whole

    def inner(self) -> None:
        """Steps of inner indices, which are all whole: factors are 0 where there are none."""
        contraction = self.contraction
        stage = contraction.kernel.stages[0]
        names = {axis: f"s0_{n}" for n, axis in enumerate(stage.axes)}
        for limit in stage.limits:
            self.add("pad", names[limit.axis])
        loops = [names[axis] for axis in contraction.inner]
        depth = self.plan.copies[0].layout.depth
        if len(loops) > 1:
            self.add("reorder", *loops)
        self.add("split", self.fused(loops, "k"), "k.o", "k.i", depth)
        if size(contraction.inner) % depth:
            self.add("pad", "k.i")

    def sums(self) -> None:
        """Sums as a fragment, then in shared memory for the epilogue."""
        dtype = sum_dtype(self.contraction.fold.dtype)
        if dtype is not self.contraction.fold.dtype:
            self.add("widen", "r0", str(dtype))
        loads = [s for s in statements(self.func.body) if isinstance(s, Load)]
        totals = [str(s.result) for s in loads if s.buffer.name == "r0"]
        self.add("share", "r.i", "c.i", *totals, pad=sum_gap(dtype))
        if any(extent % side for extent, side in self.extents()):
            self.add("pad", "r.i.in", "c.i.in")
        self.add("distribute", "r.i.in", "c.i.in", space="scratch", scalars="repeat")
        self.add("reorder", "k.o", "k.i", "r.i.in", "c.i.in")
        self.add("set_space", "r0", "shared")

    def extents(self) -> list[tuple[int, int]]:
        """Rows and columns, each with the side of a tile."""
        contraction, tile = self.contraction, self.plan.tile
        sides = (contraction.left.axes, tile.rows), (contraction.right.axes, tile.columns)
        return [(size(axes), side) for axes, side in sides]

    def factors(self) -> tuple[str, str]:
        """The scalars that tiles hold: what is multiplied, before it gets the bits of sums."""
        body = list(statements(self.func.body))
        lets = {s.result: s for s in body if isinstance(s, Let)}
        fold = next(s for s in body if isinstance(s, Store) and s.fold)
        scalars = [fold.value, fold.factor or fold.value]
        if fold.factor is None:
            scalars = list(lets[fold.value].operands)
        instr = self.contraction.kernel.stages[0].body.outputs[0].producer
        assert instr is not None
        named = dict(zip(instr.operands, scalars, strict=False))
        sides = self.contraction.left, self.contraction.right
        factors: list[str] = []
        for side, copy in zip(sides, self.plan.copies, strict=True):
            scalar = named[side.value]
            while scalar.dtype is not copy.layout.dtype:
                (scalar,) = lets[scalar].operands
            factors.append(str(scalar))
        return factors[0], factors[1]

    # -- tiles in shared memory --------------------------------------------------------------------

    def panels(self) -> None:
        """Lines along rows or columns that warpgroups read are cut into pieces of 128 bytes."""
        if not self.plan.tile.warpgroups:
            return
        for side, name, copy in zip("rc", self.pieces, self.plan.copies, strict=True):
            length = PIECE // copy.layout.dtype.itemsize
            if not copy.layout.inner_minor and copy.layout.extent > length:
                self.add("split", f"{side}.i.in", f"{side}.p", f"{side}.i.in", length)
                self.pieces[name] = [f"{side}.p"]

    def fill(self, name: str, scalar: str, copy: CopyPlan) -> None:
        """A tile of a factor, computed before the products of a step."""
        own = "r.i.in" if name == "left" else "c.i.in"
        layout = copy.layout
        order = [own, "k.i"] if layout.inner_minor else [*self.pieces[name], "k.i", own]
        gap = {"swizzle": 1} if layout.swizzled else {"pad": layout.gap // layout.dtype.itemsize}
        self.add("precompute", scalar, "k.o", name, ",".join(order), space="shared", **gap)

    def copies(self, name: str, copy: CopyPlan) -> None:
        """The threads that fill a tile: neighbours take neighbours in memory."""
        threads, lanes = self.plan.tile.threads, copy.lanes
        pieces = [f"{name}.0"] if self.pieces[name] else []
        fast, slow = f"{name}.{len(pieces) + 1}", f"{name}.{len(pieces)}"
        if copy.along_inner is not copy.layout.inner_minor:
            fast, slow = slow, fast
        order, vectors = [*pieces, fast], list[str]()
        if lanes > 1:
            self.add("split", fast, f"{name}.x", f"{name}.v", lanes)
            order, vectors = [*pieces, f"{name}.x"], [f"{name}.v"]
        units, outer, packed = list[str](), list[str](), list[str]()
        if copy.packed > 1:
            self.add("split", slow, f"{name}.g", f"{name}.p", copy.packed)
            slow, packed = f"{name}.g", [f"{name}.p"]
        if copy.fast_units > threads:
            self.add("split", order[0], f"{name}.n", f"{name}.t", threads)
            units, order = [f"{name}.n"], [f"{name}.t"]
        lines = max(1, threads // copy.fast_units)
        if copy.slow_units > lines:
            self.add("split", slow, f"{name}.u", f"{name}.y", lines)
            units.append(f"{name}.u")
            slow = f"{name}.y"
            if copy.asynchronous and copy.slow_units // lines > _MOST_COPIES:
                # What many copies need at once would take more registers than there are.
                self.add("split", f"{name}.u", f"{name}.o", f"{name}.u", _MOST_COPIES // 2)
                outer.append(f"{name}.o")
        units += packed
        self.add("reorder", slow, *order, *outer, *units, *vectors)
        self.threads += [*reversed(order), slow]
        self.unrolled += units
        self.vectors += vectors

    # -- products ----------------------------------------------------------------------------------

    def products(self, left: str, right: str) -> None:
        """Each thread keeps a few rows times a few columns, quads of neighbours where it can."""
        (down, across), (lanes_down, lanes_across) = self.plan.tile.warps, _WARP_SHAPE
        copies = self.plan.copies
        row = self.side("r", copies[0], down, lanes_down)
        column = self.side("c", copies[1], across, lanes_across)
        threads = [*row[0], *column[0], *row[1], *column[1]]
        own = [*row[2], *column[2]]
        self.add("reorder", *threads, *own)
        self.add("reorder", *threads, "k.i", *own)
        depths = [copy.layout.dtype.itemsize for copy in copies if copy.layout.inner_minor]
        depth = CHUNK // max(depths) if depths else 1
        if len(depths) == 2:
            depth = max(depth // 2, 1)  # Elements of both factors would take more registers.
        step, lines = "k.i", list[str]()
        if depth > 1:
            self.add("split", "k.i", "k.j", "k.v", depth)
            step, lines = "k.j", ["k.v"]
        for name, scalar, copy, loops in (
            ("xs", left, copies[0], row[2]),
            ("ys", right, copies[1], column[2]),
        ):
            order = [*loops, *lines] if copy.layout.inner_minor else [*lines, *loops]
            self.elements(name, scalar, step, order)
        self.threads += reversed(threads)
        self.unrolled += [step, *lines, *own]

    def tensor_products(self, dtype: DType) -> None:
        """Each warp keeps tiles of 16 rows by 8 columns, as its matrix unit has them."""
        tile, (down, across) = self.plan.tile, self.plan.tile.warps
        depth = FRAGMENT // dtype.itemsize
        rows = self.parts("r", tile.rows, [("w", tile.rows // down), ("q", 16)])
        columns = self.parts("c", tile.columns, [("w", tile.columns // across), ("q", 8)])
        self.add("split", "r.i.in", "r.l", "r.y", 8)
        self.add("split", "c.i.in", "c.x", "c.l", 2)
        inner, step = "k.i", list[str]()
        if self.plan.copies[0].layout.depth > depth:
            self.add("split", "k.i", "k.s", "k.e", depth)
            inner, step = "k.e", ["k.s"]
        warps = [name for name in (*rows, *columns) if name.endswith("w")]
        blocks = [name for name in (*rows, *columns) if name.endswith("q")]
        lanes = ["r.y", "c.x"]
        self.add("reorder", *warps, *lanes, *blocks, "r.l", "c.l")
        self.add("reorder", *warps, *step, *blocks, *lanes, "r.l", "c.l", inner)
        self.add("tensorize", "r.y", f"16x8x{depth}")
        self.threads += reversed([*warps, *lanes])
        self.unrolled += [*step, *blocks, "r.l", "c.l"]

    def group_products(self, dtype: DType) -> None:
        """Each warpgroup keeps 64 rows; a warp of it has 16, in blocks of 8 rows by 8 columns."""
        tile, depth = self.plan.tile, FRAGMENT // dtype.itemsize
        groups = self.pieces["left"] or self.parts("r", tile.rows, [("w", ROWS)])
        for loop, outer, inner, length in (
            ("r.i.in", "r.v", "r.i.in", 16),
            ("r.i.in", "r.l", "r.y", 8),
            ("c.i.in", "c.q", "c.i.in", 8),
            ("c.i.in", "c.x", "c.l", 2),
            ("k.i", "k.s", "k.e", depth),
        ):
            self.add("split", loop, outer, inner, length)
        lanes, blocks = ["r.v", "r.y", "c.x"], [*self.pieces["right"], "c.q", "r.l", "c.l"]
        self.add("reorder", *groups, *lanes, *blocks)
        self.add("reorder", *groups, "k.s", *lanes, *blocks, "k.e")
        self.add("tensorize", "r.v", f"{ROWS}x{tile.columns}x{depth}")
        self.threads += reversed([*groups, *lanes])
        self.unrolled += ["k.s", *blocks]

    def parts(self, name: str, extent: int, sizes: Sequence[tuple[str, int]]) -> list[str]:
        """Split a side of a tile into parts of parts; the loops over them."""
        loops: list[str] = []
        for letter, each in sizes:
            if each < extent:
                self.add("split", f"{name}.i.in", f"{name}.{letter}", f"{name}.i.in", each)
                loops.append(f"{name}.{letter}")
                extent = each
        return loops

    def side(
        self, name: str, copy: CopyPlan, warps: int, lanes: int
    ) -> tuple[list[str], list[str], list[str]]:
        """The loops of a side of a tile: over warps, over threads of a warp, and within a thread.

        A thread has quads of neighbours.  Where lines run along the inner axis, neighbours belong
        to other threads instead, which keeps reads in different banks.
        """
        layout, threads = copy.layout, warps * lanes
        count = layout.extent // threads
        quad = 1 if layout.inner_minor else min(CHUNK // layout.dtype.itemsize, count)
        loop, own = f"{name}.i.in", list[str]()
        if count > quad:
            self.add("split", loop, f"{name}.q", f"{name}.t", threads * quad)
            loop, own = f"{name}.t", [f"{name}.q"]
        if quad > 1:
            self.add("split", loop, f"{name}.s", f"{name}.l", quad)
            loop, own = f"{name}.s", [*own, f"{name}.l"]
        if warps == 1:
            return [], [loop], own
        self.add("split", loop, f"{name}.w", f"{name}.z", lanes)
        return [f"{name}.w"], [f"{name}.z"], own

    def elements(self, name: str, scalar: str, step: str, order: Sequence[str]) -> None:
        """The elements of a factor that a thread multiplies, in registers."""
        self.add("precompute", scalar, step, name, ",".join(order), space="register")
        self.vectors.append(f"{name}.{len(order) - 1}")

    # -- the epilogue ------------------------------------------------------------------------------

    def epilogue(self) -> None:
        """Rows of neighbouring elements."""
        tile, lanes = self.plan.tile, self.store_lanes()
        vectors = tile.columns // lanes
        lines = tile.threads // vectors
        self.add("split", "r.i", "e.u", "e.y", lines)
        threads, within = ["e.y", "c.i"], ["e.u"]
        if lanes > 1:
            self.add("split", "c.i", "e.x", "e.v", lanes)
            threads, within = ["e.y", "e.x"], ["e.u", "e.v"]
            self.vectors.append("e.v")
        self.add("reorder", *threads, *within)
        self.add("serialize", *within)
        self.threads += reversed(threads)

    def store_lanes(self) -> int:
        """Lanes that make 16 bytes of the store with the smallest elements."""
        kernel, walk = self.contraction.kernel, self.contraction.right.axes
        sinks = [s for stage in self.contraction.epilogue for s in stage.stores]
        widths = [
            vector(
                s.index, s.mask, walk, max(1, CHUNK // kernel.buffers[s.buffer].type.dtype.itemsize)
            )
            for s in sinks
        ]
        return min(max(widths, default=1), self.plan.tile.columns)


__all__ = ["scheduled_contraction"]
