"""Failures, each with its program as a picture and as text, its data, what is wrong, and what is
guilty.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from bringup.graph import Graph
from bringup.html.drawing import drawing
from bringup.html.markup import (
    Child,
    Column,
    Markup,
    code,
    join,
    pairs,
    table,
    tag,
)
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.html import bounds
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.roots import Root, graph_of, kernel_ops, removed_ops

#: Failures that are shown whole, and those of them that are open at first; the others are named.
MAX_WHOLE, MAX_OPEN = 40, 1
# Failures of each cause that are not folded away.
_SHOWN_OF_CAUSE = 4
# Elements whose errors make a histogram.
_MIN_ERRORS = 4
#: Instructions of the largest program that is drawn, and characters of text that are shown.
_MAX_DRAWN, _MAX_TEXT = 60, 20_000


def failures(document: Document, causes: Sequence[Root]) -> Markup | None:
    """A block for each failure, grouped by what they have in common."""
    if not causes:
        return None
    summaries = document.whole["failures"]
    firsts = [cause.failures[0] for cause in causes]
    all_ = [n for cause in causes for n in cause.failures]
    # Of each cause the first, then the others of the largest.
    order = [*firsts, *(n for n in all_ if n not in set(firsts))]
    whole, opened = set(order[:MAX_WHOLE]), set(firsts[:MAX_OPEN])
    blocks: list[Child] = []
    for cause in causes:
        count = tag("span", f"{len(cause.failures):,}", class_="many")
        blocks.append(tag("h3", str(cause), " ", count))
        shown = [
            _failure(n, document.failures[n], summaries[n].get("file"), n in opened)
            for n in cause.failures
            if n in whole
        ]
        named = [n for n in cause.failures if n not in whole]
        blocks += [shown[:_SHOWN_OF_CAUSE], _more(document, named, shown[_SHOWN_OF_CAUSE:])]
    return join(blocks)


def _more(document: Document, named: Sequence[int], blocks: Sequence[Markup]) -> Markup | None:
    """What is folded away: some blocks, and the names of the failures without one."""
    count = len(named) + len(blocks)
    if not count:
        return None
    items = (
        tag(
            "li",
            tag("b", document.failures[n]["case"]["name"]),
            f": {problem_of(document.failures[n])['what'][:200]}",
            id=f"failure-{n}",
        )
        for n in named
    )
    names = tag("ul", items) if named else None
    return tag("details", tag("summary", f"{count:,} more"), blocks, names, class_="rest")


def _failure(n: int, failure: Plain, file: str | None, opened: bool) -> Markup:
    case, problem = smallest(failure), problem_of(failure)
    graph = graph_of(case)
    summary = tag(
        "summary",
        tag("span", views.headline(failure), class_="name"),
        " ",
        tag("span", problem["kind"], class_="chip"),
        " ",
        tag("span", problem["what"].split("\n", maxsplit=1)[0][:300], class_="what"),
        " ",
        tag("a", "#", href=f"#failure-{n}", class_="permalink", title="A link to this failure"),
    )
    verbs = ("explain", "replay", "shrink") if graph else ("replay",)
    text = (
        _facts(failure, graph),
        _mismatches(problem["mismatches"]),
        _block("Errors in ULP", _errors(problem.get("ulps", ()))),
        _block("Data", _data(case)),
        _commands(file, verbs) if file else None,
    )
    picture = _picture(failure, graph)
    log = problem.get("log", "")
    body = (
        tag("div", tag("div", text), picture, class_="two") if picture else tag("div", text),
        tag("details", tag("summary", "Program as text"), code(case["ir"])) if graph else None,
        _guilty(failure),
        _block("Last words", code(log[-_MAX_TEXT:])) if log else None,
    )
    return tag("details", summary, body, class_="failure", id=f"failure-{n}", open=opened)


def _block(title: str, content: Child) -> Markup | None:
    return join((tag("h4", title), content)) if content else None


def _facts(failure: Plain, graph: Graph | None) -> Markup:
    problem, cause = problem_of(failure), failure.get("cause", {})
    mode = size = wrong = ""
    if graph is not None:
        mode = "fused" if problem["fused"] else "op by op"
        before = graph_of(failure["case"])
        size = f"{len(graph)}"
        if before is not None and len(before) > len(graph):
            size += f", made small from {len(before)}"
    if problem.get("wrong"):
        wrong = f"{problem['wrong']:,} of {problem['compared']:,}"
    return pairs(
        (
            ("mode", mode),
            ("instructions", size),
            ("right without", ", ".join(failure.get("guilty", ()))),
            ("guilty", Cause.from_json(cause).title if cause else ""),
            ("wrong elements", wrong),
            ("rules broken", ", ".join(problem.get("rules", ()))),
        )
    )


def _mismatches(mismatches: Sequence[Plain]) -> Markup | None:
    """What is wrong, element by element."""
    if not mismatches:
        return None
    exact = all(m["low"] == m["high"] for m in mismatches)
    operands = any(m.get("operands") for m in mismatches)
    rows = (
        tag(
            "tr",
            tag("th", f"{m['output']}[{', '.join(map(str, m['index']))}]", scope="row"),
            tag("td", m["actual"], class_="number bad"),
            tag("td", m["expected"], class_="number"),
            tag("td", ", ".join(m.get("operands", ()))) if operands else None,
            None if exact else tag("td", f"{m['low']} … {m['high']}", class_="number"),
        )
        for m in mismatches
    )
    names = ["is", "not"] + ["of"] * operands + ["allowed"] * (not exact)
    columns: list[Column] = [("output", None), *((name, "number") for name in names)]
    return table(columns, rows, "Wrong elements", "wide")


def _errors(counts: Sequence[int]) -> Markup | None:
    """How far from the reference the elements are, right and wrong."""
    if sum(counts) < _MIN_ERRORS:
        return None
    buckets = max(bounds.MIN_BUCKETS, len(counts))
    pictures = (bounds.axis(buckets), bounds.histogram(counts, buckets))
    return tag("div", pictures, class_="scroll", tabindex=0, role="region", aria_label="Errors")


def _data(case: Plain) -> Markup | None:
    """What fills the inputs: a line for each data set, or for the special values of each output."""
    lines = []
    for number, recipes in enumerate(case["data"]):
        if recipes:
            parts = ", ".join(f"%{i} {views.recipe(each)}" for i, each in enumerate(recipes))
            lines.append(f"set {number}: {parts}" if len(case["data"]) > 1 else parts)
    for number, cells in enumerate(case.get("cells", ())):
        texts = "; ".join(f"({', '.join(operands)})" for operands, _ in cells["cells"])
        lines.append(f"special values of output {number}: {texts}")
    return tag("ul", (tag("li", _cut(line)) for line in lines)) if lines else None


def _commands(file: str, verbs: Sequence[str]) -> Markup:
    name = shlex.quote(PurePath(file).name)
    lines = (code(f"conformance {verb} {name}", class_="command") for verb in verbs)
    return join((tag("h4", "In the report's folder"), lines))


def _cut(text: str) -> str:
    more = len(text) - _MAX_TEXT
    return text if more <= 0 else f"{text[:_MAX_TEXT]}\n… {more:,} more characters in the file"


def _picture(failure: Plain, graph: Graph | None) -> Markup | None:
    """The program, with its wrong outputs and guilty instructions marked."""
    if graph is None or len(graph) > _MAX_DRAWN:
        return None
    problem, sets = problem_of(failure), smallest(failure)["data"]
    recipes = sets[problem.get("data_set", 0) % len(sets)] if sets else ()
    wrong = {m["output"] for m in problem["mismatches"]}
    picture = drawing(graph, list(map(views.recipe, recipes)), wrong, _blamed(failure, graph))
    return tag("figure", picture, class_="scroll", tabindex=0, aria_label="The program")


def _blamed(failure: Plain, graph: Graph) -> set[int]:
    """Instructions that are guilty for sure: the only one, those of a guilty op or kernel, or those
    that a guilty pass removed.
    """
    cause = failure.get("cause", {})
    if len(graph) == 1 and cause.get("kind") != "call":
        return {0}
    names: set[str] = set()
    match cause.get("kind"):
        case "op":
            names = {cause["name"]}
        case "kernel":
            names = kernel_ops(cause)
        case "pass":
            names = removed_ops(cause)
    return {i for i, instr in enumerate(graph.instrs) if instr.op.name in names}


def _guilty(failure: Plain) -> Markup | None:
    """The guilty pass or kernel, what it was given and made of it, and its source."""
    cause = failure.get("cause", {})
    if not cause:
        return None
    blocks: list[Child] = [tag("p", cause["what"])]
    lists = (("From its element to the program's", "trace"), ("Places in memory", "slots"))
    for title, key in lists:
        items = [tag("li", text) for text in cause.get(key, ())]
        blocks.append(_block(title, tag("ul", items) if items else None))
    texts = (
        ("Given", "ir_before"),
        ("Made of it", "ir_after"),
        ("Guilty kernel", "kernel"),
        ("Its source", "source"),
    )
    seen = {""}
    for title, key in texts:
        text = cause.get(key, "")
        if text not in seen:
            seen.add(text)
            blocks.append(tag("details", tag("summary", title), code(_cut(text))))
    title = f"Guilty: {Cause.from_json(cause).title}"
    return tag("details", tag("summary", title), blocks, open=True)
