"""How attention runs on an architecture: sizes, tiles, copies, and what lies in shared memory."""

from __future__ import annotations

from dataclasses import replace

from bringup.graph import Builder
from bringup.kernel import ops as kops
from bringup.kernel.contraction import Contraction, Factor
from bringup.kernel.form import Fold, Kernel, Stage
from bringup.kernel.index import Axis, Expr
from bringup.llvm.scalar import is_half
from bringup.llvm.steps.params import AttentionSizes
from bringup.records import record
from bringup_cuda.contraction.engine import sum_stride, sum_type
from bringup_cuda.contraction.layout import GAPS, Layout, Plan, plan_copy
from bringup_cuda.contraction.tiles import has_async, shared_bytes

MEMBER, QUERY, KEY, DEPTH, VALUE, LEAD = 0, 1, 2, 3, 4, 8
WARPS = (4, 1)


@record
class Cut:
    """Queries and keys of a tile, inner elements and values of a piece."""

    queries: int
    keys: int
    depth: int
    values: int


#: From the most that a block may do to what fits anywhere.
CUTS = (
    Cut(64, 64, 128, 128),
    Cut(64, 32, 128, 128),
    Cut(64, 32, 64, 64),
    Cut(32, 32, 64, 64),
    Cut(32, 32, 32, 32),
)


def _power_of_two(n: int, least: int) -> int:
    return max(least, 1 << max(n - 1, 0).bit_length())


@record
class Planned:
    """How a step runs.  plans: the copies of queries, keys and values."""

    form: AttentionSizes
    cut: Cut
    tensor: bool
    made: tuple[Contraction, Contraction]
    plans: tuple[Plan, Plan, Plan]

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * WARPS[0] * WARPS[1]

    @property
    def tiles(self) -> int:
        """Tiles of queries."""
        return -(-self.form.queries // self.cut.queries)

    @property
    def pieces(self) -> int:
        """Pieces of the values."""
        return -(-self.form.values // self.cut.values)

    @property
    def chunks(self) -> int:
        """Pieces of the depth."""
        return -(-self.form.depth // self.cut.depth)

    @property
    def powers(self) -> Layout:
        """Of powers in shared memory."""
        return Layout(self.cut.queries, self.cut.keys, self.form.wide, True, False)

    def map(self) -> Map:
        """Where things lie in shared memory."""
        kind = sum_type(self.form.wide)
        size = kind.bits // 8
        sizes = [p.layout.nbytes for p in self.plans]
        if not self.tensor:
            sizes += [self.cut.queries * sum_stride(self.cut.keys, kind) * size]
            sizes += [self.powers.nbytes]
        places = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        results = self.cut.queries * sum_stride(self.cut.values, kind) * size
        factors = max(places[-1], results)
        end = factors + self.cut.queries * size
        return Map(places[0], places[1], places[2], places[3], places[-2], factors, end)


@record
class Map:
    """Offsets into shared memory; results go where everything before the factors was, and powers
    and scores are there only where no register holds them.
    """

    queries: int
    keys: int
    values: int
    scores: int
    powers: int
    factors: int
    nbytes: int


def plan_attention(form: AttentionSizes, architecture: str) -> Planned:
    """How to run attention of these sizes."""
    least, tensor = shared_bytes(architecture), _has_tensor(form, architecture)
    for most in CUTS:
        cut = Cut(
            most.queries,
            most.keys,
            min(most.depth, _power_of_two(form.depth, 16)),
            min(most.values, _power_of_two(form.values, 32)),
        )
        if form.queries <= 32 < cut.queries and most is not CUTS[-1] and not tensor:
            continue
        planned = _planned(form, cut, architecture)
        if planned is not None and planned.map().nbytes <= least // 2:
            return planned
    planned = _planned(form, cut, architecture)
    assert planned is not None, "the smallest cut fits every architecture"
    return planned


def _planned(form: AttentionSizes, cut: Cut, architecture: str) -> Planned | None:
    later, tensor = has_async(architecture), _has_tensor(form, architecture)
    if tensor and cut.queries != 16 * WARPS[0]:
        return None
    products = _products(form), _weighed(form)
    sides = (
        (products[0], products[0].left, (cut.queries, cut.depth)),
        (products[0], products[0].right, (cut.keys, cut.depth)),
        (products[1], products[1].right, (cut.values, cut.keys)),
    )
    queries, keys, values = (
        plan_copy(m, f, f.narrow, s, tensor=tensor, later=later) for m, f, s in sides
    )
    if tensor and not is_half(form.dtype):
        # Words of every second line are read at once.
        values = replace(values, layout=replace(values.layout, gap=GAPS[0]))
    return Planned(form, cut, tensor, products, (queries, keys, values))


def _has_tensor(form: AttentionSizes, architecture: str) -> bool:
    """Whether tensor cores multiply: halves, and f32 that asks for tf32; a single value is read
    along the keys, which is not how its fragments lie.
    """
    asked = form.precision == "tf32" and form.values > 1
    return has_async(architecture) and (is_half(form.dtype) or asked)


def _factors(form: AttentionSizes, inner: Axis, *sides: tuple[int, Expr, Axis]) -> Contraction:
    """Two loads as the factors of a contraction."""
    builder = Builder()
    with builder:
        loads = [kops.load(buffer=n, dtype=form.dtype, index=index) for n, index, _ in sides]
    stage = Stage((inner,), builder.build(loads, "factors"), ())
    kernel = Kernel("attention", (), (), (stage,))
    left, right = (Factor(v, v, (s[2],)) for v, s in zip(loads, sides, strict=True))
    return Contraction(kernel, (), left, right, (inner,), Fold("add", form.wide, True), {})


def _products(form: AttentionSizes) -> Contraction:
    """Scores: queries and keys over the depth."""
    query, key = Axis(QUERY, form.queries), Axis(KEY, form.keys)
    depth = Axis(DEPTH, form.depth)
    return _factors(
        form,
        depth,
        (0, rows_index(form, query, depth), query),
        (1, rows_index(form, key, depth), key),
    )


def _weighed(form: AttentionSizes) -> Contraction:
    """Results: the powers, which no load gives, and values over the keys."""
    key, value = Axis(KEY, form.keys), Axis(VALUE, form.values)
    index = rows_index(form, key, value)
    return _factors(form, key, (2, index, key), (2, index, value))


def rows_index(form: AttentionSizes, row: Axis, column: Axis) -> Expr:
    """Where an element of a row-major member of the batch is."""
    member = Expr.of(Axis(MEMBER, form.batch)) * (row.size * column.size)
    return member + Expr.of(row) * column.size + Expr.of(column)
