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
from bringup.ops.table import Kind, OpDef, Trait
from bringup.types import TensorType
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import Stream, chance, pick
from bringup_conformance.generate.contractions import MAKERS as CONTRACTIONS
from bringup_conformance.generate.control import MAKERS as CONTROL
from bringup_conformance.generate.indexed import MAKERS as INDEXED
from bringup_conformance.generate.matrices import MAKERS as MATRICES
from bringup_conformance.generate.networks import MAKERS as NETWORKS
from bringup_conformance.generate.orders import MAKERS as ORDERS
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.generate.sizes import LARGE, draw_shape, far_size, strata
from bringup_conformance.generate.twins import resized, results_of, valid

#: Kinds of data by what an op is sensitive to.
ANY = (
    "signed", "wide", "special", "positive", "near",
    "small", "nans", "negative", "extremes", "ties", "large", "tiny",
)  # fmt: skip
SUMS = ("small", "signed", "large", "ramp", "negative", "onehot", "special")
PRODUCTS = ("units", "positive", "onehot", "special")
EXTREMES = ("negative", "near", "signed", "ties", "special", "onehot", "nans", "extremes")
MOVES = ("ramp", "nans", "special")
_COMPARED = ("ties", "special", "near", "nans", "signed", "extremes")

Sites = Iterator[tuple[tuple[tuple[int, ...], ...], dict[str, Any]]]


class Drawing:
    """Which boundary sizes one (row, dtype) gets: all of them over the dtypes, a few each."""

    def __init__(self, shapes: Shapes, seed: int, row: OpDef, dtype: DType, few: bool) -> None:
        self.shapes = shapes
        self.dtype = dtype
        self.few = few
        self.choices = Stream(seed, "instances", row.name, dtype.name)
        #: Whether this is the dtype that a dear row gets all of its instances with.
        self.main = dtype is (f32 if f32 in row.dtypes else row.dtypes[0])
        self.first = few or self.main or dtype is row.dtypes[0]
        self.offset = seed + row.dtypes.index(dtype)
        #: Whether sizes past every block are worth their price: also on a dtype that the seed
        #: chooses.
        self.far = not few and (self.main or self.offset % len(row.dtypes) == 0)

    def sizes(self, count: int) -> list[int]:
        """Boundary lengths, one of each of the first strata; for dtypes that come later, one round
        the vector, and half of the others in turn.
        """
        found = [pick(self.choices, stratum) for stratum in strata(self.shapes)[:count]]
        if not self.first:
            found = [n for i, n in enumerate(found) if i == 0 or (i + self.offset) % 2]
        return list(dict.fromkeys(found))

    def shape(self, rank: int) -> tuple[int, ...]:
        """A shape of boundary sizes."""
        return draw_shape(self.choices, self.shapes, rank=rank, limit=2048)

    def some(self, rank: int) -> tuple[int, ...]:
        """Some of the dimensions, at least one."""
        found = tuple(d for d in range(rank) if chance(self.choices, 1, 2))
        return found or (self.choices.integer(0, rank - 1),)

    @property
    def vector(self) -> int:
        """Elements of the device's vector."""
        return self.shapes.vector


def instances(
    row: OpDef, dtype: DType, shapes: Shapes, seed: int, *, few: bool = False
) -> list[Instance]:
    """What to check of a row whose leading operand (or result, for sources) has this dtype.

    few: fewer sizes, for a device that takes long over each.  Empty if the row takes no such
    operands or the suite has none for it.
    """
    draw = Drawing(shapes, seed, row, dtype, few)
    maker = _MAKERS.get(row.name)
    if maker is not None:
        found = list(maker(row, draw))
    elif row.arity is not None and row.arity > 0:
        found = list(_same_types(row, draw))
    else:
        found = []
    found = [each for each in found if valid(row, each)]
    near = [each for each in found if not each.far]
    if draw.first and row.attrs:
        found += resized(row, near)
    if not few:
        found += _stretched(row, draw, near)
    return found


def _variants(row: OpDef) -> list[dict[str, Any]]:
    """Every choice of the row's attributes that have choices, one at a time."""
    chosen = [a for a in row.attrs if a.choices]
    if not chosen:
        return [{}]
    first = {a.name: a.choices[0] for a in chosen}
    return [{**first, a.name: choice} for a in chosen for choice in a.choices]


