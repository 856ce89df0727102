"""A failure as plain text, for frameworks with reports of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from bringup_conformance.oracle.verdict import Mismatch
from bringup_conformance.reporting import documents

#: Wrong elements that are told.
_MOST = 5


# What a terminal may act on: control characters but tabs and ends of lines, and those that turn the
# direction of text.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""A device's text as it may be shown: what a terminal would act on is written as an escape.

    >>> visible("lost\x1b[2J\n")
    'lost\\x1b[2J\n'
    """
    return _ACTS.sub(lambda found: ascii(found[0])[1:-1], text)


def failure_text(document: Mapping[str, Any], path: Path) -> str:
    """What went wrong, the rules that this breaks, the smallest program known, its worst elements,
    what is guilty, and the command that runs it again.
    """
    return visible("\n".join(_lines(document, path)))


def _lines(document: Mapping[str, Any], path: Path) -> Iterator[str]:
    problem, shown = documents.problem(document), documents.shown(document)
    yield f"{document['case']['name']}: {problem['kind']}"
    yield indent(problem["what"], "  ")
    rules = document["problem"].get("rules", ())
    if rules:
        yield f"  rules: {', '.join(rules)}"
    if shown["ir"]:
        kind = "the smallest program that fails" if document.get("reduced") else "the program"
        mode = "fused" if problem["fused"] else "instruction by instruction"
        yield f"  {kind}, {mode}:"
        yield indent(shown["ir"].rstrip(), "    ")
    worst = list(map(Mismatch.from_json, problem["mismatches"][1:_MOST]))
    if worst:
        yield f"  {problem['wrong']} of {problem['compared']} elements are wrong, also:"
        yield from (f"    {mismatch}" for mismatch in worst)
    if document.get("guilty"):
        yield f"  right without: {', '.join(document['guilty'])}"
    if problem.get("log"):
        yield "  last words of the process:"
        yield indent(problem["log"].rstrip(), "    ")
    yield f"  again: conformance replay {path}"
