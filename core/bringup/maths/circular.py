"""sin and cos of reduced arguments, and what reductions need.

|x| = n pi/2 + r, |r| <= pi/4.  Up to a limit, n pi/2 is subtracted in parts chosen so that the
steps are exact.  Beyond it the bits of 2/pi that matter are multiplied by (Payne and Hanek): with
x = M 2^e, bits of 2/pi whose product with 2^e is a multiple of 4 change nothing, so a window of
2/pi starting there, times the integer M, gives x 2/pi modulo 4 as a fixed-point number; that takes
integers twice as wide as the float and belongs to each implementation.  Polynomials by
``core/tests/llvm/derive.py`` (sin, cos).
"""

from __future__ import annotations

from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic

V = TypeVar("V")

_TWO_OVER_PI = 0.6366197723675814
# pi/2 in parts, each cut towards 0: the second so short that its multiples by n are exact.
_PARTS = {
    32: (1.570796251296997, 7.549533620476723e-08, 2.5633440682570896e-12, 8.333742566364892e-20),
    64: (1.5707963267948966, 6.12323399538461e-17, 3.5215598651832e-27),
}
#: Where `reduce_near` ends: n stays below 2^13 and 2^20.
LIMIT = {32: 12867.0, 64: 1647000.0}

# sin r = r + r z p(z), cos r = 1 - z/2 + z^2 q(z), z = r^2
_SIN = {
    32: (-0.16666655, 0.008332189, -0.00019518286),
    64: (
        -0.1666666666666663, 0.008333333333321842, -0.00019841269829361049,
        2.7557313539774737e-06, -2.5050734651677078e-08, 1.5895452725058794e-10,
    ),
}  # fmt: skip
_COS = {
    32: (0.041666646, -0.001388731, 2.4432327e-05),
    64: (
        0.041666666666666595, -0.001388888888887334, 2.480158728899961e-05, -2.755731421605645e-07,
        2.0875705231410305e-09, -1.135873932176557e-11,
    ),
}  # fmt: skip


def reduce_near(m: Arithmetic[V], size: V) -> tuple[V, V, V]:
    """``size = n pi/2 + r + low``: (bits with n at the low end, r, low)."""
    first, second, *rest = _PARTS[m.width]
    n, n_bits = m.round(size, _TWO_OVER_PI)
    start = m.fma(n, m.c(-first), size)
    r = m.fma(n, m.c(-second), start)
    low = m.fma(n, m.c(-second), m.sub(start, r))
    for part in rest:
        low = m.fma(n, m.c(-part), low)
    return n_bits, r, low


def sine(m: Arithmetic[V], r: V, low: V, z: V) -> V:
    """sin(r + low) = sin r + low cos r, z = r²."""
    p = m.horner(z, _SIN[m.width])
    correction = m.mul(low, m.muladd(z, m.c(-0.5), m.c(1.0)))
    return m.add(r, m.muladd(m.mul(r, z), p, correction))


def cosine(m: Arithmetic[V], r: V, low: V, z: V) -> V:
    """cos(r + low) = cos r - low sin r, z = r²."""
    p = m.horner(z, _COS[m.width])
    half = m.mul(z, m.c(0.5))
    high, high_low = m.fast_two_sum(m.c(1.0), m.neg(half))
    rest = m.muladd(m.mul(z, z), p, m.mul(m.neg(r), low))
    return m.add(high, m.add(high_low, rest))


# 2/pi cut after 1216 bits.
_TWO_OVER_PI_BITS = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921"
    "cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde0598"
    "0fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5"
    "d0856033046fc7b6bab",
    16,
)


def words_of(width: int, count: int) -> list[int]:
    """2/pi cut into ``count`` words, after one word of zeros."""
    bits = _TWO_OVER_PI_BITS >> (1216 - width * (count - 1))
    return [bits >> (width * (count - 1 - k)) & ((1 << width) - 1) for k in range(count)]
