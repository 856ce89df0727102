"""What differs between an earlier report and this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.html.markup import Markup, join, table, tag
from bringup_conformance.reporting.compare import Comparison, Cost, Group, compare
from bringup_conformance.reporting.reports import Document

#: Changes of one kind that are named, those that are not folded away, and ops with other times.
MAX_NAMED, MAX_OPEN, MAX_TIMES = 200, 24, 12
_LOOKS = {"worse": "fail", "better": "ok", "": "none"}


def section(before: Document, after: Document) -> Markup:
    """The verdict, what broke, what was mended, what is new or gone, and times."""
    comparison = compare(before, after)
    failures = {each["case"]["name"]: n for n, each in enumerate(after.failures)}
    look = "fail" if comparison.worse else "none" if comparison.same else "ok"
    whole = before.whole
    verdict = tag("span", comparison.verdict, class_=f"state {look}")
    run = f" than the run of {whole['date']}" if whole.get("date") else " than the earlier run"
    run = run.replace(" than", " as", 1) if comparison.same else run
    return join(
        (
            tag("p", verdict, run, f", level {whole['level']}, seed {whole['seed']}."),
            _unlike(comparison.differs),
            (_group(each, failures) for each in comparison.groups() if each[2]),
            _costs(comparison),
        )
    )


def _unlike(differs: Sequence[str]) -> Markup | None:
    """In what the two runs were not alike, which may explain the rest."""
    if not differs:
        return None
    items = tag("ul", (tag("li", text) for text in differs))
    return join((tag("h3", "The two runs are not alike"), items))


def _group(group: Group, failures: Mapping[str, int]) -> Markup:
    title, look, items = group
    chip = tag("span", f"{len(items):,}", class_=f"state {_LOOKS[look]}")
    named = (_item(str(item), failures) for item in items[:MAX_NAMED])
    more = len(items) - MAX_NAMED
    rest = tag("p", f"… and {more:,} more: `conformance compare` names them.") if more > 0 else None
    opened = bool(look) and len(items) <= MAX_OPEN
    summary = tag("summary", title.capitalize(), " ", chip)
    return tag("details", summary, tag("ul", named), rest, class_="change", open=opened)


def _item(text: str, failures: Mapping[str, int]) -> Markup:
    if text not in failures:
        return tag("li", text)
    return tag("li", tag("a", text, href=f"#failure-{failures[text]}"))


def _costs(comparison: Comparison) -> Markup | None:
    """Times and counts side by side, then the ops whose times differ most."""
    rows = [*comparison.costs, *comparison.slower[:MAX_TIMES], *comparison.faster[:MAX_TIMES]]
    if not rows:
        return None
    columns = (("cost", None), ("before", "number"), ("now", "number"), ("factor", "number"))
    return join((tag("h3", "Times"), table(columns, map(_row, rows), "Times", "costs")))


def _row(cost: Cost) -> Markup:
    before, after = cost.texts()
    factor = f"{cost.after / cost.before:.2f}" if cost.before else ""
    cells = (tag("td", text, class_="number") for text in (before, after, factor))
    return tag("tr", tag("th", cost.what, scope="row"), cells)
