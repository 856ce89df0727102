"""The head of the page, what to do next, the ladder of levels, and where the run took place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.reporting import views
from bringup_conformance.reporting.html.markup import Child, Markup, join, tag
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.roots import Root
from bringup_conformance.reporting.views import Rung

# Long lists of a declaration, which the matrix shows.
_SHOWN = ("ops", "kernels")


def verdict(document: Document) -> tuple[str, str]:
    """Its class and its word."""
    whole = document.whole
    if whole["ok"]:
        return ("ok", "passes, but for what was expected" if whole["failed"] else "passes")
    if whole["passed"] + whole["failed"] == 0:
        return "none", "nothing was run"
    return "fail", "fails"


def head(document: Document) -> Markup:
    """The verdict and the facts that it holds for."""
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


def pairs(facts: Sequence[tuple[str, Child]]) -> Markup:
    """Names with what they stand for; what is empty is left out."""
    each = (tag("div", tag("dt", name), tag("dd", text)) for name, text in facts if text)
    return tag("dl", each, class_="facts")


def next_(document: Document, causes: Sequence[Root]) -> Markup | None:
    """What failures share, the most first."""
    if not causes:
        return _climb(document)
    all_ = len(document.failures)
    rows = []
    for root in causes:
        best, many = root.failures[0], len(root.failures)
        bar = tag("span", class_="bar", style=f"--part:{100 * many / all_:.1f}%")
        link = tag("a", document.failures[best]["case"]["name"], href=f"#failure-{best}")
        rows.append(
            tag(
                "tr",
                tag("th", str(root), scope="row"),
                tag("td", many, bar, class_="number"),
                tag("td", link),
            )
        )
    titles = (("in common", None), ("failures", "number"), ("begin with", None))
    heads_ = (tag("th", name, scope="col", class_=look) for name, look in titles)
    table = tag(
        "table",
        tag("thead", tag("tr", heads_)),
        tag("tbody", rows),
        class_="wide",
    )
    first = causes[0]
    told = tag(
        "p",
        "Mend ",
        tag("strong", str(first)),
        f" first: {len(first.failures):,} of {all_:,} failures show it, or may come of it.",
    )
    return join((told, scrolled(table)))


def _climb(document: Document) -> Markup | None:
    step = views.climb(document.whole)
    return (
        join((tag("p", "Nothing fails here. Next:"), code(step, class_="command")))
        if step
        else None
    )


def ladder(document: Document) -> Markup:
    """The levels, from the lowest to the highest; those above the run's too."""
    rungs = views.ladder(document)
    above = LEVELS[len(rungs) :] if rungs[-1].level in LEVELS else ()
    return tag("ol", map(_rung, rungs), (_rung(Rung(n, 0, 0, 0)) for n in above), class_="ladder")


def _rung(rung: Rung) -> Markup:
    total = rung.passed + rung.failed
    look = "none" if not rung.ran else "fail" if rung.failed else "ok"
    part = f"--part:{100 * rung.passed / total:.2f}%" if total else "--part:0%"
    good = "ok" if rung.whole else "ok so far"
    word = {"none": "not run", "ok": good, "fail": f"{rung.failed:,} failed"}[look]
    counts = f"{rung.passed:,} of {total:,} passed" if total else ""
    missing = f"{rung.unsupported:,} unsupported" if rung.unsupported else ""
    return tag(
        "li",
        tag("span", rung.level, class_="level"),
        tag("span", word, class_=f"state {look}"),
        tag("span", class_="bar", style=part),
        tag("span", ", ".join(filter(None, (counts, missing))), class_="counts"),
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
    declared = {k: v for k, v in env.get("capabilities", {}).items() if k not in _SHOWN}
    text = json.dumps(declared, indent=2, ensure_ascii=False)
    more = tag("details", tag("summary", "What the device declares"), code(text))
    return join((pairs(facts), more if declared else None))


def code(text: str, **attributes: str) -> Markup:
    """Text as it is written, to be scrolled with the keyboard too."""
    return tag("pre", tag("code", text), tabindex=0, **attributes)


def scrolled(table: Markup, label: str = "") -> Markup:
    """A table that may be wider than the window."""
    return tag(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label=label or "Table"
    )
