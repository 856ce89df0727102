"""How far a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    done, total: of what is `counted`.  doing: what is at hand.  failed: cases.  jobs: what each
    worker is at, if there are workers.  news: something to be told at once, such as a failure.
    """

    done: int
    total: int
    doing: str
    failed: int
    jobs: tuple[str, ...] = ()
    news: str = ""
    counted: str = "units"


OnProgress = Callable[[Progress], None]
