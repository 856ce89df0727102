"""Shared memory of a kernel: static where little is wanted, asked for at the launch where much."""

from __future__ import annotations

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Module, Val, const

_SHARED = 3
#: What a kernel may have without asking for it at the launch.
STATIC_BYTES = 48 << 10


def shared_memory(module: Module, name: str, nbytes: int) -> tuple[Val, int]:
    """The address of ``nbytes`` of shared memory of the kernel ``name``, a multiple of 128, and how
    much of it the launch must ask for.
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


def aligned(b: Builder, start: Val, alignment: int) -> Val:
    """The first multiple of ``alignment`` from an address in shared memory on: no launch promises
    more than that of `shared_memory`.
    """
    at = b.ptrtoint(start, ir.i64)
    rest = b.and_(b.sub(const(ir.i64, 0), at), const(ir.i64, alignment - 1))
    return b.gep(start, rest, ir.i8)
