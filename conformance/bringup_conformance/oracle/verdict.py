"""Actual results against spans: whether they lie inside, the error as a share of the bound and in
ULP, and the worst elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.graph.elements import bits_of, format_element, from_bits
from bringup.records import record
from bringup_conformance.oracle.numbers import Array, spacing, widen
from bringup_conformance.oracle.span import Span, inside

#: Mismatches that a verdict names.
WORST = 8
#: Buckets of a histogram of errors in ULP: none; then up to 1/4, 1/2, 1, 2, 4 and so on; the last
#: holds all that is larger.
BUCKETS = 32
# The exponent of the first bucket's end, less its place.
_FIRST = 3


@record
class Mismatch:
    """One wrong element.  index: its place in the output.  low, high: the ends of what is allowed;
    texts that lose nothing.  rule: the id of the rule that is broken, of special values.
    operands: what it is made of, where that is one element of each operand of one instruction.
    """

    output: int
    index: tuple[int, ...]
    actual: str
    low: str
    expected: str
    high: str
    rule: str = ""
    operands: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"output {self.output}[{', '.join(map(str, self.index))}]"
        where = f"{self.rule}: {where}" if self.rule else where
        operands = f", of {', '.join(self.operands)}" if self.operands else ""
        if self.low == self.high:
            return f"{where} is {self.actual}, not {self.expected}{operands}"
        allowed = f"(allowed: {self.low} … {self.high})"
        return f"{where} is {self.actual}, not {self.expected} {allowed}{operands}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mismatch:
        """Read a mismatch as plain data."""
        lists = {"index": tuple(data["index"]), "operands": tuple(data.get("operands", ()))}
        return cls(**{**data, **lists})


@record
class Verdict:
    """What comparing one or more outputs gave.

    wrong: elements outside.  compared, open: elements, and those of which nothing can be said.
    ratio: the largest error as a share of the bound, of elements whose bound is not 0.  ulp: the
    largest error in ULP of the reference's value, of finite elements.  ulps: elements of floats by
    their error in ULP, see `BUCKETS`; without zeros at the end.
    """

    wrong: int = 0
    compared: int = 0
    open: int = 0
    ratio: float = 0.0
    ulp: float = 0.0
    mismatches: tuple[Mismatch, ...] = ()
    ulps: tuple[int, ...] = ()

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
            merged(self.ulps, other.ulps),
        )


def merged(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The sum of two histograms."""
    if not first or not second:
        return first or second
    return tuple(x + y for x, y in zip_longest(first, second, fillvalue=0))


def bucket_ends() -> list[float]:
    """The largest error in ULP that each bucket of a histogram holds.

    >>> bucket_ends()[:5], bucket_ends()[-1]
    ([0.0, 0.25, 0.5, 1.0, 2.0], inf)
    """
    return [0.0, *(2.0 ** (i - _FIRST) for i in range(1, BUCKETS - 1)), float("inf")]


def judge(actual: Array, span: Span, output: int = 0) -> Verdict:
    """Compare one output of the right shape and dtype with its span.

    >>> from bringup.dtypes import i32
    >>> wanted = Span.exactly(np.array([1, 2], np.int32), i32)
    >>> judge(np.array([1, 3], np.int32), wanted).mismatches[0].index
    (1,)
    """
    good = inside(actual, span)
    if span.exact and bool(good.all()):
        return Verdict(0, actual.size, ulps=(actual.size,) if span.dtype.is_float else ())
    open_ = 0 if span.exact else int(span.unlimited().sum())
    ratio, ulp, ulps = _distance(actual, span)
    wrong = int((~good).sum())
    mismatches = _worst(actual, span, good, output) if wrong else ()
    return Verdict(wrong, actual.size, open_, ratio, ulp, mismatches, ulps)


def _distance(actual: Array, span: Span) -> tuple[float, float, tuple[int, ...]]:
    """Error over bound, error in ULP and its histogram; nothing of integers and booleans."""
    dtype = span.dtype
    if not dtype.is_float or not actual.size:
        return 0.0, 0.0, ()
    with np.errstate(all="ignore"):
        low, middle, high = (widen(a, dtype) for a in (span.low, span.middle, span.high))
        error = widen(actual, dtype) - middle
        usable = np.isfinite(error) & ~span.unlimited()
        room = np.where(error > 0, high - middle, middle - low)
        share = np.where(usable & (room > 0) & np.isfinite(room), np.abs(error) / room, 0)
        ulp = np.where(usable, np.abs(error) / spacing(middle, dtype), 0)
    return float(share.max()), float(ulp.max()), histogram(ulp[usable])


def histogram(ulp: Array) -> tuple[int, ...]:
    """Errors in ULP, counted in buckets of powers of two.

    >>> histogram(np.array([0, 0, 0.1, 0.5, 0.75, 1.0, 1.5]))
    (2, 1, 1, 2, 1)
    """
    mantissa, exponent = np.frexp(np.minimum(ulp, 2.0**BUCKETS))
    bucket = exponent + _FIRST - (mantissa == 0.5)
    bucket = np.where(mantissa == 0, 0, np.clip(bucket, 1, BUCKETS - 1)).reshape(-1)
    return tuple(np.bincount(bucket).tolist())


def _worst(actual: Array, span: Span, good: Array, output: int) -> tuple[Mismatch, ...]:
    worst = np.flatnonzero(~good.reshape(-1))[:WORST]
    return tuple(_mismatch(actual, span, output, int(index)) for index in worst)


def _mismatch(actual: Array, span: Span, output: int, position: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(position, actual.shape))
    actual_, low, middle, high = (
        text_of(array.reshape(-1)[position], span.dtype)
        for array in (actual, span.low, span.middle, span.high)
    )
    return Mismatch(output, index, actual_, low, middle, high)


def text_of(element: Any, dtype: DType) -> str:
    """An element for people: as the IR prints it, but a float of 8 bits by its whole value, and a
    NaN by name, with its bits if it has a payload.

    >>> from bringup.dtypes import f32, f8e4m3fn
    >>> text_of(f8e4m3fn.numpy.type(448), f8e4m3fn), text_of(-np.float32("nan"), f32)
    ('448.0', '-nan')
    """
    if not dtype.is_float:
        return format_element(element, dtype)
    value = float(element)
    if math.isnan(value):
        bits, sign = bits_of(element), 1 << (dtype.bits - 1)
        quiet = format_element(from_bits(bits & ~sign, dtype), dtype) == "nan"
        name = "-nan" if bits & sign else "nan"
        return name if quiet else f"{name} (0x{bits:0{2 * dtype.itemsize}x})"
    return repr(value) if dtype.is_storage else format_element(element, dtype)
