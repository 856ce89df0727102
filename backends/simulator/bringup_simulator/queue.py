"""The in-order command queue: nothing runs before somebody waits for it."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType

from bringup_simulator.errors import CommandFailedError, DeviceLostError
from bringup_simulator.memory import Allocation

__all__ = ["Command", "CommandQueue", "Ticket"]

Ticket = NewType("Ticket", int)


@dataclass(frozen=True, slots=True)
class Command:
    """One queued piece of work.

    name: shown when it fails.  run: does the work.  touches: buffers whose guards are checked when
    it has run.  tag: the host's own, handed back with a failure.
    """

    name: str
    run: Callable[[], None]
    touches: tuple[Allocation, ...] = ()
    tag: object = None


class CommandQueue:
    """Commands in submission order, run as late as allowed.

    A failing command is recorded and the next one runs all the same; the wait that covers the
    failure raises it, once.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Ticket, Command]] = deque()
        self._failures: list[CommandFailedError] = []
        self._last = Ticket(0)
        self.executed = 0

    @property
    def idle(self) -> bool:
        """Whether no command is pending."""
        return not self._pending

    def submit(self, command: Command) -> Ticket:
        """Append; the ticket stands for everything up to and including this command."""
        self._last = Ticket(self._last + 1)
        self._pending.append((self._last, command))
        return self._last

    def done(self, ticket: Ticket) -> bool:
        """Poll: let one pending command run, then say whether ``ticket`` has run."""
        if not self._pending or self._pending[0][0] > ticket:
            return True
        self._step()
        return not self._pending or self._pending[0][0] > ticket

    def run(self, ticket: Ticket | None = None) -> None:
        """Run up to ``ticket`` (default: everything), keeping failures for the wait."""
        last = self._last if ticket is None else ticket
        while self._pending and self._pending[0][0] <= last:
            self._step()

    def wait(self, ticket: Ticket | None = None) -> None:
        """Run up to ``ticket`` and raise the failures not yet reported, the first one foremost."""
        self.run(ticket)
        last = self._last if ticket is None else ticket
        due = [failure for failure in self._failures if failure.ticket <= last]
        if not due:
            return
        self._failures = [failure for failure in self._failures if failure.ticket > last]
        first, *later = due
        first.later = tuple(later)
        raise first

    def clear(self) -> None:
        """Drop pending commands and unreported failures."""
        self._pending.clear()
        self._failures.clear()

    def _step(self) -> None:
        ticket, command = self._pending.popleft()
        self.executed += 1
        try:
            command.run()
            for allocation in command.touches:
                allocation.check()
        except DeviceLostError as error:
            self.clear()
            raise DeviceLostError(f"device lost during {command.name}: {error}") from error
        except Exception as error:  # noqa: BLE001 - whatever a callable raises surfaces at the wait
            # The frames hold views of device memory, which must not outlive the command.
            traceback.clear_frames(error.__traceback__)
            failure = CommandFailedError(command.name, ticket, error, command.tag)
            self._failures.append(failure)
