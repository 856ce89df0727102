"""What a failure comes down to: the one pass, kernel or place in memory that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bringup.records import record

#: kind -> how the guilty thing is called.
KINDS: Mapping[str, str] = {
    "pass": "pass",
    "fusion": "fusion, in kernel",
    "kernel pass": "pass over kernels",
    "plan": "the buffer plan, at",
    "kernel": "kernel",
    "op": "op",
    "loop": "loop",
    "call": "the device's",
    "together": "what the device does between steps, at",
    "device": "the device",
    "unknown": "unknown",
}


#: Methods of devices that run no step of a program, so that none is guilty where one raises.
MOVES = ("alloc", "free", "upload", "borrow", "copy", "adopt", "download", "host_view")
#: What a process that hangs in one of them does, see `heartbeat.PHASES`.
MOVING = {"allocating": "alloc", "freeing": "free", "uploading": "upload", "copying": "copy"}


@record
class Cause:
    """The first thing found wrong on the way from a graph to results.

    kind: a key of `KINDS`.  name: the pass's, the kernel's, the op's, or that of a method of the
    device that runs no step.  what: one sentence.
    call: what raised of a guilty kernel, op or loop, such as ``launch``; empty if nothing did.
    step, steps: number of the step of the program, and how many there are.
    ir_before, ir_after: what the guilty thing was given and what it made of it: a graph before and
    after a pass, a graph and its kernel.
    kernels: all kernels of the program.  kernel: the guilty one.  source, asm: what the backend
    made of that kernel.  ops: those of a guilty kernel that are wrong alone too, on right inputs.
    slots: places in memory that are in each other's way.
    mismatches: where the guilty thing's own results are wrong.
    trace: from the wrong element there to the wrong element of the program.
    """

    kind: str
    name: str
    what: str
    step: int | None = None
    steps: int = 0
    ir_before: str = ""
    ir_after: str = ""
    kernels: tuple[str, ...] = ()
    kernel: str = ""
    source: str = ""
    asm: str = ""
    ops: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    call: str = ""

    @property
    def title(self) -> str:
        """The guilty thing in a few words."""
        of = f"{self.call} of " if self.call else ""
        return f"{of}{KINDS[self.kind]} {self.name}".strip()

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the details that are empty."""
        head = ("kind", "name", "what")
        found = asdict(self).items()
        return {name: x for name, x in found if name in head or x not in ("", (), None)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cause:
        """Read `to_json`'s data.  Raises TypeError for unknown fields."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**fields)
