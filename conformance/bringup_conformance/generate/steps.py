"""Steps by which programs grow: single ops, and small patterns that fusion gets wrong."""

from __future__ import annotations

from collections.abc import Callable

from bringup.dtypes import BY_NAME, DType, bool_, f16, f32, f64, i8, i32, i64, u8, u32
from bringup.graph import Value
from bringup_conformance.generate.choices import chance, pick, weighted
from bringup_conformance.generate.control import looped
from bringup_conformance.generate.growing import Growing
from bringup_conformance.generate.indexed import gathered, scattered, windowed
from bringup_conformance.generate.networks import convolved, pooled
from bringup_conformance.generate.orders import ordered, running

Step = Callable[[Growing], Value | None]
Weighted = tuple[tuple[int, str], ...]

_FLOAT_UNARY = (
    (3, "neg"), (2, "abs"), (2, "tanh"), (2, "exp"), (2, "sin"), (1, "cos"), (2, "relu"),
    (1, "floor"), (1, "sqrt"), (1, "log"), (1, "logistic"), (1, "round"), (1, "sign"),
    (1, "square"), (1, "rsqrt"), (1, "expm1"), (1, "log1p"), (1, "gelu"), (1, "reciprocal"),
    (1, "erf"), (1, "atan"), (1, "sinh"), (1, "asinh"), (1, "cbrt"), (1, "erfc"), (1, "silu"),
    (1, "softplus"),
)  # fmt: skip
_EXACT_UNARY = ((3, "neg"), (2, "abs"), (1, "relu"), (1, "floor"), (1, "sign"), (1, "round"))
_INTEGER_UNARY = (
    (3, "neg"), (2, "abs"), (1, "relu"), (1, "sign"), (1, "square"), (1, "popcount"), (1, "clz"),
)  # fmt: skip
_FLOAT_BINARY = (
    (5, "add"),
    (5, "sub"),
    (5, "mul"),
    (3, "max"),
    (3, "min"),
    (3, "div"),
    (1, "pow"),
    (1, "rem"),
)
_EXACT_BINARY = ((5, "add"), (5, "sub"), (4, "mul"), (3, "max"), (3, "min"))
_INTEGER_BINARY = (
    (4, "add"), (4, "sub"), (3, "mul"), (2, "max"), (2, "min"), (1, "div"), (1, "rem"),
    (1, "and"), (1, "or"), (1, "xor"), (1, "shl"),
)  # fmt: skip
_DIRECTIONS = ("lt", "eq", "gt", "ge", "le", "ne")


#: The generators, and the words of counter each takes.
_GENERATORS = (("threefry2x32", 2), ("philox4x32", 4))


def sampled(grow: Growing) -> Value | None:
    """A choice by random bits of each element's number, as dropout makes it."""
    x = grow.back(lambda v: v.dtype is not bool_ and bool(v.shape))
    if x is None:
        return None
    name, count = pick(grow.choices, _GENERATORS)
    type_ = x.type.with_dtype(u32)
    numbers = [
        grow.emit("iota", type=type_, dim=grow.choices.integer(0, len(x.shape) - 1)),
        *(grow.constant(type_, grow.choices.integer(0, 9)) for _ in range(count - 1)),
    ]
    key = [grow.constant(type_, grow.choices.integer(0, 1 << 20)) for _ in range(2)]
    word = grow.emit(name, *key, *numbers)
    kept = grow.emit("compare", word, grow.constant(type_, 3 << 30), direction="lt")
    return grow.emit("select", kept, x, grow.constant(x.type, 0))


def unary(grow: Growing) -> Value | None:
    """An elementwise op of one operand."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    table: Weighted = _INTEGER_UNARY
    if x.dtype.is_float:
        table = _EXACT_UNARY if grow.setting.exact else _FLOAT_UNARY
    return grow.emit(weighted(grow.choices, table), x)


def binary(grow: Growing) -> Value | None:
    """An elementwise op of two operands, in either order."""
    x = grow.back(lambda _: True)
    if x is None:
        return None
    y = grow.partner(x)
    if x.dtype is bool_:
        return grow.emit(pick(grow.choices, ("and", "or", "xor")), x, y)
    table: Weighted = _INTEGER_BINARY
    if x.dtype.is_float:
        table = _EXACT_BINARY if grow.setting.exact else _FLOAT_BINARY
    name = weighted(grow.choices, table)
    if chance(grow.choices, 1, 3):
        return grow.emit(name, y, x)
    return grow.emit(name, x, y)


def choose(grow: Growing) -> Value | None:
    """A comparison, and a choice by it."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    y = grow.partner(x)
    test = grow.emit("compare", x, y, direction=pick(grow.choices, _DIRECTIONS))
    other = grow.back(lambda v: v.type is x.type)
    return grow.emit("select", test, x, other if chance(grow.choices, 1, 2) else y)


