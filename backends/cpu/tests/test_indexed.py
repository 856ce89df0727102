"""Reading and writing at indices that are data, natively: numpy is the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.apply import apply
from bringup.dtypes import ALL, DType, bool_, f32
from bringup.ops.table import lookup

RNG = np.random.default_rng(7)
INDICES = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def indices(dtype: str, shape: tuple[int, ...], size: int) -> Any:
    """In range, at both ends and beyond."""
    info = np.iinfo(dtype)
    made = RNG.integers(0, min(size, info.max + 1), shape)
    ends = [max(info.min, -(2**40)), -1, size - 1, size, min(info.max, 2**40)]
    kept = np.array([e for e in ends if info.min <= e <= info.max])
    return np.where(RNG.random(shape) < 0.2, RNG.choice(kept, shape), made).astype(dtype)


def values(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Small whole numbers: sums of them are exact."""
    if dtype is bool_:
        return RNG.random(shape) < 0.5
    low = -4 if dtype.is_signed else 0
    return RNG.integers(low, 5, shape).astype(dtype.numpy)


def check(fn: Callable[..., Any], reference: Callable[..., Any], *arrays: Any) -> None:
    found = np.asarray(bu.jit(fn)(*map(bu.asarray, arrays)))
    wanted = reference(*arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.astype(np.float64), np.asarray(wanted, np.float64), rtol=1e-5)


def rows(x: Any, i: Any, mode: str = "clip") -> Any:
    numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
    return apply("gather", (x, i), {**numbers, "sizes": (1, x.shape[1]), "mode": mode})


def rows_reference(x: Any, i: Any, mode: str = "clip") -> Any:
    wide = [int(k) for k in i]
    near = [min(max(k, 0), len(x) - 1) for k in wide]
    inside = np.array([k == n for k, n in zip(wide, near, strict=True)])
    return x[near] if mode == "clip" else np.where(inside[:, None], x[near], x.dtype.type(0))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("shape", [(5, 33), (300, 1), (50, 17), (1, 64)], ids=str)
