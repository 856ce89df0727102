"""The files of a report: for programs, for build servers, and for people."""

from __future__ import annotations

from pathlib import Path

from bringup_conformance.reporting.documents import document_of
from bringup_conformance.reporting.html import page
from bringup_conformance.reporting.junit import junit
from bringup_conformance.reporting.reports import Report


def write(report: Report, folder: Path) -> None:
    """Write ``report.json``, ``junit.xml`` and ``report.html``.  Raises OSError."""
    report.write(folder)
    document = document_of(report)
    (folder / "junit.xml").write_text(junit(document), encoding="utf-8")
    (folder / "report.html").write_text(page(document), encoding="utf-8")
