"""The environment variables of core, in one table."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.errors import BringupError
from bringup.records import record


@record
class Variable:
    """One environment variable: name, default, meaning.

    choices: the words it may be; none for a path.
    folder: whether a path is that of a directory, made when needed.
    path: whether it is a path at all, or a name that its reader checks.
    """

    name: str
    default: str
    doc: str
    choices: tuple[str, ...] = ()
    folder: bool = False
    path: bool = True


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "BRINGUP_DUMP",
        "",
        "directory that receives every pass's graph, why values are stored, programs, kernels and"
        " their loops",
        folder=True,
    ),
    Variable(
        "BRINGUP_CHECK",
        "0",
        "0: trust; 1: verify every level after every pass; 2: also compare values around each pass",
        choices=("0", "1", "2"),
    ),
    Variable(
        "BRINGUP_DEBUG",
        "0",
        "on standard error, 1: a line for each program compiled; 2: for each pass too; 3: kernels"
        " too; 4: their source too",
        choices=("0", "1", "2", "3", "4"),
    ),
    Variable(
        "BRINGUP_PROGRESS",
        "1",
        "1: where standard error is a terminal, a line for a compilation that lasts five seconds,"
        " and one at its end; 0: none",
        choices=("0", "1"),
    ),
    Variable(
        "BRINGUP_CHECK_NAN",
        "0",
        "1: look at every result, and raise an error that names the operation and the line that"
        " made the first NaN out of operands without any; set before the program starts",
        choices=("0", "1"),
    ),
    Variable("BRINGUP_TRACE", "", "file.json that receives a timeline for Perfetto"),
    Variable(
        "BRINGUP_TRACEBACK",
        "user",
        "user: tracebacks show the frames of your own code; full: those inside bringup as well",
        choices=("user", "full"),
    ),
    Variable(
        "BRINGUP_DEFAULT_DTYPE",
        "float64",
        "dtype of floats where nothing else decides, as `set_default_dtype` sets it; read once",
        choices=("float64", "float32", "bfloat16", "float16"),
    ),
    Variable(
        "BRINGUP_EMIT",
        "0",
        "1: emit code for every program and find objects on disk by its text, not by the program;"
        " for work on emitters that changes them in a running process",
        choices=("0", "1"),
    ),
    Variable(
        "BRINGUP_CPU",
        "native",
        "processor that code for this machine is compiled for: native, a level such as x86-64-v3,"
        " or LLVM's name of one",
        path=False,
    ),
    Variable(
        "BRINGUP_SCHEDULES",
        "",
        "directory of the schedules that `bringup tune` found, instead of one of the user's data",
        folder=True,
    ),
    Variable(
        "BRINGUP_OPT",
        "2",
        "how much LLVM's code generator optimises for this machine; 0 compiles in a third of the"
        " time of 2 what then runs several times as long: for tests of many small programs",
        choices=("0", "1", "2", "3"),
    ),
)


_BY_NAME = {variable.name: variable for variable in VARIABLES}


def text(name: str) -> str:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, _BY_NAME[name].default)


def level(name: str) -> int:
    """`word` of a variable whose words are integers."""
    return int(word(name))


def word(name: str) -> str:
    """The value of a variable with choices; an empty text is the default.

    Raises BringupError if it is none of the choices.
    """
    variable = _BY_NAME[name]
    fix = problem(variable)
    if fix is not None:
        raise BringupError(
            f"{name}={text(name)!r} is no value of {name}",
            notes=(variable.doc,),
            fix=fix,
        )
    return text(name) or variable.default


def problem(variable: Variable) -> str | None:
    """What to do about the value that a variable has now; None if it is a right one."""
    if not variable.path:
        return None
    if not variable.choices:
        return _unwritable(variable, Path(text(variable.name)))
    if (text(variable.name) or variable.default) in variable.choices:
        return None
    return f"set {variable.name} to one of {', '.join(variable.choices)}, or unset it"


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
