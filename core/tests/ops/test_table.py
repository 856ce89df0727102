"""The table as a whole: names, tiers, claims, attributes, and what calling a row does."""

from __future__ import annotations

import builtins
import copy
import keyword
import pickle
import subprocess
import sys

import pytest

from bringup import ops
from bringup.dtypes import bf16, f16, f32, f64, i8, i32, u8
from bringup.errors import OpTypeError
from bringup.graph import Builder, Value
from bringup.ops.catalogue import MODULE_OF, TOPICS
from bringup.ops.table import EXACT, SUM, Attr, Kind, OpDef, all_ops, define, find, lookup, within

TIER_0 = [
    "constant",
    "iota",
    "floor",
    "exp",
    "log",
    "sqrt",
    "sin",
    "add",
    "mul",
    "div",
    "max",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
    "compare",
    "select",
    "convert",
    "bitcast",
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "slice",
    "pad",
    "reduce",
]
TIER_1 = ["neg", "abs", "cos", "tanh", "sub", "rem", "pow", "min", "concatenate", "dot_general"]
COMPOSITES = [
    "logistic",
    "relu",
    "erf",
    "gelu",
    "sign",
    "round",
    "clamp",
    "rsqrt",
    "log1p",
    "expm1",
    "square",
    "reciprocal",
    "mean",
    "var",
    "softmax",
    "log_softmax",
    "layer_norm",
    "argmax",
    "argmin",
    "one_hot",
    "threefry2x32",
    "philox4x32",
]


def test_the_26_names_every_device_has() -> None:
    assert len(TIER_0) == 26
    assert {row.name for row in all_ops() if row.tier == 0} == set(TIER_0)


def test_primitives_and_composites() -> None:
    names = {row.name: row.kind is Kind.COMPOSITE for row in all_ops()}
    for name in TIER_0 + TIER_1:
        assert names[name] is False
    for name in COMPOSITES:
        assert names[name] is True


def test_composites_come_last() -> None:
    kinds = [row.kind is Kind.COMPOSITE for row in all_ops()]
    assert kinds == sorted(kinds)


def test_tier_0_variants() -> None:
    assert lookup("compare").tier0_claims == ("compare.eq", "compare.lt")
    assert lookup("reduce").tier0_claims == ("reduce.add", "reduce.max")
    assert lookup("shr").tier0_claims == ("shr.logical", "shr.arithmetic")
    assert lookup("exp").tier0_claims == ("exp",)
    assert lookup("cos").tier0_claims == ()


def test_rows_are_complete(any_row: OpDef) -> None:
    assert any_row.doc.endswith(".")
    assert any_row.dtypes
    assert any_row.tier in (0, 1)
    for attr in any_row.attrs:
        assert attr.doc
    if any_row.variant is not None:
        (spec,) = [a for a in any_row.attrs if a.name == any_row.variant]
        assert set(any_row.tier0_variants) <= set(spec.choices)
        assert set(any_row.variant_accuracy) <= set(spec.choices)
    if any_row.kind is Kind.COMPOSITE:
        assert any_row.decompose is not None
    if any_row.name not in ("constant", "iota"):
        assert any_row.special


def test_rows_are_exported_under_their_names(any_row: OpDef) -> None:
    exported = any_row.name + "_" if keyword.iskeyword(any_row.name) else any_row.name
    assert getattr(ops, exported) is any_row
    assert exported in ops.__all__
    if hasattr(builtins, any_row.name) and any_row.name in (
        "abs",
        "max",
        "min",
        "pow",
        "round",
        "slice",
    ):
        assert getattr(ops, any_row.name + "_") is any_row


def test_rows_pickle_and_copy_to_themselves(any_row: OpDef) -> None:
    assert pickle.loads(pickle.dumps(any_row)) is any_row
    assert copy.deepcopy(any_row) is any_row
    assert find(any_row.name) is lookup(any_row.name)


def test_unknown_names() -> None:
    assert find("nothing") is None
    with pytest.raises(KeyError):
        lookup("nothing")