def _same_types(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Operands and result of one type: the elementwise ops, and any row the suite does not know."""
    assert row.arity is not None
    for attrs in _variants(row):
        for size in draw.sizes(3 if draw.few else 5):
            yield _instance([draw.dtype[size]] * row.arity, attrs, ANY)
    yield _instance([draw.dtype[()]] * row.arity, _variants(row)[-1], ANY)
    if draw.few:
        return
    yield _instance([draw.dtype[3, draw.vector + 1]] * row.arity, _variants(row)[0], ANY)
    if draw.main or draw.dtype in (f64, row.dtypes[0]):
        # References of f64 take long: past every block, but only others past a 16-bit counter.
        size = LARGE[1] if draw.dtype is f64 else LARGE[2]
        yield _instance([draw.dtype[size]] * row.arity, _variants(row)[0], ANY)


def _instance(
    operands: list[TensorType], attrs: dict[str, Any], kinds: tuple[str, ...]
) -> Instance:
    return Instance(tuple(operands), tuple(attrs.items()), kinds)


def _select(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for dtype in STORED:
        size = pick(draw.choices, draw.sizes(5))
        yield _instance([draw.dtype[size], dtype[size], dtype[size]], {}, MOVES)


def _compare(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for attrs in _variants(row):
        size = pick(draw.choices, draw.sizes(5))
        yield _instance([draw.dtype[size]] * 2, attrs, _COMPARED)


def _convert(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    short = draw.dtype.bits == 8 or (draw.dtype.is_float and draw.dtype.bits == 16)
    for target in STORED:
        if short and draw.dtype is not bool_ and not (draw.few and draw.dtype.bits > 8):
            yield _instance([draw.dtype[1 << draw.dtype.bits]], {"dtype": target}, ("every",))
        size = pick(draw.choices, draw.sizes(5))
        yield _instance(
            [draw.dtype[size]],
            {"dtype": target},
            ("signed", "nans", "wide", "special", "small", "extremes"),
        )
        if target.is_float and draw.dtype.bits >= 32:
            yield _instance([draw.dtype[4 * draw.vector + 1]], {"dtype": target}, ("halfway",))


def _bitcast(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for target in STORED:
        size = pick(draw.choices, draw.sizes(5))
        yield _instance([draw.dtype[size]], {"dtype": target}, ("signed", "nans"))


def _iota(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    w = draw.vector
    for shape in ((LARGE[0],), (w, w), (3, w + 1), (2, 3, 5), (0,), (300, 3), (65_537,)):
        for dim in range(len(shape)):
            yield _instance([], {"type": draw.dtype[shape], "dim": dim}, ())


def _constant(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for shape, kind in (
        ((draw.vector + 1,), "ramp"),
        ((3, 4), "special"),
        ((5,), "constant"),
        ((), "ramp"),
    ):
        type_ = draw.dtype[shape]
        yield _instance([], {"value": Literal(Recipe(kind).make(type_), type_)}, ())


def _no_more(_draw: Drawing) -> Sites:
    return iter(())


def _drawn_transposes(draw: Drawing) -> Sites:
    for rank in (3, 4):
        rest = list(range(rank))
        order = [rest.pop(draw.choices.integer(0, len(rest) - 1)) for _ in range(rank)]
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
            yield _instance([draw.dtype[shape] for shape in shapes], attrs, MOVES)

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
        data = {"add": SUMS, "mul": PRODUCTS}.get(kind, EXTREMES)
        for at in range(5):
            shape, dims = sites[(at * 2 + draw.choices.integer(0, 1)) % len(sites)]
            yield _instance([draw.dtype[shape]], {"kind": kind, "dims": dims}, data)
        rank = draw.choices.integer(2, 4)
        drawn = {"kind": kind, "dims": draw.some(rank)}
        yield _instance([draw.dtype[draw.shape(rank)]], drawn, data)
        if kind in ("and", "or"):
            # What comes after the first block decides.
            attrs = {"kind": kind, "dims": (0,)}
            yield _instance([draw.dtype[2 * draw.shapes.block + 1]], attrs, ("last", "gap"))
        if kind in ("add", "max") and draw.dtype.is_float:
            yield _instance([draw.dtype[LARGE[1]]], {"kind": kind, "dims": (0,)}, data)
        if kind == "add" and draw.dtype in (f32, i32):
            yield _instance([draw.dtype[LARGE[2]]], {"kind": kind, "dims": (0,)}, data)


def _rows(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    w = draw.vector
    for shape, dims in (
        ((5, 2 * w + 1), (1,)),
        ((33, 4), (0,)),
        ((3, 4, 5), (0, 2)),
        ((draw.shapes.block + 1,), (0,)),
    ):
        yield _instance(
            [draw.dtype[shape]],
            {"dims": dims},
            ("signed", "large", "ramp", "negative", "ties", "special"),
        )
    rank = draw.choices.integer(2, 4)
    yield _instance([draw.dtype[draw.shape(rank)]], {"dims": draw.some(rank)}, ("signed", "ramp"))


def _layer_norm(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for shape, dims in (((5, 2 * draw.vector + 1), (1,)), ((4, 33), (0,)), ((2, 3, 5), (1, 2))):
        row = draw.dtype[tuple(shape[d] for d in dims)]
        yield _instance(
            [draw.dtype[shape], row, row], {"dims": dims}, ("signed", "large", "ramp", "positive")
        )


def _position(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for shape, dim in (((5, 2 * draw.vector + 1), 1), ((33, 4), 0), ((draw.vector * 9,), 0)):
        for dtype in (i64, i32):
            yield _instance(
                [draw.dtype[shape]],
                {"dim": dim, "dtype": dtype},
                ("ties", "near", "signed", "negative", "special", "nans", "extremes"),
            )


def _one_hot(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    for target in (f32, i64, bool_, u8):
        yield _instance(
            [draw.dtype[draw.vector + 1]],
            {"size": 5, "dtype": target},
            ("small", "ramp", "special"),
        )
    yield _instance([draw.dtype[257]], {"size": 300, "dtype": f32}, ("ramp", "small"))


_Make = Callable[[OpDef, Drawing], Iterator[Instance]]
_MAKERS: dict[str, _Make] = {
    "constant": _constant,
    "select": _select,
    "compare": _compare,
    "convert": _convert,
    "bitcast": _bitcast,
    "iota": _iota,
    "reshape": _moves(_reshape),
    "transpose": _moves(_transpose, _drawn_transposes),
    "broadcast_in_dim": _moves(_broadcast, _drawn_broadcasts),
    "slice": _moves(_slice, _drawn_slices),
    "pad": _moves(_pad),
    "concatenate": _moves(_concatenate, _drawn_joins),
    "reduce": _reduce,
    "softmax": _rows,
    "log_softmax": _rows,
    "mean": _rows,
    "var": _rows,
    "layer_norm": _layer_norm,
    "argmax": _position,
    "argmin": _position,
    "one_hot": _one_hot,
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

#: Longest dimensions, as exponents of two, of rows that take long over more, or whose bounds do.
_FAR_EXPONENTS = {
    "cholesky": 8, "lu": 8, "qr": 8, "triangular_solve": 8, "eigh": 6, "svd": 6, "fft": 13,
    "softmax": 16, "log_softmax": 16, "layer_norm": 16, "batch_norm": 16, "group_norm": 16,
    "rms_norm": 16, "var": 16, "scan": 14, "while": 14, "reduce_window": 14,
}  # fmt: skip
#: Rows that return positions: narrow ones end at 256 and 65,536, and extremes lie at the ends.
_POSITIONS = ("argmax", "argmin")
_COUNTERS = (8, 17)
_AT_ENDS = ("ramp", "falling", "signed")
#: Rows with far sizes of their own, and those whose weights program with the square of a size.
_OTHERS = (
    "dot_general", "convolution", "attention", "block_sparse_dot", "resize", "gather", "scatter",
    "dynamic_slice", "dynamic_update_slice",
)  # fmt: skip
#: Sizes below are dimension numbers and windows as often as sizes.
_LEAST_FAR = 9
#: Elements of all other dimensions together, and of any operand or result.
_BESIDE, _MOST_FAR_ELEMENTS = 16, 1 << 21
#: Bytes of all operands and results together: devices of some megabytes are to run them too.
_MOST_FAR_BYTES = 1 << 24


def _stretched(row: OpDef, draw: Drawing, found: Sequence[Instance]) -> Iterator[Instance]:
    """Far instances made of those at hand."""
    pointwise = row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits
    if pointwise or row.name in _OTHERS:
        return
    fitting = [each for each in found if _fits(each)]
    if not fitting:
        return
    choices, most = draw.choices, _FAR_EXPONENTS.get(row.name, 20 if draw.far else 17)
    sizes = [far_size(choices, min(8, most - 2), most)]
    if row.name in _POSITIONS:
        sizes += [far_size(choices, k, k) for k in _COUNTERS]
    for size in sizes:
        longer = [_longer(each, size) for each in fitting]
        small = [each for each in longer if _affordable(row, each)]
        if small:
            chosen = pick(choices, small)
            yield replace(chosen, kinds=_AT_ENDS) if row.name in _POSITIONS else chosen


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
