"""References against oracles that share nothing with numpy: Python's integers and fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from bringup.dtypes import (
    FLOATS,
    INTS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
    u64,
)
from bringup.ops.monoids import MONOIDS, ROUNDING, Derivative, Monoid
from bringup.ops.table import Kind, OpDef, Trait, lookup

SMALL_FLOATS = (f16, bf16, f32)


def rounded(value: Fraction, dtype) -> float:
    """Round to nearest even by hand; exact in Python's float for every dtype."""
    info = ml_dtypes.finfo(dtype.numpy)
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    exponent = max(exponent, int(info.minexp))
    unit = Fraction(2) ** (exponent - int(info.nmant))
    units = round(size / unit)  # Python rounds halves of fractions to even
    result = units * unit
    top = Fraction(float(info.max))
    sign = -1 if value < 0 else 1
    return sign * math.inf if result > top else sign * float(result)


def finite(kit, dtype, count, seed):
    x = kit.values(dtype, (count,), seed)
    return x[np.isfinite(x.astype(np.float64))]


def fractions(array):
    return [Fraction(float(v)) for v in array.astype(np.float64)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic_rounds_once(kit, name: str, dtype) -> None:
    x, y = finite(kit, dtype, 400, 1), finite(kit, dtype, 400, 2)
    n = min(len(x), len(y))
    x, y = x[:n], y[:n]
    if name == "div":
        x, y = x[y != 0], y[y != 0]
    exact = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
    }[name]
    wanted = [rounded(exact(a, b), dtype) for a, b in zip(fractions(x), fractions(y), strict=True)]
    actual = lookup(name).reference(x, y)
    assert actual.dtype == dtype.numpy
    assert np.array_equal(actual.astype(np.float64), wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sqrt_rounds_once(kit, dtype) -> None:
    x = np.abs(finite(kit, dtype, 300, 3))
    actual = lookup("sqrt").reference(x)
    info = ml_dtypes.finfo(dtype.numpy)
    for value, root in zip(fractions(x), actual.astype(np.float64), strict=True):
        if value == 0:
            assert root == 0
            continue
        unit = Fraction(
            math.ulp(root) if dtype is f64 else 2.0 ** (math.frexp(root)[1] - 1 - int(info.nmant))
        )
        low, high = Fraction(root) - unit / 2, Fraction(root) + unit / 2
        assert low * low <= value <= high * high


def test_nothing_is_rounded_twice_on_the_way_to_bfloat16() -> None:
    """Values next to a tie, from f64 and from 64-bit integers."""
    rng = np.random.default_rng(0)
    mantissas = rng.integers(128, 256, 200) + 0.5
    ties = mantissas * np.exp2(rng.integers(-130, 110, 200))
    near = np.concatenate([ties * (1 + k * 2.0**-40) for k in (-1, 0, 1)])
    actual = lookup("convert").reference(near, dtype=bf16).astype(np.float64)
    assert np.array_equal(actual, [rounded(Fraction(v), bf16) for v in near])
    whole = (mantissas * 2).astype(np.int64) << rng.integers(30, 54, 200)
    for dtype in (i64, u64):
        edges = np.concatenate([whole - 1, whole, whole + 1]).astype(dtype.numpy)
        for target in (bf16, f16, f32, f64):
            got = lookup("convert").reference(edges, dtype=target).astype(np.float64)
            assert np.array_equal(got, [rounded(Fraction(int(v)), target) for v in edges])


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_casts_between_floats_round_once(kit, source, target) -> None:
    x = finite(kit, source, 300, 4)
    actual = lookup("convert").reference(x, dtype=target)
    wanted = [math.copysign(rounded(v, target), s) for v, s in zip(fractions(x), x, strict=True)]
    assert np.array_equal(actual.astype(np.float64), wanted)
    assert np.array_equal(np.signbit(actual), np.signbit(x))


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", INTS, ids=str)
def test_casts_to_integers_truncate_and_saturate(kit, source, target) -> None:
    info = np.iinfo(target.numpy)
    edge = np.exp2(np.array([7, 8, 15, 31, 32, 63, 64], np.float64))
    edges = np.concatenate([edge, -edge, np.nextafter(edge, 0), edge - 0.5, -edge - 1])
    x = np.concatenate([finite(kit, source, 300, 5), cast(edges, source)])
    x = x[np.isfinite(x.astype(np.float64))]
    actual = lookup("convert").reference(x, dtype=target)
    wanted = [min(max(math.trunc(v), info.min), info.max) for v in fractions(x)]
    assert actual.tolist() == wanted
    odd = np.array([np.nan, np.inf, -np.inf], source.numpy)
    assert lookup("convert").reference(odd, dtype=target).tolist() == [0, info.max, info.min]


@pytest.mark.parametrize("source", INTS, ids=str)
@pytest.mark.parametrize("target", INTS, ids=str)
def test_casts_between_integers_keep_the_low_bits(kit, source, target) -> None:
    x = kit.values(source, (200,), 6)
    actual = lookup("convert").reference(x, dtype=target)
    assert actual.tolist() == [wrap(int(v), target) for v in x]


def cast(array, dtype):
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy)


