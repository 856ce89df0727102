"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from importlib.resources import files

from bringup_conformance.reporting import roots, views
from bringup_conformance.reporting.html import bounds, failing, heads, tables
from bringup_conformance.reporting.html.markup import Markup, tag
from bringup_conformance.reporting.reports import Document

__all__ = ["page"]


def page(document: Document) -> str:
    """The text of the page."""
    causes = roots.roots(document.failures, document.excused)
    sections = (
        ("Next", "next", heads.next_(document, causes)),
        ("Levels", "levels", heads.ladder(document)),
        ("Failures", "failures", failing.failures(document, causes)),
        ("Ops and dtypes", "matrix", tables.matrix(document)),
        ("Errors", "errors", bounds.errors(document)),
        ("Rules", "rules", tables.rules(document)),
        ("Expected", "expected", tables.expected(document)),
        ("Unsupported", "unsupported", tables.unsupported(document)),
        ("Environment", "environment", heads.environment(document)),
    )
    there = [(title, name, content) for title, name, content in sections if content]
    body = [
        tag("a", "Skip to the report", href="#main", class_="skip"),
        heads.head(document),
        tag(
            "nav",
            (tag("a", title, href=f"#{name}") for title, name, _ in there),
            aria_label="Sections",
        ),
        tag("main", (_section(*each) for each in there), id="main"),
        tag("script", Markup(_file("page.js"))),
    ]
    whole = document.whole
    title = f"{whole['backend']}: {heads.verdict(document)[1]}"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · level {whole['level']} · {views.scope(whole)}"),
        tag("style", Markup(_file("page.css"))),
    ]
    html = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"


def _section(title: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