def clamp(grow: Growing) -> Value | None:
    """Bounds as constants, by max and min or in one."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    low, high = grow.constant(x.type, 0), grow.constant(x.type, 2)
    if chance(grow.choices, 1, 3):
        return grow.emit("clamp", x, low, high)
    return grow.emit("min", grow.emit("max", x, low), high)


def cast(grow: Growing) -> Value | None:
    """A conversion."""
    x = grow.back(lambda _: True)
    if x is None:
        return None
    wide = (f32, f16, BY_NAME["bf16"], f64, i32, i64, i8, u8, bool_)
    return grow.emit("convert", x, dtype=pick(grow.choices, wide))


def round_trip(grow: Growing) -> Value | None:
    """A conversion that loses something, and back."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    narrow: tuple[DType, ...] = (i8, u8, bool_, i32)
    if x.dtype.is_float:
        narrow = (i32, f16, BY_NAME["bf16"], i8)
    small = grow.emit("convert", x, dtype=pick(grow.choices, narrow))
    if small is None or small.dtype is x.dtype:
        return small
    return grow.emit("convert", small, dtype=x.dtype)


def transpose(grow: Growing) -> Value | None:
    """Dimensions in another order."""
    x = grow.back(lambda v: len(v.shape) > 1)
    if x is None:
        return None
    order = list(range(len(x.shape)))
    if chance(grow.choices, 1, 2) or len(order) == 2:
        order.reverse()
    else:
        order.append(order.pop(0))
    return grow.emit("transpose", x, permutation=tuple(order))


def symmetric(grow: Growing) -> Value | None:
    """A square value combined with its transpose."""
    x = grow.back(lambda v: len(v.shape) == 2 and v.shape[0] == v.shape[1] and v.dtype is not bool_)
    if x is None:
        return None
    turned = grow.emit("transpose", x, permutation=(1, 0))
    return grow.emit(pick(grow.choices, ("add", "sub", "max")), x, turned)


