"""How attention runs on an architecture: tiles, copies, and the layout of shared memory."""

from __future__ import annotations

from dataclasses import replace

from bringup.graph import Builder
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.kernel import ops as kops
from bringup.kernel.contraction import Contraction, Factor
from bringup.kernel.form import Fold, Kernel, Stage
from bringup.llvm.scalar import is_half
from bringup.records import record
from bringup_cuda.codegen.contraction.attention_params import AttentionParams
from bringup_cuda.codegen.contraction.staging import GAPS, CopyPlan, TileLayout, plan_copy
from bringup_cuda.codegen.contraction.tiles import (
    has_async_copies,
    shared_bytes,
    sum_stride,
    sum_type,
)
from bringup_cuda.targets import WARP

#: Numbers of the axes; those of the batch's own dimensions start at `LEAD`.
MEMBER, QUERY, KEY, DEPTH, VALUE, LEAD = 0, 1, 2, 3, 4, 8
WARPS = (4, 1)
THREADS = WARP * WARPS[0] * WARPS[1]


@record
class AttentionTile:
    """Queries and keys of a tile, and the most inner elements and values that a block takes."""

    queries: int
    keys: int
    depth: int
    values: int


#: From the largest tile to one that fits any architecture.
TILES = (
    AttentionTile(64, 64, 128, 128),
    AttentionTile(64, 32, 128, 128),
    AttentionTile(64, 32, 64, 64),
    AttentionTile(32, 32, 64, 64),
    AttentionTile(32, 32, 32, 32),
)


@record
class SharedMap:
    """Offsets into shared memory.

    Results lie where all but the factors of rows was before.  Scores and probabilities are there
    only if they are not in registers.
    """

    queries: int
    keys: int
    values: int
    scores: int
    probabilities: int
    factors: int
    nbytes: int


@record
class AttentionPlan:
    """How a step runs.

    tensor: whether tensor cores multiply.
    contractions: queries times keys, and probabilities times values.
    copies: of queries, keys and values.
    """

    sizes: AttentionParams
    tile: AttentionTile
    tensor: bool
    contractions: tuple[Contraction, Contraction]
    copies: tuple[CopyPlan, CopyPlan, CopyPlan]

    @property
    def query_tiles(self) -> int:
        """Tiles of queries."""
        return ceil_div(self.sizes.queries, self.tile.queries)

    @property
    def value_tiles(self) -> int:
        """Tiles of values."""
        return ceil_div(self.sizes.values, self.tile.values)

    @property
    def depth_steps(self) -> int:
        """Parts of the depth that are multiplied one after another."""
        return ceil_div(self.sizes.depth, self.tile.depth)

    @property
    def probabilities(self) -> TileLayout:
        """The layout of probabilities in shared memory."""
        return TileLayout(self.tile.queries, self.tile.keys, self.sizes.wide, True, False)

    def shared_map(self) -> SharedMap:
        """The layout of shared memory."""
        sums_type = sum_type(self.sizes.wide)
        itemsize = sums_type.bits // 8
        sizes = [copy.layout.nbytes for copy in self.copies]
        if not self.tensor:
            sizes += [self.tile.queries * sum_stride(self.tile.keys, sums_type) * itemsize]
            sizes += [self.probabilities.nbytes]
        offsets = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        results = self.tile.queries * sum_stride(self.tile.values, sums_type) * itemsize
        factors = max(offsets[-1], results)
        end = factors + self.tile.queries * itemsize
        queries, keys, values, scores = offsets[:4]
        return SharedMap(queries, keys, values, scores, offsets[-2], factors, end)


def plan_attention(sizes: AttentionParams, architecture: str) -> AttentionPlan:
    """How to run attention of these sizes."""
    available, tensor = shared_bytes(architecture), _uses_tensor_cores(sizes, architecture)
    for largest in TILES:
        tile = replace(
            largest,
            depth=min(largest.depth, _power_of_two(sizes.depth, 16)),
            values=min(largest.values, _power_of_two(sizes.values, 32)),
        )
        is_last = largest is TILES[-1]
        if sizes.queries <= 32 < tile.queries and not is_last and not tensor:
            continue
        plan = _plan(sizes, tile, architecture)
        if plan is not None and (plan.shared_map().nbytes <= available // 2 or is_last):
            return plan
    raise AssertionError("the smallest tile fits every architecture")


def _power_of_two(n: int, least: int) -> int:
    return max(least, ceil_power_of_two(n))


def _plan(sizes: AttentionParams, tile: AttentionTile, architecture: str) -> AttentionPlan | None:
    async_copies, tensor = has_async_copies(architecture), _uses_tensor_cores(sizes, architecture)
    if tensor and tile.queries != 16 * WARPS[0]:
        return None
    scores, results = contractions = _scores(sizes), _results(sizes)
    queries, keys, values = (
        plan_copy(c, f, f.narrow, size, tensor=tensor, async_copies=async_copies)
        for c, f, size in (
            (scores, scores.left, (tile.queries, tile.depth)),
            (scores, scores.right, (tile.keys, tile.depth)),
            (results, results.right, (tile.values, tile.keys)),
        )
    )
    if tensor and not is_half(sizes.dtype):
        # Words of every second line are read at once.
        values = replace(values, layout=replace(values.layout, gap=GAPS[0]))
    return AttentionPlan(sizes, tile, tensor, contractions, (queries, keys, values))


def _uses_tensor_cores(sizes: AttentionParams, architecture: str) -> bool:
    """Whether tensor cores multiply: f16, bf16, and f32 where tf32 is asked for.

    A single value is read along the keys, which is not how fragments lie.
    """
    tf32 = sizes.precision == "tf32" and sizes.values > 1
    return has_async_copies(architecture) and (is_half(sizes.dtype) or tf32)


def _contraction(
    sizes: AttentionParams, inner: Axis, *sides: tuple[int, Axis, Axis]
) -> Contraction:
    """Two loads as the factors of a contraction; each side has a buffer, an outer axis, and the
    axis that its rows run along.
    """
    builder = Builder()
    with builder:
        loads = [
            kops.load(buffer=n, dtype=sizes.dtype, index=row_major_index(sizes, row, column))
            for n, row, column in sides
        ]
    stage = Stage((inner,), builder.build(loads, "factors"), ())
    kernel = Kernel("attention", (), (), (stage,))
    outer = [row if column == inner else column for _, row, column in sides]
    left, right = (Factor(v, v, (axis,)) for v, axis in zip(loads, outer, strict=True))
    return Contraction(kernel, (), left, right, (inner,), Fold("add", sizes.wide, True))


def _scores(sizes: AttentionParams) -> Contraction:
    """Scores: queries times keys, summed over the depth."""
    query, key = Axis(QUERY, sizes.queries), Axis(KEY, sizes.keys)
    depth = Axis(DEPTH, sizes.depth)
    return _contraction(sizes, depth, (0, query, depth), (1, key, depth))


def _results(sizes: AttentionParams) -> Contraction:
    """Results: probabilities, which no load gives, times values, summed over the keys."""
    key, value = Axis(KEY, sizes.keys), Axis(VALUE, sizes.values)
    return _contraction(sizes, key, (2, key, value), (2, key, value))


def row_major_index(sizes: AttentionParams, row: Axis, column: Axis) -> Expr:
    """The index of an element of a row-major matrix of the batch."""
    member = Expr.of(Axis(MEMBER, sizes.batch)) * (row.size * column.size)
    return member + Expr.of(row) * column.size + Expr.of(column)
