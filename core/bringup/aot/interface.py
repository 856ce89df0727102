"""What a library made ahead of time shows to C: functions, their arguments and their results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from bringup.aot.weights import HeldArray
from bringup.c.names import KEYWORDS
from bringup.errors import BringupError
from bringup.program.program import Program
from bringup.records import record
from bringup.types import TensorType

#: Words of Rust, besides those of C and C++.
_OF_RUST = frozenset(
    """
    as async await crate dyn fn impl in let loop match mod move mut pub ref self super trait type
    unsafe use weights where
    """.split()  # noqa: SIM905 - a table of words
)


@record
class Member:
    """An array that C passes: its name in the struct, and its type."""

    name: str
    type: TensorType


@record
class Function:
    """One function of a library.

    prefix: what the names in C that belong to it begin with.  symbol: of the function itself.
    program: what it computes.  arguments, results: what callers pass, in order.
    held: the other inputs of the program, then the constants of each of its programs.
    """

    prefix: str
    symbol: str
    program: Program
    arguments: tuple[Member, ...]
    results: tuple[Member, ...]
    held: tuple[HeldArray, ...] = ()


def members(
    names: Iterable[str], types: Iterable[TensorType], others: Sequence[Member] = ()
) -> tuple[Member, ...]:
    """A member for each array, under its name or one like it that is free.

    others: those of the same function.  Constants of the header have the names in capitals.
    """
    taken = {member.name.upper() for member in others}
    pairs = zip(names, types, strict=True)
    return tuple(Member(_free(identifier(name), taken), type_) for name, type_ in pairs)


def identifier(text: str) -> str:
    """A path such as ``params['w'][0]`` as a name of C: ``params_w_0``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if name in KEYWORDS | _OF_RUST else name


def check_name(name: Any) -> None:
    """Raise BringupError unless a library, or a function of one, can have this name in C."""
    if (
        not isinstance(name, str)
        or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
        or name in KEYWORDS | _OF_RUST
    ):
        raise BringupError(
            f"a library cannot be called {name!r}: it is no name in C, C++ and Rust",
            fix="use letters, digits and underscores, such as 'model'",
        )


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free.upper() in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free.upper())
    return free


__all__ = ["Function", "Member", "check_name", "identifier", "members"]
