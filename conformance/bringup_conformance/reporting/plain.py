"""A failure as plain text, for frameworks with reports of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from bringup_conformance.oracle.verdict import Mismatch
from bringup_conformance.reporting import documents

#: Wrong elements that are told.
_MOST = 5


def failure_text(document: Mapping[str, Any], path: Path) -> str:
    """What went wrong, the rules that this breaks, the smallest program known, its worst elements,
    what is guilty, and the command that runs it again.
    """
    return "\n".join(_lines(document, path))


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
    worst = [Mismatch(**{**m, "index": tuple(m["index"])}) for m in problem["mismatches"][1:_MOST]]
    if worst:
        yield f"  {problem['wrong']} of {problem['compared']} elements are wrong, also:"
        yield from (f"    {mismatch}" for mismatch in worst)
    if document.get("guilty"):
        yield f"  right without: {', '.join(document['guilty'])}"
    if problem.get("log"):
        yield "  last words of the process:"
        yield indent(problem["log"].rstrip(), "    ")
    yield f"  again: conformance replay {path}"
