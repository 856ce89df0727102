"""The numbers by which the loops of a kernel are mapped to the row of a CPU, and their reasons.

What a machine has stands in its `Target`; these are what turns it into lanes, tiles and blocks, the
same on every CPU.  Numbers that decide in which order sums are added may depend on nothing else.
"""

from __future__ import annotations

from bringup.records import record
from bringup.target import Target

#: The most serial additions into any accumulator: errors of a sum grow with it.  Capabilities
#: declare it.
LONGEST_CHAIN = 8192


@record
class Chain:
    """Blocked summation: at most ``longest`` serial additions.

    Longer sums are split into blocks of ``block`` additions, and more than ``longest`` blocks into
    blocks of blocks.
    """

    longest: int
    block: int

    def sizes(self, count: int, deeper: int) -> list[int]:
        """Sizes of blocks for ``count`` steps of ``deeper`` additions each, smallest first."""
        sizes = [max(1, self.block // max(deeper, 1))]
        while count > sizes[-1] * self.longest:
            sizes.append(sizes[-1] * self.block)
        return sizes


#: For plain sums, whose cost is their reads, however often they are split.
SUMS = Chain(128, 64)
#: For register tiles, which have an accumulator in every register: each split moves all of them.
TILED = Chain(2048, 1024)


#: More instructions than any body has.
_ANY = 1 << 30


@record
class LoopRules:
    """Of kernels without packing.

    least_lanes: a vector of fewer is no faster than scalars; registers of 128 bits hold two f64,
    and two of them make up four.
    most_lanes: LLVM compiles longer vectors slowly; 64 lanes of i8 fill the widest register.
    map_columns: vectors of a map that are computed together, by the most instructions of its body:
    four hide the latency of a function, and long bodies need the registers for themselves.
    map_block: elements of the lane axis in a unit of a map: two pages of f32, which is enough work
    to start a unit for.
    row_columns: accumulators of a fold along a row, by the most instructions of its body: eight
    hide the latency of an addition at two loads a cycle.
    grid_columns: vectors of sums along the grid without a row to tile: as many streams of memory as
    a core prefetches well.
    few_vectors: up to so many vectors that are not whole pairs make one masked body instead of two.
    most_rows: of a register tile; further ones leave no register free on the largest machines.
    tile_share: of the registers, those that a tile whose rows do not divide may take; both bodies
    must leave some free, or the compiler spills.
    many_registers: from so many on, tiles of folds along rows have four rows in place of two.
    cross_block: lanes of a unit whose loads jump along the lanes: so many cache lines stay in the
    first-level cache.
    near_stride: lanes up to so many elements apart are loaded as vectors without gaps, which are
    shuffled; gathers take longer.
    member_bytes: of factors that are asked for while those before them are multiplied: with these
    they are in half of a core's cache of 1 MiB.
    least_square, square: lanes of the smallest and the largest square that is transposed in
    registers.  The largest is a vector of f32 in registers of 512 bits.
    square_points: of fewer elements squares take longer to compile than they ever save.
    seam_part: at most one part in so many of a row is peeled off at its ends: what is peeled runs
    without whole vectors.
    seam_points: kernels of fewer elements take no longer to run than the text of first and last
    rows to compile.
    seam_rows: rows so few are cut into blocks for threads, also where their ends could be peeled
    off.
    """

    least_lanes: int = 4
    most_lanes: int = 64
    map_columns: tuple[tuple[int, int], ...] = ((24, 4), (64, 2), (_ANY, 1))
    map_block: int = 2048
    row_columns: tuple[tuple[int, int], ...] = ((12, 8), (40, 4), (_ANY, 2))
    grid_columns: int = 4
    few_vectors: int = 4
    most_rows: int = 14
    tile_share: float = 0.75
    many_registers: int = 32
    cross_block: int = 64
    near_stride: int = 4
    member_bytes: int = 1 << 18
    least_square: int = 4
    square: int = 16
    square_points: int = 1 << 14
    seam_part: int = 4
    seam_points: int = 1 << 14
    seam_rows: int = 64

    def nearest(self, lanes: int) -> int:
        """How far apart so many lanes of a load may be: there are fewer vectors than lanes."""
        return min(self.near_stride, lanes - 1)


@record
class ProductRules:
    """Of products whose factors are packed.

    depth_bytes: of the inner indices of a block.  A tile of 6 rows and 16 columns then reads 22 KiB
    of panels, of the 32 KiB that a first-level cache has.  It decides the order of additions.
    even: the inner indices of a block are a multiple of this if an axis is packed along vectors:
    the lanes of f32 in the widest registers.
    least_products: with fewer, loops without packing are as fast; so with sides below `least_rows`
    or `least_depth`.
    few_rows_products: from so many on, packing pays for pairs even if there are fewer rows.
    most_joined: up to so many rows, joining pairs for each tile is faster than packing them once.
    near_bytes: up to so many of both factors, which three quarters of a core's cache of 1 MiB hold,
    loops without packing read contiguous columns as fast.
    vectors: of columns that a tile may have, in the order in which they are tried.
    pack, pack_far, read: the cost of packing an element, of packing it into a block that exceeds a
    core's cache, of reading one from panels in memory; in iterations of the innermost loop, as is
    start, the cost of starting a unit.
    shared: of the last-level cache each worker has so many times the cache of its core.
    late: what one more round of units adds: a late thread costs less if there are more to share.
    rows_at_once: inner indices of every panel that are packed before going on, to use whole cache
    lines.  patches_at_once: the same if computing the indices of a vector costs more than reading a
    few rows of it.
    unrolled: loops over inner indices are unrolled, with those inside them, up to so many
    iterations, as those of a filter of 3 by 3.
    """

    depth_bytes: int = 1024
    even: int = 16
    least_products: int = 1 << 17
    least_rows: int = 16
    least_depth: int = 16
    few_rows_products: int = 1 << 20
    most_joined: int = 128
    near_bytes: int = 3 << 18
    vectors: tuple[int, ...] = (2, 1, 3)
    pack: float = 1.0
    pack_far: float = 1.0
    read: float = 0.5
    start: int = 2000
    shared: int = 4
    late: float = 0.02
    rows_at_once: int = 8
    patches_at_once: int = 36
    unrolled: int = 12

    def tile_rows(self, vectors: int, target: Target) -> int:
        """Rows of a tile that leaves registers for a row of the right panel and one element."""
        return min((target.registers - vectors - 1) // vectors, LOOPS.most_rows)

    def lengths(self, target: Target) -> tuple[int, ...]:
        """Sizes of f32 products at which the code path changes.

        These are the sides of the first tile that is tried, the least sides, and the depth of a
        block.
        """
        vectors = self.vectors[0]
        sides = self.tile_rows(vectors, target), vectors * target.vector_bits // 32
        return tuple(sorted({*sides, self.least_rows, self.least_depth, self.depth_bytes // 4}))

    def panel_bits(self, target: Target) -> int:
        """Bits of a row of a right panel, for the first tile that is tried."""
        return self.vectors[0] * target.vector_bits


LOOPS = LoopRules()
PRODUCTS = ProductRules()

__all__ = ["LONGEST_CHAIN", "LOOPS", "PRODUCTS", "SUMS", "TILED", "Chain"]
