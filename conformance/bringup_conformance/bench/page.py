"""A bench as one page: the roofline, bars, all rows, and the kernels that lose most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from bringup.html import document
from bringup.html.markup import (
    Markup,
    code,
    join,
    pairs,
    scrolled,
    table,
    tag,
)
from bringup.records import record
from bringup_conformance.bench import terminal
from bringup_conformance.bench.measure import Bench, Row

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 420, 64, 44
#: Width of a character of the picture's text, and the height of a line.
_CHARACTER, _LINE = 6.7, 12
#: Half of a point with its edge, how far beside it names stand, and how many half lines above and
#: below.
_POINT, _GAP, _REACH = 5, 8, 40


def page(found: Bench, other: Bench | None) -> str:
    """The text of the page.  other: what times are compared with."""
    sections = (
        ("Roofline", "roofline", _roofline(found)),
        ("Shares", "shares", _bars(found)),
        ("Programs", "programs", _rows(found, other)),
        ("Launches", "launches", _launches(found)),
        ("Unsupported", "unsupported", _unsupported(found)),
    )
    head = tag(
        "header",
        tag("p", "Bench", class_="kicker"),
        tag("h1", found.device),
        pairs(
            [
                ("product", found.product),
                ("date", found.date),
                *terminal.roofs(found),
                ("compared with", "" if other is None else terminal.described(other)),
            ]
        ),
    )
    there = [(title, name, content) for title, name, content in sections if content]
    return document(f"{found.device}: bench", head, there)


# -- the roofline ----------------------------------------------------------------------------------


def _roofline(found: Bench) -> Markup | None:
    """Programs of the largest size by what they compute for a byte, under the two roofs."""
    size = list(found.roofs.bandwidth)[-1]
    rows = [row for row in found.rows if row.size == size and row.flops]
    if not rows:
        return None
    bandwidth, arithmetic = found.roofs.bandwidth[size], found.roofs.arithmetic
    speeds = [row.flops / row.seconds for row in rows]
    intensities = [row.flops / row.bytes for row in rows]
    ridge = arithmetic / bandwidth
    x = _scale(min(*intensities, ridge) / 2, max(*intensities, ridge) * 4, _LEFT, _WIDTH - 24)
    y = _scale(min(speeds) / 2, max(*speeds, arithmetic) * 1.5, _HEIGHT - _BOTTOM, 8)
    first = min(*intensities, ridge) / 2
    start = f"M{x(first):.1f} {y(max(first * bandwidth, min(speeds) / 2)):.1f}"
    if first * bandwidth < min(speeds) / 2:
        start = f"M{x(min(speeds) / 2 / bandwidth):.1f} {y(min(speeds) / 2):.1f}"
    line = f"{start}L{x(ridge):.1f} {y(arithmetic):.1f}H{_WIDTH - 8}"
    points = zip(rows, map(x, intensities), map(y, speeds), strict=True)
    picture = tag(
        "svg",
        tag("title", f"{len(rows)} programs under the roofs of {found.device}"),
        _axis(x, intensities, ridge, horizontal=True),
        _axis(y, speeds, arithmetic, horizontal=False),
        tag("path", d=line, class_="roof"),
        _marks(sorted(points, key=lambda point: point[2])),
        role="img",
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
    )
    words = tag(
        "p",
        f"Size {size}. Across: floating-point operations for each byte moved. Up: operations a "
        "second. The line is the most that a copy and the arithmetic roof allow.",
        class_="hint",
    )
    return join((words, scrolled(picture, "Roofline")))


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where a number stands on a logarithmic axis."""
    span = math.log(high / low)
    return lambda value: start + (end - start) * math.log(value / low) / span


def _axis(
    place: Callable[[float], float], values: Sequence[float], roof: float, *, horizontal: bool
) -> Iterator[Markup]:
    """Lines at powers of ten, with their numbers."""
    low, high = min(*values, roof) / 2, max(*values, roof) * (4 if horizontal else 1.5)
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = round(place(10.0**power), 1)
        if horizontal:
            yield tag("path", d=f"M{at} 8V{_HEIGHT - _BOTTOM}", class_="grid")
            yield tag("text", f"{10.0**power:g}", x=at, y=_HEIGHT - _BOTTOM + 18, class_="tick")
        else:
            yield tag("path", d=f"M{_LEFT} {at}H{_WIDTH - 8}", class_="grid")
            text = f"{10.0 ** (power - 9):g} G"
            yield tag("text", text, x=_LEFT - 6, y=at + 4, class_="tick up")


