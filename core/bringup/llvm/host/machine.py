"""The CPU that code for this machine is compiled for: its own, or what BRINGUP_CPU names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from functools import cache

import llvmlite.binding as llvm

from bringup import config
from bringup.errors import UnsupportedError

VARIABLE = "BRINGUP_CPU"
#: Held around every use of LLVM, and while the process forks.  Every call of llvmlite takes a lock
#: of its own, even one for the CPU's name; a child would find that lock locked for ever.
LLVM = threading.RLock()
os.register_at_fork(before=LLVM.acquire, after_in_parent=LLVM.release, after_in_child=LLVM.release)
#: The names of instruction sets that many CPUs share; LLVM has them on x86-64 alone.
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
#: Extensions that compiled arithmetic never uses: for systems, keys, caches and transactions.
_SPECIAL = frozenset(
    [
        "clzero", "cldemote", "enqcmd", "hreset", "invpcid", "kl", "movdir64b", "movdiri", "mwaitx",
        "pconfig", "pku", "prefetchi", "ptwrite", "rdpru", "rtm", "serialize", "sgx", "tsxldtrk",
        "uintr", "usermsr", "waitpkg", "wbnoinvd", "widekl",
    ]
)  # fmt: skip
# LLVM ends the process, or warns and goes on, where a name is unknown.
_PROBE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(sys.argv[1])
machine.emit_assembly(llvm.parse_assembly("define void @f() { ret void }"))
"""


@cache
def host_cpu() -> str:
    """LLVM's name of the CPU to compile for.

    Raises UnsupportedError if ``BRINGUP_CPU`` is a name that LLVM does not know here.
    """
    name = config.text(VARIABLE)
    if name not in ("", "native"):
        return _known_cpu(name)  # pragma: no cover - only with BRINGUP_CPU set
    with LLVM:
        return str(llvm.get_host_cpu_name())


def _known_cpu(name: str) -> str:  # pragma: no cover - only with BRINGUP_CPU set
    with LLVM:
        triple = llvm.get_default_triple()
    shared = triple.startswith("x86_64")
    if not (name in LEVELS and shared) and not _known(name):
        levels = ", ".join(LEVELS) if shared else ""
        raise UnsupportedError(
            f"{VARIABLE}={name!r} is no CPU of {triple} that LLVM knows",
            fix=f"set {VARIABLE} to native, {levels or 'or'} or LLVM's name of a CPU, or unset it",
        )
    return name


@cache
def host_features() -> str:
    """Instruction-set extensions besides those of `host_cpu`, in LLVM's form: ``+avx2,-sse4a``."""
    if config.text(VARIABLE) in ("", "native"):
        with LLVM:
            return str(llvm.get_host_cpu_features().flatten())
    return ""  # pragma: no cover - only with BRINGUP_CPU set


@cache
def require_runnable() -> None:
    """Raise UnsupportedError if ``BRINGUP_CPU`` names a CPU whose code cannot run here."""
    if config.text(VARIABLE) not in ("", "native"):
        _require_extensions()  # pragma: no cover - only with BRINGUP_CPU set


def _require_extensions() -> None:  # pragma: no cover - only with BRINGUP_CPU set
    with LLVM:
        own = llvm.get_host_cpu_features()
    lacking = [name for name, present in own.items() if not present and name not in _SPECIAL]
    missing = extensions(host_cpu(), lacking)
    if missing:
        raise UnsupportedError(
            f"{VARIABLE}={host_cpu()!r} has instructions that this machine lacks:"
            f" {', '.join(sorted(missing))}",
            fix=f"set {VARIABLE} to native or a CPU without them, or unset it;"
            " `lower` compiles for a CPU without running there",
        )


def extensions(cpu: str, names: Iterable[str]) -> list[str]:  # pragma: no cover - for BRINGUP_CPU
    """Which instruction-set extensions, by LLVM's names, a CPU has.

    LLVM does not tell, but inlines a function only into one whose CPU has all that it may use.
    """
    # Objects of LLVM must be disposed under the lock as well.
    with LLVM:
        return _extensions(cpu, list(names))


def _extensions(cpu: str, names: list[str]) -> list[str]:  # pragma: no cover - for BRINGUP_CPU
    lines = [f'define void @caller() "target-cpu"="{cpu}" {{']
    lines += [f'call void @"has {name}"()' for name in names]
    lines.append("ret void }\ndeclare void @used()")
    base = "x86-64" if llvm.get_default_triple().startswith("x86_64") else "generic"
    for name in names:
        attributes = f'"target-cpu"="{base}" "target-features"="+{name}"'
        lines.append(f'define internal void @"has {name}"() {attributes} {{')
        lines.append("call void @used() ret void }")
    llvm.initialize_native_target()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    with llvm.parse_assembly("\n".join(lines)) as module:
        module.triple = llvm.get_default_triple()
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        remaining = set(re.findall(r'call .*@"has ([^"]+)"', str(module)))
    return [name for name in names if name not in remaining]


def _known(name: str) -> bool:  # pragma: no cover - only with BRINGUP_CPU set
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, name], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and "is not a recognized processor" not in done.stderr
