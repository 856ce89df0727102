"""Kernels that fold: a thread for each grid point, or several that share its loops.

The steps say what a `ThreadMapping` chose.  The threads of a block are ``i``, for the grid points
that it has, and ``t``, which share the loops of each.  If all stages have the same loop, what
several of them need stays in registers; otherwise tiles are in shared memory, and other values are
read again.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph.index import Expr
from bringup.kernel.form import Kernel, Stage
from bringup.llvm.simt.maps import flat_grid
from bringup.llvm.simt.plan import Inner, ThreadMapping
from bringup.loops.schedule import Schedule, Step
from bringup.target import Target


def fold_steps(kernel: Kernel, mapping: ThreadMapping, target: Target) -> Schedule:
    """The steps of a kernel with loops."""
    return _FoldSteps(kernel, mapping, target).schedule()


class _FoldSteps:
    """Steps of one kernel.

    is_shared: whether threads share the loops of a point, or a tile.
    unroll, vectors: loops of these kinds.  shared: loops whose iterations threads share.
    """

    def __init__(self, kernel: Kernel, mapping: ThreadMapping, target: Target) -> None:
        self.kernel, self.mapping, self.target = kernel, mapping, target
        self.tiles = [f"t{n}" for n, decl in enumerate(kernel.buffers) if decl.role == "tile"]
        self.is_shared = mapping.reducers > 1 or bool(self.tiles and not mapping.in_registers)
        self.steps: list[Step] = []
        self.unroll: list[str] = []
        self.vectors: list[str] = []
        self.shared: list[str] = []

    def step(self, name: str, *args: str | int, **options: str | int) -> None:
        self.steps.append(Step(name, args, tuple(options.items())))

    def schedule(self) -> Schedule:
        """All of them."""
        kernel, mapping = self.kernel, self.mapping
        first = 0
        for number, (stage, inner) in enumerate(zip(kernel.stages, mapping.inner, strict=True)):
            folds = [f"r{first + n}" for n in range(len(stage.folds))]
            first += len(folds)
            if stage.axes and stage.trips:
                self.stage(self.flat(number, stage, inner), stage, inner, folds)
        if self.unroll:
            self.step("unroll", *self.unroll)
        if self.vectors:
            self.step("vectorize", *self.vectors)
        self.threads()
        return Schedule(tuple(self.steps))

    def flat(self, number: int, stage: Stage, inner: Inner) -> str:
        """The loops of a stage as one, in the order of the mapping."""
        names = [f"s{number}_{stage.axes.index(axis)}" for axis in inner.axes]
        if len(names) > 1:
            self.step("reorder", *names)
        name = names[0]
        for each in names[1:]:
            self.step("fuse", name, each, f"{name}.{each}")
            name = f"{name}.{each}"
        return name

    # -- loops of a stage --------------------------------------------------------------------------

    def stage(self, loop: str, stage: Stage, inner: Inner, folds: Sequence[str]) -> None:
        """The loop of a stage, of which each thread has several positions at once."""
        lanes = inner.lanes if self.mapping.lane is None else 1
        over: list[str] = []
        count, end = stage.trips, stage.end_of(inner.axes[0])
        if end is not None:
            end = end * (stage.trips // inner.axes[0].size)
        if lanes > 1 and count >= lanes:
            left = self.split(loop, f"{loop}.o", f"{loop}.v", lanes, count, end)
            self.vectors.append(f"{loop}.v")
            over = [f"{loop}.v"]
            if left:
                self.rest(f"{loop}.t", left, [], [])
            loop, count, end = f"{loop}.o", count // lanes, end and end // lanes
        if self.mapping.in_registers:
            self.at_once(loop, folds, over)
        else:
            self.several(loop, count, end, folds, over)

    def split(
        self, loop: str, outer: str, inner: str, size: int, count: int, end: Expr | None
    ) -> int:
        """Split a loop of ``count`` iterations; returns how many are left for a loop ``loop.t``.

        end: where the loop ends early; then its length must be divided for such a loop.
        """
        left = count % size
        if end is not None:
            left = 0 if left else (end % size).last
        options = {"tail": "peel"} if left or (end is not None and not count % size) else {}
        self.step("split", loop, outer, inner, size, **options)
        return left

    def at_once(self, loop: str, folds: Sequence[str], over: Sequence[str]) -> None:
        """All positions of a thread at once."""
        if self.is_shared:
            loop = self.divided(loop)
        self.factor(loop, folds, over)
        self.unroll.append(loop)

    def divided(self, loop: str) -> str:
        """The iterations of a loop shared by the threads; returns the loop that each has then."""
        own, threads = f"{loop}.k", f"{loop}.x"
        self.step("split", loop, own, threads, self.mapping.reducers)
        self.step("reorder", threads, own)
        self.shared.append(threads)
        return own

    def factor(self, loop: str, folds: Sequence[str], over: Sequence[str]) -> None:
        """Accumulators of their own for the loops ``over``."""
        if over:
            for fold in folds:
                self.step("rfactor", loop, fold, *over)

    def several(
        self, loop: str, count: int, end: Expr | None, folds: Sequence[str], over: Sequence[str]
    ) -> None:
        """Several positions at once and accumulators that do not wait for one another, then what is
        left, one by one.
        """
        reducers, copies = self.mapping.reducers, self.mapping.unroll
        span = reducers * copies
        if copies > 1 and count >= span:
            main, inner = f"{loop}.m", f"{loop}.k"
            whole = f"{loop}.i" if self.is_shared else inner
            count = self.split(loop, main, whole, span, count, end)
            if self.is_shared:
                self.step("split", whole, inner, f"{loop}.x", reducers)
                self.step("reorder", f"{loop}.x", main, inner)
                self.shared.append(f"{loop}.x")
            self.chains(main, inner, folds, over)
            loop = f"{loop}.t"
        if count:
            self.rest(loop, count, folds, over)

    def chains(self, main: str, inner: str, folds: Sequence[str], over: Sequence[str]) -> None:
        """The positions of a thread, as many at a time as it has accumulators."""
        copies = self.mapping.unroll
        lanes = max(self.mapping.lanes, *(i.lanes for i in self.mapping.inner))
        chains = self.mapping.chains(lanes)
        self.unroll.append(inner)
        chain = [inner]
        if chains < copies:
            self.step("split", inner, f"{inner}.j", f"{inner}.c", chains)
            self.unroll[-1:] = [f"{inner}.j", f"{inner}.c"]
            chain = [f"{inner}.c"]
        if chains > 1 or over:
            self.factor(main, folds, [*(chain if chains > 1 else []), *over])

    def rest(self, loop: str, count: int, folds: Sequence[str], over: Sequence[str]) -> None:
        """The positions that are left, one by one."""
        if self.is_shared:
            loop = self.divided(loop)
        if count > self.mapping.reducers:
            self.factor(loop, folds, over)

    # -- the grid ----------------------------------------------------------------------------------

    def threads(self) -> None:
        """Blocks and threads, what threads share, and what each of them keeps."""
        kernel, mapping = self.kernel, self.mapping
        if kernel.grid:
            lane = mapping.lane or kernel.grid[-1]
            steps, block = flat_grid(kernel, lane, mapping.lanes)
            self.steps += steps
        else:
            block = "b"
            self.step("add_loop", block)
        holder, columns = block, mapping.columns * mapping.groups
        if mapping.lanes > 1:
            self.step("vectorize", "v")
        if columns > 1 or not self.shared:
            self.step("split", block, "b", "i", columns)
            block, holder = "b", "i"
        self.step("bind", block, "block")
        if holder == "i":
            self.step("bind", "i", "thread")
        if mapping.lanes > 1:
            holder = "v"
        if self.shared:
            at, lanes = block, max(1, min(mapping.reducers, self.target.warp // mapping.columns))
            if mapping.columns == mapping.lanes == 1:
                at, holder = holder, "t"
            tiles = {"tiles": "shared"} if self.tiles and not mapping.in_registers else {}
            self.step("replicate", at, "t", *self.shared, lanes=lanes, **tiles)
        if mapping.in_registers:
            for buffer in (*self.tiles, *self.read_again()):
                self.step("keep", buffer, holder)

    def read_again(self) -> list[str]:
        """The buffers of which several stages load the same elements."""
        found: list[str] = []
        seen: dict[object, int] = {}
        for number, stage in enumerate(self.kernel.stages):
            for load in stage.loads() if stage.axes or stage.folds else ():
                key = (load.attrs["buffer"], load.attrs["index"], load.attrs["mask"])
                is_again = seen.setdefault(key, number) != number
                name = f"b{key[0]}"
                if is_again and self.kernel.buffers[key[0]].role == "in" and not load.operands:
                    found += [] if name in found else [name]
        return found


__all__ = ["fold_steps"]
