"""Tiles of contractions per architecture, as data.

Nothing here was measured on a GPU: sizes follow from arithmetic.  A block that keeps ``m × n`` sums
reads ``m + n`` elements of shared memory's tiles for ``m · n`` products, so larger tiles move fewer
bytes; sums live in registers (65 536 of 32 bits a multiprocessor, 255 a thread), stages in shared
memory, and at least two blocks a multiprocessor hide each other's barriers where both fit.  Where
that leaves multiprocessors without work, a smaller tile or a cut of the inner axis is quicker.
"""

from __future__ import annotations

from bringup.records import record
from bringup_cuda.targets import SHARED_KIB, number_of


@record
class Tile:
    """The work of one block.

    rows, columns: sums it keeps.  depth: inner elements of a stage, in units of 32 bytes for tensor
    cores, in elements else.  stages: tiles in flight.  warps: down and across.  yield_: share of
    the peak that its traffic in shared memory allows, 1 for all of it.  warpgroups: whether four
    warps multiply together, which go on while the next tile is waited for.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: tuple[int, int]
    yield_: float
    warpgroups: bool = False

    @property
    def ahead(self) -> int:
        """Stages that are filled while others are multiplied: warpgroups are still at the last
        tile when they begin with one.
        """
        return self.stages - (2 if self.warpgroups else 1)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps[0] * self.warps[1]


#: Products by tensor cores.  In 32 bytes of inner elements a warp of 64 × 64 issues 32 of them for
#: 8 matrix loads, one of 32 × 32 8 for 4, one of 16 × 32 4 for 3: `yield_` follows these ratios.
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

#: Products of halves by the warpgroups of sm_90a, whose tensor cores are twice as quick as a
#: `yield_` of 1 says.  For 32 bytes of inner elements 64 × 256 sums read 10 KiB of shared memory in
#: 128 clocks, 64 × 128 sums 6 KiB in 64, and copies write there too; it moves 128 bytes a clock.
WARPGROUP = (
    Tile(128, 256, 4, 4, (8, 1), 1.7, warpgroups=True),
    Tile(128, 128, 4, 3, (8, 1), 1.5, warpgroups=True),
    Tile(64, 128, 4, 4, (4, 1), 1.2, warpgroups=True),
)

#: Products by FMA.  A thread of 8 × 8 sums reads 16 numbers for 64 products, one of 8 × 4 12 for
#: 32, one of 4 × 4 8 for 16, one of 2 × 4 6 for 8, which is still quicker than memory.
SCALAR = (
    Tile(128, 128, 8, 4, (4, 2), 1.0),
    Tile(64, 64, 8, 4, (2, 2), 0.8),
    Tile(32, 32, 8, 4, (2, 1), 0.5),
    Tile(8, 128, 8, 4, (1, 4), 0.25),
)

#: Multiprocessors of the largest product of each architecture; how finely work is cut depends on
#: them, never what a sum is made of.
MULTIPROCESSORS = {
    "sm_75": 72,
    "sm_80": 108,
    "sm_86": 84,
    "sm_87": 16,
    "sm_89": 142,
    "sm_90": 132,
    "sm_90a": 132,
    "sm_100": 148,
    "sm_120": 188,
}

#: Inner elements below which a sum is not cut further, and parts of a sum at most.
LEAST_PART = 256
MOST_PARTS = 64

# What the choice of a tile reckons with, in clocks of a multiprocessor: products per clock of
# tensor cores, of those of tf32, and of FMA; a step of the pipeline while memory answers, which
# takes some 600 clocks with three tiles on their way; the beginning and end of a block, and of one
# of warpgroups, whose threads pass on 64 sums and more; another launch; bytes that come from memory
# and from L2 per clock.
TENSOR_RATE, TF32_RATE, SCALAR_RATE = 1024, 512, 128
STEP, BLOCK_ENDS, GROUP_ENDS, LAUNCH = 200, 1000, 2000, 4000
BYTES, L2_BYTES = 15, 40


@record
class Work:
    """Sums to compute: members of the batch, rows, columns, and products of each; bytes of an
    element of both factors.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    sizes: tuple[int, int]


@record
class Choice:
    """A tile, and into how many parts sums are cut."""

    tile: Tile
    parts: int


def has_async(architecture: str) -> bool:
    """Whether copies to shared memory may be asynchronous; tensor cores of the same generation take
    bf16 and whole fragments of ``k16``.
    """
    return number_of(architecture) >= 80


def has_warpgroups(architecture: str) -> bool:
    """Whether warpgroups multiply: in code for GPUs of capability 9.0, which runs on no others."""
    return architecture == "sm_90a"


def shared_bytes(architecture: str) -> int:
    """Shared memory a block may have."""
    return SHARED_KIB[architecture] * 1024


def choose(
    work: Work, depths: dict[Tile, int], fits: dict[Tile, int], rate: int, architecture: str
) -> Choice:
    """The tile and the cut that should finish first.

    depths: inner elements of a stage.  fits: blocks of a tile that a multiprocessor holds, 0 for
    none.  rate: products per clock.
    """
    most = max(1, min(work.inner // LEAST_PART, MOST_PARTS))
    tries = [Choice(t, parts) for t, room in fits.items() if room for parts in range(1, most + 1)]

    def order(choice: Choice) -> tuple[float, int]:
        tile = choice.tile
        time = clocks(work, choice, depths[tile], fits[tile], rate, architecture)
        return time, tile.rows * tile.columns

    return min(tries, key=order)


def clocks(
    work: Work, choice: Choice, depth: int, room: int, rate: int, architecture: str
) -> float:
    """How long the slowest multiprocessor should take."""
    tile, processors = choice.tile, MULTIPROCESSORS[architecture]
    tiles = -(-work.rows // tile.rows) * -(-work.columns // tile.columns)
    mine = -(-work.batch * tiles * choice.parts // processors)
    steps = -(-work.inner // choice.parts // depth)
    arithmetic = tile.rows * tile.columns * depth / (rate * tile.yield_)
    traffic = (tile.rows * work.sizes[0] + tile.columns * work.sizes[1]) * depth / L2_BYTES
    busy = mine * steps * max(arithmetic, traffic)
    ends = GROUP_ENDS if tile.warpgroups else BLOCK_ENDS
    waiting = -(-mine // room) * (steps * STEP + ends)
    if choice.parts == 1:
        return max(busy, waiting)
    partial = 8 * choice.parts * work.batch * work.rows * work.columns
    return max(busy, waiting) + LAUNCH + partial / (BYTES * processors)
