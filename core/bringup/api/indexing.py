"""Indexing by integers, slices, ``...`` and None, and functional updates; keys with arrays go on to
`advanced`.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from bringup.api import advanced
from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.boundary import guarded_methods, missing_attribute
from bringup.api.broadcasting import aligned, as_array, binary, broadcast_shapes, convert, spread
from bringup.api.elementwise import divide, negative, pow, where
from bringup.api.manipulation import flip, reshape
from bringup.api.promotion import literal
from bringup.dtypes import bool_, i32, i64
from bringup.errors import ArrayIndexError, ConversionError, OpTypeError
from bringup.graph import Literal
from bringup.ops.monoids import MONOIDS
from bringup.records import record
from bringup.runtime import transfer
from bringup.tracing.context import current
from bringup.types import TensorType

#: ``(start, count, step)`` by dimension.
Spans = tuple[tuple[int, int, int], ...]


@record
class Region:
    """What a key selects.

    spans: by dimension of the array.
    shape: of the result.
    whole: whether that is the array itself.
    scalar: whether every dimension is indexed by an integer.
    """

    spans: Spans
    shape: tuple[int, ...]
    whole: bool
    scalar: bool

    @property
    def counts(self) -> tuple[int, ...]:
        """Selected elements by dimension of the array."""
        return tuple(count for _, count, _ in self.spans)


def region(type_: TensorType, key: Any) -> Region:
    """Resolve a key.  Raises ArrayIndexError."""
    items = _expanded(type_, key if isinstance(key, tuple) else (key,))
    spans: list[tuple[int, int, int]] = []
    shape: list[int] = []
    integers = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        dim = len(spans)
        size = type_.shape[dim]
        if isinstance(item, slice):
            picked = _picked(item, size)
            spans.append((picked.start, len(picked), picked.step))
            shape.append(len(picked))
            continue
        spans.append((_position(item, size, dim, type_), 1, 1))
        integers += 1
    is_whole = all(s == (0, n, 1) for s, n in zip(spans, type_.shape, strict=True))
    return Region(tuple(spans), tuple(shape), is_whole, integers == len(items))


def _picked(item: slice, size: int) -> range:
    try:
        return range(size)[item]
    except (TypeError, ValueError) as error:
        raise ArrayIndexError(
            f"{_key_text(item)} slices nothing: {error}",
            fix="give integers, and a step that is not 0",
        ) from None


def _expanded(type_: TensorType, items: tuple[Any, ...]) -> list[Any]:
    """The key with one entry per dimension, besides those that are None."""
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if used > type_.rank or len(dots) > 1:
        problem = "more than one '...'" if len(dots) > 1 else f"{used} indices"
        raise ArrayIndexError(
            f"{problem} for {type_}, which has rank {type_.rank}",
            fix=f"give at most {type_.rank} integers or slices, and at most one '...'",
        )
    position = dots[0] if dots else len(items)
    missing = [slice(None)] * (type_.rank - used)
    return [*items[:position], *missing, *items[position + 1 :]]


def _position(item: Any, size: int, dim: int, type_: TensorType) -> int:
    try:
        position = operator.index(item)
    except TypeError:
        raise ArrayIndexError(
            f"{item!r} does not index an array",
            fix="use integers, slices, '...', None, integer arrays and boolean masks",
        ) from None
    if not -size <= position < size:
        raise ArrayIndexError(
            f"index {position} is out of range for dimension {dim} of {type_}",
            fix=f"use {-size} … {size - 1}" if size else "the dimension is empty",
        )
    return position % size


def getitem(x: Array, key: Any) -> Array:
    """``x[key]``."""
    if advanced.is_advanced(key):
        x, key = advanced.with_dimensions(x, key)
        result = advanced.picks(x.type, key)
        selected = advanced.selected(x, key) if current() is None else None
        if selected is not None:
            return selected
        return advanced.read(getitem(x, result.slices), result)
    picked = region(x.type, key)
    if picked.scalar and x._buffer is not None:
        seen = transfer.view(x.device.device, x._buffer, x.type)
        if seen is not None:
            # The host reads one element of memory that it sees; no program is compiled for it.
            element = seen[tuple(start for start, _, _ in picked.spans)]
            return Array(
                x.type.with_shape(()),
                x._device,
                transfer.upload(x.device.device, np.asarray(element, x.dtype.numpy)),
            )
    if not picked.whole:
        x, spans = _window(x, picked.spans)
        start, limit, stride = _bounds(spans, x.shape)
        if (start, limit) != ((0,) * x.ndim, x.shape) or any(k != 1 for k in stride):
            x = apply("slice", (x,), {"start": start, "limit": limit, "stride": stride})
    return reshape(x, picked.shape)


def _window(x: Array, spans: Spans) -> tuple[Array, Spans]:
    """A window of an array that holds the selection, and the spans within it.

    Where operations are recorded, the starts of the window are scalars beside the program: those of
    a loop differ at each step, and its program need not.
    """
    if current() is not None or not x.size:
        return x, spans
    firsts, sizes, inner = [], [], []
    for (start, count, step), size in zip(spans, x.shape, strict=True):
        first, last = sorted((start, start + max(count - 1, 0) * step))
        if not count or (step < 0 and count == size):  # nothing, or everything in reverse
            first, last = 0, size - 1
        firsts.append(first)
        sizes.append(last - first + 1)
        inner.append((start - first, count, step))
    if tuple(sizes) != x.shape:
        x = apply("dynamic_slice", (x, *_start_scalars(x, firsts)), {"sizes": tuple(sizes)})
    return x, tuple(inner)


def _start_scalars(x: Array, firsts: Sequence[int]) -> list[Literal]:
    dtype = i32 if max(x.shape) < 1 << 31 else i64
    return [literal(first, dtype[()]) for first in firsts]


def _bounds(
    spans: Spans, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Attributes of the slice op; an empty slice starts where the op allows it."""
    starts: list[int] = []
    limits: list[int] = []
    strides: list[int] = []
    for (start, count, step), size in zip(spans, shape, strict=True):
        end = start + count * step
        starts.append(start if count else 0)
        limits.append((min(end, size) if step > 0 else max(end, -1)) if count else 0)
        strides.append(step if count else 1)
    return tuple(starts), tuple(limits), tuple(strides)


