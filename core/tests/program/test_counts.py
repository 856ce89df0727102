"""Launches and bytes of whole programs: exact, where time is noisy.

Every program here is also run by the reference interpreter, before and after fusion and planning
(``BRINGUP_CHECK=2``), so that no count comes from a wrong program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from lowering import lower

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8, int32
from bringup.program.program import KernelStep, OpStep
from bringup.types import TensorType

f32 = float32


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


@dataclass(frozen=True, slots=True)
class Case:
    """A function, its arguments, and what one run of it must cost; read, written: bytes."""

    fn: Callable[..., Any]
    types: tuple[TensorType, ...]
    kernels: int
    unfused: int
    read: int
    written: int
    arena: int = 0


def case(
    fn: Callable[..., Any],
    *types: TensorType,
    kernels: tuple[int, int],
    elements: tuple[int, int],
    arena: int = 0,
) -> Case:
    """kernels: fused and unfused.  elements: of 4 bytes, read and written."""
    return Case(fn, types, *kernels, 4 * elements[0], 4 * elements[1], arena)


def softmax(x: Any) -> Any:
    return bu.nn.softmax(x)


def log_sum_exp(x: Any) -> Any:
    top = bu.max(x, axis=-1, keepdims=True)
    return bu.log(bu.sum(bu.exp(x - top), axis=-1)) + bu.squeeze(top, axis=-1)


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    return bu.nn.layer_norm(x, gain, bias)


def weighed_norm(x: Any, gain: Any, bias: Any, weight: Any) -> Any:
    return bu.sum(layer_norm(x, gain, bias) * weight)


def cross_entropy(x: Any, labels: Any) -> Any:
    hot = bu.nn.one_hot(labels, x.shape[-1], dtype=f32)
    return -bu.mean(bu.sum(bu.nn.log_softmax(x) * hot, axis=-1))


def weighed_softmax(x: Any, weight: Any) -> Any:
    return bu.sum(bu.nn.softmax(x) * weight)


def softmax_and_pullback(x: Any, weight: Any) -> Any:
    return bu.nn.softmax(x), bu.grad(weighed_softmax)(x, weight)


def dense(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


def regression_step(w: Any, b: Any, x: Any, labels: Any) -> Any:
    def loss(parameters: Any) -> Any:
        return cross_entropy(x @ parameters[0] + parameters[1], labels)

    value, gradients = bu.value_and_grad(loss)((w, b))
    return value, *[p - 0.1 * g for p, g in zip((w, b), gradients, strict=True)]


def network_step(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, labels: Any) -> Any:
    def loss(p: Any) -> Any:
        return cross_entropy(dense(x, p[0], p[1]) @ p[2] + p[3], labels)

    parameters = (w1, b1, w2, b2)
    value, gradients = bu.value_and_grad(loss)(parameters)
    return value, *[p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]


def attention(q: Any, k: Any, v: Any) -> Any:
    return bu.nn.softmax(q @ k.T) @ v


def moved(x: Any, y: Any) -> Any:
    """Transposed, reversed, cut and joined."""
    turned = bu.permute_dims(x, (1, 0))[::-1, 1:]
    return bu.concat([turned, bu.flip(y, axis=0)], axis=1)


N, R, C = 1000, 8, 100
ROWS = f32[R, C]
B, D, K, H = 64, 32, 10, 48  # batch, features, classes, hidden

CASES: dict[str, Case] = {
    "elementwise chain": case(
        lambda x, y: bu.tanh(x * y + x) - 1,
        f32[N], f32[N], kernels=(1, 4), elements=(2 * N, N),
    ),
    "sum(x + y*z)": case(
        lambda x, y, z: bu.sum(x + y * z),
        f32[N], f32[N], f32[N], kernels=(1, 3), elements=(3 * N, 1),
    ),
    "softmax": case(softmax, ROWS, kernels=(1, 7), elements=(R * C, R * C)),
    "softmax of columns": case(
        lambda x: bu.nn.softmax(x, axis=0), ROWS, kernels=(1, 7), elements=(R * C, R * C)
    ),
    "log_softmax": case(
        lambda x: bu.nn.log_softmax(x), ROWS, kernels=(1, 8), elements=(R * C, R * C)
    ),
    "log-sum-exp": case(log_sum_exp, ROWS, kernels=(1, 7), elements=(R * C, R)),
    "layer norm, affine": case(
        layer_norm, ROWS, f32[C], f32[C], kernels=(1, 16), elements=(R * C + 2 * C, R * C)
    ),
    "layer norm, gradient of x": case(
        bu.grad(weighed_norm), ROWS, f32[C], f32[C], ROWS,
        kernels=(1, 25), elements=(2 * R * C + C, R * C),
    ),
    # The second sums columns: it reads x, the weight and the rows' means and deviations again.
    "layer norm, all gradients": case(
        bu.grad(weighed_norm, argnums=(0, 1, 2)), ROWS, f32[C], f32[C], ROWS,
        kernels=(2, 28), elements=(2 * R * C + C + 2 * R * C + 2 * R, R * C + 2 * C + 2 * R),
        arena=128,
    ),
    "cross-entropy": case(
        cross_entropy, ROWS, int32[R],
        kernels=(2, 16), elements=(R * C + R + R, R + 1), arena=64,
    ),
    "cross-entropy, gradient": case(
        bu.grad(cross_entropy), ROWS, int32[R], kernels=(1, 17), elements=(R * C + R, R * C)
    ),
    "cross-entropy and gradient": case(
        bu.value_and_grad(cross_entropy), ROWS, int32[R],
        kernels=(2, 22), elements=(R * C + R + R, R * C + R + 1), arena=64,
    ),
    "softmax, gradient": case(
        bu.grad(weighed_softmax), ROWS, ROWS, kernels=(1, 12), elements=(2 * R * C, R * C)
    ),
    "softmax and its gradient": case(
        softmax_and_pullback, ROWS, ROWS, kernels=(1, 12), elements=(2 * R * C, 2 * R * C)
    ),
    "relu(x @ w + b)": case(
        dense, f32[B, D], f32[D, H], f32[H],
        kernels=(1, 4), elements=(B * D + D * H + H, B * H),
    ),
    "two outputs of one read": case(
        lambda x: (bu.sin(x), bu.cos(x)), ROWS, kernels=(1, 2), elements=(R * C, 2 * R * C)
    ),
    "mean and variance of rows": case(
        lambda x: (bu.mean(x, axis=1), bu.var(x, axis=1)),
        ROWS, kernels=(1, 7), elements=(R * C, 2 * R),
    ),
    "mean and variance of all": case(
        lambda x: (bu.mean(x), bu.var(x)), ROWS, kernels=(1, 7), elements=(R * C, 2)
    ),
    "least, greatest and sum": case(
        lambda x: (bu.min(x), bu.max(x), bu.sum(x)), ROWS, kernels=(1, 3), elements=(R * C, 3)
    ),
    "a row and what became of it": case(
        lambda x: (bu.sum(bu.exp(x), axis=1), bu.exp(x)),
        ROWS, kernels=(1, 2), elements=(R * C, R + R * C),
    ),
    # Different grids: one kernel could not hold both.
    "sums of rows and of columns": case(
        lambda x: (bu.sum(x, axis=0), bu.sum(x, axis=1)),
        ROWS, kernels=(2, 2), elements=(2 * R * C, R + C),
    ),
    "movement alone": case(moved, f32[8, 10], f32[10, 3], kernels=(1, 4), elements=(100, 100)),
    "movement into arithmetic": case(
        lambda x, y: moved(x, y) * 2,
        f32[8, 10], f32[10, 3], kernels=(1, 5), elements=(100, 100),
    ),
    "movement into a sum": case(
        lambda x, y: bu.sum(moved(x, y) * 2, axis=0),
        f32[8, 10], f32[10, 3], kernels=(1, 6), elements=(100, 10),
    ),
    "every other element": case(
        lambda x: bu.sum(x[::2]), f32[N], kernels=(1, 2), elements=(N // 2, 1)
    ),
    "padded": case(
        lambda x: bu.pad(x, ((1, 1), (2, 0))) * 2,
        ROWS, kernels=(1, 3), elements=(R * C, (R + 2) * (C + 2)),
    ),
    "spread": case(
        lambda row, column: row * column, f32[C], f32[R, 1], kernels=(1, 3), elements=(R + C, R * C)
    ),
    "padded": case(
        lambda x: bu.nn.relu(bu.pad(x, ((1, 1), (2, 0)))),
        ROWS, kernels=(1, 3), elements=(R * C, (R + 2) * (C + 2)),
    ),
}  # fmt: skip
