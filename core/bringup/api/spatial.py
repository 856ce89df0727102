"""Arguments of functions whose windows slide over spatial dimensions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from bringup.api.array import Array
from bringup.errors import OpTypeError
from bringup.graph import user_location
from bringup.ops._sliding import spread_size

Ints = tuple[int, ...]
#: One number for every spatial dimension, or one each.
PerDim = int | Sequence[int]
#: "same", "valid", elements on both sides of every dimension or of each, or (before, after) each.
Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]

_LAYOUTS = ("NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC")


def roles_of(name: str, x: Array, layout: Any) -> Ints:
    """The dimensions of batch, features, then the spatial ones; features second if no layout."""
    if layout is None:
        if x.ndim < 3:
            raise _wrong(name, f"{x.type} has no spatial dimension", "give it batch, features, …")
        return tuple(range(x.ndim))
    if not isinstance(layout, str) or layout not in _LAYOUTS or len(layout) != x.ndim:
        fits = [each for each in _LAYOUTS if len(each) == x.ndim]
        fix = f"use {' or '.join(fits)}" if fits else "give batch, features, 1 to 3 others"
        raise _wrong(name, f"layout {layout!r} is none of {x.type}", fix)
    features = layout.index("C")
    return (0, features, *(d for d in range(1, x.ndim) if d != features))


def each_of(name: str, what: str, value: PerDim, rank: int, least: int = 1) -> Ints:
    """One int for every spatial dimension."""
    given = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    try:
        sizes = tuple(map(operator.index, given))
    except TypeError:
        raise _wrong(name, f"{what} {value!r} is no integer", "use an int or one each") from None
    if len(sizes) != rank or any(n < least for n in sizes):
        fix = f"give an int of at least {least}, or {rank} of them"
        raise _wrong(name, f"{what} {value!r} does not fit {rank} spatial dimensions", fix)
    return sizes


def padding_of(
    name: str, padding: Padding, sizes: Ints, extents: Ints, strides: Ints
) -> tuple[Ints, Ints]:
    """What lies before and after each spatial dimension."""
    if not isinstance(padding, str):
        return _explicit(name, padding, len(sizes))
    if padding == "valid":
        return (0,) * len(sizes), (0,) * len(sizes)
    if padding == "same":
        table = zip(sizes, extents, strides, strict=True)
        totals = [max((-(-n // s) - 1) * s + extent - n, 0) for n, extent, s in table]
        return tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)
    raise _wrong(name, f"padding {padding!r}", 'use "same", "valid" or numbers')


def _explicit(name: str, padding: Any, rank: int) -> tuple[Ints, Ints]:
    given = list(padding) if isinstance(padding, Sequence) else [padding] * rank
    pairs = [tuple(p) if isinstance(p, Sequence) else (p, p) for p in given]
    try:
        sides = [(operator.index(lo), operator.index(hi)) for lo, hi in pairs]
    except (TypeError, ValueError):
        sides = []
    if len(sides) != rank:
        fix = f"give an int, or {rank} ints or (before, after) pairs"
        raise _wrong(name, f"padding {padding!r} does not fit {rank} spatial dimensions", fix)
    return tuple(lo for lo, _ in sides), tuple(hi for _, hi in sides)


def extents_of(window: Ints, dilation: Ints) -> Ints:
    """Sizes of a window, dilated."""
    return tuple(map(spread_size, window, dilation))


def _wrong(name: str, what: str, fix: str) -> OpTypeError:
    return OpTypeError(f"{name}: {what}", location=user_location(), fix=fix)
