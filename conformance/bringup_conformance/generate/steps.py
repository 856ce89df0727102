"""Steps by which random programs grow: single ops, and small patterns that fusion gets wrong."""

from __future__ import annotations

from collections.abc import Callable

from bringup.dtypes import BY_NAME, DType, bool_, f16, f32, f64, i8, i32, i64, u8, u32
from bringup.graph import Value
from bringup_conformance.generate.choices import chance, pick, weighted
from bringup_conformance.generate.control import looped
from bringup_conformance.generate.indexed import gathered, scattered, windowed
from bringup_conformance.generate.networks import convolved, pooled
from bringup_conformance.generate.orders import ordered, running
from bringup_conformance.generate.program_builder import ProgramBuilder

#: Whether a step may begin with a value.
Wanted = Callable[[Value], bool]
#: Adds instructions to a program, beginning with one of its values; None if it adds none.
Step = Callable[[ProgramBuilder, Value], Value | None]
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


def sampled(program: ProgramBuilder, x: Value) -> Value | None:
    """A choice by random bits of each element's number, as dropout makes it."""
    name, count = pick(program.choices, _GENERATORS)
    type_ = x.type.with_dtype(u32)
    numbers = [
        program.emit("iota", type=type_, dim=program.choices.integer(0, len(x.shape) - 1)),
        *(program.constant(type_, program.choices.integer(0, 9)) for _ in range(count - 1)),
    ]
    key = [program.constant(type_, program.choices.integer(0, 1 << 20)) for _ in range(2)]
    word = program.emit(name, *key, *numbers)
    keeps = program.emit("compare", word, program.constant(type_, 3 << 30), direction="lt")
    return program.emit("select", keeps, x, program.constant(x.type, 0))


def unary(program: ProgramBuilder, x: Value) -> Value | None:
    """An elementwise op of one operand."""
    table: Weighted = _INTEGER_UNARY
    if x.dtype.is_float:
        table = _EXACT_UNARY if program.config.exact else _FLOAT_UNARY
    return program.emit(weighted(program.choices, table), x)


def binary(program: ProgramBuilder, x: Value) -> Value | None:
    """An elementwise op of two operands, in either order."""
    y = program.partner(x)
    if x.dtype is bool_:
        return program.emit(pick(program.choices, ("and", "or", "xor")), x, y)
    table: Weighted = _INTEGER_BINARY
    if x.dtype.is_float:
        table = _EXACT_BINARY if program.config.exact else _FLOAT_BINARY
    name = weighted(program.choices, table)
    if chance(program.choices, 1, 3):
        return program.emit(name, y, x)
    return program.emit(name, x, y)


def choose(program: ProgramBuilder, x: Value) -> Value | None:
    """A comparison, and a choice by it."""
    y = program.partner(x)
    test = program.emit("compare", x, y, direction=pick(program.choices, _DIRECTIONS))
    other = program.find(lambda v: v.type is x.type)
    return program.emit("select", test, x, other if chance(program.choices, 1, 2) else y)


def clamp(program: ProgramBuilder, x: Value) -> Value | None:
    """Bounds as constants, by max and min or in one."""
    low, high = program.constant(x.type, 0), program.constant(x.type, 2)
    if chance(program.choices, 1, 3):
        return program.emit("clamp", x, low, high)
    return program.emit("min", program.emit("max", x, low), high)


def cast(program: ProgramBuilder, x: Value) -> Value | None:
    """A conversion."""
    wide = (f32, f16, BY_NAME["bf16"], f64, i32, i64, i8, u8, bool_)
    return program.emit("convert", x, dtype=pick(program.choices, wide))


def round_trip(program: ProgramBuilder, x: Value) -> Value | None:
    """A conversion that loses something, and back."""
    narrow: tuple[DType, ...] = (i8, u8, bool_, i32)
    if x.dtype.is_float:
        narrow = (i32, f16, BY_NAME["bf16"], i8)
    small = program.emit("convert", x, dtype=pick(program.choices, narrow))
    if small is None or small.dtype is x.dtype:
        return small
    return program.emit("convert", small, dtype=x.dtype)


