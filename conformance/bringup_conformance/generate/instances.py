"""Operand types and attributes with which each row of the op table is checked, drawn round the
device's boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bringup.backend.capabilities import Shapes
from bringup.dtypes import STORED, DType, bool_, f32, f64, i32, i64, u8
from bringup.graph import Graph, Literal
from bringup.ops.monoids import MONOIDS
from bringup.ops.table import REQUIRED, Kind, OpDef, Trait
from bringup.types import TensorType
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import chance, pick
from bringup_conformance.generate.contractions import MAKERS as CONTRACTIONS
from bringup_conformance.generate.control import MAKERS as CONTROL
from bringup_conformance.generate.drawing import (
    ANY,
    FOLDS,
    MOVES,
    NORMS,
    Drawing,
    Maker,
    instance,
    results_of,
    valid,
)
from bringup_conformance.generate.indexed import MAKERS as INDEXED
from bringup_conformance.generate.matrices import MAKERS as MATRICES
from bringup_conformance.generate.networks import MAKERS as NETWORKS
from bringup_conformance.generate.orders import MAKERS as ORDERS
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.generate.sizes import LARGE, far_size

#: What folds that keep an extreme are sensitive to.
EXTREMES = ("negative", "near", "signed", "ties", "special", "onehot", "nans", "extremes")
#: Sizes that are no multiples of each other.
_PRIMES = (3, 5, 7, 11, 13, 2, 17)
_COMPARED = ("ties", "special", "near", "nans", "signed", "extremes")

Sites = Iterator[tuple[tuple[tuple[int, ...], ...], dict[str, Any]]]


def instances(
    row: OpDef, dtype: DType, shapes: Shapes, seed: int, *, few: bool = False
) -> list[Instance]:
    """What to check of a row whose leading operand (or result, for sources) has this dtype.

    few: fewer sizes, for a device that takes long over each.  Empty if the row takes no such
    operands or the suite has none for it.
    """
    draw, maker = Drawing(shapes, seed, row, dtype, few), _maker_of(row)
    drawn = [each for each in maker.make(row, draw) if valid(row, each)]
    near = [each for each in drawn if not each.far]
    if draw.first and row.attrs:
        drawn += _resized(row, near)
    if not few and maker.longest != 0:
        drawn += _stretched(row, draw, near, maker.longest)
    return drawn


def _maker_of(row: OpDef) -> Maker:
    """The maker of a row: its own, else what its attributes ask for."""
    if row.name in _MAKERS:
        return _MAKERS[row.name]
    if row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits:
        return Maker(_same_types, longest=0)
    if [a.name for a in row.attrs if a.default is REQUIRED] == ["dims"]:
        return Maker(_rows if row.arity == 1 else _scaled_rows)
    if _gives_positions(row):
        return Maker(_position)
    return Maker(_same_types)


def _gives_positions(row: OpDef) -> bool:
    """Whether a row looks along one dimension for a position, whose dtype may be chosen."""
    return [(a.name, a.kind) for a in row.attrs] == [("dim", "int"), ("dtype", "dtype")]


def _resized(row: OpDef, near: Sequence[Instance]) -> Iterator[Instance]:
    """The first instance that can be so with all sizes equal, and the first with primes for sizes,
    other ones for other sizes.
    """
    ranked = [i for i in near if max((t.rank for t in i.operands), default=0) > 1]
    for equal in (True, False):
        for each in ranked:
            sizes = dict.fromkeys(n for t in each.operands for n in t.shape if n > 1)
            table = {n: 5 if equal else p for n, p in zip(sizes, _PRIMES, strict=False)}
            types = tuple(_with_sizes(t, table) for t in each.operands)
            other = Instance(types, each.attrs, each.kinds)
            if types != each.operands and valid(row, other):
                yield other
                break


def _with_sizes(type_: TensorType, table: dict[int, int]) -> TensorType:
    return type_.with_shape(tuple(table.get(n, n) for n in type_.shape))


def _variants(row: OpDef) -> list[dict[str, Any]]:
    """Every choice of the row's attributes that have choices, one at a time."""
    chosen = [a for a in row.attrs if a.choices]
    if not chosen:
        return [{}]
    first = {a.name: a.choices[0] for a in chosen}
    return [{**first, a.name: choice} for a in chosen for choice in a.choices]


