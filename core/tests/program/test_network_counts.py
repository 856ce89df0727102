"""Launches and bytes of the functions of networks, and how their windows are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lowering import lower

import bringup as bu
from bringup import float32 as f32
from bringup.kernel.form import Kernel, Store
from bringup.types import TensorType

nn = bu.nn
X, C = f32[4, 8, 6, 6], f32[8]
W, B = f32[16, 8, 3, 3], f32[16]
Q = f32[2, 4, 16, 8]


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def layer(x: Any, w: Any, b: Any, **options: Any) -> Any:
    """A convolution with bias and activation."""
    return nn.relu(nn.conv(x, w, **options) + bu.reshape(b, (-1, *[1] * (x.ndim - 2))))


def layer_last(x: Any, w: Any, b: Any) -> Any:
    return nn.relu(nn.conv(x, w, layout="NHWC") + b)


def spread(x: Any, w: Any, b: Any) -> Any:
    return nn.relu(nn.conv_transpose(x, w, stride=2) + bu.reshape(b, (-1, 1, 1)))


def squared(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient by every argument of the sum of squares of a result."""
    return lambda *args: bu.grad(lambda a: bu.sum(bu.square(fn(*a))))(args)


Case = tuple[Callable[..., Any], tuple[TensorType, ...], int]
CASES: dict[str, Case] = {
    "convolution": (layer, (X, W, B), 1),
    "convolution with stride": (lambda *a: layer(*a, stride=2), (X, W, B), 1),
    "convolution with dilation": (lambda *a: layer(*a, dilation=2), (X, W, B), 1),
    "convolution in groups": (lambda *a: layer(*a, groups=4), (X, f32[16, 2, 3, 3], B), 1),
    "convolution by feature": (lambda *a: layer(*a, groups=8), (X, f32[8, 1, 3, 3], C), 1),
    "convolution, features last": (layer_last, (f32[4, 6, 6, 8], f32[3, 3, 8, 16], B), 1),
    "convolution of a volume": (layer, (f32[2, 4, 5, 5, 5], f32[8, 4, 2, 2, 2], C), 1),
    # The border is written once; a product that asked for it would ask many times.
    "convolution with padding": (lambda *a: layer(*a, padding="same"), (X, W, B), 2),
    # Results at even and odd places are convolutions of their own, three of them with a border.
    "transposed convolution": (spread, (X, f32[8, 16, 3, 3], B), 8),
    "largest of windows": (lambda x: nn.max_pool(x, 3, stride=2, padding=1), (X,), 1),
    "means of windows": (lambda x: nn.avg_pool(x, 3, stride=2, padding=1), (X,), 1),
    "largest of windows, gradient": (squared(lambda x: nn.max_pool(x, 2)), (X,), 2),
    "means of windows, gradient": (squared(lambda x: nn.avg_pool(x, 2)), (X,), 2),
    "norm of groups": (lambda x, g, b: nn.group_norm(x, 2, g, b), (X, C, C), 1),
    "norm of features": (nn.instance_norm, (X, C, C), 1),
    "norm by root": (nn.rms_norm, (f32[32, 64], f32[64]), 1),
    "norm after training": (
        lambda x, m, v, g, b: nn.batch_norm(x, g, b, mean=m, var=v), (X, C, C, C, C), 1
    ),
    # A row for each feature, then everything once more.
    "norm in training": (
        lambda x, m, v, g, b: nn.batch_norm_train(x, g, b, mean=m, var=v), (X, C, C, C, C), 2
    ),
    "norm of groups, gradient": (
        squared(lambda x, g, b: nn.group_norm(x, 2, g, b)), (X, C, C), 2
    ),
    "norm by root, gradient": (squared(nn.rms_norm), (f32[32, 64], f32[64]), 2),
    # Scores, softmax, product.
    "attention": (nn.attention, (Q, Q, Q), 3),
    "attention to the past": (lambda *a: nn.attention(*a, causal=True), (Q, Q, Q), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_launches(name: str) -> None:
    fn, types, kernels = CASES[name]
    assert lower(fn, *types).cost().kernels == kernels


def only_kernel(fn: Callable[..., Any], *types: TensorType) -> Kernel:
    (kernel,) = lower(fn, *types).kernels
    return kernel


@pytest.mark.parametrize(
    "name", [n for n, (*_, kernels) in CASES.items() if "convolution" in n and kernels == 1]
)
def test_a_convolution_reads_its_windows_at_affine_places_without_masks(name: str) -> None:
    fn, types, _ = CASES[name]
    kernel = only_kernel(fn, *types)
    main = next(s for s in kernel.stages if s.axes)
    loads = list(main.loads())
    assert len(loads) == 2
    for load in loads:
        assert load.attrs["index"].is_affine, load.attrs["index"]
        assert not load.attrs["mask"]
    (store,) = [s for stage in kernel.stages for s in stage.sinks if isinstance(s, Store)]
    assert store.index.is_affine


def test_a_convolution_reads_each_operand_from_memory_once() -> None:
    cost = lower(layer, X, W, B).cost()
    assert cost.bytes_read == X.nbytes + W.nbytes + B.nbytes
    assert cost.bytes_written == f32[4, 16, 4, 4].nbytes
    assert not lower(layer, X, W, B).program.arena_bytes
