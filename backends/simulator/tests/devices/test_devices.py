"""Programs on each of the three devices against numpy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.errors import DeletedBufferError, OpTypeError
from bringup.runtime.devices import OpenDevice
from bringup_simulator import Accelerator

Array = np.ndarray[Any, Any]
bf16 = np.dtype(ml_dtypes.bfloat16)
# A few roundings of each; bf16 and f16 results are compared with f64.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def data(dtype: Any, *shape: int, seed: int = 0) -> Array:
    """Small numbers of both signs, none near 0."""
    generator = np.random.default_rng(seed)
    if np.dtype(dtype) == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if np.dtype(dtype).kind in "iu":
        return generator.integers(1, 100, shape).astype(dtype)
    return (generator.uniform(0.5, 2, shape) * generator.choice([-1, 1], shape)).astype(dtype)


def close(actual: Any, expected: Array, dtype: Any) -> None:
    """Equal in shape, and in value but for a few roundings of ``dtype``."""
    found = np.asarray(actual)
    assert found.dtype == np.dtype(dtype)
    assert found.shape == expected.shape
    if np.dtype(dtype).kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    limit = TOLERANCE[np.dtype(dtype).name]
    wide = found.astype(np.float64)
    np.testing.assert_allclose(wide, expected.astype(np.float64), rtol=limit, atol=limit)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    total: Array = e / e.sum(-1, keepdims=True)
    return total


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    result: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    return result


def bu_layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - bu.mean(x, axis=-1, keepdims=True)
    spread = bu.mean(centred * centred, axis=-1, keepdims=True)
    return centred / bu.sqrt(spread + 1e-5) * scale + shift


def conv_layer(x: Array, w: Array) -> Array:
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    found = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2], axis=2)
    return np.maximum(np.einsum("ncik,mck->nmi", found, w), 0)


def attention(q: Array, k: Array, v: Array) -> Array:
    hidden = np.where(np.tril(np.ones((len(q), len(k)))) > 0, 0.0, -np.inf)
    result: Array = softmax(q @ k.T / np.sqrt(q.shape[1]) + hidden) @ v
    return result


@dataclass(frozen=True)
class Case:
    """The same function of both libraries, and the shapes of its float arguments."""

    ours: Callable[..., Any]
    numpys: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


# 130 is a vector of the chip and two lanes more; 3 is less than one.
FLOAT: dict[str, Case] = {
    "arithmetic": Case(
        lambda x, y: (x + y) * x - x / y, lambda x, y: (x + y) * x - x / y, ((3, 130), (3, 130))
    ),
    "broadcast": Case(lambda x, y: x * y + 1, lambda x, y: x * y + 1, ((4, 1, 33), (5, 1))),
    "functions": Case(
        lambda x: bu.exp(x) + bu.tanh(x) + bu.sin(x) * bu.log(bu.abs(x)) - bu.sqrt(bu.abs(x)),
        lambda x: np.exp(x) + np.tanh(x) + np.sin(x) * np.log(np.abs(x)) - np.sqrt(np.abs(x)),
        ((257,),),
    ),
    "choice": Case(
        lambda x, y: bu.where(x < y, bu.maximum(x, -y), bu.floor(y)),
        lambda x, y: np.where(x < y, np.maximum(x, -y), np.floor(y)),
        ((7, 19), (7, 19)),
    ),
    "softmax": Case(lambda x: bu.nn.softmax(x, axis=-1), softmax, ((5, 131),)),
    "layer_norm": Case(bu_layer_norm, layer_norm, ((6, 130), (130,), (130,))),
    "matmul": Case(
        lambda x, w, b: bu.nn.relu(x @ w + b),
        lambda x, w, b: np.maximum(x @ w + b, 0),
        ((5, 9), (9, 7), (7,)),
    ),
    "batched_matmul": Case(lambda x, y: x @ y, lambda x, y: x @ y, ((2, 3, 4), (2, 4, 5))),
    "movement": Case(
        lambda x: bu.flip(bu.permute_dims(x, (2, 0, 1)), axis=1)[1::2, :, 3:0:-1],
        lambda x: np.flip(np.transpose(x, (2, 0, 1)), axis=1)[1::2, :, 3:0:-1],
        ((3, 5, 6),),
    ),
    "joining": Case(
        lambda x, y: bu.reshape(bu.concat([x, y * 2, x], axis=1), (-1,)),
        lambda x, y: np.concatenate([x, y * 2, x], axis=1).reshape(-1),
        ((4, 3), (4, 2)),
    ),
    "several_reductions": Case(
        lambda x: bu.sum(x, axis=1) / bu.max(bu.abs(x), axis=1) + bu.min(x, axis=1),
        lambda x: x.sum(1) / np.abs(x).max(1) + x.min(1),
        ((4, 140),),
    ),
    "convolution": Case(
        lambda x, w: bu.nn.relu(bu.nn.conv(x, w, padding="same")),
        conv_layer,
        ((2, 3, 35), (4, 3, 3)),
    ),
    "pooling": Case(
        lambda x: bu.nn.max_pool(x, 2),
        lambda x: x.reshape(2, 3, 4, 2, 5, 2).max(axis=(3, 5)),
        ((2, 3, 8, 10),),
    ),
    "attention": Case(
        lambda q, k, v: bu.nn.attention(q, k, v, causal=True), attention, ((9, 4),) * 3
    ),
    "no_axes": Case(lambda x: bu.exp(x) * 2 - x, lambda x: np.exp(x) * 2 - x, ((),)),
    "one_element": Case(lambda x: bu.sum(x * x), lambda x: (x * x).sum(), ((1, 1),)),
    "no_elements": Case(lambda x: bu.exp(x) + 1, lambda x: np.exp(x) + 1, ((0, 4),)),
    "sums_of_nothing": Case(
        lambda x: bu.sum(x, axis=0) + 1, lambda x: x.sum(0) + 1, ((0, 4),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", bf16], ids=["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", FLOAT)
def test_float_programs(device: OpenDevice, name: str, dtype: Any) -> None:
    case = FLOAT[name]
    inputs = [data(dtype, *shape, seed=n) for n, shape in enumerate(case.shapes)]
    expected = np.asarray(case.numpys(*(x.astype(np.float64) for x in inputs)))
    close(bu.jit(case.ours, device=device)(*inputs), expected, dtype)


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_reductions_over_any_axes(device: OpenDevice, name: str, axis: Any) -> None:
    x = data("f4", 3, 4, 129)
    x[:, :, :120] = 1
    ours = bu.jit(lambda x: getattr(bu, name)(x, axis=axis), device=device)
    close(ours(x), getattr(np, name)(x.astype("f8"), axis=axis), "f4")


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_wrap(device: OpenDevice, dtype: str) -> None:
    x, y = data(dtype, 9, 15, seed=1), data(dtype, 9, 15, seed=2)
    function = bu.jit(
        lambda x, y: (x * y + x - y, (x & y) ^ (x | y), bu.max(x, axis=1)), device=device
    )
    product, bits, most = function(x, y)
    close(product, x * y + x - y, dtype)
    close(bits, (x & y) ^ (x | y), dtype)
    close(most, x.max(1), dtype)


def test_booleans(device: OpenDevice) -> None:
    x, y = data("?", 40, seed=1), data("?", 40, seed=2)
    both, any_ = bu.jit(lambda x, y: (bu.logical_and(x, ~y), bu.any(x)), device=device)(x, y)
    close(both, x & ~y, "?")
    close(any_, x.any(), "?")


@pytest.mark.parametrize("target", ["f8", "f4", "f2", bf16, "i8", "i4", "i1", "u1", "?"], ids=str)
@pytest.mark.parametrize("source", ["f8", "f4", "f2", bf16, "i4", "u1", "?"], ids=str)
def test_conversions(device: OpenDevice, source: Any, target: Any) -> None:
    x = data(source, 50)
    x = np.abs(x) if np.dtype(source).kind != "b" else x
    wanted = bu.asarray(np.zeros(1, target), device=device).dtype
    close(bu.jit(lambda x: bu.astype(x, wanted), device=device)(x), x.astype(target), target)


def test_deferred_code_is_run_on_the_device_of_its_arrays(
    device: OpenDevice, chip: Accelerator
) -> None:
    host = data("f4", 8, 16)
    x = bu.asarray(host, device=device)
    y = bu.sum(x * 2, axis=0)
    assert y.device is device
    before = chip.counters
    assert before.launches + before.calls == 0
    close(y, (host * 2).sum(0), "f4")
    assert chip.counters.launches + chip.counters.calls > 0


def test_a_gradient(device: OpenDevice) -> None:
    w, x = data("f4", 5, 3, seed=1), data("f4", 4, 5, seed=2)
    slope = bu.jit(bu.grad(lambda w, x: bu.sum(bu.tanh(x @ w))), device=device)
    close(slope(w, x), x.T @ (1 - np.tanh(x @ w) ** 2), "f4")


def test_donated_memory_is_used_and_the_array_is_gone(
    device: OpenDevice, chip: Accelerator
) -> None:
    step = bu.jit(lambda x: x * 2 + 1, device=device, donate_argnums=0)
    x = bu.asarray(np.full(1 << 16, 3, "f4"), device=device)
    close(step(x), np.full(1 << 16, 7.0), "f4")
    with pytest.raises(DeletedBufferError):
        np.asarray(x)
    gc.collect()
    y = bu.asarray(np.full(1 << 16, 3, "f4"), device=device)
    chip.synchronize()
    before = chip.counters.live_bytes
    z = step(y)
    chip.synchronize()
    assert chip.counters.live_bytes == before
    close(z, np.full(1 << 16, 7.0), "f4")


def test_an_input_that_is_not_donated_stays(device: OpenDevice) -> None:
    host = data("f4", 300)
    x = bu.asarray(host, device=device)
    np.asarray(bu.jit(lambda x: x * 2, device=device)(x))
    np.testing.assert_array_equal(np.asarray(x), host)


def test_a_loop_of_steps_ends_where_numpy_ends(device: OpenDevice) -> None:
    a, x = data("f4", 6, 6) / 8, data("f4", 6)
    step = bu.jit(lambda a, x: bu.tanh(a @ x) + 0.1, device=device, donate_argnums=1)
    expected = x.astype("f8")
    ours: Any = bu.asarray(x, device=device)
    for _ in range(30):
        ours, expected = step(a, ours), np.tanh(a.astype("f8") @ expected) + 0.1
    close(ours, expected, "f4")


def test_two_devices_do_not_mix(
    device: OpenDevice, another: Callable[[str, int], OpenDevice]
) -> None:
    other = another(device.backend_name, 1)
    x, y = (bu.asarray(data("f4", 4), device=d) for d in (device, other))
    with pytest.raises(OpTypeError, match="is on"):
        bu.jit(lambda x, y: x + y)(x, y)
    moved = x.to(other) + y
    assert moved.device is other
    close(moved, 2 * data("f4", 4), "f4")


@pytest.mark.parametrize("device", ["simulator-kernels", "simulator-program"], indirect=True)
def test_softmax_is_one_launch(device: OpenDevice, chip: Accelerator) -> None:
    x = data("f4", 40, 200)
    function = bu.jit(lambda x: bu.nn.softmax(x, axis=-1), device=device)
    np.asarray(function(x))
    before = chip.counters
    np.asarray(function(x))
    after = chip.counters
    assert after.launches - before.launches == 1
    # Once for the maximum and once for exp, whose row stays in the scratchpad.
    assert after.kernel_read - before.kernel_read == 2 * x.nbytes
    assert after.kernel_written - before.kernel_written == x.nbytes
