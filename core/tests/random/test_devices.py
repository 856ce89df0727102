"""The same bits on every device, fused or op by op, deferred or compiled; and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.ops.evaluate import evaluate

Draw = Callable[[bu.random.Key], bu.Array]
R = bu.random

SAMPLERS: dict[str, Draw] = {
    "bits": lambda k: R.bits(k, (7, 5)),
    "bits of u64": lambda k: R.bits(k, 33, dtype=bu.uint64),
    "uniform": lambda k: R.uniform(k, 33, dtype=bu.float32),
    "uniform of f64": lambda k: R.uniform(k, 33),
    "uniform of f16": lambda k: R.uniform(k, 33, dtype=bu.float16),
    "uniform of bf16": lambda k: R.uniform(k, 33, dtype=bu.bfloat16),
    "uniform between": lambda k: R.uniform(k, 33, dtype=bu.float32, low=-1.0, high=3.0),
    "normal": lambda k: R.normal(k, (4, 9), dtype=bu.float32),
    "normal of f64": lambda k: R.normal(k, 33),
    "normal of bf16": lambda k: R.normal(k, 33, dtype=bu.bfloat16),
    "truncated": lambda k: R.truncated_normal(k, -1.0, 2.0, 33, dtype=bu.float32),
    "exponential": lambda k: R.exponential(k, 33, dtype=bu.float32),
    "gumbel": lambda k: R.gumbel(k, 33, dtype=bu.float32),
    "laplace": lambda k: R.laplace(k, 33),
    "bernoulli": lambda k: R.bernoulli(k, 0.3, 33),
    "randint": lambda k: R.randint(k, 33, -3, 8, dtype=bu.int32),
    "randint of i64": lambda k: R.randint(k, 33, 0, 10**15),
    "split": lambda k: R.split(k, 3).data,
    "fold_in": lambda k: R.fold_in(k, 5).data,
    "use": lambda k: R.uniform(R.split(k)[1], 33, dtype=bu.float32) * 2.0 + 1.0,
}
IMPLS = ("threefry2x32", "philox4x32")


def content(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def by_reference(draw: Draw, impl: str) -> bytes:
    """The traced function, op by op, by the table's numpy references."""
    key = R.key(42, impl=impl)
    traced = bu.trace(lambda words: draw(R.Key(words, impl)), key.data)
    return content(evaluate(traced, [np.asarray(key.data)])[0])


#: What is made of the words does not depend on the generator.
EVERYWHERE = [(name, IMPLS[0]) for name in SAMPLERS] + [
    (name, IMPLS[1]) for name in ("bits", "bits of u64", "normal", "split", "fold_in")
]


@pytest.mark.parametrize(("name", "impl"), EVERYWHERE)
def test_the_same_bits_everywhere(name: str, impl: str) -> None:
    """Bits are drawn on all devices, and what is made of them on three of those, in turn."""
    draw = SAMPLERS[name]
    wanted = by_reference(draw, impl)
    names = [d for d in bu.devices() if ":" not in d]
    first = EVERYWHERE.index((name, impl)) % len(names)
    in_turn = [*names[first:], *names[:first]]
    for device in names if name == "bits" else in_turn[:3]:
        key = R.key(42, impl=impl, device=device)
        assert content(bu.jit(draw)(key)) == wanted, f"compiled for {device}"
        assert content(draw(key)) == wanted, f"deferred on {device}"


@pytest.mark.parametrize("name", SAMPLERS)
def test_keys_mapped_over_give_what_each_gives(name: str) -> None:
    draw, keys = SAMPLERS[name], R.split(R.key(7), 3)
    mapped = np.asarray(bu.vmap(draw)(keys))
    assert content(mapped) == content(np.stack([np.asarray(draw(k)) for k in keys]))


def test_a_program_around_changes_no_bits() -> None:
    """Also where the numbers are read in another order, or twice, or only in part."""
    key = R.key(1)
    x = np.asarray(R.normal(key, (6, 8), dtype=bu.float32))

    @bu.jit
    def program(k: R.Key) -> Any:
        y = R.normal(k, (6, 8), dtype=bu.float32)
        return y.T, y[2:4, ::-1], bu.max(y, axis=0), bu.exp(y) * 0 + y

    turned, part, most, again = map(np.asarray, program(key))
    assert np.array_equal(turned, x.T)
    assert np.array_equal(part, x[2:4, ::-1])
    assert np.array_equal(most, x.max(axis=0))
    assert np.array_equal(again, x)


def kernels(fn: Callable[..., Any], *args: Any) -> tuple[int, int, int]:
    """Launches, and bytes read and written."""
    cost = bu.jit(fn).lower(*args).cost()
    return cost.kernels, cost.bytes_read, cost.bytes_written


N = 1 << 15
KEY = 8  # bytes


@pytest.mark.parametrize("impl", IMPLS)
def test_sampling_and_use_are_one_kernel_without_memory_between(impl: str) -> None:
    key, f32 = R.key(0, impl=impl), bu.float32
    total = kernels(lambda k: bu.sum(R.normal(k, N, dtype=f32)), key)
    assert total == (1, KEY, 4)
    x = bu.zeros(N, dtype=f32)
    noisy = kernels(lambda k, x: x + R.normal(k, x.shape, dtype=f32), key, x)
    assert noisy == (1, KEY + 4 * N, 4 * N)
    below = kernels(lambda k: bu.mean(bu.astype(R.uniform(k, N, dtype=f32) < 0.5, f32)), key)
    assert below == (1, KEY, 4)
    counted = kernels(lambda k: bu.sum(R.randint(k, N, 0, 6, dtype=bu.int32)), key)
    assert counted[:2] == (1, KEY)


def test_dropout_before_a_row_operation_is_one_kernel() -> None:
    x = bu.zeros((64, 100), dtype=bu.float32)

    def rows(k: R.Key, x: bu.Array) -> bu.Array:
        keep = R.bernoulli(k, 0.9, x.shape)
        return bu.nn.softmax(bu.where(keep, x, 0.0), axis=1)

    size = 4 * 64 * 100
    assert kernels(rows, R.key(0), x) == (1, KEY + size, size)


def test_a_categorical_choice_is_one_kernel() -> None:
    logits = bu.zeros((64, 100), dtype=bu.float32)
    cost = kernels(lambda k, logits: R.categorical(k, logits), R.key(0), logits)
    assert cost == (1, KEY + 4 * 6400, 8 * 64)
