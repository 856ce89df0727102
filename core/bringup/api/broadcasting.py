"""Operands of different types made alike: the IR knows neither broadcasting nor promotion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.promotion import DEFAULT_FLOAT, Operand, common, is_weak, literal
from bringup.dtypes import DType
from bringup.errors import OpTypeError
from bringup.graph import Literal, user_location
from bringup.types import TensorType

_PYTHON = (bool, int, float, np.generic)


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
    operands, weak = aligned((x1, x2), dtype)
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
    operands: Sequence[Operand], dtype: DType | None = None
) -> tuple[list[Array | Literal], bool]:
    """Operands of one type, constants where they were scalars, and whether all of them are weak.

    dtype: theirs; by default the one they meet in.
    """
    found, weak = common(operands)
    shape = broadcast_shapes(*(x.shape for x in operands if isinstance(x, Array | np.ndarray)))
    type_ = TensorType(shape, dtype or found)
    device = next((x._device for x in operands if isinstance(x, Array)), None)
    return [fit(x, type_, device) for x in operands], weak


def fit(x: Operand, type_: TensorType, device: Any = None) -> Array | Literal:
    """An operand converted and spread to a type; a constant if it is a scalar."""
    if isinstance(x, _PYTHON) and not isinstance(x, Array):
        return literal(x, type_)
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
        raise OpTypeError(
            f"an array is needed, not {type(x).__name__}",
            location=user_location(),
            fix="make one with asarray(…)",
        )
    return asarray(x, device=device)


def as_float(x: Any) -> Array:
    """`as_array` in a float dtype."""
    x = as_array(x)
    return x if x.dtype.is_float else convert(x, DEFAULT_FLOAT, weak=is_weak(x))


def convert(x: Array, dtype: DType, *, weak: bool = False) -> Array:
    """`x` in a dtype; itself if it has it."""
    return x if x.dtype is dtype else apply("convert", (x,), {"dtype": dtype}, weak=weak)


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` broadcast to a shape.  Raises OpTypeError if it does not spread to it."""
    if x.shape == shape:
        return x
    skipped = len(shape) - x.ndim
    if skipped < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[skipped:], strict=True)):
        raise _mismatch((x.shape, shape))
    dims = tuple(range(skipped, len(shape)))
    return apply("broadcast_in_dim", (x,), {"shape": shape, "dims": dims})


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape arrays of these shapes broadcast to.  Raises OpTypeError if there is none.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    result: tuple[int, ...] = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        if shape == result:
            continue
        rank = max(len(shape), len(result))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            raise _mismatch(shapes)
        result = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return result


def _mismatch(shapes: Sequence[tuple[int, ...]]) -> OpTypeError:
    return OpTypeError(
        f"shapes do not broadcast: {' and '.join(map(str, shapes))}",
        location=user_location(),
        fix="sizes must be equal or 1, counted from the last dimension; use expand_dims first",
    )
