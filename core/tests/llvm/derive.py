"""Derive the polynomials of ``maths``, ``llvm.math`` and ``ops``: minimax by Remez's exchange.

Needs mpmath.  ``python derive.py [name …]`` prints, for f32 and f64, the coefficients from the
lowest power up and the weighted error as a power of two.  Coefficients are rounded to the working
precision one at a time, lowest power first, and the rest are fitted again each time, so that the
rounding of one is absorbed by the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

mp.dps = 50
Real = Any
Function = Callable[[Real], Real]


@dataclass(frozen=True, slots=True)
class Fit:
    """Approximate ``target`` by a polynomial on [low, high], in the error ``weight * (…)``."""

    target: Function
    weight: Function
    low: Real
    high: Real
    degree: dict[str, int]


def _nodes(low: Real, high: Real, n: int) -> list[Real]:
    return [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * n))
        for k in range(n)
    ]


def _horner(coefficients: list[Real], x: Real) -> Real:
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _solve(xs: list[Real], fs: list[Real], ws: list[Real]) -> list[Real]:
    """Coefficients of the polynomial whose weighted error alternates over ``xs``."""
    n = len(xs) - 1
    matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
    for i, (x, f, w) in enumerate(zip(xs, fs, ws, strict=True)):
        for j in range(n):
            matrix[i, j] = x**j * w
        matrix[i, n] = (-1) ** i
        right[i] = f * w
    with mp.workdps(120):  # at 50 digits, powers of many numbers near 0 look dependent
        return list(mp.lu_solve(matrix, right))[:n]


def _extremes(errors: list[Real], count: int) -> list[int]:
    """Indices of ``count`` successive alternating extremes, the largest there are."""
    picked: list[int] = []
    for k, e in enumerate(errors):
        if picked and (e > 0) == (errors[picked[-1]] > 0):
            if abs(e) > abs(errors[picked[-1]]):
                picked[-1] = k
        else:
            picked.append(k)
    while len(picked) > count:
        picked.pop(0 if abs(errors[picked[0]]) < abs(errors[picked[-1]]) else -1)
    return picked


def _remez(grid: list[Real], fs: list[Real], ws: list[Real], n: int) -> list[Real]:
    """The ``n`` coefficients of the minimax polynomial over the grid."""
    picked = [round((len(grid) - 1) * (1 - np.cos(np.pi * k / n)) / 2) for k in range(n + 1)]
    best: tuple[Real, list[Real]] = (mp.inf, [])
    seen = set()
    for _ in range(30):
        seen.add(tuple(picked))
        c = _solve([grid[k] for k in picked], [fs[k] for k in picked], [ws[k] for k in picked])
        errors = [(f - _horner(c, x)) * w for x, f, w in zip(grid, fs, ws, strict=True)]
        worst = max(abs(e) for e in errors)
        if worst < best[0]:
            best = (worst, c)
        following = _extremes(errors, n + 1)
        if len(following) < n + 1 or tuple(following) in seen:
            break  # what follows would be what was
        picked = following
    return best[1]


def _rounded(c: Real, dtype: str) -> Real:
    if dtype == "f64":
        return mpf(float(c))
    with mp.workprec(24):
        return +c


def derive(fit: Fit, dtype: str) -> tuple[list[Real], float]:
    """The coefficients, lowest power first, and log2 of the largest weighted error."""
    degree = fit.degree[dtype]
    # An even number of nodes: none at 0, where weights may vanish.
    grid = _nodes(mpf(fit.low), mpf(fit.high), 40 * (degree + 2))
    rest = [fit.target(x) for x in grid]
    ws = [abs(fit.weight(x)) for x in grid]
    done = []
    for power in range(degree + 1):
        c = _rounded(_remez(grid, rest, ws, degree + 1 - power)[0], dtype)
        done.append(c)
        # What is left is c' x + …: fit it over x, so that the powers stay a Chebyshev system.
        rest = [(f - c) / x for f, x in zip(rest, grid, strict=True)]
        ws = [w * abs(x) for w, x in zip(ws, grid, strict=True)]
    worst = max(abs(w * e) for w, e in zip(ws, rest, strict=True))
    return done, float(mp.log(worst, 2))


def _log_target(f: Real) -> Real:
    return (mp.log1p(f) - f + f * f / 2) / f**3


def _atanh_target(z: Real) -> Real:
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / (s * z)


def _log2_tail(terms: int) -> Function:
    """Log2((1+s)/(1-s)) / s without its first ``terms`` Taylor terms, over z^terms; z = s^2."""

    def tail(z: Real) -> Real:
        with mp.workdps(90):
            s = mp.sqrt(z)
            head = sum(2 * z**k / (2 * k + 1) for k in range(terms))
            return (2 * mp.atanh(s) / s - head) / z**terms / mp.log(2)

    return tail


def _odd(function: Function) -> Function:
    """``(f(t) / t - 1) / z`` over z = t^2, for odd f with slope 1."""
    return lambda z: (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z


def _over_odd(function: Function) -> Function:
    """What turns an error of that into a relative one of f."""
    return lambda z: z * mp.sqrt(z) / function(mp.sqrt(z))


def _erfcx(u: Real) -> Real:
    """``exp(x^2) erfc(x)`` at x = u + 1/2."""
    return mp.exp((u + mpf(1) / 2) ** 2) * mp.erfc(u + mpf(1) / 2)


def _stirling(x: Real) -> Real:
    """What Stirling's formula lacks, times x."""
    head = (x - mpf(1) / 2) * (mp.log(x) - 1) + (mp.log(2 * mp.pi) - 1) / 2
    return (mp.loggamma(x) - head) * x


