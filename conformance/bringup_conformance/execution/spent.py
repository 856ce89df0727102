"""What a run costs a device: informative, never a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Spent:
    """Costs of programs that the suite compiled and ran.

    compiling, running: seconds; running includes copies to the device and back.  kernels: launches.
    bytes_read, bytes_written: what they move, exactly, by the programs.
    checking: seconds of checks of the runtime, which compile, run and wait by turns.
    compiled: kernels of programs that were compiled.  first: seconds of compiling them and of their
    first calls, where some devices compile.  busy: seconds of these in which a processor worked.
    """

    compiling: float = 0.0
    running: float = 0.0
    kernels: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    checking: float = 0.0
    compiled: int = 0
    first: float = 0.0
    busy: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(x + y for x, y in zip(self._values(), other._values(), strict=True)))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(x - y for x, y in zip(self._values(), other._values(), strict=True)))

    def _values(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


NOTHING = Spent()
