"""A device whose programs run in another process, which may end while this one does not."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.graph import Graph
from bringup.graph.printer import print_graph
from bringup_conformance.cases import Problem
from bringup_conformance.execution.processes import TICK, Gone, WorkerProcess, refusal
from bringup_conformance.execution.protocol import (
    Call,
    Compile,
    Locate,
    Raised,
    Ready,
    Refused,
    RunCheck,
    Setup,
    Suspected,
)  # fmt: skip
from bringup_conformance.execution.running import ElsewhereError
from bringup_conformance.execution.targets import Runnable, Target
from bringup_conformance.oracle.numbers import Array

Suspect = Callable[[Mapping[str, Any]], None]


class Isolated:
    """A target over another one's device, which it opens again by name, in another process.

    The process is kept until it ends; then there is a new one for what comes next.
    Use it as a context, which ends the last one.  timeout: seconds without a sign of life, see
    `pulse`, after which it is ended.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self.timeout = timeout
        self._servant = Servant(target.name, timeout)

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._servant.end()

    @property
    def name(self) -> str:
        """The device's."""
        return self._target.name

    @property
    def capabilities(self) -> Capabilities:
        """The device's."""
        return self._target.capabilities

    @property
    def passes(self) -> tuple[str, ...]:
        """The device's."""
        return self._target.passes

    def missing(self, graph: Graph) -> str | None:
        """The device's."""
        return self._target.missing(graph)

    def compile(
        self,
        graph: Graph,
        *,
        fuse: bool = True,
        skip: frozenset[str] = frozenset(),
        optimize: bool = True,
    ) -> Runnable:
        """Raises ElsewhereError for what the device raises, and for the end of its process."""
        program = Compile(print_graph(graph), fuse, skip, optimize)
        servant, mine = self._servant, self._servant.ask(program)

        def run(inputs: Sequence[Array]) -> list[Array]:
            nonlocal mine
            if servant.made != mine:
                mine = servant.ask(program)
            found: list[Array] = servant.value(Call(inputs))
            return found

        return run

    def locate(
        self, case: Mapping[str, Any], fuse: bool, skip: frozenset[str], suspect: Suspect
    ) -> Mapping[str, Any]:
        """What is guilty of a case's failure, as data.

        suspect: told before everything that may end the process.  Raises ElsewhereError.
        """
        found: Mapping[str, Any] = self._servant.value(Locate(case, fuse, skip), suspect)
        return found

    def run_check(self, document: Mapping[str, Any]) -> Problem | None:
        """Run the check of a failure again.  Raises ElsewhereError."""
        found: Problem | None = self._servant.value(RunCheck(document))
        return found


class Servant:
    """A process that answers one question after another.

    made: counts programs and processes, so that one that is not there any more is made again.
    """

    def __init__(self, backend: str, timeout: float) -> None:
        self._setup = Setup(backend, timeout=timeout)
        self._worker: WorkerProcess | None = None
        self._inbox: queue.SimpleQueue[tuple[WorkerProcess, Any]] = queue.SimpleQueue()
        self.made = 0

    def ask(self, message: Compile) -> int:
        """Have a program made."""
        self.value(message)
        self.made += 1
        return self.made

    def value(self, message: object, suspect: Suspect | None = None) -> Any:
        """The answer to a message.  Raises ElsewhereError, BackendError."""
        worker = self._started()
        worker.tell(message)
        found = self._next(worker)
        while isinstance(found, Suspected):
            if suspect is not None:
                suspect(found.cause)
            found = self._next(worker)
        if isinstance(found, Raised):
            raise ElsewhereError(found.kind, found.told)
        return found.value

    def _started(self) -> WorkerProcess:
        if self._worker is None:
            self._worker = WorkerProcess(self._setup, self._inbox)
            found = self._next(self._worker)
            if isinstance(found, Refused):
                raise refusal(found)
            assert isinstance(found, Ready)
        return self._worker

    def _next(self, worker: WorkerProcess) -> Any:
        worker.watch.begin()
        while True:
            try:
                sender, found = self._inbox.get(timeout=TICK)
            except queue.Empty:
                why = worker.watch.stuck(self._setup.timeout)
                if why:
                    worker.kill(why)
                continue
            if sender is not worker:
                continue
            if isinstance(found, Gone):
                problem = worker.death()
                self.end()
                raise ElsewhereError(problem.kind, problem.what, problem.log, problem.phase)
            return found

    def end(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
            self.made += 1
