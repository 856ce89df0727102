"""Calls of ops that the library has, with random operands, and their results by any means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import ALL, DType, as_dtype, bool_, i32
from bringup.loops import Func
from bringup.loops.library import StepLoops, library_loops
from bringup.ops.table import lookup
from bringup.target import Target
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
#: Runs a function on arrays, one for each parameter.
Runner = Callable[[Func, Sequence[Array]], None]


def loops_of(
    name: str,
    arrays: Sequence[Array],
    units: int,
    machine: Mapping[str, Any] | None = None,
    **attrs: Any,
) -> StepLoops:
    """The functions of a call on arrays.  machine: what else its `Target` says."""
    row = lookup(name)
    types = tuple(TensorType(x.shape, as_dtype(x.dtype)) for x in arrays)
    bound = row.bind(attrs)
    target = Target(threads=units, **(machine or {}))
    loops = library_loops(name, types, row.result_types(types, bound), bound, target)
    assert loops is not None
    return loops


def run_loops(loops: StepLoops, arrays: Sequence[Array], run: Runner) -> list[Array]:
    """The results; memory holds no value at first."""
    call = loops.call
    memory = dict(zip(call.operands, map(np.ascontiguousarray, arrays), strict=True))
    for buffer in (*call.results, *loops.temporaries):
        nothing = np.full(buffer.type.nbytes, 0xAA, np.uint8)
        memory[buffer] = nothing.view(buffer.dtype.numpy)
    for func, given in zip(loops.funcs, loops.arguments, strict=True):
        run(func, [memory[buffer] for buffer in given])
    types = call.types[len(call.operands) :]
    return [memory[y].reshape(t.shape) for y, t in zip(call.results, types, strict=True)]


def reference(name: str, arrays: Sequence[Array], **attrs: Any) -> list[Array]:
    """The results of the op's row."""
    row = lookup(name)
    results = row.reference(*arrays, **row.bind(attrs))
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