def _marks(points: Sequence[tuple[Row, float, float]]) -> Iterator[Markup]:
    """Points with their names, each as near to its point as there is room."""
    taken = [_Box(x - _POINT, y - _POINT, 2 * _POINT, 2 * _POINT) for _, x, y in points]
    for row, x, y in points:
        label = _label(row.name, x, y, taken)
        taken.append(label)
        speed = f"{row.flops / row.seconds / 1e9:.1f} GFLOP/s"
        end = label.x if label.x > x else label.x + label.width
        far = abs(label.y + label.height / 2 - y) > label.height
        leader = f"M{x:.1f} {y:.1f}L{end:.1f} {label.y + label.height / 2:.1f}"
        yield tag(
            "g",
            tag("title", f"{row.name}: {speed}, {row.share:.0%} of its roof"),
            tag("path", d=leader, class_="leader") if far else None,
            tag("circle", cx=x, cy=y, r=4, class_="point"),
            tag("text", row.name, x=label.x, y=label.y + label.height - 3, class_="label"),
        )


@record
class _Box:
    """A rectangle of the picture.  x, y: its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: _Box) -> bool:
        """Whether two rectangles have a point in common."""
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and self.y < other.y + other.height and other.y < self.y + self.height


def _label(name: str, x: float, y: float, taken: Sequence[_Box]) -> _Box:
    """The nearest place for a name beside its point that meets nothing; right of it if there is a
    choice.
    """
    width = _CHARACTER * len(name)
    tops = [y - _LINE / 2 + n * _LINE / 2 for n in range(-_REACH, _REACH)]
    lefts = [left for left in (x + _GAP, x - _GAP - width) if _LEFT < left < _WIDTH - width]
    places = [
        _Box(left, top, width, _LINE)
        for top in sorted(tops, key=lambda top: abs(top + _LINE / 2 - y))
        for left in lefts
        if 0 < top < _HEIGHT - _BOTTOM - _LINE
    ]
    free = (place for place in places if not any(place.meets(other) for other in taken))
    return next(free, places[0])


# -- tables ----------------------------------------------------------------------------------------


def _bars(found: Bench) -> Markup:
    """Shares of the roof, a table for each family."""
    tables = []
    sizes = list(found.roofs.bandwidth)
    for family, rows in groupby(found.rows, lambda row: row.family):
        by_name = {
            name: {row.size: row for row in same}
            for name, same in groupby(rows, lambda row: row.name)
        }
        body = [
            tag(
                "tr",
                tag("th", name, scope="row"),
                (tag("td", _bar(each.get(size)), class_="number") for size in sizes),
            )
            for name, each in by_name.items()
        ]
        columns = [(family, None), *((size, "number") for size in sizes)]
        tables.append(table(columns, body, f"Shares of the roof: {family}", "shares"))
    words = tag(
        "p",
        "How much of the roof that it meets first each program reaches. More than 100 % is reached "
        "where a program's data stays in caches that the copy of the same size does not fit.",
        class_="hint",
    )
    return join((words, tables))


def _bar(row: Row | None) -> Markup | str:
    if row is None:
        return "–"
    part = f"--part:{min(100.0, 100 * row.share):.1f}%"
    return join((f"{row.share:.0%}", tag("span", class_="bar", style=part)))


def _rows(found: Bench, other: Bench | None) -> Markup:
    texts = [terminal.cells(row, terminal.match(other, row)) for row in found.rows]
    kept = [n for n in range(len(terminal.HEAD)) if any(row[n] for row in texts)]
    columns = [(terminal.HEAD[n], None if n < 2 else "number") for n in kept]
    body = []
    for name, same in groupby(texts, key=lambda row: row[0]):
        rows = list(same)
        for number, row in enumerate(rows):
            head = tag("th", name, scope="rowgroup", rowspan=len(rows)) if not number else None
            cells = (tag("td", row[n], class_=None if n < 2 else "number") for n in kept[1:])
            body.append(tag("tr", head, cells))
    return table(columns, body, "All programs", "rows")


def _launches(found: Bench) -> Markup | None:
    """Each kernel that loses much, with its schedule."""
    parts = []
    for each in found.launches:
        words = (
            f"{each.kernel} of {each.workload}: {terminal.seconds(each.seconds)}, "
            f"at its roof {terminal.seconds(each.roof)}"
        )
        inner = code(each.schedule) if each.schedule else tag("p", "It is not made by a schedule.")
        parts.append(tag("details", tag("summary", words), inner))
    return join(parts) if parts else None


def _unsupported(found: Bench) -> Markup | None:
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", why))
        for name, why in found.unsupported.items()
    ]
    return (
        table([("program", None), ("reason", None)], rows, "Unsupported", "wide") if rows else None
    )
