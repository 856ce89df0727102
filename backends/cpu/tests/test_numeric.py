"""Numbers on this device: sums, extremes, integers, tails, alignment, movement of any rank."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup import ops
from bringup.dtypes import ALL, FLOATS, INTS, DType, bf16, f16, f32, f64, i8, i16, i32
from bringup.llvm.loops.heuristics import LONGEST_CHAIN
from bringup.ops import build as parts
from bringup.runtime import devices, transfer
from bringup.runtime.compiler import compile_graph
from bringup_cpu.memory import memory
from bringup_cpu.target import host_target

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]
_EPS = {f16: 2.0**-11, bf16: 2.0**-8, f32: 2.0**-24, f64: 2.0**-53}
_KINDS = {"float": ("add", "mul", "max", "min"), "bool": ("and", "or")}


def lanes(dtype: DType) -> int:
    return host_target().vector_bits // max(dtype.bits, 8)


def reduce(kind: str, *dims: int) -> Callable[[Any], Any]:
    return lambda x: ops.reduce(x, kind=kind, dims=dims)


# Sums


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 1000, 65_537, 1_500_000])
def test_sums_are_blocked(kit: Any, dtype: DType, n: int) -> None:
    rng = np.random.default_rng(n)
    scale = 1 if n < 60_000 or dtype is not f16 else 1e-3
    x = (rng.standard_normal(n) * np.exp(rng.uniform(-3, 3, n)) * scale).astype(dtype.numpy)
    (actual,), _ = kit.both(reduce("add", 0), x)
    exact = float(x.sum(dtype=np.longdouble))
    size = float(np.abs(x).sum(dtype=np.float64))
    inner = _EPS[f64 if dtype is f64 else f32]
    bound = (min(n, LONGEST_CHAIN) + 64) * inner * size + _EPS[dtype] * abs(exact) * 1.001
    assert abs(float(actual) - exact) <= bound


def test_a_sum_of_ones_is_exact_far_beyond_the_mantissa(kit: Any) -> None:
    # One chain of f32 additions stops at 2**24.
    n = (1 << 24) + (1 << 20)
    ones = np.ones((n // 1024, 1024), np.float32)
    ones[0, 0] = 1 << 24
    graph = kit.graph(reduce("add", 0, 1), *kit.types([ones]))
    assert abs(float(kit.run(graph, [ones])[0]) - (n - 1 + (1 << 24))) <= 8 * LONGEST_CHAIN


@pytest.mark.parametrize(("dtype", "wanted"), [(f16, 5000.0), (bf16, 4992.0)], ids=str)
def test_sums_of_halves_are_in_f32(kit: Any, dtype: DType, wanted: float) -> None:
    for shape, dims in (((5000,), (0,)), ((7, 5000), (1,)), ((5000, 7), (0,)), ((3, 5000), (1,))):
        (actual,), _ = kit.both(reduce("add", *dims), np.ones(shape, dtype.numpy))
        assert np.all(actual.astype(np.float64) == wanted)


@pytest.mark.parametrize("dims", [d for k in range(4) for d in itertools.combinations(range(3), k)])
@pytest.mark.parametrize("dtype", [f32, bf16, i16], ids=str)
def test_reductions_over_any_axes(kit: Any, dtype: DType, dims: Dims) -> None:
    x = kit.values(dtype, (5, 33, 18))
    kit.equal(lambda v: [reduce(k, *dims)(v) for k in ("add", "max", "min")], x)


@pytest.mark.parametrize("shape", [(1 << 16, 3), (3, 1 << 16), (40_000, 40), (2, 70_000, 2)])
def test_long_reductions_of_few_points(kit: Any, shape: Dims) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for dim in range(len(shape)):
        (total, most), _ = kit.both(lambda v, d=dim: [reduce("add", d)(v), reduce("max", d)(v)], x)
        exact = x.sum(axis=dim, dtype=np.float64)
        size = np.abs(x).sum(axis=dim, dtype=np.float64)
        chain = min(shape[dim], LONGEST_CHAIN) + 64
        assert np.all(np.abs(total - exact) <= chain * _EPS[f32] * size + _EPS[f32] * abs(exact))
        assert np.array_equal(most, x.max(axis=dim))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_reductions_of_nothing_give_the_identity(kit: Any, dtype: DType) -> None:
    kinds = _KINDS.get(dtype.kind, ("add", "mul", "max", "min", "and", "or"))
    x, y = np.zeros((0, 3), dtype.numpy), np.zeros((2, 0), dtype.numpy)

    def build(x: Any, y: Any) -> list[Any]:
        return [reduce(k, dim)(v) for k in kinds for v, dim in ((x, 0), (y, 1), (x, 1))]

    kit.exact(build, x, y)


# Extremes


def specials(dtype: DType) -> Array:
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    tiny = [info.smallest_subnormal, info.smallest_normal, info.max]
    some = [0.0, 1.0, np.inf, *map(float, tiny)]
    return np.array([*some, *(-s for s in some), np.nan], np.float64).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes_of_all_special_pairs(kit: Any, dtype: DType) -> None:
    some = specials(dtype)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(some, some))
    kit.exact(lambda a, b: [ops.max(a, b), ops.min(a, b)], x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes_at_every_position(kit: Any, dtype: DType, kind: str) -> None:
    n = 2 * lanes(dtype) + 3
    rows = [np.full(n, -1.0 if kind == "max" else 1.0) for _ in range(3 * n)]
    for k in range(n):
        rows[3 * k][k] = np.nan
        rows[3 * k + 1][k] = np.inf if kind == "max" else -np.inf
        rows[3 * k + 2][:] = -0.0 if kind == "max" else 0.0
        rows[3 * k + 2][k] = 0.0 if kind == "max" else -0.0
    x = np.array(rows).astype(dtype.numpy)
    kit.exact(reduce(kind, 1), x)
    kit.exact(reduce(kind, 0), np.ascontiguousarray(x.T))
    for k in (0, 1, 2, 3 * n - 3, 3 * n - 1):
        kit.exact(reduce(kind, 0), x[k])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormals_and_special_values_are_kept_by_arithmetic(kit: Any, dtype: DType) -> None:
    some = specials(dtype)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(some, some))

    def build(a: Any, b: Any) -> Any:
        compared = [ops.compare(a, b, direction=d) for d in ("eq", "ne", "lt", "le", "gt", "ge")]
        rest = [ops.neg(a), ops.abs(a), ops.sqrt(a), ops.floor(a)]
        return [ops.add(a, b), ops.sub(a, b), ops.mul(a, b), ops.div(a, b), *compared, *rest]

    kit.exact(build, x, y)


def test_long_maxima_find_one_nan(kit: Any) -> None:
    x = np.zeros(1 << 20, np.float32)
    graph = kit.graph(lambda v: [reduce("max", 0)(v), reduce("min", 0)(v)], *kit.types([x]))
    for place in (0, 1, 12_345, (1 << 19) - 1, 1 << 19, (1 << 20) - 1):
        x[place] = np.nan
        assert all(np.isnan(y) for y in kit.run(graph, [x]))
        x[place] = 0
    assert [float(y) for y in kit.run(graph, [x])] == [0, 0]


# Integers


def integers(dtype: DType, n: int, seed: int = 0) -> Array:
    info, rng = np.iinfo(dtype.numpy), np.random.default_rng(seed)
    drawn = rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
    drawn[:4] = [info.min, info.max, 0, 1]
    return rng.permutation(drawn)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap(kit: Any, dtype: DType) -> None:
    x, y = integers(dtype, 203, 1), integers(dtype, 203, 2)

    def build(a: Any, b: Any) -> Any:
        pairs = [row(a, b) for row in (ops.add, ops.sub, ops.mul, ops.div, ops.rem, ops.max)]
        signed = [ops.neg(a), ops.abs(a)] if dtype.kind == "int" else []
        return [*pairs, *signed, *(reduce(k, 0)(a) for k in ("add", "mul", "min"))]

    kit.exact(build, x, y)
    info = np.iinfo(dtype.numpy)
    ends = np.array([info.min, info.max, 0, 1, info.max], dtype.numpy)
    low = np.array([info.max, info.min, 0, 0, -1 if info.min else 1], dtype.numpy)
    kit.exact(build, np.tile(ends, 5), np.repeat(low, 5))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_long_integer_sums_wrap(kit: Any, dtype: DType) -> None:
    kit.exact(lambda v: [reduce("add", 0)(v), reduce("mul", 0)(v)], integers(dtype, 200_001))


@pytest.mark.parametrize("dtype", [i8, i32], ids=str)
def test_shifts_of_any_width(kit: Any, dtype: DType) -> None:
    x = np.repeat(integers(dtype, 24, 3), dtype.bits + 8)
    width = np.tile(np.arange(-4, dtype.bits + 4), 24).astype(dtype.numpy)

    def build(a: Any, b: Any) -> Any:
        return [ops.shl(a, b), *(ops.shr(a, b, kind=k) for k in ("logical", "arithmetic"))]

    kit.exact(build, x, width)


# Tails


_GUARD = bytes(range(1, 65))


def lengths(dtype: DType) -> list[int]:
    """Every remainder of a vector: alone and after a vector, of wide vectors one or the other."""
    width = lanes(dtype)
    every = range(1, 2 * width + 2)
    ends = (0, 1, width - 1)
    return [n for n in every if width <= 16 or n % width in ends or (n + n // width) % 2]


def poisoned(nbytes: int) -> int:
    """Put bytes that no kernel may touch behind the next buffer of a size; its address."""
    buffer = memory().alloc(nbytes)
    ctypes.memmove(buffer.address + nbytes, _GUARD, -nbytes % 64)
    return int(buffer.address)


@pytest.mark.parametrize("dtype", [f32, f64, i8, bf16, i16], ids=str)
def test_every_length_of_a_tail(kit: Any, dtype: DType) -> None:
    device = devices.get("cpu")
    for n in lengths(dtype):
        x = kit.values(dtype, (n,), n)
        graph = kit.graph(lambda v: ops.add(ops.mul(v, v), v), *kit.types([x]))
        executable = compile_graph(graph, device).executable
        assert executable is not None
        handle = transfer.upload(device.device, x)
        address = poisoned(x.nbytes)
        (result,) = executable([handle])
        assert result.address == address, "the block was not handed out again"
        found = np.ndarray((n,), dtype.numpy, result)
        assert np.array_equal(found, x * x + x)
        rest = -x.nbytes % 64
        assert ctypes.string_at(address + x.nbytes, rest) == _GUARD[:rest]


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
def test_every_length_of_a_folded_row(kit: Any, dtype: DType) -> None:
    for n in lengths(dtype):
        x = kit.values(dtype, (3, n), n)
        kit.equal(lambda v: [reduce("add", 1)(v), reduce("max", 0)(v), ops.transpose(
            v, permutation=(1, 0))], x)  # fmt: skip


def test_nothing_before_or_behind_an_array_is_read(python: Callable[..., Any]) -> None:
    # The last byte of each array is the last of its page, and the first of the next is forbidden.
    code = """
