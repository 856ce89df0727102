"""How a kernel runs: its text is executed by Python, over all lanes of many grid points at once.

A value is an array that broadcasts to ``(points, lanes)``: what is the same in all lanes, or at all
points, is there once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from bringup_simulator.arithmetic import CASTS, DTYPES, OPERATIONS, Array, name_of, tree
from bringup_simulator.errors import OutOfBoundsError

__all__ = [
    "Index",
    "Kernel",
    "Lanes",
    "Param",
    "Points",
    "Region",
    "Traffic",
    "in_memory",
    "run_kernel",
]

# Lanes computed together: enough to hide numpy's call overhead, few enough to stay in cache.
_LANES_AT_ONCE = 1 << 16
_TILE_BYTES_AT_ONCE = 1 << 26
_TRUE = np.ones((1, 1), np.bool_)


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer that a launch binds: at least ``elements`` of ``dtype``."""

    dtype: np.dtype[Any]
    elements: int

    @property
    def nbytes(self) -> int:
        """Bytes it covers."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel.

    grid: points along each axis.  scratch_bytes: tiles of one point.  statements: what one point
    executes, loops counted.
    """

    name: str
    code: CodeType
    params: tuple[Param, ...]
    grid: tuple[int, ...]
    scratch_bytes: int
    statements: int


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of a parameter or a tile.

    array: of shape (1, n), or (points, n) for a tile; bool as bytes, since memory may hold others
    than 0 and 1.  origin: where in a row index 0 is.  low, high: the indices allowed,
    ``low <= index < high``.
    """

    name: str
    dtype: np.dtype[Any]
    array: Array
    origin: int
    low: int
    high: int
    writable: bool = True
    counted: bool = True

    def address(self, index: Index) -> Array:
        """Where in a row an index is."""
        return index.values + self.origin if self.origin else index.values


@dataclass(slots=True)
class Traffic:
    """Bytes moved between memory and kernels; those of tiles are not counted."""

    read: int = 0
    written: int = 0


class Index:
    """An integer for each lane; in lanes that have an element it lies in ``low … high``."""

    __slots__ = ("high", "low", "values")
    # A numpy value on the left leaves the operation to this class.
    __array_ufunc__ = None

    def __init__(self, values: Array, low: int, high: int) -> None:
        self.values = values
        self.low = low
        self.high = high

    @staticmethod
    def of(value: Index | Array | int) -> Index:
        """An index that is computed, loaded or constant."""
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return Index(np.full((1, 1), value, np.int64), value, value)
        if value.dtype.kind not in "iu":
            raise TypeError(f"an index is an integer, not {name_of(value.dtype)}")
        wide = value.astype(np.int64)
        return Index(wide, int(wide.min(initial=0)), int(wide.max(initial=0)))

    def __add__(self, other: Index | Array | int) -> Index:
        if isinstance(other, int):
            return Index(self.values + other, self.low + other, self.high + other)
        other = Index.of(other)
        return Index(self.values + other.values, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Index | Array | int) -> Index:
        return self + Index.of(other) * -1

    def __mul__(self, factor: int) -> Index:
        low, high = sorted((self.low * factor, self.high * factor))
        return Index(self.values * factor, low, high)

    def __floordiv__(self, by: int) -> Index:
        if by < 1:
            raise ValueError(f"an index is divided by positive integers, not {by}")
        return Index(self.values // by, self.low // by, self.high // by)

    def __mod__(self, by: int) -> Index:
        if by < 1:
            raise ValueError(f"an index is divided by positive integers, not {by}")
        if self.low // by == self.high // by:
            return Index(self.values % by, self.low % by, self.high % by)
        return Index(self.values % by, 0, by - 1)

    __radd__ = __add__
    __rmul__ = __mul__


class Lanes:
    """The word ``lanes(size)``: iterated, a vector of elements a round."""

    def __init__(self, size: int, points: Points) -> None:
        self.size = size
        self.vectors = -(-size // points.width)
        self._points = points

    def __iter__(self) -> Iterator[Index]:
        return self._points.loop_over_lanes(self)


class Points:
    """A batch of grid points in lock step, and the words of the language that concern them.

    coordinates: of the points, an array for each axis of the grid.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        coordinates: Sequence[Array],
        count: int,
        width: int,
        poison: int,
        traffic: Traffic,
    ) -> None:
        self.count = count
        self.width = width
        self._regions = iter(regions)
        self._coordinates = iter(coordinates)
        self._poison = poison
        self._traffic = traffic
        self._lane = np.arange(width)[None, :]
        self._row = np.arange(count)[:, None]
        self._tiles = 0
        self._spread = False
        # The lanes that have an element, None if all have.
        self._active: Array | None = None

    def words(self) -> dict[str, Any]:
        """Every word of the language; nothing else of Python is there."""
        words: dict[str, Any] = {name: row.compute for name, row in OPERATIONS.items()}
        for name in ("input", "output", "tile", "grid", "load", "store", "inside", "index"):
            words[name] = getattr(self, name)
        words |= {"const": self.const, "accumulate": self.accumulate, "inf": math.inf}
        words |= {"reduce_lanes": self.reduce_lanes, "range": self.loop}
        words["lanes"] = lambda size: Lanes(size, self)
        return {"__builtins__": {}, **words, **CASTS, **DTYPES}

    # --- places and loops -------------------------------------------------------------------

    def input(self, dtype: np.dtype[Any], elements: int) -> Region:
        """The next parameter, as it was bound."""
        return next(self._regions)

    output = input

    def tile(self, dtype: np.dtype[Any], elements: int) -> Region:
        """Scratchpad of its own for each point."""
        memory = in_memory(dtype)
        raw = np.full((self.count, elements * memory.itemsize), self._poison, np.uint8)
        self._tiles += 1
        name = f"tile {self._tiles}"
        return Region(name, dtype, raw.view(memory), 0, 0, elements, counted=False)

    def grid(self, extent: int | Lanes) -> Index:
        """The coordinate of each point along the next axis."""
        coordinate = next(self._coordinates)
        if isinstance(extent, int):
            return Index(coordinate, 0, extent - 1)
        self._claim_lanes()
        values = coordinate * self.width + self._lane
        active = values < extent.size
        self._active = None if active.all() else active
        return Index(values, 0, extent.size - 1)

    def loop(self, size: int) -> Iterator[Index]:
        """One element a round."""
        for n in self.rounds(size):
            yield Index(np.array([[n]]), 0, size - 1)

    def loop_over_lanes(self, extent: Lanes) -> Iterator[Index]:
        """A vector of elements a round."""
        self._claim_lanes()
        for n in self.rounds(extent.vectors):
            values = self._lane + n * self.width
            self._active = values < extent.size if (n + 1) * self.width > extent.size else None
            yield Index(values, 0, extent.size - 1)
        self._spread, self._active = False, None

    def rounds(self, count: int) -> range:
        """The rounds of a loop."""
        return range(count)

    def _claim_lanes(self) -> None:
        if self._spread:
            raise ValueError("the lanes are taken by another loop or axis")
        self._spread = True

    # --- memory -----------------------------------------------------------------------------

    def load(self, region: Region, index: Index | Array | int, *conditions: Array) -> Array:
        """The elements at an index where the conditions hold, 0 elsewhere."""
        index, held = Index.of(index), _all_of(conditions)
        within = held
        # What is the same in every lane is read once, if any lane has an element.
        if self._active is not None and max(index.values.shape[1], _lanes_of(held)) > 1:
            within = self._active if held is None else held & self._active
        if within is not None and not within.any():
            return np.zeros((1, 1), region.dtype)
        self.check_bounds("load", region, index, within)
        elements: Array
        address, array = region.address(index), region.array
        # Lanes that are masked off may be out of bounds: "clip" reads something there.
        if array.shape[0] == 1:
            elements = array[0].take(address, mode="clip")
        elif address.shape[0] == 1:
            elements = array.take(address[0], axis=1, mode="clip")
        else:
            elements = array.reshape(-1).take(address + self._row * array.shape[1], mode="clip")
        if region.counted:
            self._traffic.read += elements.itemsize * _count(elements.shape, within)
        if region.dtype == np.bool_:
            elements = elements != 0
        return elements if held is None else np.where(held, elements, elements.dtype.type(0))

    def store(
        self, region: Region, index: Index | Array | int, value: Array, *conditions: Array
    ) -> None:
        """Store where the conditions hold; lanes that meet at one element race."""
        if not region.writable:
            raise TypeError("an input is only read")
        if value.dtype != region.dtype:
            raise TypeError(f"{name_of(value.dtype)} is stored to {name_of(region.dtype)}")
        index, within = Index.of(index), _all_of(conditions)
        if self._active is not None:
            within = self._active if within is None else within & self._active
        if within is not None and not within.any():
            return
        self.check_bounds("store", region, index, within)
        address = region.address(index)
        if region.array.shape[0] != 1:
            address = address + self._row * region.array.shape[1]
        shapes = [address.shape, value.shape] + ([] if within is None else [within.shape])
        shape = np.broadcast_shapes(*shapes)
        if region.counted:
            self._traffic.written += value.itemsize * _count(shape, within)
        address, value = np.broadcast_to(address, shape), np.broadcast_to(value, shape)
        if within is not None:
            stored = np.broadcast_to(within, shape)
            address, value = address[stored], value[stored]
        self.write(region, address, value)

    def write(self, region: Region, address: Array, value: Array) -> None:
        """Store values at addresses, which count through all rows."""
        region.array.reshape(-1)[address] = value

    def check_bounds(self, what: str, region: Region, index: Index, within: Array | None) -> None:
        """OutOfBoundsError if a lane that is not masked off reaches outside."""
        if region.low <= index.low and index.high < region.high:
            return
        values = index.values
        if within is not None:
            shape = np.broadcast_shapes(values.shape, within.shape)
            values = np.broadcast_to(values, shape)[np.broadcast_to(within, shape)]
        low, high = int(values.min()), int(values.max())
        if low < region.low or high >= region.high:
            raise OutOfBoundsError(
                f"{what} reaches element {low if low < region.low else high} of {region.name}, "
                f"which allows [{region.low}, {region.high})"
            )

    # --- values -----------------------------------------------------------------------------

    def const(self, value: float, dtype: np.dtype[Any]) -> Array:
        """A constant, in all lanes."""
        return np.array([[value]], dtype)

    def index(self, index: Index | Array | int) -> Array:
        """The index as a value."""
        return Index.of(index).values

    def inside(self, index: Index | Array | int, low: int, high: int) -> Array:
        """Whether ``low <= index < high``."""
        index = Index.of(index)
        if low <= index.low and index.high < high:
            return _TRUE
        return (index.values >= low) & (index.values < high)

    def accumulate(self, operation: Any, total: Array, value: Array) -> Array:
        """``operation(total, value)`` in the lanes that have an element."""
        combined: Array = operation(total, value)
        return combined if self._active is None else np.where(self._active, combined, total)

    def reduce_lanes(self, operation: Any, value: Array) -> Array:
        """All lanes of a value combined."""
        return tree(operation, np.broadcast_to(value, (value.shape[0], self.width)))


