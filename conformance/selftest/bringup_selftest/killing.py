"""What finds a fault: the first item of a run that fails under it and passes in the clean control,
and options small that failure gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from bringup.errors import BringupError
from bringup.records import record
from bringup_conformance.cases import Case, Check, NotOffered, Problem, instructions
from bringup_conformance.diagnosis import investigate
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.running import attempt, run_item
from bringup_conformance.execution.targets import DeviceTarget
from bringup_selftest.control import (
    Control,
    ControlConfig,
    control_of,
    items_of,
    target_of,
)
from bringup_selftest.corpus import Fault


@record
class Kill:
    """What came of one fault.

    killed: whether anything found it.  level, item: where.  cases: how many items of the run came
    to that, the finding one included; of a survivor, all of the run.  met: how many meet
    what the fault changes.  kind, what: of the problem.  rules: those said to be broken.
    size: instructions of the smallest program found that still shows it, None for a check.
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


@record
class Options:
    """How faults are tried.

    directed: the items that meet the fault go first, so that ``cases`` counts those alone.
    shrink_seconds: for making one failure small; 0 leaves it as it is.
    level, seed, simulated, only: as in `ControlConfig`.
    """

    level: str = "runtime"
    seed: int = 0
    simulated: bool = False
    directed: bool = False
    shrink_seconds: float = 5.0
    only: str = ""

    def config(self, fault: Fault) -> ControlConfig:
        """The config that a fault is injected into."""
        return ControlConfig(
            fault.depth,
            fault.asynchronous,
            fault.at_once,
            self.level,
            self.seed,
            self.simulated,
            self.only,
        )


def examine(fault: Fault, options: Options) -> Iterator[tuple[Kill, bool]]:
    """Inject a fault and run until something finds it.

    Yields what is known whenever more is: the row as it stands, and whether the fault is found.
    Before an item is run, that is the row of one that ends the process or never ends.
    """
    config = options.config(fault)
    row = Kill(fault.id, fault.group, fault.kind, fault.title, killed=True)
    yield replace(row, level="open", item="opening"), False
    try:
        backend = fault.inject(config.backend())
        target = target_of(backend)
    except BringupError as error:
        yield replace(row, level="open", item="opening", what=error.what), True
        return
    control = control_of(config)
    wanted: Sequence[int]
    if target.capabilities == config.backend().capabilities():
        wanted = control.meets(backend)
    else:  # another declaration makes another run
        control = Control(items_of(target, config), [], {})
        wanted = range(len(control.items))
    for met, number in enumerate(wanted, 1):
        item = control.items[number]
        cases = met if options.directed else number + 1
        found = replace(row, level=item.level, item=item.name, cases=cases, met=met)
        yield found, False
        problem = _problem(target, item)
        if problem is not None and number not in control.failed and _again(fault, config, item):
            target.device.device.close()
            yield from _told(found, fault, config, item, problem, options)
            return
    target.device.device.close()
    yield replace(row, killed=False, cases=len(control.items), met=len(wanted)), True


def _again(fault: Fault, config: ControlConfig, item: Case | Check) -> bool:
    """Whether a check fails on another device with the fault too: what counts objects or races may
    fail once for reasons of its own.
    """
    if isinstance(item, Case):
        return True
    target = target_of(fault.inject(config.backend()))
    found = _problem(target, item)
    target.device.device.close()
    return found is not None


def _problem(target: DeviceTarget, item: Case | Check) -> Problem | None:
    """What is wrong with an item."""
    try:
        return run_item(target, item).problem
    except NotOffered:
        return None


def _told(
    row: Kill,
    fault: Fault,
    config: ControlConfig,
    item: Case | Check,
    problem: Problem,
    options: Options,
) -> Iterator[tuple[Kill, bool]]:
    """The row of what was found; then, of a program, that of the smallest that shows it."""
    rules = problem.rules or item.rules
    row = replace(row, problem=problem.kind, what=problem.what[:300], rules=rules)
    if not isinstance(item, Case):
        yield row, True
        return
    yield replace(row, size=instructions(item.graph), ir=str(item.graph)), True
    if options.shrink_seconds:
        target = target_of(fault.inject(config.backend()))
        small = _shrunk(target, item, problem, Effort(seconds=options.shrink_seconds))
        target.device.device.close()
        yield replace(row, size=instructions(small.graph), ir=str(small.graph)), True


def _shrunk(target: DeviceTarget, case: Case, problem: Problem, effort: Effort) -> Case:
    if case.cells:
        return investigate.failing_cells(target, case, problem)
    # What only a longer history shows cannot be made smaller than it is.
    if attempt(target, case, fuse=problem.fused)[1] is None:
        return case
    return investigate.shrunk(target, case, problem, effort)
