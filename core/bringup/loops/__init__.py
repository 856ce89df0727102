"""The loop level: between kernels and the text of a machine, one form for all of them.

``Kernel -> lower -> Func -> schedule -> Func -> render -> text``
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bringup.loops.form import (
    Alloc,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    Let,
    Load,
    Param,
    Scalar,
    Shuffle,
    Store,
    Wait,
    named_axis,
    statements,
)
from bringup.loops.lower import lower_kernel

if TYPE_CHECKING:
    from bringup.loops.evaluate import evaluate_func
    from bringup.loops.text import parse_func, print_func, print_stmt
    from bringup.loops.verify import verify_func

#: The modules of what a process that only runs programs never needs: imported when asked for.
_MODULE_OF = {
    "evaluate_func": "evaluate",
    "parse_func": "text",
    "print_func": "text",
    "print_stmt": "text",
    "verify_func": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


__all__ = [
    "Alloc",
    "Barrier",
    "Buffer",
    "Commit",
    "For",
    "Func",
    "If",
    "Let",
    "Load",
    "Param",
    "Scalar",
    "Shuffle",
    "Store",
    "Wait",
    "evaluate_func",
    "lower_kernel",
    "named_axis",
    "parse_func",
    "print_func",
    "print_stmt",
    "statements",
    "verify_func",
]
