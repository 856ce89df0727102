"""How a contraction runs on an architecture: by what, in which tiles, in how many parts."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.dtypes import DType, f32
from bringup.graph import Value
from bringup.kernel.contraction import Contraction, Factor, recognise, size
from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, Expr
from bringup.records import record
from bringup_cuda.contraction.engine import sum_stride, sum_type
from bringup_cuda.contraction.layout import TURN, Plan, plan_copy
from bringup_cuda.contraction.tiles import (
    SCALAR,
    SCALAR_RATE,
    TENSOR,
    TENSOR_RATE,
    TF32_RATE,
    WARPGROUP,
    Tile,
    Work,
    choose,
    has_async,
    has_warpgroups,
    shared_bytes,
)
from bringup_cuda.targets import SHARED_RESERVED

Side = Factor
#: Bytes of inner elements that one product of tensor cores takes.
FRAGMENT = 32
_REGISTERS = 1 << 16
#: Registers of a thread beside its sums: addresses, fragments and what is on its way.
_OTHER_REGISTERS = 64
_MOST_REGISTERS = 255
#: Registers that hold elements of several inner places, read at once from both factors' lines.
_LINES = 48


@record
class Planned:
    """A contraction and how it runs.

    tensor: dtype of the elements where tensor cores multiply them, None for FMA.
    resident: blocks that a multiprocessor should hold.  parts: into how many sums should be cut.
    """

    made: Contraction
    tile: Tile
    plans: tuple[Plan, Plan]
    tensor: DType | None
    resident: int
    parts: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        rows, columns = size(self.made.left.axes), size(self.made.right.axes)
        return -(-rows // self.tile.rows), -(-columns // self.tile.columns)

    @property
    def blocks(self) -> int:
        """Of the launch."""
        down, across = self.grid
        return size(self.made.batch) * down * across

    @property
    def shared_bytes(self) -> int:
        """Of a block: the stages, and in their place the sums."""
        return _shared(self.made, self.tile, self.plans)


def _shared(made: Contraction, tile: Tile, plans: tuple[Plan, Plan]) -> int:
    kind = sum_type(made.fold.dtype)
    sums = tile.rows * sum_stride(tile.columns, kind) * kind.bits // 8
    room = TURN if tile.warpgroups else 0
    return max(tile.stages * sum(p.layout.nbytes for p in plans), sums) + room


def tensor_dtype(made: Contraction, architecture: str) -> DType | None:
    """The dtype of both factors' elements if tensor cores multiply them as exactly as was asked for
    and sum as wide as the kernel does; f32 for tf32.
    """
    left, right = made.left.narrow.dtype, made.right.narrow.dtype
    if not has_async(architecture):
        return None
    wide = made.fold.dtype
    if left is right and left.name in ("f16", "bf16") and wide is f32:
        return left
    if left is right and left.name in ("i8", "u8") and not wide.is_float and wide.bits <= 32:
        return left
    return f32 if made.fold.precision == "tf32" else None


def plan(
    kernel: Kernel, architecture: str, clips: Mapping[Axis, Expr] | None = None
) -> Planned | None:
    """How to run a kernel as a contraction; None for what is not one."""
    made = recognise(kernel, clips)
    if made is None:
        return None
    tensor = tensor_dtype(made, architecture)
    tiles = _tiles(tensor, architecture)
    values = _values(made, tensor)
    plans = {tile: _plans(made, tile, values, tensor, architecture) for tile in tiles}
    fits = {tile: _resident(made, tile, plans[tile], architecture) for tile in tiles}
    depths = {tile: plans[tile][0].layout.depth for tile in tiles}
    rows, columns, inner = size(made.left.axes), size(made.right.axes), size(made.inner)
    rate = SCALAR_RATE if tensor is None else TF32_RATE if tensor is f32 else TENSOR_RATE
    sizes = values[0].dtype.itemsize, values[1].dtype.itemsize
    work = Work(size(made.batch), rows, columns, inner, sizes)
    choice = choose(work, depths, fits, rate, architecture)
    tile = choice.tile
    return Planned(made, tile, plans[tile], tensor, min(fits[tile], 2), choice.parts)


def _tiles(tensor: DType | None, architecture: str) -> tuple[Tile, ...]:
    if tensor is None:
        return SCALAR
    if tensor.name in ("f16", "bf16") and has_warpgroups(architecture):
        return (*WARPGROUP, *TENSOR)
    return TENSOR


def _values(made: Contraction, tensor: DType | None) -> tuple[Value, Value]:
    """What lies in shared memory."""
    if tensor not in (None, f32):
        return made.left.narrow, made.right.narrow
    return made.left.value, made.right.value


def _plans(
    made: Contraction,
    tile: Tile,
    values: tuple[Value, Value],
    tensor: DType | None,
    architecture: str,
) -> tuple[Plan, Plan]:
    depth = tile.depth if tensor is None else tile.depth * FRAGMENT // tensor.itemsize
    later = has_async(architecture)

    def one(factor: Factor, value: Value, extent: int) -> Plan:
        sizes = extent, depth
        return plan_copy(made, factor, value, sizes, tensor is not None, later, tile.warpgroups)

    return one(made.left, values[0], tile.rows), one(made.right, values[1], tile.columns)


def _resident(made: Contraction, tile: Tile, plans: tuple[Plan, Plan], architecture: str) -> int:
    """Blocks of a tile that a multiprocessor holds at once."""
    whole = shared_bytes(architecture)
    if _shared(made, tile, plans) > whole:
        return 0
    # A multiprocessor has as much beyond its largest block.
    by_memory = (whole + SHARED_RESERVED) // (_shared(made, tile, plans) + SHARED_RESERVED)
    words = sum_type(made.fold.dtype).bits // 32
    registers = tile.rows * tile.columns // tile.threads * words + _OTHER_REGISTERS
    registers += sum(_staged(plan, tile.threads) for plan in plans)
    if all(p.layout.inner_minor and not p.layout.swizzled for p in plans):
        registers += _LINES
    if registers > _MOST_REGISTERS:
        return 0
    by_registers = _REGISTERS // (tile.threads * registers)
    return max(1, min(by_memory, by_registers))


def _staged(plan: Plan, threads: int) -> int:
    """Registers of a thread that hold what it has loaded and not yet stored."""
    if plan.asynchronous:
        return 0
    units = -(-plan.fast * plan.slow // threads) * plan.group
    return units * (-(-plan.lanes * plan.value.dtype.itemsize // 4) + 1)
