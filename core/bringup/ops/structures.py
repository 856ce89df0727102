"""Matrices that are what a row's domain asks for, made from any finite numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bringup.ops._numeric import Array


def definite(x: Array) -> Array:
    """Symmetric positive definite: eigenvalues from ½ to less than the size plus ½."""
    x = _scaled(x)
    n = max(x.shape[-1], 1)
    return np.asarray(np.matmul(x, np.swapaxes(x, -1, -2)) / n + 0.5 * np.eye(x.shape[-1]))


def dominant(x: Array) -> Array:
    """Every triangle well conditioned: a diagonal about as large as what stands beside it."""
    x = _scaled(x)
    n = x.shape[-1]
    diagonal = np.diagonal(x, axis1=-2, axis2=-1)[..., None]
    return np.asarray(x + np.eye(n) * np.where(diagonal < 0, -1.0, 1.0) * (0.5 * n + 1))


def symmetric(x: Array) -> Array:
    """Equal to its transpose, of elements up to 1."""
    x = _scaled(x)
    return np.asarray((x + np.swapaxes(x, -1, -2)) / 2)


def _scaled(x: Array) -> Array:
    largest = np.abs(x).max(initial=0)
    return np.asarray(x / largest if largest > 0 else x)


STRUCTURES: dict[str, Callable[[Array], Array]] = {
    "definite": definite,
    "dominant": dominant,
    "symmetric": symmetric,
}
