"""What the rows on matrices share.  Operands are stacks of matrices, in the last two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, DType, bool_, f16, f32, i32
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Value
from bringup.ops import build
from bringup.ops._checks import listed, one_of
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops.build import rows
from bringup.ops.table import Types
from bringup.types import TensorType

#: The number of an iteration: known while emitting, or an i32 scalar of the loop.
Index = int | Value
State = tuple[Value, ...]
Body = Callable[..., State]

#: Loops of no more iterations are written out, so that their bodies fuse.
UNROLLED = 8
#: The name of a comparison, the error, and its bound: inf where nothing is claimed.
Judged = tuple[str, Array, Array]


def matrix_of(name: str, operand: TensorType) -> TensorType:
    """Check that an operand is a stack of float matrices."""
    one_of(name, operand, FLOATS)
    if operand.rank < 2:
        raise OpTypeError(
            f"{name}: takes matrices in the last two dimensions, got {operand}",
            fix="reshape it to two dimensions or more",
        )
    return operand


def square_of(name: str, operand: TensorType) -> TensorType:
    """Check that an operand is a stack of square float matrices."""
    matrix_of(name, operand)
    if operand.shape[-1] != operand.shape[-2]:
        raise OpTypeError(
            f"{name}: takes square matrices, got {operand}",
            fix="make the last two dimensions equal",
        )
    return operand


def same_stack(name: str, operands: Types) -> None:
    """Check that operands have one dtype and equal leading dimensions."""
    first = operands[0]
    for position, operand in enumerate(operands[1:], 1):
        if operand.dtype is not first.dtype:
            raise OpTypeError(
                f"{name}: operand dtypes differ: {listed(operands)}",
                fix=f"convert operand {position} to {first.dtype}",
            )
        if operand.shape[:-2] != first.shape[:-2]:
            raise OpTypeError(
                f"{name}: leading dimensions differ: {listed(operands)}",
                fix=f"broadcast operand {position} to leading dimensions {first.shape[:-2]}",
            )


# -- references ------------------------------------------------------------------------------------


def stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a reference work in a wider float, on arrays of its own, and round its results once."""

    @wraps(function)
    def reference(*arrays: Array, **attrs: Any) -> Any:
        dtype = np.asarray(arrays[0]).dtype
        wide = wider(dtype)
        with np.errstate(all="ignore"):
            results = function(*(np.array(a).astype(wide) for a in arrays), **attrs)
        if isinstance(results, tuple):
            return tuple(_rounded(np.asarray(x), dtype) for x in results)
        return _rounded(np.asarray(results), dtype)

    return reference


def _rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    return round_to(array, dtype) if is_float(array.dtype) else array


def t(x: Array) -> Array:
    """The matrices of an array transposed."""
    return np.swapaxes(x, -1, -2)


