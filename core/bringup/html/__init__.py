"""Pages that need nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from bringup.html.markup import Markup, tag

__all__ = ["document", "framed", "text_of"]


def document(
    title: str,
    head: Markup,
    sections: Sequence[tuple[str, str, Markup]],
    styles: str = "",
    script: str = "",
) -> str:
    """A page under a head.

    sections: of each the title, the name in addresses, and what is in it.
    styles, script: CSS and JavaScript beside those of every page.
    """
    body = [
        tag("a", "Skip to the content", href="#main", class_="skip"),
        head,
        tag(
            "nav",
            (tag("a", each, href=f"#{name}") for each, name, _ in sections),
            aria_label="Sections",
        ),
        tag("main", (_section(*each) for each in sections), id="main"),
        tag("script", Markup(text_of(__package__, "page.js") + script)),
    ]
    inner = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(text_of(__package__, "page.css") + styles)),
    ]
    html = tag("html", tag("head", inner), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"


def framed(page: str) -> str:
    """A page in a frame of its own, for notebooks: its styles touch nothing else."""
    style = "width: 100%; height: 560px; border: 1px solid #8884; border-radius: 6px"
    return tag("iframe", srcdoc=page, sandbox="allow-scripts", style=style)


def _section(title: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def text_of(package: str, name: str) -> str:
    """A file of text in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
