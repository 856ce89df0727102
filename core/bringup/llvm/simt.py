"""Kernels for machines with a thread per lane: one native function per kernel, launched over blocks
of threads.

Two mappings.  Where neighbouring grid points lie side by side in memory, a thread runs one grid
point after another (a grid-stride loop).  Where the elements of one grid point do, a block runs a
grid point: its threads share the inner loop and combine their registers through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.body import BodyEmitter, Frame
from bringup.llvm.fold import accumulate, start
from bringup.llvm.scalar import combine, memory_type, register_type
from bringup.llvm.schedule import LoopTarget, schedule
from bringup.llvm.text import Builder, Function, Module, Param, Val, const
from bringup.records import record

_MAX_BLOCKS = 1 << 16


@record
class SimtTarget:
    """What the emitter must know of a machine: names, as LLVM spells them.

    calling_convention: of a kernel.
    thread, block, block_size, grid_size: intrinsics that read the x coordinate.
    barrier: the intrinsic that synchronises a block.
    global_space, shared_space: address spaces.
    block: threads of a block.
    """

    calling_convention: str
    thread: str
    block_index: str
    block_size: str
    grid_size: str
    barrier: str
    global_space: int = 1
    shared_space: int = 3
    block: int = 256


@record
class SimtKernel:
    """An emitted kernel: its function, and the blocks and threads to launch it with (0 blocks:
    nothing to do).

    shared_bytes: dynamic shared memory of a block, behind an external array of length 0.
    """

    name: str
    blocks: int
    threads: int
    shared_bytes: int = 0


def emit_simt(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    clips: Mapping[Axis, Expr] | None = None,
) -> SimtKernel:
    """Emit ``kernel`` as function ``name``, whose parameters are pointers to its buffers that are
    no tiles, in order.

    clips: inner axes that stop early at an expression of grid axes, for loops cut into chunks.
    """
    return _SimtEmitter(module, kernel, name, target, clips or {}).run()


class _SimtEmitter:
    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        name: str,
        target: SimtTarget,
        clips: Mapping[Axis, Expr],
    ) -> None:
        self.module = module
        self.target = target
        self.clips = clips
        self.name = name
        self.shared = _shares_blocks(kernel)
        self.kernel = kernel
        self.outside = [i for i, d in enumerate(kernel.buffers) if d.role != "tile"]
        pointer = ir.pointer(target.global_space)
        params: list[Param] = [(f"b{i}", pointer) for i in self.outside]
        self.function: Function = module.function(
            name, ir.void, params, attrs="nounwind", calling_convention=target.calling_convention
        )
        self.b = Builder(self.function.block("entry"))
        self.bases: dict[Axis, Val] = {}
        self.pointers: list[Val] = []

    def run(self) -> SimtKernel:
        kernel, b = self.kernel, self.b
        table = dict(zip(self.outside, self.function.args, strict=True))
        for i, decl in enumerate(kernel.buffers):
            if decl.role == "tile":
                table[i] = self._shared_array(
                    f"tile{i}", memory_type(decl.type.dtype), decl.type.size
                )
        self.pointers = [table[i] for i in range(len(kernel.buffers))]
        threads = self._threads()
        points = kernel.points
        if points:
            with self._points(points) as flat:
                self._decode(flat, kernel.grid)
                self._point()
        b.ret()
        units = points if self.shared else -(-points // threads)
        return SimtKernel(self.name, min(units, _MAX_BLOCKS), threads)

    def _threads(self) -> int:
        if not self.shared:
            return self.target.block
        trips = max(s.trips for s in self.kernel.stages)
        return max(32, min(self.target.block, 1 << max(trips - 1, 0).bit_length()))

    def _read(self, intrinsic: str) -> Val:
        value = self.b.intrinsic(intrinsic, ir.i32, (), ())
        return self.b.zext(value, ir.i64)

    def _shared_array(self, name: str, element: ir.Type, count: int) -> Val:
        return self.module.global_variable(
            f"{self.name}.{name}",
            ir.array(element, max(count, 1)),
            "undef",
            align=16,
            address_space=self.target.shared_space,
        )

    @contextmanager
    def _points(self, points: int) -> Iterator[Val]:
        """A loop over this thread's (or block's) grid points."""
        target = self.target
        first, step = self._read(target.block_index), self._read(target.grid_size)
        if not self.shared:
            width = self._read(target.block_size)
            first = self.b.add(self.b.mul(first, width), self._read(target.thread))
            step = self.b.mul(step, width)
        with self.b.loop(first, const(ir.i64, points), step) as loop:
            yield loop.index

    def _decode(self, flat: Val, axes: Sequence[Axis]) -> None:
        """Set the axes' values from a row-major position."""
        b, rest = self.b, flat
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            if position == 0:
                self.bases[axis] = rest
                return
            self.bases[axis] = b.binary("urem", rest, const(ir.i64, axis.size))
            rest = b.binary("udiv", rest, const(ir.i64, axis.size))

    # -- one grid point ----------------------------------------------------------------------------

    def _point(self) -> None:
        registers: list[Val] = []
        for number, stage in enumerate(self.kernel.stages):
            body = BodyEmitter(self.b, stage.body, self.pointers, stage.axes, None, ())
            for n, value in enumerate(registers):
                body.give(n, {(): value}, frozenset(), varying=False)
            body.analyse()
            made = self._stage(stage, body)
            # Without a loop every thread has the whole fold already.
            if self.shared and stage.axes:
                made = [
                    self._across(v, f, f"s{number}f{n}")
                    for n, (v, f) in enumerate(zip(made, stage.folds, strict=True))
                ]
            registers += made

    def _stage(self, stage: Stage, body: BodyEmitter) -> list[Val]:
        frame = Frame(self.bases, (), None, 1, None)
        empty = any(a.size == 0 for a in stage.axes)
        accs = [start(f, 1, empty) for f in stage.folds]
        body.emit_level(0, frame)
        if empty:
            return accs
        if not stage.axes:
            return self._once(stage, body, frame, accs)
        if not self.shared:
            return self._nest(stage, body, frame, 0, accs)
        first, step = self._read(self.target.thread), self._read(self.target.block_size)
        with self.b.loop(first, const(ir.i64, stage.trips), step, accs) as loop:
            self._decode(loop.index, stage.axes)
            loop.next(*self._clipped(stage, body, frame, list(loop.carried)))
        if stage.stores:
            self._barrier()
        return list(loop.carried)

    def _once(self, stage: Stage, body: BodyEmitter, frame: Frame, accs: list[Val]) -> list[Val]:
        """A stage without loop: every thread folds, one thread of a shared block stores."""
        after = self._fold(stage, body, accs)
        if stage.stores and self.shared:
            mine = self.b.icmp("eq", self._read(self.target.thread), const(ir.i64, 0))
            with self.b.if_then(mine):
                self._store(stage, body, frame)
        else:
            self._store(stage, body, frame)
        return after

    def _clipped(self, stage: Stage, body: BodyEmitter, frame: Frame, accs: list[Val]) -> list[Val]:
        """One iteration of a shared loop, skipped beyond a clip."""

        def run() -> list[Val]:
            for level in range(1, len(stage.axes) + 1):
                body.emit_level(level, frame)
            after = self._fold(stage, body, accs)
            self._store(stage, body, frame)
            return after

        limits = [(a, self.clips[a]) for a in stage.axes if a in self.clips]
        if not limits:
            return run()
        axis, clip = limits[0]
        inside = self.b.icmp("slt", self.bases[axis], body.scalar(clip, (), frame))
        return list(self.b.cond(inside, run, lambda: accs))

    def _nest(
        self, stage: Stage, body: BodyEmitter, frame: Frame, depth: int, accs: list[Val]
    ) -> list[Val]:
        if depth == len(stage.axes):
            after = self._fold(stage, body, accs)
            self._store(stage, body, frame)
            return after
        axis = stage.axes[depth]
        stop = const(ir.i64, axis.size)
        if axis in self.clips:
            stop = self.b.intrinsic(
                "llvm.smin", ir.i64, (body.scalar(self.clips[axis], (), frame), stop)
            )
        with self.b.loop(const(ir.i64, 0), stop, 1, accs) as loop:
            self.bases[axis] = loop.index
            body.emit_level(depth + 1, frame)
            loop.next(*self._nest(stage, body, frame, depth + 1, list(loop.carried)))
        return list(loop.carried)

    def _fold(self, stage: Stage, body: BodyEmitter, accs: list[Val]) -> list[Val]:
        values = [
            (s, v)
            for s, v in zip(stage.sinks, stage.body.outputs, strict=True)
            if isinstance(s, Fold)
        ]
        return [
            accumulate(body, f, v, (), acc, 1, None)
            for (f, v), acc in zip(values, accs, strict=True)
        ]

    def _store(self, stage: Stage, body: BodyEmitter, frame: Frame) -> None:
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Store):
                dtype = self.kernel.buffers[sink.buffer].type.dtype
                body.store(
                    body.at(value, ()), dtype, (sink.buffer, sink.index, sink.mask), (), frame
                )

    # -- shared memory -----------------------------------------------------------------------------

    def _barrier(self) -> None:
        self.b.intrinsic(self.target.barrier, ir.void, (), ())

    def _across(self, value: Val, fold: Fold, name: str) -> Val:
        """Combine one register per thread into one per block, known to all threads: a tree in
        shared memory.
        """
        b, threads = self.b, self._threads()
        element = memory_type(fold.dtype)
        array = self._shared_array(name, element, threads)
        mine = self._read(self.target.thread)
        slot = b.gep(array, mine, element)
        size = element.bits // 8
        b.store(self._to_memory(value, fold), slot, size)
        self._barrier()
        half = threads // 2
        while half:
            with b.if_then(b.icmp("slt", mine, const(ir.i64, half))):
                other = self._from_memory(b.load(element, b.gep(slot, half, element), size), fold)
                own = self._from_memory(b.load(element, slot, size), fold)
                b.store(
                    self._to_memory(combine(b, fold.kind, fold.dtype, own, other), fold), slot, size
                )
            self._barrier()
            half //= 2
        total = self._from_memory(b.load(element, array, size), fold)
        self._barrier()
        return total

    def _to_memory(self, value: Val, fold: Fold) -> Val:
        return self.b.zext(value, ir.i8) if fold.dtype.name == "bool" else value

    def _from_memory(self, value: Val, fold: Fold) -> Val:
        if fold.dtype.name == "bool":
            return self.b.icmp("ne", value, const(ir.i8, 0))
        assert value.type is register_type(fold.dtype)
        return value


def _shares_blocks(kernel: Kernel) -> bool:
    """Whether a block, not a thread, should run one grid point."""
    if all(not s.axes for s in kernel.stages) or not kernel.points:
        return False
    if any(d.role == "tile" for d in kernel.buffers):
        return True
    return schedule(kernel, LoopTarget(512, 32)).lane is None
