"""The four environment variables, in one table."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.errors import BringupError
from bringup.records import record


@record
class Variable:
    """One environment variable: name, default, meaning.

    highest: of a level, which is an integer from 0 on; None for a path.
    folder: whether a path is that of a directory, made when needed.
    """

    name: str
    default: str
    doc: str
    highest: int | None = None
    folder: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "BRINGUP_DUMP",
        "",
        "directory that receives every pass's graph, kernel and program as text",
        folder=True,
    ),
    Variable(
        "BRINGUP_CHECK",
        "0",
        "0: trust; 1: verify every level after every pass; 2: also compare values around each pass",
        highest=2,
    ),
    Variable(
        "BRINGUP_DEBUG",
        "0",
        "on standard error, 1: a line for each program compiled; 2: for each pass too; 3: kernels"
        " too; 4: their source too",
        highest=4,
    ),
    Variable("BRINGUP_TRACE", "", "file.json that receives a timeline for Perfetto"),
)


_BY_NAME = {variable.name: variable for variable in VARIABLES}


def text(name: str) -> str:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, _BY_NAME[name].default)


def level(name: str) -> int:
    """The value of a level; an empty text is the default.

    Raises BringupError if it is none of the level's integers.
    """
    variable = _BY_NAME[name]
    fix = problem(variable)
    if fix is not None:
        raise BringupError(
            f"{name}={text(name)!r} is no level of {name}", notes=(variable.doc,), fix=fix
        )
    return int(text(name) or variable.default)


def problem(variable: Variable) -> str | None:
    """What to do about the value that a variable has now; None if it is a right one."""
    if variable.highest is None:
        return _unwritable(variable, Path(text(variable.name)))
    levels = [str(i) for i in range(variable.highest + 1)]
    if (text(variable.name) or variable.default) in levels:
        return None
    return f"set {variable.name} to one of {', '.join(levels)}, or unset it"


def _unwritable(variable: Variable, path: Path) -> str | None:
    if not text(variable.name):
        return None
    if variable.folder:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        right = there.is_dir() and os.access(there, os.W_OK)
        return None if right else f"set {variable.name} to a directory that can be written"
    if path.parent.is_dir() and not path.is_dir() and os.access(path.parent, os.W_OK):
        return None
    return f"set {variable.name} to a file in a directory that exists"