def units(dtype: DType) -> tuple[float, float, float]:
    """Unit roundoffs of the dtype a row works in and of rounding its results; the least number.

    The second is 0 where results are not rounded again.
    """
    work = f32 if dtype.bits == 16 else dtype
    info = np.finfo(np.float16) if dtype is f16 else None
    result_unit = 2.0 ** -{"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[dtype.name]
    tiny = float(info.smallest_subnormal) if info else float(np.finfo(work.numpy).tiny)
    return (result_unit if work is dtype else 2.0**-24, 0.0 if work is dtype else result_unit, tiny)


def judged(name: str, error: Array, allowed: Array, *references: Array) -> Judged:
    """A comparison of stacks of matrices; no bound where the references are not finite."""
    good = np.ones(error.shape[:-2], np.bool_)
    for reference in references:
        tail = tuple(range(len(good.shape), reference.ndim))
        good &= np.isfinite(reference).all(axis=tail)
    return name, error, np.where(good[..., None, None], allowed, np.inf)


def product(x: Array, y: Array) -> Array:
    """Matrix products whose rounding is far below the errors that are compared."""
    return np.asarray(np.matmul(x, y))


# -- decompositions and gradients ------------------------------------------------------------------


def t_(x: Value) -> Value:
    """The matrices of a value transposed."""
    rank = len(x.shape)
    return build.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def matmul(x: Value, y: Value) -> Value:
    """The products of two stacks of matrices, as one of no more than three dimensions."""
    shape = (*x.shape[:-1], y.shape[-1])
    if len(shape) > 3:
        size = math.prod(shape[:-2])
        x, y = (build.reshape(v, (size, *v.shape[-2:])) for v in (x, y))
    n = len(x.shape) - 2
    stack = tuple(range(n))
    result = rows.dot_general(x, y, batch=(stack, stack), contract=((n + 1,), (n,)))
    return build.reshape(result, shape)


def along(v: Value, shape: Sequence[int], dim: int) -> Value:
    """A vector of each matrix spread over the matrices, its elements along ``dim``, −2 or −1."""
    rank = len(shape)
    return build.broadcast_to(v, shape, (*range(rank - 2), rank + dim))


def mask(shape: Sequence[int], dim: int, direction: str, j: Index) -> Value:
    """A mask: whether the index along ``dim``, counted from the end, compares so with `j`."""
    positions = TensorType(tuple(shape), i32)
    position = rows.iota(type=positions, dim=len(positions.shape) + dim)
    index = build.splat(j, positions) if isinstance(j, int) else build.broadcast_to(j, shape, ())
    return build.compare(direction, position, index)


def column(x: Value, j: Index) -> Value:
    """Element `j` of the last dimension, which disappears."""
    return _element(x, len(x.shape) - 1, j)


def row_of(x: Value, j: Index) -> Value:
    """Row `j` of each matrix."""
    return _element(x, len(x.shape) - 2, j)


def _element(x: Value, dim: int, j: Index) -> Value:
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    if isinstance(j, int):
        return build.reshape(build.slice_dim(x, dim, j, j + 1), shape)
    zero = build.zeros_like(j)
    starts = [j if d == dim else zero for d in range(len(x.shape))]
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    return build.reshape(rows.dynamic_slice(x, *starts, sizes=sizes), shape)


def replaced(x: Value, dim: int, j: Index, v: Value) -> Value:
    """`x` with element `j` of a dimension, −2 or −1, replaced by `v`."""
    rank = len(x.shape) + dim
    spread = build.broadcast_to(v, x.shape, [d for d in range(len(x.shape)) if d != rank])
    return rows.select(mask(x.shape, dim, "eq", j), spread, x)


def eye(shape: Sequence[int], dtype: DType) -> Value:
    """Stacks of matrices with ones on their diagonals."""
    return build.convert(diagonal(shape, "eq"), dtype)


def diagonal(shape: Sequence[int], direction: str) -> Value:
    """A mask: whether the row index compares so with the column index."""
    positions = TensorType(tuple(shape), i32)
    rank = len(positions.shape)
    row, col = (rows.iota(type=positions, dim=rank - d) for d in (2, 1))
    return build.compare(direction, row, col)


def triangle(x: Value, *, lower: bool, strict: bool = False) -> Value:
    """One triangle, zeros elsewhere."""
    direction = ("gt" if strict else "ge") if lower else ("lt" if strict else "le")
    return rows.select(diagonal(x.shape, direction), x, build.zeros_like(x))


def backward(count: int, i: Index) -> Index:
    """The i-th number from the end of 0 … count − 1."""
    return count - 1 - i if isinstance(i, int) else rows.sub(build.like(i, count - 1), i)


def lower_part(x: Value) -> Value:
    """The lower triangles, zeros above."""
    return triangle(x, lower=True)


def halved_diagonal(x: Value) -> Value:
    """`x` with half its diagonals."""
    return rows.select(diagonal(x.shape, "eq"), rows.mul(x, build.like(x, 0.5)), x)


def reads_lower(symmetric: Value) -> Value:
    """The cotangent of a symmetric matrix of which only the lower triangle is read.

    symmetric: the cotangent of the matrix if both triangles were read, need not be symmetric.
    """
    both = rows.add(symmetric, t_(symmetric))
    return lower_part(halved_diagonal(both))


def any_of(x: Value, dims: int) -> Value:
    """Whether any of the last `dims` dimensions is true."""
    rank = len(x.shape)
    assert x.dtype is bool_
    return build.reduce("or", x, tuple(range(rank - dims, rank)))


def in_work(
    function: Callable[..., tuple[Value, ...] | Value],
) -> Callable[..., tuple[Value, ...] | Value]:
    """Make a decomposition work on f16 and bf16 in f32 and round each float result once."""

    @wraps(function)
    def decompose(*operands: Value, **attrs: Any) -> tuple[Value, ...] | Value:
        results = function(*map(build.widened, operands), **attrs)
        dtype = operands[0].dtype
        if isinstance(results, Value):
            return build.convert(results, dtype)
        return tuple(build.convert(r, dtype) if r.dtype.is_float else r for r in results)

    return decompose


def gradient_in_work(function: Callable[..., Any]) -> Callable[..., tuple[Value | None, ...]]:
    """Make a vjp work on f16 and bf16 in f32 and round every cotangent once."""

    @wraps(function)
    def vjp(ct: Any, result: Any, *operands: Value, **attrs: Any) -> tuple[Value | None, ...]:
        def wide(v: Any) -> Any:
            return tuple(map(build.widened, v)) if isinstance(v, tuple) else build.widened(v)

        cotangents = function(wide(ct), wide(result), *map(build.widened, operands), **attrs)
        pairs = zip(cotangents, operands, strict=True)
        return tuple(None if c is None else build.convert(c, v.dtype) for c, v in pairs)

    return vjp


# -- counted loops: written out while they are short, else one `while` -----------------------------


def repeat(count: int, body: Body, state: State) -> State:
    """``state = body(i, *state)`` for i = 0 … count − 1; the body reads nothing but its arguments.

    The size of what is emitted does not depend on the count.
    """
    if count <= UNROLLED:
        for i in range(count):
            state = body(i, *state)
        return state
    counter = build.splat(0, i32[()])
    results: Any = rows.while_(counter, *state, cond=_below(count, state), body=_body(body, state))
    return tuple(results[1:])


def _below(count: int, state: State) -> Graph:
    with Builder() as builder:
        counter = builder.input(i32[()])
        for value in state:
            builder.input(value.type)
        return builder.build([build.compare("lt", counter, build.like(counter, count))], "cond")


def _body(body: Body, state: State) -> Graph:
    with Builder() as builder:
        counter = builder.input(i32[()])
        inside = [builder.input(value.type) for value in state]
        after = body(counter, *inside)
        return builder.build([rows.add(counter, build.like(counter, 1)), *after], "body")
