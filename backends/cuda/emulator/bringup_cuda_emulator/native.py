"""Native code of the emulator: the scheduler with the shims, once, and each loaded module."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

import bringup.llvm
from bringup.errors import CompileError
from bringup.llvm.host.engine import Code, engine
from bringup.llvm.host.halves import provide_halves
from bringup.llvm.host.machine import LLVM
from bringup.llvm.host.object_cache import Deferred, Emitted, digest_of_sources
from bringup.llvm.text import Module
from bringup.records import record
from bringup_cuda.codegen import nvvm
from bringup_cuda_emulator.checks import CHECK_EXPORTS, emit_checks
from bringup_cuda_emulator.fibers import (
    LAUNCH_EXPORTS,
    SYNC_EXPORTS,
    emit_scheduler,
    emit_synchronisation,
    switch_code,
)
from bringup_cuda_emulator.intrinsics import all_shims
from bringup_cuda_emulator.rewrite import KernelCode, rewrite
from bringup_cuda_emulator.wgmma import WGMMA_EXPORTS, emit_matrices, emit_products, emit_warpgroups

#: Of LLVM's code generator.  The machine is compiled once and run much; kernels are the other way.
MACHINE_LEVEL, KERNEL_LEVEL = 2, 0


class Native:
    """The scheduler's code: `launch` runs a grid until it is done or has a fault."""

    def __init__(self) -> None:
        # The context switch is assembly.
        with LLVM:
            llvm.initialize_native_asmparser()
        exports = (
            *LAUNCH_EXPORTS,
            *SYNC_EXPORTS,
            *CHECK_EXPORTS,
            *WGMMA_EXPORTS,
            *(s.symbol for s in all_shims().values()),
        )
        self._halves = provide_halves(engine())
        self.code = engine().compile_native(_machine_text(), exports, MACHINE_LEVEL)
        for name in exports:
            engine().symbol(name, self.code.addresses[name])
        self.launch: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            self.code.addresses["emu.launch"]
        )


def _machine_text() -> Deferred:
    """The text, identified by the files that emit it: a cached object needs no text."""
    emitters = [bringup.llvm.__file__, nvvm.__file__, __file__]
    packages = [Path(file).parent for file in emitters]
    return Deferred(digest_of_sources(*packages), _make_machine)


def _make_machine() -> Emitted:
    module = Module()
    emit_scheduler(module, switch_code())
    emit_synchronisation(module)
    emit_checks(module)
    emit_warpgroups(module)
    emit_matrices(module)
    emit_products(module)
    for shim in all_shims().values():
        shim.emit(module)
    return Emitted(str(module))


@cache
def native() -> Native:
    """The native code of this process."""
    return Native()


@record
class Loaded:
    """A module in memory.

    kernels: what is known of each.  entries: their addresses.
    sites: the instructions that faults can name.
    tables: first byte and end of each constant.
    checked: whether accesses to memory are.
    """

    kernels: dict[str, KernelCode]
    entries: dict[str, int]
    sites: Sequence[tuple[str, str]]
    tables: Sequence[tuple[int, int]]
    code: Code
    checked: bool


def load(text: str, *, checked: bool = True) -> Loaded:
    """Compile a module of LLVM IR for NVPTX to run here.

    checked: without, accesses to memory run at full speed, and only what threads wait for is
    checked.
    Raises CompileError.
    """
    native()
    rewritten = rewrite(canonical(text), checked=checked)
    entries = [f"{name}.entry" for name in rewritten.kernels]
    asks = {f"emu.table.{name}": size for name, size in rewritten.tables.items()}
    code = engine().compile_native(rewritten.text, [*entries, *asks], KERNEL_LEVEL)
    starts = [ctypes.CFUNCTYPE(ctypes.c_size_t)(code.addresses[name])() for name in asks]
    tables = [(s, s + size) for s, size in zip(starts, asks.values(), strict=True)]
    addresses = {name: code.addresses[f"{name}.entry"] for name in rewritten.kernels}
    return Loaded(rewritten.kernels, addresses, rewritten.sites, tables, code, checked)


def canonical(text: str) -> str:
    """A module as LLVM prints it: checked, and with today's names.  Raises CompileError."""
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context)
        try:
            module.verify()
            return str(module)
        finally:
            module.close()
    except RuntimeError as error:  # pragma: no cover - only wrong kernels
        raise CompileError("LLVM refuses the emitted IR", log=str(error), source=text) from error
    finally:
        context.close()
