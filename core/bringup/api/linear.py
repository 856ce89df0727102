"""Products of matrices and vectors, all of them one `dot_general`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, get_args

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.axes import axis_of, choice_of, integer_of, items_of
from bringup.api.broadcasting import as_array, broadcast_shapes, common_shape, convert, spread
from bringup.api.manipulation import permute_dims, reshape
from bringup.api.promotion import common, dtype_of
from bringup.dtypes import Precision
from bringup.errors import OpTypeError


def matmul(
    x1: Operand, x2: Operand, /, *, dtype: object = None, precision: Precision = "highest"
) -> Array:
    """``x1 @ x2``: products of matrices, rows or columns, over broadcast leading dimensions.

    dtype: of the result, and of the sums if it is wider than theirs: by default the operands', f32
    for floats of 8 bits.  Floats accumulate in f32 at least, integers wrap in the result's dtype.
    precision: "tf32" lets a device round elements of f32 to mantissas of 10 bits before it
    multiplies them: an error of at most 0.001 of each product, and much quicker where there is
    hardware for it; elsewhere it changes nothing.  Gradients are computed likewise.

    >>> q = bu.asarray([[100, 100]], dtype=bu.int8)
    >>> bu.matmul(q, q.mT, dtype=bu.int32).tolist()
    [[20000]]

    >>> x = bu.asarray([[1.0, 2.0]], dtype=bu.float32)
    >>> bu.matmul(x, x.mT, precision="tf32").tolist()
    [[5.0]]

    >>> (bu.asarray([[1, 2], [3, 4]]) @ bu.asarray([1, 1])).tolist()
    [3, 7]
    """
    a, b = _pair("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise _wrong("matmul", a, b, "a 0-d operand", "multiply by a scalar with *")
    how = (dtype, precision)
    if b.ndim <= 2:
        return _dot("matmul", a, b, ((), ()), ((a.ndim - 1,), (0,)), how)
    if a.ndim == 1:
        # The free dimension of b comes after its batch dimensions, as it should.
        return _dot("matmul", a, b, ((), ()), ((0,), (b.ndim - 2,)), how)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise _wrong("matmul", a, b, "batches that do not broadcast", "make their sizes equal or 1")
    a, b = spread(a, batch + a.shape[-2:]), spread(b, batch + b.shape[-2:])
    n = len(batch)
    dims = tuple(range(n))
    return _dot("matmul", a, b, (dims, dims), ((n + 1,), (n,)), how)


def vecdot(
    x1: Operand,
    x2: Operand,
    /,
    *,
    axis: int = -1,
    dtype: object = None,
    precision: Precision = "highest",
) -> Array:
    """The dot product along one axis, the others broadcast; the conjugate of `x1` if complex.

    dtype, precision: as in `matmul`.

    >>> bu.vecdot(bu.asarray([1, 2]), bu.asarray([3, 4])).tolist()
    11
    """
    a, b = _pair("vecdot", x1, x2)
    axis = integer_of("vecdot", "axis", axis)
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise _wrong("vecdot", a, b, f"axis {axis}", "count the axis from the end: -1, -2, …")
    shape = common_shape("vecdot", (a, b))
    dim = axis_of("vecdot", axis, len(shape))
    if a.shape[axis] != b.shape[axis]:
        raise _wrong("vecdot", a, b, "axes of different sizes", "give vectors of equal lengths")
    a, b = spread(_conjugate(a), shape), spread(b, shape)
    batch = tuple(d for d in range(len(shape)) if d != dim)
    return _dot("vecdot", a, b, (batch, batch), ((dim,), (dim,)), (dtype, precision))


def tensordot(
    x1: Operand,
    x2: Operand,
    /,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
    *,
    dtype: object = None,
    precision: Precision = "highest",
) -> Array:
    """The sum of products over pairs of axes; over the last of `x1` and first of `x2` for an int.

    dtype, precision: as in `matmul`.

    >>> bu.tensordot(bu.ones((2, 3)), bu.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    a, b = _pair("tensordot", x1, x2)
    if not isinstance(axes, Sequence):
        try:
            axes = operator.index(axes)
        except TypeError:
            raise _wrong(
                "tensordot",
                a,
                b,
                f"axes {axes!r} are neither a number nor two sequences",
                "give how many axes to contract, or the axes of each",
            ) from None
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise _wrong("tensordot", a, b, f"axes={axes}", "contract dimensions both have")
        left = tuple(range(a.ndim - axes, a.ndim))
        right = tuple(range(axes))
    else:
        both = [items_of("tensordot", "axes", one) for one in axes]
        if len(both) != 2:
            raise _wrong("tensordot", a, b, f"{len(both)} sequences of axes", "give two")
        left = tuple(axis_of("tensordot", d, a.ndim) for d in both[0])
        right = tuple(axis_of("tensordot", d, b.ndim) for d in both[1])
    return _dot("tensordot", a, b, ((), ()), (left, right), (dtype, precision))


def multi_dot(arrays: Sequence[Operand], /) -> Array:
    """The product of matrices in the order that takes the fewest multiplications.

    arrays: two at least; the first and the last may be vectors.
    Raises OpTypeError.

    >>> bu.linalg.multi_dot([bu.ones((2, 3)), bu.ones((3, 4)), bu.ones(4)]).tolist()
    [12.0, 12.0]
    """
    parts = [as_array(x) for x in items_of("multi_dot", "arrays", arrays)]
    ranks = [x.ndim for x in parts]
    if len(parts) < 2 or not {1, 2}.issuperset(ranks) or 1 in ranks[1:-1]:
        raise OpTypeError(
            f"multi_dot: {', '.join(str(x.type) for x in parts) or 'no arrays'}",
            fix="give two matrices at least, the first and the last of which may be vectors",
        )
    # The sizes between the matrices, a vector at an end being a row or a column.
    sizes = [1 if ranks[0] == 1 else parts[0].shape[0], *(x.shape[0] for x in parts[1:])]
    sizes.append(1 if ranks[-1] == 1 else parts[-1].shape[1])
    # By spans from first to last: the least cost, and the last of its first part.
    best = {(i, i): (0, i) for i in range(len(parts))}
    for length in range(1, len(parts)):
        for i in range(len(parts) - length):
            j = i + length
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )

    def product(i: int, j: int) -> Array:
        k = best[i, j][1]
        return parts[i] if i == j else matmul(product(i, k), product(k + 1, j))

    return product(0, len(parts) - 1)


