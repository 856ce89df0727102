"""Messages between a run and its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.records import record
from bringup_conformance.cases import Problem, Unsupported
from bringup_conformance.execution.plan import UnitId
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.results import Result

#: Levels whose cases may take this many times longer than others before they count as hanging.
_TIMEOUT_FACTORS = {"exhaustive": 10, "soak": 10}


def case_timeout(level: str, timeout: float) -> float:
    """Seconds that one case of a level may take."""
    return timeout * _TIMEOUT_FACTORS.get(level, 1)


# To a worker.


@record
class Job:
    """What a run holds.

    only: a selection, see `Selection`.  fraction: part ``(i, n)``, see `schedule.chosen`.  timeout:
    seconds without a sign of life after which a case hangs, see `heartbeat`.  few: whether cases
    have few kernels, see `plan.budget_of`.
    """

    level: str
    seed: int = 0
    only: str = ""
    fraction: tuple[int, int] | None = None
    timeout: float = TIMEOUT
    few: bool = False


@record
class Setup:
    """The first message: the device to open.

    job: of a worker that runs units; None for one that only answers calls.  lists_units: whether
    `Ready` holds the units of the job.
    """

    backend: str
    timeout: float
    job: Job | None = None
    lists_units: bool = False


@record
class Work:
    """Run a unit from its item number `first`.

    problem: how item `first` ended a process; it is not run again then, but reported.  last:
    whether the items behind it are left out.  retry: whether item `first` hung before, so that
    nothing else runs beside it.
    """

    unit: int
    first: int = 0
    problem: Problem | None = None
    last: bool = False
    retry: bool = False


@record
class Explain:
    """Shrink and locate a failure for some seconds.

    alone: whether its programs run in a process of their own, because they may end it.
    """

    unit: int
    item: int
    problem: Problem
    document: dict[str, Any]
    seconds: float
    alone: bool = False


Task = Work | Explain


@record
class Call:
    """Call ``function(remote, *args)``, with the `processes.Remote` of the worker; it answers with
    `Answer` or `Raised`, and `Suspected` before them.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]


# From a worker.


@record
class Ready:
    """The device is open.  The other fields are set if the setup asked for a list of units.

    units: those of the run.  numbers: of each unit in the whole level.  level_size: units of that.
    """

    environment: dict[str, Any]
    units: tuple[UnitId, ...] = ()
    numbers: tuple[int, ...] = ()
    level_size: int = 0


@record
class Refused:
    """The device cannot be opened.  kind: the name of a class in `bringup.errors`."""

    kind: str
    what: str
    fix: str | None


@record
class Began:
    """An item is about to run."""

    unit: int
    item: int
    name: str


@record
class Done:
    """The result of an item.

    between: the result belongs to no item: the process ended before it began item `item`.
    """

    unit: int
    item: int
    result: Result | Unsupported
    between: bool = False

    @property
    def order(self) -> tuple[int, bool]:
        """Sorts results of one unit as they belong in the report."""
        return self.item, not self.between


@record
class Finished:
    """A unit is finished.  left_out: its remaining items were skipped."""

    unit: int
    left_out: bool = False


@record
class Explained:
    """The document of a failure with what shrinking and locating found."""

    unit: int
    item: int
    document: dict[str, Any]


@record
class Suspected:
    """The cause to report if the process ends before its next message."""

    cause: Mapping[str, Any]


@record
class Answer:
    """The result of a call."""

    value: Any = None


@record
class Raised:
    """What a call raised.  kind: of problem."""

    kind: str
    message: str


@record
class Exited:
    """The worker's process ended, or closed its connection.  No worker sends this."""


#: What a worker says of a unit while it runs it, and of a failure that it explains.
UnitEvent = Began | Done | Finished
Event = UnitEvent | Explained
