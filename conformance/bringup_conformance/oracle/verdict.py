"""Actual results against spans: in or out, how far of the bound, how many ULP, and the worst
places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup.graph.elements import format_element
from bringup_conformance.oracle.numbers import Array, spacing, widen
from bringup_conformance.oracle.span import Span, inside

#: Mismatches that a verdict names.
WORST = 8


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One wrong element.  index: its place in the output.  low, high: the ends of what is allowed;
    texts that lose nothing.
    """

    output: int
    index: tuple[int, ...]
    actual: str
    low: str
    expected: str
    high: str

    def __str__(self) -> str:
        place = f"output {self.output}[{', '.join(map(str, self.index))}]"
        if self.low == self.high:
            return f"{place} is {self.actual}, not {self.expected}"
        return f"{place} is {self.actual}, not {self.expected} (allowed: {self.low} … {self.high})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing one or more outputs gave.

    wrong: elements outside.  compared, open: elements, and those of which nothing can be said.
    ratio: the largest error as a share of the bound, of elements whose bound is not 0.  ulp: the
    largest error in ULP of the reference's value, of finite elements.
    """

    wrong: int = 0
    compared: int = 0
    open: int = 0
    ratio: float = 0.0
    ulp: float = 0.0
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every element is allowed."""
        return self.wrong == 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.wrong + other.wrong,
            self.compared + other.compared,
            self.open + other.open,
            max(self.ratio, other.ratio),
            max(self.ulp, other.ulp),
            (self.mismatches + other.mismatches)[:WORST],
        )


def judge(actual: Array, span: Span, output: int = 0) -> Verdict:
    """Compare one output of the right shape and dtype with its span.

    >>> from bringup.dtypes import i32
    >>> wanted = Span.exactly(np.array([1, 2], np.int32), i32)
    >>> judge(np.array([1, 3], np.int32), wanted).mismatches[0].index
    (1,)
    """
    good = inside(actual, span)
    if span.exact:
        if bool(good.all()):
            return Verdict(0, actual.size)
        return Verdict(
            int((~good).sum()),
            actual.size,
            0,
            *_distance(actual, span),
            _worst(actual, span, good, output),
        )
    unlimited = span.unlimited()
    ratio, ulp = _distance(actual, span)
    wrong = int((~good).sum())
    mismatches = _worst(actual, span, good, output) if wrong else ()
    return Verdict(wrong, actual.size, int(unlimited.sum()), ratio, ulp, mismatches)


def _distance(actual: Array, span: Span) -> tuple[float, float]:
    """Error over bound, and error in ULP; of integers and booleans, only whether they differ."""
    dtype = span.dtype
    if not dtype.is_float:
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        low, middle, high = (widen(a, dtype) for a in (span.low, span.middle, span.high))
        error = widen(actual, dtype) - middle
        usable = np.isfinite(error) & ~span.unlimited()
        room = np.where(error > 0, high - middle, middle - low)
        share = np.where(usable & (room > 0) & np.isfinite(room), np.abs(error) / room, 0)
        ulp = np.where(usable, np.abs(error) / spacing(middle, dtype), 0)
    if not share.size:
        return 0.0, 0.0
    return float(share.max()), float(ulp.max())


def _worst(actual: Array, span: Span, good: Array, output: int) -> tuple[Mismatch, ...]:
    places = np.flatnonzero(~good.reshape(-1))[:WORST]
    return tuple(_mismatch(actual, span, output, int(place)) for place in places)


def _mismatch(actual: Array, span: Span, output: int, place: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(place, actual.shape))
    texts = [
        text_of(array.reshape(-1)[place], span)
        for array in (actual, span.low, span.middle, span.high)
    ]
    return Mismatch(output, index, *texts)


def text_of(element: Any, span: Span) -> str:
    """An element as the IR prints it."""
    return format_element(element, span.dtype)
