"""Pieces of C that libraries are written with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def function_text(head: str, params: Sequence[str], body: Sequence[str]) -> str:
    """A function of C, which says so of parameters that it does not use.

    Members of structs, behind ``->``, may have the names of parameters.
    """
    text = "\n".join(body)
    names = (re.split(r"[ *]", param)[-1] for param in params)
    unused = [f"(void){name};" for name in names if not re.search(rf"(?<!->)\b{name}\b", text)]
    lines = (f"  {line}" for line in (*unused, *body))
    taken = ",\n    ".join(params)
    return "\n".join([f"{head}(\n    {taken}) {{", *lines, "}"])


def constant_array(element: str, name: str, elements: Iterable[str], in_line: int = 8) -> str:
    """A constant array, some elements a line."""
    every = list(elements)
    lines = [f"  {', '.join(every[n : n + in_line])}," for n in range(0, len(every), in_line)]
    return "\n".join([f"static const {element} {name}[{len(every)}] = {{", *lines, "};"])


def byte_array(name: str, data: bytes) -> str:
    """Bytes as a constant array of them, at least one."""
    return constant_array("unsigned char", name, map(str, data or b"\0"), 24)


__all__ = ["byte_array", "constant_array", "function_text"]