def wrap(value: int, dtype) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def quotient(x: int, y: int, dtype) -> int:
    if y == 0:
        return wrap(-1, dtype)
    return wrap(abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1), dtype)


def remainder(x: int, y: int, _dtype) -> int:
    if y == 0:
        return x
    return abs(x) % abs(y) * (-1 if x < 0 else 1)


def power(x: int, y: int, dtype) -> int:
    if y < 0:
        return {1: 1, -1: 1 if y % 2 == 0 else -1}.get(x, 0)
    return wrap(pow(x, y, 1 << dtype.bits), dtype)


def shift_left(x: int, y: int, dtype) -> int:
    return wrap(x << y, dtype) if 0 <= y < dtype.bits else 0


INTEGER = {
    "add": lambda x, y, d: wrap(x + y, d),
    "sub": lambda x, y, d: wrap(x - y, d),
    "mul": lambda x, y, d: wrap(x * y, d),
    "div": quotient,
    "rem": remainder,
    "pow": power,
    "max": lambda x, y, _: max(x, y),
    "min": lambda x, y, _: min(x, y),
    "and": lambda x, y, d: wrap(x & y, d),
    "or": lambda x, y, d: wrap(x | y, d),
    "xor": lambda x, y, d: wrap(x ^ y, d),
    "shl": shift_left,
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(kit, name: str, dtype) -> None:
    values = np.unique(kit.values(dtype, (60,), 8))
    x, y = (np.array(c, dtype.numpy) for c in zip(*product(values, values), strict=True))
    actual = lookup(name).reference(x, y)
    assert actual.dtype == dtype.numpy
    assert actual.tolist() == [
        INTEGER[name](int(a), int(b), dtype) for a, b in zip(x, y, strict=True)
    ]


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("kind", ["logical", "arithmetic"])
def test_right_shifts(kit, kind: str, dtype) -> None:
    values = np.unique(kit.values(dtype, (60,), 9))
    x, y = (np.array(c, dtype.numpy) for c in zip(*product(values, values), strict=True))
    top = 1 << dtype.bits
    wanted = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        bits = a % top
        number = bits - top if kind == "arithmetic" and bits >= top // 2 else bits
        wanted.append(wrap(number >> min(b % top, dtype.bits), dtype))
    assert lookup("shr").reference(x, y, kind=kind).tolist() == wanted


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_float_remainders_are_exact(kit, dtype) -> None:
    x, y = finite(kit, dtype, 300, 10), finite(kit, dtype, 300, 11)
    n = min(len(x), len(y))
    x, y = x[:n][y[:n] != 0], y[:n][y[:n] != 0]
    actual = lookup("rem").reference(x, y).astype(np.float64)
    for a, b, r in zip(fractions(x), fractions(y), actual, strict=True):
        exact = abs(a) % abs(b) * (-1 if a < 0 else 1)
        assert Fraction(r) == exact


@pytest.mark.parametrize("dtype", [*FLOATS, i8, u8], ids=str)
def test_max_and_min_are_a_total_order(kit, dtype) -> None:
    x, y = kit.values(dtype, (500,), 12), kit.values(dtype, (500,), 13)
    for a, b, high, low in zip(
        x, y, lookup("max").reference(x, y), lookup("min").reference(x, y), strict=True
    ):
        given, found = [float(a), float(b)], [float(low), float(high)]
        if any(map(math.isnan, given)):
            assert all(map(math.isnan, found))
            continue
        keys = [(v, math.copysign(1, v)) for v in found]
        assert keys == sorted((v, math.copysign(1, v)) for v in given)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_sums_of_halves_accumulate_wider_and_round_once(dtype) -> None:
    ones = np.ones(5000, dtype.numpy)
    total = lookup("reduce").reference(ones, kind="add", dims=(0,))
    assert float(total) == rounded(Fraction(5000), dtype)
    attrs = {"batch": ((), ()), "contract": ((0,), (0,)), "accumulate": f32, "result": dtype}
    assert float(lookup("dot_general").reference(ones, ones, **attrs)) == float(total)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes_of_zeros_do_not_depend_on_the_order(kind: str) -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 17, 64):
        zeros = np.where(rng.random(n) < 0.5, np.float32(0.0), np.float32(-0.0))
        zeros[: 2 if n > 1 else 1] = [0.0, -0.0]
        for _ in range(5):
            rng.shuffle(zeros)
            result = lookup("reduce").reference(zeros, kind=kind, dims=(0,))
            assert np.signbit(result) == (kind == "min")


