"""Contractions: every dtype, batch and layout, odd and empty sizes, wide accumulation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import FLOATS, INTS, NUMERIC, DType, bf16, f16, f32, f64, i8, i32, u8, u64

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]
_EPS = {f16: 2.0**-11, bf16: 2.0**-8, f32: 2.0**-24, f64: 2.0**-53}


def dot(batch: tuple[Dims, Dims], contract: tuple[Dims, Dims], **attrs: Any) -> Any:
    return lambda a, b: ops.dot_general(a, b, batch=batch, contract=contract, **attrs)


MATMUL = dot(((), ()), ((1,), (0,)))


def normal(dtype: DType, shape: Dims, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def check_close(actual: Array, a: Array, b: Array, dtype: DType, terms: int) -> None:
    """Matrices against the exact product: sums in f32 or wider, rounded once."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    exact, size = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    inner = _EPS[f64 if dtype is f64 else f32]
    bound = (terms + 2) * inner * size + _EPS[dtype] * np.abs(exact) * (1 + 1e-3)
    error = np.abs(actual.astype(np.longdouble) - exact)
    assert np.all(error <= bound), float(np.max(error / np.maximum(bound, 1e-300)))


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (17, 33, 65), (64, 1, 31)])
def test_small_whole_numbers_are_exact_in_every_dtype(kit: Any, dtype: DType, sizes: Dims) -> None:
    m, k, n = sizes
    kit.equal(MATMUL, kit.values(dtype, (m, k), 1), kit.values(dtype, (k, n), 2))


# Where m, k and the batch stand in lhs; where k, n and the batch stand in rhs.
_ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("left", _ORDERS, ids=str)
@pytest.mark.parametrize("right", _ORDERS, ids=str)
def test_every_layout_of_a_batched_product(kit: Any, left: Dims, right: Dims) -> None:
    b, m, k, n = 3, 5, 19, 18
    lhs, rhs = (b, m, k), (b, k, n)
    x = kit.values(f32, tuple(lhs[d] for d in left), 1)
    y = kit.values(f32, tuple(rhs[d] for d in right), 2)
    batch = ((left.index(0),), (right.index(0),))
    kit.equal(dot(batch, ((left.index(2),), (right.index(1),))), x, y)


@pytest.mark.parametrize("dtype", [f16, bf16, f64, i8, u64], ids=str)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_transposed_operands_of_other_dtypes(kit: Any, dtype: DType, order: str) -> None:
    m, k, n = 13, 37, 21
    a = kit.values(dtype, (m, k) if order[0] == "n" else (k, m), 1)
    b = kit.values(dtype, (k, n) if order[1] == "n" else (n, k), 2)
    sides = ((1 if order[0] == "n" else 0,), (0 if order[1] == "n" else 1,))
    kit.equal(dot(((), ()), sides), a, b)


def test_operands_that_are_moved_on_the_way(kit: Any) -> None:
    a, b = kit.values(f32, (37, 13), 1), kit.values(f32, (21, 40), 2)

    def build(x: Any, y: Any) -> Any:
        x = ops.transpose(x, permutation=(1, 0))
        y = ops.slice(ops.transpose(y, permutation=(1, 0)), start=(39, 0), limit=(2, 21),
                      stride=(-1, 1))  # fmt: skip
        return MATMUL(x, y), MATMUL(ops.neg(x), ops.mul(y, y))

    kit.equal(build, a, b)


_SHAPES: dict[str, tuple[Dims, Dims, tuple[Dims, Dims], tuple[Dims, Dims]]] = {
    "inner product": ((67,), (67,), ((), ()), ((0,), (0,))),
    "outer product": ((7,), (35,), ((), ()), ((), ())),
    "matrix by column": ((9, 130), (130,), ((), ()), ((1,), (0,))),
    "row by matrix": ((130,), (130, 9), ((), ()), ((0,), (0,))),
    "scalars": ((), (), ((), ()), ((), ())),
    "all batch": ((6, 5), (6, 5), ((0, 1), (0, 1)), ((), ())),
    "two batches": ((2, 3, 4, 5), (3, 2, 5, 6), ((0, 1), (1, 0)), ((3,), (2,))),
    "two contracted": ((4, 5, 6), (6, 5, 7), ((), ()), ((1, 2), (1, 0))),
    "everything contracted": ((4, 5), (5, 4), ((), ()), ((0, 1), (1, 0))),
    "two free on each side": ((2, 9, 3), (4, 9, 5), ((), ()), ((1,), (1,))),
    "batch last": ((9, 5, 3), (9, 4, 3), ((2,), (2,)), ((0,), (0,))),
    "long contraction": ((2, 5000), (5000, 3), ((), ()), ((1,), (0,))),
    "empty contraction": ((3, 0), (0, 4), ((), ()), ((1,), (0,))),
    "no rows": ((0, 4), (4, 5), ((), ()), ((1,), (0,))),
    "no batch": ((0, 2, 3), (0, 3, 2), ((0,), (0,)), ((2,), (1,))),
    "size one everywhere": ((1, 1, 1), (1, 1, 1), ((0,), (0,)), ((2,), (1,))),
}


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("dtype", [f32, bf16, i32], ids=str)
def test_shapes(kit: Any, shape: str, dtype: DType) -> None:
    a, b, batch, contract = _SHAPES[shape]
    kit.equal(dot(batch, contract), kit.values(dtype, a, 1), kit.values(dtype, b, 2))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", [(31, 257, 33), (4, 3001, 5), (65, 64, 127)])
