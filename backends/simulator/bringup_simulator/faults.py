"""Faults on demand: the errors a healthy simulator would never produce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bringup_simulator.errors import InjectedError, OutOfDeviceMemoryError

__all__ = ["FaultKind", "Faults"]

FaultKind = Literal[
    "alloc", "free", "upload", "download", "copy", "call", "launch", "load", "synchronize"
]


@dataclass(slots=True)
class _Planned:
    kind: FaultKind
    after: int
    times: int
    error: Exception


class Faults:
    """Planned failures, consumed one by one as operations of their kind come by."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []

    def plan(self, kind: FaultKind, after: int, times: int, error: Exception | None) -> None:
        """Let ``after`` operations of ``kind`` pass, then fail the next ``times`` of them."""
        if kind not in get_args(FaultKind):
            raise ValueError(f"no fault kind {kind!r}: one of {', '.join(get_args(FaultKind))}")
        if after < 0 or times < 1:
            raise ValueError(f"after must be >= 0 and times >= 1, not {after} and {times}")
        if error is None:
            kinds = OutOfDeviceMemoryError if kind == "alloc" else InjectedError
            error = kinds(f"injected failure of {kind}")
        self._planned.append(_Planned(kind, after, times, error))

    def strike(self, kind: FaultKind) -> None:
        """Count one operation of ``kind``; raise if a plan says that it fails."""
        due: _Planned | None = None
        for plan in [p for p in self._planned if p.kind == kind]:
            if plan.after:
                plan.after -= 1
            elif due is None:
                due = plan
        if due is None:
            return
        due.times -= 1
        if not due.times:
            self._planned.remove(due)
        raise due.error

    def clear(self) -> None:
        """Forget every plan."""
        self._planned.clear()
