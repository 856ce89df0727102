"""The functions of the circle, the hyperbola, errors and gamma against mpmath, to 40 digits.

Of each row the decomposition to tier 0 and the reference: the bounds in the rows leave room for
devices whose exp, log and sin are 2 ULP off; those of numpy, by which tier 0 is run here, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import DType, f32, f64
from bringup.ops.table import lookup

mpmath = pytest.importorskip("mpmath")
mp = mpmath.mp
Function = Callable[..., Any]
Array = np.ndarray[Any, Any]

BESSEL_EDGES = (8.0, 48.0, 3000.0, 1e15, 1e30, -8.0, 1e-10)
# Row: the function, the interval of its arguments, where it changes its formula.
UNARY: dict[str, tuple[Function, float, float, tuple[float, ...]]] = {
    "log2": (lambda x: mp.log(x) / mp.log(2), 0.0, 9.0, (1.0, 0.5**0.5, 2.0, 1e30)),
    "log10": (mp.log10, 0.0, 12.0, (1.0, 10.0, 1e-30)),
    "tan": (mp.tan, -30.0, 30.0, (np.pi / 4, np.pi / 2, np.pi)),
    "atan": (mp.atan, -6.0, 6.0, (2**0.5 - 1, 2**0.5 + 1, 1.0, 1e10)),
    "asin": (mp.asin, -1.0, 1.0, (0.5, -0.5, 1e-9)),
    "acos": (mp.acos, -1.0, 1.0, (0.5, -0.5, 1 - 1e-7)),
    "sinh": (mp.sinh, -80.0, 80.0, (1.0, 0.5, 88.0)),
    "cosh": (mp.cosh, -80.0, 80.0, (1.0, 1e-3, 88.0)),
    "asinh": (mp.asinh, -4.0, 4.0, (0.5, 1e15, 2.0)),
    "acosh": (mp.acosh, 1.0, 9.0, (1 + 1e-6, 1.5, 1e15)),
    "atanh": (mp.atanh, -1.0, 1.0, (0.5, 1 - 1e-7, 1e-9)),
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), -9.0, 9.0, (1.0, 8.0, 1e-40, 1e30)),
    "erfc": (mp.erfc, -3.0, 9.0, (0.5, 1.0, 8.0, -0.5)),
    "erfinv": (mp.erfinv, -1.0, 1.0, (0.85, -0.85, 1 - 1e-7)),
    "silu": (lambda x: x / (1 + mp.exp(-x)), -80.0, 80.0, (0.0, 1.0)),
    "softplus": (lambda x: mp.log1p(mp.exp(x)), -80.0, 80.0, (0.0, 1.0)),
    "log_sigmoid": (lambda x: -mp.log1p(mp.exp(-x)), -80.0, 80.0, (0.0, 1.0)),
    "lgamma": (lambda x: mp.loggamma(x).real, 1e-6, 40.0, (0.5, 1.0, 1.5, 2.0, 2.5, 8.0)),
    "digamma": (mp.digamma, 2.0, 40.0, (10.0, 11.0)),
    "bessel_i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), -60.0, 60.0, BESSEL_EDGES),
    "bessel_i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), -60.0, 60.0, BESSEL_EDGES),
}
BINARY: dict[str, Function] = {"atan2": mp.atan2, "hypot": mp.hypot}
# Of rows whose bound in general is that of their decomposition.
DERIVED = {"lgamma": 8.0, "digamma": 300.0}


def points(low: float, high: float, edges: tuple[float, ...], dtype: DType, count: int) -> Array:
    kind = dtype.numpy.type
    rng = np.random.default_rng(17)
    drawn = rng.uniform(low, high, count)
    small = np.clip(rng.choice([-1, 1], 100) * np.exp2(rng.uniform(-40, 1, 100)), low, high)
    near = np.array(edges, kind)
    beside = [np.nextafter(near, kind(e)) for e in (-np.inf, np.inf)]
    x = np.concatenate([drawn.astype(kind), small.astype(kind), near, *beside])
    return np.unique(x[(x != 0) & np.isfinite(x)])


def ulp_errors(got: Array, exact: list[Any], dtype: DType) -> Array:
    """Distances from exact numbers in units of the last place."""
    info = np.finfo(dtype.numpy)
    found = []
    for value, wanted in zip(got, exact, strict=True):
        if wanted == 0 or mp.isinf(wanted):
            found.append(0.0 if value == wanted else np.inf)
            continue
        exponent = max(int(mp.floor(mp.log(abs(wanted), 2))), int(info.minexp))
        error = abs(mp.mpf(float(value)) - wanted) / mp.mpf(2) ** (exponent - int(info.nmant))
        found.append(float(error) if np.isfinite(value) else np.inf)
    return np.array(found)


def exactly(function: Function, *operands: Array) -> list[Any]:
    with mp.workdps(40):
        columns = [[mp.mpf(float(v)) for v in x] for x in operands]
        return [function(*row) for row in zip(*columns, strict=True)]


def decomposed(kit: Any, name: str, dtype: DType, *operands: Array) -> Array:
    from bringup.ops.evaluate import evaluate

    types = [dtype[x.size] for x in operands]
    graph = kit.lowered(kit.graph(lookup(name), types, {}))
    with np.errstate(all="ignore"):
        return np.asarray(evaluate(graph, list(operands))[0])


def allowed(name: str, dtype: DType) -> float:
    return DERIVED.get(name) or lookup(name).accuracy.ulp[dtype.name]


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_decompositions(kit: Any, name: str, dtype: DType) -> None:
    function, low, high, edges = UNARY[name]
    x = points(low, high, edges, dtype, 400)
    exact = exactly(function, x)
    errors = ulp_errors(decomposed(kit, name, dtype, x), exact, dtype)
    assert errors.max() <= allowed(name, dtype), (name, x[errors.argmax()], errors.max())
    reference = np.asarray(lookup(name).reference(x.astype(kit.wider(dtype))))
    off = ulp_errors(reference, exact, dtype).max()
    assert off <= (2.0 if name not in DERIVED else allowed(name, dtype)), (name, off)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_decompositions(kit: Any, name: str, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    kind = dtype.numpy.type
    sizes = np.exp2(rng.uniform(-70, 70, (2, 500))) * rng.choice([-1, 1], (2, 500))
    sizes[1, :250] = sizes[0, :250] * rng.choice([1, 2**0.5 - 1, 2**0.5 + 1, 0.3], 250)
    x, y = sizes.astype(kind)
    exact = exactly(BINARY[name], x, y)
    errors = ulp_errors(decomposed(kit, name, dtype, x, y), exact, dtype)
    assert errors.max() <= allowed(name, dtype), (name, errors.max())
    assert ulp_errors(np.asarray(lookup(name).reference(x, y)), exact, dtype).max() <= 1.0


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_gamma_left_of_zero(kit: Any, dtype: DType) -> None:
    """To an absolute error, as there are roots: of the size of what is subtracted."""
    x = points(-9.0, -1e-6, (-0.5, -2.25, -1e-30), dtype, 300)
    x = x[np.abs(x - np.rint(x)) > 1e-3]
    eps = float(np.finfo(dtype.numpy).eps)
    for name, function in (
        ("lgamma", lambda v: mp.log(abs(mp.gamma(v)))),
        ("digamma", mp.digamma),
    ):
        wanted = np.array([float(v) for v in exactly(function, x)])
        got = decomposed(kit, name, dtype, x).astype(np.float64)
        scale = 16 + np.abs(wanted) * (1 + np.abs(x) / np.abs(x - np.rint(x)))
        assert (np.abs(got - wanted) <= 4 * eps * scale).all(), name


def test_the_derivative_of_digamma_is_trigamma(kit: Any) -> None:
    import bringup as bu

    x = np.array([0.3, 1.0, 1.46, 2.0, 5.5, 9.99, 10.0, 40.0])
    slope = bu.grad(lambda v: bu.sum(bu.special.digamma(v)))(bu.asarray(x))
    wanted = [float(mp.polygamma(1, v)) for v in x]
    np.testing.assert_allclose(np.asarray(slope), wanted, rtol=1e-12)
    slope = bu.grad(lambda v: bu.sum(bu.special.lgamma(v)))(bu.asarray(x))
    wanted = [float(mp.digamma(v)) for v in x]
    np.testing.assert_allclose(np.asarray(slope), wanted, rtol=1e-13, atol=1e-14)
