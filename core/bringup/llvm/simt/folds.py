"""Kernels that fold: a thread for each grid point, or several that share its loops.

The steps say what a `ThreadMapping` chose.  The threads of a block are ``i``, for the grid points
that it has, and ``t``, which share the loops of each.  If all stages have the same loop, what
several of them need stays in registers; otherwise tiles are in shared memory, and other values are
read again.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernel.form import Kernel, Stage
from bringup.llvm.simt.maps import flat_grid
from bringup.llvm.simt.plan import Inner, ThreadMapping
from bringup.llvm.simt.target import SimtTarget
from bringup.loops.schedule import Schedule, Step


def fold_steps(kernel: Kernel, mapping: ThreadMapping, target: SimtTarget) -> Schedule:
    """The steps of a kernel with loops."""
    return _FoldSteps(kernel, mapping, target).schedule()


class _FoldSteps:
    """Steps of one kernel.

    is_shared: whether threads share the loops of a point, or a tile.
    unroll, vectors: loops of these kinds.  shared: loops whose iterations threads share.
    """

    def __init__(self, kernel: Kernel, mapping: ThreadMapping, target: SimtTarget) -> None:
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
        steps, over = stage.trips // lanes, []
        if lanes > 1 and steps:
            tail = {"tail": "peel"} if stage.trips % lanes else {}
            self.step("split", loop, f"{loop}.o", f"{loop}.v", lanes, **tail)
            self.vectors.append(f"{loop}.v")
            over = [f"{loop}.v"]
            if tail:
                self.rest(f"{loop}.t", stage.trips % lanes, [], [])
            loop = f"{loop}.o"
        steps = steps or stage.trips
        if self.mapping.in_registers:
            self.at_once(loop, folds, over)
        else:
            self.several(loop, steps, folds, over, ends=bool(stage.limits))

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
        self, loop: str, steps: int, folds: Sequence[str], over: Sequence[str], *, ends: bool
    ) -> None:
        """Several positions at once and accumulators that do not wait for one another, then what is
        left, one by one.

        ends: whether a loop ends early, so that positions of which some are left are masked.
        """
        reducers, copies = self.mapping.reducers, self.mapping.unroll
        span, left = reducers * copies, steps
        if copies > 1 and steps >= span:
            left = 0 if ends else steps % span
            tail = {} if ends else {"tail": "peel"}
            main, inner = f"{loop}.m", f"{loop}.k"
            if self.is_shared:
                self.step("split", loop, main, f"{loop}.i", span, **tail)
                self.step("split", f"{loop}.i", inner, f"{loop}.x", reducers)
                self.step("reorder", f"{loop}.x", main, inner)
                self.shared.append(f"{loop}.x")
            else:
                self.step("split", loop, main, inner, copies, **tail)
            self.chains(main, inner, folds, over)
            loop = f"{loop}.t"
        if left:
            self.rest(loop, left, folds, over)

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
        if columns > 1 or not self.is_shared:
            self.step("split", block, "b", "i", columns)
            block, holder = "b", "i"
        self.step("bind", block, "block")
        for tile in self.tiles if not mapping.in_registers else ():
            self.step("set_space", tile, "shared")
        if holder == "i":
            self.step("bind", "i", "thread")
        if mapping.lanes > 1:
            holder = "v"
        if self.is_shared:
            at, lanes = block, max(1, min(mapping.reducers, self.target.warp // mapping.columns))
            if mapping.columns == mapping.lanes == 1:
                at, holder = holder, "t"
            self.step("replicate", at, "t", *self.shared, lanes=lanes)
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
