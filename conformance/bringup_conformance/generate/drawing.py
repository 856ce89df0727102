"""What instances of rows are made of: the device's boundary sizes, and the kinds of data that ops
are sensitive to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType, f32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops.table import OpDef
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.cases import Instance
from bringup_conformance.execution.support import single
from bringup_conformance.generate.choices import Stream, chance, pick
from bringup_conformance.generate.sizes import draw_shape, strata

#: Kinds of data by what an op is sensitive to.
ANY = (
    "signed", "wide", "special", "positive", "near",
    "small", "nans", "negative", "extremes", "ties", "large", "tiny",
)  # fmt: skip
SUMS = ("small", "signed", "large", "ramp", "negative", "onehot", "special")
PRODUCTS = ("units", "positive", "onehot", "special")
NORMS = ("signed", "ramp", "positive", "large")
MOVES = ("ramp", "nans", "special")
#: By what a fold does; of those left out the extremes decide.
FOLDS = {"add": SUMS, "mul": PRODUCTS}


class Drawing:
    """Which boundary sizes one (row, dtype) gets: all of them over the dtypes, a few each."""

    def __init__(self, shapes: Shapes, seed: int, row: OpDef, dtype: DType, few: bool) -> None:
        self.shapes = shapes
        self.dtype = dtype
        self.few = few
        self.choices = Stream(seed, "instances", row.name, dtype.name)
        #: Whether this is the dtype that an expensive row gets all of its instances with.
        self.main = dtype is (f32 if f32 in row.dtypes else row.dtypes[0])
        self.first = few or self.main or dtype is row.dtypes[0]
        self.offset = seed + row.dtypes.index(dtype)
        #: Whether sizes past every block are worth their price: also on a dtype that the seed
        #: chooses.
        self.far = not few and (self.main or self.offset % len(row.dtypes) == 0)

    def sizes(self, count: int) -> list[int]:
        """Boundary lengths, one of each of the first strata; for dtypes after the first, one around
        the vector, and every other of the rest in turn.
        """
        sizes = [pick(self.choices, stratum) for stratum in strata(self.shapes)[:count]]
        if not self.first:
            sizes = [n for i, n in enumerate(sizes) if i == 0 or (i + self.offset) % 2]
        return list(dict.fromkeys(sizes))

    def shape(self, rank: int) -> tuple[int, ...]:
        """A shape of boundary sizes."""
        return draw_shape(self.choices, self.shapes, rank=rank, limit=2048)

    def some(self, rank: int) -> tuple[int, ...]:
        """Some of the dimensions, at least one."""
        dims = tuple(d for d in range(rank) if chance(self.choices, 1, 2))
        return dims or (self.choices.integer(0, rank - 1),)

    @property
    def vector(self) -> int:
        """Elements of the device's vector."""
        return self.shapes.vector


Make = Callable[[OpDef, Drawing], Iterator[Instance]]


@record
class Maker:
    """What makes the instances of one op.

    longest: the longest dimension that they are stretched to, as an exponent of two; 0 if they are
    not, because some are far already; None for as long as those of any op.
    """

    make: Make
    longest: int | None = None


def instance(
    operands: Sequence[TensorType], attrs: dict[str, Any], kinds: tuple[str, ...], far: bool = False
) -> Instance:
    """One instruction to check, on data of these kinds."""
    return Instance(tuple(operands), tuple(attrs.items()), kinds, far)


def bound(row: OpDef, instance: Instance) -> dict[str, Any]:
    """All attributes of an instance, with defaults.  Raises OpTypeError."""
    attrs = dict(instance.attrs)
    filled = dict(row.fill(instance.operands, attrs)) if row.fill is not None else {}
    return row.bind({**filled, **attrs})


def results_of(row: OpDef, instance: Instance) -> tuple[Value, ...] | None:
    """What the row gives for an instance; None if it does not take it."""
    try:
        return single(row, instance.operands, dict(instance.attrs)).outputs
    except OpTypeError:
        return None


def valid(row: OpDef, instance: Instance) -> bool:
    """Whether the row takes an instance."""
    return results_of(row, instance) is not None
