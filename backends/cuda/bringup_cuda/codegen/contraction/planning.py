"""How a contraction runs on an architecture: which units multiply, in which tiles, in how many
parts.
"""

from __future__ import annotations

from bringup.dtypes import DType, f32
from bringup.graph import Value
from bringup.integers import ceil_div, round_up
from bringup.kernel.contraction import Contraction, Factor, recognise, size
from bringup.kernel.form import Kernel
from bringup.llvm.simt.group_products import PERIOD
from bringup.records import record
from bringup_cuda.codegen.contraction.staging import CopyPlan, plan_copy
from bringup_cuda.codegen.contraction.tiles import (
    SCALAR,
    SCALAR_RATE,
    TENSOR,
    TENSOR_RATE,
    TF32_RATE,
    WARPGROUP,
    ProblemSize,
    Tile,
    choose_tile,
    has_async_copies,
    has_warpgroups,
    shared_bytes,
    sum_dtype,
    sum_gap,
)
from bringup_cuda.targets import SHARED_RESERVED, TARGETS

#: Bytes of inner elements that one tensor core product takes.
FRAGMENT = 32
#: Registers of a thread beside its sums: addresses, fragments and values on their way.
_OTHER_REGISTERS = 64
#: Registers for elements of several inner positions, if both factors' lines run along them.
_LINE_REGISTERS = 48


@record
class ContractionPlan:
    """A contraction and how it runs.

    copies: how tiles of the left and the right factor are copied.
    tensor: dtype of the elements that tensor cores multiply; None for FMA.
    resident: blocks that a multiprocessor should hold.
    parts: how many parts sums should be split into.
    """

    contraction: Contraction
    tile: Tile
    copies: tuple[CopyPlan, CopyPlan]
    tensor: DType | None
    resident: int
    parts: int

    @property
    def chunk_length(self) -> int:
        """The length of chunks of the longest inner axis if sums should be split, else 0."""
        inner = self.contraction.inner
        longest = max(axis.size for axis in inner)
        if self.parts < 2 or longest < 2 * self.parts:
            return 0
        granule = max(1, self.copies[0].layout.depth // (size(inner) // longest))
        return round_up(ceil_div(longest, self.parts), granule)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        rows, columns = size(self.contraction.left.axes), size(self.contraction.right.axes)
        return ceil_div(rows, self.tile.rows), ceil_div(columns, self.tile.columns)

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        down, across = self.grid
        return size(self.contraction.batch) * down * across

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the stages, later reused by the sums."""
        return _shared_bytes(self.contraction, self.tile, self.copies)


def _shared_bytes(contraction: Contraction, tile: Tile, copies: tuple[CopyPlan, CopyPlan]) -> int:
    dtype = sum_dtype(contraction.fold.dtype)
    sums = tile.rows * (tile.columns + sum_gap(dtype)) * dtype.itemsize
    alignment = PERIOD if tile.warpgroups else 0
    return max(tile.stages * sum(copy.layout.nbytes for copy in copies), sums) + alignment


def tensor_dtype(contraction: Contraction, architecture: str) -> DType | None:
    """The dtype that tensor cores multiply; None if they are not as exact as was asked for, or sum
    in fewer bits than the kernel.  f32 stands for tf32.
    """
    left, right = contraction.left.narrow.dtype, contraction.right.narrow.dtype
    if not has_async_copies(architecture):
        return None
    sums = contraction.fold.dtype
    if left is right and left.name in ("f16", "bf16") and sums is f32:
        return left
    if left is right and left.name in ("i8", "u8") and not sums.is_float and sums.bits <= 32:
        return left
    return f32 if contraction.fold.precision == "tf32" else None


def plan_contraction(kernel: Kernel, architecture: str) -> ContractionPlan | None:
    """How to run a kernel as a contraction; None for kernels that are none."""
    contraction = recognise(kernel)
    if contraction is None:
        return None
    tensor = tensor_dtype(contraction, architecture)
    left, right = contraction.left, contraction.right
    # The values that lie in shared memory: narrow ones, unless tensor cores round them to tf32.
    values = (left.value, right.value) if tensor in (None, f32) else (left.narrow, right.narrow)
    tiles: tuple[Tile, ...] = SCALAR if tensor is None else TENSOR
    if tensor is not None and tensor.name in ("f16", "bf16") and has_warpgroups(architecture):
        tiles = (*WARPGROUP, *TENSOR)
    copies = {tile: _plan_copies(contraction, tile, values, tensor, architecture) for tile in tiles}
    resident = {tile: _resident(contraction, tile, copies[tile], architecture) for tile in tiles}
    depths = {tile: copies[tile][0].layout.depth for tile in tiles}
    rate = SCALAR_RATE if tensor is None else TF32_RATE if tensor is f32 else TENSOR_RATE
    problem = ProblemSize(
        size(contraction.batch),
        size(left.axes),
        size(right.axes),
        size(contraction.inner),
        (values[0].dtype.itemsize, values[1].dtype.itemsize),
    )
    choice = choose_tile(problem, depths, resident, rate, architecture)
    tile = choice.tile
    return ContractionPlan(
        contraction, tile, copies[tile], tensor, min(resident[tile], 2), choice.parts
    )


def _plan_copies(
    contraction: Contraction,
    tile: Tile,
    values: tuple[Value, Value],
    tensor: DType | None,
    architecture: str,
) -> tuple[CopyPlan, CopyPlan]:
    depth = tile.depth if tensor is None else tile.depth * FRAGMENT // tensor.itemsize

    def plan(factor: Factor, value: Value, extent: int) -> CopyPlan:
        return plan_copy(
            contraction,
            factor,
            value,
            (extent, depth),
            tensor=tensor is not None,
            async_copies=has_async_copies(architecture),
        )

    return (
        plan(contraction.left, values[0], tile.rows),
        plan(contraction.right, values[1], tile.columns),
    )


def _resident(
    contraction: Contraction, tile: Tile, copies: tuple[CopyPlan, CopyPlan], architecture: str
) -> int:
    """Blocks of a tile that a multiprocessor holds at once; 0 if none fits."""
    available = shared_bytes(architecture)
    needed = _shared_bytes(contraction, tile, copies)
    if needed > available:
        return 0
    # A multiprocessor has room for the reserved bytes beyond its largest block.
    by_memory = (available + SHARED_RESERVED) // (needed + SHARED_RESERVED)
    words = sum_dtype(contraction.fold.dtype).itemsize // 4
    registers = tile.rows * tile.columns // tile.threads * words + _OTHER_REGISTERS
    registers += sum(_staging_registers(copy, tile.threads) for copy in copies)
    if all(copy.layout.inner_minor and not copy.layout.swizzled for copy in copies):
        registers += _LINE_REGISTERS
    row = TARGETS[architecture]
    if registers > row.thread_registers:
        return 0
    by_registers = row.registers // (tile.threads * registers)
    return max(1, min(by_memory, by_registers))


def _staging_registers(copy: CopyPlan, threads: int) -> int:
    """Registers of a thread that hold elements which are loaded and not yet stored."""
    if copy.asynchronous:
        return 0
    units = ceil_div(copy.fast_units * copy.slow_units, threads) * copy.packed
    return units * (ceil_div(copy.lanes * copy.value.dtype.itemsize, 4) + 1)
