"""Sorting as native code: blocks by a network in the cache, long lines by merging their blocks.

Lines that lie side by side are sorted each in a lane of its own.  Any other line is one block, or
so many that each fits the cache: then they are merged pair by pair, and because every stretch of a
merge's result finds its own beginning in the two halves, threads share even a single line.
"""

from __future__ import annotations

import math

from bringup.llvm import text as ir
from bringup.llvm._merging import emit_merging
from bringup.llvm._records import Numbers, Places
from bringup.llvm._side_by_side import ShortLines, SideBySide
from bringup.llvm._sort_base import Blocks, Job
from bringup.llvm._sorted_odd import Oddities
from bringup.llvm.launches import NativeStep
from bringup.llvm.loops import NativeKernel
from bringup.llvm.schedule import LoopTarget
from bringup.llvm.text import Module, const
from bringup.program.program import OpStep

#: Bytes of the largest block; of so many lines that they alone keep the threads busy.
_BLOCK_BYTES = 1 << 17
_LINE_BYTES = 1 << 19
_MANY_LINES = 16
#: A merge of all records takes about as long as so many levels of a network.
_MERGE_LEVELS = 26
#: Bytes of lines sorted side by side, and how long a line may be if they are contiguous each.
_SIDE_BYTES = 1 << 19
_SHORT = 64


def emit_sort(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``sort``."""
    job = _job(step, target)
    if _lies_side_by_side(job):
        way = SideBySide if job.inner > 1 else ShortLines
        return NativeStep((way(module, job, name).emit(),))
    block = max(job.lanes**2, 1 << (job.length - 1).bit_length())
    many = job.outer * job.inner >= _MANY_LINES
    if job.bytes_of(block) <= (_LINE_BYTES if many else _BLOCK_BYTES):
        return NativeStep((_Blocks(module, job, name, block).emit(),))
    return emit_merging(module, job, name, _best_block(job))


def _best_block(job: Job) -> int:
    """Records of a block of a long line: large ones need fewer merges, small ones less filling."""
    sizes = [
        n for n in range(job.lanes.bit_length() * 2, 40) if job.bytes_of(1 << n) <= _BLOCK_BYTES
    ]

    def price(bits: int) -> int:
        count = -(-job.length // (1 << bits))
        levels = bits * (bits + 1) // 2 + _MERGE_LEVELS * (count - 1).bit_length()
        return (count << bits) * levels

    return 1 << min(sizes, key=price)


def _job(step: OpStep, target: LoopTarget) -> Job:
    type_, attrs = step.operands[0].type, step.attrs
    dim, descending = attrs["dim"], attrs["descending"]
    length = type_.shape[dim]
    codec: Numbers | Places = Numbers(type_.dtype, descending)
    if len(step.operands) > 1:
        keys = tuple(slot.type.dtype for slot in step.operands[: attrs["num_keys"]])
        codec = Places(keys, descending, length)
    levels = max(1, 5 - codec.words if target.registers >= 32 else 4 - codec.words)
    lanes = target.vector_bits // codec.type.bits
    outer, inner = math.prod(type_.shape[:dim]), math.prod(type_.shape[dim + 1 :])
    return Job(step, codec, outer, length, inner, lanes, levels)


def _lies_side_by_side(job: Job) -> bool:
    rows = 1 << (job.length - 1).bit_length()
    lines, fits = job.inner, job.bytes_of(rows * job.lanes) <= _SIDE_BYTES
    if job.inner == 1:
        lines, fits = job.outer, job.length <= _SHORT
    return fits and 2 * lines >= job.lanes


class _Blocks(Blocks):
    """Every line is one block."""

    def __init__(self, module: Module, job: Job, name: str, block: int) -> None:
        super().__init__(module, job, name)
        self.block = block

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        network = job.network(self.module, self.block)
        zero, count = const(ir.i64, 0), const(ir.i64, job.length)
        scratch, ordered = self.phase.scratch(*[job.bytes_of(self.block)] * 2)
        block = network.words_at(b, scratch)
        with self.phase.units() as unit:
            line = self.line(unit)
            odd = self.read(line, zero, count, network, block)
            network.sort_block(b, block, self.block // job.lanes)
            self.store_ordered(network, block, ordered, self.block)
            self.write_all(line, zero, count, ordered, self.block)
            if odd is not None:
                assert isinstance(job.codec, Numbers)
                with b.if_then(odd, likely=False):
                    Oddities(self.phase, job.codec, line, job.length).mend_all()
        steps = self.block.bit_length()
        return self.phase.done(job.outer * job.inner, job.length * steps * steps // 8)
