"""The matrix of ops and dtypes, the rules, and what is unsupported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from bringup.ops.table import find
from bringup_conformance.reporting import views
from bringup_conformance.reporting.html.heads import scrolled
from bringup_conformance.reporting.html.markup import Markup, join, tag
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.views import Cell, Row
from bringup_conformance.rules import by_id

_SIGNS = {"ok": "✓", "FAIL": "✗", "no": "–", "": "", "absent": ""}
_LOOKS = {"ok": "ok", "FAIL": "fail", "no": "no", "": "none", "absent": "absent"}
_LEGEND = (
    ("ok", "passes"),
    ("FAIL", "fails"),
    ("no", "unsupported"),
    ("", "not tested"),
    ("absent", "no dtype of the op"),
)
_COUNTS = {
    "passed": "Cases and checks that passed",
    "failed": "Cases and checks that failed",
    "of bound": "The worst error as a share of what is allowed",
    "ULP": "The worst error in units in the last place of the result's dtype",
}


def matrix(document: Document) -> Markup:
    """A table for each kind of op."""
    first = _first_failures(document)
    legend = tag(
        "p",
        (
            tag("span", tag("span", _SIGNS[state], class_=f"cell {_LOOKS[state]}"), f" {word}")
            for state, word in _LEGEND
        ),
        class_="legend",
    )
    hint = tag(
        "p",
        "The line at the foot of a cell is its worst error as a share of the bound. Point at a "
        "cell, or move with the arrow keys, to read its counts.",
        class_="hint",
    )
    kinds = views.by_kind(document)
    names = views.columns(row for _, rows in kinds for row in rows)
    found = [_kind(kind, rows, names, first) for kind, rows in kinds]
    facts = tag("p", class_="cell-facts", id="cell-facts", aria_live="polite")
    return join((legend, hint, tag("div", found, class_="matrices"), facts))


def _first_failures(document: Document) -> dict[tuple[str, str], int]:
    """For each cell, the failure to begin with."""
    found: dict[tuple[str, str], int] = {}
    for n, failure in enumerate(document.failures):
        found.setdefault((failure["case"]["op"], failure["case"]["dtype"]), n)
    return found


def _kind(
    kind: str, rows: Sequence[Row], names: Sequence[str], first: Mapping[tuple[str, str], int]
) -> Markup:
    corner = tag("th", "area" if kind == views.CONTRACT else "op", scope="col")
    heads = (tag("th", tag("span", name or "any"), scope="col", class_="dtype") for name in names)
    counts = (
        tag("th", name, scope="col", class_="number", title=meaning)
        for name, meaning in _COUNTS.items()
    )
    body = (_row(row, names, first) for row in rows)
    bad = sum(row.total.failed > 0 for row in rows)
    caption = f"{kind}: {len(rows)}" + (f", {bad} with failures" if bad else "")
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", corner, heads, counts)),
        tag("tbody", body),
        class_="matrix",
    )
    return scrolled(table, kind)


def _row(row: Row, names: Sequence[str], first: Mapping[tuple[str, str], int]) -> Markup:
    total = row.total
    cells = (_cell(row, name, first.get((row.op, name))) for name in names)
    numbers = (
        f"{total.passed:,}",
        f"{total.failed:,}" if total.failed else "",
        views.number(total.ratio),
        views.number(total.ulp),
    )
    ends = (tag("td", text, class_="number") for text in numbers)
    return tag("tr", tag("th", row.op, scope="row"), cells, ends)


def _cell(row: Row, name: str, failure: int | None) -> Markup:
    cell = row.cells.get(name, Cell())
    op = find(row.op)
    taken = op is None or not name or name in {dtype.name for dtype in op.dtypes}
    state = cell.state or ("" if taken else "absent")
    sign = _SIGNS[state]
    link = failure is not None and cell.state == "FAIL"
    part = f"--part:{100 * min(cell.tally.ratio, 1):.0f}%" if cell.tally.ratio else None
    return tag(
        "td",
        tag("a", sign, href=f"#failure-{failure}", tabindex=-1) if link else sign,
        class_=f"cell {_LOOKS[state]}",
        title=_told(row.op, name, cell) if taken else f"{row.op} takes no {name}",
        style=part,
    )


def _told(op: str, name: str, cell: Cell) -> str:
    where, tally = f"{op} {name}".strip(), cell.tally
    if cell.state == "":
        return f"{where}: not tested"
    if cell.state == "no":
        return f"{where}: unsupported: {'; '.join(cell.reasons)}"
    text = f"{where}: {tally.passed:,} passed, {tally.failed:,} failed"
    text += f"; {tally.compared:,} elements"
    if tally.ratio:
        text += f"; worst error {views.number(tally.ratio)} of the bound"
    if tally.ulp:
        text += f", {views.number(tally.ulp)} ULP"
    if cell.reasons:
        text += f"; in part unsupported: {'; '.join(cell.reasons)}"
    return text


def rules(document: Document) -> Markup | None:
    """Those broken, and all by what they are about."""
    found: Mapping[str, Mapping[str, int]] = document.whole.get("rules", {})
    if not found:
        return None
    broken = {rule: tally for rule, tally in found.items() if tally["failed"]}
    kept = [rule for rule in found if rule not in broken]
    told = tag("p", f"{len(kept):,} kept, {len(broken):,} broken.")
    table = _broken(broken) if broken else None
    groups = groupby(sorted(kept), key=lambda rule: rule.split(".")[0])
    lines = (tag("li", tag("b", area), " ", _rests(area, list(each))) for area, each in groups)
    more = tag(
        "details", tag("summary", f"The {len(kept):,} rules kept"), tag("ul", lines, class_="rules")
    )
    return join((told, table, more if kept else None))


def _rests(area: str, found: Sequence[str]) -> str:
    return ", ".join(rule.removeprefix(f"{area}.") for rule in found)


def _broken(found: Mapping[str, Mapping[str, int]]) -> Markup:
    said = by_id()
    rows = (
        tag(
            "tr",
            tag("th", tag("code", rule), scope="row"),
            tag("td", said[rule].says if rule in said else ""),
            tag("td", f"{tally['failed']:,}", class_="number"),
            tag("td", f"{tally['passed']:,}", class_="number"),
        )
        for rule, tally in found.items()
    )
    titles = (("broken", None), ("says", None), ("fail", "number"), ("pass", "number"))
    heads = (tag("th", name, scope="col", class_=look) for name, look in titles)
    head = tag("thead", tag("tr", heads))
    return scrolled(tag("table", head, tag("tbody", rows), class_="wide"), "Broken rules")


def expected(document: Document) -> Markup | None:
    """Failures that the vendor said beforehand, and what is wrong with what was said."""
    found = document.whole.get("expected")
    if not found:
        return None
    places = {each["case"]["name"]: n for n, each in enumerate(document.failures)}
    failing = (
        tag("li", f"{name}: {entry}", id=f"failure-{places[name]}" if name in places else None)
        for name, entry in found["xfailed"].items()
    )
    groups = (
        ("Expected to fail, but pass", found["xpassed"]),
        ("Wrong entries", found["errors"]),
        ("Right without being declared", found.get("unclaimed", ())),
    )
    parts = (
        (tag("h3", title), tag("ul", (tag("li", text) for text in texts)))
        for title, texts in groups
        if texts
    )
    told = tag("p", "What was said beforehand of this device, and what came of it.")
    first = (tag("h3", "Fail as expected"), tag("ul", failing)) if found["xfailed"] else None
    return join((told, first, parts))


def unsupported(document: Document) -> Markup | None:
    """Op, dtypes and the reason of the device's own declaration."""
    found = views.unsupported(document)
    if not found:
        return None
    rows = (
        tag(
            "tr",
            tag("th", op, scope="row"),
            tag("td", ", ".join(filter(None, dtypes))),
            tag("td", reason),
        )
        for op, reason, dtypes in found
    )
    head = tag("tr", (tag("th", name, scope="col") for name in ("op", "dtypes", "reason")))
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="wide")
    return scrolled(table, "Unsupported")