def transpose(program: ProgramBuilder, x: Value) -> Value | None:
    """Dimensions in another order."""
    order = list(range(len(x.shape)))
    if chance(program.choices, 1, 2) or len(order) == 2:
        order.reverse()
    else:
        order.append(order.pop(0))
    return program.emit("transpose", x, permutation=tuple(order))


def symmetric(program: ProgramBuilder, x: Value) -> Value | None:
    """A square value combined with its transpose."""
    turned = program.emit("transpose", x, permutation=(1, 0))
    return program.emit(pick(program.choices, ("add", "sub", "max")), x, turned)


def reshape(program: ProgramBuilder, x: Value) -> Value | None:
    """The same elements under another shape."""
    shapes: list[tuple[int, ...]] = [(x.type.size,), (1, *x.shape), (*x.shape, 1)]
    if len(x.shape) > 1:
        shapes += [x.shape[::-1], (x.shape[0] * x.shape[1], *x.shape[2:])]
    factor = next((n for n in (2, 3, 5, 7) if x.type.size % n == 0), None)
    if factor is not None:
        shapes.append((x.type.size // factor, factor))
    return program.emit("reshape", x, shape=pick(program.choices, shapes))


def slice_(program: ProgramBuilder, x: Value) -> Value | None:
    """A window of one dimension, with a stride that may be negative."""
    start, limit, stride = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    d = pick(program.choices, [i for i, n in enumerate(x.shape) if n > 1])
    n = x.shape[d]
    stride[d] = pick(program.choices, (1, 2, -1, 3, -2))
    first = program.choices.integer(0, n // 2)
    last = n - program.choices.integer(0, n // 3)
    start[d], limit[d] = (first, last) if stride[d] > 0 else (last - 1, first - 1)
    return program.emit("slice", x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))


def flip(program: ProgramBuilder, x: Value) -> Value | None:
    """Every dimension reversed."""
    start, limit = tuple(n - 1 for n in x.shape), (-1,) * len(x.shape)
    return program.emit("slice", x, start=start, limit=limit, stride=(-1,) * len(x.shape))


def neighbours(program: ProgramBuilder, x: Value) -> Value | None:
    """Two shifted slices of one value, combined."""
    d = pick(program.choices, [i for i, n in enumerate(x.shape) if n > 2])
    shift = program.choices.integer(1, min(2, x.shape[d] - 2))
    parts = []
    for first, last in ((0, x.shape[d] - shift), (shift, x.shape[d])):
        start, limit = [0] * len(x.shape), list(x.shape)
        start[d], limit[d] = first, last
        parts.append(program.emit("slice", x, start=tuple(start), limit=tuple(limit)))
    return program.emit(pick(program.choices, ("sub", "add", "max", "min", "mul")), *parts)


def shifted(program: ProgramBuilder, x: Value) -> Value | None:
    """A value combined with itself shifted by padding on one side and cropping on the other."""
    lo, hi, gaps = ([0] * len(x.shape) for _ in range(3))
    d = program.choices.integer(0, len(x.shape) - 1)
    by = program.choices.integer(1, 3)
    way = program.choices.integer(0, 2)
    lo[d], hi[d] = ((by, -by), (-by, by), (by, by))[way]
    if way == 2 and chance(program.choices, 1, 2):
        gaps[d] = 1
    if min(x.shape[d] + lo[d], x.shape[d] + hi[d]) < 0:
        return None
    edge = program.constant(x.type.with_shape(()), 0 if x.dtype is bool_ else None)
    moved = program.emit("pad", x, edge, lo=tuple(lo), hi=tuple(hi), interior=tuple(gaps))
    if moved is None or moved.type is not x.type or x.dtype is bool_:
        return moved
    return program.emit(pick(program.choices, ("add", "max", "sub")), x, moved)


def joined(program: ProgramBuilder, x: Value) -> Value | None:
    """Two chains concatenated, each with a constant of its own."""
    first = program.emit("mul", x, program.constant(x.type))
    second = program.emit("add", program.find(lambda v: v.type is x.type), program.constant(x.type))
    return program.emit(
        "concatenate", first, second, dim=program.choices.integer(0, len(x.shape) - 1)
    )


def iota(program: ProgramBuilder, x: Value) -> Value | None:
    """A counter along a dimension, combined with a value of its shape."""
    count = program.emit("iota", type=x.type, dim=program.choices.integer(0, len(x.shape) - 1))
    return program.emit(pick(program.choices, ("add", "mul", "sub")), x, count)


def drawn_dims(program: ProgramBuilder, rank: int) -> tuple[int, ...]:
    """Dimensions to reduce: the last, the first, all, or some."""
    options = [(rank - 1,), (0,), tuple(range(rank))]
    if rank > 2:
        options += [(1,), (0, rank - 1)]
    return pick(program.choices, options)


def reduce(program: ProgramBuilder, x: Value) -> Value | None:
    """Whole dimensions folded."""
    kinds = ("add", "max", "min", "mul") if x.dtype is not bool_ else ("and", "or")
    return program.emit(
        "reduce", x, kind=pick(program.choices, kinds), dims=drawn_dims(program, len(x.shape))
    )


def centred(program: ProgramBuilder, x: Value) -> Value | None:
    """Reduce, broadcast back, combine: the shape of every normalisation."""
    dims = drawn_dims(program, len(x.shape))
    folded = program.emit("reduce", x, kind=pick(program.choices, ("max", "add", "min")), dims=dims)
    back = spread_back(program, folded, x, dims)
    return program.emit(pick(program.choices, ("sub", "add", "max")), x, back)


def spread_back(
    program: ProgramBuilder, folded: Value | None, x: Value, dims: tuple[int, ...]
) -> Value | None:
    """A reduced value over the shape it was reduced from."""
    other_dims = tuple(d for d in range(len(x.shape)) if d not in dims)
    return program.emit("broadcast_in_dim", folded, shape=x.shape, dims=other_dims)


#: Norms over rows, and how many rows scale and shift them.
AFFINE = {"layer_norm": 2, "rms_norm": 1}


def row_op(program: ProgramBuilder, x: Value) -> Value | None:
    """A composite over rows."""
    if program.config.exact:
        return None
    name = pick(program.choices, ("softmax", "mean", "log_softmax", "var", *AFFINE))
    dims = (len(x.shape) - 1,)
    row = x.type.with_shape(x.shape[-1:])
    rows = [program.input(row) for _ in range(AFFINE.get(name, 0))]
    return program.emit(name, x, *rows, dims=dims)


def soft(program: ProgramBuilder, x: Value) -> Value | None:
    """Softmax written out: max, exp, sum and quotient over rows."""
    if program.config.exact:
        return None
    dims = drawn_dims(program, len(x.shape))
    peak = spread_back(program, program.emit("reduce", x, kind="max", dims=dims), x, dims)
    powers = program.emit("exp", program.emit("sub", x, peak))
    if powers is None:
        return None
    total = spread_back(program, program.emit("reduce", powers, kind="add", dims=dims), x, dims)
    return program.emit("div", powers, total)


def dot(program: ProgramBuilder, x: Value) -> Value | None:
    """A matrix product with a new input, on either side."""
    columns = pick(program.choices, (2, 3, 1, 5, program.config.shapes.vector + 1))
    d = program.choices.integer(0, 1)
    shape = (x.shape[d], columns) if chance(program.choices, 1, 2) else (columns, x.shape[d])
    w = program.input(x.type.with_shape(shape))
    other = 0 if shape[0] == x.shape[d] else 1
    if chance(program.choices, 1, 4):
        return program.emit("dot_general", w, x, batch=((), ()), contract=((other,), (d,)))
    return program.emit("dot_general", x, w, batch=((), ()), contract=((d,), (other,)))


def against_constant(program: ProgramBuilder, x: Value) -> Value | None:
    """An op whose operands must not be swapped, with a constant on the left."""
    names = ("sub", "div", "sub") if x.dtype.is_float and not program.config.exact else ("sub",)
    return program.emit(pick(program.choices, names), program.constant(x.type), x)


def nearly_identity(program: ProgramBuilder, x: Value) -> Value | None:
    """Ops that a careless simplifier removes or merges."""
    way = program.choices.integer(0, 3)
    if way == 0:
        return program.emit("mul", x, program.constant(x.type, 0))
    if way == 1:
        return program.emit("add", x, program.constant(x.type, 0))
    if way == 2 and not program.config.exact:
        return program.emit("div", x, x)
    big = 100 if x.dtype.bits == 8 else 16777216 if x.dtype.bits > 16 else 2048
    return program.emit(
        "sub", program.emit("add", x, program.constant(x.type, big)), program.constant(x.type, big)
    )


def _values(
    *, rank: int = 0, longest: int = 0, numbers: bool = False, floats: bool = False,
    filled: bool = False,
) -> Wanted:  # fmt: skip
    """Values of at least a rank and with a dimension of at least a length.

    numbers: not of bool.  floats: of a float dtype.  filled: with elements.
    """

    def wanted(v: Value) -> bool:
        return (
            len(v.shape) >= rank
            and max(v.shape, default=0) >= longest
            and not (numbers and v.dtype is bool_)
            and not (floats and not v.dtype.is_float)
            and not (filled and not v.type.size)
        )

    return wanted


def _matrices(v: Value) -> bool:
    return len(v.shape) == 2 and v.dtype is not bool_ and v.type.size > 0


def _squares(v: Value) -> bool:
    return len(v.shape) == 2 and v.shape[0] == v.shape[1] and v.dtype is not bool_


_ANY, _NUMBERS, _FILLED = _values(), _values(numbers=True), _values(filled=True)
_ARRAYS, _NUMBER_ARRAYS = _values(rank=1), _values(rank=1, numbers=True)
_FILLED_ARRAYS = _values(rank=1, filled=True)
_FILLED_NUMBERS = _values(rank=1, numbers=True, filled=True)
_FILLED_FLOATS = _values(rank=1, floats=True, filled=True)

#: Weights, the values that a step may begin with, and the step.
STEPS: tuple[tuple[int, tuple[Wanted, Step]], ...] = (
    (10, (_NUMBERS, unary)),
    (16, (_ANY, binary)),
    (3, (_NUMBERS, choose)),
    (2, (_NUMBERS, clamp)),
    (2, (_ANY, cast)),
    (2, (_NUMBERS, round_trip)),
    (3, (_values(rank=2), transpose)),
    (3, (_squares, symmetric)),
    (2, (_FILLED, reshape)),
    (3, (_values(longest=2), slice_)),
    (1, (_FILLED_ARRAYS, flip)),
    (2, (_values(longest=3, numbers=True), neighbours)),
    (3, (_FILLED_ARRAYS, shifted)),
    (2, (_NUMBER_ARRAYS, joined)),
    (1, (_NUMBER_ARRAYS, iota)),
    (4, (_ARRAYS, reduce)),
    (4, (_FILLED_NUMBERS, centred)),
    (2, (_FILLED_FLOATS, row_op)),
    (2, (_FILLED_FLOATS, soft)),
    (4, (_matrices, dot)),
    (2, (_FILLED_ARRAYS, gathered)),
    (1, (_FILLED_ARRAYS, windowed)),
    (1, (_FILLED_ARRAYS, scattered)),
    (2, (_FILLED_NUMBERS, pooled)),
    (2, (_matrices, convolved)),
    (2, (_ARRAYS, ordered)),
    (2, (_NUMBER_ARRAYS, running)),
    (2, (_FILLED, looped)),
    (2, (_NUMBER_ARRAYS, sampled)),
    (2, (_NUMBERS, against_constant)),
    (4, (_NUMBERS, nearly_identity)),
)
