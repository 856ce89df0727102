"""The loop level: between kernels and the text of a machine, one form for all of them.

``Kernel -> lower -> Func -> schedule -> Func -> render -> text``
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.loops.evaluate import evaluate_func
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
    from bringup.loops.text import parse_func, print_func, print_stmt
    from bringup.loops.verify import verify_func

#: Modules are imported when a name of theirs is asked for.  All other names are of `form`.
_MODULE_OF = {
    "evaluate_func": "evaluate",
    "lower_kernel": "lower",
    "parse_func": "text",
    "print_func": "text",
    "print_stmt": "text",
    "verify_func": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF.get(name, 'form')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__


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
