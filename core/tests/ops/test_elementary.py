"""The elementary functions of references: against mpmath, and the same bits on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from mpmath import mp

from bringup.ops import _elementary as elementary

#: What is allowed in the normal range; half a unit is the rounding of the exact value.
LIMIT = 0.52
COUNT = 120
KINDS = [np.float64, np.longdouble]


def sizes(rng: Any, low: float, high: float, signed: bool = True) -> Any:
    """Numbers of all binades between two powers of 2."""
    x = np.ldexp(1 + rng.random(COUNT), np.floor(rng.uniform(low, high, COUNT)).astype(int))
    return x * rng.choice([-1, 1], COUNT) if signed else x


def near_one(rng: Any) -> Any:
    return 1 + sizes(rng, -50, -3)


def both(first: Any, second: Any) -> Any:
    return lambda rng: (first(rng), second(rng))


def of(low: float, high: float, signed: bool = True) -> Any:
    return lambda rng: sizes(rng, low, high, signed)


CASES: list[tuple[str, Any, Any]] = [
    ("exp", mp.exp, of(-60, 9)),
    ("expm1", mp.expm1, of(-60, 9)),
    ("sinh", mp.sinh, of(-60, 9)),
    ("cosh", mp.cosh, of(-20, 9)),
    ("tanh", mp.tanh, of(-60, 6)),
    ("log", mp.log, of(-1020, 1020, signed=False)),
    ("log", mp.log, near_one),
    ("log2", lambda x: mp.log(x) / mp.ln2, of(-1020, 1020, signed=False)),
    ("log2", lambda x: mp.log(x) / mp.ln2, near_one),
    ("log10", lambda x: mp.log(x) / mp.ln10, near_one),
    ("log1p", mp.log1p, of(-60, -1)),
    ("log1p", mp.log1p, of(-3, 60, signed=False)),
    ("asinh", mp.asinh, of(-60, 60)),
    ("acosh", mp.acosh, lambda rng: 1 + sizes(rng, -50, 60, signed=False)),
    ("atanh", mp.atanh, of(-60, -1)),
    ("cbrt", lambda x: mp.sign(x) * mp.cbrt(abs(x)), of(-1020, 1020)),
    ("sin", mp.sin, of(-60, 3)),
    ("sin", mp.sin, of(-1, 1020)),
    ("cos", mp.cos, of(-60, 3)),
    ("cos", mp.cos, of(-1, 1020)),
    ("tan", mp.tan, of(-60, 3)),
    ("tan", mp.tan, of(-1, 1020)),
    ("atan", mp.atan, of(-60, 60)),
    ("asin", mp.asin, of(-60, -1)),
    ("acos", mp.acos, of(-60, -1)),
    ("erf", mp.erf, of(-60, 3)),
    ("erfc", mp.erfc, of(-60, 2)),
    ("erfc", mp.erfc, lambda rng: rng.uniform(1, 26, COUNT)),
    ("power", mp.power, both(of(-1, 1, signed=False), of(-4, 8))),
    ("power", mp.power, both(of(-900, 900, signed=False), of(-8, 0))),
    ("power", mp.power, both(near_one, of(-1, 12))),
    ("hypot", mp.hypot, both(of(-10, 10), of(-10, 10))),
    ("hypot", mp.hypot, both(of(-1000, -990), of(-1000, -980))),
    ("atan2", mp.atan2, both(of(-10, 10), of(-10, 10))),
    ("atan2", mp.atan2, both(of(-60, 60), of(-400, 60))),
]


def exact(number: Any) -> Any:
    """A float as a number of mpmath."""
    mantissa, exponent = np.frexp(number)
    return mp.ldexp(mp.mpf(int(np.ldexp(mantissa, 113))), int(exponent) - 113)


def worst(got: Any, right: list[Any], kind: Any) -> float:
    """The largest error in units of the last place, where the results are normal numbers."""
    info = np.finfo(kind)
    errors = [0.0]
    for value, wanted in zip(got, right, strict=True):
        exponent = mp.frexp(wanted)[1]
        if wanted != 0 and int(info.minexp) < exponent <= int(info.maxexp):
            unit = mp.ldexp(1, exponent - int(info.nmant) - 1)
            errors.append(float(abs(exact(value) - wanted) / unit))
    return max(errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "true", "draw"), CASES)
def test_it_is_all_but_correctly_rounded(name: str, true: Any, draw: Any, kind: Any) -> None:
    drawn = draw(np.random.default_rng(len(name)))
    operands = [x.astype(kind) for x in (drawn if isinstance(drawn, tuple) else (drawn,))]
    got = getattr(elementary, name)(*operands)
    assert got.dtype == kind
    with mp.workprec(300):
        right = [true(*map(exact, point)) for point in zip(*operands, strict=True)]
        assert worst(got, right, kind) < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_erfinv_is_better_than_where_it_starts(kind: Any) -> None:
    x = np.array([1e-9, 0.1, -0.4999, 0.5, 0.75, -0.999, 1 - 2.0**-50], kind)
    with mp.workprec(300):
        right = [mp.erfinv(exact(v)) for v in x]
        start = np.array([float(v) for v in right]).astype(kind) * (1 + kind(2.0**-30))
        assert worst(elementary.erfinv(x, start), right, kind) < 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exact_comes_out_exact(kind: Any) -> None:
    n = np.arange(1, 100).astype(kind)
    assert (elementary.cbrt(n**3) == n).all()
    assert (elementary.power(n, kind(3)) == n**3).all()
    assert (elementary.power(n * n, kind(0.5)) == n).all()
    assert (elementary.log2(np.ldexp(kind(1), np.arange(-99, 100))) == np.arange(-99, 100)).all()
    tens = [10**k for k in range(16)]
    assert elementary.log10(np.array(tens, kind)).tolist() == list(range(16))
    assert elementary.hypot(np.array([3, 5, 8], kind), np.array([4, 12, 15], kind)).tolist() == [
        5,
        13,
        17,
    ]


def test_numbers_next_to_multiples_of_a_quadrant() -> None:
    """J.-M. Muller's worst case of f64, 2^-60 off a multiple, and the nearest float to pi."""
    x = np.array([6381956970095103.0 * 2.0**797, np.pi])
    with mp.workprec(1400):
        right = [mp.cos(exact(x[0])), mp.sin(exact(x[1]))]
        assert worst([elementary.cos(x)[0], elementary.sin(x)[1]], right, np.float64) < LIMIT


