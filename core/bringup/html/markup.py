"""HTML and SVG from nested calls; text is escaped unless it is markup already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

#: Elements that have no end tag in HTML.
_EMPTY = frozenset({"meta", "br", "hr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element.

    attributes: ``class_`` for ``class``, ``data_x`` for ``data-x``; None and False leave one out,
    True writes it without a value.

    >>> tag("a", "1 < 2", tag("b", 3), href="#x", class_="y")
    '<a href="#x" class="y">1 &lt; 2<b>3</b></a>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Elements and texts one after another."""
    return Markup("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return escape(visible(str(child)))
    return join(child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(visible(text))}"'


#: The title of a column, and the class of its cell in the head of the table.
Column: TypeAlias = tuple[str, str | None]


def table(columns: Iterable[Column], rows: Iterable[Child], caption: str, look: str) -> Markup:
    """A table, which may be wider than the window.

    caption: what screen readers call it.  look: its class.
    """
    heads = (tag("th", title, scope="col", class_=cell_look) for title, cell_look in columns)
    head = tag("thead", tag("tr", heads))
    return scrolled(tag("table", head, tag("tbody", rows), class_=look), caption)


def scrolled(content: Markup, label: str) -> Markup:
    """Content that may be wider than the window."""
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def pairs(facts: Sequence[tuple[str, Child]]) -> Markup:
    """Names with their values; those without a value are left out."""
    each = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts if value)
    return tag("dl", each, class_="facts")


def code(text: str, **attributes: str) -> Markup:
    """Text as it is written, which scrolls with the keyboard too."""
    return tag("pre", tag("code", text), tabindex=0, **attributes)


# Characters that a terminal may act on: control characters but tabs and ends of lines, and those
# that change the direction of text.
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""A device's text as it may be shown: what a terminal would act on is written as an escape.

    >>> visible("lost\x1b[2J\n")
    'lost\\x1b[2J\n'
    """
    return _ACTIVE.sub(lambda match: ascii(match[0])[1:-1], text)
