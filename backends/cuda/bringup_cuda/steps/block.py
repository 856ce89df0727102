"""A kernel of an op step while it is emitted: its threads, and how they talk to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.llvm import text as ir
from bringup.llvm.simt.target import SimtKernel, dynamic_shared
from bringup.llvm.text import Builder, Param, Type, Val, const
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Launch
from bringup_cuda.lower import SIMT, Emission
from bringup_cuda.targets import WARP

GLOBAL = ir.pointer(SIMT.global_space)
#: Blocks of one launch; more work is shared out by strides of the grid.
MAX_BLOCKS = 1 << 20
_ALL = const(ir.i32, -1)

Fold = Callable[[Val, Val], Val]


class Block:
    """A kernel being emitted, for blocks of ``threads`` threads.

    b: the builder.  args: pointers to the arguments.  thread, lane, warp: i32; lane counts within
    the warp.  block: number of the block, i64.
    """

    def __init__(
        self,
        emission: Emission,
        step: OpStep,
        label: str,
        arguments: Sequence[Argument],
        threads: int,
    ) -> None:
        self.module = emission.module
        self.name = emission.name(label)
        self.threads = threads
        self._step = step
        self._arguments = tuple(arguments)
        self._arrays = 0
        params: list[Param] = [(f"p{n}", GLOBAL) for n in range(len(self._arguments))]
        function = self.module.function(
            self.name,
            ir.void,
            params,
            attrs=f'nounwind "nvvm.maxntid"="{threads}"',
            calling_convention=SIMT.calling_convention,
        )
        b = self.b = Builder(function.block("entry"))
        self.args = function.args
        self.thread = b.intrinsic(SIMT.thread, ir.i32, (), ())
        self.lane = b.and_(self.thread, const(ir.i32, WARP - 1))
        self.warp = b.lshr(self.thread, const(ir.i32, WARP.bit_length() - 1))
        self.block = b.zext(b.intrinsic(SIMT.block_index, ir.i32, (), ()), ir.i64)

    @property
    def warps(self) -> int:
        """How many warps a block has."""
        return -(-self.threads // WARP)

    def launch(self, blocks: int, shared_bytes: int = 0) -> Launch:
        """End the kernel, which runs in so many blocks, with so much `dynamic_shared`."""
        self.b.ret()
        assert 0 < blocks <= MAX_BLOCKS, f"{self.name}: {blocks} blocks"
        kernel = SimtKernel(self.name, blocks, self.threads, shared_bytes, fixed=True)
        return Launch(kernel, self._arguments, self._step)

    @contextmanager
    def units(self, count: int) -> Iterator[Val]:
        """A loop over units that blocks take in turn, as i64; all threads of a block run it."""
        if count <= MAX_BLOCKS:
            yield self.block
            return
        with self.b.loop(self.block, const(ir.i64, count), MAX_BLOCKS) as loop:
            yield loop.index

    @contextmanager
    def items(self, count: int, blocks: int = 0) -> Iterator[Val]:
        """A loop over items that threads take in turn, as i64; threads may leave it apart.

        blocks: how many the launch has, if not `blocks_for` the items.
        """
        b, threads = self.b, self.threads
        first = b.mul(self.block, const(ir.i64, threads))
        first = b.add(first, b.zext(self.thread, ir.i64))
        blocks = blocks or self.blocks_for(count)
        if blocks * threads >= count:
            with b.if_then(b.icmp("slt", first, const(ir.i64, count))):
                yield first
            return
        with b.loop(first, const(ir.i64, count), blocks * threads) as loop:
            yield loop.index

    def blocks_for(self, items: int) -> int:
        """How many blocks to launch for `items`."""
        return min(-(-items // self.threads), MAX_BLOCKS)

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

    def at(self, array: Val, index: Val | int, element: Type) -> Val:
        """The address of an element of an array."""
        return self.b.gep(array, index, element)

    def get(self, array: Val, index: Val | int, element: Type) -> Val:
        """An element of an array."""
        return self.b.load(element, self.at(array, index, element), element.bits // 8)

    def put(self, value: Val, array: Val, index: Val | int) -> None:
        """Set an element of an array."""
        self.b.store(value, self.at(array, index, value.type), value.type.bits // 8)

    def barrier(self) -> None:
        """Wait for all threads of the block; all must come here."""
        self.b.intrinsic(SIMT.barrier, ir.void, (), ())

    # -- warps -------------------------------------------------------------------------------------

    def converge(self) -> None:
        """Wait for all threads of the warp, and see what they wrote."""
        self.b.intrinsic("llvm.nvvm.bar.warp.sync", ir.void, (_ALL,), ())

    def ballot(self, condition: Val) -> Val:
        """For which lanes a condition holds, as bits."""
        return self.b.intrinsic("llvm.nvvm.vote.ballot.sync", ir.i32, (_ALL, condition), ())

    def lanes_below(self) -> Val:
        """The bits of all lanes before this one."""
        b = self.b
        return b.sub(b.shl(const(ir.i32, 1), self.lane), const(ir.i32, 1))

    def from_lane(self, value: Val, lane: Val) -> Val:
        """The value of another lane of the warp."""
        return self._shuffle("idx", value, lane, WARP - 1)

    def from_before(self, value: Val, distance: int) -> Val:
        """The value ``distance`` lanes before; lanes with none there keep their own."""
        return self._shuffle("up", value, const(ir.i32, distance), 0)

    def from_across(self, value: Val, mask: int) -> Val:
        """The value of the lane whose number differs in the bits of ``mask``."""
        return self._shuffle("bfly", value, const(ir.i32, mask), WARP - 1)

    def _shuffle(self, way: str, value: Val, lane: Val, clamp: int) -> Val:
        b, bits = self.b, value.type.bits
        word = b.cast("bitcast", value, ir.integer(bits))

        def moved(part: Val) -> Val:
            arguments = (_ALL, part, lane, const(ir.i32, clamp))
            return b.intrinsic(f"llvm.nvvm.shfl.sync.{way}.i32", ir.i32, arguments, ())

        if bits <= 32:
            word = b.trunc(moved(b.zext(word, ir.i32)), word.type)
            return b.cast("bitcast", word, value.type)
        low = moved(b.trunc(word, ir.i32))
        high = moved(b.trunc(b.lshr(word, const(word.type, 32)), ir.i32))
        wide = b.shl(b.zext(high, word.type), const(word.type, 32))
        return b.cast("bitcast", b.or_(b.zext(low, word.type), wide), value.type)

    # -- folds -------------------------------------------------------------------------------------

    def scan_lanes(self, value: Val, fold: Fold, lanes: int = WARP) -> Val:
        """The fold of a lane's value and those before it in its group of ``lanes`` lanes."""
        b = self.b
        place = b.and_(self.lane, const(ir.i32, lanes - 1))
        distance = 1
        while distance < lanes:
            other = self.from_before(value, distance)
            inside = b.icmp("uge", place, const(ir.i32, distance))
            value = b.select(inside, fold(other, value), value)
            distance *= 2
        return value

    def fold_lanes(self, value: Val, fold: Fold) -> Val:
        """The fold of the warp's values, in every lane."""
        distance = WARP // 2
        while distance:
            value = fold(value, self.from_across(value, distance))
            distance //= 2
        return value

    def spread(self, value: Val, array: Val, fold: Fold, neutral: Val) -> tuple[Val, Val]:
        """The fold of one value per warp: that of the warps before, and that of all.

        array: of shared memory, an element for each warp; it may be written again after a barrier.
        """
        b = self.b
        with b.if_then(b.icmp("eq", self.lane, const(ir.i32, 0))):
            self.put(value, array, self.warp)
        self.barrier()
        before, total = neutral, neutral
        for n in range(self.warps):
            part = self.get(array, n, value.type)
            earlier = b.icmp("ult", const(ir.i32, n), self.warp)
            before = b.select(earlier, fold(before, part), before)
            total = part if n == 0 else fold(total, part)
        return before, total


__all__ = ["GLOBAL", "MAX_BLOCKS", "Block", "Fold"]
