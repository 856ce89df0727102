"""Which dtype operands of several dtypes meet in.

Within a kind the tables of the array API standard hold.  What it leaves open is decided so: bool
yields to every other dtype; an integer array yields to the dtype of a float array; f16 and bf16
meet in f32; u64 and a signed integer meet nowhere and raise; a complex array meets f64 in
complex128 and every other dtype in its own.  A Python scalar takes the dtype of the array it meets,
unless its kind is higher: an int meets a bool array in the default integer, a float meets bool and
integer arrays in the default float, and a complex number makes float arrays complex.

The default integer is i64; the default float is f64 unless `bringup.api.defaults` has another, and
the default complex dtype has parts of it.  Scalars of numpy are not weak: they have the dtype they
say, as arrays of numpy have.  But f64 and complex128 are numpy's own defaults, which nobody had to
choose: without ``dtype=`` they become ours (`host_dtype`), so that ``np.log(2 * np.pi) * x`` stays
f32 where f32 is the default.  So it is in JAX with its 64-bit mode off, for scalars and arrays;
with the default f64, numbers of numpy are f64 as in JAX with that mode on, and as the standard has
it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.defaults import default_complex, default_float
from bringup.bounded import BoundedDict
from bringup.dtypes import (
    COMPLEX_OF,
    DType,
    as_dtype,
    bool_,
    c64,
    c128,
    f32,
    f64,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Literal
from bringup.tracing.context import Traced
from bringup.types import TensorType

DEFAULT_INT = i64
DEFAULT_UINT = u64

_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
_ABOVE_UNSIGNED = {u8: i16, u16: i32, u32: i64}


class ComplexLiteral(Literal):
    """A complex constant.  No op takes it: `bringup.api.complex_rules` takes it apart."""

    __slots__ = ()


def promote(a: DType, b: DType) -> DType:
    """The dtype in which two meet.  Raises OpTypeError for u64 and a signed integer.

    >>> from bringup.dtypes import bf16, bool_, f16, i8, i64, u8
    >>> promote(u8, i8), promote(f16, bf16), promote(i64, f16), promote(bool_, u8)
    (i16, f32, f16, u8)
    """
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        if f64 in (a, b) and c64 in (a, b):
            return c128
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.kind == b.kind:
        if a.bits == b.bits:
            return f32  # f16 and bf16
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned is u64:
        raise OpTypeError(
            f"no integer dtype holds both {a} and {b}",
            fix="convert one of them first, with astype(x, …)",
        )
    return _ABOVE_UNSIGNED[unsigned]


def kind_of(scalar: bool | int | float | complex) -> str:
    """``bool``, ``int``, ``float`` or ``complex``: the kind of a Python scalar."""
    if isinstance(scalar, bool):
        return "bool"
    if isinstance(scalar, complex):
        return "complex"
    if not isinstance(scalar, int | float):
        raise ConversionError(
            f"a {type(scalar).__name__} is no number", fix="give a number, or an array"
        )
    return "int" if isinstance(scalar, int) else "float"


def no_array(x: object) -> OpTypeError:
    """The error for what is neither an array nor a number."""
    return OpTypeError(
        f"an array is needed, not {type(x).__name__}", fix="make one with asarray(…)"
    )


def with_weak(dtype: DType, kind: str) -> DType:
    """The dtype in which an array and a Python scalar of a kind meet."""
    if _RANK[dtype.kind] >= _RANK[kind]:
        return dtype
    if kind == "complex" and dtype.is_float:
        return COMPLEX_OF.get(dtype, c64)
    return scalar_dtype(kind)


def scalar_dtype(kind: str) -> DType:
    """The dtype of Python scalars of a kind where nothing else decides."""
    if kind == "float":
        return default_float()
    if kind == "complex":
        return default_complex()
    return bool_ if kind == "bool" else DEFAULT_INT


def host_dtype(numpy_dtype: np.dtype[Any]) -> DType:
    """The dtype of an array or a scalar of numpy that comes without ``dtype=``.

    Raises OpTypeError for a dtype of numpy's that has no equivalent.
    """
    result_dtype = dtype_of(numpy_dtype)
    if result_dtype is f64:
        return default_float()
    return default_complex() if result_dtype is c128 else result_dtype


def is_weak(x: Array) -> bool:
    """Whether an array stands for Python scalars alone."""
    node = x._node
    return type(node) is Traced and node.weak


def common(operands: Sequence[Any]) -> tuple[DType, bool]:
    """The dtype in which operands meet, and whether all of them are weak."""
    strong: DType | None = None
    kinds: list[str] = []
    for x in operands:
        if isinstance(x, Array):
            if is_weak(x):
                kinds.append(x.dtype.kind)
                continue
            dtype = x._type.dtype
        elif isinstance(x, np.ndarray | np.generic):
            dtype = host_dtype(x.dtype)
        elif isinstance(x, int | float | complex):
            kinds.append(kind_of(x))
            continue
        else:
            raise no_array(x)
        strong = dtype if strong is None else promote(strong, dtype)
    if strong is None:
        return scalar_dtype(max(kinds, key=_RANK.__getitem__)), True
    for kind in kinds:
        strong = with_weak(strong, kind)
    return strong, False


def dtype_of(spec: Any) -> DType:
    """`as_dtype`, where Python's ``float`` and ``complex`` mean the defaults, as in
    `scalar_dtype`.
    """
    if spec is float or spec is complex:
        return scalar_dtype(spec.__name__)
    return as_dtype(spec)


def dtype_among(name: str, argument: str, dtype_like: object, allowed: Sequence[DType]) -> DType:
    """`dtype_of` if it is one of those allowed, else OpTypeError.  argument: its name."""
    dtype = dtype_of(dtype_like)
    if dtype not in allowed:
        raise OpTypeError(
            f"{name}: {argument}={dtype} is not possible",
            fix=f"use {', '.join(d.long_name for d in allowed)}",
        )
    return dtype


_literals: BoundedDict[Any, Literal] = BoundedDict(4096)


def literal(value: Any, type_: TensorType) -> Literal:
    """A scalar spread over a type.

    Raises ConversionError if the dtype cannot hold it: an integer out of range, a float where
    integers are.
    """
    if not isinstance(value, bool | int | float | complex | np.generic):
        kind_of(value)
    # Compare bits, since == does not tell 0.0 from -0.0 and never finds NaN.
    key = (type(value), _bits(value), type_)
    result = _literals.get(key)
    if result is None:
        result = exact_literal(value, type_)
        _literals.add(key, result)
    return result


def _bits(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, complex):
        return struct.pack("2d", value.real, value.imag)
    return struct.pack("d", value) if isinstance(value, float) else value


def check_range(value: int, dtype: DType) -> None:
    """Raises ConversionError if the integer dtype does not hold the value."""
    limits = np.iinfo(dtype.numpy)
    if not limits.min <= value <= limits.max:
        raise ConversionError(
            f"{_text(value)} is out of range for {dtype}, which holds {limits.min} … {limits.max}",
            fix="use a wider dtype, or a value in range",
        )


def exact_literal(value: Any, type_: TensorType) -> Literal:
    """`literal` without the memory: for values that change from call to call."""
    dtype = type_.dtype
    if isinstance(value, np.generic):
        dtype_of(value.dtype)  # texts and times are no numbers
    if dtype.is_complex:
        return ComplexLiteral.splat(value, type_)
    if isinstance(value, complex):
        raise ConversionError(
            f"{value!r} is complex and does not become {dtype}",
            fix="use its real or its imaginary part",
        )
    if isinstance(value, np.generic):
        with np.errstate(all="ignore"):
            return Literal(value.astype(dtype.numpy), type_)
    if isinstance(value, int) and dtype.is_integer and not isinstance(value, bool):
        check_range(value, dtype)
    if isinstance(value, float) and not dtype.is_float:
        raise ConversionError(
            f"{value!r} is a float and does not become {dtype}",
            fix="convert the array to a float dtype first, or pass an int",
        )
    try:
        return Literal.splat(value, type_)
    except (OverflowError, TypeError):  # the second by ml_dtypes
        raise ConversionError(
            f"{_text(value)} is too large for {dtype}", fix="use a smaller value, or the float inf"
        ) from None


def _text(value: int) -> str:
    # Python refuses to print ints of more than some thousand digits.
    bits = int(value).bit_length()
    return str(value) if bits < 256 else f"an integer of {bits} bits"
