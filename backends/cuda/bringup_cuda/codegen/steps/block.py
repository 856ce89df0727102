"""The kernel of an op step while it is emitted: its threads, and how they exchange values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.integers import ceil_div
from bringup.llvm import text as ir
from bringup.llvm.simt.target import SimtKernel, dynamic_shared
from bringup.llvm.text import Param, Type, Val, const
from bringup.program.program import OpStep
from bringup_cuda.codegen.commands import Argument, Launch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import SIMT, IntBuilder
from bringup_cuda.targets import WARP

GLOBAL = ir.pointer(SIMT.global_space)
#: The most blocks of a launch; each takes several units if there are more.
MAX_BLOCKS = 1 << 20
_ALL = const(ir.i32, -1)

Fold = Callable[[Val, Val], Val]


class BlockEmitter:
    """A kernel being emitted, for blocks of ``threads`` threads.

    b: the builder.  args: the arguments.  thread, lane, warp: the thread's number in its block, its
    number in its warp, and the number of the warp, as i32.  block: the block's number, as i64.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        label: str,
        arguments: Sequence[Argument],
        threads: int,
    ) -> None:
        self.module = codegen.module
        self.name = codegen.function_name(label)
        self.threads = threads
        self._step = step
        self._arguments = tuple(arguments)
        self._arrays = 0
        params: list[Param] = [(f"p{n}", GLOBAL) for n in range(len(arguments))]
        function = self.module.function(
            self.name,
            ir.void,
            params,
            attrs=f'nounwind "nvvm.maxntid"="{threads}"',
            calling_convention=SIMT.calling_convention,
        )
        b = self.b = IntBuilder(function.block("entry"))
        self.args = function.args
        self.thread = b.intrinsic(SIMT.thread, ir.i32, (), ())
        self.lane = b.and_(self.thread, WARP - 1)
        self.warp = b.lshr(self.thread, WARP.bit_length() - 1)
        self.block = b.zext(b.intrinsic(SIMT.block_index, ir.i32, (), ()), ir.i64)

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return ceil_div(self.threads, WARP)

    def launch(self, blocks: int, shared_bytes: int = 0) -> Launch:
        """End the kernel, and launch it in ``blocks`` blocks with this much `dynamic_shared`."""
        self.b.ret()
        assert 0 < blocks <= MAX_BLOCKS, f"{self.name}: {blocks} blocks"
        kernel = SimtKernel(self.name, blocks, self.threads, shared_bytes, fixed=True)
        return Launch(kernel, self._arguments, self._step)

    @contextmanager
    def units(self, count: int) -> Iterator[Val]:
        """A loop over units, as i64, distributed over blocks; all threads of a block run it."""
        if count <= MAX_BLOCKS:
            yield self.block
            return
        with self.b.loop(self.block, const(ir.i64, count), MAX_BLOCKS) as loop:
            yield loop.index

    @contextmanager
    def items(self, count: int, blocks: int = 0) -> Iterator[Val]:
        """A loop over items, as i64, distributed over threads, which may leave it separately.

        blocks: the blocks of the launch, by default `blocks_for` the items.
        """
        b, threads = self.b, self.threads
        first = b.mul(self.block, threads)
        first = b.add(first, b.zext(self.thread, ir.i64))
        blocks = blocks or self.blocks_for(count)
        if blocks * threads >= count:
            with b.if_then(b.icmp("slt", first, count)):
                yield first
            return
        with b.loop(first, const(ir.i64, count), blocks * threads) as loop:
            yield loop.index

    def blocks_for(self, items: int) -> int:
        """The blocks to launch for a number of `items`."""
        return min(ceil_div(items, self.threads), MAX_BLOCKS)

    # -- shared memory -----------------------------------------------------------------------------

    def shared(self, element: Type, count: int) -> Val:
        """An array in shared memory."""
        self._arrays += 1
        return self.module.global_variable(
            f"{self.name}.shared{self._arrays}",
            ir.array(element, max(count, 1)),
            "undef",
            align=16,
            address_space=SIMT.shared_space,
        )

    def dynamic_shared(self) -> Val:
        """The start of shared memory of a size that the launch states."""
        return dynamic_shared(self.module, f"{self.name}_memory", SIMT)

    def address(self, array: Val, index: Val | int, element: Type) -> Val:
        """The address of an element of an array."""
        return self.b.gep(array, index, element)

    def load(self, array: Val, index: Val | int, element: Type) -> Val:
        """An element of an array."""
        return self.b.load(element, self.address(array, index, element), element.bits // 8)

    def store(self, value: Val, array: Val, index: Val | int) -> None:
        """Set an element of an array."""
        self.b.store(value, self.address(array, index, value.type), value.type.bits // 8)

    def barrier(self) -> None:
        """Wait for all threads of the block, each of which must come here."""
        self.b.intrinsic(SIMT.barrier, ir.void, (), ())

    # -- warps -------------------------------------------------------------------------------------

    def sync_warp(self) -> None:
        """Wait for all threads of the warp, and see their writes."""
        self.b.intrinsic("llvm.nvvm.bar.warp.sync", ir.void, (_ALL,), ())

    def ballot(self, condition: Val) -> Val:
        """The lanes for which a condition holds, as bits."""
        return self.b.intrinsic("llvm.nvvm.vote.ballot.sync", ir.i32, (_ALL, condition), ())

    def lanes_below(self) -> Val:
        """The bits of all lanes below this one."""
        b = self.b
        return b.sub(b.shl(const(ir.i32, 1), self.lane), 1)

    def shuffle_index(self, value: Val, lane: Val) -> Val:
        """The value of another lane of the warp."""
        return self._shuffle("idx", value, lane, WARP - 1)

    def shuffle_up(self, value: Val, distance: int) -> Val:
        """The value of the lane ``distance`` below; where there is none, the lane's own."""
        return self._shuffle("up", value, const(ir.i32, distance), 0)

    def shuffle_xor(self, value: Val, mask: int) -> Val:
        """The value of the lane whose number differs by XOR with ``mask``."""
        return self._shuffle("bfly", value, const(ir.i32, mask), WARP - 1)

    def _shuffle(self, mode: str, value: Val, lane: Val, clamp: int) -> Val:
        b, bits = self.b, value.type.bits
        word = b.cast("bitcast", value, ir.integer(bits))

        def shuffled(part: Val) -> Val:
            arguments = (_ALL, part, lane, const(ir.i32, clamp))
            return b.intrinsic(f"llvm.nvvm.shfl.sync.{mode}.i32", ir.i32, arguments, ())

        if bits <= 32:
            word = b.trunc(shuffled(b.zext(word, ir.i32)), word.type)
            return b.cast("bitcast", word, value.type)
        low = shuffled(b.trunc(word, ir.i32))
        high = shuffled(b.trunc(b.lshr(word, const(word.type, 32)), ir.i32))
        wide = b.shl(b.zext(high, word.type), const(word.type, 32))
        return b.cast("bitcast", b.or_(b.zext(low, word.type), wide), value.type)

    # -- folds -------------------------------------------------------------------------------------

    def scan_lanes(self, value: Val, fold: Fold, lanes: int = WARP) -> Val:
        """The fold of a lane's value and those of lower lanes in its group of ``lanes`` lanes."""
        b = self.b
        position = b.and_(self.lane, lanes - 1)
        distance = 1
        while distance < lanes:
            other = self.shuffle_up(value, distance)
            inside = b.icmp("uge", position, distance)
            value = b.select(inside, fold(other, value), value)
            distance *= 2
        return value

    def reduce_warp(self, value: Val, fold: Fold) -> Val:
        """The fold of the warp's values, in every lane."""
        distance = WARP // 2
        while distance:
            value = fold(value, self.shuffle_xor(value, distance))
            distance //= 2
        return value

    def scan_warps(self, value: Val, array: Val, fold: Fold, neutral: Val) -> tuple[Val, Val]:
        """The fold of one value per warp over the lower warps, and over all warps.

        array: an element of shared memory for each warp, which may be reused after a barrier.
        """
        b = self.b
        with b.if_then(b.icmp("eq", self.lane, 0)):
            self.store(value, array, self.warp)
        self.barrier()
        before, total = neutral, neutral
        for n in range(self.warps):
            part = self.load(array, n, value.type)
            earlier = b.icmp("ult", const(ir.i32, n), self.warp)
            before = b.select(earlier, fold(before, part), before)
            total = part if n == 0 else fold(total, part)
        return before, total
