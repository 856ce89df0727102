"""Functions of dtypes: `astype`, `result_type`, `can_cast`, `isdtype`, `finfo`, `iinfo`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, convert
from bringup.api.creation import check_device, to_device
from bringup.api.promotion import common, dtype_of, host_dtype, promote, with_weak
from bringup.dtypes import PART_OF, DType
from bringup.errors import OpTypeError
from bringup.records import record
from bringup.runtime.devices import DeviceSpec

_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


def astype(x: Operand, dtype: object, /, *, copy: bool = True, device: DeviceSpec = None) -> Array:
    """`x` in another dtype: floats to integers truncate and saturate, NaN becomes 0, integers wrap.

    copy: arrays are immutable, so the default shares the array where nothing changes.

    >>> bu.astype(bu.asarray([1.9, -300.0]), bu.int8).tolist()
    [1, -128]
    """
    x = as_array(x)
    if device is not None:
        check_device(device)
        x = x if x.is_traced else to_device(x, device)
    return convert(x, dtype_of(dtype))


def result_type(*operands: Any) -> DType:
    """The dtype in which arrays, dtypes and Python scalars meet.

    Within a kind the tables of the standard hold.  Bools yield to every other dtype, integer arrays
    to the dtype of a float array; f16 and bf16 meet in f32.  A Python scalar takes the dtype of
    what it meets unless its kind is higher: then it has the default dtype of that; see
    `set_default_dtype`.
    Raises OpTypeError for u64 with a signed integer.

    >>> bu.result_type(bu.int8, bu.uint8), bu.result_type(bu.int32, bu.float16)
    (i16, f16)
    >>> bu.result_type(bu.float32, 1.5), bu.result_type(bu.int32, 1.5)
    (f32, f64)
    """
    if not operands:
        raise OpTypeError("result_type: no operands", fix="give one or more")
    strong: DType | None = None
    weak: list[Any] = []
    for x in operands:
        if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
            weak.append(x)
            continue
        if isinstance(x, Array):
            dtype = x.dtype
        else:
            dtype = host_dtype(x.dtype) if isinstance(x, np.ndarray | np.generic) else dtype_of(x)
        strong = dtype if strong is None else promote(strong, dtype)
    if strong is None:
        return common(weak)[0]
    for x in weak:
        strong = with_weak(strong, common([x])[0].kind)
    return strong


def can_cast(from_: Any, to: object, /) -> bool:
    """Whether promotion may turn one dtype, or that of an array, into another.

    >>> bu.can_cast(bu.int8, bu.int16), bu.can_cast(bu.float64, bu.float32)
    (True, False)
    """
    source = from_.dtype if isinstance(from_, Array) else dtype_of(from_)
    target = dtype_of(to)
    try:
        return promote(source, target) is target
    except OpTypeError:
        return False


def isdtype(dtype: object, kind: Any) -> bool:
    """Whether a dtype is of a kind such as "integral", is another dtype, or fits one of a tuple.

    >>> bu.isdtype(bu.float32, "real floating"), bu.isdtype(bu.int8, (bu.int16, "bool"))
    (True, False)
    """
    result_dtype = dtype_of(dtype)
    for candidate in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(candidate, str) and candidate in _KINDS:
            if result_dtype.kind in _KINDS[candidate]:
                return True
        elif isinstance(candidate, str):
            raise OpTypeError(
                f"isdtype: no kind is called {candidate!r}", fix=f"use one of {', '.join(_KINDS)}"
            )
        elif dtype_of(candidate) is result_dtype:
            return True
    return False


@record
class FInfo:
    """Limits of a float dtype, as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@record
class IInfo:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FInfo:
    """Limits of a float dtype, of the parts of a complex one, or of that of an array.

    Raises OpTypeError for others.

    >>> bu.finfo(bu.float32).eps == 2**-23
    True
    """
    dtype = type.dtype if isinstance(type, Array) else dtype_of(type)
    if dtype.is_complex:
        dtype = PART_OF[dtype]
    if not dtype.is_float:
        raise OpTypeError(f"finfo: {dtype} is no float", fix="use iinfo")
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return FInfo(
        dtype.bits,
        float(info.eps),
        float(info.max),
        float(info.min),
        float(info.smallest_normal),
        dtype,
    )


def iinfo(type: Any, /) -> IInfo:
    """Limits of an integer dtype, or of that of an array.  Raises OpTypeError for others.

    >>> bu.iinfo(bu.int8).max
    127
    """
    dtype = type.dtype if isinstance(type, Array) else dtype_of(type)
    if not dtype.is_integer:
        raise OpTypeError(f"iinfo: {dtype} is no integer", fix="use finfo")
    info = np.iinfo(dtype.numpy)
    return IInfo(dtype.bits, int(info.max), int(info.min), dtype)
