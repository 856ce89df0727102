"""Values of complex functions: special ones by the standards, others beside mpmath."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest

import bringup as bu

# ISO/IEC 9899:2011, Annex G.6; the array API standard 2024.12 has the same rows, and expm1's and
# log1p's are its own.  Each row: real and imaginary part of the argument, then of the result.
# ``x`` is any finite number, ``p`` any positive one, ``n`` any negative one, ``y`` any finite
# number above 0, ``z`` 0 or above; ``~`` leaves the sign open, and ``cis`` and ``sin2`` are signs.
TABLES = {
    "acos": """
        ~0 0 pi/2 -0 | ~0 nan pi/2 nan | x inf pi/2 -inf | x' nan nan nan | -inf y pi -inf
        inf y 0 -inf | -inf inf 3pi/4 -inf | inf inf pi/4 -inf | ~inf nan nan ~inf
        nan z nan nan | nan inf nan -inf | nan nan nan nan""",
    "acosh": """
        ~0 0 0 pi/2 | x inf inf pi/2 | ~0 nan nan ~pi/2 | x' nan nan nan | -inf y inf pi
        inf y inf 0 | -inf inf inf 3pi/4 | inf inf inf pi/4 | ~inf nan inf nan
        nan z nan nan | nan inf inf nan | nan nan nan nan""",
    "asinh": """
        0 0 0 0 | p inf inf pi/2 | p nan nan nan | inf z inf 0 | inf inf inf pi/4 | inf nan inf nan
        nan 0 nan 0 | nan y nan nan | nan inf ~inf nan | nan nan nan nan""",
    "atanh": """
        0 0 0 0 | 0 nan 0 nan | 1 0 inf 0 | p inf 0 pi/2 | p nan nan nan | inf z 0 pi/2
        inf inf 0 pi/2 | inf nan 0 nan | nan z nan nan | nan inf ~0 pi/2 | nan nan nan nan""",
    "cosh": """
        0 0 1 0 | 0 inf nan ~0 | 0 nan nan ~0 | p inf nan nan | p nan nan nan | inf 0 inf 0
        inf y inf*cos inf*sin | inf inf ~inf nan | inf nan inf nan | nan 0 nan ~0
        nan y nan nan | nan inf nan nan | nan nan nan nan""",
    "sinh": """
        0 0 0 0 | 0 inf ~0 nan | 0 nan ~0 nan | p inf nan nan | p nan nan nan | inf 0 inf 0
        inf y inf*cos inf*sin | inf inf ~inf nan | inf nan ~inf nan | nan 0 nan 0
        nan y nan nan | nan inf nan nan | nan nan nan nan""",
    "tanh": """
        0 0 0 0 | 0 inf 0 nan | 0 nan 0 nan | p inf nan nan | p nan nan nan | inf z 1 0*sin2
        inf inf 1 ~0 | inf nan 1 ~0 | nan 0 nan 0 | nan y nan nan | nan inf nan nan
        nan nan nan nan""",
    "exp": """
        ~0 0 1 0 | x inf nan nan | x nan nan nan | inf 0 inf 0 | -inf z 0*cos 0*sin
        inf y inf*cos inf*sin | -inf inf ~0 ~0 | inf inf ~inf nan | -inf nan ~0 ~0
        inf nan ~inf nan | nan 0 nan 0 | nan y nan nan | nan inf nan nan | nan nan nan nan""",
    "expm1": """
        0 0 0 0 | x inf nan nan | x nan nan nan | inf 0 inf 0 | -inf z -1 0*sin
        inf y inf*cos inf*sin | -inf inf -1 ~0 | inf inf ~inf nan | -inf nan -1 ~0
        inf nan ~inf nan | nan 0 nan 0 | nan y nan nan | nan inf nan nan | nan nan nan nan""",
    "log": """
        -0 0 -inf pi | 0 0 -inf 0 | x inf inf pi/2 | x nan nan nan | -inf z inf pi | inf z inf 0
        -inf inf inf 3pi/4 | inf inf inf pi/4 | ~inf nan inf nan | nan z nan nan
        nan inf inf nan | nan nan nan nan""",
    "log1p": """
        -1 0 -inf 0 | x inf inf pi/2 | x nan nan nan | -inf z inf pi | inf z inf 0
        -inf inf inf 3pi/4 | inf inf inf pi/4 | ~inf nan inf nan | nan z nan nan
        nan inf inf nan | nan nan nan nan""",
    "sqrt": """
        ~0 0 0 0 | x inf inf inf | inf inf inf inf | -inf inf inf inf | nan inf inf inf
        x nan nan nan | -inf y 0 inf | inf y inf 0 | -inf nan nan ~inf | inf nan inf nan
        nan z nan nan | nan nan nan nan""",
}
TABLES["log10"] = TABLES["log"].replace("pi", "pi/L")
ODD = {"asinh", "atanh", "sinh", "tanh"}
EVEN = {"cosh"}
POSITIVE = [0.5, 2.0**-10, 3.0, 100.0, 2.0**100]
SETS = {
    "x": [*POSITIVE, *(-v for v in POSITIVE), 0.0, -0.0],
    "x'": [*POSITIVE, *(-v for v in POSITIVE)],
    "p": POSITIVE, "y": POSITIVE, "z": [0.0, *POSITIVE],
    "~0": [0.0, -0.0], "~inf": [math.inf, -math.inf],
}  # fmt: skip
NAMED = {"pi": math.pi, "pi/2": math.pi / 2, "pi/4": math.pi / 4, "3pi/4": 3 * math.pi / 4}


def wanted(text: str, y: float) -> tuple[float, bool]:
    """A part of a result, and whether its sign is open."""
    size, _, sign = text.partition("*")
    value = NAMED.get(size.strip("~"))
    if "/L" in size:
        value = NAMED[size.replace("/L", "")] / math.log(10)
    value = float(size.strip("~")) if value is None else value
    with np.errstate(invalid="ignore"):
        turn = {"cos": np.cos(y), "sin": np.sin(y), "sin2": np.sin(2 * y)}.get(sign, 1.0)
    return math.copysign(value, value if not sign else turn), text[0] == "~"


def rows(name: str) -> Iterator[tuple[complex, list[tuple[float, bool]]]]:
    for line in TABLES[name].replace("\n", "|").split("|"):
        if not line.strip():
            continue
        re, im, *parts = line.split()
        for a, b in itertools.product(SETS.get(re) or [float(re)], SETS.get(im) or [float(im)]):
            yield complex(a, b), [wanted(part, b) for part in parts]


def mirrored(name: str) -> Iterator[tuple[complex, list[tuple[float, bool]]]]:
    """Every row, its conjugate, and what follows of odd and even functions."""
    for z, ((re, any_re), (im, any_im)) in rows(name):
        yield z, [(re, any_re), (im, any_im)]
        yield complex(z.real, -z.imag), [(re, any_re), (-im, any_im)]
        if name in ODD:
            yield complex(-z.real, z.imag), [(-re, any_re), (im, any_im)]
        if name in EVEN:
            yield complex(-z.real, z.imag), [(re, any_re), (-im, any_im)]


def fits(found: float, value: float, any_sign: bool) -> bool:
    if math.isnan(value):
        return math.isnan(found)
    if any_sign:
        found, value = abs(found), abs(value)
    same = math.copysign(1, found) == math.copysign(1, value)
    close = found == value if value == 0 or math.isinf(value) else abs(found / value - 1) < 1e-6
    return same and close


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", TABLES)
def test_special_values_are_the_standards(name: str, dtype: Any) -> None:
    cases = list(mirrored(name))
    given = np.array([z for z, _ in cases], dtype)
    for run in (getattr(bu, name), bu.jit(getattr(bu, name))):
        results = np.asarray(run(bu.asarray(given)))
        wrong = [
            f"{name}({z}) is {found}, not {parts}"
            for (z, parts), found in zip(cases, results, strict=True)
            if not all(
                fits(f, *part) for f, part in zip((found.real, found.imag), parts, strict=True)
            )
        ]
        assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "turned"), [("sin", "sinh"), ("tan", "tanh"), ("asin", "asinh"), ("atan", "atanh")]
)
def test_circular_functions_are_the_hyperbolic_ones_turned(name: str, turned: str) -> None:
    """f(z) = −i g(iz), which is what the standards say of their special values; bit for bit."""
    values = [0.0, -0.0, 0.5, -2.0, 1.0, 1e30, math.inf, -math.inf, math.nan]
    z = np.array([complex(a, b) for a in values for b in values])
    times_i = np.empty_like(z)
    times_i.real, times_i.imag = -z.imag, z.real
    whole = np.asarray(getattr(bu, turned)(bu.asarray(times_i)))
    found = np.asarray(getattr(bu, name)(bu.asarray(z)))
    np.testing.assert_array_equal(found.real, whole.imag)
    np.testing.assert_array_equal(found.imag, -whole.real)
    cosine = np.asarray(bu.cos(bu.asarray(z)))
    np.testing.assert_array_equal(cosine, np.asarray(bu.cosh(bu.asarray(times_i))))


# -- accuracy ----------------------------------------------------------------------------------

#: Centres of the neighbourhoods in which formulas lose digits: branch points, zeros, the circle.
CENTRES = [0, 1, -1, 1j, -1j, 0.6 + 0.8j, 2, -2, math.pi, math.pi / 2, 1j * math.pi / 2, 3 - 4j]
#: Bounds in ULP of each part: every formula is a handful of roundings and functions of 1 ULP.
PARTS = {
    "sqrt": 3, "asin": 4, "acos": 4, "asinh": 4, "acosh": 4, "atanh": 6, "atan": 6, "sinh": 4,
    "cosh": 4, "sin": 4, "cos": 4, "exp": 4, "tanh": 6, "tan": 6,
}  # fmt: skip
#: The same of the larger part, where the smaller one is a difference.
WHOLE = {"log": 4, "log1p": 4, "expm1": 4, "log2": 4, "log10": 4}


def points(dtype: Any) -> np.ndarray[Any, Any]:
    """Arguments at and around the centres, at every distance, and of every size."""
    rng = np.random.default_rng(1)
    span = 300 if dtype is np.complex128 else 36
    near = -np.linspace(0.5, 17 if span > 40 else 8, 12)
    found = [0j]
    for centre in CENTRES:
        for size in [*(10**near).tolist(), 10.0 ** -(span // 2), 10.0**-span]:
            found.append(complex(centre + size * np.exp(2j * np.pi * rng.random())))
            found += [centre + size, centre - size, centre + 1j * size, centre - 1j * size]
    for power in np.linspace(-span, span, 41):
        found.append(complex(10.0**power * np.exp(2j * np.pi * rng.random())))
        found += [complex(10.0**power, 10.0**-power), complex(-(10.0**-power), 10.0**power)]
    # Next to a centre many are the centre itself; zeros of either sign are told apart.
    given = np.array(found).astype(dtype)
    return np.array(list({z.tobytes(): z for z in given}.values()))


def bits(z: complex) -> int:
    """Of precision that `exact` needs: parts far apart cancel, and so do powers of large ones."""
    exponents = [abs(math.frexp(part)[1]) for part in (z.real, z.imag)]
    return 200 + 2 * max(exponents) + min(4 * int(max(abs(z.real), abs(z.imag))), 2400)


def exact(name: str, z: complex) -> Any:
    value = mpmath.mpc(z.real, z.imag)
    if name in ("log", "log2", "log10") and not value:
        return None
    if name in ("log2", "log10"):
        return mpmath.log(value) / mpmath.log(int(name[3:]))
    if (name, value) in (("log1p", -1), ("atanh", 1), ("atanh", -1), ("atan", 1j), ("atan", -1j)):
        return None  # a pole, of which the standards tell
    result = getattr(mpmath, name)(value)
    # mpmath has no negative zero: on a cut it gives the value from one side.
    if name in ("acos", "asin", "acosh", "atanh", "log", "log1p", "sqrt") and not z.imag:
        lower = math.copysign(1, z.imag) < 0
        side = {"acos": -1}.get(name, 1) * (-1 if lower else 1)
        if result.imag * side < 0:
            result = mpmath.conj(result)
    if name in ("asinh", "atan") and not z.real:
        right = math.copysign(1, z.real) > 0
        if (result.real > 0) != right and result.real:
            result = mpmath.mpc(-result.real, result.imag)
    return result


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", [*PARTS, *WHOLE])
def test_values_near_branch_points_and_of_every_size(name: str, dtype: Any) -> None:
    part = np.float32 if dtype is np.complex64 else np.float64
    z = points(dtype)
    found = np.asarray(getattr(bu, name)(bu.asarray(z)))
    worst, at = 0.0, 0j
    info = np.finfo(part)
    for given, got in zip(z.astype(np.complex128).tolist(), found.tolist(), strict=True):
        with mpmath.workprec(bits(given)):
            if name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "expm1") and (
                max(abs(given.real), abs(given.imag)) > 1e4
            ):
                continue
            value = exact(name, given)
            if value is None:
                continue
            sizes = [abs(value.real), abs(value.imag)]
            scales = sizes if name in PARTS else [max(sizes)] * 2
            for real, true, scale in zip(
                (got.real, got.imag), (value.real, value.imag), scales, strict=True
            ):
                if abs(true) > info.max:
                    assert real == math.copysign(math.inf, true), (name, given, got)
                    continue
                exponent = max(mpmath.frexp(scale)[1] if scale else -9999, int(info.minexp) + 1)
                off = float(
                    abs(mpmath.mpf(real) - true) / mpmath.ldexp(1, exponent - 1 - info.nmant)
                )
                if not off <= worst:
                    worst, at = off, given
    limit = {**PARTS, **WHOLE}[name]
    assert worst <= limit, f"{name} is {worst:.1f} ULP off at {at!r}"


def test_literals_differ_where_their_bits_do() -> None:
    negative = -float("nan")
    for kind in (float, np.float64, np.float32):
        for first, second in ((kind(negative), kind("nan")), (kind(-0.0), kind(0.0))):
            for value in (first, second, first):
                signs = [
                    bool(bu.signbit(bu.full((2,), value))[0]),
                    bool(np.signbit(np.asarray(bu.asarray(value)))),
                    bool(bu.copysign(bu.ones(2), value)[1] < 0),
                ]
                assert signs == [bool(np.signbit(value))] * 3, value