def immutable(x: Array, key: Any) -> ConversionError:
    """The error of ``x[key] = value``."""
    text = _key_text(key)
    return ConversionError(
        f"arrays are immutable: x[{text}] = … cannot change {x.type}",
        fix=f"make a new array: x = x.at[{text}].set(value)",
    )


def undeletable(x: Array, key: Any) -> ConversionError:
    """The error of ``del x[key]``."""
    return ConversionError(
        f"arrays are immutable: del x[{_key_text(key)}] cannot change {x.type}",
        fix="make a new array of the parts to keep, with concat",
    )


def _key_text(key: Any) -> str:
    if isinstance(key, slice):
        start, stop = ("" if v is None else repr(v) for v in (key.start, key.stop))
        return f"{start}:{stop}" + ("" if key.step is None else f":{key.step!r}")
    if isinstance(key, tuple):
        return ", ".join(map(_key_text, key))
    if isinstance(key, Array | np.ndarray):
        return "mask" if advanced.is_mask(key) else "indices"
    return "..." if key is Ellipsis else repr(key)


@guarded_methods
class At:
    """``x.at``: index it to name the region of an update."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> Update:
        update = self._updated(key)
        update._whole, update._key = self._array, key
        return update

    def _updated(self, key: Any) -> Update:
        if not advanced.is_advanced(key):
            return _Region(self._array, region(self._array.type, key))
        mask = _alone(key)
        if mask is not None and tuple(mask.shape) == self._array.shape[: mask.ndim]:
            return _Masked(self._array, mask)
        wide, key = advanced.with_dimensions(self._array, key)
        return _Picked(wide, advanced.picks(wide.type, key), self._array.shape)


def _alone(key: Any) -> Array | None:
    """The mask of a key that holds nothing else."""
    if isinstance(key, bool | np.bool_ | np.ndarray):
        mask = np.asarray(key)
        return as_array(mask) if mask.dtype == np.bool_ else None
    return key if isinstance(key, Array) and key.dtype is bool_ else None


@guarded_methods
class Update(ABC):
    """A part of an array; each method returns a new array in which it is updated.

    Values broadcast to the shape of the part and take the dtype of the array.  Where indices name
    an element several times, its updates are applied in their order, so the last one set stays;
    indices out of range update nothing.
    """

    __slots__ = ("_array", "_key", "_whole")

    #: The array and the index as they were given; `_array` may have more dimensions.
    _whole: Array
    _key: Any

    def __init__(self, array: Array) -> None:
        self._array = array

    if not TYPE_CHECKING:  # a checker shall go on finding misspelt methods

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            raise missing_attribute(self, "x.at[…]", name, "at")

    def get(self) -> Array:
        """The region itself, ``x[i]``.

        >>> bu.arange(4).at[1:3].get().tolist()
        [1, 2]
        """
        return self._whole[self._key]

    def apply(self, fn: Callable[[Array], Operand]) -> Array:
        """The array with ``fn(region)`` in the region.

        >>> bu.arange(4).at[2:].apply(lambda x: x * x).tolist()
        [0, 1, 4, 9]
        """
        return self.set(fn(self.get()))

    def subtract(self, value: Operand) -> Array:
        """The array with `value` subtracted in the region.

        >>> bu.arange(4).at[2:].subtract(10).tolist()
        [0, 1, -8, -7]
        """
        fitted = self._fitted(value)
        return self._update("add", negative(self._spread(value, ()) if fitted is None else fitted))

    def divide(self, value: Operand) -> Array:
        """The array with the region divided by `value`; in a float dtype, as `bringup.divide`.

        >>> bu.asarray([1.0, 2.0]).at[1].divide(4).tolist()
        [1.0, 0.5]
        """
        return divide(self._whole, self._factors(value))

    def power(self, value: Operand) -> Array:
        """The array with the region to the power `value`.

        >>> bu.arange(4).at[2:].power(3).tolist()
        [0, 1, 8, 27]
        """
        return pow(self._whole, self._factors(value))

    def _factors(self, value: Operand) -> Array:
        """`value` in the region, and 1 elsewhere."""
        x = self._whole
        one_literal = literal(1, x.type)
        ones = apply("reshape", (one_literal,), {"shape": x.shape}, device=x._device)
        return At(ones)[self._key].multiply(value)

    def set(self, value: Operand) -> Array:
        """The array with `value` in the region.

        >>> bu.arange(4).at[::2].set(9).tolist()
        [9, 1, 9, 3]
        """
        return self._update("set", value)

    def add(self, value: Operand) -> Array:
        """The array with `value` added in the region.

        >>> bu.arange(4).at[bu.asarray([2, 2, 0])].add(10).tolist()
        [10, 1, 22, 3]
        """
        return self._update("add", value)

    def multiply(self, value: Operand) -> Array:
        """The array with the region multiplied by `value`.

        >>> bu.arange(4).at[2:].multiply(10).tolist()
        [0, 1, 20, 30]
        """
        return self._update("mul", value)

    def min(self, value: Operand) -> Array:
        """The array with the region limited from above by `value`.

        >>> bu.arange(4).at[2:].min(2).tolist()
        [0, 1, 2, 2]
        """
        return self._update("min", value)

    def max(self, value: Operand) -> Array:
        """The array with the region limited from below by `value`.

        >>> bu.arange(4).at[:2].max(1).tolist()
        [1, 1, 2, 3]
        """
        return self._update("max", value)

    @abstractmethod
    def _update(self, kind: str, value: Operand) -> Array: ...

    def _fitted(self, value: Operand) -> Array | None:
        """An array value in the dtype of the array; None for a scalar."""
        if not isinstance(value, Array | np.ndarray):
            return None
        x = self._array
        (fitted,), _ = aligned("set", (value,))
        assert isinstance(fitted, Array)
        if fitted.dtype is not x.dtype and _loses(fitted, x):
            raise OpTypeError(
                f"values of {fitted.type} do not fit into {x.type}",
                fix=f"convert them first: astype(values, {x.dtype.long_name})",
            )
        return convert(fitted, x.dtype)

    def _spread(self, value: Operand, shape: tuple[int, ...]) -> Array:
        """A value in the dtype of the array, spread over a shape."""
        fitted = self._fitted(value)
        if fitted is not None:
            return spread(fitted, shape)
        result = literal(value, TensorType(shape, self._array.dtype))
        return apply("reshape", (result,), {"shape": shape}, device=self._array._device)


def _combined(kind: str, old: Array, new: Array) -> Array:
    return new if kind == "set" else binary(MONOIDS[kind].of(old.dtype), old, new)


class _Picked(Update):
    """The elements that integer arrays name."""

    __slots__ = ("_picks", "_shape")

    def __init__(
        self, array: Array, picked: advanced.Picks, shape: tuple[int, ...] | None = None
    ) -> None:
        """shape: of the result, if the array has more dimensions of size 1."""
        super().__init__(array)
        self._picks = picked
        self._shape = array.shape if shape is None else shape

    def _update(self, kind: str, value: Operand) -> Array:
        x, picked = self._array, self._picks
        values = self._spread(value, picked.shape)
        sliced = region(x.type, picked.slices)
        if sliced.whole:
            new = advanced.written(x, picked, kind, values)
        else:
            part = advanced.written(getitem(x, picked.slices), picked, kind, values)
            new = _Region(x, sliced).set(part)
        return reshape(new, self._shape)


class _Masked(Update):
    """The elements where a mask is true: one choice for all, unless there is a value for each."""

    __slots__ = ("_mask",)

    def __init__(self, array: Array, mask: Array) -> None:
        super().__init__(array)
        self._mask = mask

    def _update(self, kind: str, value: Operand) -> Array:
        x, mask = self._array, self._mask
        inner_shape = x.shape[mask.ndim :]
        shape = value.shape if isinstance(value, Array | np.ndarray) else ()
        if broadcast_shapes(tuple(shape), inner_shape) != inner_shape:
            wide, key = advanced.with_dimensions(x, mask)
            return _Picked(wide, advanced.picks(wide.type, key), x.shape)._update(kind, value)
        new = _combined(kind, x, self._spread(value, x.shape))
        return where(reshape(mask, (*mask.shape, *(1 for _ in inner_shape))), new, x)


class _Region(Update):
    """The elements that integers and slices name."""

    __slots__ = ("_region",)

    def __init__(self, array: Array, picked: Region) -> None:
        super().__init__(array)
        self._region = picked

    def _update(self, kind: str, value: Operand) -> Array:
        x, picked = self._array, self._region
        if current() is None and all(count and step == 1 for _, count, step in picked.spans):
            return self._replaced(kind, value)
        placed = self._placed(value)
        if picked.whole:
            return _combined(kind, x, placed)
        return where(self._mask(), _combined(kind, x, placed), x)

    def _replaced(self, kind: str, value: Operand) -> Array:
        """A window put in the place of another, see `_window`."""
        x, picked = self._array, self._region
        new = reshape(self._spread(value, picked.shape), picked.counts)
        firsts = _start_scalars(x, [start for start, _, _ in picked.spans])
        if kind != "set":
            old = apply("dynamic_slice", (x, *firsts), {"sizes": picked.counts})
            new = _combined(kind, old, new)
        return new if picked.whole else apply("dynamic_update_slice", (x, new, *firsts))

    def _placed(self, value: Operand) -> Array:
        """The value at the region of an array of the full shape; other elements are unspecified."""
        x, picked = self._array, self._region
        fitted = self._fitted(value)
        if fitted is None:
            return self._spread(value, x.shape)
        region_ = reshape(spread(fitted, picked.shape), picked.counts)
        reversed_dims = tuple(d for d, (_, _, step) in enumerate(picked.spans) if step < 0)
        return self._padded(flip(region_, axis=reversed_dims) if reversed_dims else region_, 0)

    def _mask(self) -> Array:
        """Where the region is."""
        inside = TensorType(self._region.counts, bool_)
        ones = apply(
            "reshape", (literal(True, inside),), {"shape": inside.shape}, device=self._array._device
        )
        return self._padded(ones, False)

    def _padded(self, x: Array, edge: Any) -> Array:
        lo, hi, interior = [], [], []
        for (start, count, step), size in zip(self._region.spans, self._array.shape, strict=True):
            first = start if step > 0 else start + (count - 1) * step
            gap = abs(step) - 1
            used = count + (count - 1) * gap if count else 0
            lo.append(first if count else 0)
            hi.append(size - used - lo[-1])
            interior.append(gap)
        attrs = {"lo": tuple(lo), "hi": tuple(hi), "interior": tuple(interior)}
        return apply("pad", (x, literal(edge, x.type.with_shape(()))), attrs)


def _loses(value: Array, x: Array) -> bool:
    """Whether a conversion crosses kinds downwards: floats into integers, numbers into bools."""
    order = ("bool", "uint", "int", "float")
    return order.index(value.dtype.kind) > order.index(x.dtype.kind)
