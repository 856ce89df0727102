"""Convolutions as contractions: several axes of rows, columns and sums, patches as index maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from emulated import translated
from test_contraction import ARCHITECTURES, check

import bringup as bu
from bringup import float16, float32, float64
from bringup.dtypes import DType
from bringup_cuda.codegen.contraction import planning

Fn = Callable[..., Any]

FORMS: dict[str, tuple[Fn, tuple[int, ...], tuple[int, ...]]] = {
    "plain": (lambda x, w: bu.nn.conv(x, w), (2, 3, 9, 10), (8, 3, 3, 3)),
    "padded": (lambda x, w: bu.nn.conv(x, w, padding=1), (2, 4, 8, 8), (8, 4, 3, 3)),
    "strided": (lambda x, w: bu.nn.conv(x, w, stride=2), (2, 4, 11, 11), (6, 4, 3, 3)),
    "dilated": (lambda x, w: bu.nn.conv(x, w, dilation=2), (1, 4, 12, 12), (8, 4, 3, 3)),
    "1 x 1": (lambda x, w: bu.nn.conv(x, w), (2, 16, 8, 8), (24, 16, 1, 1)),
    "groups": (lambda x, w: bu.nn.conv(x, w, groups=2), (2, 8, 8, 8), (12, 4, 3, 3)),
    "channels last": (
        lambda x, w: bu.nn.conv(x, w, layout="NHWC"),
        (2, 9, 9, 8),
        (3, 3, 8, 16),
    ),
    "channels last, groups": (
        lambda x, w: bu.nn.conv(x, w, groups=2, stride=2, layout="NHWC"),
        (2, 9, 9, 8),
        (3, 3, 4, 16),
    ),
    "one dimension": (lambda x, w: bu.nn.conv(x, w), (2, 4, 40), (8, 4, 5)),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_convolutions(form: str, dtype: DType, architecture: str) -> None:
    fn, x, w = FORMS[form]
    made = check(fn, dtype[x], dtype[w], architecture=architecture)
    assert any(launch.kernel.fixed for launch in made.launches)


@pytest.mark.parametrize("dtype", [float64, float16], ids=str)
def test_epilogues_of_convolutions(dtype: DType) -> None:
    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        return bu.nn.relu(bu.nn.conv(x, w) + bu.reshape(b, (1, 8, 1, 1))) + r

    made = check(fn, dtype[2, 4, 10, 10], dtype[8, 4, 3, 3], dtype[8], dtype[2, 8, 8, 8])
    assert len(made.launches) == 1


def test_channels_that_are_last_are_copied_side_by_side() -> None:
    """The inner axes begin with them, as the op has them; patches lie along them in memory."""
    types = float16[2, 18, 18, 64], float16[3, 3, 64, 32]
    program, _ = translated(lambda x, w: bu.nn.conv(x, w, layout="NHWC"), types)
    (kernel,) = program.kernels
    planned = planning.plan_contraction(kernel, "sm_90")
    assert planned is not None
    assert [(p.asynchronous, p.lanes, p.along_inner) for p in planned.copies] == [
        (True, 8, True),
        (True, 8, False),
    ]


@pytest.mark.parametrize("form", ["plain", "strided", "channels last"])
def test_gradients_of_convolutions(form: str) -> None:
    fn, x, w = FORMS[form]
    slopes = bu.grad(lambda x, w: bu.sum(fn(x, w)), argnums=(0, 1))
    made = check(slopes, float32[x], float32[w])
    assert any(launch.kernel.fixed for launch in made.launches)
