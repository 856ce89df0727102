"""Printing and parsing: round trips bit for bit, and errors that point at the character."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.dtypes import FLOATS, STORAGE, STORED, DType, bf16, f16, f32, f64, i32
from bringup.errors import Location, OpTypeError, ParseError
from bringup.graph import Builder, Graph, Literal, Operation, attr_key
from bringup.graph.elements import bits_of, format_element, from_bits, read_element
from bringup.graph.parser import parse_graph, register_attr_reader
from bringup.graph.printer import Numbering, format_attr, format_call, print_graph

Parse = Callable[[str], Graph]
Toys = dict[str, Operation]

GOLDEN = """graph main(%0: f32[4], %1: f32[4]) {
  %2: f32[4] = add(%0, %1)
  %3: f32[4], %4: f32[4] = both(%2)
  %5: f32[4] = constant() {value=f32[4](1.0)}
  %6: f32[4], %7: f32[4], %8: f32[4] = tag(%3, %4, %5) {note="\\"b\\"", more=((2,), true, 0.5)}
  return %7, %0
}"""

NESTED = """graph outer(%0: i32[]) {
  %1: i32[] = call(%0) {
    body=graph "<lambda>"(%0: i32[]) {
      %1: i32[] = call(%0) {
        body=graph inner(%0: i32[]) {
          return %0
        }
      }
      return %1
    }
  }
  %2: i32[] = tag(%1) {
    note=(graph a() {
      return
    }, graph b() {
      return
    }),
    more=(1, f32, f32[4,8], u8[2](1, 2))
  }
  return %2
}"""


@pytest.mark.parametrize("text", [GOLDEN, NESTED], ids=["flat", "nested"])
def test_golden_text_round_trips(text: str, parse: Parse) -> None:
    graph = parse(text)
    assert print_graph(graph) == text
    assert str(graph) == text
    assert parse(text).key == graph.key


def test_a_graph_is_told_in_one_line(parse: Parse) -> None:
    assert repr(parse(GOLDEN)) == (
        "<Graph main: (f32[4], f32[4]) -> (f32[4], f32[4]), 4 instructions>"
    )
    assert repr(parse("graph f(%0: i32[]) {\n  %1: i32[] = add(%0, %0)\n  return %1\n}")) == (
        "<Graph f: (i32[]) -> i32[], 1 instruction>"
    )
    assert repr(parse("graph a() {\n  return\n}")) == "<Graph a: () -> (), 0 instructions>"


def test_white_space_comments_and_names_are_free(parse: Parse) -> None:
    free = (
        "# made by hand\ngraph main(%x:f32[4],%y :f32[ 4 ]){%sum:f32[4]=add(%x,%y)# c\nreturn %sum}"
    )
    assert print_graph(parse(free)).splitlines()[1] == "  %2: f32[4] = add(%0, %1)"


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_16_bit_float_round_trips(dtype: DType) -> None:
    for size in range(1 << 15):
        bits = size | (size % 2) << 15  # positive and negative in turn
        text = format_element(from_bits(bits, dtype), dtype)
        assert bits_of(read_element(text, dtype)) == bits, text
        value = float(from_bits(bits, dtype))
        assert math.isnan(value) or not text.startswith("0x")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_wide_floats_round_trip(low: int, high: int) -> None:
    for bits, dtype in ((low, f32), (high, f64)):
        text = format_element(from_bits(bits, dtype), dtype)
        assert bits_of(read_element(text, dtype)) == bits


SHORT = [
    (0x3DCC_CCCD, f32, "0.1"),
    (0x7F7F_FFFF, f32, "3.4028235e+38"),
    (0x0000_0001, f32, "1e-45"),
    (0x8000_0000, f32, "-0.0"),
    (0xFF80_0000, f32, "-inf"),
    (0x7FC0_0000, f32, "nan"),
    (0xFFC0_0000, f32, "0xffc00000"),
    (0x7F80_0001, f32, "0x7f800001"),
    (0x3E4D, bf16, "0.2"),
    (0x4380, bf16, "256.0"),
    (0x6800, f16, "2048.0"),
    (0x7BFF, f16, "65500.0"),
    (0x0001, f16, "6e-08"),
    (0x7FC1, bf16, "0x7fc1"),
]


@pytest.mark.parametrize(("bits", "dtype", "text"), SHORT, ids=[s[2] for s in SHORT])
def test_floats_print_shortest(bits: int, dtype: DType, text: str) -> None:
    assert format_element(from_bits(bits, dtype), dtype) == text


def _round_trip(literal: Literal, toys: Toys) -> tuple[str, Literal]:
    builder = Builder()
    (value,) = builder.emit(toys["constant"], (), {"value": literal})
    text = print_graph(builder.build([value]))
    return text, parse_graph(text, toys.get).instrs[0].attrs["value"]


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (100,), (0, 3)], ids=str)
def test_literals_round_trip(dtype: DType, shape: tuple[int, ...], toys: Toys) -> None:
    raw = np.random.default_rng(7).bytes(math.prod(shape) * dtype.itemsize)
    dense = np.frombuffer(raw, dtype=dtype.numpy)
    if dtype.name == "bool":
        dense = np.frombuffer(bytes(b & 1 for b in raw), dtype=np.bool_)
    literal = Literal(dense, dtype[shape])
    text, back = _round_trip(literal, toys)
    assert back == literal
    assert ("hex" in text) == (shape == (100,))


@pytest.mark.parametrize("dtype", FLOATS + STORAGE, ids=str)
def test_a_splat_prints_one_element_whatever_its_shape(dtype: DType, toys: Toys) -> None:
    text, back = _round_trip(Literal.splat(-0.0, dtype[1000, 1000]), toys)
    assert f"{dtype}[1000,1000](-0.0)" in text
    assert back == Literal.splat(-0.0, dtype[1000, 1000])
    assert back != Literal.splat(0.0, dtype[1000, 1000])


ATTRS = [
    (None, "none"),
    (True, "true"),
    (-3, "-3"),
    (2**70, str(2**70)),
    (-0.0, "-0.0"),
    (1e300, "1e+300"),
    (1.0, "1.0"),
    (-math.inf, "-inf"),
    (math.nan, "nan"),
    (-math.nan, "0xfff8000000000000"),
    ("add", '"add"'),
    ("λ\n#", '"λ\\n#"'),
    ((), "()"),
    ((1,), "(1,)"),
    (((0, 1, 2), (3, 4, 5)), "((0, 1, 2), (3, 4, 5))"),
    (f32, "f32"),
    (f32[4, 8], "f32[4,8]"),
    (f32[()], "f32[]"),
]


@pytest.mark.parametrize(("value", "text"), ATTRS, ids=[a[1] for a in ATTRS])
def test_attributes_round_trip(value: Any, text: str, toys: Toys) -> None:
    assert format_attr(value) == text
    builder = Builder()
    x = builder.input(f32[4])
    graph = builder.build(builder.emit(toys["tag"], (x,), {"note": value, "more": (value,)}))
    back = parse_graph(str(graph), toys.get)
    assert attr_key(back.instrs[0].attrs["note"]) == attr_key(value)
    assert back.key == graph.key


def test_locations_print_as_comments_and_come_back_as_lines_of_the_source(toys: Toys) -> None:
    builder = Builder()
    x = builder.input(f32[4])
    builder.location = Location("model.py", 12, "loss")
    graph = builder.build(builder.emit(toys["exp"], (x,), {}))
    text = print_graph(graph, locations=True)
    assert text.splitlines()[1] == "  %1: f32[4] = exp(%0)  # model.py:12"
    back = parse_graph(text, toys.get, source="dump.txt")
    assert back.key == graph.key
    assert back.instrs[0].location == Location("dump.txt", 2, "main")


def test_messages_abridge_graphs_and_long_literals(toys: Toys, parse: Parse) -> None:
    literal = Literal.of(np.arange(9), i32)
    attrs = {"body": parse(NESTED), "value": literal, "k": (1, 2)}
    x = Builder().input(f32[4])
    call = format_call("call", (x,), attrs, Numbering((), ()))
    assert call == "call(%?) {body=graph outer {…}, value=i32[9](…), k=(1, 2)}"


def test_the_builder_explains_errors_with_the_printed_call(toys: Toys) -> None:
    builder = Builder()
    x, y = builder.input(f32[4, 8]), builder.input(f32[4])
    (z,) = builder.emit(toys["exp"], (y,), {})
    with pytest.raises(OpTypeError) as caught:
        builder.emit(toys["add"], (x, z), {})
    assert str(caught.value).splitlines() == [
        "add: operand types differ: f32[4,8] and f32[4]",
        "  in instruction: add(%0, %2)",
        "  fix: reshape one",
    ]


BODY = "graph main(%0: f32[4]) {{\n  {}\n  return %1\n}}"
WRONG = [
    ("%1: f32[4] = exq(%0)", 2, 16, "there is no op 'exq'"),
    ("%1: f32[4] exp(%0)", 2, 14, "expected '=' after the results"),
    ("%1: f32[4] = exp %0", 2, 20, "expected '(' before the operands"),
    ("%1: f32[4] = exp(%9)", 2, 20, "%9 is not defined above"),
    ("%1: f32[4] = exp(%1)", 2, 20, "%1 is not defined above"),
    ("%0: f32[4] = exp(%0)", 2, 3, "%0 is defined twice"),
    ("%1: f32[5] = exp(%0)", 2, 3, "%1 is a f32[4], not a f32[5]"),
    ("%1: g32[5] = exp(%0)", 2, 7, "not a tensor type: 'g32[5]'"),
    ("%1: f32[4] = both(%0)", 2, 3, "both has 2 results, not 1"),
    ("%1: f32[4] = exp(%0) {a=1}", 2, 16, "exp: no attribute 'a'"),
    ("%1: f32[4] = tag(%0) {note=1, note=2}", 2, 33, "attribute note is given twice"),
    ("%1: f32[4] = tag(%0) {note=what}", 2, 30, "expected a type such as f32[4,8]"),
    ("%1: f32[4] = tag(%0) {note=odd<1>}", 2, 30, "attributes odd<…> have no reader"),
    ("%1: f32[4] = tag(%0) {note=(1 2)}", 2, 33, "expected ')' or ',' after an item"),
    ("%1: f32[4] = tag(%0) {note=f32[2](1, 2, 3)}", 2, 37, "takes 1 or 2 elements, not 3"),
    ("%1: f32[4] = tag(%0) {note=i8[1](300)}", 2, 36, "300 is not a i8"),
    ("%1: f32[4] = tag(%0) {note=i8[1](1.5)}", 2, 36, "1.5 is not a i8"),
    ('%1: f32[4] = tag(%0) {note=i8[9](hex "zz")}', 2, 40, "not a row of hexadecimal digits"),
    ('%1: f32[4] = tag(%0) {note=i16[9](hex "00")}', 2, 37, "not 1 bytes"),
]


@pytest.mark.parametrize(("line", "row", "column", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_parse_errors_point_at_the_character(
    line: str, row: int, column: int, message: str, parse: Parse
) -> None:
    with pytest.raises(ParseError) as caught:
        parse(BODY.format(line))
    first, shown, caret, *_ = str(caught.value).splitlines()
    assert first.startswith(f"line {row}, column {column}: ")
    assert message in first
    assert shown == f"  {row} |   {line}"
    assert caret.index("^") - caret.index("|") - 2 == column - 1


def test_text_after_the_graph_is_an_error(parse: Parse) -> None:
    with pytest.raises(ParseError, match="text after the end of the graph"):
        parse("graph main() {\n  return\n}\ngraph")
    with pytest.raises(ParseError, match="line 1, column 1: expected 'graph'"):
        parse("graphs() {\n  return\n}")


def test_brackets_beyond_pythons_stack_are_an_error(parse: Parse) -> None:
    with pytest.raises(ParseError, match=r"line 2, column \d+: brackets inside one another"):
        parse(BODY.format(f"%1: f32[4] = tag(%0) {{note={'(' * 3000}"))


def test_a_truncated_text_is_an_error_wherever_it_ends(parse: Parse) -> None:
    for end in range(len(GOLDEN)):
        with pytest.raises(ParseError):
            parse(GOLDEN[:end])


@dataclass(frozen=True)
class Index:
    """Stands for the index expressions of a later level."""

    terms: tuple[int, ...]

    def __ir__(self) -> str:
        return f"terms<{' + '.join(f'{t}*(a{i})' for i, t in enumerate(self.terms))}>"


def _read_index(body: str) -> Index:
    return Index(tuple(int(term.split("*")[0]) for term in body.split(" + ")))


def test_a_later_level_adds_attributes_of_its_own(toys: Toys) -> None:
    register_attr_reader("terms", _read_index)
    register_attr_reader("terms", _read_index)
    builder = Builder()
    x = builder.input(f32[4])
    attrs = {"note": Index((1, 20)), "more": (Index((3,)), 7)}
    graph = builder.build(builder.emit(toys["tag"], (x,), attrs))
    assert "{note=terms<1*(a0) + 20*(a1)>, more=(terms<3*(a0)>, 7)}" in str(graph)
    assert parse_graph(str(graph), toys.get).key == graph.key
    with pytest.raises(ParseError, match="line 2, column 30: invalid literal for int"):
        parse_graph(BODY.format("%1: f32[4] = tag(%0) {note=terms<x>}"), toys.get)
    with pytest.raises(ParseError, match="the bracket is never closed"):
        parse_graph(BODY.format("%1: f32[4] = tag(%0) {note=terms<(x>)}"), toys.get)


@pytest.mark.parametrize("prefix", ["graph", "f32", "nan", "a b", "terms"])
def test_a_prefix_that_means_something_is_refused(prefix: str) -> None:
    register_attr_reader("terms", _read_index)
    with pytest.raises(ValueError, match=prefix):
        register_attr_reader(prefix, lambda body: body)
