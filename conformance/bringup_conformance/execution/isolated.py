"""A device whose programs run in another process, which may end while this one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.graph import Graph
from bringup.graph.parser import parse_graph
from bringup.graph.printer import print_graph
from bringup.ops.table import find
from bringup_conformance.cases import Problem
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.execution.processes import DeviceProcess, OnSuspect, Remote
from bringup_conformance.execution.running import run_check
from bringup_conformance.execution.targets import Runnable, Target
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.reporting.failures import case_from_json


class Isolated:
    """A target that runs the programs of another one in a process of its own.

    That process opens the device again by its name, and is replaced when it ends.  Use this as a
    context, which ends the last one.  timeout: seconds without a sign of life, see `heartbeat`,
    after which the process is ended.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        self.name = target.name
        self.capabilities = target.capabilities
        self.passes = target.passes
        self.missing = target.missing
        self.timeout = timeout
        self._process = DeviceProcess(target.name, timeout)

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.end()

    def compile(
        self,
        graph: Graph,
        *,
        fuse: bool = True,
        skip: frozenset[str] = frozenset(),
        optimize: bool = True,
    ) -> Runnable:
        """Raises RemoteError for what the device raises, and for the end of its process."""
        process, args = self._process, (print_graph(graph), fuse, skip, optimize)

        def compiled() -> int:
            process.call(_compile, *args)
            process.generation += 1
            return process.generation

        generation = compiled()

        def run(inputs: Sequence[Array]) -> list[Array]:
            nonlocal generation
            if process.generation != generation:  # another program is there, or none
                generation = compiled()
            results: list[Array] = process.call(_run, inputs)
            return results

        return run

    def locate(
        self, case: Mapping[str, Any], fuse: bool, skip: frozenset[str], on_suspect: OnSuspect
    ) -> Mapping[str, Any]:
        """What is guilty of a case's failure, as plain data.

        on_suspect: is called before each step that may end the process.  Raises RemoteError.
        """
        cause: Mapping[str, Any]
        cause = self._process.call(_locate, case, fuse, skip, on_suspect=on_suspect)
        return cause

    def run_check(self, document: Mapping[str, Any]) -> Problem | None:
        """Run the check of a failure again.  Raises RemoteError."""
        problem: Problem | None = self._process.call(_run_check, document)
        return problem


# What the other process does.


def _compile(remote: Remote, ir: str, fuse: bool, skip: frozenset[str], optimize: bool) -> None:
    graph = parse_graph(ir, find)
    remote.runnable = remote.target.compile(graph, fuse=fuse, skip=skip, optimize=optimize)


def _run(remote: Remote, inputs: Sequence[Array]) -> list[Array]:
    assert remote.runnable is not None
    return remote.runnable(inputs)


def _locate(
    remote: Remote, case: Mapping[str, Any], fuse: bool, skip: frozenset[str]
) -> Mapping[str, Any]:
    from bringup_conformance.diagnosis.locate import locate  # which imports this module

    def suspect(cause: Cause) -> None:
        remote.suspect(cause.to_json())

    cause = locate(remote.target, case_from_json(case), fuse=fuse, skip=skip, suspect=suspect)
    return cause.to_json()


def _run_check(remote: Remote, document: Mapping[str, Any]) -> Problem | None:
    from bringup_conformance.execution.replay import find_check  # which imports this module

    return run_check(remote.target, find_check(document, remote.target)).problem
