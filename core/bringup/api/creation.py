"""New arrays: from values, or constants and ramps that exist only in the programs that read them.

device: a name such as ``"name:1"``, an open device, or None for the default one.  Inside a traced
function arrays are made on the function's device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import choice_of, flag_of, integer_of, number_of, shape_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, binary, convert, matrices_of, spread
from bringup.api.defaults import default_float
from bringup.api.elementwise import add, where
from bringup.api.manipulation import stack
from bringup.api.promotion import (
    DEFAULT_INT,
    check_range,
    common,
    dtype_of,
    host_dtype,
    kind_of,
    literal,
    scalar_dtype,
)
from bringup.dtypes import DType, as_dtype, bool_, f64
from bringup.errors import ConversionError, DeviceError, OpTypeError, TraceError
from bringup.graph import Literal
from bringup.ops.table import lookup
from bringup.runtime import devices, transfer
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.context import current
from bringup.types import TensorType

#: Arrays of numpy up to this size become constants of a traced function; larger ones are inputs.
_SMALL = 16

Shape = int | Sequence[int]


def asarray(
    obj: Any,
    /,
    dtype: object = None,
    *,
    device: DeviceSpec = None,
    copy: bool | None = None,
) -> Array:
    """An array of Python scalars, nested sequences, numpy arrays or arrays of ours.

    dtype: by default that of `obj`; bool, i64 and the default float for Python values, and the
    default float for f64 of numpy's, which is its own default.  A sequence that holds arrays of
    ours has the dtype in which all its items meet.
    copy: arrays of ours are returned as they are by default; everything else is copied, and False
    raises ConversionError.

    >>> bu.asarray([1, 2, 3], dtype=bu.float32)[1:].tolist()
    [2.0, 3.0]
    """
    result_dtype = None if dtype is None else dtype_of(dtype)
    copy = None if copy is None else flag_of("asarray", "copy", copy)
    if isinstance(obj, Array):
        moved = obj if device is None else to_device(obj, device)
        result = moved if result_dtype is None else convert(moved, result_dtype)
        return copy_of(result) if copy and result is obj else result
    if copy is False:
        raise ConversionError(
            f"a {type(obj).__name__} becomes an array by copying only", fix="leave out copy=False"
        )
    if isinstance(obj, list | tuple):
        items = list(_items(obj))
        arrays = [x for x in items if isinstance(x, Array)]
        if arrays and result_dtype is None:
            result_dtype = common(items)[0]
        if any(x.is_traced for x in arrays):
            check_device(device)
            return _stacked(obj, result_dtype)
    host = _host(obj, result_dtype)
    return from_host(host, device)


#: The most dimensions of numpy's arrays.
_LEVELS = 64


def _items(obj: Any, levels: int = _LEVELS) -> Iterator[Any]:
    """The items of nested lists and tuples."""
    if not isinstance(obj, list | tuple):
        yield obj
        return
    if not levels:
        raise ConversionError(
            f"a sequence nested more than {_LEVELS} levels deep, or in itself, is no array",
            fix="give sequences of fewer levels, none of them a part of itself",
        )
    for item in obj:
        yield from _items(item, levels - 1)


def _stacked(obj: Any, dtype: DType | None) -> Array:
    """A nested sequence of arrays, some of them traced, and of numbers."""
    if not isinstance(obj, list | tuple) or not obj:
        return asarray(obj, dtype)
    return stack([_stacked(item, dtype) for item in obj])


def copy_of(x: Array) -> Array:
    """The same values in memory of their own."""
    return apply("reshape", (x,), {"shape": x.shape})


def from_host(host: np.ndarray[Any, Any], device: DeviceSpec = None) -> Array:
    """An array with the content of a numpy array of a dtype of ours."""
    type_ = TensorType(host.shape, dtype_of(host.dtype))
    if type_.dtype.is_complex:
        from bringup.api.complex import ComplexArray

        return ComplexArray(from_host(host.real, device), from_host(host.imag, device))
    trace = current()
    if trace is not None and host.size <= _SMALL:
        check_device(device)
        return apply("constant", (), {"value": Literal(host, type_)})
    target = trace.device if trace is not None and device is None else None
    opened = target or devices.get(device)
    return _uploaded(host, type_, opened)


def _uploaded(host: np.ndarray[Any, Any], type_: TensorType, device: OpenDevice) -> Array:
    try:
        return Array(type_, device, transfer.upload(device.device, host))
    except DeviceError as error:
        error.notes = (*error.notes, f"while {type_} was uploaded to {device}")
        raise


def _host(obj: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """A numpy array of one of our dtypes."""
    refuse_masked(obj)
    if isinstance(obj, bool | int | float | complex) and not isinstance(obj, np.generic):
        kind = dtype or scalar_dtype(kind_of(obj))
        return literal(obj, TensorType((), kind)).array()
    if isinstance(obj, np.ndarray | np.generic):
        return cast_host(np.asarray(obj), dtype)
    if isinstance(obj, Sequence) and not isinstance(obj, str | bytes):
        host = _from_sequence(obj)
        if dtype is not None and dtype.is_integer and host.dtype.kind in "iu" and host.size:
            for extreme in (host.min(), host.max()):
                check_range(int(extreme), dtype)
        return cast_host(host, dtype)
    if hasattr(obj, "__dlpack__") or hasattr(obj, "__array__") or hasattr(obj, "__buffer__"):
        return cast_host(np.asarray(obj), dtype)
    raise ConversionError(
        f"a {type(obj).__name__} does not become an array",
        fix="give numbers, nested lists of numbers, or an array",
    )


def refuse_masked(obj: Any) -> None:
    """Raises ConversionError for a masked array of numpy."""
    # A subclass of ndarray is rare, and numpy.ma is not imported for every one.
    if type(obj) is not np.ndarray and isinstance(obj, np.ndarray) and hasattr(obj, "mask"):
        raise ConversionError(
            f"a masked array of numpy's {obj.dtype} has no equivalent here: its mask would be lost",
            fix="give x.filled(value), or x.data and x.mask apart",
        )


def _from_sequence(obj: Sequence[Any]) -> np.ndarray[Any, Any]:
    plain = _plain(obj)
    try:
        host = np.asarray(plain)
    except ValueError:
        raise ConversionError(
            "nested sequences of different lengths do not become an array",
            fix="give sequences of equal lengths",
        ) from None
    return host.astype(np.float64) if host.size == 0 else host


def _plain(obj: Any) -> Any:
    """A nested sequence with arrays of ours as numpy arrays."""
    if isinstance(obj, Array):
        return np.asarray(obj)
    refuse_masked(obj)
    return [_plain(item) for item in obj] if isinstance(obj, list | tuple) else obj


def cast_host(host: np.ndarray[Any, Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    """An array of numpy in a dtype, by default the one in which it comes; converted as arrays are.

    Raises ConversionError for what numpy has and we have not, and for complex numbers as reals.
    """
    if not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    try:
        host_type = as_dtype(host.dtype)
    except OpTypeError:
        raise ConversionError(
            f"numpy's {host.dtype} has no equivalent here",
            fix="give bools, integers, floats or complex numbers",
        ) from None
    if dtype is None:
        dtype = host_dtype(host.dtype)
    if dtype is host_type:
        return host
    if host_type.is_complex and not dtype.is_complex:
        raise ConversionError(
            f"numpy's {host.dtype} does not become {dtype} without losing a part",
            fix="take its .real or its .imag",
        )
    if dtype.is_complex:
        return host.astype(dtype.numpy)
    cast: np.ndarray[Any, Any] = lookup("convert").reference(host, dtype=dtype)
    return cast


def array(obj: Any, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """`asarray` under numpy's name.

    >>> bu.array([1.5]).tolist()
    [1.5]
    """
    return asarray(obj, dtype=dtype, device=device)


def to_device(x: Array, device: DeviceSpec) -> Array:
    """The array on a device, through the host where it must; itself if it is there already."""
    target = devices.get(device)
    if x._device is target:
        return x
    if x.dtype.is_complex:
        return x.to(target)
    if x.is_traced:
        raise TraceError(
            f"a value of type {x.type} cannot move to {target} inside a traced function",
            fix="move arrays before or after the call",
        )
    concrete = x._concrete("a copy of")
    source = concrete.device.device
    buffer = transfer.adopted(source, target.device, concrete._buffer, x.type)
    if buffer is not None:  # the target reads the memory in place
        return Array(x.type, target, buffer)
    return _uploaded(x._host("a copy of"), x.type, target)


def check_device(device: DeviceSpec) -> OpenDevice | None:
    """The device meant; inside a trace it must be the trace's, else TraceError."""
    if device is None:
        return None
    opened, trace = devices.get(device), current()
    if trace is not None and trace.device not in (None, opened):
        raise TraceError(
            f"a function traced for {trace.device} cannot make an array on {opened}",
            fix="leave out device=, or make the array outside",
        )
    return opened


