"""The context switch between fibres, for each host's calling convention.

``emu.switch(save, to)`` keeps what a callee must keep on the stack it leaves, stores that stack's
pointer at ``save`` and goes on with the stack ``to``.
"""

from __future__ import annotations

import platform

from bringup.errors import UnsupportedError
from bringup.llvm.text import Builder, Module, Param, ptr, void
from bringup.records import record


@record
class Host:
    """How a host switches.

    switch, start: assembly; ``start`` calls the fibre's function with its thread.
    frame: bytes a new fibre's stack begins with.  thread, main, resume: where in it the thread, the
    function and the address of ``start`` stand.
    """

    switch: str
    start: str
    frame: int
    thread: int
    main: int
    resume: int


_X86 = Host(
    switch="pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15; "
    "movq %rsp, (%rdi); movq %rsi, %rsp; "
    "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; retq",
    start="movq %r12, %rdi; callq *%r13; ud2",
    # 16-byte alignment is due where the call stands: 56 bytes are popped before it.
    frame=72,
    thread=24,
    main=16,
    resume=48,
)

_PAIRS = [(19, 20), (21, 22), (23, 24), (25, 26), (27, 28), (29, 30)]
_FLOATS = [(8, 9), (10, 11), (12, 13), (14, 15)]


def _arm_frame(op: str) -> str:
    lines = [f"{op} x{a}, x{b}, [sp, #{16 * i}]" for i, (a, b) in enumerate(_PAIRS)]
    lines += [f"{op} d{a}, d{b}, [sp, #{96 + 16 * i}]" for i, (a, b) in enumerate(_FLOATS)]
    return "; ".join(lines)


_ARM = Host(
    switch=f"sub sp, sp, #160; {_arm_frame('stp')}; mov x9, sp; str x9, [x0]; mov sp, x1; "
    f"{_arm_frame('ldp')}; add sp, sp, #160; ret",
    start="mov x0, x19; blr x20; brk #1",
    frame=160,
    thread=0,
    main=8,
    resume=88,
)

HOSTS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


def host(machine: str = "") -> Host:
    """The host's, or another machine's.  Raises UnsupportedError."""
    name = machine or platform.machine()
    found = HOSTS.get(name)
    if found is None:  # pragma: no cover - only other processors
        raise UnsupportedError(
            f"the emulator cannot switch fibres on {name}", fix=f"use one of {', '.join(HOSTS)}"
        )
    return found


def emit_switch(module: Module, host: Host) -> None:
    """``emu.switch`` and ``emu.start``."""
    emit_naked(module, "emu.switch", [("save", ptr), ("to", ptr)], host.switch)
    emit_naked(module, "emu.start", [], host.start)


def emit_naked(module: Module, name: str, params: list[Param], text: str) -> None:
    """A function that is nothing but this assembly; instructions are separated by ``; ``."""
    function = module.function(name, void, params, "naked noinline nounwind", linkage="internal")
    b = Builder(function.block("entry"))
    lines = text.replace("$", "$$").replace("; ", "\\0A")
    b.emit_void(f'call void asm sideeffect "{lines}", ""()')
    b.unreachable()
