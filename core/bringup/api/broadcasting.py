"""Operands of different types made alike: the IR knows neither broadcasting nor promotion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.defaults import default_float
from bringup.api.promotion import common, dtype_of, is_weak, literal, no_array
from bringup.dtypes import FLOATS, DType
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.types import TensorType

#: The default dtypes of numpy.
_NUMPYS = ("float64", "complex128")
_PYTHON = (bool, int, float, complex, np.generic)


def binary(
    name: str,
    x1: Operand,
    x2: Operand,
    attrs: Mapping[str, Any] | None = None,
    *,
    dtype: DType | None = None,
) -> Array:
    """An elementwise op of two operands, broadcast, in `dtype` or that in which they meet."""
    if dtype is None and type(x1) is Array and type(x2) is Array and x1._type is x2._type:
        return apply(name, (x1, x2), attrs or {}, weak=is_weak(x1) and is_weak(x2))
    try:
        operands, weak = aligned(name, (x1, x2), dtype)
    except OpTypeError as error:
        error.op = name
        raise
    return apply(name, operands, attrs or {}, weak=weak)


def unary(name: str, x: Operand, attrs: Mapping[str, Any] | None = None) -> Array:
    """An elementwise op of one operand."""
    x = as_array(x)
    return apply(name, (x,), attrs or {}, weak=is_weak(x))


def float_unary(name: str, x: Operand) -> Array:
    """An elementwise op of one float operand; integers and bools become the default float first."""
    x = as_float(x)
    return apply(name, (x,), weak=is_weak(x))


def aligned(
    name: str, operands: Sequence[Operand], dtype: DType | None = None
) -> tuple[list[Array | Literal], bool]:
    """Operands of one type, constants where they were scalars, and whether all of them are weak.

    name: of the op they are for.
    dtype: theirs; by default the one they meet in.
    """
    try:
        common_dtype, weak = common(operands)
    except OpTypeError as error:
        error.what = f"{name}: {error.what}"
        raise
    type_ = TensorType(common_shape(name, operands), dtype or common_dtype)
    device = next((x._device for x in operands if isinstance(x, Array)), None)
    return [fit(x, type_, device) for x in operands], weak


def fit(x: Operand, type_: TensorType, device: Any = None) -> Array | Literal:
    """An operand converted and spread to a type; a constant if it is a scalar."""
    if isinstance(x, _PYTHON) and not isinstance(x, Array):
        return literal(x, type_)
    if isinstance(x, np.ndarray) and x.dtype.name in _NUMPYS:
        from bringup.api.creation import asarray

        # Convert directly: the default dtype could be narrower than both.
        x = asarray(x, dtype=type_.dtype, device=device)
    array = as_array(x, device)
    if array.dtype is not type_.dtype:
        array = convert(array, type_.dtype)
    return array if array.shape == type_.shape else spread(array, type_.shape)


def as_array(x: Any, device: Any = None) -> Array:
    """An array for what a function was given: itself, or one made of numpy or Python values."""
    if type(x) is Array:
        return x
    from bringup.api.creation import asarray

    if not isinstance(x, (Array, np.ndarray, *_PYTHON)):
        raise no_array(x)
    return asarray(x, device=device)


def as_float(x: Any) -> Array:
    """`as_array` in a float dtype, or in the complex one it has."""
    x = as_array(x)
    return x if x.dtype.is_inexact else convert(x, default_float(), weak=is_weak(x))


def floats_of(name: str, x: Any) -> Array:
    """`as_array` of what has real floats to compute with already, else OpTypeError."""
    array = as_array(x)
    if array.dtype not in FLOATS:
        raise OpTypeError(
            f"{name}: {array.type} has no floats to compute with", fix="convert it to float32 first"
        )
    return array


def matrices_of(name: str, x: Any) -> Array:
    """`as_array` of what has two dimensions at least, else OpTypeError."""
    array = as_array(x)
    if array.ndim < 2:
        raise OpTypeError(
            f"{name}: {array.type} has fewer than two dimensions", fix="reshape it to a matrix"
        )
    return array


def convert(x: Array, dtype: DType, *, weak: bool = False) -> Array:
    """`x` in a dtype; itself if it has it."""
    if x.dtype is dtype:
        return x
    if dtype.is_complex and not x.dtype.is_complex:
        from bringup.api.complex import from_real

        return from_real(x, dtype)
    return apply("convert", (x,), {"dtype": dtype}, weak=weak)


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` broadcast to a shape.  Raises OpTypeError if it does not spread to it."""
    if x.shape == shape:
        return x
    skipped = len(shape) - x.ndim
    if skipped < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[skipped:], strict=True)):
        raise OpTypeError(f"{x.type} does not broadcast to shape {shape}", fix=_fix(x.shape, shape))
    dims = tuple(range(skipped, len(shape)))
    return apply("broadcast_in_dim", (x,), {"shape": shape, "dims": dims})


def common_shape(name: str, operands: Sequence[Any]) -> tuple[int, ...]:
    """The shape to which the arrays among operands broadcast.

    name: of the op they are for.
    Raises OpTypeError, naming their types, if there is none.
    """
    arrays = [x for x in operands if isinstance(x, Array | np.ndarray)]
    shape = broadcast_shapes(*(x.shape for x in arrays))
    if shape is None:
        types = " and ".join(str(TensorType(x.shape, dtype_of(x.dtype))) for x in arrays)
        raise OpTypeError(
            f"{name}: shapes do not broadcast: {types}",
            fix=_fix(arrays[0].shape, arrays[1].shape) if len(arrays) == 2 else _RULE,
        )
    return shape


_RULE = "make sizes equal or 1, counted from the last dimension; expand_dims adds a size of 1"


def _fix(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """How to make two shapes broadcast: the shorter aligned at its first dimensions, if that does.

    So users mean it who give one value for each row of a matrix.
    """
    shorter, longer = sorted((a, b), key=len)
    stretched = shorter + (1,) * (len(longer) - len(shorter))
    if stretched == shorter or broadcast_shapes(stretched, longer) is None:
        return _RULE
    return f"reshape the array of shape {shorter} to {stretched}"


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape arrays of these shapes broadcast to, or None.

    >>> broadcast_shapes((3, 1), (4,)), broadcast_shapes((3,), (4,))
    ((3, 4), None)
    """
    result: tuple[int, ...] = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        if shape == result:
            continue
        rank = max(len(shape), len(result))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            return None
        result = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return result