def _same_types(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Operands and result of one type: the elementwise ops, and any row the suite does not know."""
    if not row.arity:
        return
    for attrs in _variants(row):
        for size in draw.sizes(3 if draw.few else 5):
            yield instance([draw.dtype[size]] * row.arity, attrs, ANY)
    yield instance([draw.dtype[()]] * row.arity, _variants(row)[-1], ANY)
    if draw.few:
        return
    yield instance([draw.dtype[3, draw.vector + 1]] * row.arity, _variants(row)[0], ANY)
    if draw.main or draw.dtype in (f64, row.dtypes[0]):
        # References of f64 take long: past every block, but only others past a 16-bit counter.
        size = LARGE[1] if draw.dtype is f64 else LARGE[2]
        yield instance([draw.dtype[size]] * row.arity, _variants(row)[0], ANY)


def _select(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for dtype in STORED:
        size = pick(draw.choices, draw.sizes(5))
        yield instance([draw.dtype[size], dtype[size], dtype[size]], {}, MOVES)


def _compare(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for attrs in _variants(row):
        size = pick(draw.choices, draw.sizes(5))
        yield instance([draw.dtype[size]] * 2, attrs, _COMPARED)


def _convert(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    short = draw.dtype.bits == 8 or (draw.dtype.is_float and draw.dtype.bits == 16)
    for target in STORED:
        if short and draw.dtype is not bool_ and not (draw.few and draw.dtype.bits > 8):
            yield instance([draw.dtype[1 << draw.dtype.bits]], {"dtype": target}, ("every",))
        size = pick(draw.choices, draw.sizes(5))
        yield instance(
            [draw.dtype[size]],
            {"dtype": target},
            ("signed", "nans", "wide", "special", "small", "extremes"),
        )
        if target.is_float and draw.dtype.bits >= 32:
            yield instance([draw.dtype[4 * draw.vector + 1]], {"dtype": target}, ("halfway",))


def _bitcast(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for target in STORED:
        size = pick(draw.choices, draw.sizes(5))
        yield instance([draw.dtype[size]], {"dtype": target}, ("signed", "nans"))


def _iota(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    w = draw.vector
    for shape in ((LARGE[0],), (w, w), (3, w + 1), (2, 3, 5), (0,), (300, 3), (65_537,)):
        for dim in range(len(shape)):
            yield instance([], {"type": draw.dtype[shape], "dim": dim}, ())


def _constant(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for shape, kind in (
        ((draw.vector + 1,), "ramp"),
        ((3, 4), "special"),
        ((5,), "constant"),
        ((), "ramp"),
    ):
        type_ = draw.dtype[shape]
        yield instance([], {"value": Literal(Recipe(kind).make(type_), type_)}, ())


def _no_more(_draw: Drawing) -> Sites:
    return iter(())


def _drawn_transposes(draw: Drawing) -> Sites:
    for rank in (3, 4):
        left = list(range(rank))
        order = [left.pop(draw.choices.integer(0, len(left) - 1)) for _ in range(rank)]
        yield (draw.shape(rank),), {"permutation": tuple(order)}


def _drawn_broadcasts(draw: Drawing) -> Sites:
    for rank in (2, 3, 4):
        shape = draw.shape(rank)
        dims = draw.some(rank)
        # A dimension of 1 stretches.
        small = tuple(1 if chance(draw.choices, 1, 4) else shape[d] for d in dims)
        yield (small,), {"shape": shape, "dims": dims}


def _drawn_slices(draw: Drawing) -> Sites:
    for rank in (1, 2, 3):
        shape = draw.shape(rank)
        start, limit, stride = [], [], []
        for n in shape:
            first = draw.choices.integer(0, n // 2)
            last = draw.choices.integer(first, n)
            step = pick(draw.choices, (1, 2, 3, -1, -2))
            start.append(first if step > 0 else max(last - 1, 0))
            limit.append(last if step > 0 else min(first, last) - 1)
            stride.append(step)
        yield (shape,), {"start": tuple(start), "limit": tuple(limit), "stride": tuple(stride)}


def _drawn_joins(draw: Drawing) -> Sites:
    for rank in (1, 2, 3):
        shape, dim = draw.shape(rank), draw.choices.integer(0, rank - 1)
        sizes = [pick(draw.choices, (1, 2, draw.vector, draw.vector + 1, 0)) for _ in range(3)]
        parts = tuple((*shape[:dim], n, *shape[dim + 1 :]) for n in sizes)
        yield parts, {"dim": dim}


def _moves(
    sites: Callable[[int], Sites], drawn: Callable[[Drawing], Sites] = _no_more
) -> Callable[[OpDef, Drawing], Iterator[Instance]]:
    def make(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
        for shapes, attrs in (*sites(draw.vector), *drawn(draw)):
            yield instance([draw.dtype[shape] for shape in shapes], attrs, MOVES)

    return make


def _reshape(w: int) -> Sites:
    yield ((6, w),), {"shape": (2, 3 * w)}
    yield ((w + 1,),), {"shape": (1, w + 1, 1)}
    yield ((),), {"shape": (1, 1)}
    yield ((0, 3),), {"shape": (0,)}


def _transpose(w: int) -> Sites:
    yield ((w, w),), {"permutation": (1, 0)}
    yield ((3, w + 1),), {"permutation": (1, 0)}
    yield ((2 * w + 1, 33),), {"permutation": (1, 0)}
    yield ((2, 3, 5),), {"permutation": (2, 0, 1)}
    yield ((4, 4, 4),), {"permutation": (0, 2, 1)}
    yield ((2, 1, 3, 4),), {"permutation": (3, 1, 0, 2)}


def _broadcast(w: int) -> Sites:
    yield ((w,),), {"shape": (w, w), "dims": (0,)}
    yield ((w,),), {"shape": (w, w), "dims": (1,)}
    yield ((2, 4, 1),), {"shape": (2, 4, w + 1), "dims": (0, 1, 2)}
    yield ((1, 5),), {"shape": (3, 4, 5), "dims": (0, 2)}
    yield ((),), {"shape": (w + 1,), "dims": ()}
    yield ((1,),), {"shape": (0,), "dims": (0,)}
    yield ((5,),), {"shape": (5, 3, 5), "dims": (2,)}
    yield ((5,),), {"shape": (5, 5, 5), "dims": (1,)}


def _slice(w: int) -> Sites:
    yield ((2 * w + 5,),), {"start": (3,), "limit": (2 * w + 4,), "stride": (1,)}
    yield ((w + 2,),), {"start": (1,), "limit": (w + 2,), "stride": (3,)}
    yield ((w + 3,),), {"start": (w + 2,), "limit": (0,), "stride": (-2,)}
    yield ((3, w, 5),), {"start": (2, w - 1, 4), "limit": (-1, -1, -1), "stride": (-1, -1, -1)}
    yield ((4, 4),), {"start": (1, 2), "limit": (3, 4), "stride": (1, 1)}
    yield ((5,),), {"start": (2,), "limit": (2,), "stride": (1,)}


def _pad(w: int) -> Sites:
    yield ((w,), ()), {"lo": (1,), "hi": (2,), "interior": (0,)}
    yield ((w + 3,), ()), {"lo": (-2,), "hi": (-1,), "interior": (0,)}
    yield ((3, w), ()), {"lo": (0, 1), "hi": (2, 0), "interior": (1, 2)}
    yield ((4, 5), ()), {"lo": (-1, 2), "hi": (1, -3), "interior": (2, 0)}
    yield ((0,), ()), {"lo": (2,), "hi": (1,), "interior": (4,)}


def _concatenate(w: int) -> Sites:
    yield ((w,), (3,)), {"dim": 0}
    yield ((3, w), (3, 1), (3, 0), (3, w + 1)), {"dim": 1}
    yield ((2, 5), (w, 5)), {"dim": 0}
    yield ((7,),), {"dim": 0}


def _folds(w: int, block: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    yield (w + 1,), (0,)
    yield (33, 2 * w + 1), (1,)
    yield (2 * w + 1, 33), (0,)
    yield (4, 7, 5), (0, 2)
    yield (3, 5, w), (1,)
    yield (5, w - 1), (0, 1)
    yield (0, 3), (0,)
    yield (block + 1,), (0,)
    yield (), ()


def _reduce(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    sites = list(_folds(draw.vector, draw.shapes.block))
    for variant in _variants(row):
        kind = variant["kind"]
        data = FOLDS.get(kind, EXTREMES)
        for number in range(5):
            shape, dims = sites[(number * 2 + draw.choices.integer(0, 1)) % len(sites)]
            yield instance([draw.dtype[shape]], {"kind": kind, "dims": dims}, data)
        rank = draw.choices.integer(2, 4)
        attrs_drawn = {"kind": kind, "dims": draw.some(rank)}
        yield instance([draw.dtype[draw.shape(rank)]], attrs_drawn, data)
        if MONOIDS[kind].derivative is None:
            # What comes after the first block decides.
            attrs = {"kind": kind, "dims": (0,)}
            yield instance([draw.dtype[2 * draw.shapes.block + 1]], attrs, ("last", "gap"))
        if kind in row.tier0_variants and draw.dtype.is_float:
            yield instance([draw.dtype[LARGE[1]]], {"kind": kind, "dims": (0,)}, data)
        if kind == "add" and draw.dtype in (f32, i32):
            yield instance([draw.dtype[LARGE[2]]], {"kind": kind, "dims": (0,)}, data)


def _rows(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    w = draw.vector
    for shape, dims in (
        ((5, 2 * w + 1), (1,)),
        ((33, 4), (0,)),
        ((3, 4, 5), (0, 2)),
        ((draw.shapes.block + 1,), (0,)),
    ):
        yield instance(
            [draw.dtype[shape]],
            {"dims": dims},
            ("signed", "large", "ramp", "negative", "ties", "special"),
        )
    rank = draw.choices.integer(2, 4)
    yield instance([draw.dtype[draw.shape(rank)]], {"dims": draw.some(rank)}, ("signed", "ramp"))


def _scaled_rows(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Rows, columns and parts in between, with operands that scale and shift each row."""
    assert row.arity is not None
    for shape, dims in (((5, 2 * draw.vector + 1), (1,)), ((4, 33), (0,)), ((2, 3, 5), (1, 2))):
        scale = draw.dtype[tuple(shape[d] for d in dims)]
        operands = [draw.dtype[shape], *[scale] * (row.arity - 1)]
        yield instance(operands, {"dims": dims}, NORMS)


def _position(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for shape, dim in (((5, 2 * draw.vector + 1), 1), ((33, 4), 0), ((draw.vector * 9,), 0)):
        for dtype in (i64, i32):
            yield instance(
                [draw.dtype[shape]],
                {"dim": dim, "dtype": dtype},
                ("ties", "near", "signed", "negative", "special", "nans", "extremes"),
            )


def _one_hot(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for target in (f32, i64, bool_, u8):
        yield instance(
            [draw.dtype[draw.vector + 1]],
            {"size": 5, "dtype": target},
            ("small", "ramp", "special"),
        )
    yield instance([draw.dtype[257]], {"size": 300, "dtype": f32}, ("ramp", "small"))


#: The ops whose operands or attributes follow from no other column of their rows.
_MAKERS: dict[str, Maker] = {
    "constant": Maker(_constant),
    "select": Maker(_select, longest=0),
    "compare": Maker(_compare, longest=0),
    "convert": Maker(_convert, longest=0),
    "bitcast": Maker(_bitcast, longest=0),
    "iota": Maker(_iota),
    "reshape": Maker(_moves(_reshape)),
    "transpose": Maker(_moves(_transpose, _drawn_transposes)),
    "broadcast_in_dim": Maker(_moves(_broadcast, _drawn_broadcasts)),
    "slice": Maker(_moves(_slice, _drawn_slices)),
    "pad": Maker(_moves(_pad)),
    "concatenate": Maker(_moves(_concatenate, _drawn_joins)),
    "reduce": Maker(_reduce),
    "one_hot": Maker(_one_hot),
    **CONTRACTIONS,
    **CONTROL,
    **INDEXED,
    **NETWORKS,
    **ORDERS,
    **MATRICES,
}


# -- far instances ---------------------------------------------------------------------------------
# One far size for each row and dtype: the longest dimension of an instance stretched to a power of
# two, or one beside it, past blocks, chunks and narrow counters.

#: Longest dimensions, as exponents of two: of rows and dtypes for which they are worth their price,
#: of others, and of rows that take long.
_LONGEST, _LONGEST_BRIEF, _LONGEST_EXPENSIVE = 20, 17, 16
#: For rows that return positions: narrow ones end at 256 and 65,536, and extremes lie at the ends.
_COUNTERS = (8, 17)
_AT_ENDS = ("ramp", "falling", "signed")
#: Sizes below are dimension numbers and windows as often as sizes.
_LEAST_FAR = 9
#: Elements of all other dimensions together, and of any operand or result.
_BESIDE, _MOST_FAR_ELEMENTS = 16, 1 << 21
#: Bytes of all operands and results together: devices of some megabytes are to run them too.
_MOST_FAR_BYTES = 1 << 24


def _stretched(
    row: OpDef, draw: Drawing, near: Sequence[Instance], longest: int | None
) -> Iterator[Instance]:
    """Far instances made of those at hand."""
    fitting = [each for each in near if _fits(each)]
    if not fitting:
        return
    if longest is None:
        longest = _LONGEST if draw.far else _LONGEST_BRIEF
        longest = _LONGEST_EXPENSIVE if Trait.EXPENSIVE in row.traits else longest
    positions = _gives_positions(row)
    sizes = [far_size(draw.choices, min(8, longest - 2), longest)]
    if positions:
        sizes += [far_size(draw.choices, k, k) for k in _COUNTERS]
    for size in sizes:
        longer = [_longer(each, size) for each in fitting]
        small = [each for each in longer if _affordable(row, each)]
        if small:
            chosen = pick(draw.choices, small)
            yield replace(chosen, kinds=_AT_ENDS) if positions else chosen


def _fits(instance: Instance) -> bool:
    """Whether one size alone is long, along which the row works if its attributes say along which;
    and no product of many numbers or sub-graph is asked for.
    """
    attrs: dict[str, Any] = dict(instance.attrs)
    longest = _longest(instance)
    if longest < _LEAST_FAR or attrs.get("kind") == "mul":
        return False
    if any(isinstance(value, Graph) for value in attrs.values()):
        return False
    shape, named = instance.operands[0].shape, attrs.get("dims", (attrs.get("dim"),))
    along = [shape[d] for d in named if isinstance(d, int) and d < len(shape)]
    if along and longest not in along:
        return False
    return all(t.size <= _BESIDE * longest ** t.shape.count(longest) for t in instance.operands)


def _affordable(row: OpDef, instance: Instance) -> bool:
    """Whether the row takes an instance whose operands and results are not too large."""
    results = results_of(row, instance)
    if results is None:
        return False
    types = (*instance.operands, *(value.type for value in results))
    fits = sum(type_.nbytes for type_ in types) <= _MOST_FAR_BYTES
    return fits and all(type_.size <= _MOST_FAR_ELEMENTS for type_ in types)


def _longest(instance: Instance) -> int:
    return max((n for t in instance.operands for n in t.shape), default=0)


def _longer(instance: Instance, size: int) -> Instance:
    """The instance with another size in the place of its longest one, wherever that stands."""
    longest = _longest(instance)

    def swapped(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(swapped, value))
        return size if value == longest and type(value) is int else value

    operands = tuple(
        TensorType(tuple(size if n == longest else n for n in t.shape), t.dtype)
        for t in instance.operands
    )
    attrs = tuple((name, swapped(value)) for name, value in instance.attrs)
    return replace(instance, operands=operands, attrs=attrs, far=True)
