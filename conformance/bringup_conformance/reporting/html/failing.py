"""Failures, each with its program as a picture and as text, its data, what is wrong, and who is
guilty.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from bringup.graph import Graph
from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.html import bounds
from bringup_conformance.reporting.html.drawing import drawing
from bringup_conformance.reporting.html.heads import code, pairs, scrolled
from bringup_conformance.reporting.html.markup import Child, Markup, join, tag
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.roots import Root, graph_of, kernel_ops, undone

#: Failures that are shown whole, and those of them that are open at first; the others are named.
MOST_WHOLE, MOST_OPEN = 40, 1
# Of each cause, before the reader asks for more.
_AT_ONCE = 4
# Elements whose errors make a histogram.
_FEW = 4
#: Instructions of the largest program that is drawn, and characters of text that are shown.
_MOST_DRAWN, _MOST_TEXT = 60, 20_000


def failures(document: Document, causes: Sequence[Root]) -> Markup | None:
    """A block for each failure, by what they have in common."""
    if not causes:
        return None
    summaries = document.whole["failures"]
    order = [(root, n) for root in causes for n in root.failures]
    heads = {root.failures[0] for root in causes}
    # Of each cause the one to begin with, then the others of the largest.
    whole = [*(n for _, n in order if n in heads), *(n for _, n in order if n not in heads)]
    kept, opened = set(whole[:MOST_WHOLE]), set(whole[: min(MOST_OPEN, len(heads))])
    blocks: list[Child] = []
    for root in causes:
        many = len(root.failures)
        blocks.append(tag("h3", str(root), " ", tag("span", f"{many:,}", class_="many")))
        told = [
            _failure(n, document.failures[n], summaries[n].get("file"), n in opened)
            for n in root.failures
            if n in kept
        ]
        rest = [n for n in root.failures if n not in kept]
        blocks += [told[:_AT_ONCE], _rest(document, rest, told[_AT_ONCE:])]
    return join(blocks)


def _rest(document: Document, numbers: Sequence[int], told: Sequence[Markup]) -> Markup | None:
    """What is not shown at once: the other blocks, and the names of the failures without one."""
    many = len(numbers) + len(told)
    if not many:
        return None
    items = (
        tag(
            "li",
            tag("b", document.failures[n]["case"]["name"]),
            f": {problem_of(document.failures[n])['what'][:200]}",
            id=f"failure-{n}",
        )
        for n in numbers
    )
    names = tag("ul", items) if numbers else None
    return tag("details", tag("summary", f"{many:,} more"), told, names, class_="rest")


def _failure(n: int, failure: Plain, file: str | None, opened: bool) -> Markup:
    case, what, graph = smallest(failure), problem_of(failure), graph_of(smallest(failure))
    summary = tag(
        "summary",
        tag("span", failure["case"]["name"], class_="name"),
        " ",
        tag("span", what["kind"], class_="chip"),
        " ",
        tag("span", what["what"].split("\n", maxsplit=1)[0][:300], class_="what"),
        " ",
        tag("a", "#", href=f"#failure-{n}", class_="permalink", title="A link to this failure"),
    )
    words = (
        _facts(failure, graph),
        _mismatches(what["mismatches"]),
        _block("Errors in ULP", _errors(what.get("ulps", ()))),
        _block("Data", _data(case)),
        _commands(file, ("explain", "replay", "shrink") if graph else ("replay",)),
    )
    picture = _picture(failure, graph)
    body = (
        tag("div", tag("div", words), picture, class_="two") if picture else tag("div", words),
        tag("details", tag("summary", "Program as text"), code(case["ir"])) if graph else None,
        _guilty(failure),
        _block("Last words", code(what["log"][-_MOST_TEXT:])) if what.get("log") else None,
    )
    return tag("details", summary, body, class_="failure", id=f"failure-{n}", open=opened)


def _block(title: str, content: Child) -> Markup | None:
    return join((tag("h4", title), content)) if content else None


def _facts(failure: Plain, graph: Graph | None) -> Markup:
    what, cause = problem_of(failure), failure.get("cause", {})
    size = ""
    if graph is not None:
        before = graph_of(failure["case"])
        was = f", made small from {len(before)}" if before and len(before) > len(graph) else ""
        size = f"{len(graph)}{was}"
    guilty = f"{cause['kind']} {cause['name']}".strip() if cause else ""
    facts = [
        ("mode", ("fused" if what["fused"] else "op by op") if graph else ""),
        ("instructions", size),
        ("right without", ", ".join(failure.get("guilty", ()))),
        ("guilty", guilty),
        (
            "wrong elements",
            f"{what['wrong']:,} of {what['compared']:,}" if what.get("wrong") else "",
        ),
        ("rules broken", ", ".join(what.get("rules", ()))),
    ]
    return pairs(facts)


def _mismatches(found: Sequence[Mapping[str, Any]]) -> Markup | None:
    """What is wrong, element by element."""
    if not found:
        return None
    exact = all(m["low"] == m["high"] for m in found)
    operands = any(m.get("operands") for m in found)
    rows = (
        tag(
            "tr",
            tag("th", f"{m['output']}[{', '.join(map(str, m['index']))}]", scope="row"),
            tag("td", m["actual"], class_="number bad"),
            tag("td", m["expected"], class_="number"),
            tag("td", ", ".join(m.get("operands", ()))) if operands else None,
            None if exact else tag("td", f"{m['low']} … {m['high']}", class_="number"),
        )
        for m in found
    )
    names = ["is", "not"] + ["of"] * operands + ["allowed"] * (not exact)
    titles = (("output", None), *((name, "number") for name in names))
    heads = (tag("th", name, scope="col", class_=look) for name, look in titles)
    head = tag("thead", tag("tr", heads))
    return scrolled(tag("table", head, tag("tbody", rows), class_="wide"), "Wrong elements")


def _errors(counts: Sequence[int]) -> Markup | None:
    """How far from the reference the elements are, right and wrong."""
    if sum(counts) < _FEW:
        return None
    buckets = max(bounds.FEWEST, len(counts))
    pictures = (bounds.axis(buckets), bounds.histogram(counts, buckets))
    return tag("div", pictures, class_="scroll", tabindex=0, role="region", aria_label="Errors")


def _data(case: Plain) -> Markup | None:
    """What fills the inputs: a line for each data set."""
    lines = []
    for number, recipes in enumerate(case["data"]):
        if recipes:
            parts = ", ".join(f"%{i} {views.recipe(each)}" for i, each in enumerate(recipes))
            lines.append(f"set {number}: {parts}" if len(case["data"]) > 1 else parts)
    for number, cells in enumerate(case.get("cells", ())):
        texts = "; ".join(f"({', '.join(operands)})" for operands, _ in cells["cells"])
        lines.append(f"special values of output {number}: {texts}")
    return tag("ul", (tag("li", _cut(line)) for line in lines)) if lines else None


def _commands(file: str | None, verbs: Sequence[str]) -> Markup | None:
    if not file:
        return None
    name = shlex.quote(PurePath(file).name)
    lines = (code(f"conformance {verb} {name}", class_="command") for verb in verbs)
    return join((tag("h4", "In the report's folder"), lines))


def _cut(text: str) -> str:
    left = len(text) - _MOST_TEXT
    return text if left <= 0 else f"{text[:_MOST_TEXT]}\n… {left:,} more characters in the file"


def _picture(failure: Plain, graph: Graph | None) -> Markup | None:
    if graph is None or len(graph) > _MOST_DRAWN:
        return None
    case, what = smallest(failure), problem_of(failure)
    sets = case["data"]
    recipes = (
        [views.recipe(each) for each in sets[what.get("data_set", 0) % len(sets)]] if sets else []
    )
    wrong = {m["output"] for m in what["mismatches"]}
    picture = drawing(graph, recipes, wrong, _blamed(failure, graph))
    return tag("figure", picture, class_="scroll", tabindex=0, aria_label="The program")


def _blamed(failure: Plain, graph: Graph) -> set[int]:
    """Instructions that are guilty for sure: those of a guilty op or kernel, those that a guilty
    pass did away with, or the only one.
    """
    cause = failure.get("cause", {})
    names: set[str] = set()
    if cause.get("kind") == "op":
        names = {cause["name"]}
    if cause.get("kind") == "kernel":
        names = kernel_ops(cause)
    if cause.get("kind") == "pass":
        names = undone(cause)
    if len(graph) == 1:
        return {0}
    return {i for i, instr in enumerate(graph.instrs) if instr.op.name in names}


def _guilty(failure: Plain) -> Markup | None:
    """The guilty pass or kernel, what it was given and made of it, and its source."""
    cause = failure.get("cause", {})
    if not cause:
        return None
    texts = (
        ("Given", "ir_before"),
        ("Made of it", "ir_after"),
        ("Guilty kernel", "kernel"),
        ("Its source", "source"),
    )
    seen: set[str] = set()
    lists = (("From its element to the program's", "trace"), ("Places in memory", "slots"))
    blocks: list[Child] = [tag("p", cause["what"])]
    for title, key in lists:
        items = [tag("li", text) for text in cause.get(key, ())]
        blocks.append(_block(title, tag("ul", items) if items else None))
    for title, key in texts:
        text = cause.get(key, "")
        if text and text not in seen:
            seen.add(text)
            blocks.append(tag("details", tag("summary", title), code(_cut(text))))
    title = f"Guilty: {cause['kind']} {cause['name']}".strip()
    return tag("details", tag("summary", title), blocks, open=True)
