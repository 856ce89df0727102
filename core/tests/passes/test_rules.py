"""Every rule does what its docstring shows, and keeps every bit."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator

import pytest

from bringup.dtypes import f32
from bringup.errors import GraphError
from bringup.graph import Builder, Graph, Value
from bringup.ops.build import rows
from bringup.passes.base import everything
from bringup.passes.check import check_values
from bringup.passes.dce import eliminate
from bringup.passes.rewrite import Rule, Rules, all_rules, apply_rules, rule
from bringup.passes.rules import arithmetic, control, logic, movement, reduction, traits
from bringup.passes.simplify import CANONICAL, SIMPLIFY, simplify

ALL = all_rules(SIMPLIFY)
Examples = Callable[[str], Iterator[tuple[str, Graph, Graph]]]


def applied(graph: Graph, *rules: Rule) -> Graph:
    """Under these rules alone; folded, so that constants can be compared."""
    return eliminate(apply_rules(graph, Rules(*rules), everything, dedupe=True, fold=True))


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_the_docstring_shows_what_the_rule_does(each: Rule, examples: Examples) -> None:
    shown = list(examples(each.doc))
    assert shown, "the docstring has no example"
    for line, left, right in shown:
        assert applied(left, each).key == applied(right).key, line
        assert applied(left).key != applied(right).key, f"nothing to do: {line}"


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_the_examples_keep_their_value(each: Rule, examples: Examples) -> None:
    for line, left, _ in examples(each.doc):
        check_values(line, left, applied(left, each))


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_all_rules_together_agree_with_the_example(each: Rule, examples: Examples) -> None:
    for line, left, right in examples(each.doc):
        together = [eliminate(simplify(everything).run(g)) for g in (left, right)]
        assert together[0].key == together[1].key, line


def test_every_rule_of_the_modules_is_in_a_list() -> None:
    listed = {each.name for each in ALL}
    for module in (arithmetic, control, logic, movement, reduction, traits):
        assert isinstance(module, types.ModuleType)
        for name, value in vars(module).items():
            assert not isinstance(value, Rule) or value.name in listed, name


def test_names_of_rules_are_unique() -> None:
    names = [each.name for each in ALL]
    assert len(names) == len(set(names))


TEMPTING = """\
add(x, 0.0)                                          -0 + 0 is +0
sub(x, -0.0)                                         -0 - -0 is +0
sub(x, x)                                            inf and NaN
mul(x, 0.0)                                          inf, NaN and -0
div(x, x)                                            0, inf and NaN
div(x, 3.0)                                          1/3 is rounded
neg(sub(x, y))                                       +0 both ways
add(add(x, 1.0), 2.0)                                rounds twice
mul(mul(x, 1.5), 3.0)                                rounds twice
compare(x, x, direction="eq")                        NaN
compare(x, x, direction="le")                        NaN
xor(compare(x, y, direction="lt"), True)             NaN
max(x, -3.4028234e38)                                -inf
convert(convert(x, dtype=i32), dtype=f32)            fractions
convert(convert(x, dtype=f16), dtype=f32)            rounds
pow(x, 0.5)                                          -inf
pow(x, 3)                                            two roundings
reduce(broadcast_in_dim(x, shape=(3, 4), dims=(1,)), kind="add", dims=(0,))    sums copies
reduce(reduce(z, kind="add", dims=(0,)), kind="add", dims=(0,))                rounds elsewhere
reshape(transpose(z, permutation=(1, 0)), shape=(6,))                          moves elements
pad(pad(x, 0.0, lo=(0,), hi=(-1,)), 0.0, lo=(0,), hi=(1,))                     what was cropped
slice(pad(x, 0.0, lo=(1,), hi=(1,)), start=(0,), limit=(3,))                   holds padding
slice(concatenate(x, y, dim=0), start=(3,), limit=(5,))                        holds both
transpose(reshape(z, shape=(3, 2)), permutation=(1, 0))                        moves elements
"""


@pytest.mark.parametrize("line", TEMPTING.splitlines())
def test_what_is_not_exact_stays(line: str, examples: Examples) -> None:
    expression = line.split("   ", maxsplit=1)[0]
    ((_, graph, _),) = examples(f"{expression} -> 0 where z: f32[2,3]")
    assert applied(graph, *ALL).key == applied(graph, *CANONICAL).key
    assert len(applied(graph, *ALL)) == len(applied(graph))


DIVISORS = [
    ("f32", 2.0**-126, True),
    ("f32", 2.0**126, True),
    ("f32", 2.0**127, False),  # the inverse is subnormal
    ("f32", 2.0**-127, True),
    ("f32", 2.0**-128, False),  # the inverse overflows
    ("f16", 2.0**-15, True),
    ("f16", 2.0**-16, False),
    ("f16", 2.0**15, False),
    ("f64", -(2.0**1000), True),
    ("f32", 0.0, False),
    ("f32", float("inf"), False),
    ("f32", float("nan"), False),
    ("bf16", 3.0, False),
]


@pytest.mark.parametrize(("dtype", "divisor", "exact"), DIVISORS)
def test_division_by_powers_of_two(
    dtype: str, divisor: float, exact: bool, examples: Examples
) -> None:
    text = "div(x, {}) -> mul(x, 0.25) where x: {}[4]"
    ((_, graph, _),) = examples(text.format(repr(divisor).replace("nan", "inf - inf"), dtype))
    found = applied(graph, *ALL)
    assert (found.instrs[-1].op.name == "mul") is exact
    check_values("div", graph, found)


def test_replacements_the_device_lacks_are_not_made(examples: Examples) -> None:
    ((_, graph, _),) = examples("add(x, neg(y)) -> sub(x, y)")
    found = apply_rules(
        graph, SIMPLIFY, lambda instr: instr.op.name != "sub", dedupe=True, fold=True
    )
    assert eliminate(found).key == graph.key
    # The rejected instruction must not come back through de-duplication.
    with Builder() as builder:
        x, y = builder.input(f32[4]), builder.input(f32[4])
        twice = builder.build([rows.add(x, rows.neg(y)), rows.add(x, rows.neg(y))])
    found = apply_rules(
        twice, SIMPLIFY, lambda instr: instr.op.name != "sub", dedupe=True, fold=True
    )
    assert {instr.op.name for instr in eliminate(found)} == {"add", "neg"}
    # Nor stay as dead code, which the verifier would find.
    assert "sub" not in {instr.op.name for instr in found}


def test_a_rule_that_changes_a_type_is_named(examples: Examples) -> None:
    @rule("reshape")
    def forget_shape(x: Value, **_: object) -> Value:
        return x

    ((_, graph, _),) = examples("reshape(x, shape=(2, 2)) -> x")
    with pytest.raises(GraphError, match=r"rule forget_shape: makes f32\[4\] of reshape"):
        applied(graph, forget_shape)


def test_rules_that_chase_each_other_stop(examples: Examples) -> None:
    @rule("add")
    def turn(x: Value, y: Value) -> Value:
        return rows.add(y, x)

    ((_, graph, _),) = examples("add(x, y) -> x")
    assert len(applied(graph, turn)) == 1