def test_rows(shape: tuple[int, int], index: str) -> None:
    x, i = values(f32, shape), indices(index, (70,), shape[0])
    for mode in ("clip", "fill"):
        check(
            lambda x, i, m=mode: rows(x, i, m), lambda x, i, m=mode: rows_reference(x, i, m), x, i
        )
        check(
            lambda x, i, m=mode: bu.sum(rows(x * 2 + 1, i, m), axis=0),
            lambda x, i, m=mode: rows_reference(x * 2 + 1, i, m).sum(0),
            x, i,
        )  # fmt: skip
        check(
            lambda x, i, m=mode: bu.max(rows(x, i, m), axis=1),
            lambda x, i, m=mode: rows_reference(x, i, m).max(1),
            x, i,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype(dtype: DType) -> None:
    x, i = values(dtype, (40, 19)), indices("int32", (33,), 40)
    check(rows, rows_reference, x, i)
    far = RNG.integers(0, 40, 900)
    check(lambda x, i: x[i], lambda x, i: x[i], x[:, 0], far)
    check(lambda x, i: bu.flip(x, axis=0)[i], lambda x, i: x[::-1][i], x[:, 0], far)


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape) if isinstance(x, np.ndarray) else bu.reshape(x, shape)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "of a transposition": (lambda x, i: x.T[i], (values(f32, (31, 50)), RNG.integers(0, 50, 40))),
    "of a reshape": (
        lambda x, i: reshaped(x, (30, 10))[i],
        (values(f32, (12, 25)), RNG.integers(0, 30, 40)),
    ),
    "reshaped": (
        lambda x, i: reshaped(x[i], (8, -1)),
        (values(f32, (12, 25)), RNG.integers(0, 12, (10, 4))),
    ),
    "columns": (lambda x, i: x[:, i], (values(f32, (31, 50)), RNG.integers(0, 50, 40))),
    "pairs": (
        lambda x, i, j: x[i, j],
        (values(f32, (31, 50)), RNG.integers(0, 31, 99), RNG.integers(0, 50, 99)),
    ),
    "of indices": (
        lambda x, i, j: x[i[j]],
        (values(f32, (31, 5)), RNG.integers(0, 31, 99), RNG.integers(0, 99, 70)),
    ),
    "a long sum": (lambda x, i: x[i].sum() if isinstance(x, np.ndarray) else bu.sum(x[i]),
                   (values(f32, (1000,)), RNG.integers(0, 1000, 300_000))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fused_with_movement(name: str) -> None:
    fn, arrays = CASES[name]
    check(fn, fn, *arrays)


def test_windows() -> None:
    x, new = values(f32, (20, 33)), values(f32, (6, 17))
    for i, j in ((0, 0), (3, 5), (14, 16), (99, -7)):
        a, b = min(max(i, 0), 14), min(max(j, 0), 16)
        starts = (np.int32(i), np.int32(j))
        check(
            lambda x, i, j: bu.dynamic_slice(x, (i, j), (6, 17)) * 2,
            lambda x, _i, _j, a=a, b=b: x[a : a + 6, b : b + 17] * 2,
            x, *starts,
        )  # fmt: skip
        wanted = x.copy()
        wanted[a : a + 6, b : b + 17] = new
        for donated in ((), (0,)):
            write = bu.jit(
                lambda x, new, i, j: bu.dynamic_update_slice(x, new, (i, j)),
                donate_argnums=donated,
            )
            found = write(bu.asarray(x), bu.asarray(new), *map(bu.asarray, starts))
            np.testing.assert_array_equal(np.asarray(found), wanted)
    check(
        lambda x, new, i: bu.sum(bu.dynamic_update_slice(x, new, (i, i)), axis=1),
        lambda x, new, i: np.sum(_placed(x, new, int(i)), axis=1),
        x, new, np.uint8(9),
    )  # fmt: skip


def _placed(x: Any, new: Any, at: int) -> Any:
    made = x.copy()
    made[at : at + new.shape[0], at : at + new.shape[1]] = new
    return made


#: Shapes of x, indices and updates, and dimension numbers.
SCATTERS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "elements": ((50,), (300,), (300,),
                 {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}),
    "rows": ((40, 33), (70,), (70, 33),
             {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}),
    "long rows": ((9, 3001), (30,), (30, 3001),
                  {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}),
    "columns": ((20, 9), (25,), (20, 25),
                {"offset": (0,), "index_map": (1,), "index_dim": 1, "collapsed": (1,)}),
    "windows": ((9, 8, 5), (2, 12), (12, 3, 2, 5),
                {"offset": (1, 2, 3), "index_map": (1, 0), "index_dim": 0}),
    "lines": ((6, 17, 3), (6, 20, 3), (6, 20, 3),
              {"offset": (), "index_map": (1,), "index_dim": 3, "collapsed": (1,),
               "batch": ((0, 2), (0, 2))}),
    "one window": ((30, 30), (2,), (4, 7),
                   {"offset": (0, 1), "index_map": (0, 1), "index_dim": 0}),
    "nothing": ((5, 4), (0,), (0, 4),
                {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name: str, dtype: DType) -> None:
    shape, where, size, numbers = SCATTERS[name]
    row = lookup("scatter")
    i = indices("int16", where, max(min(shape), 2))
    turn = (list(SCATTERS).index(name) + ALL.index(dtype)) % 2
    kinds = ("set",) if dtype is bool_ else (("set", "add", "min"), ("add", "mul", "max"))[turn]
    for kind in kinds:
        x, new = values(dtype, shape), values(dtype, size)
        new = np.where(new > 2, new, 1).astype(new.dtype) if kind == "mul" else new
        attrs = {**numbers, "kind": kind}
        wanted = row.reference(x, i, new, **row.bind(attrs))
        found = np.asarray(apply("scatter", [bu.asarray(a) for a in (x, i, new)], attrs))
        if kind == "mul" and dtype.is_float:
            np.testing.assert_allclose(
                found.astype(np.float64), wanted.astype(np.float64), rtol=0.05
            )
        else:
            assert np.array_equal(found, wanted), kind


@pytest.mark.parametrize("index", INDICES)
def test_scatter_drops_what_lies_outside(index: str) -> None:
    x, i = np.zeros(30, np.float32), indices(index, (400,), 30)
    found = bu.jit(lambda x, i: apply("scatter", (x, i, bu.ones(400, dtype=bu.float32)), {
        "kind": "add", **SCATTERS["elements"][3]}))(bu.asarray(x), bu.asarray(i))  # fmt: skip
    inside = [int(k) for k in i if 0 <= int(k) < 30]
    assert np.asarray(found).tolist() == np.bincount(inside, minlength=30).tolist()


def test_unique_windows_are_shared_among_threads() -> None:
    x = np.zeros((20_000, 9), np.float32)
    i = RNG.permutation(20_000)[:15_000]
    new = RNG.random((15_000, 9)).astype(np.float32)
    attrs = {**SCATTERS["rows"][3], "kind": "set", "unique": True}
    found = apply("scatter", [bu.asarray(a) for a in (x, i, new)], attrs)
    x[i] = new
    np.testing.assert_array_equal(np.asarray(found), x)


def test_the_last_of_many_updates_stays() -> None:
    """Of long rows, too, which threads share."""
    i = RNG.integers(0, 3, 500)
    for width in (1, 5000):
        new = np.repeat(np.arange(500, dtype=np.float32)[:, None], width, axis=1)
        found = bu.zeros((4, width), dtype=bu.float32).at[bu.asarray(i)].set(new)
        wanted = np.zeros((4, width), np.float32)
        wanted[i] = new
        np.testing.assert_array_equal(np.asarray(found), wanted)


def test_the_gradient_of_an_embedding() -> None:
    table, i = values(f32, (30, 48)), RNG.integers(0, 30, 200)
    weight = values(f32, (200, 48))
    loss = bu.jit(bu.grad(lambda t, i, w: bu.sum(t[i] * w)))
    wanted = np.zeros_like(table)
    np.add.at(wanted, i, weight)
    np.testing.assert_array_equal(np.asarray(loss(*map(bu.asarray, (table, i, weight)))), wanted)