FOLDED = [(monoid, dtype) for monoid in MONOIDS.values() for dtype in monoid.dtypes]
SIX = {"float": [-0.0, 0.0, 1.5, -2.0, -0.0, 4.0], "int": [0, 3, -5, 7, -1, 2], "uint": range(6)}


@pytest.mark.parametrize(("monoid", "dtype"), FOLDED, ids=lambda x: getattr(x, "name", x))
def test_neutral_elements_change_no_element(kit, monoid: Monoid, dtype: DType) -> None:
    x = kit.values(dtype, (50,), 14)
    start = np.full_like(x, monoid.neutral(dtype.numpy))
    result = monoid.row.reference(start, x).astype(np.float64)
    assert np.array_equal(result, x.astype(np.float64), equal_nan=True)
    assert np.array_equal(np.signbit(result[result == 0]), np.signbit(x[x == 0].astype(np.float64)))


@pytest.mark.parametrize("monoid", MONOIDS.values(), ids=MONOIDS)
def test_monoids_agree_with_their_rows(monoid: Monoid) -> None:
    row = monoid.row
    assert {Trait.ASSOCIATIVE, Trait.COMMUTATIVE} <= row.traits
    assert set(monoid.dtypes) <= set(row.dtypes)
    assert row.accuracy.exact == (monoid.name not in ROUNDING)
    assert (monoid.derivative is None) == all(not dtype.is_float for dtype in monoid.dtypes)
    if monoid.derivative is Derivative.SELECTION:
        assert monoid.is_idempotent


@pytest.mark.parametrize(("monoid", "dtype"), FOLDED, ids=lambda x: getattr(x, "name", x))
def test_monoids_fold_as_their_rows_do(monoid: Monoid, dtype: DType) -> None:
    x = np.array(SIX.get(dtype.kind, [True, False, True, True, False, True]), dtype.numpy)
    for values in (x, x[:2], x[1::-1], x[1:2], x[4:5]):
        folds = list(itertools.accumulate(values, monoid.row.reference))
        running = monoid.accumulate(values, 0).astype(np.float64)
        assert running.tobytes() == np.array(folds).astype(np.float64).tobytes()
        last = monoid.reduce(values, (0,)).astype(np.float64)
        assert last.tobytes() == folds[-1].astype(np.float64).tobytes()
    assert monoid.reduce(x[:0], (0,)) == monoid.empty(dtype.numpy)


def test_argmax_finds_the_first(kit) -> None:
    x = np.array([[1, 3, 3], [np.nan, 5, np.nan], [0.0, -0.0, 0.0]], np.float32)
    assert lookup("argmax").reference(x, dim=1, dtype=i32).tolist() == [1, 0, 0]
    assert lookup("argmin").reference(x, dim=1, dtype=i32).tolist() == [0, 0, 0]


def test_one_hot_keeps_wide_indices_apart() -> None:
    indices = np.array([2**40, 1, 2**64 - 1], np.uint64)
    hot = lookup("one_hot").reference(indices, size=3, dtype=f32)
    assert hot.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_slices_follow_python_ranges(kit) -> None:
    rng = np.random.default_rng(3)
    row = lookup("slice")
    for _ in range(200):
        n = int(rng.integers(0, 9))
        stride = int(rng.choice([-4, -3, -1, 1, 2, 5]))
        low, high = sorted(rng.integers(0, n + 1, 2).tolist())
        start, limit = (low, high) if stride > 0 else (high - 1, low - 1)
        x = np.arange(n, dtype=np.int32)
        actual = kit.run(row, [x], start=(start,), limit=(limit,), stride=(stride,))
        assert actual.tolist() == list(range(start, limit, stride))


