"""The kernel level: one launch as a grid of stages, and how graphs are cut into kernels.

What a renderer reads of it stands here: the kernel form, and its index expressions.
"""

from bringup.graph.index import Axis, Bound, Div, Dyn, Expr, Mod
from bringup.kernel.form import BufferDecl, Fold, Kernel, Stage, Store

__all__ = [
    "Axis",
    "Bound",
    "BufferDecl",
    "Div",
    "Dyn",
    "Expr",
    "Fold",
    "Kernel",
    "Mod",
    "Stage",
    "Store",
]
