"""Which results of late work are good: devices that queue report an error only at a later wait.

Every run on such a device is kept until a wait proves it.  An error at a wait belongs to the run
whose step it names, or, if it names none, to every run not yet proved; the results of that run, and
of all runs that read them, raise it from then on instead of showing what the memory holds.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bringup.backend.adapters_run import recording_steps
from bringup.errors import DeviceError, DeviceLostError
from bringup.locks import ProcessLock

if TYPE_CHECKING:
    from bringup.backend.device import Device

#: Runs that may wait for their proof; one more makes the device finish first.
MOST_PENDING = 4096


class Run:
    """One call of an executable.

    steps: as the device was given them.
    parents: the runs whose results it read, until it is proved.
    """

    __slots__ = ("error", "parents", "steps")

    def __init__(self, parents: Iterable[Run]) -> None:
        self.parents = tuple(dict.fromkeys(parents))
        self.steps: list[object] = []
        self.error: DeviceError | None = None

    def check(self) -> None:
        """Raise the error of this run, or of one that it depends on, if that is known by now."""
        if self.error is not None:
            raise self.error.with_traceback(None)


class _Ledger:
    """The runs of one device that no wait has proved."""

    def __init__(self) -> None:
        self.lock = ProcessLock()
        self.pending: list[Run] = []

    def prove(self, runs: Iterable[Run]) -> None:
        with self.lock:
            for run in runs:
                run.parents = ()
                run.steps.clear()
            proved = set(runs)
            self.pending = [run for run in self.pending if run not in proved]

    def fail(self, runs: list[Run], error: DeviceError) -> None:
        with self.lock:
            guilty = [run for run in runs if any(step is error.step for step in run.steps)]
            for run in guilty or runs:
                run.error = run.error or error
            waiting = self.pending
            while waiting:
                waiting = [run for run in waiting if run.error is None]
                lost = [r for r in waiting if any(p.error is error for p in r.parents)]
                for run in lost:
                    run.error = error
                waiting = waiting if lost else []
            self.pending = [run for run in self.pending if run.error is None]


_issuing = threading.local()
_ledgers: weakref.WeakKeyDictionary[Device, _Ledger] = weakref.WeakKeyDictionary()


def _ledger(device: Device) -> _Ledger:
    return _ledgers.setdefault(device, _Ledger())


@contextmanager
def issuing(device: Device, parents: Iterable[Run]) -> Iterator[Run]:
    """A run of a device that works late, while its steps are issued inside the block."""
    ledger = _ledger(device)
    run = Run(parents)
    around: Run | None = getattr(_issuing, "run", None)
    if around is not None:
        around.parents += (run,)
    if len(ledger.pending) >= MOST_PENDING:
        with waiting(device):
            device.synchronize()
    with ledger.lock:
        ledger.pending.append(run)
    _issuing.run = run
    try:
        with recording_steps(run.steps):
            yield run
    except BaseException:
        ledger.prove([run])  # it has no results
        raise
    finally:
        _issuing.run = around


@contextmanager
def waiting(device: Device) -> Iterator[list[Run]]:
    """A wait for all work of a device inside the block: it proves the runs before it, or fails.

    Gives those runs; a block that turns out not to have waited clears the list.
    """
    ledger = _ledger(device)
    before = list(ledger.pending)
    try:
        yield before
    except DeviceError as error:
        ledger.fail(before, error)
        _fail_others(device, before, error)
        raise
    ledger.prove(before)


def _fail_others(device: Device, runs: list[Run], error: DeviceError) -> None:
    """Ask for the errors after the first of a wait: it raises one only, and forgets that one.

    What is proved by this stays good, and no later wait raises what belongs to a run before it.
    """
    for _ in range(sum(len(run.steps) for run in runs)):
        if error.step is None or isinstance(error, DeviceLostError):
            return  # it failed all of them
        try:
            device.synchronize()
        except DeviceError as another:
            error = another
            _ledger(device).fail(runs, another)
        else:
            _ledger(device).prove(runs)
            return