def test_subnormal_results_are_rounded_twice_at_most() -> None:
    x = np.linspace(-744.4, -708.4, 200)
    with mp.workprec(300):
        units = [
            abs(exact(a) - mp.exp(exact(b))) for a, b in zip(elementary.exp(x), x, strict=True)
        ]
        assert max(units) / mp.ldexp(1, -1074) < 0.76


def test_shapes_are_broadcast_and_long_arrays_cut_into_blocks() -> None:
    column, row = np.arange(1, 200.0)[:, None], np.arange(1, 300.0)
    table = elementary.hypot(column, row)
    assert table.shape == (199, 299)
    assert table[198, 298] == elementary.hypot(199.0, 299.0)
    assert elementary.exp(np.zeros((0, 3))).shape == (0, 3)
    assert elementary.exp(np.float32(1)).dtype == np.float64


def test_the_same_bits_on_every_machine() -> None:
    """Whatever the C library and numpy's vector units; the digest was made once."""
    bits = np.arange(1, 2**64, 0x1FE5_C391_A4B7_D2F1 // 4096, dtype=np.uint64)
    x = bits.view(np.float64)
    y = x[::-1].copy()
    total = hashlib.sha256()
    with np.errstate(all="ignore"):
        unit = np.where(np.abs(x) <= 1, x, 1 / x)
    for name in sorted({name for name, _, _ in CASES}):
        operands = (x, y) if name in ("power", "hypot", "atan2") else (x,)
        operands = (unit,) if name in ("asin", "acos", "atanh") else operands
        with np.errstate(all="ignore"):
            found = getattr(elementary, name)(*operands)
        # Which NaN it is, the machine decides.
        total.update(np.where(np.isnan(found), 0.5, found).astype("<f8").tobytes())
    assert total.hexdigest()[:16] == "6003e2eca638058e"
