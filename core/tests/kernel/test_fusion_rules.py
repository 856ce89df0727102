"""Each rule of fusion refuses what it is there for, and nothing else stands in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bringup.dtypes import f32, i8, i32
from bringup.graph import Builder, Value
from bringup.graph.builder import current_builder
from bringup.kernel import fuse as fuse_module
from bringup.kernel import fusion_rules
from bringup.kernel.fuse import fuse
from bringup.kernel.fusion_rules import Together
from bringup.kernel.limits import Limits
from bringup.ops.build import broadcast_to, convert, rows, splat

Outputs = Callable[[], Sequence[Value]]


def arg(*shape: int) -> Value:
    """An input of the graph that is being built."""
    return current_builder().input(f32[shape])


def total(x: Value, *dims: int) -> Value:
    return rows.reduce(x, kind="add", dims=dims)


def product(x: Value, y: Value) -> Value:
    return rows.dot_general(x, y, batch=((), ()), contract=((1,), (0,)))


def exp_for_two() -> list[Value]:
    e = rows.exp(arg(64, 32))
    return [total(e, 0), total(e, 1)]


def windows(x: Value, count: int) -> Value:
    """The sum of slices that begin at different places: the value is read at ``count`` indices."""
    size = x.shape[0] - count
    value = rows.slice(x, start=(0,), limit=(size,), stride=(1,))
    for n in range(1, count):
        value = rows.add(value, rows.slice(x, start=(n,), limit=(n + size,), stride=(1,)))
    return value


def negated_for_two_windows() -> list[Value]:
    x = rows.neg(arg(100))
    return [windows(x, 6), rows.exp(windows(x, 7))]


def long_chain() -> list[Value]:
    x = arg(8)
    for _ in range(1200):
        x = rows.add(x, splat(1.0, f32[8]))
    return [x]


def two_products() -> list[Value]:
    return [product(product(arg(8, 8), arg(8, 8)), arg(8, 8))]


def sum_of_two_grids() -> list[Value]:
    return [total(rows.mul(arg(4), total(arg(4, 8), 1)), 0)]


def many_operands() -> list[Value]:
    x = arg(8)
    for _ in range(8):
        x = rows.add(x, arg(8))
    return [x]


def padded_operand() -> list[Value]:
    x = rows.pad(arg(8, 6), splat(0.0, f32[()]), lo=(0, 1), hi=(0, 1), interior=(0, 0))
    return [product(x, arg(8, 8))]


def sliced_at_many_indices() -> list[Value]:
    return [windows(rows.slice(arg(201), start=(1,), limit=(201,), stride=(1,)), 70)]


def rounded_codes() -> list[Value]:
    codes, weights = convert(rows.round(arg(16, 32)), i8), arg(32, 24)
    return [
        rows.dot_general(
            codes, convert(weights, i8), batch=((), ()), contract=((1,), (0,)), result=i32
        )
    ]


def sum_as_operand() -> list[Value]:
    return [product(rows.add(arg(16, 16), arg(16, 16)), arg(16, 16))]


def exp_as_operand() -> list[Value]:
    return [product(rows.exp(arg(16, 16)), arg(16, 16))]


def exp_spread() -> list[Value]:
    column = broadcast_to(rows.exp(arg(4096)), (4096, 512), (0,))
    return [rows.mul(column, arg(4096, 512))]


def negated_at_many_indices() -> list[Value]:
    return [windows(rows.neg(arg(100)), 6)]


def sorted_(x: Value) -> Value:
    return rows.sort(x, dim=0, num_keys=1, descending=False)


def read_by_a_call() -> list[Value]:
    return [sorted_(rows.exp(arg(64)))]


def read_before_and_after_a_call() -> list[Value]:
    e = rows.exp(arg(64, 32))
    weights = broadcast_to(sorted_(total(e, 0)), (64, 32), (1,))
    return [total(rows.mul(e, weights), 1)]


def exp_for_two_products() -> list[Value]:
    e = rows.exp(arg(16, 16))
    return [product(e, arg(16, 16)), product(arg(16, 16), e)]


def exp_for_many_operands() -> list[Value]:
    e = rows.exp(arg(8))
    return [rows.add(rows.add(e, arg(8)), arg(8)), rows.mul(rows.mul(e, arg(8)), arg(8))]


def chain(x: Value, length: int) -> Value:
    for _ in range(length):
        x = rows.add(x, splat(1.0, f32[8]))
    return x


def exp_for_two_chains() -> list[Value]:
    e = rows.exp(arg(8))
    return [chain(e, 300), chain(rows.neg(e), 300)]


PLACING: list[tuple[str, Outputs, Limits]] = [
    ("copies_are_cheap", exp_for_two, Limits()),
    ("few_copies", negated_for_two_windows, Limits()),
    ("short_body", long_chain, Limits()),
    ("one_contraction", two_products, Limits()),
    ("one_kernel", sum_of_two_grids, Limits()),
    ("few_buffers", many_operands, Limits(buffers=4)),
    ("contraction_reads_plainly", padded_operand, Limits()),
    ("few_loads", sliced_at_many_indices, Limits()),
    ("codes_are_stored", rounded_codes, Limits()),
    ("contraction_reads_one_array", sum_as_operand, Limits()),
    ("contraction_computes_cheaply", exp_as_operand, Limits()),
    ("expensive_once", exp_spread, Limits()),
    ("few_evaluations", negated_at_many_indices, Limits()),
    ("host_is_kernel", read_by_a_call, Limits()),
    ("readers_wait_for_host", read_before_and_after_a_call, Limits()),
    ("room_for_more", long_chain, Limits()),
    ("contraction_stores_results_only", exp_as_operand, Limits()),
    ("computed_once_per_point", negated_at_many_indices, Limits()),
    ("no_contraction", exp_for_two_products, Limits()),
    ("independent", read_before_and_after_a_call, Limits()),
    ("few_buffers_together", exp_for_many_operands, Limits(buffers=5)),
    ("short_body_together", exp_for_two_chains, Limits()),
    ("one_kernel_together", exp_for_two, Limits()),
]


@pytest.mark.parametrize(("rule", "outputs", "limits"), PLACING, ids=[case[0] for case in PLACING])
def test_a_rule_keeps_a_value_in_memory_and_the_report_says_so(
    rule: str, outputs: Outputs, limits: Limits
) -> None:
    with Builder() as builder:
        graph = builder.build(outputs())
    report: list[str] = []
    fuse(graph, limits, report=report)
    assert any(f": {rule}: " in line for line in report), "\n".join(report)


def call_and_kernel() -> list[Value]:
    x = arg(64)
    return [sorted_(x), rows.exp(x)]


def other_memory() -> list[Value]:
    return [rows.exp(arg(64)), rows.exp(arg(64))]


def other_grid() -> list[Value]:
    x = arg(64, 32)
    return [total(x, 0), total(x, 1)]


def product_and_exp() -> list[Value]:
    x = arg(16, 16)
    return [product(x, arg(16, 16)), rows.exp(x)]


def before_and_after_a_call() -> list[Value]:
    x = arg(64)
    return [rows.add(sorted_(rows.exp(x)), x)]


def many_operands_of_two() -> list[Value]:
    x = arg(8)
    return [rows.add(rows.add(x, arg(8)), arg(8)), rows.mul(rows.mul(x, arg(8)), arg(8))]


def two_chains() -> list[Value]:
    x = arg(8)
    return [chain(x, 300), chain(rows.neg(x), 300)]


def sums_of_rows(first: int, second: int) -> list[Value]:
    x = arg(8)
    return [rows.add(total(arg(8, n), 1), x) for n in (first, second)]


JOINING: list[tuple[str, Outputs, Limits]] = [
    ("two_kernels", call_and_kernel, Limits()),
    ("same_memory", other_memory, Limits()),
    ("same_grid", other_grid, Limits()),
    ("no_contraction", product_and_exp, Limits()),
    ("independent", before_and_after_a_call, Limits()),
    ("few_buffers_together", many_operands_of_two, Limits(buffers=5)),
    ("short_body_together", two_chains, Limits()),
    ("one_kernel_together", lambda: sums_of_rows(70_000, 80_000), Limits()),
    ("no_more_stages", lambda: sums_of_rows(100, 50), Limits()),
]


@pytest.mark.parametrize(("name", "outputs", "limits"), JOINING, ids=[case[0] for case in JOINING])
def test_a_rule_keeps_siblings_apart(
    name: str, outputs: Outputs, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def watched(rule: fusion_rules.TogetherRule) -> fusion_rules.TogetherRule:
        def ask(question: Together) -> str | None:
            reason = rule(question)
            if reason is not None:
                refusals.append(rule.__name__)
            return reason

        return ask

    monkeypatch.setattr(fuse_module, "SIBLINGS", tuple(map(watched, fusion_rules.SIBLINGS)))
    with Builder() as builder:
        graph = builder.build(outputs())
    launches = fuse(graph, limits)
    assert name in refusals
    assert len(launches) > 1


def test_every_rule_has_a_case_and_says_what_it_avoids() -> None:
    placing = {
        *fusion_rules.INSIDE_FOLD,
        *fusion_rules.INSIDE_MOVEMENT,
        *fusion_rules.INSIDE_ELEMENTWISE,
        *fusion_rules.STORED_BY,
        *fusion_rules.READERS,
    }
    assert {rule.__name__ for rule in placing} == {name for name, *_ in PLACING}
    assert {rule.__name__ for rule in fusion_rules.SIBLINGS} == {name for name, *_ in JOINING}
    assert all(rule.__doc__ for rule in (*placing, *fusion_rules.SIBLINGS))


def test_the_report_names_what_is_stored_and_for_whom() -> None:
    with Builder() as builder:
        graph = builder.build(exp_as_operand())
    report: list[str] = []
    fuse(graph, Limits(), report=report)
    assert report == [
        "%2: f32[16,16] = exp(%0)",
        "  stored by k0_exp, read by k1_dot_general",
        "  not in k1_dot_general: contraction_computes_cheaply: "
        "the contraction would compute it for each row or column of the other operand",
        "  not in k1_dot_general: contraction_stores_results_only: "
        "a contraction of the kernel reads it",
    ]
