"""Which results of late work are good: devices that queue report an error only at a later wait.

Every run on such a device is kept until a wait completes it.  An error at a wait belongs to the run
whose step it names; the results of that run, and of all runs that read them, raise it from then on
instead of showing what the memory holds.  Who waited for something else is not told, but waits
again.  An error that names no step may be anybody's: it belongs to every run not yet complete, and
to who waited.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from bringup.backend.adapters_run import recording_steps
from bringup.backend.vendor_errors import vendor_call
from bringup.errors import DeviceError, DeviceLostError
from bringup.locks import ProcessLock

if TYPE_CHECKING:
    from bringup.backend.device import Device

_Seen = TypeVar("_Seen")

#: Runs that may be incomplete; one more makes the device finish first.
MOST_PENDING = 4096


class Run:
    """One call of an executable.

    steps: as the device was given them.
    parents: the runs whose results it read, until it is complete.
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
    """The runs of one device that no wait has completed."""

    def __init__(self) -> None:
        self.lock = ProcessLock()
        self.pending: list[Run] = []

    def mark_complete(self, runs: Iterable[Run]) -> None:
        with self.lock:
            for run in runs:
                run.parents = ()
                run.steps.clear()
            complete = set(runs)
            self.pending = [run for run in self.pending if run not in complete]

    def fail(self, runs: list[Run], error: DeviceError) -> bool:
        """Keep an error for the run that it belongs to, or for all if no run is known.  Whether one
        is.
        """
        with self.lock:
            failed = [run for run in runs if any(step is error.step for step in run.steps)]
            if isinstance(error, DeviceLostError):
                failed = []
            for run in failed or runs:
                run.error = run.error or error
            waiting = self.pending
            while waiting:
                waiting = [run for run in waiting if run.error is None]
                lost = [r for r in waiting if any(p.error is error for p in r.parents)]
                for run in lost:
                    run.error = error
                waiting = waiting if lost else []
            self.pending = [run for run in self.pending if run.error is None]
        return bool(failed)


_submitting = threading.local()
_ledgers: weakref.WeakKeyDictionary[Device, _Ledger] = weakref.WeakKeyDictionary()


def _ledger(device: Device) -> _Ledger:
    ledger = _ledgers.get(device)
    return _ledgers.setdefault(device, _Ledger()) if ledger is None else ledger


@contextmanager
def submitting(device: Device, parents: Iterable[Run]) -> Iterator[Run]:
    """A run of a device that works late, while its steps are issued inside the block."""
    ledger = _ledger(device)
    run = Run(parents)
    around: Run | None = getattr(_submitting, "run", None)
    if around is not None:
        around.parents += (run,)
    if len(ledger.pending) >= MOST_PENDING:
        wait(device, run.parents)
    with ledger.lock:
        ledger.pending.append(run)
    _submitting.run = run
    try:
        with recording_steps(run.steps):
            yield run
    except BaseException:
        ledger.mark_complete([run])  # it has no results
        raise
    finally:
        _submitting.run = around


def look(device: Device, needed: Iterable[Run], ask: Callable[[], _Seen]) -> _Seen:
    """What ``ask`` gives, which waits for all work of a device: it completes the runs before it.

    needed: the runs whose results it looks at.  ask: asked again after an error of other runs.
    None says that it did not wait.
    Raises the error of a needed run, and one that names none.
    """
    ledger = _ledger(device)
    needed = tuple(needed)
    while True:
        for run in needed:
            run.check()
        before = list(ledger.pending)
        try:
            seen = ask()
        except DeviceError as error:
            known = ledger.fail(before, error)
            _fail_others(device, before, error)
            if not known or any(run.error is error for run in needed):
                raise
        else:
            if seen is not None:
                ledger.mark_complete(before)
            return seen


def synchronize(device: Device) -> None:
    """`Device.synchronize`, whose errors are ours."""
    with vendor_call(device, "synchronize"):
        device.synchronize()


def wait(device: Device, needed: Iterable[Run] = ()) -> None:
    """Wait for all work of a device.  needed: as for `look`, which says what is raised."""

    def ask() -> bool:
        synchronize(device)
        return True

    look(device, needed, ask)


def _fail_others(device: Device, runs: list[Run], error: DeviceError) -> None:
    """Ask for the errors after the first of a wait: it raises one only, and forgets that one.

    What this completes stays good, and no later wait raises what belongs to a run before it.
    """
    told: list[object] = []
    while error.step is not None and not isinstance(error, DeviceLostError):  # else it failed all
        if any(step is error.step for step in told):
            return  # a device that forgets nothing
        told.append(error.step)
        try:
            synchronize(device)
        except DeviceError as another:
            error = another
            _ledger(device).fail(runs, another)
        else:
            _ledger(device).mark_complete(runs)
            return
