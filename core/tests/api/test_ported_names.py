"""Functions under the names of numpy and JAX do what numpy's do; op by op, compiled, derived."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu

OURS = {name: getattr(bu, name) for name in dir(bu) if not name.startswith("_")}
#: Samples have at most so many elements, and so many terms are in a sum.
TERMS = 24
DTYPES = ("f8", "f4", "i4", "u1")
#: Of this dtype every case runs by itself too; of all, in one compiled program.
BY_ITSELF = "f8"


def samples(dtype: str) -> dict[str, Any]:
    """Arrays of a dtype: matrices x and y, vectors v, w, z and rising up, a cube c, empty e, 0-d s;
    integers i, and n with NaN and infinities, whatever the dtype.
    """
    rng = np.random.default_rng(3)
    scale = 1 if dtype[0] in "iu" else 4
    low = 0 if dtype[0] == "u" else -9

    def some(*shape: int) -> Any:
        return (rng.integers(low, 10, shape) / scale).astype(dtype)

    return {
        "x": some(2, 3), "y": some(2, 3), "v": some(4), "w": some(4), "z": some(7),
        "c": some(2, 3, 4), "e": np.zeros((0, 3), dtype), "s": np.asarray(3, dtype),
        "up": np.arange(1, 6).astype(dtype), "i": np.array([2, 0, 2, 5]),
        "n": np.array([1.5, np.nan, -2.0, np.inf, -np.inf, 0.0, -0.0]).astype(
            dtype if dtype[0] == "f" else "f8"
        ),
    }  # fmt: skip


#: Movement, choices, comparisons and counts: no element is off.
EXACT = """
concatenate([x, y]); concatenate((x, y), 1); concatenate([x, y], axis=None); concatenate([e, x])
swapaxes(c, 0, -1); swapaxes(c, 1, 1); transpose(c); transpose(c, (1, 0, 2)); transpose(s)
ravel(c); ravel(s); ravel(e); rot90(x); rot90(x, 2); rot90(x, -1); rot90(c, 3, (1, 2))
fliplr(x); flipud(x); flipud(v); atleast_1d(s); atleast_2d(s); atleast_2d(v); atleast_3d(s)
atleast_3d(v); atleast_3d(x); atleast_3d(c); atleast_1d(s, x)[0]; atleast_2d(s, v)[1]
hstack([x, y]); hstack([v, w]); hstack([s, s]); vstack([x, y]); vstack([v, w]); vstack((s, s))
dstack([x, y]); dstack([v, w]); column_stack([v, w]); column_stack([x, y]); column_stack([v, w, w])
append(x, y); append(x, y, 0); append(v, s); append(e, x, 0)
split(v, 2)[1]; split(x, 3, 1)[2]; split(c, [1, 2], 1)[1]; split(v, [1, -1])[1]; split(v, [9])[1]
array_split(z, 3)[0]; array_split(z, 3)[2]; array_split(e, 2)[1]; array_split(x, 5, 1)[4]
hsplit(x, 3)[1]; hsplit(v, 2)[0]; vsplit(x, 2)[1]; dsplit(c, 2)[1]
pad(v, 2); pad(x, (1, 2)); pad(x, ((1, 0), (0, 2)), "constant", constant_values=5); pad(s, 1)
pad(v, 3, "edge"); pad(v, 3, "reflect"); pad(v, 9, "reflect"); pad(v, 9, "symmetric")
pad(v, (9, 2), "wrap"); pad(v, (1, 0), "wrap"); pad(v[:2], 3, "wrap")
pad(v[:2], 99, "reflect"); pad(v[:1], 2, "symmetric"); pad(v[:1], 3, "reflect"); pad(c, 2, "wrap")
pad(v, (0, 1), "symmetric"); pad(x, ((0, 0), (4, 1)), "edge"); pad(x, 1, mode="reflect")
identity(3); tri(3); tri(2, 4, 1); tri(3, 3, -1); tril_indices(3); triu_indices(3)
tril_indices(3, 1, 4); triu_indices(4, -1, 2); diag(v); diag(v, 2); diag(v, -1); diag(x); diag(x, 1)
diag(x, -5); diagonal(x); diagonal(c, 1, 1, 2); diagonal(c, axis1=2, axis2=0); diagonal(e)
unravel_index(i, (2, 3)); unravel_index(4, (2, 3)); unravel_index(i, (2, 1, 4))
ravel_multi_index((i % 2, i % 3), (2, 3)); ravel_multi_index((i, i), (2, 3), mode="clip")
ravel_multi_index((i, i), (2, 3), mode="wrap"); size(c); size(c, 1); ndim(c); shape(c)
absolute(x); amax(c); amax(c, 1); amin(c, (0, 2)); conjugate(x); mod(x, 4); mod(x, s)
fmod(x, s); fmod(x, 4); divmod(x, s); around(x); fix(x); true_divide(x, 2)
heaviside(x, 7); heaviside(n, 0.5); fmax(x, y); fmin(x, y); fmax(n, n[::-1]); fmin(n, n[::-1])
fmax(n, 0.0); fmin(0.0, n); isclose(x, y); isclose(n, n); isclose(n, n, equal_nan=True)
isclose(x, x + x / 65536, 1e-4, 0.0); isclose(x, x + x / 65536, 1e-6, 0.0); allclose(x, x)
allclose(x, y); allclose(n, n, equal_nan=True); array_equal(x, x); array_equal(x, y)
array_equal(x, v); array_equal(n, n); array_equal(n, n, equal_nan=True); isposinf(n); isneginf(n)
nan_to_num(n); nan_to_num(n, posinf=3.0, neginf=-2.0, nan=1.0); nan_to_num(x); ptp(x); ptp(x, 1)
ptp(c, axis=(0, 2)); nanmax(x); nanmax(n); nanmin(n); nanmin(c, 1); nanmax(n[1:2]); nanmin(n[1:2])
nanmax(c, (0, 2), keepdims=True); nanargmax(n); nanargmin(n); nanargmax(c, 1); nanargmin(c, 2)
digitize(x, up); digitize(x, up, True); digitize(x, up[::-1]); digitize(n, up); digitize(v, up[:1])
lexsort((v, w)); lexsort((w // 2, v // 3)); lexsort(c); lexsort(c, 0); lexsort([x, y], axis=0)
select([x > 1, x > 0], [x, y], 3); select([x > 1, x > 0], [x, y * 2]); argwhere(x); argwhere(v)
flatnonzero(x); bincount(i); bincount(i, minlength=9); bincount(i, None, 3)
interp(v, up, up * 2); polyval(v[:2], s); vander(v); vander(v, 3); vander(v, 3, True); vander(v, 0)
piecewise(x, [x > 0, x > 2], [7, 8]); piecewise(x, [x > 0], [lambda a: a + a, 5])
piecewise(v, v > 1, [lambda a, b: a + b, 1], 2)
"""
#: Numbers of these names are integers alone.
INTEGERS = """
invert(x); bitwise_not(x); left_shift(x, 1); right_shift(x, 1); right_shift(x, s); invert(s)
"""
#: Elementwise arithmetic: 4 ULP of each element, as the table lets functions be off.
NEAR = """
fabs(x); arccos(x / 16); arccosh(x * x + 1); arcsin(x / 16); arcsinh(x); arctan(x); arctan2(x, y)
arctanh(x / 16); power(x * x, 2); power(absolute(x) + 1, 0.5); deg2rad(x); rad2deg(x); radians(x)
degrees(x); exp2(x); exp2(n); sinc(n[5:]); sinc(x / 1024)
logaddexp2(n[3:], n[3:]); logaddexp2(n[3:4], 1.0); float_power(absolute(x) + 1, 2)
geomspace(1, 1000, 7); geomspace(-1, -8, 4); geomspace(2, 9, 3, endpoint=False); geomspace(1, 2, 1)
logspace(0, 3, 5); logspace(0, 3, 5, base=2.0); logspace(0, 3, 4, endpoint=False)
"""
#: The same of the largest operand, where larger numbers cancel.
CLOSE = """
sinc(x); logaddexp2(x, y); logaddexp2(x, -1.0)
"""
#: Sums of at most `TERMS` terms of at most 100, in any order.
SUMS = """
cumsum(x); cumsum(x, 1); cumsum(e, 0); cumsum(c, axis=1, dtype='f8'); cumprod(v); cumprod(x, 0)
product(v); average(x); average(x, 0); average(c, axis=1); average(v, weights=w * w + 1)
average(c, 1, weights=up[:3]); average(x, weights=y * y + 1)
nancumsum(n[:3]); nancumsum(c, 1); nancumprod(n[:3])
nansum(n); nansum(n[:3]); nansum(c, (0, 1)); nansum(e); nanprod(n[:3]); nanprod(v); nanmean(n[:3])
nanmean(n[1:2]); nanmean(c, 1); nanmean(x, keepdims=True); nanvar(n[:3]); nanvar(c, (0, 2))
nanstd(n[:3]); nanstd(c, 0); nanvar(n[:4])
nanmedian(n[:3]); nanmedian(c, 1); nanmedian(x); nanmedian(n[1:2])
percentile(x, 30); percentile(c, [10, 50], 1); nanpercentile(n[:3], 40); nanquantile(c, 0.3, 1)
nanquantile(n[:3], [0.0, 0.25, 1.0]); nanpercentile(c, [25, 75], (0, 2)); percentile(v, 100)
dot(v, w); dot(x, y.T); dot(s, x); dot(c, v); dot(v, y[0, 0]); dot(x, c[0]); vdot(x, y)
inner(v, w); inner(x, y); inner(c, v); inner(s, x); kron(x, y); kron(v, x); kron(s, v); kron(c, v)
convolve(v, z); convolve(z, v); convolve(v, z, "same"); convolve(v, w, "valid")
convolve(z, v, "same")
convolve(z, v, "valid"); correlate(v, z); correlate(z, v); correlate(z, v, "full")
correlate(v, z, "full"); correlate(v, z, "same"); correlate(z, v, "same")
convolve(z, v[:3], "same")
trapezoid(x); trapezoid(x, dx=2.0); trapezoid(z, axis=0); trapezoid(v, up[:4] * up[:4])
trapezoid(c, axis=1); trapezoid(x, y); gradient(v); gradient(v, 2.0); gradient(z[:5], up * up)
gradient(c, axis=1); gradient(x, 2.0, 0.5)[1]; gradient(x)[0]; gradient(c, axis=(2, 0))[0]
interp(v, up, up * up); interp(v, up, up * up, -1.0, 99.0); interp(n, up, up * 2)
interp(v, up[:1], up[:1]); polyval(v, w); polyval(v, x); polyval(up, s)
cov(x); cov(v, w); cov(x, rowvar=False); cov(x, bias=True); cov(c[0], ddof=0); cov(v); cov(x, y)
linalg.norm(x); linalg.norm(v); linalg.norm(c); linalg.norm(x, axis=1); linalg.norm(v, 1)
linalg.norm(x, 1); linalg.norm(x, "fro"); linalg.norm(v, float("inf")); linalg.norm(c, axis=(0, 2))
linalg.norm(c, 1, (1, 2)); linalg.norm(c, float("inf"), axis=(2, 0), keepdims=True)
linalg.norm(x, axis=0, keepdims=True); linalg.norm(v, 3); linalg.norm(x, axis=-1, ord=1)
linalg.multi_dot([x, y.T, x]); linalg.multi_dot([v, c[0].T, x.T])
linalg.multi_dot([x, y.T, x, y[0]])
fft.fft2(x); fft.ifft2(x); fft.rfft2(x); fft.irfft2(x + 0.0); fft.fft2(c); fft.fft2(c, axes=(0, 1))
fft.rfft2(x, (4, 4)); fft.fft2(x, norm="ortho"); apply_along_axis(sum, 1, c)
apply_along_axis(cumsum, 0, x); apply_along_axis(lambda a: a[:2], 1, c)
"""


def listed(text: str) -> list[str]:
    return [case.strip() for case in text.replace("\n", ";").split(";") if case.strip()]


def evaluated(case: str, names: dict[str, Any], arrays: dict[str, Any]) -> Any:
    return eval(case, {"float": float, **names, **arrays})


def references(case: str, arrays: dict[str, Any], wide: bool) -> Any:
    """What numpy gives, of f4 in f8."""
    if wide:
        arrays = {k: x.astype("f8") if x.dtype == "f4" else x for k, x in arrays.items()}
    names = {**vars(np), "product": np.prod, "fft": np.fft, "linalg": np.linalg}
    with np.errstate(all="ignore"):
        return evaluated(case, names, arrays)


def leaves(value: Any) -> list[Any]:
    parts = value if isinstance(value, tuple | list) else [value]
    return [np.asarray(part) for part in parts]


def check(found: Any, expected: Any, ulps: float, least: float, dtype: str, case: str) -> None:
    """least: the size that errors are relative to, of smaller elements; 0 for their own."""
    mine, theirs = leaves(found), leaves(expected)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape, case
        assert a.dtype.kind == b.dtype.kind or (a.dtype.kind, b.dtype.kind) == ("i", "u"), case
        if not ulps or a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, case)
            continue
        if dtype == "f4" and a.dtype.kind == "f" and b.dtype == "f8":
            b_own = b.astype(a.dtype)  # overflows as it should
        else:
            b_own = b
        eps = np.finfo(a.dtype).eps
        same = (a == b_own) | (np.isnan(a) & np.isnan(b_own))
        wide = np.where(same, 0, a) - np.where(same, 0, b)
        bound = ulps * eps * np.maximum(np.abs(np.where(same, 0, b)), least)
        assert np.all(np.abs(wide) <= bound + np.finfo(a.dtype).tiny), (case, a, b)


CASES = [
    (case, dtype, kind)
    for kind, text, dtypes in (
        ("exact", EXACT, DTYPES),
        ("exact", INTEGERS, DTYPES[2:]),
        ("near", NEAR, DTYPES[:3]),
        ("close", CLOSE, DTYPES[:3]),
        ("sums", SUMS, DTYPES[:3]),
    )
    for case in listed(text)
    for dtype in dtypes
]
#: ULP, and the size that they are relative to at least.
BOUNDS = {"exact": (0, 0.0), "near": (4, 0.0), "close": (4, 9.0), "sums": (2 * TERMS, 100.0)}
#: Where numpy wraps unsigned integers, or has another dtype, by the name of the function.
NOT_OF = {"u1": ("vander", "polyval", "heaviside", "fix", "interp", "true_divide")}
#: What is looked at to find the shape of a result: not under `jit`.
LOOKED_AT = ("argwhere", "flatnonzero", "bincount")


@pytest.mark.filterwarnings("ignore:All-NaN slice|Mean of empty:RuntimeWarning")
@pytest.mark.parametrize("kind", ["exact", "near", "close", "sums"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ported_names_do_what_numpys_do(dtype: str, kind: str) -> None:
    ulps, least = BOUNDS[kind]
    arrays = samples(dtype)
    mine = {k: bu.asarray(x) for k, x in arrays.items()}
    expected: dict[str, Any] = {}
    for case, own, sort in CASES:
        name = case.partition("(")[0]
        if (own, sort) != (dtype, kind) or name in NOT_OF.get(dtype, ()):
            continue
        expected[case] = references(case, arrays, kind != "exact")
        if dtype == BY_ITSELF or name in LOOKED_AT:
            check(evaluated(case, OURS, mine), expected[case], ulps, least, dtype, case)
    compiled = [case for case in expected if case.partition("(")[0] not in LOOKED_AT]
    results = bu.jit(lambda given: [evaluated(case, OURS, given) for case in compiled])(mine)
    for case, found in zip(compiled, results, strict=True):
        check(found, expected[case], ulps, least, dtype, case)
        if dtype == "f4" and not case.startswith(("identity", "tri(", "geomspace", "logspace")):
            for part in leaves(found):
                kinds = ("f4", "i8", "b1", "c8")
                assert part.dtype in [np.dtype(k) for k in kinds] or "'f8'" in case, (case, part)


#: Functions of a vector that has NaN at its second place, and their derivatives by the others.
NAN_DERIVATIVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "nansum": (bu.nansum, np.ones_like),
    "nanprod": (bu.nanprod, lambda v: np.prod(v) / v),
    "nanmean": (bu.nanmean, lambda v: np.ones_like(v) / v.size),
    "nanvar": (bu.nanvar, lambda v: 2 * (v - v.mean()) / v.size),
    "nanstd": (bu.nanstd, lambda v: (v - v.mean()) / v.size / v.std()),
    "nanmax": (bu.nanmax, lambda v: (v == v.max()) * 1.0),
    "nanmin": (bu.nanmin, lambda v: (v == v.min()) * 1.0),
    "nanmedian": (bu.nanmedian, lambda v: (v == np.median(v)) * 1.0),
    "nan_to_num": (lambda v: bu.sum(bu.nan_to_num(v) ** 2), lambda v: 2 * v),
}


@pytest.mark.parametrize("name", NAN_DERIVATIVES)
def test_derivatives_beside_nan(name: str) -> None:
    function, expected = NAN_DERIVATIVES[name]
    found = np.asarray(bu.grad(function)(bu.asarray([1.0, math.nan, -2.5, 4.0])))
    wanted = expected(np.array([1.0, -2.5, 4.0]))
    assert found[1] == 0
    assert np.abs(np.delete(found, 1) - wanted).max() <= 16 * np.finfo("f8").eps * 12


def test_derivatives_of_numeric_functions() -> None:
    """Of numbers that floats hold: exact."""
    x, y = bu.asarray([1.0, 2.0, 4.0]), bu.asarray([3.0, 5.0, 6.0])
    by_y = bu.grad(lambda y: bu.interp(3.0, x, y))(y)
    assert by_y.tolist() == [0.0, 0.5, 0.5]
    assert bu.grad(lambda a: bu.interp(a, x, y))(bu.asarray(3.0)).item() == 0.5
    assert bu.grad(lambda y: bu.trapezoid(y, x))(y).tolist() == [0.5, 1.5, 1.0]
    assert bu.grad(lambda p: bu.polyval(p, 2.0))(x).tolist() == [4.0, 2.0, 1.0]
    assert bu.grad(lambda v: bu.sum(bu.vander(v, 4)))(bu.asarray([0.0])).tolist() == [1.0]
    weights = bu.grad(lambda w: bu.sum(bu.convolve(x, w) * bu.arange(4)))(bu.asarray([1.0, 1.0]))
    assert weights.tolist() == [10.0, 17.0]
    assert bu.grad(lambda x: bu.linalg.norm(x))(bu.asarray([3.0, 0.0])).tolist() == [1.0, 0.0]
    for pair in ((2.0, 2.0), (-math.inf, 1.0)):
        both = bu.grad(lambda a, b: bu.logaddexp2(a, b), argnums=(0, 1))(*map(bu.asarray, pair))
        assert sum(float(part) for part in both) == 1.0, pair


@pytest.mark.parametrize("dtype", [bu.float16, bu.bfloat16], ids=str)
def test_halves_stay_halves(dtype: Any) -> None:
    arrays = {k: bu.asarray(x).astype(dtype) for k, x in samples("f4").items() if k != "i"}
    arrays["i"] = bu.asarray(samples("f4")["i"])
    others = ("identity", "tri(", "geomspace", "logspace", "linalg", "fft", "cov")
    for case in listed(NEAR + CLOSE + SUMS):
        if not case.startswith(others) and "'f8'" not in case:
            for part in leaves_of_ours(evaluated(case, OURS, arrays)):
                assert part.dtype is dtype or not part.dtype.is_float, case


def leaves_of_ours(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]