import ctypes, mmap
import numpy as np
import bringup as bu
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.PAGESIZE
region = mmap.mmap(-1, 4 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(region))
for guard in (0, 3):
    assert libc.mprotect(ctypes.c_void_p(start + guard * page), page, 0) == 0
def at_the_end(x):
    there = np.frombuffer(region, x.dtype, x.size, 3 * page - x.nbytes).reshape(x.shape)
    there[...] = x
    return there
def at_the_start(x):
    there = np.frombuffer(region, x.dtype, x.size, page).reshape(x.shape)
    there[...] = x
    return there
def work(x):
    return x + x, bu.sum(x, axis=1), bu.max(x, axis=0), bu.permute_dims(x, (1, 0)), bu.flip(x)
for dtype, sizes in ((np.float32, range(1, 36)), (np.int8, (1, 15, 16, 17, 63, 65, 127, 129))):
    for n in sizes:
        x = (np.arange(3 * n) % 7).astype(dtype).reshape(3, n)
        fn = bu.jit(work)
        for there in (at_the_end(x), at_the_start(x), at_the_end(x)):
            twice, total, most, turned, flipped = map(np.asarray, fn(there))
            assert np.array_equal(twice, x + x)
            assert np.array_equal(total, x.sum(axis=1))
            assert np.array_equal(most, x.max(axis=0))
            assert np.array_equal(turned, x.T)
            assert np.array_equal(flipped, x[::-1, ::-1])
