"""The matrix of ops and dtypes, the rules, and what is unsupported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from bringup.html.markup import Markup, join, scrolled, table, tag
from bringup_conformance.reporting import compare, views
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.views import Cell, Row, State
from bringup_conformance.rules import by_id

_SIGNS = {"ok": "✓", "FAIL": "✗", "no": "–", "": "·", "absent": ""}
_LOOKS = {"ok": "ok", "FAIL": "fail", "no": "no", "": "none", "absent": "absent"}
_LEGEND = (
    ("ok", "passes"),
    ("FAIL", "fails"),
    ("no", "the device does not declare it"),
    ("", "left out of this run"),
    ("absent", "no dtype of the op"),
)
_WAS = {"ok": "passed", "FAIL": "failed", "no": "not declared", "": "not tested"}
_Places = Mapping[tuple[str, str], int]
_Was = Mapping[tuple[str, str], Cell] | None
_COUNTS = {
    "passed": "Cases and checks that passed",
    "failed": "Cases and checks that failed",
    "of bound": "The worst error as a share of what is allowed",
    "ULP": "The worst error in units in the last place of the result's dtype",
}


def matrix(document: Document, against: Document | None) -> Markup:
    """A table for each kind of op.  against: an earlier report, of which changes are marked."""
    was = None if against is None else compare.cells(against)
    first: dict[tuple[str, str], int] = {}
    for n, failure in enumerate(document.failures):
        first.setdefault((failure["case"]["op"], failure["case"]["dtype"]), n)
    legend = tag(
        "p",
        (
            tag("span", tag("span", _SIGNS[state], class_=f"cell {_LOOKS[state]}"), f" {word}")
            for state, word in _LEGEND
        ),
        tag("span", tag("span", class_="cell changed"), " not as before")
        if was is not None
        else None,
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
    tables = [_kind(kind, rows, names, first, was) for kind, rows in kinds]
    facts = tag("p", class_="cell-facts", id="cell-facts", aria_live="polite")
    grid = tag("div", tables, class_="matrices")
    return join((legend, hint, grid, _untested(document), facts))


def _untested(document: Document) -> Markup | None:
    """What has neither a row nor a column, since the run left it out."""
    groups = views.untested(document)
    if not groups:
        return None
    ops = sum(len(names) for kind, names in groups if kind != views.DTYPES)
    dtypes = sum(len(names) for kind, names in groups if kind == views.DTYPES)
    counts = [f"{n} {word}" for n, word in ((ops, "ops"), (dtypes, "dtypes")) if n]
    summary = tag("summary", f"Left out of this run entirely: {' and '.join(counts)}")
    items = (tag("li", tag("strong", kind), " ", ", ".join(names)) for kind, names in groups)
    return tag("details", summary, tag("ul", items, class_="rules"))


def _kind(
    kind: str, rows: Sequence[Row], names: Sequence[str], first: _Places, was: _Was
) -> Markup:
    """The table of a kind of op.  names: of dtypes.  first: failures by op and dtype.  was: cells
    of the earlier report.
    """
    corner = tag("th", "area" if kind == views.CONTRACT else "op", scope="col")
    heads = (tag("th", tag("span", name or "any"), scope="col", class_="dtype") for name in names)
    counts = (
        tag("th", name, scope="col", class_="number", title=meaning)
        for name, meaning in _COUNTS.items()
    )
    failing = sum(row.total.failed > 0 for row in rows)
    caption = f"{kind}: {len(rows)}" + (f", {failing} with failures" if failing else "")
    content = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", corner, heads, counts)),
        tag("tbody", (_row(row, names, first, was) for row in rows)),
        class_="matrix",
    )
    return scrolled(content, kind)


def _row(row: Row, names: Sequence[str], first: _Places, was: _Was) -> Markup:
    total = row.total
    cells = (_cell(row, name, first.get((row.op, name)), was) for name in names)
    numbers = (
        f"{total.passed:,}",
        f"{total.failed:,}" if total.failed else "",
        views.number(total.ratio),
        views.number(total.ulp),
    )
    ends = (tag("td", text, class_="number") for text in numbers)
    return tag("tr", tag("th", row.op, scope="row"), cells, ends)


def _cell(row: Row, name: str, failure: int | None, was: _Was) -> Markup:
    cell, state = row.cells.get(name, Cell()), row.state(name)
    before = None if was is None or state == "absent" else was.get((row.op, name), Cell()).state
    changed = before is not None and before != cell.state
    title = _cell_title(row.op, name, cell, state)
    link = failure is not None and state == "FAIL"
    sign = _SIGNS[state]
    part = f"--part:{100 * min(cell.tally.ratio, 1):.0f}%" if cell.tally.ratio else None
    return tag(
        "td",
        tag("a", sign, href=f"#failure-{failure}", tabindex=-1) if link else sign,
        class_=f"cell {_LOOKS[state]}{' changed' if changed else ''}",
        title=f"{title}; before: {_WAS[before or '']}" if changed else title,
        style=part,
    )


def _cell_title(op: str, name: str, cell: Cell, state: State) -> str:
    where, tally = f"{op} {name}".strip(), cell.tally
    if state == "absent":
        return f"{op} takes no {name}" if name else f"{op} has no cases without a dtype"
    if state == "":
        return f"{where}: left out of this run"
    if state == "no":
        reasons = "; ".join(cell.reasons) or "the device does not declare it"
        return f"{where}: unsupported: {reasons}"
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
    """The broken rules with their sentences, then the others by what they are about."""
    tallies: Mapping[str, Mapping[str, int]] = document.whole.get("rules", {})
    if not tallies:
        return None
    broken = {rule: tally for rule, tally in tallies.items() if tally["failed"]}
    unbroken = sorted(rule for rule in tallies if rule not in broken)
    known = by_id() if broken else {}  # it takes long to make all rules
    rows = (
        tag(
            "tr",
            tag("th", tag("code", rule), scope="row"),
            tag("td", known[rule].says if rule in known else ""),
            tag("td", f"{tally['failed']:,}", class_="number"),
            tag("td", f"{tally['passed']:,}", class_="number"),
        )
        for rule, tally in broken.items()
    )
    columns = (("broken", None), ("says", None), ("fail", "number"), ("pass", "number"))
    items = []
    for area, group in groupby(unbroken, key=lambda rule: rule.split(".")[0]):
        names = ", ".join(rule.removeprefix(f"{area}.") for rule in group)
        items.append(tag("li", tag("b", area), " ", names))
    summary = tag("summary", f"The {len(unbroken):,} rules kept")
    return join(
        (
            tag("p", f"{len(unbroken):,} kept, {len(broken):,} broken."),
            table(columns, rows, "Broken rules", "wide") if broken else None,
            tag("details", summary, tag("ul", items, class_="rules")) if unbroken else None,
        )
    )


def expected(document: Document) -> Markup | None:
    """Failures that the vendor expects, and entries that are wrong or not needed any more."""
    findings = document.whole.get("expected")
    if not findings:
        return None
    numbers = {each["case"]["name"]: n for n, each in enumerate(document.failures)}
    failing = (
        tag("li", f"{name}: {entry}", id=f"failure-{numbers[name]}" if name in numbers else None)
        for name, entry in findings["xfailed"].items()
    )
    groups = (
        ("Expected to fail, but pass", findings["xpassed"]),
        ("Wrong entries", findings["errors"]),
        ("Right without being declared", findings.get("unclaimed", ())),
    )
    lists = (
        (tag("h3", title), tag("ul", (tag("li", text) for text in texts)))
        for title, texts in groups
        if texts
    )
    words = tag("p", "What was said beforehand of this device, and what came of it.")
    as_expected = (tag("h3", "Fail as expected"), tag("ul", failing))
    return join((words, as_expected if findings["xfailed"] else None, lists))


def unsupported(document: Document) -> Markup | None:
    """Op, dtypes and the reason of the device's own declaration."""
    rows = [
        tag(
            "tr",
            tag("th", op, scope="row"),
            tag("td", ", ".join(filter(None, dtypes))),
            tag("td", reason),
        )
        for op, reason, dtypes in views.unsupported(document)
    ]
    columns = (("op", None), ("dtypes", None), ("reason", None))
    return table(columns, rows, "Unsupported", "wide") if rows else None
