"""What a run is made of: a plan, and units of cases that are made when they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bringup.backend.capabilities import Capabilities
from bringup.dtypes import DType
from bringup_conformance.cases import Case, Check, Unsupported
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.program_builder import GenConfig

Item = Case | Check | Unsupported


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a level is run.

    programs: random ones.  limit: elements of their largest arrays.  large: whether sizes past
    8,192 are drawn.  data: data sets of an op's case, half as many if it is made of others.  split:
    one in so many of the cases that may come out otherwise op by op also runs so; 0 for none but
    those that fail.  optimize: one in so many is compiled to fast code, the others in little time,
    where the device knows a difference.  together: instructions of an op that are checked in one
    program, so that compiling does not dominate: kernels of one op have functions in common.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cases are made for."""

    capabilities: Capabilities
    support: Support
    seed: int
    budget: Budget

    def config(self, dtypes: tuple[tuple[int, DType], ...], exact: bool) -> GenConfig:
        """What random programs are made for.  dtypes: of inputs, by weight."""
        return GenConfig(
            support=self.support,
            numerics=self.capabilities.numerics,
            shapes=self.capabilities.shapes,
            exact=exact,
            limit=self.budget.limit,
            dtypes=dtypes,
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """Cases that are made together, when they are wanted.

    level, op, dtype, number: what is known of their names before; dtype and number may be empty.
    """

    level: str
    op: str
    dtype: str
    number: str
    kind: str
    make: Callable[[], Iterator[Item]]
