"""Multiply-adds by arithmetic alone, against exact fractions and the machine's instruction."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from jit_helper import Array, elementwise, elementwise_module

from bringup.llvm.math.fused import multiply_add
from bringup.llvm.text import f32, f64

RNG = np.random.default_rng(5)
COUNT = 1 << 16


def signs() -> Array:
    return RNG.choice(np.array([-1, 1], np.float32), COUNT)


def anything() -> tuple[Array, Array, Array]:
    """Bits at random: all exponents, infinities and NaN."""
    bits = RNG.integers(0, 1 << 32, (3, COUNT), dtype=np.uint64).astype(np.uint32)
    x, y, z = bits.view(np.float32)
    return x, y, z


def near_halves(power: int) -> tuple[Array, Array, Array]:
    """A product that is half a place of the addend, but for a last bit of either factor."""
    z = np.ldexp(RNG.integers(1 << 22, 1 << 24, COUNT), power).astype(np.float32)
    near = 1 + RNG.integers(-2, 3, (2, COUNT)) * 2.0**-23
    x = np.ldexp(near[0], power // 2 - 1).astype(np.float32)
    y = np.ldexp(near[1], power - power // 2).astype(np.float32)
    return x * signs(), y, z * signs()


def cancelled() -> tuple[Array, Array, Array]:
    """A product and an addend that is nearly its opposite."""
    x, y = (RNG.standard_normal(COUNT).astype(np.float32) for _ in range(2))
    return x, y, (-x * y * (1 + RNG.integers(-2, 3, COUNT) * 2.0**-23)).astype(np.float32)


def small() -> tuple[Array, Array, Array]:
    """Results that are subnormal, or zero, or a little above."""
    scale = RNG.integers(-75, -60, COUNT)
    x = np.ldexp(RNG.standard_normal(COUNT), scale).astype(np.float32)
    y = np.ldexp(RNG.standard_normal(COUNT), -70).astype(np.float32)
    z = np.ldexp(RNG.integers(0, 1 << 24, COUNT), -149).astype(np.float32)
    return x, y, z * signs() * RNG.integers(0, 2, COUNT).astype(np.float32)


OPERANDS = {
    "anything": anything(),
    "cancelled": cancelled(),
    "small": small(),
    "halves": near_halves(0),
    "large halves": near_halves(104),
    "halves of small": near_halves(-127),
    "halves of subnormal": near_halves(-149),
}


def as_f32(exact: Fraction) -> float:
    """The nearest f32, ties to even."""
    near = np.float32(exact.numerator / exact.denominator)
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    ranked = sorted(
        (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1, float(v)) for v in around
    )
    return ranked[0][2]


@pytest.mark.parametrize("name", OPERANDS)
def test_every_lane_is_the_instruction(name: str) -> None:
    x, y, z = OPERANDS[name]
    found = elementwise(multiply_add, np.float32, 4, operands=3)(x, y, z)
    wanted = elementwise(lambda b, *v: b.fma(*v), np.float32, 4, operands=3)(x, y, z)
    np.testing.assert_array_equal(found, wanted)
    zeros = found == 0
    assert (np.signbit(found[zeros]) == np.signbit(wanted[zeros])).all()


@pytest.mark.parametrize("name", sorted(OPERANDS.keys() - {"anything"}))
def test_every_lane_is_rounded_once(name: str) -> None:
    x, y, z = (v[:2000] for v in OPERANDS[name])
    found = elementwise(multiply_add, np.float32, 4, operands=3)(x, y, z)
    exact = [
        Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert found.tolist() == [as_f32(value) for value in exact]


def test_a_sum_of_two_roundings_would_be_wrong_here() -> None:
    """So these operands tell the two apart."""
    for name in ("halves", "large halves", "halves of small", "halves of subnormal"):
        x, y, z = OPERANDS[name]
        twice = (x.astype(np.float64) * y + z).astype(np.float32)
        once = elementwise(multiply_add, np.float32, 4, operands=3)(x, y, z)
        assert (twice != once).any(), name


@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_other_vectors_are_parts_of_four_lanes(lanes: int) -> None:
    x, y, z = OPERANDS["halves"]
    found = elementwise(multiply_add, np.float32, lanes, operands=3)(x, y, z)
    assert (found == elementwise(multiply_add, np.float32, 4, operands=3)(x, y, z)).all()
    text = str(elementwise_module(multiply_add, f32, lanes, 3))
    assert len(re.findall(r"call <4 x float> @", text)) == max(1, lanes // 4)


def test_scalars_and_f64_are_left_to_the_library() -> None:
    for type_, lanes in ((f32, 1), (f64, 2)):
        text = str(elementwise_module(multiply_add, type_, lanes, 3))
        assert "@llvm.fma" in text
        assert "muladd" not in text
