"""Tiles of contractions for each architecture, as data, and the choice among them.

Nothing here was measured on a GPU; sizes follow from arithmetic.  A block that keeps ``m × n``
sums reads ``m + n`` elements from shared memory for ``m · n`` products, so larger tiles move fewer
bytes.  Sums live in registers (65 536 of 32 bits a multiprocessor, 255 a thread) and stages in
shared memory.  At least two blocks should fit on a multiprocessor, so that one works while the
other waits at a barrier.  Where large tiles leave multiprocessors without work, a smaller tile or a
split of the inner axis (split-K) is faster.
"""

from __future__ import annotations

from collections.abc import Mapping

from bringup.dtypes import DType, i32
from bringup.integers import ceil_div
from bringup.records import record
from bringup_cuda.targets import TARGETS, WARP

#: Bytes of the widest access, and of a chunk that swizzling moves as a whole.
CHUNK = 16


@record
class Tile:
    """The work of one block.

    rows, columns: sums that it keeps.
    depth: inner elements of a stage, in units of 32 bytes for tensor cores, else in elements.
    stages: tiles in flight.
    warps: how many there are down and across.
    efficiency: the share of peak that its shared memory traffic allows; 1 is all of it.
    warpgroups: whether four warps multiply together, asynchronously.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: tuple[int, int]
    efficiency: float
    warpgroups: bool = False

    @property
    def prefetch(self) -> int:
        """Stages to fill ahead.  Warpgroups still read the last stage when they start the next."""
        return self.stages - (2 if self.warpgroups else 1)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps[0] * self.warps[1]


#: Products by tensor cores.  For 32 bytes of inner elements, a warp of 64 × 64 sums issues 32
#: products for 8 matrix loads, one of 32 × 32 8 for 4, one of 16 × 32 4 for 3; `efficiency` follows
#: these ratios.
TENSOR = (
    Tile(128, 256, 4, 4, (2, 4), 1.02),
    Tile(128, 256, 4, 3, (2, 4), 1.01),
    Tile(128, 256, 2, 4, (2, 4), 1.0),
    Tile(128, 128, 2, 4, (2, 2), 0.95),
    Tile(128, 64, 2, 4, (4, 2), 0.65),
    Tile(64, 64, 2, 4, (2, 2), 0.6),
    Tile(32, 64, 2, 4, (2, 2), 0.4),
    Tile(16, 128, 2, 4, (1, 4), 0.3),
    Tile(16, 32, 2, 4, (1, 1), 0.3),
)

#: Products of f16 and bf16 by the warpgroups of sm_90a, whose tensor cores are twice as fast as an
#: `efficiency` of 1 says.  For 32 bytes of inner elements, 64 × 256 sums read 10 KiB of shared
#: memory in 128 clocks, 64 × 128 sums 6 KiB in 64; copies write there too, and shared memory moves
#: 128 bytes a clock.
WARPGROUP = (
    Tile(128, 256, 4, 4, (8, 1), 1.7, warpgroups=True),
    Tile(128, 128, 4, 3, (8, 1), 1.5, warpgroups=True),
    Tile(64, 128, 4, 4, (4, 1), 1.2, warpgroups=True),
)

#: Products by FMA.  A thread of 8 × 8 sums reads 16 numbers for 64 products, one of 8 × 4 12 for
#: 32, one of 4 × 4 8 for 16, one of 2 × 4 6 for 8, which is still faster than memory.
SCALAR = (
    Tile(128, 128, 8, 4, (4, 2), 1.0),
    Tile(64, 64, 8, 4, (2, 2), 0.8),
    Tile(32, 32, 8, 4, (2, 1), 0.5),
    Tile(8, 128, 8, 4, (1, 4), 0.25),
)

#: Inner elements below which a sum is not split further, and the most parts of a sum.
LEAST_PART = 256
MOST_PARTS = 64

# The cost model, in clocks of a multiprocessor.
#: Products per clock of tensor cores, of tensor cores for tf32, and of FMA.
TENSOR_RATE, TF32_RATE, SCALAR_RATE = 1024, 512, 128
#: A pipeline step that waits for memory, which answers in some 600 clocks, with three tiles in
#: flight; start and end of a block; those of a block of warpgroups, whose threads hand over 64 sums
#: and more; and one more launch.
STEP, BLOCK_ENDS, GROUP_ENDS, LAUNCH = 200, 1000, 2000, 4000
#: Bytes per clock from memory and from L2.
BYTES, L2_BYTES = 15, 40


@record
class ProblemSize:
    """The sums of a contraction: ``batch × rows × columns``, each of ``inner`` products.

    itemsizes: bytes of an element of both factors.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    itemsizes: tuple[int, int]


