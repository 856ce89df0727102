"""Small programs of many: dimensions, parts of a join, inputs, outputs, branches, trips, rows of a
scan, launches.  Counts lie just past the powers of two at which tables and counters end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.dtypes import f32, i32
from bringup.graph import Builder, Value
from bringup.integers import ceil_div
from bringup.kernel.limits import Limits
from bringup.ops.build import like, reverse, rows, slice_dim, splat, sum_, transpose
from bringup.passes.base import as_results
from bringup_conformance.cases import PROGRAMS, Case, Unsupported
from bringup_conformance.execution.support import Support, reason_of
from bringup_conformance.generate.choices import Stream, pick
from bringup_conformance.generate.hazards_control import inside, loop, mixed
from bringup_conformance.generate.recipes import Recipe

Values = Sequence[Value]
#: A program of so many; what inputs it needs it makes.
Build = Callable[[Builder, int], Values]
#: Steps of a ladder: the seed takes one of each.
_RUNGS = ((5, 9, 17), (33, 65), (129, 257))
#: Dimensions that references of numpy have.
_RANK = 32
_COUNTER = i32[()]
_LINE = f32[7]


def cases(
    support: Support, limits: Limits, name: str, seed: int, *, few: bool
) -> Iterator[Case | Unsupported]:
    """A rung of each part of a ladder, the first alone where few elements are wanted."""
    choices = Stream(seed, "ladder", name)
    most = min(limits.rank, _RANK) if name == "rank" else _RUNGS[-1][-1]
    for part in _RUNGS[:1] if few else _RUNGS:
        count = min(pick(choices, part), most)
        place = f"fusion/{PROGRAMS}/f32/many-{name}-{count}"
        with Builder() as builder:
            outputs = LADDERS[name](builder, count)
        graph = builder.build(outputs, f"{name}_{count}")
        reason = reason_of(graph, support)
        if reason is not None:
            yield Unsupported(place, "fusion", PROGRAMS, "f32", reason)
            continue
        data = tuple(
            tuple(Recipe(kind, seed + turn + i) for i in range(len(graph.inputs)))
            for turn, kind in enumerate(("small", "ramp"))
        )
        yield Case(place, "fusion", PROGRAMS, "f32", graph, data, tags=("ladder", f"many-{name}"))
        if count == most:
            return


def _rank(builder: Builder, count: int) -> Values:
    """Dimensions of two among many of one, turned round and folded."""
    shape = tuple(2 if d % ceil_div(count, 6) == 0 else 1 for d in range(count))
    x, y = builder.input(f32[shape]), builder.input(f32[shape[::-1]])
    order = tuple(range(count))[::-1]
    turned = rows.sub(transpose(x, order), y)
    return turned, sum_(turned, tuple(range(1, count, 2))), reverse(x, (0, count - 1))


def _parts(builder: Builder, count: int) -> Values:
    """Pieces of a line in another order, each other one computed."""
    x = builder.input(f32[3 * count])
    pieces = [slice_dim(x, 0, 3 * n, 3 * n + 1 + n % 3) for n in range(count)]
    made = [rows.add(p, like(p, n)) if n % 2 else p for n, p in enumerate(pieces)]
    return rows.concatenate(*made[::-1], dim=0), rows.concatenate(*pieces, dim=0)


def _inputs(builder: Builder, count: int) -> Values:
    """Differences of each input and all before it."""
    total = builder.input(_LINE)
    for _ in range(count - 1):
        total = rows.sub(builder.input(_LINE), total)
    return (total,)


def _outputs(builder: Builder, count: int) -> Values:
    """A result for each number, of two sizes."""
    x = builder.input(_LINE)
    made = [rows.add(x, like(x, n)) for n in range(count)]
    return [sum_(y, (0,)) if n % 3 == 2 else y for n, y in enumerate(made)]


def _last(builder: Builder, count: int) -> Value:
    """The number before last or the last of so many, as an input says."""
    given = rows.and_(builder.input(_COUNTER), splat(1, _COUNTER))
    found: Value = rows.add(given, splat(count - 2, _COUNTER))
    return found


def _branches(builder: Builder, count: int) -> Values:
    x = builder.input(_LINE)
    made = [inside(lambda v, n=n: (rows.add(v, like(v, n)),), _LINE) for n in range(count)]
    return as_results(rows.case(_last(builder, count), x, branches=tuple(made)))


def _trips(builder: Builder, count: int) -> Values:
    """A loop that swaps and counts, as often as an input says."""

    def step(at: Value, x: Value, y: Value, total: Value) -> Values:
        after = rows.add(at, splat(1, _COUNTER))
        return after, y, mixed(x, y), rows.add(total, at)

    x, y = builder.input(_LINE), builder.input(_LINE)
    start = rows.and_(builder.input(_COUNTER), splat(1, _COUNTER))
    return loop(count, step, start, x, y, splat(0, _COUNTER))


def _rows(builder: Builder, count: int) -> Values:
    """A scan that keeps the largest row so far and how far each row is from it."""

    def step(carry: Value, x: Value) -> Values:
        after = rows.max(carry, x)
        return after, rows.sub(after, x)

    carry, stack = builder.input(_LINE), builder.input(f32[count, 7])
    attrs = {"body": inside(step, _LINE, _LINE), "length": count, "reverse": False}
    return as_results(rows.scan(carry, stack, **attrs, consts=0, carries=1))


def _launches(builder: Builder, count: int) -> Values:
    """Products of products, each of which is in memory before the next; the first is read last."""
    x = first = builder.input(f32[5, 5])
    for _ in range(count):
        product = rows.dot_general(x, first, batch=((), ()), contract=((1,), (0,)))
        x = rows.min(rows.max(product, like(x, 0)), like(x, 1))
    return rows.sub(x, first), x


LADDERS: dict[str, Build] = {
    "rank": _rank,
    "parts": _parts,
    "inputs": _inputs,
    "outputs": _outputs,
    "branches": _branches,
    "trips": _trips,
    "rows": _rows,
    "launches": _launches,
}
