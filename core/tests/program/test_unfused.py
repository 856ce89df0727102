"""`jit` without fusion, and `compare`: exact counts on the default device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.compare import Comparison, _difference
from bringup.errors import OpTypeError, TraceError

f32 = bu.float32


def line(x: Any, y: Any, z: Any) -> Any:
    return bu.sum(x + y * z)


def relu_layer(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


def looped(x: Any) -> Any:
    return bu.fori_loop(0, 3, lambda _i, y: y * 2 + bu.sin(y), x)


def nested(x: Any) -> Any:
    return bu.jit(lambda y: bu.exp(y) * y)(x) - x


def loss(w: Any, x: Any) -> Any:
    return bu.sum(bu.exp(x * w) * x)


# Launches fused and op by op, then bytes read and written op by op.  n = 1000 elements of 4 bytes.
N = 4000
COUNTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, int, int, int]] = {
    "line": (line, (f32[1000],) * 3, 1, 3, 5 * N, 2 * N + 4),
    "chain": (lambda x: bu.exp(x) * x - x, (f32[1000],), 1, 3, 5 * N, 3 * N),
    "grad": (bu.grad(loss), (f32[1000], f32[1000]), 1, 4, 7 * N, 4 * N),
    "vmap": (bu.vmap(line), (f32[10, 100],) * 3, 1, 3, 5 * N, 2 * N + 40),
    "nested jit": (nested, (f32[1000],), 1, 3, 5 * N, 3 * N),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_operation_is_a_launch(name: str) -> None:
    fn, types, fused, unfused, read, written = COUNTS[name]
    assert bu.jit(fn).lower(*types).cost().kernels == fused
    cost = bu.jit(fn, fuse=False).lower(*types).cost()
    assert (cost.kernels, cost.bytes_read, cost.bytes_written) == (unfused, read, written)


def test_the_outermost_jit_decides() -> None:
    apart = bu.jit(line, fuse=False)
    whole = bu.jit(lambda x, y, z: apart(x, y, z) * 2)
    assert whole.lower(*[f32[1000]] * 3).cost().kernels == 1


def test_bodies_of_loops_are_not_fused_either() -> None:
    def kernels(fuse: bool) -> int:
        return bu.jit(looped, fuse=fuse).lower(f32[1000]).cost().kernels

    once = bu.jit(lambda y: y * 2 + bu.sin(y)).lower(f32[1000]).cost().kernels
    apart = bu.jit(lambda y: y * 2 + bu.sin(y), fuse=False).lower(f32[1000]).cost().kernels
    # The condition and the counter are the same in both.
    assert kernels(False) - kernels(True) >= 3 * (apart - once) > 0


def test_it_is_a_decorator_with_texts() -> None:
    @bu.jit(fuse=False)
    def chain(x: Any) -> Any:
        return bu.exp(x) * x

    made = chain.lower(f32[8])
    assert str(made).startswith("chain: 2 launches")
    assert len(made.kernels) == 2
    assert made.source != bu.jit(chain.__wrapped__).lower(f32[8]).source  # type: ignore[attr-defined]
    assert chain.lower(f32[8], target="cpu:x86-64-v3").cost().kernels == 2


def test_both_programs_live_side_by_side() -> None:
    """In memory, on disk, and behind the device's own table of calls."""
    x = bu.asarray(np.linspace(0, 1, 1000, dtype=np.float32))
    wanted = line(np.asarray(x, np.float64), np.asarray(x, np.float64), np.asarray(x, np.float64))
    for _ in range(2):
        one, many = bu.jit(line), bu.jit(line, fuse=False)
        for _ in range(3):
            for run in (one, many):
                # A sum of 1000 positive terms: 1000 roundings at most, and that of each product.
                error = abs(float(run(x, x, x)) - wanted)
                assert error <= 1002 * np.finfo(np.float32).eps / 2 * wanted
        assert one.lower(x, x, x).program.key != many.lower(x, x, x).program.key
        bu.clear_caches()


def test_compare_counts_both() -> None:
    x = bu.asarray(np.linspace(-1, 1, 1000, dtype=np.float32))
    found = bu.compare(line, x, x + 1, x * 3, repeats=3)
    assert (found.fused.cost.kernels, found.unfused.cost.kernels) == (1, 3)
    assert (found.fused.bytes_moved, found.unfused.bytes_moved) == (3 * N + 4, 7 * N + 4)
    assert found.ratio == found.unfused.seconds / found.fused.seconds > 0
    head, launches, moved, time, *rest = str(found).splitlines()
    assert head.split() == ["line", "on", "cpu", "fused", "op", "by", "op", "ratio"]
    assert launches.split() == ["launches", "1", "3", "3.00"]
    assert moved.split() == ["bytes", "moved", "12,004", "28,004", "2.33"]
    assert time.startswith("median time")
    assert rest == [f"result 0, f32[]: at most {found.ulp[0]:g} ULP apart"]


def test_compare_takes_functions_of_jit_and_all_kinds_of_arguments() -> None:
    @bu.jit(static_argnames="times", donate_argnums=0)
    def several(x: Any, *, tree: Any, times: int) -> Any:
        return {"sum": bu.sum(x * tree["y"]) * times, "place": bu.argmax(x), "large": x > 1}

    x = bu.arange(6, dtype=f32)
    found = bu.compare(several, x, tree={"y": np.ones(6, np.float32)}, times=2, repeats=1)
    assert isinstance(found, Comparison)
    assert [str(t) for t in found.types] == ["bool[6]", "i64[]", "f32[]"]
    assert found.ulp == (0, 0, 0)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]  # nothing was donated


def test_compare_refuses_what_has_no_answer() -> None:
    with pytest.raises(TraceError, match="nothing runs while a function is traced"):
        bu.jit(lambda x: bu.compare(bu.exp, x).ratio)(bu.ones(3))
    with pytest.raises(OpTypeError, match="0 calls have no median time"):
        bu.compare(bu.exp, bu.ones(3), repeats=0)


@pytest.mark.parametrize(
    "dtype", [bu.float8_e4m3fn, bu.bfloat16, bu.float16, f32, bu.float64], ids=str
)
def test_differences_count_the_numbers_in_between(dtype: Any) -> None:
    host = dtype.numpy
    bits = np.dtype(f"u{host.itemsize}")
    one = np.asarray(1, host)
    above = (one.view(bits) + np.asarray(3, bits)).view(host)
    assert _difference(one, above) == _difference(-one, -above) == 3
    least = np.asarray(1, bits).view(host)  # subnormal
    assert _difference(least, -least) == 2
    assert _difference(np.asarray(0.0, host), np.asarray(-0.0, host)) == 0
    nan = np.asarray(math.nan, host)
    assert _difference(nan, -nan) == 0
    assert _difference(np.stack([one, nan]), np.stack([one, one])) == math.inf
    assert _difference(np.zeros(0, host), np.zeros(0, host)) == 0


@pytest.mark.parametrize(("dtype", "width"), [("i1", 255), ("u8", 2**64 - 1), ("i8", 2**64 - 1)])
def test_differences_of_integers_do_not_wrap(dtype: str, width: int) -> None:
    limits = np.iinfo(dtype)
    assert _difference(np.asarray(limits.max, dtype), np.asarray(limits.min, dtype)) == float(width)
    assert _difference(np.asarray(True), np.asarray(False)) == 1