def _bessel(order: int) -> tuple[Function, Function]:
    """The modified Bessel function over ``(x/2)^order`` as a function of x²/4, and its inverse."""

    def target(z: Real) -> Real:
        return mp.besseli(order, 2 * mp.sqrt(z)) / mp.sqrt(z) ** order

    return target, lambda z: 1 / target(z)


def _bessel_far(order: int) -> tuple[Function, Function]:
    """``√x e^-x`` times that function, of x = 8/t, and its inverse."""

    def target(t: Real) -> Real:
        return mp.sqrt(8 / t) * mp.exp(-8 / t) * mp.besseli(order, 8 / t)

    return target, lambda t: 1 / target(t)


_R = mp.log(2) / 2 * mpf("1.0001")
_Q = mp.pi / 4 * mpf("1.0001")
_S = (3 - 2 * mp.sqrt(2)) ** 2 * mpf("1.0001")
_TINY = mpf(10) ** -12
FITS = {
    # e^r = 1 + r + r^2 p(r)
    "exp": Fit(
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        -_R,
        _R,
        {"f32": 4, "f64": 10},
    ),
    # The same, good for e^r - 1.
    "expm1": Fit(
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.expm1(r),
        -_R,
        _R,
        {"f32": 5, "f64": 10},
    ),
    # 2^r = 1 + r p(r)
    "exp2": Fit(
        lambda r: mp.expm1(r * mp.log(2)) / r,
        lambda r: r / mpf(2) ** r,
        mpf("-.50001"),
        mpf(".50001"),
        {"f32": 5, "f64": 10},
    ),
    # log(1 + f) = f - f^2/2 + f^3 p(f)
    "log": Fit(
        _log_target,
        lambda f: f**3 / mp.log1p(f),
        mpf(-1) / 3 - mpf(2) ** -20,
        mpf(1) / 3 + mpf(2) ** -20,
        {"f32": 8},
    ),
    # log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2
    "atanh": Fit(
        _atanh_target,
        lambda z: z / (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z)),
        _TINY,
        mpf(".0401"),
        {"f32": 2, "f64": 7},
    ),
    # log2((1 + s)/(1 - s)) = s (2/ln 2) (1 + z/3 [+ z^2/5]) + s z^2|3 p(z)
    "log2_f32": Fit(_log2_tail(2), lambda z: z**2, _TINY, _S, {"f32": 2}),
    "log2_f64": Fit(_log2_tail(3), lambda z: z**3, _TINY, _S, {"f64": 6}),
    # sin r = r + r z p(z), cos r = 1 - z/2 + z^2 q(z), z = r^2
    "sin": Fit(
        lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)),
        _TINY,
        _Q**2,
        {"f32": 2, "f64": 5},
    ),
    "cos": Fit(
        lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
        lambda z: z**2 / mp.cos(mp.sqrt(z)),
        _TINY,
        _Q**2,
        {"f32": 2, "f64": 5},
    ),
    # erf x = x + x p(z), z = x^2, |x| <= 1
    "erf_small": Fit(
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        _TINY,
        mpf(1),
        {"f32": 6, "f64": 11},
    ),
    # erf x = 1 - exp(p(x - 1)), 1 <= x
    "erf_f32": Fit(
        lambda u: mp.log(mp.erfc(u + 1)), lambda u: mp.erfc(u + 1), mpf(0), mpf(3), {"f32": 8}
    ),
    "erf_f64": Fit(
        lambda u: mp.log(mp.erfc(u + 1)), lambda u: mp.erfc(u + 1), mpf(0), mpf(5), {"f64": 18}
    ),
    # f t = t + t z p(z), z = t^2: |t| <= tan(pi/8), 1/2, 1, 1/2, 1/2
    "atan": Fit(_odd(mp.atan), _over_odd(mp.atan), _TINY, mpf(".171573"), {"f32": 4, "f64": 10}),
    "asin": Fit(_odd(mp.asin), _over_odd(mp.asin), _TINY, mpf(".25"), {"f32": 4, "f64": 12}),
    "sinh": Fit(_odd(mp.sinh), _over_odd(mp.sinh), _TINY, mpf(1), {"f32": 3, "f64": 7}),
    "asinh": Fit(_odd(mp.asinh), _over_odd(mp.asinh), _TINY, mpf(".25"), {"f32": 4, "f64": 12}),
    "atanh_wide": Fit(
        _odd(mp.atanh), _over_odd(mp.atanh), _TINY, mpf(".25"), {"f32": 5, "f64": 13}
    ),
    # log gamma(2 + s) = s (1 - euler) + s^2 p(s + 1/2), |s| <= 1/2
    "lgamma": Fit(
        lambda t: (
            (mp.loggamma(t + mpf(3) / 2) - (t - mpf(1) / 2) * (1 - mp.euler))
            / (t - mpf(1) / 2) ** 2
        ),
        lambda t: (t - mpf(1) / 2) ** 2 / mp.loggamma(t + mpf(3) / 2),
        mpf(0),
        mpf(1),
        {"f32": 7, "f64": 16},
    ),
    # log gamma x = (x - 1/2) (log x - 1) + (log 2 pi - 1)/2 + p(z) / x, z = 1/x^2, x >= 8
    "stirling": Fit(
        lambda z: _stirling(1 / mp.sqrt(z)),
        lambda z: mp.sqrt(z) / mp.loggamma(1 / mp.sqrt(z)),
        mpf("1e-8"),
        mpf(1) / 64,
        {"f32": 1, "f64": 6},
    ),
    # erfc x = exp(-x^2) p(x - 1/2), 1/2 <= x <= 1
    "erfcx": Fit(_erfcx, lambda u: 1 / _erfcx(u), mpf(0), mpf(".5001"), {"f32": 7, "f64": 14}),
    # I0(x) = p(x²/4) and I1(x) = x/2 p(x²/4) up to 8; beyond, both over e^x/√x are p(8/x).
    "bessel_i0": Fit(*_bessel(0), mpf(0), mpf(16), {"f32": 9, "f64": 15}),
    "bessel_i0_far": Fit(*_bessel_far(0), mpf(0), mpf(1), {"f32": 5, "f64": 21}),
    "bessel_i1": Fit(*_bessel(1), mpf(0), mpf(16), {"f32": 9, "f64": 15}),
    "bessel_i1_far": Fit(*_bessel_far(1), mpf(0), mpf(1), {"f32": 5, "f64": 21}),
    # The cube root of 1 <= x <= 8, where an iteration starts.
    "cbrt": Fit(mp.cbrt, lambda x: 1 / mp.cbrt(x), mpf(1), mpf(8), {"f32": 3}),
}


def main(names: list[str]) -> None:
    """Print the tables asked for, or all."""
    for name in names or FITS:
        for dtype in FITS[name].degree:
            coefficients, error = derive(FITS[name], dtype)
            sys.stdout.write(f"{name} {dtype}: error 2^{error:.1f}\n")
            for c in coefficients:
                number = np.float32(float(c)) if dtype == "f32" else float(c)
                sys.stdout.write(f"    {number!s},\n")


if __name__ == "__main__":
    main(sys.argv[1:])
