"""A report as its files hold it: what every form of it is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.reports import Report

Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report as plain data.

    whole: what ``report.json`` holds.  failures: the documents of its failures, in its order; of
    those whose files are gone, what the report itself says.
    """

    whole: Plain
    failures: tuple[Plain, ...] = ()

    @property
    def excused(self) -> Plain:
        """Names of cases that failed as expected, with what expects it."""
        found: Plain = (self.whole.get("expected") or {}).get("xfailed", {})
        return found


def document_of(report: Report) -> Document:
    """The document of a report at hand."""
    return Document(report.whole(), tuple(failure.document for failure in report.failures))


def read(path: Path) -> Document:
    """Read a report's folder, or its ``report.json``.

    Raises OSError, and BringupError if it is none.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        found = tuple(_failure(file.parent, each) for each in whole["failures"])
    except (ValueError, KeyError, TypeError) as error:
        raise BringupError(f"{file} is no report of this suite: {error}") from error
    if "results" not in whole:
        raise BringupError(f"{file} is no report of this suite")
    return Document(whole, found)


def _failure(folder: Path, summary: Plain) -> Plain:
    """A failure's document from its file, which may have moved with the folder; or its summary."""
    if summary.get("file"):
        own = Path(summary["file"])
        for place in (folder / own.name, own):
            if place.is_file():
                try:
                    return failures.read(place)
                except ValueError as error:
                    raise ValueError(f"{own.name}: {error}") from error
    return from_summary(summary)


def from_summary(summary: Plain) -> Plain:
    """As much of a failure's document as the report itself says."""
    case = {key: summary[key] for key in ("name", "level", "op", "dtype")}
    problem = {
        "kind": summary["kind"],
        "what": summary["what"],
        "fused": summary["mode"] == "fused",
        "mismatches": [],
    }
    return {
        "case": {**case, "ir": summary.get("program", ""), "data": []},
        "problem": problem,
        "guilty": summary.get("guilty", []),
        "nodes": summary.get("nodes", 0),
    }


def shown(failure: Plain) -> Plain:
    """The smallest form of a failure's case."""
    found: Plain = failure.get("reduced") or failure["case"]
    return found


def problem(failure: Plain) -> Plain:
    """What went wrong, in that form."""
    found: Plain = shown(failure).get("problem") or failure["problem"]
    return found