def full(
    shape: Shape, fill_value: Any, dtype: object = None, *, device: DeviceSpec = None
) -> Array:
    """An array whose elements are all one value; its dtype by default that of the Python scalar.

    >>> bu.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    opened = check_device(device)
    sizes = shape_of("full", shape)
    if isinstance(fill_value, np.ndarray):
        fill_value = fill_value[()] if not fill_value.ndim else asarray(fill_value, device=opened)
    if isinstance(fill_value, Array):
        value = fill_value if dtype is None else convert(fill_value, dtype_of(dtype))
        return spread(value, sizes)
    scalar = isinstance(fill_value, np.generic)
    value_dtype = host_dtype(fill_value.dtype) if scalar else scalar_dtype(kind_of(fill_value))
    type_ = TensorType(sizes, dtype_of(value_dtype if dtype is None else dtype))
    # Not a constant but an operation on a scalar, so that a value that keeps changing compiles
    # once.
    attrs = {"shape": sizes}
    if isinstance(fill_value, float) and type_.dtype.is_integer and fill_value.is_integer():
        fill_value = int(fill_value)  # ``full(3, 1.0, dtype=int32)`` is no mistake
    filling = literal(fill_value, type_)
    if type_.dtype.is_complex:
        from bringup.api.complex import from_literal

        return from_literal(filling, opened)
    return apply("reshape", (filling,), attrs, device=opened)


def zeros(shape: Shape, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """An array of zeros, of the default float dtype.

    >>> bu.zeros(2).tolist()
    [0.0, 0.0]
    """
    return full(shape, 0, dtype=default_float() if dtype is None else dtype, device=device)


def ones(shape: Shape, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """An array of ones, of the default float dtype.

    >>> bu.ones(2, dtype=bu.int8).tolist()
    [1, 1]
    """
    return full(shape, 1, dtype=default_float() if dtype is None else dtype, device=device)


def empty(shape: Shape, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """An array of unspecified values, here for the standard's sake: arrays are immutable.

    >>> bu.empty((2, 0)).shape
    (2, 0)
    """
    return zeros(shape, dtype=dtype, device=device)


def _like(x: Operand, value: Any, dtype: object, device: DeviceSpec) -> Array:
    x = as_array(x)
    where_ = x._device if device is None else device
    return full(x.shape, value, dtype=x.dtype if dtype is None else dtype, device=where_)


def zeros_like(x: Operand, /, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """Zeros in the shape, dtype and device of `x`.

    >>> bu.zeros_like(bu.asarray([1, 2])).tolist()
    [0, 0]
    """
    return _like(x, 0, dtype, device)


def ones_like(x: Operand, /, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """Ones in the shape, dtype and device of `x`.

    >>> bu.ones_like(bu.asarray([1, 2])).tolist()
    [1, 1]
    """
    return _like(x, 1, dtype, device)


def empty_like(x: Operand, /, dtype: object = None, *, device: DeviceSpec = None) -> Array:
    """`empty` in the shape, dtype and device of `x`.

    >>> bu.empty_like(bu.asarray([1, 2])).shape
    (2,)
    """
    return _like(x, 0, dtype, device)


def full_like(
    x: Operand, /, fill_value: Any, dtype: object = None, *, device: DeviceSpec = None
) -> Array:
    """One value in the shape, dtype and device of `x`.

    >>> bu.full_like(bu.asarray([1, 2]), 9).tolist()
    [9, 9]
    """
    return _like(x, fill_value, dtype, device)


def iota(type_: TensorType, dim: int, device: OpenDevice | None = None) -> Array:
    """The index along one dimension."""
    return apply("iota", (), {"type": type_, "dim": dim}, device=device)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: object = None,
    *,
    device: DeviceSpec = None,
) -> Array:
    """``start, start + step, …`` below `stop`; i64 for ints, the default float dtype for floats.

    >>> bu.arange(2, 8, 3).tolist()
    [2, 5]
    """
    opened = check_device(device)
    first, last = (0, start) if stop is None else (start, stop)
    for label, value in (("start", first), ("stop", last), ("step", step)):
        number_of("arange", label, value)
    if step == 0:
        raise OpTypeError("arange: step 0", fix="give another step")
    integral = all(isinstance(v, int) for v in (first, last, step))
    length = -(-(last - first) // step) if integral else (last - first) / step
    if not integral and not math.isfinite(length):
        raise ConversionError(
            f"arange: {length} is no number of elements", fix="give finite bounds and a finite step"
        )
    count = max(math.ceil(length), 0)
    result_dtype = (
        dtype_of(dtype) if dtype is not None else DEFAULT_INT if integral else default_float()
    )
    # Integers count exactly; float ramps are computed in f64 and rounded once.
    counted = DEFAULT_INT if integral else f64
    ramp = iota(TensorType((count,), counted), 0, opened)
    if step != 1:
        ramp = ramp * step
    return convert(ramp + first if first != 0 else ramp, result_dtype)


def linspace(
    start: complex,
    /,
    stop: complex,
    num: int = 50,
    *,
    dtype: object = None,
    device: DeviceSpec = None,
    endpoint: bool = True,
) -> Array:
    """`num` evenly spaced values from `start` to `stop`, by default of the default float
    dtype, or complex dtype if one is complex.

    >>> bu.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    opened = check_device(device)
    bounds: tuple[Any, Any] = (start, stop)
    for end in bounds:
        if not isinstance(end, complex):
            number_of("linspace", "an end", end)
    ends: Any = complex if any(isinstance(end, complex) for end in bounds) else float
    result_dtype = scalar_dtype(ends.__name__) if dtype is None else dtype_of(dtype)
    (num,) = shape_of("linspace", integer_of("linspace", "num", num))
    intervals = num - 1 if endpoint else num
    ramp = iota(TensorType((num,), f64), 0, opened)
    values = ramp * ((stop - start) / intervals if intervals > 0 else 0.0) + start
    if endpoint and num > 1:
        values = where(ramp >= float(num - 1), ends(stop), values)
    return convert(values, result_dtype)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: object = None,
    *,
    device: DeviceSpec = None,
) -> Array:
    """Ones on diagonal `k`, zeros elsewhere, of the default float dtype.

    >>> bu.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    opened = check_device(device)
    sizes = [integer_of("eye", "a size", n) for n in (n_rows, n_rows if n_cols is None else n_cols)]
    shape, k = shape_of("eye", sizes), integer_of("eye", "k", k)
    on = binary("compare", *_rows_and_columns(shape, k, opened), {"direction": "eq"})
    return convert(on, default_float() if dtype is None else dtype_of(dtype))


def _rows_and_columns(
    shape: tuple[int, ...], k: int, device: OpenDevice | None
) -> tuple[Array, Array]:
    """Row index plus `k` and column index of every element of the last two dimensions."""
    type_, rank = TensorType(shape, DEFAULT_INT), len(shape)
    return add(iota(type_, rank - 2, device), k), iota(type_, rank - 1, device)


def tril(x: Operand, /, k: int = 0) -> Array:
    """The matrices with zeros above diagonal `k`.

    >>> bu.tril(bu.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    x = matrices_of("tril", x)
    row, column = _rows_and_columns(x.shape, k, x._device)
    return where(column <= row, x, _nothing(x))


def triu(x: Operand, /, k: int = 0) -> Array:
    """The matrices with zeros below diagonal `k`.

    >>> bu.triu(bu.ones((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    x = matrices_of("triu", x)
    row, column = _rows_and_columns(x.shape, k, x._device)
    return where(column >= row, x, _nothing(x))


def _nothing(x: Array) -> Any:
    return False if x.dtype is bool_ else 0


def meshgrid(*arrays: Operand, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of the grid over 1-d arrays.

    indexing: "xy" swaps the first two dimensions, "ij" does not.

    >>> [a.shape for a in bu.meshgrid(bu.arange(2), bu.arange(3))]
    [(3, 2), (3, 2)]
    """
    choice_of("meshgrid", "indexing", indexing, ("xy", "ij"))
    parts = [as_array(x) for x in arrays]
    for x in parts:
        if x.ndim != 1:
            raise OpTypeError(f"meshgrid: {x.type} is not 1-d", fix="reshape it to (-1,)")
    rank = len(parts)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = 1, 0
    sizes = [0] * rank
    for x, d in zip(parts, order, strict=True):
        sizes[d] = x.size
    shape = tuple(sizes)
    return [
        apply("broadcast_in_dim", (x,), {"shape": shape, "dims": (d,)})
        for x, d in zip(parts, order, strict=True)
    ]
