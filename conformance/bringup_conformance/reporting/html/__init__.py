"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from bringup.html import document, text_of
from bringup_conformance.reporting import roots, views
from bringup_conformance.reporting.html import bounds, compared, failing, heads, tables
from bringup_conformance.reporting.reports import Document

__all__ = ["page"]


def page(report: Document, against: Document | None = None) -> str:
    """The text of the page.  against: an earlier report, which this one is compared with."""
    causes = roots.roots(report.failures, report.excused, report.declared)
    sections = (
        ("Next", "next", heads.next_(report, causes)),
        ("Levels", "levels", heads.ladder(report)),
        ("Compared", "compared", None if against is None else compared.section(against, report)),
        ("Failures", "failures", failing.failures(report, causes)),
        ("Ops and dtypes", "matrix", tables.matrix(report, against)),
        ("Errors", "errors", bounds.errors(report)),
        ("Rules", "rules", tables.rules(report)),
        ("Expected", "expected", tables.expected(report)),
        ("Unsupported", "unsupported", tables.unsupported(report)),
        ("Environment", "environment", heads.environment(report)),
    )
    there = [(title, name, content) for title, name, content in sections if content]
    whole = report.whole
    title = f"{whole['backend']}: {heads.verdict(report)[1]}"
    title = f"{title} · level {whole['level']} · {views.scope(whole)}"
    styles, script = (text_of(__package__, f"report.{kind}") for kind in ("css", "js"))
    return document(title, heads.head(report), there, styles, script)
