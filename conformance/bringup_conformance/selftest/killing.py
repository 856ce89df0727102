"""What finds a fault: the first item of a run that fails under it and passes in the clean control,
and how small that failure gets.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.cases import Case, Check, NotOffered, Problem, instructions
from bringup_conformance.execution.running import attempt, run_item
from bringup_conformance.reducing import explain
from bringup_conformance.reducing.reduce import Effort
from bringup_conformance.selftest.control import (
    Control,
    Setting,
    control_of,
    items_of,
    target_of,
)
from bringup_conformance.selftest.corpus import Fault

#: Seconds that an item may compute; far more than it takes.
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Kill:
    """What came of one fault.

    killed: whether anything found it.  level, item: where.  cases: how many items of the run came
    to that, the finding one included; of a survivor, all of the run.  met: how many of them meet
    what the fault changes.  kind, what: of the problem.  rules: those said to be broken.
    size: instructions of the smallest program found that still shows it, None for a check.
    note: why it could not be planted or run, if so.
    """

    id: str
    group: str
    kind: str
    title: str
    killed: bool
    level: str = ""
    item: str = ""
    cases: int = 0
    met: int = 0
    problem: str = ""
    what: str = ""
    rules: tuple[str, ...] = ()
    size: int | None = None
    ir: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Kill:
        """Read `to_json`'s data."""
        return cls(**{**data, "rules": tuple(data["rules"])})


@dataclass(frozen=True, slots=True)
class How:
    """How faults are tried.

    directed: the items that meet the fault go first, so that ``cases`` counts those alone.
    shrink_seconds: for making one failure small; 0 leaves it as it is.
    level, seed, simulated, only: as in `Setting`.
    """

    level: str = "runtime"
    seed: int = 0
    simulated: bool = False
    directed: bool = False
    shrink_seconds: float = 5.0
    only: str = ""

    def setting(self, fault: Fault) -> Setting:
        """The setting that a fault is planted in."""
        return Setting(
            fault.depth,
            fault.asynchronous,
            fault.at_once,
            self.level,
            self.seed,
            self.simulated,
            self.only,
        )


def examine(fault: Fault, how: How) -> Kill:
    """Plant a fault and run until something finds it."""
    setting = how.setting(fault)
    row = Kill(fault.id, fault.group, fault.kind, fault.title, killed=False)
    try:
        backend = fault.plant(setting.backend())
        target = target_of(backend)
    except BringupError as error:
        return replace(row, killed=True, level="open", item="opening", what=error.what)
    control = control_of(setting)
    wanted: Sequence[int]
    if target.capabilities == setting.backend().capabilities():
        wanted = control.meets(backend)
    else:  # another declaration makes another run
        control = Control(items_of(target, setting), [], {})
        wanted = range(len(control.items))
    for met, (number, problem) in enumerate(_failures(target, control, wanted), 1):
        item = control.items[number]
        if problem is not None and _again(fault, setting, item):
            target.device.device.close()
            cases = met if how.directed else number + 1
            found = replace(row, killed=True, cases=cases, met=met)
            return _told(found, fault, setting, item, problem, how)
    target.device.device.close()
    return replace(row, cases=len(control.items), met=len(wanted))


def _again(fault: Fault, setting: Setting, item: Case | Check) -> bool:
    """Whether a check fails on another device with the fault too: what counts objects or races may
    fail once for reasons of its own.
    """
    if isinstance(item, Case):
        return True
    target = target_of(fault.plant(setting.backend()))
    found = _problem(target, item)
    target.device.device.close()
    return found is not None


def _failures(
    target: Any, control: Control, wanted: Sequence[int]
) -> Iterator[tuple[int, Problem | None]]:
    """Each item that is run, with what is wrong that was not wrong in the control."""
    for number in wanted:
        problem = _problem(target, control.items[number])
        yield number, None if number in control.failed else problem


def _problem(target: Any, item: Case | Check) -> Problem | None:
    """What is wrong with an item; one that computes on and on hangs."""
    try:
        with limited(PATIENCE):
            found = run_item(target, item).problem
    except NotOffered:
        return None
    except TimeoutError as error:
        return Problem("hang", str(error))
    late = found is not None and "TimeoutError" in found.what
    return replace(found, kind="hang") if found is not None and late else found


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds of this process's own time, and again after as many
    more, where the system has such a clock.
    """
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def late(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _told(
    row: Kill, fault: Fault, setting: Setting, item: Case | Check, problem: Problem, how: How
) -> Kill:
    found = replace(
        row,
        level=item.level,
        item=item.name,
        problem=problem.kind,
        what=problem.what[:300],
        rules=problem.rules or item.rules,
    )
    if not isinstance(item, Case):
        return found
    small = item
    if how.shrink_seconds and problem.kind != "hang":
        target = target_of(fault.plant(setting.backend()))
        small = _shrunk(target, item, problem, Effort(seconds=how.shrink_seconds))
        target.device.device.close()
    return replace(found, size=instructions(small.graph), ir=str(small.graph))


def _shrunk(target: Any, case: Case, problem: Problem, effort: Effort) -> Case:
    if case.cells:
        return explain.one_row(target, case, problem)
    try:
        with limited(PATIENCE):
            # What only a longer history shows cannot be made smaller than it is.
            if attempt(target, case, fuse=problem.fused)[1] is None:
                return case
            return explain.shrunk(target, case, problem, effort)
    except TimeoutError:
        return case


__all__ = ["How", "Kill", "examine"]
