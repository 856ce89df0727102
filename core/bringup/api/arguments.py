"""Arguments that are no arrays: normalised, checked, explained.

Each function takes the name of the caller, and what it calls the argument, for its error.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bringup.errors import AxisError, BringupError, OpTypeError


def integer_of(name: str, argument: str, value: int) -> int:
    """An int, numpy's included.  Raises OpTypeError, which calls the argument `argument`."""
    try:
        result = operator.index(value)
    except TypeError:
        raise OpTypeError(f"{name}: {argument} {value!r} is no integer", fix="use an int") from None
    if not -(2**63) <= result < 2**63:
        raise OpTypeError(
            f"{name}: {argument} is an integer of {result.bit_length()} bits",
            fix="use an int of 64 bits",
        )
    return result


def number_of(name: str, argument: str, value: Any) -> float:
    """A float, numpy's and 0-d arrays included.  Raises OpTypeError."""
    try:
        if isinstance(value, str | bytes):  # float() would read it
            raise TypeError("it is a text")
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BringupError):
            raise
        raise OpTypeError(
            f"{name}: {argument} {value!r} is no number: {error}", fix="use a float"
        ) from None


def flag_of(name: str, argument: str, value: Any) -> bool:
    """A bool, from whatever Python takes for one value.  Raises OpTypeError."""
    if isinstance(value, bool | int | float | np.bool_) or value is None:
        return bool(value)
    raise OpTypeError(f"{name}: {argument} {value!r} is no bool", fix="use True or False")


def choice_of(name: str, argument: str, value: Any, choices: Iterable[str]) -> str:
    """One of some texts.  Raises OpTypeError."""
    if isinstance(value, str) and value in choices:
        return value
    raise OpTypeError(
        f"{name}: {argument} {value!r} is unknown", fix=f"use one of {', '.join(choices)}"
    )


def path_of(name: str, argument: str, value: str | os.PathLike[str]) -> Path:
    """A path in the file system.  Raises OpTypeError."""
    try:
        path = Path(value)
        os.fsencode(path)
    except (TypeError, ValueError):
        path = Path()
    if not path.name or "\0" in path.name:
        raise OpTypeError(f"{name}: {argument} {value!r} names no file", fix="give a str")
    return path


def check_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise OpTypeError for arguments that a function does not take, as far as Python knows."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # such as `int`
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise OpTypeError(
            f"the function{signature} does not take the types given: {error}",
            fix="give one for each argument",
        ) from None


def items_of(name: str, argument: str, value: Any) -> list[Any]:
    """The items of a sequence, of an array its rows.  Raises OpTypeError."""
    try:
        if isinstance(value, str | bytes | dict | set):
            raise TypeError
        return list(value)
    except TypeError:
        raise OpTypeError(
            f"{name}: {argument} {value!r} are no sequence", fix="give a list or a tuple"
        ) from None


def pair_of(name: str, argument: str, value: Any) -> list[Any]:
    """The two items of a sequence.  Raises OpTypeError."""
    items = items_of(name, argument, value)
    if len(items) != 2:
        raise OpTypeError(
            f"{name}: {argument} {value!r} are {len(items)}, not two", fix="give a tuple of two"
        )
    return items


def axis_of(name: str, axis: int, rank: int) -> int:
    """A non-negative axis.  Raises AxisError if it is out of range."""
    index = integer_of(name, "axis", axis)
    if not -rank <= index < rank:
        fix = f"axes are {-rank} … {rank - 1}"
        if not rank:
            fix = "give an array that has axes, such as bringup.reshape(x, (1,)): this one is 0-d"
        raise AxisError(f"{name}: axis {index} is out of range for {rank} dimensions", fix=fix)
    return index % rank if rank else 0


def axes_of(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Non-negative axes in increasing order, all for None; AxisError for repeated ones."""
    if axis is None:
        return tuple(range(rank))
    listed = axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    axes = tuple(sorted(axis_of(name, a, rank) for a in listed))
    if len(set(axes)) != len(axes):
        raise AxisError(f"{name}: axes {tuple(listed)} repeat one", fix="name each axis once")
    return axes


def shape_of(name: str, shape: int | Sequence[int], *, inferred: bool = False) -> tuple[int, ...]:
    """A shape given as an int or a sequence of ints.

    inferred: one size may be -1; the caller finds it out.
    Raises OpTypeError for what is no int, and for negative sizes.
    """
    try:
        listed = shape if isinstance(shape, Sequence) else (shape,)
        sizes = tuple(integer_of(name, "a size", size) for size in listed)
    except TypeError:
        raise OpTypeError(
            f"{name}: {shape!r} is no shape",
            fix="give an int or a tuple of ints; shapes are static",
        ) from None
    if any(n < (-1 if inferred else 0) for n in sizes):
        raise OpTypeError(
            f"{name}: shape {sizes} has a negative size",
            fix="give sizes of at least 0" + (", and -1 for one of them" if inferred else ""),
        )
    return sizes
