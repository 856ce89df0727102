"""Pieces of C that libraries are written with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bringup.c import Dialect, render_all
from bringup.loops.form import Func


class Functions:
    """Functions of the loop level in one text: equal ones once, each under a name of its own."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        #: By content.
        self._added: dict[str, Func] = {}

    def add(self, func: Func) -> Func:
        """The function as the text has it."""
        if func.content not in self._added:
            is_taken = any(other.name == func.name for other in self._added.values())
            name = f"{func.name}_{len(self._added)}" if is_taken else func.name
            self._added[func.content] = replace(func, name=name)
        return self._added[func.content]

    def text(self) -> str:
        """All that were added."""
        return render_all([*self._added.values()], self.dialect)


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


__all__ = ["Functions", "byte_array", "constant_array", "function_text"]
