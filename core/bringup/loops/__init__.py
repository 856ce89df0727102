"""The loop level: between kernels and the text of a machine, one form for all of them.

``Kernel -> lower -> Func -> schedule -> Func -> render -> text``
"""

from bringup.loops.evaluate import evaluate_func
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
from bringup.loops.text import parse_func, print_func, print_stmt
from bringup.loops.verify import verify_func

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
    "evaluate_func",
    "lower_kernel",
    "named_axis",
    "parse_func",
    "print_func",
    "print_stmt",
    "statements",
    "verify_func",
]
