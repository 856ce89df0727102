"""Roots of unity, as transforms multiply with them."""

from __future__ import annotations

import numpy as np

from bringup.ops import _elementary as elementary
from bringup.ops._numeric import Array

_EIGHTH = np.longdouble("0.785398163397448309615660845819875721")


def turns(count: Array, n: int) -> tuple[Array, Array]:
    """Cosine and −sine of ``count`` n-ths of a turn, exact where they are 0, ½ of roots or 1."""
    octant, rest = np.divmod(8 * (count % n), n)
    angle = np.where(octant % 2 == 1, n - rest, rest) * _EIGHTH / n
    cos, sin = elementary.cos(angle), elementary.sin(angle)
    swapped = np.isin(octant, (1, 2, 5, 6))
    cos, sin = np.where(swapped, sin, cos), np.where(swapped, cos, sin)
    cos = np.where(np.isin(octant, (2, 3, 4, 5)), -cos, cos)
    sin = np.where(octant >= 4, -sin, sin)
    return cos, -sin
