"""One small program of each kind that the backend renders in its own way, against its bounds.

Small enough to run under compute-sanitizer, and with sizes at which tails, several blocks and
reductions in two launches occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import bringup as bu
from bringup_conformance.execution.targets import DeviceTarget
from gpu_checks.judging import judge_graph
from gpu_checks.work import Task

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
_ODD = 1000 + 37


def _normal(*shape: int, dtype: Any = np.float32) -> Array:
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return np.asarray(drawn.astype(dtype))


def _words(high: int, *shape: int) -> Array:
    return np.random.default_rng(high).integers(0, high, shape, dtype=np.int32)


def _train(w: Any, b: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, b: Any) -> Any:
        return bu.mean((bu.tanh(x @ w + b) - y) ** 2)

    gradient = bu.grad(lambda w: loss(w, b))(w)
    return w - 0.1 * gradient


#: A function and its operands.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "elementwise": (lambda x, y: bu.tanh(x * y) * bu.exp(-x) + y, (_normal(_ODD), _normal(_ODD))),
    "half floats": (bu.nn.gelu, (_normal(_ODD, dtype=BF16),)),
    "sum of few": (lambda x: bu.sum(x, axis=1), (_normal(37, 65),)),
    "sum of many": (bu.sum, (_normal(70_001),)),
    "sum of columns": (lambda x: bu.sum(x, axis=0), (_normal(259, 65),)),
    "softmax": (lambda x: bu.nn.softmax(x, axis=-1), (_normal(9, _ODD),)),
    "layer norm": (
        lambda x, g, b: bu.nn.layer_norm(x, gain=g, bias=b),
        (_normal(17, 260), _normal(260), _normal(260)),
    ),
    "argmax": (lambda x: bu.argmax(x, axis=1), (_normal(33, 200),)),
    "transpose": (lambda x: bu.permute_dims(x, (1, 0)) + 1, (_normal(65, 130),)),
    "slices": (lambda x: bu.flip(x[1::3, 2:-1], axis=1) * 2, (_normal(40, 50),)),
    "product f32": (lambda x, w, b: bu.nn.relu(x @ w + b), (
        _normal(65, 70), _normal(70, 33), _normal(33),
    )),
    "product tf32": (lambda x, w, b: bu.nn.relu(bu.matmul(x, w, precision="tf32") + b), (
        _normal(65, 70), _normal(70, 33), _normal(33),
    )),
    "product tf32, turned": (lambda x, w: bu.matmul(x.mT, w.mT, precision="tf32"), (
        _normal(72, 68), _normal(132, 72),
    )),
    "product bf16": (lambda x, w, b: bu.nn.gelu(x @ w + b), (
        _normal(130, 128, dtype=BF16), _normal(128, 136, dtype=BF16), _normal(136, dtype=BF16),
    )),
    # The smallest that warpgroups multiply where there are some.
    "wide product bf16": (lambda x, w, b: bu.nn.relu(x @ w + b), (
        _normal(1000, 264, dtype=BF16), _normal(264, 1032, dtype=BF16), _normal(1032, dtype=BF16),
    )),
    "skinny product": (lambda x, w: x @ w, (
        _normal(4, 2048, dtype=BF16), _normal(2048, 16, dtype=BF16),
    )),
    "batch of products": (lambda x, y: x @ y, (_normal(3, 20, 40), _normal(3, 40, 24))),
    "convolution": (lambda x, w: bu.nn.conv(x, w, padding="same"), (
        _normal(2, 3, 13, 13), _normal(8, 3, 3, 3),
    )),
    "attention": (lambda q, k, v: bu.nn.attention(q, k, v, causal=True), (
        _normal(1, 2, 40, 16), _normal(1, 2, 40, 16), _normal(1, 2, 40, 16),
    )),
    "attention tf32": (lambda q, k, v: bu.nn.attention(q, k, v, precision="tf32"), (
        _normal(1, 2, 70, 24), _normal(1, 2, 90, 24), _normal(1, 2, 90, 40),
    )),
    "running sum": (lambda x: bu.cumulative_sum(x, axis=1), (_normal(5, _ODD),)),
    "sort": (bu.sort, (_normal(7, 300),)),
    "gather": (lambda t, i: t[i], (_normal(50, 24), _words(50, 70))),
    "scatter": (lambda t, i, u: t.at[i].add(u), (_normal(50, 6), _words(50, 70), _normal(70, 6))),
    "update in place": (
        lambda x, u, i: bu.dynamic_update_slice(x, u, (i, 0)),
        (_normal(40, 16), _normal(1, 16), np.asarray(7, np.int32)),
    ),
    "loop": (lambda x: bu.fori_loop(0, 3, lambda i, v: v * 0.5 + bu.exp(-v), x), (_normal(99),)),
    "random": (lambda x: x + bu.random.normal(bu.random.key(0), x.shape, dtype=x.dtype), (
        _normal(500),
    )),
    "training step": (_train, (_normal(20, 8), _normal(8), _normal(16, 20), _normal(16, 8))),
}  # fmt: skip


def work(task: Task) -> bool:
    """The part ``programs``."""
    target = DeviceTarget.named(task.device)
    good = True
    for name, (function, operands) in PROGRAMS.items():
        if task.left < 0:
            task.row(name=name, skipped="no time was left")
            continue
        try:
            graph = traced(function, operands)
            found = judge_graph(target, graph, operands, lambda: task.left).row()
        except bu.BringupError as error:
            found = {"wrong": 1, "why": str(error)[:600]}
        task.row(name=name, **found)
        good &= not found["wrong"]
    return good


def traced(function: Callable[..., Any], operands: tuple[Array, ...]) -> Any:
    """The graph of a function for operands like these."""
    return bu.jit(function).lower(*operands).graph
