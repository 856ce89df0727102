"""Products of matrices and vectors, and Einstein summation."""

from __future__ import annotations

import operator
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import axis_of, choice_of, integer_of, items_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import (
    as_array,
    broadcast_shapes,
    common_shape,
    convert,
    matrices_of,
    spread,
)
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
        # b's free dimension follows its batch dimensions, which is the order of the result.
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
        both = [items_of("tensordot", "axes", dims) for dims in axes]
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
    # The sizes between the matrices; a vector at an end is a row or a column.
    sizes = [1 if ranks[0] == 1 else parts[0].shape[0], *(x.shape[0] for x in parts[1:])]
    sizes.append(1 if ranks[-1] == 1 else parts[-1].shape[1])
    # For each span of matrices: the least cost, and where to split it.
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
    x = matrices_of("matrix_transpose", x)
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


def _wrong(name: str, a: Array, b: Array, reason: str, fix: str) -> OpTypeError:
    return OpTypeError(f"{name}: {reason}: {a.type} and {b.type}", fix=fix)


#: An operand and a letter for each of its dimensions.
Labelled = tuple[Array, str]


def einsum(
    subscripts: str,
    /,
    *operands: Operand,
    optimize: str = "greedy",
    precision: Precision = "highest",
) -> Array:
    """Sums of products over the letters that the result lacks, as numpy's function of that name.

    subscripts: letters for the dimensions of each operand, parted by commas, then perhaps ``->``
    and those of the result; by default those that occur once, sorted. ``...`` stands for the
    dimensions before or between that have no letter, and broadcasts.
    optimize: how `numpy.einsum_path` orders the products: "greedy" or "optimal".
    precision: of sums of products, as in `bringup.matmul`.  f16 and bf16 accumulate in f32.

    >>> bu.einsum("ij,kj->ik", bu.asarray([[1, 2]]), bu.asarray([[1, 1], [2, 0]])).tolist()
    [[3, 2]]
    """
    arrays = [as_array(x) for x in operands]
    if not isinstance(subscripts, str):
        raise _refused(
            subscripts, arrays, "it is no text", "name the dimensions, as in 'ij,jk->ik'"
        )
    if not arrays:
        raise _refused(subscripts, arrays, "no operand is given", "pass an array for each term")
    if optimize not in ("greedy", "optimal"):
        raise _refused(subscripts, arrays, f"optimize={optimize!r}", 'use "greedy" or "optimal"')
    dtype, _ = common(arrays)
    if dtype.kind == "bool":
        raise _refused(subscripts, arrays, "the operands are no numbers", "convert them first")
    terms, result = _parsed(subscripts, arrays)
    sizes = _sizes(subscripts, terms, arrays)
    todo = [
        _diagonals(convert(x, dtype), term, sizes) for x, term in zip(arrays, terms, strict=True)
    ]
    for positions in _path(todo, result, optimize):
        chosen = [todo[i] for i in positions]
        remaining = [operand for i, operand in enumerate(todo) if i not in positions]
        needed = {*result, *(letter for _, term in remaining for letter in term)}
        first, *following = chosen
        for position, second in enumerate(following, 1):
            later = {letter for _, term in following[position:] for letter in term}
            first = _product(first, second, needed | later, precision)
        todo = [*remaining, _reduced(first, needed)]
    array, term = todo[0]
    return permute_dims(array, tuple(term.index(letter) for letter in result))


# -- letters ---------------------------------------------------------------------------------------