def few_values(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Elements of which many are equal: zeros of both signs, NaN, infinities, extremes."""
    numpy = dtype.numpy
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(numpy)
    if dtype.is_integer:
        info = np.iinfo(numpy)
        return rng.choice(np.array([info.min, 0, 1, info.max], numpy), shape)
    return rng.choice(np.array([0.0, -0.0, 1, -1, np.nan, -np.nan, np.inf, -np.inf], numpy), shape)


def sorts(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Sorts of lines of many lengths, by one key and by several, with what moves along."""
    every = [*((dtype,) for dtype in ALL), (as_dtype("f16"), bool_, i32)]
    shapes = (((0,), 0), ((1,), 0), ((2,), 0), ((13,), 0), ((2, 9, 3), 1), ((3, 16), 1))
    for number, (shape, dim) in enumerate(shapes):
        for dtypes in every[number % 3 :: 3]:
            keys = [few_values(rng, shape, dtype) for dtype in dtypes]
            places = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
            for descending in (False, True):
                yield [*keys, places], {
                    "dim": dim, "num_keys": len(keys), "descending": descending,
                }  # fmt: skip


def scans(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Scans along each dimension; sums that no order rounds."""
    for dtype in (as_dtype(name) for name in ("i8", "u64", "f16", "f32", "f64")):
        for kind, shape in (("add", (2, 11, 3)), ("max", (1, 23, 1)), ("mul", (0, 2, 2))):
            x = rng.integers(0, 4, shape).astype(dtype.numpy)
            for dim in range(3):
                for reverse, exclusive in ((False, False), (True, False), (True, True)):
                    yield [x], {
                        "kind": kind, "dim": dim, "reverse": reverse, "exclusive": exclusive,
                    }  # fmt: skip


def scatters(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Windows in any direction, that overlap, lie outside, or are batched."""
    rows = {"offset": (1, 2), "index_map": (0,), "index_dim": 1}
    points = {"offset": (), "index_map": (1, 0), "index_dim": 0, "collapsed": (0, 1)}
    batched = {
        "offset": (0,), "index_map": (1,), "index_dim": 2, "batch": ((0,), (0,)),
    }  # fmt: skip
    shapes = (
        ((6, 5), (4, 1), (4, 2, 5), rows),
        ((6, 5), (4, 1), (4, 2, 3), rows),
        ((6, 5), (2, 7), (7,), points),
        ((3, 8), (3, 4), (2, 3, 4), batched),
        ((6, 5), (0, 1), (0, 2, 5), rows),
    )
    indexed = (("i32", False), ("u8", False), ("i64", True))
    for number, (shape, at, updates, numbers) in enumerate(shapes):
        for d, dtype in enumerate(("f16", "f32", "i8")):
            for k, kind in enumerate(("set", "add", "max")):
                # Each kind of index with each kind of fold, and half of them with each dtype.
                for index, unique in indexed[(number + d + k) % 2 :: 2]:
                    numpy = as_dtype(dtype).numpy
                    x, new = (rng.integers(0, 5, s).astype(numpy) for s in (shape, updates))
                    indices = rng.integers(-2 if index[0] == "i" else 0, 7, at)
                    if unique:
                        indices = _distinct(rng, at)
                    arrays = [x, indices.astype(as_dtype(index).numpy), new]
                    yield arrays, {**numbers, "kind": kind, "unique": unique}


def _distinct(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Starts of windows that do not overlap, if windows are two rows or one element."""
    count = math.prod(shape)
    return (10 * rng.permutation(count) - 20 * (count > 1)).reshape(shape)


def updates(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Windows inside and outside the array."""
    for dtype in ("f8e5m2", "bool", "f64"):
        numpy = as_dtype(dtype).numpy
        for shape, size in (((6, 5), (2, 3)), ((6, 5), (6, 5)), ((7,), (3,)), ((7,), (0,))):
            x, new = (rng.integers(0, 2, s).astype(numpy) for s in (shape, size))
            for start in (-3, 1, 99):
                starts = [np.array(start, np.int8) for _ in shape]
                yield [x, new, *starts], {}


def attentions(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Few queries and many, blocks of keys that are whole or not, every kind of bias, no keys.

    Products are sums of small multiples of 1/2, which nothing rounds.
    """
    forms: tuple[tuple[tuple[int, ...], int, int, int, int, tuple[int, ...] | None], ...] = (
        ((2, 1), 5, 7, 4, 3, None),
        ((2,), 1, 27, 6, 5, (1, 1, 27)),
        ((), 13, 31, 3, 7, (13, 31)),
        ((1, 2), 20, 24, 1, 2, (1, 1, 20, 24)),
        ((1,), 16, 48, 5, 5, (1, 16, 1)),
        ((3,), 9, 3, 0, 4, (1, 1, 1)),
        ((2,), 7, 0, 3, 2, None),
    )
    for number, (lead, n, m, depth, width, bias) in enumerate(forms):
        for causal in (False, True):
            for dtype in (("f32", "f16"), ("f64", "f32"))[number % 2]:
                shapes = [(*lead, n, depth), (*lead, m, depth), (*lead, m, width)]
                arrays = [rng.integers(-2, 3, shape) / 2 for shape in shapes]
                if bias is not None:
                    hidden = rng.integers(0, 4, bias) == 0
                    arrays.append(np.where(hidden, -np.inf, rng.integers(-2, 3, bias)))
                attrs = {"scale": 0.5, "causal": causal}
                yield [x.astype(as_dtype(dtype).numpy) for x in arrays], attrs


def block_products(rng: np.random.Generator) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Blocks in any order, several in one place and some outside, in every shape of a tile.

    Products are sums of small multiples of 1/2, which nothing rounds.
    """
    forms = (
        ((5,), (4, 3), (7, 4, 8)),
        ((), (2, 3), (6, 3, 12)),
        ((2, 7), (3, 2), (5, 5, 5)),
        ((14,), (2, 2), (4, 9, 16)),
        ((3,), (2, 2), (0, 2, 4)),
        ((3,), (0, 2), (2, 3, 4)),
    )
    for number, (lead, (down, across), blocks) in enumerate(forms):
        for dtype in (("f32", "f16"), ("f64", "f32"))[number % 2]:
            x = rng.integers(-2, 3, (*lead, down * blocks[1])) / 2
            numbers = [x, rng.integers(-2, 3, blocks) / 2]
            places = [rng.integers(-1, n + 1, blocks[0]) for n in (down, across)]
            arrays = [each.astype(as_dtype(dtype).numpy) for each in numbers]
            arrays += [each.astype(np.int32) for each in places]
            most = dict.fromkeys(("per_row", "per_column"), blocks[0])
            yield arrays, {"features": across * blocks[2], **most}


def judged(name: str) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Calls of an op whose results `judge` judges."""
    return attentions(np.random.default_rng(5)) if name == "attention" else matrices(name)


def matrices(name: str) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """Calls of an op on stacks of matrices: usual ones, dependent rows, not finite, no elements."""
    rng = np.random.default_rng(3)
    square = name in ("cholesky", "eigh", "triangular_solve")
    more = [] if name in ("eigh", "svd") else [(7, 7)]
    for dtype in ("f16", "f32", "f64"):
        numpy = as_dtype(dtype).numpy
        for m, n in ((1, 1), (4, 4), (0, 0), *more, *([] if square else [(2, 4), (4, 3), (3, 0)])):
            a = rng.standard_normal((3, m, n))
            if name == "cholesky":
                a = a @ np.swapaxes(a, -1, -2) + np.eye(n)
            if n > 1 and name != "triangular_solve":
                a[1, :, 1] = a[1, :, 0]
                a[2, -1, 0] = np.nan
            if name == "triangular_solve":
                a += 4 * np.eye(n)
            for attrs in ATTRS.get(name, [{}]):
                arrays = [a.astype(numpy)]
                if name == "triangular_solve":
                    sides = (3, n, 3) if attrs["left"] else (3, 3, n)
                    arrays.append(rng.standard_normal(sides).astype(numpy))
                yield arrays, attrs


_FORMS = ("left", "lower", "transpose", "unit")
#: The attributes of ops on matrices that have any.
ATTRS: dict[str, list[dict[str, Any]]] = {
    "eigh": [{"vectors": True}, {"vectors": False}],
    "qr": [{"complete": True}, {"complete": False}],
    "svd": [
        {"complete": True, "vectors": True},
        {"complete": False, "vectors": True},
        {"complete": False, "vectors": False},
    ],
    "triangular_solve": [
        dict(zip(_FORMS, forms, strict=True))
        for forms in itertools.product((False, True), repeat=4)
    ],
}


def judge(name: str, arrays: Sequence[Array], results: Sequence[Array], attrs: Any) -> list[str]:
    """What the bounds of the op's row say against results."""
    row = lookup(name)
    bound = row.bind(attrs)
    wide = [np.asarray(x).astype(np.float64) for x in arrays]
    known = reference(name, wide, **attrs)
    residual = _weighed if name == "attention" else row.accuracy.residual
    assert residual is not None
    got = [r.astype(np.float64) if r.dtype.kind == "f" else r for r in results]
    judged = residual(wide, got, known, bound, as_dtype(arrays[0].dtype))
    wrong = [
        what
        for what, error, allowed in judged
        if not ((error <= allowed) | np.isinf(allowed)).all()
    ]
    special = [~np.isfinite(r) for r in known]
    for what, x, y in zip(special, got, known, strict=True):
        if not np.array_equal(x[what], y[what], equal_nan=True):
            wrong.append("special values")
    return wrong


def _weighed(
    arrays: Sequence[Array], got: Sequence[Array], known: Sequence[Array], attrs: Any, dtype: DType
) -> Iterator[tuple[str, Array, Array]]:
    """Errors of attention whose scores are exact, and what they may be.

    Of a weight: its exponential, and for each block a factor and a product.  Of both sums: an
    addition for each key and two for each block.  Of their quotient, and of its rounding: one each.
    """
    query, key, value, *bias = arrays
    wide = 2.0 ** -np.finfo(np.float64 if dtype.bits == 64 else np.float32).nmant
    keys, ulps = key.shape[-2], lookup("exp").accuracy.ulp["f32"]
    blocks = -(-keys // 8)
    most = 2 * (ulps + blocks * (ulps + 1) + keys + 2 * blocks) + 1
    size = lookup("attention").reference(query, key, np.abs(value), *bias, **attrs)
    rounding = 2.0 ** -(np.finfo(dtype.numpy).nmant + 1)
    allowed = np.nan_to_num(size * (most * wide) + np.abs(known[0]) * rounding)
    yield "results", np.nan_to_num(np.abs(got[0] - known[0])), allowed


#: What gives each element exactly, by op.
EXACT = {
    "block_sparse_dot": block_products,
    "cumulative": scans,
    "dynamic_update_slice": updates,
    "scatter": scatters,
    "sort": sorts,
}
