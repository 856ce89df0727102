"""What code is compiled for: this host, or a named CPU of its architecture."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from bringup.errors import UnsupportedError
from bringup.llvm.loops.schedule import LoopTarget
from bringup.records import record
from bringup_cpu import host

#: LLVM names for levels of x86-64, and the widths and numbers of their vector registers.
_NAMED = {
    "x86-64": LoopTarget(vector_bits=128, registers=16),
    "x86-64-v2": LoopTarget(vector_bits=128, registers=16),
    "x86-64-v3": LoopTarget(vector_bits=256, registers=16),
    "x86-64-v4": LoopTarget(vector_bits=512, registers=32),
}
_X86 = ("x86_64", "AMD64")
_WIDE = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@record
class CpuTarget:
    """A CPU.  cpu: LLVM's name, empty for the host.  loops: what the emitter must know of it."""

    cpu: str
    loops: LoopTarget


def target(name: str = "") -> CpuTarget:
    """The target of that name; without one the host, or what ``BRINGUP_CPU`` names.

    Raises UnsupportedError.
    """
    if not name:
        return CpuTarget("", host_loops())
    if name not in named():
        known = ", ".join(named()) or "no names, only the host"
        raise UnsupportedError(f"{name!r} is no CPU to compile for", fix=f"use one of: {known}")
    return CpuTarget(name, _NAMED[name])


def loops_of(name: str) -> LoopTarget:
    """What the emitter must know of a target of `target`, or of one that libraries are made for.

    Raises UnsupportedError.
    """
    from bringup_cpu import processors

    if name in named() or name not in processors.names():
        return target(name).loops
    rows = processors.processors(name)
    return rows[len(rows) // 2].loops


def named() -> Mapping[str, LoopTarget]:
    """The names that `target` takes on this machine."""
    return _NAMED if platform.machine() in _X86 else {}


@cache
def host_loops() -> LoopTarget:
    """Vector registers of the CPU to compile for, and cache of this one."""
    return replace(_host_registers(), cache_bytes=host.core_cache())


def _host_registers() -> LoopTarget:
    from bringup.llvm.host.machine import extensions, host_cpu, host_features

    cpu, features = host_cpu(), host_features().split(",")
    if platform.machine() not in _X86:  # pragma: no cover - only other processors
        return LoopTarget(vector_bits=128, registers=32)
    if cpu in _NAMED:  # pragma: no cover - only with BRINGUP_CPU set
        return _NAMED[cpu]
    if features == [""]:  # pragma: no cover - only with BRINGUP_CPU set
        features = [f"+{name}" for name in extensions(cpu, ("avx2", *_WIDE))]
    if {f"+{name}" for name in _WIDE} <= set(features):
        return _NAMED["x86-64-v4"]  # pragma: no cover - only AVX-512
    if "+avx2" in features:  # pragma: no cover - only AVX2
        return _NAMED["x86-64-v3"]
    return _NAMED["x86-64"]  # pragma: no cover - only processors without AVX2
