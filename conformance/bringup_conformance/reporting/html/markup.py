"""HTML and SVG from nested calls; text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from bringup_conformance.reporting.views import visible

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
