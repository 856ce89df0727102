"""Sizes at which code changes path: around the device's declared vector and block, primes, squares,
and a few large ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from bringup.backend.capabilities import Shapes
from bringup_conformance.generate.choices import Choices, pick

#: Past one block of 1,024, past a vectorised block of 8,192, past a 16-bit counter.
LARGE = (1025, 8200, 70_000)
_PRIMES = (5, 7, 13, 31, 61, 127)


def strata(shapes: Shapes) -> tuple[tuple[int, ...], ...]:
    """One-dimensional sizes in groups that different paths of a device run: around its vector, past
    a block, tiny, past several vectors, around a block.

    >>> strata(Shapes(vector=8, block=64))[0]
    (9, 7, 8)
    """
    w, block = shapes.vector, shapes.block
    extra = [n + d for n in shapes.extra for d in (1, -1, 0) if n + d >= 0]
    return (
        (w + 1, max(w - 1, 0), w),
        (block + 1, LARGE[0], *extra),
        (1, 0, 2, 3),
        (3 * w + 5, 2 * w - 1, 2 * w + 1, 3 * w, *(n for n in _PRIMES if n > w + 1)),
        (block - 1, block),
    )


def far_size(choices: Choices, least: int = 8, most: int = 20) -> int:
    """A power of two between 2^least and 2^most, or one beside it; all exponents are as likely."""
    return (1 << choices.integer(least, most)) + choices.integer(-1, 1)


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
    sizes = [2, 3, 1, 4, 5, 7, w - 1, w, w + 1, 2 * w + 1, 3 * w, 33, 61, 127, shapes.block + 1, 0]
    sizes += [n + d for n in shapes.extra for d in (-1, 0, 1)]
    return dict.fromkeys(n for n in sizes if n >= 0)