def reshape(grow: Growing) -> Value | None:
    """The same elements under another shape."""
    x = grow.back(lambda v: v.type.size > 0)
    if x is None:
        return None
    shapes: list[tuple[int, ...]] = [(x.type.size,), (1, *x.shape), (*x.shape, 1)]
    if len(x.shape) > 1:
        shapes += [x.shape[::-1], (x.shape[0] * x.shape[1], *x.shape[2:])]
    factor = next((n for n in (2, 3, 5, 7) if x.type.size % n == 0), None)
    if factor is not None:
        shapes.append((x.type.size // factor, factor))
    return grow.emit("reshape", x, shape=pick(grow.choices, shapes))


def slice_(grow: Growing) -> Value | None:
    """A window of one dimension, with a stride that may be negative."""
    x = grow.back(lambda v: any(n > 1 for n in v.shape))
    if x is None:
        return None
    start, limit, stride = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    d = pick(grow.choices, [i for i, n in enumerate(x.shape) if n > 1])
    n = x.shape[d]
    stride[d] = pick(grow.choices, (1, 2, -1, 3, -2))
    first = grow.choices.integer(0, n // 2)
    last = n - grow.choices.integer(0, n // 3)
    start[d], limit[d] = (first, last) if stride[d] > 0 else (last - 1, first - 1)
    return grow.emit("slice", x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))


def flip(grow: Growing) -> Value | None:
    """Every dimension reversed."""
    x = grow.back(lambda v: bool(v.shape) and v.type.size > 0)
    if x is None:
        return None
    start, limit = tuple(n - 1 for n in x.shape), (-1,) * len(x.shape)
    return grow.emit("slice", x, start=start, limit=limit, stride=(-1,) * len(x.shape))


def neighbours(grow: Growing) -> Value | None:
    """Two shifted slices of one value, combined."""
    x = grow.back(lambda v: any(n > 2 for n in v.shape) and v.dtype is not bool_)
    if x is None:
        return None
    d = pick(grow.choices, [i for i, n in enumerate(x.shape) if n > 2])
    shift = grow.choices.integer(1, min(2, x.shape[d] - 2))
    parts = []
    for first, last in ((0, x.shape[d] - shift), (shift, x.shape[d])):
        start, limit = [0] * len(x.shape), list(x.shape)
        start[d], limit[d] = first, last
        parts.append(grow.emit("slice", x, start=tuple(start), limit=tuple(limit)))
    return grow.emit(pick(grow.choices, ("sub", "add", "max", "min", "mul")), *parts)


def shifted(grow: Growing) -> Value | None:
    """A value combined with itself shifted by padding on one side and cropping on the other."""
    x = grow.back(lambda v: bool(v.shape) and v.type.size > 0)
    if x is None:
        return None
    lo, hi, gaps = ([0] * len(x.shape) for _ in range(3))
    d = grow.choices.integer(0, len(x.shape) - 1)
    by = grow.choices.integer(1, 3)
    way = grow.choices.integer(0, 2)
    lo[d], hi[d] = ((by, -by), (-by, by), (by, by))[way]
    if way == 2 and chance(grow.choices, 1, 2):
        gaps[d] = 1
    if min(x.shape[d] + lo[d], x.shape[d] + hi[d]) < 0:
        return None
    edge = grow.constant(x.type.with_shape(()), 0 if x.dtype is bool_ else None)
    moved = grow.emit("pad", x, edge, lo=tuple(lo), hi=tuple(hi), interior=tuple(gaps))
    if moved is None or moved.type is not x.type or x.dtype is bool_:
        return moved
    return grow.emit(pick(grow.choices, ("add", "max", "sub")), x, moved)


def joined(grow: Growing) -> Value | None:
    """Two chains concatenated, each with a constant of its own."""
    x = grow.back(lambda v: bool(v.shape) and v.dtype is not bool_)
    if x is None:
        return None
    first = grow.emit("mul", x, grow.constant(x.type))
    second = grow.emit("add", grow.back(lambda v: v.type is x.type), grow.constant(x.type))
    return grow.emit("concatenate", first, second, dim=grow.choices.integer(0, len(x.shape) - 1))


def iota(grow: Growing) -> Value | None:
    """A counter along a dimension, combined with a value of its shape."""
    x = grow.back(lambda v: bool(v.shape) and v.dtype is not bool_)
    if x is None:
        return None
    count = grow.emit("iota", type=x.type, dim=grow.choices.integer(0, len(x.shape) - 1))
    return grow.emit(pick(grow.choices, ("add", "mul", "sub")), x, count)


def drawn_dims(grow: Growing, rank: int) -> tuple[int, ...]:
    """Dimensions to reduce: the last, the first, all, or some."""
    options = [(rank - 1,), (0,), tuple(range(rank))]
    if rank > 2:
        options += [(1,), (0, rank - 1)]
    return pick(grow.choices, options)


def reduce(grow: Growing) -> Value | None:
    """Whole dimensions folded."""
    x = grow.back(lambda v: bool(v.shape))
    if x is None:
        return None
    kinds = ("add", "max", "min", "mul") if x.dtype is not bool_ else ("and", "or")
    return grow.emit(
        "reduce", x, kind=pick(grow.choices, kinds), dims=drawn_dims(grow, len(x.shape))
    )


def centred(grow: Growing) -> Value | None:
    """Reduce, broadcast back, combine: the shape of every normalisation."""
    x = grow.back(lambda v: bool(v.shape) and v.dtype is not bool_ and v.type.size > 0)
    if x is None:
        return None
    dims = drawn_dims(grow, len(x.shape))
    folded = grow.emit("reduce", x, kind=pick(grow.choices, ("max", "add", "min")), dims=dims)
    back = spread_back(grow, folded, x, dims)
    return grow.emit(pick(grow.choices, ("sub", "add", "max")), x, back)


def spread_back(
    grow: Growing, folded: Value | None, x: Value, dims: tuple[int, ...]
) -> Value | None:
    """A reduced value over the shape it was reduced from."""
    kept = tuple(d for d in range(len(x.shape)) if d not in dims)
    return grow.emit("broadcast_in_dim", folded, shape=x.shape, dims=kept)


#: Norms over rows, and how many rows scale and shift them.
AFFINE = {"layer_norm": 2, "rms_norm": 1}


def row_op(grow: Growing) -> Value | None:
    """A composite over rows."""
    x = grow.back(lambda v: bool(v.shape) and v.dtype.is_float and v.type.size > 0)
    if x is None or grow.setting.exact:
        return None
    name = pick(grow.choices, ("softmax", "mean", "log_softmax", "var", *AFFINE))
    dims = (len(x.shape) - 1,)
    row = x.type.with_shape(x.shape[-1:])
    rows = [grow.input(row) for _ in range(AFFINE.get(name, 0))]
    return grow.emit(name, x, *rows, dims=dims)


def soft(grow: Growing) -> Value | None:
    """Softmax written out: max, exp, sum and quotient over rows."""
    x = grow.back(lambda v: bool(v.shape) and v.dtype.is_float and v.type.size > 0)
    if x is None or grow.setting.exact:
        return None
    dims = drawn_dims(grow, len(x.shape))
    peak = spread_back(grow, grow.emit("reduce", x, kind="max", dims=dims), x, dims)
    powers = grow.emit("exp", grow.emit("sub", x, peak))
    if powers is None:
        return None
    total = spread_back(grow, grow.emit("reduce", powers, kind="add", dims=dims), x, dims)
    return grow.emit("div", powers, total)


def dot(grow: Growing) -> Value | None:
    """A matrix product with a new input, on either side."""
    x = grow.back(lambda v: len(v.shape) == 2 and v.dtype is not bool_ and v.type.size > 0)
    if x is None:
        return None
    columns = pick(grow.choices, (2, 3, 1, 5, grow.setting.shapes.vector + 1))
    d = grow.choices.integer(0, 1)
    shape = (x.shape[d], columns) if chance(grow.choices, 1, 2) else (columns, x.shape[d])
    w = grow.input(x.type.with_shape(shape))
    other = 0 if shape[0] == x.shape[d] else 1
    if chance(grow.choices, 1, 4):
        return grow.emit("dot_general", w, x, batch=((), ()), contract=((other,), (d,)))
    return grow.emit("dot_general", x, w, batch=((), ()), contract=((d,), (other,)))


def against_constant(grow: Growing) -> Value | None:
    """An op whose operands must not be swapped, with a constant on the left."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    names = ("sub", "div", "sub") if x.dtype.is_float and not grow.setting.exact else ("sub",)
    return grow.emit(pick(grow.choices, names), grow.constant(x.type), x)


def nearly_identity(grow: Growing) -> Value | None:
    """Ops that a careless simplifier removes or merges."""
    x = grow.back(lambda v: v.dtype is not bool_)
    if x is None:
        return None
    way = grow.choices.integer(0, 3)
    if way == 0:
        return grow.emit("mul", x, grow.constant(x.type, 0))
    if way == 1:
        return grow.emit("add", x, grow.constant(x.type, 0))
    if way == 2 and not grow.setting.exact:
        return grow.emit("div", x, x)
    big = 100 if x.dtype.bits == 8 else 16777216 if x.dtype.bits > 16 else 2048
    return grow.emit(
        "sub", grow.emit("add", x, grow.constant(x.type, big)), grow.constant(x.type, big)
    )


STEPS: tuple[tuple[int, Step], ...] = (
    (10, unary),
    (16, binary),
    (3, choose),
    (2, clamp),
    (2, cast),
    (2, round_trip),
    (3, transpose),
    (3, symmetric),
    (2, reshape),
    (3, slice_),
    (1, flip),
    (2, neighbours),
    (3, shifted),
    (2, joined),
    (1, iota),
    (4, reduce),
    (4, centred),
    (2, row_op),
    (2, soft),
    (4, dot),
    (2, gathered),
    (1, windowed),
    (1, scattered),
    (2, pooled),
    (2, convolved),
    (2, ordered),
    (2, running),
    (2, looped),
    (2, sampled),
    (2, against_constant),
    (4, nearly_identity),
)
