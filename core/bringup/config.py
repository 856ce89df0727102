"""The four environment variables, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bringup.errors import BringupError


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: name, default, meaning."""

    name: str
    default: str
    doc: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "BRINGUP_DUMP", "", "directory that receives every pass's graph, kernel and program as text"
    ),
    Variable(
        "BRINGUP_CHECK",
        "0",
        "0: trust; 1: verify every level after every pass; 2: also compare values around each pass",
    ),
    Variable("BRINGUP_DEBUG", "0", "0: silent … 4: everything, on standard error"),
    Variable("BRINGUP_TRACE", "", "file.json that receives a timeline for Perfetto"),
)


def text(name: str) -> str:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, next(v.default for v in VARIABLES if v.name == name))


def level(name: str) -> int:
    """The value of a numeric variable.  Raises BringupError if it is no integer."""
    value = text(name)
    try:
        return int(value or "0")
    except ValueError:
        raise BringupError(
            f"{name}={value!r} is not an integer", fix=f"set {name} to 0, 1 or 2"
        ) from None
