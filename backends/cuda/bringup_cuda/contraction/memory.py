"""Shared memory of a kernel: static where little is wanted, asked for at the launch where much."""

from __future__ import annotations

from bringup.llvm import text as ir
from bringup.llvm.text import Module, Val

_SHARED = 3
#: What a kernel may have without asking for it at the launch.
STATIC_BYTES = 48 << 10


def shared_memory(module: Module, name: str, nbytes: int) -> tuple[Val, int]:
    """The address of ``nbytes`` of shared memory of the kernel ``name``, and how much of it the
    launch must ask for.
    """
    dynamic = nbytes > STATIC_BYTES
    start = module.global_variable(
        f"{name}_shared",
        ir.array(ir.i8, 0 if dynamic else nbytes),
        "" if dynamic else "undef",
        align=128,
        linkage="external" if dynamic else "internal",
        address_space=_SHARED,
    )
    return start, nbytes if dynamic else 0