def test_pads_place_every_element(kit) -> None:
    rng = np.random.default_rng(4)
    row, value = lookup("pad"), np.array(-1, np.int32)
    for _ in range(200):
        n, gap = int(rng.integers(0, 6)), int(rng.integers(0, 4))
        lo, hi = rng.integers(-6, 7, 2).tolist()
        size = lo + hi + n + gap * max(n - 1, 0)
        if size < 0:
            continue
        wanted = [-1] * size
        for i in range(n):
            at = lo + i * (gap + 1)
            if 0 <= at < size:
                wanted[at] = i
        x = np.arange(n, dtype=np.int32)
        actual = kit.run(row, [x, value], lo=(lo,), hi=(hi,), interior=(gap,))
        assert actual.tolist() == wanted


def test_dots_are_einsums(kit) -> None:
    row = lookup("dot_general")
    rng = np.random.default_rng(5)
    for types, attrs in kit.cases(row, f64):
        lhs, rhs = (rng.integers(-9, 9, t.shape).astype(float) for t in types)
        (lb, rb), (lc, rc) = attrs["batch"], attrs["contract"]
        left = [f"l{d}" for d in range(lhs.ndim)]
        right = [f"r{d}" for d in range(rhs.ndim)]
        for a, b in zip((*lb, *lc), (*rb, *rc), strict=True):
            right[b] = left[a]
        out = [left[d] for d in lb]
        out += [n for d, n in enumerate(left) if d not in (*lb, *lc)]
        out += [n for d, n in enumerate(right) if d not in (*rb, *rc)]
        number = {name: i for i, name in enumerate(dict.fromkeys(left + right))}
        wanted = np.einsum(
            lhs,
            [number[n] for n in left],
            rhs,
            [number[n] for n in right],
            [number[n] for n in out],
        )
        assert np.array_equal(kit.run(row, [lhs, rhs], **attrs), wanted)


def test_integer_dots_wrap_in_the_accumulate_dtype(kit) -> None:
    x = np.full(3, -128, np.int8)
    row, attrs = lookup("dot_general"), {"batch": ((), ()), "contract": ((0,), (0,))}
    assert kit.run(row, [x, x], result=i32, **attrs) == 3 * 128 * 128
    assert kit.run(row, [x, x], **attrs) == wrap(3 * 128 * 128, i8)


WORD = "the reference works in the dtype of its arguments"


def test_wider_arguments_give_a_wider_reference(kit, float_function: OpDef) -> None:
    row = float_function
    for types, attrs in kit.cases(row, f32):
        if any(t.dtype is bool_ for t in types) or "dtype" in attrs or row.name == "bitcast":
            continue
        if attrs.get("kind") in ("and", "or"):
            continue
        with np.errstate(all="ignore"):
            bound = kit.graph(row, types, attrs).instrs[0].attrs
            narrow = [np.abs(kit.values(t.dtype, t.shape, 15)) for t in types]
            for wide in (np.float64, np.longdouble):
                result = np.asarray(row.reference(*[a.astype(wide) for a in narrow], **bound))
                if row.name != "compare":
                    assert result.dtype == wide, (row.name, WORD)
                assert result.shape == np.shape(row.reference(*narrow, **bound))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_functions_are_rounded_from_a_wider_one(kit, float_function: OpDef, dtype) -> None:
    row = float_function
    if row.kind not in (Kind.ELEMENTWISE, Kind.COMPOSITE) or row.attrs or row.arity == 3:
        return
    arrays = [kit.values(dtype, (600,), 16 + i) for i in range(row.arity)]
    with np.errstate(all="ignore"):
        actual = row.reference(*arrays)
        wide = row.reference(*[a.astype(np.float64) for a in arrays])
        assert kit.ulps(actual, wide, dtype).max() <= 0.5


def test_references_raise_no_warnings(kit, float_function: OpDef) -> None:
    for dtype in (d for d in (f16, bf16, f32, i8, u64) if d in float_function.dtypes):
        for types, attrs in kit.cases(float_function, dtype):
            arrays = [kit.values(t.dtype, t.shape, 17 + i) for i, t in enumerate(types)]
            bound = kit.graph(float_function, types, attrs).instrs[0].attrs
            with np.errstate(all="raise"):
                float_function.reference(*arrays, **bound)
