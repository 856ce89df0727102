"""Axis arguments: normalised, checked, explained."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from bringup.errors import OpTypeError
from bringup.graph import user_location


def integer_of(name: str, what: str, value: int) -> int:
    """An int, numpy's included.  Raises OpTypeError, which calls the argument `what`."""
    try:
        return operator.index(value)
    except TypeError:
        raise OpTypeError(
            f"{name}: {what} {value!r} is no integer", location=user_location(), fix="use an int"
        ) from None


def axis_of(name: str, axis: int, rank: int) -> int:
    """A non-negative axis.  Raises OpTypeError if it is out of range."""
    index = integer_of(name, "axis", axis)
    if not -rank <= index < rank:
        span = f"{-rank} … {rank - 1}" if rank else "none: the array is 0-d"
        raise OpTypeError(
            f"{name}: axis {index} is out of range for {rank} dimensions",
            location=user_location(),
            fix=f"axes are {span}",
        )
    return index % rank if rank else 0


def axes_of(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Non-negative axes in increasing order, all for None; OpTypeError for repeated ones."""
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    axes = tuple(sorted(axis_of(name, a, rank) for a in given))
    if len(set(axes)) != len(axes):
        raise OpTypeError(
            f"{name}: axes {tuple(given)} repeat one",
            location=user_location(),
            fix="name each axis once",
        )
    return axes


def shape_of(name: str, shape: int | Sequence[int], *, inferred: bool = False) -> tuple[int, ...]:
    """A shape given as an int or a sequence of ints.

    inferred: one size may be -1; the caller finds it out.
    Raises OpTypeError for what is no int, and for negative sizes.
    """
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise OpTypeError(
            f"{name}: {shape!r} is no shape",
            location=user_location(),
            fix="give an int or a tuple of ints; shapes are static",
        ) from None
    if any(n < (-1 if inferred else 0) for n in sizes):
        raise OpTypeError(
            f"{name}: shape {sizes} has a negative size",
            location=user_location(),
            fix="give sizes of at least 0" + (", and -1 for one of them" if inferred else ""),
        )
    return sizes
