"""Launches and bytes of mapped functions: what a loop over examples would pay many times."""

from __future__ import annotations

from typing import Any

import pytest
from lowering import lower

import bringup as bu
from bringup import float32 as f32
from bringup.types import TensorType


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def along(axis: int | None, type_: TensorType, size: int = 5) -> TensorType:
    return type_ if axis is None else type_.with_shape((size, *type_.shape))


def test_a_softmax_per_example_is_one_kernel_that_reads_its_rows_once() -> None:
    cost = lower(bu.vmap(bu.nn.softmax), f32[8, 33]).cost()
    assert (cost.kernels, cost.bytes_read, cost.bytes_written) == (1, 4 * 8 * 33, 4 * 8 * 33)
    assert lower(bu.vmap(bu.vmap(bu.nn.softmax)), f32[4, 8, 33]).cost().kernels == 1


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_a_product_with_a_vector_per_example_is_one_product(
    in_axes: tuple[int | None, ...],
) -> None:
    types = [along(a, t) for a, t in zip(in_axes, (f32[16, 8], f32[8]), strict=True)]
    made = lower(bu.vmap(bu.matmul, in_axes), *types)
    assert [instr.op.name for instr in made.graph.instrs] == ["dot_general"]
    assert len(made.kernels) == 1


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_a_product_per_example_is_one_kernel(in_axes: tuple[int | None, ...]) -> None:
    types = [along(a, t) for a, t in zip(in_axes, (f32[16, 8], f32[8, 7]), strict=True)]
    cost = lower(bu.vmap(bu.matmul, in_axes), *types).cost()
    assert cost.kernels == 1
    assert cost.bytes_read == sum(t.nbytes for t in types)


def loss(w: Any, x: Any, y: Any) -> Any:
    return bu.mean((bu.tanh(x @ w) - y) ** 2)


def test_gradients_per_example_take_no_more_kernels_than_one_gradient() -> None:
    one = lower(bu.grad(loss), f32[4, 2], f32[4], f32[2])
    each = lower(bu.vmap(bu.grad(loss), (None, 0, 0)), f32[4, 2], f32[9, 4], f32[9, 2])
    assert len(each.kernels) <= len(one.kernels)


def test_an_axis_that_is_not_the_first_costs_nothing() -> None:
    mapped = bu.vmap(lambda x, y: bu.exp(x) * y, in_axes=(1, -1), out_axes=1)
    cost = lower(mapped, f32[8, 9], f32[8, 9]).cost()
    assert (cost.kernels, cost.bytes_read) == (1, 2 * 4 * 8 * 9)
