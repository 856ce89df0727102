"""The options of `jit` that name parameters, checked against those the function has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from bringup.api.traced import graph_name, parameters
from bringup.errors import OpTypeError


def static_of(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    argnames: str | Sequence[str],
    maker: str = "jit",
) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of static arguments, each completed by the other.

    maker: the function whose options they are, for errors.

    Raises OpTypeError for those the function does not have.
    """
    names = parameters(fn)
    positions = positions_of("static_argnums", fn, argnums, maker)
    named = {*_each("static_argnames", argnames, str, maker)}
    _check_names(fn, named, maker)
    return (
        frozenset(positions) | {i for i, name in enumerate(names) if name in named},
        frozenset(named) | {names[i] for i in positions if i < len(names)},
    )


def positions_of(
    what: str, fn: Callable[..., Any], given: int | Sequence[int], maker: str = "jit"
) -> tuple[int, ...]:
    """Positions counted from 0.  Raises OpTypeError for those the function does not have.

    what: the name of the option.  maker: as in `static_of`.
    """
    names = parameters(fn)
    closed = not _takes(fn, inspect.Parameter.VAR_POSITIONAL)
    positions = _each(what, given, int | np.integer, maker)
    for position in positions:
        if position + len(names) < 0 or (closed and position >= len(names)):
            raise OpTypeError(
                f"{maker}: {what}={position}: {graph_name(fn)} has {len(names)} parameters",
                fix="count positions from 0, or from the end with -1",
            )
    return tuple(p % len(names) if p < 0 else p for p in positions)


def _each(what: str, given: Any, kind: Any, maker: str) -> tuple[Any, ...]:
    """One value of a kind, or several."""
    found = (given,) if isinstance(given, kind) else given
    if not isinstance(found, Collection) or not all(isinstance(each, kind) for each in found):
        raise OpTypeError(
            f"{maker}: {what}={given!r} names no parameters",
            fix="positions are ints and names are strings; give one, or a sequence of them",
        )
    return tuple(found)


def _check_names(fn: Callable[..., Any], named: set[str], maker: str) -> None:
    if _takes(fn, inspect.Parameter.VAR_KEYWORD):
        return
    own = [p.name for p in inspect.signature(fn).parameters.values()]
    for name in sorted(named.difference(own)):
        raise OpTypeError(
            f"{maker}: static_argnames={name!r}: {graph_name(fn)} has parameters {', '.join(own)}",
            fix="name parameters as the function does",
        )


def _takes(fn: Callable[..., Any], kind: inspect._ParameterKind) -> bool:
    """Whether a function takes any number of arguments of a kind; so if Python does not tell."""
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is kind for p in found)