@record
class TileChoice:
    """A tile, and the number of parts that sums are split into."""

    tile: Tile
    parts: int


def has_async_copies(architecture: str) -> bool:
    """Whether copies to shared memory may be asynchronous.

    Tensor cores of the same generation take bf16 and whole fragments of ``k16``.
    """
    return "cp.async" in TARGETS[architecture].instructions


def has_warpgroups(architecture: str) -> bool:
    """Whether warpgroups multiply: only in code for GPUs of exactly capability 9.0."""
    return "wgmma" in TARGETS[architecture].instructions


def shared_bytes(architecture: str) -> int:
    """Shared memory that a block may have."""
    return TARGETS[architecture].shared_bytes


def sum_dtype(dtype: DType) -> DType:
    """The dtype of sums: narrow integers are the low bits of wider sums."""
    return i32 if dtype.is_integer and dtype.bits < i32.bits else dtype


def sum_gap(dtype: DType) -> int:
    """Elements between rows of sums in shared memory, so that pairs of four rows are in other
    banks.
    """
    return 2 * CHUNK // dtype.itemsize


def choose_tile(
    problem: ProblemSize,
    depths: Mapping[Tile, int],
    resident: Mapping[Tile, int],
    rate: int,
    architecture: str,
) -> TileChoice:
    """The tile and the number of parts that should finish first.

    depths: inner elements of a stage.  resident: blocks of a tile that a multiprocessor holds, 0 if
    none fits.  rate: products per clock.
    """
    most = max(1, min(problem.inner // LEAST_PART, MOST_PARTS))
    choices = [
        TileChoice(tile, parts)
        for tile, blocks in resident.items()
        if blocks
        for parts in range(1, most + 1)
    ]

    def cost(choice: TileChoice) -> tuple[float, int]:
        tile = choice.tile
        clocks = estimate_clocks(problem, choice, depths[tile], resident[tile], rate, architecture)
        return clocks, tile.rows * tile.columns

    return min(choices, key=cost)


def estimate_clocks(
    problem: ProblemSize,
    choice: TileChoice,
    depth: int,
    resident: int,
    rate: int,
    architecture: str,
) -> float:
    """How long the slowest multiprocessor should take."""
    tile, processors = choice.tile, TARGETS[architecture].multiprocessors
    tiles = ceil_div(problem.rows, tile.rows) * ceil_div(problem.columns, tile.columns)
    blocks = -(-problem.batch * tiles * choice.parts // processors)
    steps = -(-problem.inner // choice.parts // depth)
    arithmetic = tile.rows * tile.columns * depth / (rate * tile.efficiency)
    left, right = problem.itemsizes
    traffic = (tile.rows * left + tile.columns * right) * depth / L2_BYTES
    busy = blocks * steps * max(arithmetic, traffic)
    ends = GROUP_ENDS if tile.warpgroups else BLOCK_ENDS
    waiting = ceil_div(blocks, resident) * (steps * STEP + ends)
    if choice.parts == 1:
        return max(busy, waiting)
    partial = 8 * choice.parts * problem.batch * problem.rows * problem.columns
    return max(busy, waiting) + LAUNCH + partial / (BYTES * processors)