def _parsed(subscripts: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """A letter for every dimension of each operand, and those of the result."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        reason = f"{len(terms)} terms for {len(arrays)} operands"
        raise _refused(subscripts, arrays, reason, "part the terms by commas, one per operand")
    free = [c for c in string.ascii_letters[::-1] if c not in text]
    extra = [x.ndim - len(t.replace("...", "")) for x, t in zip(arrays, terms, strict=True)]
    for x, term, count in zip(arrays, terms, extra, strict=True):
        if count < 0 or (count and "..." not in term):
            reason = f"the term {term!r} does not fit {x.type}"
            raise _refused(subscripts, arrays, reason, "give each dimension a letter, or use ...")
    spare = max((n for n, t in zip(extra, terms, strict=True) if "..." in t), default=0)
    if spare > len(free):
        raise _refused(subscripts, arrays, "the letters do not suffice", "reshape the operands")
    dots = "".join(free[:spare])
    terms = [t.replace("...", dots[spare - n :]) for n, t in zip(extra, terms, strict=True)]
    if arrow:
        result = right.replace("...", dots)
    else:
        once = Counter("".join(terms).translate(str.maketrans("", "", dots)))
        result = dots + "".join(sorted(c for c, n in once.items() if n == 1))
    known = set("".join(terms))
    if not all(map(str.isalpha, known | set(result))):
        raise _refused(subscripts, arrays, "it has other signs than letters", "use a to z, A to Z")
    if len(set(result)) < len(result) or not known.issuperset(result):
        reason = f"the result {right!r} repeats letters or has new ones"
        raise _refused(subscripts, arrays, reason, "name letters of the operands once each")
    return terms, result


def _sizes(subscripts: str, terms: Sequence[str], arrays: Sequence[Array]) -> dict[str, int]:
    """The size of each letter; 1 stretches."""
    sizes: dict[str, int] = {}
    for term, x in zip(terms, arrays, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            before = sizes.setdefault(letter, n)
            if 1 not in (before, n) and before != n:
                reason = f"{letter!r} has sizes {before} and {n}"
                raise _refused(subscripts, arrays, reason, "make the sizes equal, or one of them 1")
            sizes[letter] = n if before == 1 else before
    return sizes


def _path(todo: Sequence[Labelled], result: str, optimize: str) -> Iterable[tuple[int, ...]]:
    if len(todo) == 1:
        return [(0,)]
    text = ",".join(term for _, term in todo) + "->" + result
    # Arrays of these shapes that take no memory: the path depends on sizes alone.
    shells = [np.broadcast_to(np.empty(()), x.shape) for x, _ in todo]
    kind: Any = optimize
    path: Iterable[tuple[int, ...]] = np.einsum_path(text, *shells, optimize=kind)[0][1:]
    return path


# -- products --------------------------------------------------------------------------------------


def _diagonals(x: Array, term: str, sizes: dict[str, int]) -> Labelled:
    """The operand without dimensions that stretch, and with each letter once: its diagonal."""
    full_dims = [d for d, letter in enumerate(term) if x.shape[d] == sizes[letter]]
    x, term = reshape(x, tuple(x.shape[d] for d in full_dims)), "".join(term[d] for d in full_dims)
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first = term.index(letter)
        second = term.index(letter, first + 1)
        other_dims = [d for d in range(len(term)) if d not in (first, second)]
        x, term = (
            _diagonal(permute_dims(x, (*other_dims, first, second))),
            "".join([*(term[d] for d in other_dims), letter]),
        )
    return x, term


def _diagonal(x: Array) -> Array:
    """The elements whose last two indices are equal."""
    n = x.shape[-1]
    flat = reshape(x, (*x.shape[:-2], n * n))
    return flat[..., :: n + 1]


def _reduced(operand: Labelled, needed: set[str]) -> Labelled:
    x, term = operand
    dims = tuple(d for d, letter in enumerate(term) if letter not in needed)
    if not dims:
        return operand
    total = apply("reduce", (x,), {"kind": "add", "dims": dims})
    return total, "".join(letter for letter in term if letter in needed)


def _product(a: Labelled, b: Labelled, needed: set[str], precision: Precision) -> Labelled:
    """The product of both, summed over letters that neither result nor later operands have."""
    (x, left), (y, right) = _reduced(a, needed | set(b[1])), _reduced(b, needed | set(a[1]))
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in needed]
    over = [letter for letter in shared if letter not in needed]
    term = "".join([*batch, *(c for c in left + right if c not in shared)])
    if not over:
        return _spread(x, left, term) * _spread(y, right, term), term
    attrs = {
        "batch": (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
        "contract": (tuple(map(left.index, over)), tuple(map(right.index, over))),
        "precision": precision,
    }
    return apply("dot_general", (x, y), attrs), term


def _spread(x: Array, term: str, target: str) -> Array:
    """The operand in the order of `target`, with size 1 where it has no letter."""
    order = [term.index(letter) for letter in target if letter in term]
    sizes = dict(zip(term, x.shape, strict=True))
    return reshape(permute_dims(x, order), tuple(sizes.get(letter, 1) for letter in target))


def _refused(subscripts: str, arrays: Sequence[Array], reason: str, fix: str) -> OpTypeError:
    shown = " and ".join(str(x.type) for x in arrays)
    where = f" of {shown}" if shown else ""
    return OpTypeError(f"einsum: {subscripts!r}{where}: {reason}", fix=fix)
