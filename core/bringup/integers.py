"""Arithmetic on sizes: quotients and multiples rounded up."""

from __future__ import annotations


def ceil_div(n: int, by: int) -> int:
    """``n / by``, rounded up, for ``by > 0``.

    >>> ceil_div(7, 4), ceil_div(8, 4), ceil_div(0, 4)
    (2, 2, 0)
    """
    return -(-n // by)


def round_up(n: int, to: int) -> int:
    """The least multiple of ``to > 0`` that is at least ``n``.

    >>> round_up(7, 4), round_up(8, 4)
    (8, 8)
    """
    return ceil_div(n, to) * to


def ceil_power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``; 1 for ``n < 1``.

    >>> ceil_power_of_two(5), ceil_power_of_two(8), ceil_power_of_two(0)
    (8, 8, 1)
    """
    return 1 << max(n - 1, 0).bit_length()