def matrix_transpose(x: Operand, /) -> Array:
    """The last two dimensions swapped.

    >>> bu.matrix_transpose(bu.zeros((2, 3, 4))).shape
    (2, 4, 3)
    """
    x = as_array(x)
    if x.ndim < 2:
        raise OpTypeError(
            f"matrix_transpose: {x.type} has fewer than two dimensions",
            fix="reshape it to a matrix",
        )
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def outer(x1: Operand, x2: Operand, /) -> Array:
    """The products of all pairs of two vectors.

    >>> bu.outer(bu.asarray([1, 2]), bu.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = _pair("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise _wrong("outer", a, b, "operands that are no vectors", "reshape them to 1-d")
    return reshape(a, (a.size, 1)) * reshape(b, (1, b.size))


def _pair(name: str, x1: Operand, x2: Operand) -> tuple[Array, Array]:
    a, b = as_array(x1), as_array(x2)
    dtype, _ = common((a, b))
    if dtype.kind == "bool":
        raise _wrong(name, a, b, "operands that are no numbers", "convert them first")
    return convert(a, dtype), convert(b, dtype)


def _conjugate(x: Array) -> Array:
    if not x.dtype.is_complex:
        return x
    from bringup.api.complex import conj

    return conj(x)


def _dot(
    name: str, a: Array, b: Array, batch: Any, contract: Any, how: tuple[object, Precision]
) -> Array:
    """How: the dtype of the result, None for the default, and the precision."""
    for left, right in zip(*contract, strict=True):
        if a.shape[left] != b.shape[right]:
            sizes = f"contracted sizes {a.shape[left]} and {b.shape[right]}"
            raise _wrong(
                name, a, b, sizes, "make the contracted dimensions equal, or transpose one"
            )
    dtype, precision = how
    choice_of(name, "precision", precision, get_args(Precision))
    attrs = {"batch": batch, "contract": contract, "precision": precision}
    if dtype is None:
        return apply("dot_general", (a, b), attrs)
    result = dtype_of(dtype)
    if result.is_complex:
        return apply("dot_general", (convert(a, result), convert(b, result)), attrs)
    return apply("dot_general", (a, b), {**attrs, "result": result})


def _wrong(name: str, a: Array, b: Array, what: str, fix: str) -> OpTypeError:
    return OpTypeError(f"{name}: {what}: {a.type} and {b.type}", fix=fix)
