"""What code is compiled for: this host, or a named CPU of its architecture."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from bringup.errors import UnsupportedError
from bringup.target import Target
from bringup_cpu import host

#: Levels of x86-64 by the names that LLVM gives them: the widths and numbers of their vector
#: registers (SSE2, AVX2 with 16 registers, AVX-512 with 32).  Cache lines have 64 bytes on all, and
#: code for a named CPU counts on 1 MiB of cache for each core, which those of this decade have.
X86_LEVELS = {
    row.name: row
    for row in (
        Target("x86-64", vector_bits=128, registers=16),
        Target("x86-64-v2", vector_bits=128, registers=16),
        Target("x86-64-v3", vector_bits=256, registers=16),
        Target("x86-64-v4", vector_bits=512, registers=32),
    )
}
#: AArch64 and all others: vectors of 128 bits are what every one has, and AArch64 has 32 of them.
_OTHER = Target(platform.machine(), vector_bits=128, registers=32)
_X86 = ("x86_64", "AMD64")
_WIDE = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def target(name: str = "") -> Target:
    """The row of that name; without one the host's, or that of what ``BRINGUP_CPU`` names.

    A name of several levels, for libraries, has the row of the middle one.

    Raises UnsupportedError.
    """
    from bringup_cpu import processors

    if not name:
        return host_target()
    if name in processors.names() and name not in named():
        rows = processors.processors(name)
        return rows[len(rows) // 2].row
    if name not in named():
        known = ", ".join(named()) or "no names, only the host"
        raise UnsupportedError(f"{name!r} is no CPU to compile for", fix=f"use one of: {known}")
    return X86_LEVELS[name]


def named() -> Mapping[str, Target]:
    """The names that `target` takes on this machine."""
    return X86_LEVELS if platform.machine() in _X86 else {}


@cache
def host_target() -> Target:
    """The row of the CPU to compile for, with the cache of this one."""
    return replace(_host_row(), cache_bytes=host.core_cache())


def _host_row() -> Target:
    from bringup.llvm.host.machine import extensions, host_cpu, host_features

    cpu, features = host_cpu(), host_features().split(",")
    if platform.machine() not in _X86:  # pragma: no cover - only other processors
        return _OTHER
    if cpu in X86_LEVELS:  # pragma: no cover - only with BRINGUP_CPU set
        return X86_LEVELS[cpu]
    if features == [""]:  # pragma: no cover - only with BRINGUP_CPU set
        features = [f"+{name}" for name in extensions(cpu, ("avx2", *_WIDE))]
    if {f"+{name}" for name in _WIDE} <= set(features):
        return X86_LEVELS["x86-64-v4"]  # pragma: no cover - only AVX-512
    if "+avx2" in features:  # pragma: no cover - only AVX2
        return X86_LEVELS["x86-64-v3"]
    return X86_LEVELS["x86-64"]  # pragma: no cover - only processors without AVX2