def test_products_are_as_near_as_their_sums_allow(kit: Any, dtype: DType, sizes: Dims) -> None:
    m, k, n = sizes
    a, b = normal(dtype, (m, k), 3), normal(dtype, (k, n), 4)
    (actual,), _ = kit.both(MATMUL, a, b)
    check_close(actual, a, b, dtype, k)


@pytest.mark.parametrize(("dtype", "wanted"), [(f16, 5000.0), (bf16, 4992.0)], ids=str)
def test_halves_accumulate_in_f32(kit: Any, dtype: DType, wanted: float) -> None:
    # In f16 a sum of ones stops at 2048, in bf16 at 256.
    a, b = np.ones((3, 5000), dtype.numpy), np.ones((5000, 17), dtype.numpy)
    (actual,), _ = kit.both(MATMUL, a, b)
    assert np.all(actual.astype(np.float64) == wanted)
    # Nor are the products rounded first.
    third = np.full((1, 3), 1 / 3, dtype.numpy)
    (actual,), (reference,) = kit.both(MATMUL, third, np.ascontiguousarray(third.T))
    exact = 3 * float(third[0, 0]) ** 2
    assert actual[0, 0] == reference[0, 0] == np.array(exact, np.float32).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("dtype", "accumulate", "result"),
    [(f16, f32, f32), (bf16, f32, f32), (f32, f64, f32), (f32, f64, f64), (i8, i32, i32),
     (i8, i32, i8), (u8, u64, u64), (f16, f64, f16)],
    ids=str,
)  # fmt: skip
def test_wider_accumulators_and_results(
    kit: Any, dtype: DType, accumulate: DType, result: DType
) -> None:
    attrs = {"accumulate": accumulate, "result": result}
    build = dot(((), ()), ((1,), (0,)), **attrs)
    if dtype.is_float:
        a = normal(dtype, (9, 40), 1) * dtype.numpy.type(3)
        b = normal(dtype, (40, 21), 2)
        (actual,), (wanted,) = kit.both(build, a, b)
        assert actual.dtype == wanted.dtype
        wide = a.astype(np.float64) @ b.astype(np.float64)
        assert np.allclose(actual.astype(np.float64), wide, rtol=4 * _EPS[result], atol=1e-4)
    else:
        info = np.iinfo(dtype.numpy)
        rng = np.random.default_rng(0)
        a = rng.integers(info.min, info.max, (9, 40), dtype.numpy, endpoint=True)
        b = rng.integers(info.min, info.max, (40, 21), dtype.numpy, endpoint=True)
        kit.equal(build, a, b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap(kit: Any, dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(7)
    a = rng.integers(info.min, info.max, (7, 301), dtype.numpy, endpoint=True)
    b = rng.integers(info.min, info.max, (301, 19), dtype.numpy, endpoint=True)
    kit.equal(MATMUL, a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities_and_nans(kit: Any, dtype: DType) -> None:
    a = np.zeros((5, 37), dtype.numpy)
    b = np.ones((37, 6), dtype.numpy)
    a[0, 36], a[1, 5], a[2, 0], a[3, (3, 4)] = np.inf, np.nan, -np.inf, (np.inf, -np.inf)
    b[36, 1] = 0
    with np.errstate(invalid="ignore"):
        (actual,), _ = kit.both(MATMUL, a, b)
    rows = [np.unique(row.astype(np.float64)[2:]).tolist() for row in actual]
    assert rows[0] == [np.inf]
    assert np.isnan(rows[1]).all()
    assert rows[2] == [-np.inf]
    assert np.isnan(rows[3]).all()
    assert rows[4] == [0.0]
    assert np.isnan(actual[0, 1])


def test_a_product_that_every_thread_works_on(kit: Any) -> None:
    a, b = normal(f32, (257, 300), 1), normal(f32, (300, 259), 2)
    graph = kit.graph(MATMUL, *kit.types([a, b]))
    first = kit.run(graph, [a, b])[0]
    check_close(first, a, b, f32, 300)
    for _ in range(3):
        assert kit.same(kit.run(graph, [a, b])[0], first)


def test_what_follows_a_product_in_its_kernel(kit: Any) -> None:
    a, b, c = kit.values(f32, (33, 17)), kit.values(f32, (17, 45)), kit.values(f32, (45,))

    def build(x: Any, w: Any, bias: Any) -> Any:
        y = ops.add(MATMUL(x, w), ops.broadcast_in_dim(bias, shape=(33, 45), dims=(1,)))
        return (
            ops.relu(y),
            ops.reduce(y, kind="max", dims=(1,)),
            ops.reduce(y, kind="add", dims=(0,)),
        )

    kit.equal(build, a, b, c)