def run_kernel(
    kernel: Kernel, regions: Sequence[Region], width: int, poison: int, traffic: Traffic
) -> None:
    """Run a kernel once per point of its grid; the order of points is unspecified.

    Raises: OutOfBoundsError at the first access outside a region; what other points have stored by
    then stays.
    """
    points = math.prod(kernel.grid)
    at_once = max(1, _LANES_AT_ONCE // width)
    if kernel.scratch_bytes:
        at_once = max(1, min(at_once, _TILE_BYTES_AT_ONCE // kernel.scratch_bytes))
    with np.errstate(all="ignore"):
        for start in range(0, points, at_once):
            flat = np.arange(start, min(points, start + at_once))
            axes = np.unravel_index(flat, kernel.grid) if kernel.grid else ()
            coordinates = [axis.astype(np.int64)[:, None] for axis in axes]
            batch = Points(regions, coordinates, flat.size, width, poison, traffic)
            exec(kernel.code, batch.words())


def in_memory(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What elements of a type are in memory, where a byte may hold no valid bool."""
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _all_of(conditions: Sequence[Array]) -> Array | None:
    """Whether all conditions hold, lane by lane; None if they do in every lane."""
    held: Array | None = None
    for condition in conditions:
        if condition is not _TRUE:
            held = condition if held is None else held & condition
    return None if held is None or held.all() else held


def _lanes_of(mask: Array | None) -> int:
    return 1 if mask is None else mask.shape[1]


def _count(shape: tuple[int, ...], within: Array | None) -> int:
    """Elements of a shape that are not masked off."""
    if within is None:
        return math.prod(shape)
    whole = np.broadcast_shapes(within.shape, shape)
    return int(np.count_nonzero(within)) * (math.prod(whole) // within.size)
