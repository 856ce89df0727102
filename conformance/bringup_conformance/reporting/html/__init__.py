"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from bringup_conformance.reporting import roots, views
from bringup_conformance.reporting.html import bounds, failing, heads, tables
from bringup_conformance.reporting.html.markup import Markup, tag
from bringup_conformance.reporting.reports import Document

__all__ = ["document", "page"]


def page(report: Document) -> str:
    """The text of the page."""
    causes = roots.roots(report.failures, report.excused)
    sections = (
        ("Next", "next", heads.next_(report, causes)),
        ("Levels", "levels", heads.ladder(report)),
        ("Failures", "failures", failing.failures(report, causes)),
        ("Ops and dtypes", "matrix", tables.matrix(report)),
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
    return document(title, heads.head(report), there)


def document(title: str, head: Markup, sections: Sequence[tuple[str, str, Markup]]) -> str:
    """A page under a head.

    sections: of each the title, the name in addresses, and what is in it.
    """
    body = [
        tag("a", "Skip to the report", href="#main", class_="skip"),
        head,
        tag(
            "nav",
            (tag("a", title, href=f"#{name}") for title, name, _ in sections),
            aria_label="Sections",
        ),
        tag("main", (_section(*each) for each in sections), id="main"),
        tag("script", Markup(_file("page.js"))),
    ]
    inner = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_file("page.css"))),
    ]
    html = tag("html", tag("head", inner), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"


def _section(title: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
