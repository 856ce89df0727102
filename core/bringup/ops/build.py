"""Helpers for code that emits: gradients, decompositions, composites, the array layer.

`rows` names every op of the table without importing the module that defines it, so that rows may
refer to each other in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bringup.dtypes import DType, bf16, bool_, f16, f32, i8, i16, i32, i64, u8, u16, u32, u64
from bringup.graph import Literal, Value
from bringup.ops.table import find
from bringup.types import TensorType


class _Rows:
    """The table as attributes: ``rows.add(x, y)``, ``rows.and_(x, y)``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Callable[..., Value]:
        row = find(name.rstrip("_"))
        if row is None:  # inspection asks for names such as __wrapped__
            raise AttributeError(f"no op is called {name!r}")
        return row


rows = _Rows()

_UNSIGNED = {8: u8, 16: u16, 32: u32, 64: u64}
_SIGNED = {8: i8, 16: i16, 32: i32, 64: i64}


def unsigned(dtype: DType) -> DType:
    """The unsigned integer of the same width."""
    return _UNSIGNED[dtype.bits]


def signed(dtype: DType) -> DType:
    """The signed integer of the same width."""
    return _SIGNED[dtype.bits]


def splat(value: object, type_: TensorType) -> Value:
    """A constant whose elements are all `value`, rounded to the dtype.

    value: a Python or numpy scalar.
    """
    return rows.constant(value=Literal.splat(value, type_))


def like(x: Value, value: object) -> Value:
    """A splat of the type of `x`."""
    return splat(value, x.type)


def zeros_like(x: Value) -> Value:
    """Zeros (false) of the type of `x`."""
    return splat(0, x.type)


def ones_like(x: Value) -> Value:
    """Ones (true) of the type of `x`."""
    return splat(1, x.type)


def constant(array: object, dtype: DType) -> Value:
    """A dense constant."""
    return rows.constant(value=Literal.of(array, dtype))


def convert(x: Value, dtype: DType) -> Value:
    """`x` in a dtype; `x` itself if it has it."""
    return x if x.dtype is dtype else rows.convert(x, dtype=dtype)


def bitcast(x: Value, dtype: DType) -> Value:
    """The bits of `x` as another dtype of the same width; `x` itself if it has it."""
    return x if x.dtype is dtype else rows.bitcast(x, dtype=dtype)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """`x` in a shape of the same size; `x` itself if it has it."""
    return x if x.shape == tuple(shape) else rows.reshape(x, shape=tuple(shape))


def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """`x` with result dimension i being its dimension ``permutation[i]``."""
    order = tuple(permutation)
    return x if order == tuple(range(len(order))) else rows.transpose(x, permutation=order)


def broadcast_to(x: Value, shape: Sequence[int], dims: Sequence[int] | None = None) -> Value:
    """`x` spread over `shape`.

    dims: the result dimension of each dimension of `x`; by default the last ones, as in numpy.
    """
    shape = tuple(shape)
    if dims is None:
        dims = range(len(shape) - len(x.shape), len(shape))
    if x.shape == shape:
        return x
    return rows.broadcast_in_dim(x, shape=shape, dims=tuple(dims))


def kept(x: Value, reduced: Sequence[int], shape: Sequence[int]) -> Value:
    """`x`, the result of reducing `reduced` of `shape`, spread over `shape` again."""
    return broadcast_to(x, shape, [d for d in range(len(shape)) if d not in reduced])


def keepdims(x: Value, reduced: Sequence[int], rank: int) -> Value:
    """`x`, the result of reducing `reduced` of `rank` dimensions, with those as size 1."""
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if d in reduced else next(sizes) for d in range(rank)))


def reduce(kind: str, x: Value, dims: Sequence[int]) -> Value:
    """Reduce `dims`; `x` itself if there are none."""
    return rows.reduce(x, kind=kind, dims=tuple(dims)) if dims else x


def sum_(x: Value, dims: Sequence[int]) -> Value:
    """The sum over `dims`."""
    return reduce("add", x, dims)


def pad(
    x: Value,
    value: object,
    lo: Sequence[int],
    hi: Sequence[int],
    interior: Sequence[int] | None = None,
) -> Value:
    """`x` padded; value: a 0-d value or a scalar.  `x` itself if nothing is added or removed."""
    interior = tuple(interior) if interior is not None else (0,) * len(x.shape)
    if not any((*lo, *hi, *interior)):
        return x
    edge = value if isinstance(value, Value) else splat(value, x.type.with_shape(()))
    return rows.pad(x, edge, lo=tuple(lo), hi=tuple(hi), interior=interior)


def slice_dim(x: Value, dim: int, start: int, limit: int) -> Value:
    """Elements start … limit − 1 of one dimension."""
    starts, limits = [0] * len(x.shape), list(x.shape)
    starts[dim], limits[dim] = start, limit
    if limits == list(x.shape) and not any(starts):
        return x
    strides = (1,) * len(starts)
    return rows.slice(x, start=tuple(starts), limit=tuple(limits), stride=strides)


def reverse(x: Value, dims: Sequence[int]) -> Value:
    """`x` with the order of elements reversed along `dims`."""
    if not dims:
        return x
    turned = [(n - 1, -1, -1) if d in dims else (0, n, 1) for d, n in enumerate(x.shape)]
    start, limit, stride = zip(*turned, strict=True)
    return rows.slice(x, start=start, limit=limit, stride=stride)


def compare(direction: str, x: Value, y: Value) -> Value:
    """A comparison: eq ne lt le gt ge."""
    return rows.compare(x, y, direction=direction)


def not_(x: Value) -> Value:
    """Every bit inverted; on booleans the negation."""
    return rows.xor(x, like(x, all_ones(x.dtype)))


def all_ones(dtype: DType) -> int | bool:
    """The value of an integer or bool dtype with every bit set."""
    if dtype is bool_:
        return True
    return (1 << dtype.bits) - 1 if dtype.kind == "uint" else -1


def is_nan(x: Value) -> Value:
    """Where `x` is NaN."""
    return compare("ne", x, x)


def copy_sign(magnitude: Value, sign: Value) -> Value:
    """`magnitude`, whose sign bit is clear, with the sign bit of `sign`."""
    bits, signs = (bitcast(v, unsigned(magnitude.dtype)) for v in (magnitude, sign))
    top = rows.and_(signs, like(signs, 1 << (magnitude.dtype.bits - 1)))
    return bitcast(rows.or_(bits, top), magnitude.dtype)


def size_of(x: Value, dims: Sequence[int]) -> int:
    """The number of elements folded by reducing `dims`."""
    return math.prod(x.shape[d] for d in dims)


def widened(x: Value) -> Value:
    """f16 and bf16 as f32, the dtype in which composites work on them; others as they are."""
    return convert(x, f32) if x.dtype in (f16, bf16) else x


def in_f32(function: Callable[..., Value]) -> Callable[..., Value]:
    """Make a decomposition work on f16 and bf16 in f32 and round its result once."""

    def decompose(*operands: Value, **attrs: Any) -> Value:
        result = function(*map(widened, operands), **attrs)
        return convert(result, operands[0].dtype)

    return decompose


def no_gradient(_cotangent: Value, _result: Value, *operands: Value, **_: Any) -> tuple[None, ...]:
    """The vjp of a function that is constant almost everywhere."""
    return (None,) * len(operands)
