"""Every elementwise function against numpy, on values where implementations go wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.errors import ConversionError, OpTypeError

INF, NAN = np.inf, np.nan
ORDINARY = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 10.0, 88.0, 1e-6, -1e-6]
FLOATS = np.array([*ORDINARY, 1e6, INF, -INF, NAN])
INTEGERS = np.array([0, 1, 2, 3, 7, 100, -1, -2, -3, -7, -100])
BOOLS = np.array([True, False])
UNARY_INTEGER = ["abs", "negative", "positive", "sign", "square"]
ROUNDING = ["floor", "ceil", "trunc", "round"]
FLOAT_UNARY = ["exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan"]
FLOAT_UNARY += ["sinh", "cosh", "tanh", "reciprocal", "arcsinh", "arccosh", "arctanh"]
OURS = {"arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh"}


def same(found: bu.Array, expected: Any, rtol: float = 0.0) -> None:
    expected = np.asarray(expected)
    host = np.asarray(found)
    assert host.dtype == expected.dtype, (host.dtype, expected.dtype)
    assert host.shape == expected.shape
    np.testing.assert_allclose(
        host.astype(np.float64),
        expected.astype(np.float64),
        rtol=rtol,
        atol=0 if rtol == 0 else 1e-300,
    )
    if expected.dtype.kind == "f":
        ordered = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(host)[ordered], np.signbit(expected)[ordered])


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", UNARY_INTEGER)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.float32, np.float64])
def test_unary_on_numbers(name: str, dtype: Any) -> None:
    values = FLOATS if np.dtype(dtype).kind == "f" else np.abs(INTEGERS)
    x = values.astype(dtype)
    if np.dtype(dtype).kind == "i":
        x = INTEGERS.astype(dtype)
    if name == "sign":
        x = x[x != 0]  # numpy loses the sign of zero
    same(getattr(bu, name)(bu.asarray(x)), getattr(np, name)(x))


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding(name: str) -> None:
    for dtype in (np.float32, np.float64):
        x = FLOATS.astype(dtype)
        same(getattr(bu, name)(bu.asarray(x)), getattr(np, name)(x))
    whole = INTEGERS.astype(np.int16)
    same(getattr(bu, name)(bu.asarray(whole)), whole)


@pytest.mark.parametrize("name", FLOAT_UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_floats(name: str, dtype: Any) -> None:
    x = np.concatenate([FLOATS, [1e-3, 0.9999, 20.0, 700.0, -700.0, 1e12, 1e300]]).astype(dtype)
    found = getattr(bu, OURS.get(name, name))(bu.asarray(x))
    same(found, getattr(np, name)(x), rtol=8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_halves_are_computed_wider_and_rounded_once(name: str) -> None:
    x = np.array([0.0, 0.3, 1.0, 1.7, 3.0, 8.0], ml_dtypes.bfloat16)
    expected = getattr(np, name)(x.astype(np.float64)).astype(ml_dtypes.bfloat16)
    found = np.asarray(getattr(bu, OURS.get(name, name))(bu.asarray(x)))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=2**-8)


def test_integers_become_the_default_float() -> None:
    x = bu.asarray([0, 1], dtype=bu.int8)
    assert bu.exp(x).dtype is bu.float64
    assert bu.hypot(x, x).dtype is bu.float64
    assert (x / x).dtype is bu.float64
    assert bu.sqrt(bu.asarray(True)).item() == 1.0


BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder"]


@pytest.mark.parametrize("name", [*BINARY, "divide", "hypot", "logaddexp", "copysign", "nextafter"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary_on_floats(name: str, dtype: Any) -> None:
    a, b = (v.ravel() for v in np.meshgrid(FLOATS.astype(dtype), FLOATS.astype(dtype)))
    expected = getattr(np, name)(a, b)
    if name in ("maximum", "minimum"):
        # numpy leaves open which zero it returns.
        a, b, expected = (v[(a != 0) | (b != 0)] for v in (a, b, expected))
    if name in ("floor_divide", "remainder"):
        # numpy gives inf % x as it gives it to C; x // ±inf is by Python's rule.
        keep = np.isfinite(a) & ~np.isnan(b)
        a, b, expected = (v[keep] for v in (a, b, expected))
    rtol = 8 * float(np.finfo(dtype).eps) if name in ("hypot", "logaddexp") else 0.0
    same(getattr(bu, name)(bu.asarray(a), bu.asarray(b)), expected, rtol)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8])
def test_binary_on_integers(name: str, dtype: Any) -> None:
    values = INTEGERS if np.dtype(dtype).kind == "i" else np.abs(INTEGERS)
    a, b = (v.ravel() for v in np.meshgrid(values.astype(dtype), values.astype(dtype)))
    if name in ("floor_divide", "remainder"):
        a, b = a[b != 0], b[b != 0]
    same(getattr(bu, name)(bu.asarray(a), bu.asarray(b)), getattr(np, name)(a, b))


def test_division_by_zero_has_the_value_of_the_op() -> None:
    x = bu.asarray([5, -5, 0])
    assert (x // 0).tolist() == [-1, -1, -1]
    assert (x % 0).tolist() == [5, -5, 0]


def test_floor_division_of_floats_follows_python() -> None:
    pairs = [(1.0, 0.1), (-1.0, 0.1), (7.5, 2.5), (-7.5, 2.5), (0.3, 0.1), (5.0, -0.7)]
    for a, b in pairs:
        assert (bu.asarray(a) // b).item() == a // b
        assert (bu.asarray(a) % b).item() == a % b
        assert (a // bu.asarray(b)).item() == a // b
        assert (a % bu.asarray(b)).item() == a % b


def test_powers() -> None:
    a, b = (v.ravel() for v in np.meshgrid(FLOATS, [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0]))
    same(bu.asarray(a) ** bu.asarray(b), np.power(a, b), 1e-14)
    x = np.array([-3, 0, 2, 5])
    for exponent in (0, 1, 2, 3):
        same(bu.asarray(x) ** exponent, x**exponent)
    same(2 ** bu.asarray([0, 1, 5]), np.array([1, 2, 32]))
    with pytest.raises(ConversionError, match="to the power -1 is no integer"):
        bu.asarray(x) ** -1
    same(bu.asarray([2.0]) ** -1, np.array([0.5]))


@pytest.mark.parametrize(
    "name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
)
def test_comparisons(name: str) -> None:
    a, b = (v.ravel() for v in np.meshgrid(FLOATS, FLOATS))
    same(getattr(bu, name)(bu.asarray(a), bu.asarray(b)), getattr(np, name)(a, b))
    same(getattr(bu, name)(bu.asarray(BOOLS), True), getattr(np, name)(BOOLS, True))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name: str) -> None:
    a, b = (v.ravel() for v in np.meshgrid(BOOLS, BOOLS))
    same(getattr(bu, name)(bu.asarray(a), bu.asarray(b)), getattr(np, name)(a, b))
    same(getattr(bu, name)(bu.asarray(INTEGERS), True), getattr(np, name)(INTEGERS, True))


def test_predicates() -> None:
    x = bu.asarray(FLOATS)
    for name in ("isnan", "isinf", "isfinite", "signbit", "logical_not"):
        same(getattr(bu, name)(x), getattr(np, name)(FLOATS))
    whole = bu.asarray(INTEGERS)
    for name in ("isnan", "isinf", "isfinite"):
        same(getattr(bu, name)(whole), getattr(np, name)(INTEGERS))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64])
def test_bits(dtype: Any) -> None:
    values = INTEGERS if np.dtype(dtype).kind == "i" else np.abs(INTEGERS)
    x = values.astype(dtype)
    a = bu.asarray(x)
    same(a & 6, x & dtype(6))
    same(a | 6, x | dtype(6))
    same(a ^ 6, x ^ dtype(6))
    same(~a, ~x)
    same(a << 2, x << dtype(2))
    same(a >> 1, x >> dtype(1))
    same(~bu.asarray(BOOLS), ~BOOLS)
    same(bu.asarray(BOOLS) & True, BOOLS)


def test_clip() -> None:
    x = bu.asarray(FLOATS)
    same(bu.clip(x, -1.0, 2.0), np.clip(FLOATS, -1.0, 2.0))
    same(bu.clip(x, -1), np.clip(FLOATS, -1, None))
    same(bu.clip(x, max=2), np.clip(FLOATS, None, 2))
    same(bu.clip(x), FLOATS)
    row, column = np.array([0.0, 1.0]), np.array([[2.0], [0.5]])
    ends = bu.clip(bu.asarray([[5.0, -5.0]]), bu.asarray(row), bu.asarray(column))
    same(ends, np.clip([[5.0, -5.0]], row, column))
    with pytest.raises(OpTypeError, match="bounds of f64 do not fit i64"):
        bu.clip(bu.asarray([1, 2]), 0.5)


def test_where() -> None:
    condition = bu.asarray([[True], [False]])
    same(bu.where(condition, bu.asarray([1, 2]), 0.5), np.array([[1.0, 2.0], [0.5, 0.5]]))
    same(bu.where(condition, 1, 2), np.array([[1], [2]]))
    poisoned = bu.where(bu.asarray([True]), 1.0, bu.asarray([NAN]))
    same(poisoned, np.array([1.0]))
    with pytest.raises(OpTypeError, match=r"the condition is i64\[1\], not bool"):
        bu.where(bu.asarray([1]), 1, 2)


def test_broadcasting() -> None:
    a, b = np.arange(3.0).reshape(3, 1), np.arange(4.0)
    same(bu.asarray(a) + bu.asarray(b), a + b)
    same(bu.asarray(a) + b, a + b)
    same(b + bu.asarray(a), a + b)
    same(bu.zeros((0, 3)) + bu.zeros((1, 3)), np.zeros((0, 3)))
    with pytest.raises(OpTypeError) as caught:
        bu.zeros((2, 3)) + bu.zeros((2, 4))
    assert "add: shapes do not broadcast: f64[2,3] and f64[2,4]" in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_what_an_op_does_not_take_is_said_at_the_line() -> None:
    with pytest.raises(OpTypeError) as caught:
        bu.asarray([1.0]) & bu.asarray([2.0])
    assert "and: does not take f64" in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    with pytest.raises(OpTypeError, match="an array is needed, not list"):
        bu.add([1], 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bu.asarray([1.0]) + "a"


def test_compositions_have_finite_gradients_where_they_are_smooth() -> None:
    """A branch that is not taken must not put its infinity into the derivative."""
    points = bu.asarray([0.5, 3.0, 50.0, 1e12])
    for name in ("asinh", "sinh", "cosh", "logaddexp", "hypot"):
        function = getattr(bu, name)
        two = name in ("logaddexp", "hypot")
        safe = points[:3] if name in ("sinh", "cosh") else points

        def total(x: bu.Array, function: Any = function, two: bool = two) -> bu.Array:
            return bu.sum(function(x, x) if two else function(x))

        assert bool(bu.all(bu.isfinite(bu.grad(total)(safe)))), name
    assert bu.grad(lambda x: bu.logaddexp(x, x))(bu.asarray(2.0)).item() == 1.0
    np.testing.assert_allclose(bu.grad(bu.asinh)(bu.asarray(1e12)).item(), 1e-12, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_divmod_is_both_at_once(dtype: Any) -> None:
    a, b = np.array([7, -7, 7, -7], dtype), np.array([2, 2, -2, -3], dtype)
    for left, right in ((a, b), (a, 3), (17, b)):
        ours = [bu.asarray(v) if isinstance(v, np.ndarray) else v for v in (left, right)]
        for found, wanted in zip(divmod(*ours), divmod(left, right), strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert np.asarray(found).dtype == wanted.dtype