def test_a_name_is_defined_once() -> None:
    add = lookup("add")
    with pytest.raises(ValueError, match="'add' is defined twice"):
        define(name="add", arity=2, kind=add.kind, doc="", infer=add.infer, reference=add.reference)


def test_accuracy_may_depend_on_the_variant() -> None:
    reduce = lookup("reduce")
    assert reduce.accuracy_for({"kind": "max"}) is EXACT
    assert reduce.accuracy_for({"kind": "add"}) is SUM
    assert lookup("exp").accuracy_for({}).ulp["f32"] == 2.0
    assert within(7.0).ulp["f64"] == 7.0


def attrs_of(value: Value):
    return dict(value.producer.attrs)


def test_left_out_attributes_follow_from_the_operands() -> None:
    with Builder() as b:
        x, v, m = b.input(f32[2, 3]), b.input(f32[()]), b.input(f16[3, 4])
        assert attrs_of(ops.slice(x, start=(0, 0), limit=(1, 2)))["stride"] == (1, 1)
        assert attrs_of(ops.pad(x, v, lo=(0, 0), hi=(1, 0)))["interior"] == (0, 0)
        dims = {"batch": ((), ()), "contract": ((0,), (0,))}
        given = attrs_of(ops.dot_general(m, m, **dims))
        assert (given["accumulate"], given["result"]) == (f32, f16)
        given = attrs_of(ops.dot_general(m, m, result=f64, **dims))
        assert given["accumulate"] is f64


@pytest.mark.parametrize(
    ("operand", "asked", "accumulate", "result"),
    [
        (i8, {"result": i32}, i32, i32),
        (u8, {}, u8, u8),
        (bf16, {"result": f32}, f32, f32),
        (f32, {"accumulate": f64}, f64, f32),
    ],
)
def test_dtypes_of_dots(operand, asked, accumulate, result) -> None:
    with Builder() as b:
        x = b.input(operand[4])
        dot = ops.dot_general(x, x, batch=((), ()), contract=((0,), (0,)), **asked)
    assert dot.type is result[()]
    assert attrs_of(dot)["accumulate"] is accumulate


def test_attributes_are_normalised() -> None:
    with Builder() as b:
        x = b.input(f32[2, 3])
        assert attrs_of(ops.var(x, dims=[0], correction=1)) == {"dims": (0,), "correction": 1.0}
        assert isinstance(attrs_of(ops.var(x, dims=[0], correction=1))["correction"], float)


def test_a_call_gives_the_only_result() -> None:
    with Builder() as b:
        assert isinstance(ops.neg(b.input(f32[2])), Value)


def test_missing_and_unknown_attributes() -> None:
    with Builder() as b:
        x = b.input(f32[2])
        with pytest.raises(OpTypeError, match="attribute 'kind' is missing"):
            ops.reduce(x, dims=(0,))
        with pytest.raises(OpTypeError, match="no attribute 'axis'"):
            ops.reduce(x, axis=0)
        with pytest.raises(OpTypeError, match="is not allowed"):
            ops.reduce(x, kind="median", dims=(0,))


def test_attr_kinds_are_known(any_row: OpDef) -> None:
    known = {
        "int",
        "bool",
        "float",
        "str",
        "ints",
        "dtype",
        "type",
        "literal",
        "graph",
        "dims",
        "rule",
    }
    assert {attr.kind for attr in any_row.attrs} <= known
    assert all(isinstance(attr, Attr) for attr in any_row.attrs)


def test_the_catalogue_tells_where_every_row_is_defined() -> None:
    """Each topic is imported in a child of an interpreter that has defined no row yet."""
    code = f"""
import importlib, os, sys
from bringup.ops.table import _TABLE
assert not _TABLE
for topic in {sorted(TOPICS)!r}:
    if not os.fork():
        importlib.import_module(f"bringup.ops.{{topic}}")
        print(topic, *_TABLE)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, topic
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    defined = {topic: set(names) for topic, *names in lines}
    assert set(defined) == set(TOPICS)
    for topic, names in TOPICS.items():
        assert set(names) == {n for n in defined[topic] if MODULE_OF[n] == topic}
        assert topic not in MODULE_OF, "a module would hide the row of its name"
