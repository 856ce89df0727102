"""The head of the page, what to do next, the ladder of levels, and where the run took place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.html.markup import Markup, code, join, pairs, table, tag
from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.reporting import views
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.roots import Root
from bringup_conformance.reporting.views import Rung

# Fields of a declaration that the matrix of ops and dtypes shows.
_IN_MATRIX = ("ops", "kernels")


def verdict(document: Document) -> tuple[str, str]:
    """The verdict on the run: its class and its words."""
    whole = document.whole
    if whole["ok"]:
        return ("ok", "passes, but for what was expected" if whole["failed"] else "passes")
    if whole["passed"] + whole["failed"] == 0:
        return "none", "nothing was run"
    return "fail", "fails"


def head(document: Document) -> Markup:
    """The verdict, and the run that it is of."""
    whole, env = document.whole, document.whole.get("environment", {})
    look, word = verdict(document)
    cases = whole["passed"] + whole["failed"]
    count = f"{whole['failed']:,} of {cases:,} cases" if whole["failed"] else f"{cases:,} cases"
    product = env.get("product", "")
    facts = [
        ("product", product if product != whole["backend"] else ""),
        ("level", whole["level"]),
        ("seed", str(whole["seed"])),
        ("run", views.scope(whole)),
        ("unsupported", f"{whole['unsupported']:,}"),
        *views.costs(whole),
        ("date", whole.get("date", "")),
        ("command", shlex.join(whole.get("command", ()))),
        ("suite", whole["suite"]),
        ("notes", "; ".join(whole.get("notes", ()))),
    ]
    return tag(
        "header",
        tag("p", "Conformance report", class_="kicker"),
        tag(
            "h1",
            whole["backend"],
            " ",
            tag("span", word, class_=f"verdict {look}"),
            "" if views.scope(whole) == "whole" else [" ", tag("span", "in part", class_="part")],
        ),
        tag("p", count, class_="count"),
        pairs(facts),
        class_=look,
    )


def next_(document: Document, causes: Sequence[Root]) -> Markup | None:
    """What most failures share; without failures, the command to run next."""
    if not causes and document.whole.get("left"):
        words = tag("p", "Nothing fails so far. To go on, in the report's folder:")
        return join((words, code("conformance run --resume .", class_="command")))
    if not causes:
        step = views.climb(document.whole)
        words = tag("p", "Nothing fails here. Next:")
        return join((words, code(step, class_="command"))) if step else None
    total = len(document.failures)
    rows = []
    for cause in causes:
        first, count = cause.failures[0], len(cause.failures)
        bar = tag("span", class_="bar", style=f"--part:{100 * count / total:.1f}%")
        link = tag("a", document.failures[first]["case"]["name"], href=f"#failure-{first}")
        cells = (
            tag("th", str(cause), scope="row"),
            tag("td", count, bar, class_="number"),
            tag("td", link),
        )
        rows.append(tag("tr", cells))
    columns = (("in common", None), ("failures", "number"), ("begin with", None))
    words = tag(
        "p",
        "Mend ",
        tag("strong", str(causes[0])),
        f" first: {len(causes[0].failures):,} of {total:,} failures show it, or may come of it.",
    )
    return join((words, table(columns, rows, "Table", "wide")))


def ladder(document: Document) -> Markup:
    """The levels from the lowest to the highest, with those that the run did not reach."""
    rungs = views.ladder(document)
    above = LEVELS[len(rungs) :] if rungs[-1].level in LEVELS else ()
    return tag("ol", map(_rung, rungs), (_rung(Rung(n, 0, 0, 0)) for n in above), class_="ladder")


def _rung(rung: Rung) -> Markup:
    total = rung.passed + rung.failed
    look = "none" if not rung.ran else "fail" if rung.failed else "ok"
    part = f"--part:{100 * rung.passed / total:.2f}%" if total else "--part:0%"
    ok = "ok" if rung.whole else "ok so far"
    word = {"none": "not run", "ok": ok, "fail": f"{rung.failed:,} failed"}[look]
    counts = f"{rung.passed:,} of {total:,} passed" if total else ""
    unsupported = f"{rung.unsupported:,} unsupported" if rung.unsupported else ""
    return tag(
        "li",
        tag("span", rung.level, class_="level"),
        tag("span", word, class_=f"state {look}"),
        tag("span", class_="bar", style=part),
        tag("span", ", ".join(filter(None, (counts, unsupported))), class_="counts"),
        class_=look,
    )


def environment(document: Document) -> Markup | None:
    """Versions, details of the device, and what it declares but for its ops."""
    env: Mapping[str, Any] = document.whole.get("environment", {})
    if not env:
        return None
    names = ("suite", "python", "numpy", "platform", "product")
    facts = [(name, str(env.get(name, ""))) for name in names]
    facts += [(str(key), str(value)) for key, value in env.get("plugin", {}).items()]
    facts += [(str(key), str(value)) for key, value in env.get("details", {}).items()]
    declared = {k: v for k, v in env.get("capabilities", {}).items() if k not in _IN_MATRIX}
    text = json.dumps(declared, indent=2, ensure_ascii=False)
    more = tag("details", tag("summary", "What the device declares"), code(text))
    return join((pairs(facts), more if declared else None))
