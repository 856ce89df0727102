"""Faults examined side by side, each in a process of its own: a device that hangs or takes its
process with it is a fault that was found.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from bringup_conformance.execution.hands import cause
from bringup_conformance.selftest.control import control_of
from bringup_conformance.selftest.corpus import Fault, faults
from bringup_conformance.selftest.killing import How, Kill, examine

#: Seconds that one item may be silent for; far more than any takes.
PATIENCE = 60.0
# Seconds between looks at who is silent.
_TICK = 0.5


def examined(
    chosen: Sequence[Fault], how: How, jobs: int, patience: float = PATIENCE
) -> Iterator[Kill]:
    """Examine faults, ``jobs`` at a time, and yield what came of each as it is known.

    patience: seconds of silence after which a process is ended.  A control is run here when the
    first fault of its setting has its turn, while others are examined.
    """
    context = _context()
    settings = list(dict.fromkeys(map(how.setting, chosen)))
    waiting = deque(sorted(chosen, key=lambda fault: settings.index(how.setting(fault))))
    trials = dict[Connection, _Trial]()
    try:
        while waiting or trials:
            while waiting and len(trials) < max(1, jobs):
                fault = waiting.popleft()
                control_of(how.setting(fault))
                gc.freeze()  # what is here would be copied by each child's collector
                trial = _Trial(fault, how, patience, context)
                trials[trial.connection] = trial
            start = time.monotonic()
            heard = [x for x in wait(list(trials), _TICK) if isinstance(x, Connection)]
            for each in heard:
                trials[each].hear()
            for trial in list(trials.values()):
                if trial.connection not in heard:
                    trial.silent += time.monotonic() - start
                if trial.over:
                    del trials[trial.connection]
                    yield trial.row
    finally:
        for trial in trials.values():
            trial.end()
        gc.unfreeze()


def _context() -> Any:
    """Forked where systems can, so that the children have the controls."""
    usable = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if "fork" in usable else "spawn")


class _Trial:
    """One fault's process.

    row: what holds if it says nothing more.  silent: seconds that it was listened to for nothing.
    """

    def __init__(self, fault: Fault, how: How, patience: float, context: Any) -> None:
        self.connection, theirs = context.Pipe(duplex=False)
        self.row = Kill(fault.id, fault.group, fault.kind, fault.title, killed=True)
        self._process: BaseProcess = context.Process(target=_examine, args=(theirs, fault.id, how))
        self._process.start()
        theirs.close()
        self._patience = patience + how.shrink_seconds
        self._settled = self._ended = False
        self.silent = 0.0

    def hear(self) -> None:
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
            kind, what = cause(self._process.exitcode or 0, "", hangs)
            self.row = replace(self.row, problem=kind, what=what)
        return True

    def end(self) -> None:
        """Let the process go at once, if it does not go by itself."""
        if not self._ended:
            self._process.kill()
        self._process.join()
        self.connection.close()


def _examine(connection: Connection, id: str, how: How) -> None:
    faulthandler.disable()  # that a process dies here is a result, not news
    fault = next(fault for fault in faults() if fault.id == id)
    for row, settled in examine(fault, how):
        connection.send((row, settled))
