"""Errors of right results: as shares of their bounds, and as histograms in ULP."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.html.markup import Markup, join, scrolled, tag
from bringup_conformance.oracle.verdict import bucket_ends
from bringup_conformance.reporting import views
from bringup_conformance.reporting.reports import Document, Tally

_BAR, _HEIGHT = 13, 26
#: Buckets of the narrowest histogram.
MIN_BUCKETS = 8
#: Rows that are shown at once.
_SHOWN = 20
_FRACTIONS = {0.25: "¼", 0.5: "½"}


def errors(document: Document) -> Markup | None:
    """A row for each op of floats, the worst share of a bound first."""
    totals = [(row.op, row.total) for row in views.matrix(document)]
    measured = [(op, tally) for op, tally in totals if tally.ulps]
    if not measured:
        return None
    exact = [op for op, tally in measured if not (tally.ratio or tally.ulp)]
    inexact = [(op, tally) for op, tally in measured if op not in exact]
    inexact.sort(key=lambda each: (-each[1].ratio, -each[1].ulp, each[0]))
    buckets = max(MIN_BUCKETS, *(len(tally.ulps) for _, tally in inexact), 0)
    hint = tag(
        "p",
        "Of cases that pass. A histogram counts elements by their error in units in the last "
        "place of the reference: none at the left, then up to ¼, ½, 1, 2, 4 and so on; heights "
        "are logarithmic. Sums that cancel may be many ULP from the reference and right: what "
        "counts is the share of the bound, which is propagated through each program.",
        class_="hint",
    )
    shown, others = inexact[:_SHOWN], inexact[_SHOWN:]
    more = tag("summary", f"{len(others)} more ops")
    return join(
        (
            hint,
            _table(shown, buckets, "The nearest to their bounds first") if shown else None,
            tag("details", more, _table(others, buckets, "The other ops")) if others else None,
            tag("p", "Without any error: ", ", ".join(exact), ".") if exact else None,
        )
    )


def _table(tallies: Sequence[tuple[str, Tally]], buckets: int, caption: str) -> Markup:
    heads = (
        tag("th", "op", scope="col"),
        tag("th", "worst of bound", scope="col", class_="number"),
        tag("th", "errors in ULP", axis(buckets), scope="col"),
        tag("th", "worst ULP", scope="col", class_="number"),
        tag("th", "exact", scope="col", class_="number"),
    )
    return scrolled(
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", heads)),
            tag("tbody", (_row(op, tally, buckets) for op, tally in tallies)),
            class_="errors",
        ),
        caption,
    )


def _row(op: str, tally: Tally, buckets: int) -> Markup:
    part = f"--part:{100 * min(tally.ratio, 1):.0f}%"
    counted = sum(tally.ulps)
    return tag(
        "tr",
        tag("th", op, scope="row"),
        tag("td", f"{tally.ratio:.2f}", tag("span", class_="bar", style=part), class_="number"),
        tag("td", histogram(tally.ulps, buckets) if counted else "judged as a whole"),
        tag("td", views.number(tally.ulp) or "0", class_="number"),
        tag("td", views.share(tally.ulps[0], counted) if counted else "", class_="number"),
    )


def histogram(counts: Sequence[int], buckets: int) -> Markup:
    """A picture that counts elements by their error, in buckets."""
    top = math.log1p(sum(counts))
    bars = []
    for i, count in enumerate(counts):
        if count:
            height = max(2.0, _HEIGHT * math.log1p(count) / top)
            title = tag("title", f"{_range(i)}: {count:,}")
            bars.append(
                tag("rect", title, x=i * _BAR, y=_HEIGHT - height, width=_BAR - 2, height=height)
            )
    width = buckets * _BAR
    return tag(
        "svg",
        tag("title", _words(counts)),
        tag("path", d=f"M0 {_HEIGHT}.5h{width}", class_="base"),
        bars,
        role="img",
        class_="histogram",
        width=width,
        height=_HEIGHT + 1,
        viewBox=f"0 0 {width} {_HEIGHT + 1}",
    )


def axis(buckets: int) -> Markup:
    """The ends of some of the buckets, so that they do not overlap."""
    ends, buckets_marked = bucket_ends(), [0, 1, 2, 3, *range(5, buckets, 3)]
    texts = (
        tag("text", _end(ends[i]), x=i * _BAR + (_BAR - 2) / 2, y=10)
        for i in buckets_marked
        if i < buckets
    )
    width = buckets * _BAR
    return tag(
        "svg",
        texts,
        aria_hidden="true",
        class_="axis",
        width=width,
        height=12,
        viewBox=f"0 0 {width} 12",
    )


def _end(value: float) -> str:
    if value in _FRACTIONS:
        return _FRACTIONS[value]
    if math.isinf(value):
        return "∞"
    for unit, size in (("G", 2**30), ("M", 2**20), ("k", 2**10)):
        if value >= size:
            return f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def _range(bucket: int) -> str:
    ends = bucket_ends()
    if bucket == 0:
        return "no error"
    if math.isinf(ends[bucket]):
        return f"more than {_end(ends[bucket - 1])} ULP"
    return f"up to {_end(ends[bucket])} ULP"


def _words(counts: Sequence[int]) -> str:
    """The histogram in words."""
    total = sum(counts)
    some = [f"{_range(i)}: {views.share(n, total)}" for i, n in enumerate(counts) if n]
    return "; ".join(some)
