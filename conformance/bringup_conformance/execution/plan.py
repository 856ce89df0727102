"""What a run consists of: a plan, and units of cases that are made when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bringup.backend.capabilities import Capabilities
from bringup.dtypes import DType
from bringup.records import record
from bringup_conformance.cases import Case, Check, Unsupported
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.program_builder import GenConfig

Item = Case | Check | Unsupported


@record
class Budget:
    """How much of a level is run.

    programs: number of random programs.  limit: elements of their largest arrays.  large: whether
    sizes past 8,192 are drawn.  data: data sets of an op's case; half as many if the op is
    decomposed.
    split: one in so many of the cases whose results may differ op by op also runs op by op; 0 for
    none.  optimize: one in so many cases is compiled to fast code, the others in little time, where
    the device knows a difference.
    together: instructions of one op that are checked in one program, so that compiling does not
    dominate: kernels of one op share functions.
    """

    programs: int
    limit: int
    large: bool
    data: int
    split: int
    optimize: int = 4
    together: int = 6


#: Instructions of an op in one program for devices that compile slowly.
FEW = 2
#: For devices that compile and run at the speed of hardware, and for simulators.
FULL = Budget(programs=1200, limit=4096, large=True, data=6, split=4, together=24)
SIMULATED = Budget(programs=300, limit=600, large=False, data=2, split=4)


def budget_of(capabilities: Capabilities, few: bool = False) -> Budget:
    """The budget of a device, by its own declaration.

    few: few kernels in a case, for a device that compiles slowly.
    """
    budget = SIMULATED if capabilities.simulated else FULL
    return replace(budget, split=0, together=FEW) if few else budget


@record
class Plan:
    """What the cases of a run are made for."""

    capabilities: Capabilities
    support: Support
    seed: int
    budget: Budget

    def config(self, dtypes: tuple[tuple[int, DType], ...], exact: bool) -> GenConfig:
        """What random programs are made for.  dtypes: of inputs, each with its weight."""
        return GenConfig(
            support=self.support,
            numerics=self.capabilities.numerics,
            shapes=self.capabilities.shapes,
            exact=exact,
            limit=self.budget.limit,
            dtypes=dtypes,
        )


@record
class UnitId:
    """What a unit is called; dtype and number may be empty."""

    level: str
    op: str
    dtype: str
    number: str

    def __str__(self) -> str:
        return "/".join(filter(None, (self.level, self.op, self.dtype, self.number)))


@record
class Unit:
    """Cases that are made together, when they are needed.

    level, op, dtype, number: see `UnitId`.  kind: of the op.  make: makes the cases.
    """

    level: str
    op: str
    dtype: str
    number: str
    kind: str
    make: Callable[[], Iterator[Item]]

    @property
    def id(self) -> UnitId:
        """What it is called."""
        return UnitId(self.level, self.op, self.dtype, self.number)
