"""Barriers of a block, and fences."""

from __future__ import annotations

from bringup.llvm.host.emit import Emit
from bringup.llvm.text import Val, i32, void
from bringup_cuda_emulator.layout import Thread
from bringup_cuda_emulator.machine import word
from bringup_cuda_emulator.shims import Call, Shim


def _barrier(b: Emit, call: Call, count: Val, *, wait: bool) -> None:
    b.c("emu.barrier", void, call.thread, call.site, call.args[0], count, word(wait))


def _all(b: Emit, call: Call) -> None:
    _barrier(b, call, word(0), wait=True)


def _some(b: Emit, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=True)


def _arrive(b: Emit, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=False)


def _fence(b: Emit, call: Call) -> None:
    b.put(call.thread, Thread.FENCED, word(1))


def _nothing(b: Emit, call: Call) -> None:
    """A fence within the block publishes nothing to other blocks."""


_CTA = "llvm.nvvm.barrier.cta"

SHIMS = (
    *(Shim(f"{_CTA}.sync{a}.all", void, (i32,), _all, waits=True) for a in (".aligned", "")),
    *(Shim(f"{_CTA}.sync{a}.count", void, (i32, i32), _some, waits=True) for a in (".aligned", "")),
    *(
        Shim(f"{_CTA}.arrive{a}.count", void, (i32, i32), _arrive, waits=True)
        for a in (".aligned", "")
    ),
    Shim("llvm.nvvm.membar.gl", void, (), _fence),
    Shim("llvm.nvvm.membar.sys", void, (), _fence),
    Shim("llvm.nvvm.membar.cta", void, (), _nothing),
)
