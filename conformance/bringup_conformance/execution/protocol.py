"""What a run and its worker processes say to each other, pickled, over pipes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from bringup_conformance.cases import Problem, Unsupported
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.reporting.results import Place, Result

#: Levels whose cases may take so many times longer than others before they count as hanging.
_PATIENCE = {"exhaustive": 10, "soak": 10}


def patience(level: str, timeout: float) -> float:
    """Seconds that one case of a level may take."""
    return timeout * _PATIENCE.get(level, 1)


# To a worker.


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message.  backend: its name.  fraction: see `schedule.chosen`.  timeout: seconds
    without a sign of life, see `pulse`.  asks: whether the places of all units are wanted.  page:
    where signs of life are shown.  few: few kernels in a case.
    """

    backend: str
    level: str = ""
    seed: int = 0
    only: str = ""
    fraction: tuple[int, int] | None = None
    timeout: float = 60.0
    asks: bool = False
    page: str = ""
    few: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Run a unit from its item number `first`.

    problem: what became of that one, which is not run again then, but reported.  last: whether the
    items behind it are left out.  again: whether that one hung before, and nothing else is to run
    beside it.
    """

    unit: int
    first: int = 0
    problem: Problem | None = None
    last: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Explain:
    """Look into a failure, for some seconds.  alone: run its programs in a process of their own."""

    unit: int
    item: int
    problem: Problem
    document: dict[str, Any]
    seconds: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile a program; as `Target.compile`."""

    ir: str
    fuse: bool
    skip: frozenset[str]
    optimize: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Call the program compiled last."""

    inputs: Sequence[Array]


@dataclass(frozen=True, slots=True)
class Locate:
    """Find out what is guilty of a case's failure; `Suspected` before everything that may end the
    process, then an `Answer`.
    """

    case: Mapping[str, Any]
    fuse: bool
    skip: frozenset[str]


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Run the check of a failure again."""

    document: Mapping[str, Any]


# From a worker.


@dataclass(frozen=True, slots=True)
class Ready:
    """The device is open.  places: of all units, if wanted.  numbers, of: see `Schedule`."""

    environment: dict[str, Any]
    places: tuple[Place, ...] = ()
    numbers: tuple[int, ...] = ()
    of: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The device cannot be opened: an error of `bringup.errors` by the name of its class."""

    kind: str
    what: str
    fix: str | None


@dataclass(frozen=True, slots=True)
class Began:
    """An item is about to be run."""

    unit: int
    item: int
    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an item; of what is none, between two items, its number is."""

    unit: int
    item: float
    found: Result | Unsupported


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit has no more items.  left_out: whether it has, but they are not run."""

    unit: int
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Explained:
    """A failure looked into."""

    unit: int
    item: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Suspected:
    """What would be guilty if the process ended now."""

    cause: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a `Compile`, `Call` or `RunCheck` gave."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Raised:
    """What it raised.  kind: of problem."""

    kind: str
    told: str


def send(stream: IO[bytes], message: object) -> None:
    """Write a message.  Raises OSError if nobody listens any more."""
    stream.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read a message.  Raises EOFError at the end, or in the middle of one."""
    try:
        return pickle.load(stream)
    except (pickle.UnpicklingError, OSError, ValueError) as error:
        raise EOFError from error