import os
os._exit(0)  # The region cannot be unmapped while arrays show it.
"""
    python(code)


@pytest.mark.parametrize("dtype", [f32, f64, i8, bf16], ids=str)
def test_arrays_that_start_anywhere(kit: Any, dtype: DType) -> None:
    n = 3 * lanes(dtype) + 5
    fn = bu.jit(lambda x, y: (x * y + x, bu.sum(x), bu.max(y)))
    base = kit.values(dtype, (n + 20,), 1)
    for k, j in ((0, 0), (1, 0), (0, 1), (1, 1), (3, 7), (15, 16), (17, 2)):
        x, y = base[k : k + n], base[j : j + n]
        for _ in range(2):
            product, total, most = map(np.asarray, fn(x, y))
            assert np.array_equal(product, x * y + x)
            assert float(total) == x.astype(np.float64).sum()
            assert most == y.max()


# Shapes and movement


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (1,) * 8])
def test_arrays_of_no_and_one_element(kit: Any, dtype: DType, shape: Dims) -> None:
    dims = tuple(range(len(shape)))
    kit.exact(lambda x: [ops.add(x, x), reduce("max", *dims)(x), ops.transpose(
        x, permutation=dims[::-1])], kit.values(dtype, shape))  # fmt: skip


def test_rank_eight(kit: Any) -> None:
    x = kit.values(f32, (2, 3, 1, 4, 2, 3, 2, 5))
    order = (7, 2, 5, 0, 3, 6, 1, 4)

    def build(v: Any) -> Any:
        turned = ops.transpose(v, permutation=order)
        wide = ops.broadcast_in_dim(reduce("max", 0, 3, 7)(v), shape=(2, 3, 1, 2, 2, 3, 2, 4),
                                    dims=(1, 2, 3, 5, 6))  # fmt: skip
        return [turned, ops.mul(turned, turned), reduce("add", 1, 4, 6)(turned), wide]

    kit.equal(build, x)


def reverse(x: Any, *dims: int) -> Any:
    start = tuple(n - 1 if d in dims else 0 for d, n in enumerate(x.shape))
    limit = tuple(-1 if d in dims else n for d, n in enumerate(x.shape))
    return ops.slice(x, start=start, limit=limit,
                     stride=tuple(-1 if d in dims else 1 for d in range(len(x.shape))))  # fmt: skip


def every(x: Any, *strides: int) -> Any:
    return ops.slice(x, start=(0,) * len(strides), limit=x.shape, stride=strides)


def turn(x: Any, *order: int) -> Any:
    return ops.transpose(x, permutation=order)


def padded(x: Any, lo: Dims, hi: Dims, interior: Dims) -> Any:
    fill = parts.splat(7, x.type.with_shape(()))
    return ops.pad(x, fill, lo=lo, hi=hi, interior=interior)


_MOVES: dict[str, tuple[Dims, Callable[[Any], Any]]] = {
    "reversed": ((67,), lambda x: reverse(x, 0)),
    "reversed rows": ((9, 67), lambda x: reverse(x, 0)),
    "both reversed": ((9, 67), lambda x: reverse(x, 0, 1)),
    "every second": ((131,), lambda x: every(x, 2)),
    "every third of columns": ((7, 131), lambda x: every(x, 1, 3)),
    "every third of turned": ((131, 7), lambda x: turn(every(x, 3, 2), 1, 0)),
    "turned": ((33, 70), lambda x: turn(x, 1, 0)),
    "turned stacks": ((3, 33, 70), lambda x: turn(x, 0, 2, 1)),
    "cycled": ((9, 17, 33), lambda x: turn(x, 2, 0, 1)),
    "turned and reshaped": ((6, 35), lambda x: ops.reshape(turn(x, 1, 0), shape=(7, 30))),
    "reshaped and turned": ((6, 35), lambda x: turn(ops.reshape(x, shape=(14, 15)), 1, 0)),
    "padded": ((5, 31), lambda x: padded(x, (1, 2), (3, 0), (0, 0))),
    "padded inside": ((5, 31), lambda x: padded(x, (0, 1), (1, 0), (2, 1))),
    "cropped": ((9, 40), lambda x: padded(x, (-2, -3), (-1, -4), (0, 0))),
    "cropped inside": ((9, 40), lambda x: padded(x, (-1, 2), (3, -5), (1, 2))),
    "turned and padded": ((31, 5), lambda x: padded(turn(x, 1, 0), (0, 3), (1, 1), (0, 0))),
    "joined": ((4, 19), lambda x: ops.concatenate(x, reverse(x, 1), every(x, 1, 1), dim=1)),
    "joined and turned": ((4, 19), lambda x: turn(ops.concatenate(x, x, dim=0), 1, 0)),
    "repeated": ((5, 9), lambda x: ops.broadcast_in_dim(x, shape=(5, 3, 9), dims=(0, 2))),
    "a diagonal of blocks": (
        (8, 8),
        lambda x: ops.reshape(every(ops.reshape(padded(x, (0, 0), (1, 0), (0, 0)), shape=(72,)), 9),
                              shape=(8,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("move", _MOVES)
def test_movement(kit: Any, move: str) -> None:
    """Each dtype alone, or with a reduction that reads the same: in turn, over the movements."""
    shape, build = _MOVES[move]

    def both(x: Any) -> Any:
        moved = build(x)
        return [moved, reduce("max", len(moved.shape) - 1)(ops.neg(moved))]

    for number, dtype in enumerate((f32, i8, f64, bf16), list(_MOVES).index(move)):
        kit.exact(both if number % 2 else build, kit.values(dtype, shape, 5))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: turn(x, 1, 0),
        lambda x: reverse(x, 0, 1),
        lambda x: turn(every(x, 3, 1), 1, 0),
        lambda x: ops.reshape(turn(ops.reshape(x, shape=(101, 10, 103, 11)), 2, 0, 3, 1),
                              shape=(1133, 1010)),
        lambda x: ops.concatenate(turn(x, 1, 0), turn(reverse(x, 0), 1, 0), dim=0),
        lambda x: padded(turn(x, 1, 0), (3, 5), (7, -11), (1, 0)),
    ],
    ids=["turned", "reversed", "every third turned", "blocks", "joined", "padded"],
)  # fmt: skip
def test_movement_of_much(kit: Any, build: Callable[[Any], Any]) -> None:
    x = np.arange(1010 * 1133, dtype=np.float32).reshape(1010, 1133)
    kit.exact(build, x)
