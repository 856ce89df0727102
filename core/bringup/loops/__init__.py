"""The loop level: between kernels and the text of a machine, one form for all of them.

``Kernel -> lower -> Func -> schedule -> Func -> render -> text``
"""

from typing import TYPE_CHECKING, Any

from bringup.loops.form import (
    Alloc,
    Barrier,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    Param,
    Scalar,
    Store,
    named_axis,
    statements,
)
from bringup.loops.lower import lower_kernel

if TYPE_CHECKING:
    from bringup.loops.text import parse_func, print_func

__all__ = [
    "Alloc",
    "Barrier",
    "Buffer",
    "For",
    "Func",
    "If",
    "Let",
    "Load",
    "Param",
    "Scalar",
    "Store",
    "lower_kernel",
    "named_axis",
    "parse_func",
    "print_func",
    "statements",
]


def __getattr__(name: str) -> Any:
    """Text is for people and tests: a program that is compiled does not wait for its parsers."""
    if name in ("parse_func", "print_func"):
        from bringup.loops import text

        return getattr(text, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
