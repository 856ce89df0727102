"""Work done side by side, each piece in a process of its own: what hangs or takes its process with
it is a result.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from bringup.records import record
from bringup_conformance.execution.processes import exit_reason
from bringup_selftest.control import control_of
from bringup_selftest.corpus import Fault, faults
from bringup_selftest.killing import Kill, Options, examine

T = TypeVar("T")
#: Seconds that one item may be silent for; far more than any takes.
PATIENCE = 60.0
# Seconds between looks at who is silent.
_TICK = 0.5


@record
class Trial(Generic[T]):
    """A piece of work.

    row: what is known before.  work: yields what is known whenever more is, and whether that is
    all.  lost: the row if the process ends otherwise; it is given the last, what happened in a word
    and in a sentence.
    """

    row: T
    work: Callable[[T], Iterator[tuple[T, bool]]]
    lost: Callable[[T, str, str], T]


def examined(
    chosen: Sequence[Fault], options: Options, jobs: int, patience: float = PATIENCE
) -> Iterator[Kill]:
    """Examine faults, ``jobs`` at a time, and yield what came of each as it is known.

    patience: as of `watched`.  A control is run here when the first fault of its config has its
    turn, while others are examined.
    """
    configs = list(dict.fromkeys(map(options.config, chosen)))

    def trials() -> Iterator[Trial[Kill]]:
        for fault in sorted(chosen, key=lambda fault: configs.index(options.config(fault))):
            control_of(options.config(fault))
            row = Kill(fault.id, fault.group, fault.kind, fault.title, killed=True)
            yield Trial(row, partial(_examine, options), lost)

    yield from watched(trials(), jobs, patience + options.shrink_seconds)


def lost(row: Kill, kind: str, what: str) -> Kill:
    """The row of a fault that ended its process."""
    return replace(row, problem=kind, what=what)


def _examine(options: Options, row: Kill) -> Iterator[tuple[Kill, bool]]:
    return examine(next(fault for fault in faults() if fault.id == row.id), options)


def watched(trials: Iterable[Trial[T]], jobs: int, patience: float) -> Iterator[T]:
    """Do work, ``jobs`` pieces at a time, and yield the row of each when it is done.

    patience: seconds of silence after which a process is ended.
    """
    context = _context()
    waiting, running = iter(trials), dict[Connection, _Process[T]]()
    try:
        while True:
            while len(running) < max(1, jobs) and (trial := next(waiting, None)) is not None:
                gc.freeze()  # what is here would be copied by each child's collector
                process = _Process(trial, patience, context)
                running[process.connection] = process
            if not running:
                return
            start = time.monotonic()
            heard = [x for x in wait(list(running), _TICK) if isinstance(x, Connection)]
            for each in heard:
                running[each].receive()
            for process in list(running.values()):
                if process.connection not in heard:
                    process.silent += time.monotonic() - start
                if process.over:
                    del running[process.connection]
                    yield process.row
    finally:
        for process in running.values():
            process.end()
        gc.unfreeze()


def _context() -> Any:
    """Forked where systems can, so that the children have the controls."""
    usable = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if "fork" in usable else "spawn")


class _Process(Generic[T]):
    """The process of one piece of work.

    row: what holds if it says nothing more.  silent: seconds that it was listened to for nothing.
    """

    def __init__(self, trial: Trial[T], patience: float, context: Any) -> None:
        self.connection, theirs = context.Pipe(duplex=False)
        self.row = trial.row
        self._lost = trial.lost
        self._process: BaseProcess = context.Process(target=_work, args=(theirs, trial))
        self._process.start()
        theirs.close()
        self._patience = patience
        self._settled = self._ended = False
        self.silent = 0.0

    def receive(self) -> None:
        """Take one message, or the end."""
        try:
            self.row, self._settled = self.connection.recv()
        except EOFError:
            self._ended = True
        self.silent = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing more will come; ends what is silent too long."""
        late = self.silent > self._patience
        if not self._ended and not late:
            return False
        self.end()
        if not self._settled:
            hangs = f"it was silent for {self._patience:g} s" if late else ""
            kind, what = exit_reason(self._process.exitcode or 0, "", hangs)
            self.row = self._lost(self.row, kind, what)
        return True

    def end(self) -> None:
        """Let the process go at once, if it does not go by itself."""
        if not self._ended:
            self._process.kill()
        self._process.join()
        self.connection.close()


def _work(connection: Connection, trial: Trial[T]) -> None:
    faulthandler.disable()  # that a process dies here is a result, not news
    for row, settled in trial.work(trial.row):
        connection.send((row, settled))
