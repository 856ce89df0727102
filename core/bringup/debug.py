"""Looking into programs while they run."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.array import Array
from bringup.api.boundary import publish
from bringup.api.creation import asarray, zeros
from bringup.errors import BringupError, OpTypeError
from bringup.ops.prints import show
from bringup.tracing.context import current


def print(text: str, *args: Any, **kwargs: Any) -> None:
    """Print `text` with values in the places of its braces, when the program gets there.

    text: as `str.format` takes it.
    args, kwargs: arrays and Python numbers; those of no dimensions are formatted as numpy scalars,
    so that ``{:.3f}`` works.

    At once where nothing is traced; under `jit`, `grad` and in loops and branches once for each
    time that the line is run, in order; under `vmap` a line for each example.  A program that
    prints is cut there: core runs its loops, whatever the device has, so it is slower.  It computes
    what it would without.  A gradient prints where the function is computed, not where it is
    computed again.
    Raises OpTypeError for a text that does not fit the values.

    >>> bu.jit(lambda x: (bu.debug.print("x = {}", x), x + 1)[1])(bu.asarray(2.0)).item()
    x = 2.0
    3.0
    """
    _check(text, args, kwargs)
    arrays = [x if isinstance(x, Array) else _array(x) for x in (*args, *kwargs.values())]
    names = " ".join(kwargs)
    if current() is None:
        show([np.asarray(x) for x in arrays], text=text, names=names)
        return
    unread = [] if arrays else [zeros(())]
    apply_all("print", [*unread, *arrays], {"text": text, "names": names})


def _array(x: Any) -> Array:
    try:
        return asarray(x)
    except BringupError as error:
        raise OpTypeError(
            f"print: a {type(x).__name__} is no array: {error.what}",
            fix="put what is no array into the text itself, as in f'{name}: {{}}'",
        ) from None


def _check(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise OpTypeError unless each value has a place and each place a value."""
    try:
        fields = [f for _, f, _, _ in string.Formatter().parse(text) if f is not None]
    except (TypeError, ValueError) as error:
        raise OpTypeError(
            f"print: {text!r} is no format: {error}",
            fix="write {} for each value, {{ and }} for braces",
        ) from None
    counted = iter(range(len(fields)))
    named = {f.split(".")[0].split("[")[0] or str(next(counted)) for f in fields}
    given = {*map(str, range(len(args))), *kwargs}
    if named != given:
        odd = ", ".join(sorted(named ^ given))
        raise OpTypeError(
            f"print: the places and the values of {text!r} differ: {odd}",
            fix="give each place in the text one value, and each value a place",
        )


__all__ = ["print"]

publish(globals(), "bringup.debug")
