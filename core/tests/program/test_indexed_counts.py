"""Launches and bytes of programs that read and write at indices which are data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lowering import KERNELS, Paper

import bringup as bu
from bringup.dtypes import f32, i32, i64
from bringup.llvm.claims import step_claims
from bringup.runtime.compiler import Options, lower_graph
from bringup.types import TensorType

STEPS = replace(KERNELS, ops=step_claims())
V, D, N = 500, 32, 64  # rows of a table, columns, rows that are read


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def embedded(table: Any, at: Any) -> Any:
    return bu.take(table, at, axis=0)


def embedded_sum(table: Any, at: Any) -> Any:
    return bu.sum(embedded(table, at), axis=0)


def scaled(table: Any, at: Any, gain: Any) -> Any:
    return bu.tanh(embedded(table * 2, at + 1) * gain)


def normed(table: Any, at: Any, gain: Any, bias: Any) -> Any:
    return bu.nn.layer_norm(embedded(table, at), gain, bias)


def picked_loss(x: Any, labels: Any) -> Any:
    """Cross-entropy by the logarithm of each label's probability."""
    logs = bu.nn.log_softmax(x)
    return -bu.mean(bu.take_along_axis(logs, labels[:, None]))


def by_table(table: Any, at: Any, weight: Any) -> Any:
    return bu.grad(lambda table: bu.sum(embedded(table, at) * weight))(table)


def by_experts(x: Any, experts: Any, at: Any) -> Any:
    """Each example times the matrix it picks."""
    return bu.einsum("nrk,nkd->nrd", x, bu.take(experts, at, axis=0))


def by_columns(x: Any, w: Any, at: Any) -> Any:
    """Picked columns are summed over: every row of the product would look them up again."""
    return bu.take(x, at, axis=1) @ w


def cached(cache: Any, row: Any, at: Any) -> Any:
    return bu.dynamic_update_slice(cache, row, (at, 0))


def read_cache(cache: Any, row: Any, at: Any) -> Any:
    """What is written is read on the way."""
    return bu.sum(cached(cache, row, at), axis=0)


Case = tuple[Callable[..., Any], tuple[TensorType, ...], tuple[int, int, int]]
ROWS, AT = f32[N, D], i32[N]
#: Launches, bytes read, bytes written.
CASES: dict[str, Case] = {
    "embedding": (embedded, (f32[V, D], AT), (1, 4 * (N * D + N), 4 * N * D)),
    "embedding and sum": (embedded_sum, (f32[V, D], AT), (1, 4 * (N * D + N), 4 * D)),
    "embedding with i64": (embedded, (f32[V, D], i64[N]), (1, 4 * N * D + 8 * N, 4 * N * D)),
    "prologue and epilogue": (
        scaled, (f32[V, D], AT, f32[D]), (1, 4 * (N * D + N + D), 4 * N * D)),
    "layer norm of rows": (
        normed, (f32[V, D], AT, f32[D], f32[D]), (1, 4 * (N * D + N + 2 * D), 4 * N * D)),
    "a small table is read once": (embedded, (f32[5, D], AT), (1, 4 * (5 * D + N), 4 * N * D)),
    "a read cache": (
        read_cache, (f32[V, D], f32[1, D], i32[()]), (1, 4 * (V * D + D + 1), 4 * D)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_launch(name: str) -> None:
    fn, types, wanted = CASES[name]
    cost = lower_graph(bu.trace(fn, *types), Paper(STEPS)).cost()
    assert (cost.kernels, cost.bytes_read, cost.bytes_written) == wanted
    assert cost.arena_bytes == 0


def test_matrices_picked_for_a_product_are_read_where_they_are() -> None:
    """Beside the product there is one launch, which counts indices from the end."""
    types = f32[N, 4, 8], f32[5, 8, D], AT
    cost = lower_graph(bu.trace(by_experts, *types), Paper(STEPS)).cost()
    assert (cost.kernels, cost.bytes_written) == (2, 4 * (N + N * 4 * D))


def test_columns_picked_for_a_product_are_copied_once() -> None:
    cost = lower_graph(bu.trace(by_columns, f32[N, V], f32[D, 8], i32[D]), Paper(STEPS)).cost()
    assert (cost.kernels, cost.bytes_written) == (2, 4 * (N * D + N * 8))


def test_what_is_not_fused_is_launched_alone() -> None:
    alone = lower_graph(
        bu.trace(embedded_sum, f32[V, D], AT), Paper(STEPS), options=Options(fuse=False)
    )
    assert alone.cost().kernels > 2


def test_a_loss_that_picks_labels_writes_one_number_per_row() -> None:
    made = lower_graph(bu.trace(picked_loss, f32[N, 10], AT), Paper(STEPS))
    assert made.cost().kernels <= 3
    assert made.cost().bytes_written <= 4 * (3 * N + 1)


def test_the_gradient_of_a_picked_loss_is_one_launch() -> None:
    """With the cotangent of one number per row at its place, which is no scatter."""

    def gradient(x: Any, labels: Any) -> Any:
        return bu.grad(lambda x: picked_loss(x, labels))(x)

    cost = lower_graph(bu.trace(gradient, f32[N, 10], AT), Paper(STEPS)).cost()
    assert (cost.kernels, cost.bytes_written) == (1, 4 * N * 10)


def test_the_gradient_of_a_table_is_filled_and_scattered_into() -> None:
    made = lower_graph(bu.trace(by_table, f32[V, D], AT, ROWS), Paper(STEPS))
    scatters = [step for step in made.program.steps if step.name == "scatter"]
    assert len(scatters) == 1
    assert scatters[0].slots[-1].space == "output"
    whole = [s for step in made.program.steps for s in step.slots if s.type is f32[V, D]]
    assert "arena" not in {slot.space for slot in whole}


def test_one_row_of_a_donated_cache_costs_one_row() -> None:
    types = (f32[V, D], f32[1, D], i32[()])
    made = lower_graph(bu.trace(cached, *types), Paper(STEPS), donated=frozenset((0,)))
    assert [step.name for step in made.program.steps][-1] == "dynamic_update_slice"
    assert made.program.aliases == ((0, 0),)
    assert made.cost().bytes_written <= 4 * D + 4
    assert made.cost().bytes_read <= 4 * D + 8
    assert lower_graph(bu.trace(cached, *types), Paper(STEPS)).cost().bytes_written == 4 * V * D
