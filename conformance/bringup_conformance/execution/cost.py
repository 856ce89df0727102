"""What a run costs a device: information, never a verdict."""

from __future__ import annotations

from dataclasses import asdict, fields
from operator import add, attrgetter, sub
from typing import Any

from bringup.records import record


@record
class Cost:
    """What the programs cost that the suite compiled and ran.

    compiling, first_calls, running: seconds, copies to the device and back included; some devices
    compile when a program is called first, so that running is what later calls take.
    kernels: launches.
    bytes_read, bytes_written: what the launches move, exactly, by the programs.
    checking: seconds in checks of the runtime, which compile, run and wait by turns.
    compiled: kernels of the programs that were compiled and called.  busy: processor seconds of
    compiling these and of their first calls.
    """

    compiling: float = 0.0
    first_calls: float = 0.0
    running: float = 0.0
    kernels: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    checking: float = 0.0
    compiled: int = 0
    busy: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, _values(self), _values(other)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*map(sub, _values(self), _values(other)))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


# Costs are added at every call of a program, and `dataclasses.astuple` copies each value.
_values = attrgetter(*(each.name for each in fields(Cost)))
NO_COST = Cost()
