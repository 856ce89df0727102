"""What a library made ahead of time shows to C: functions, their arguments and their results."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bringup.errors import BringupError
from bringup.export.weights import HeldArray
from bringup.program.program import Program
from bringup.records import record
from bringup.types import TensorType

#: Words of C, C++ and Rust that no member of a struct can be called.
_RESERVED = frozenset(
    "alignas alignof and as asm async auto await bool break case catch char class const constexpr "
    "continue crate default delete do double dyn else enum explicit export extern false float fn "
    "for friend goto if impl in inline int let long loop match mod move mut namespace new not "
    "operator or override private protected pub public ref register restrict return self short "
    "signed sizeof static struct super switch template this throw trait true try type typedef "
    "typename union unsafe unsigned use using virtual void volatile weights where while xor".split()
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


def members(names: Iterable[str], types: Iterable[TensorType]) -> tuple[Member, ...]:
    """A member for each array, under its name or one like it that is free."""
    taken: set[str] = set()
    pairs = zip(names, types, strict=True)
    return tuple(Member(_free(identifier(name), taken), type_) for name, type_ in pairs)


def identifier(text: str) -> str:
    """A path such as ``params['w'][0]`` as a name of C: ``params_w_0``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if name in _RESERVED else name


def check_name(name: str) -> None:
    """Raise BringupError unless a library, or a function of one, can have this name in C."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _RESERVED:
        raise BringupError(
            f"a library cannot be called {name!r}: it is no name in C",
            fix="use letters, digits and underscores, such as 'model'",
        )


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free


__all__ = ["Function", "Member", "check_name", "identifier", "members"]
