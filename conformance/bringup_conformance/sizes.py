"""Sizes at which code changes path: around the device's declared vector and block, primes, squares,
and a few large ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from bringup.backend.capabilities import Shapes
from bringup_conformance.choices import Choices, pick

#: Past one block of 1,024, past a vectorised block of 8,192, past a 16-bit counter.
LARGE = (1025, 8200, 70_000)
_PRIMES = (5, 7, 13, 31, 61, 127)


def boundary(shapes: Shapes, *, limit: int = 4096) -> tuple[int, ...]:
    """Every boundary size up to a limit, ascending.

    >>> boundary(Shapes(vector=8, block=64), limit=20)
    (0, 1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17)
    """
    found = {0, 1, 2, 3, *_PRIMES}
    for size in (shapes.vector, 2 * shapes.vector, shapes.block, *shapes.extra):
        found |= {size - 1, size, size + 1}
    return tuple(sorted(n for n in found if 0 <= n <= limit))


def lengths(shapes: Shapes) -> tuple[int, ...]:
    """A short list of one-dimensional sizes that meets every boundary of the device once."""
    w, block = shapes.vector, shapes.block
    found = {0, 1, 2, 3, w - 1, w, w + 1, 3 * w + 5, block - 1, block, block + 1, LARGE[0]}
    for size in shapes.extra:
        found |= {size - 1, size, size + 1}
    return tuple(sorted(n for n in found if n >= 0))


def matrices(shapes: Shapes) -> tuple[tuple[int, int], ...]:
    """Two-dimensional shapes: squares, which hide swapped axes' sizes and show swapped contents,
    and permuted twins.
    """
    w = shapes.vector
    return (
        (w, w),
        (3, w + 1),
        (w + 1, 3),
        (1, w),
        (w, 1),
        (2, 33),
        (33, 2),
        (5, 5),
        (0, 3),
        (4, 0),
    )


def draw_shape(
    choices: Choices, shapes: Shapes, *, rank: int, limit: int = 4096, empty: bool = False
) -> tuple[int, ...]:
    """A shape of at most `limit` elements whose sizes are boundary sizes."""
    shape: list[int] = []
    left = limit
    for _ in range(rank):
        fitting = [n for n in _preferred(shapes) if n <= left and (n or empty)]
        size = pick(choices, fitting)
        shape.append(size)
        left //= max(size, 1)
    return tuple(shape)


def _preferred(shapes: Shapes) -> Iterable[int]:
    # Small sizes first, so that smaller answers make smaller programs.
    w = shapes.vector
    sizes = [2, 3, 1, 4, 5, 7, w - 1, w, w + 1, 2 * w + 1, 33, 61, 127, shapes.block + 1, 0]
    sizes += [n + d for n in shapes.extra for d in (-1, 0, 1)]
    return dict.fromkeys(n for n in sizes if n >= 0)
