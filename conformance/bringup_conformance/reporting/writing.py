"""The files of a report: for programs, for build servers, and for people."""

from __future__ import annotations

from pathlib import Path

from bringup_conformance.reporting.documents import document_of
from bringup_conformance.reporting.failures import put
from bringup_conformance.reporting.html import page
from bringup_conformance.reporting.junit import junit
from bringup_conformance.reporting.reports import Report


def write(report: Report, folder: Path) -> None:
    """Write ``report.json``, ``junit.xml`` and ``report.html``.  Raises OSError."""
    report.write(folder)
    document = document_of(report)
    put(folder / "junit.xml", junit(document))
    put(folder / "report.html", page(document))
