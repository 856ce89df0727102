"""Functions of the loop level as text: what is printed parses and prints the same."""

from __future__ import annotations

import inspect

import pytest

from bringup.dtypes import bool_, f32
from bringup.errors import ParseError
from bringup.graph.index import Bound, Expr
from bringup.loops import (
    Alloc,
    Barrier,
    For,
    If,
    Let,
    Load,
    Store,
    parse_func,
    print_stmt,
    statements,
)

#: Every statement, every kind of loop and every space.
TEXT = inspect.cleandoc(
    """
    func all.kinds(x: in f32[24], at: in i32[8], y: out f32[24]) {
      alloc whole: global f32[3]
      for b in 3 block {
        alloc s: shared f32[8]
        for t in 8 until 8*b + 5 thread {
          alloc r: register f32[2]
          alloc p: scratch f32[4]
          %0: f32 = -inf
          %1: i32 = at[t]
          %2: f32 = x[8*b + d0[0:7]](%1) if 0 <= d0[0:7] < 7 and 1 <= t + 1 < 9
          %3: bool = inside 0 <= t < 4 and 0 <= d0[0:7] < 7 of %1
          %4: i64 = index 8*b + t
          %5: i32 = index (t)//2 + (t + 1)%3 + d0[0:7] of %1
          %6: bool = compare(%1, %5) {direction="lt"}
          %7: bool = true
          for v in 2 vector {
            r[v] = %0
            r[v] max= %2 if 0 <= v + b < 3
          }
          for u in 4 unroll {
            p[u] = %0
          }
          for i.o in 2 until b + 1 {
            p[i.o] add= %2 * %2
            p[i.o] add= %2 * %0 tf32
          }
          if 0 <= t < 4 and %3 {
            p[d0[0:3]](%1) = %0 if 0 <= d0[0:3] < 2
          }
          if %7 {
            s[t] = %2
          }
          if 0 <= t < 7 and 0 <= b < 2 {
            s[t] mul= %2
          }
          barrier
          y[8*b + t] = %2
        }
      }
      for i in 3 parallel {
        whole[i] = %8
      }
    }
    """
).replace("whole[i] = %8", "%8: f32 = 1.5\n    whole[i] = %8")


def test_every_part_is_read() -> None:
    func = parse_func(TEXT)
    assert str(func) == TEXT
    kinds = {type(stmt) for stmt in statements(func.body)}
    assert kinds == {Alloc, Barrier, For, If, Let, Load, Store}
    loops = [s for s in statements(func.body) if isinstance(s, For)]
    assert [loop.kind for loop in loops] == [
        "block",
        "thread",
        "vector",
        "unroll",
        "serial",
        "parallel",
    ]
    assert [a.buffer.space for a in statements(func.body) if isinstance(a, Alloc)] == [
        "global",
        "shared",
        "register",
        "scratch",
    ]
    thread = loops[1]
    assert thread.end == Expr.of(loops[0].axis) * 8 + 5
    assert thread.bounds == (Bound(thread.end + Expr.of(thread.axis) * -1, 1, 22),)
    folds = [s for s in statements(func.body) if isinstance(s, Store) and s.fold]
    assert [(s.fold, s.precision) for s in folds] == [
        ("max", "highest"),
        ("add", "highest"),
        ("add", "tf32"),
        ("mul", "highest"),
    ]
    assert folds[1].value == folds[1].factor
    branches = [s for s in statements(func.body) if isinstance(s, If)]
    assert [(len(s.mask), s.test is not None) for s in branches] == [
        (1, True),
        (0, True),
        (2, False),
    ]
    assert branches[0].test is not None
    assert branches[0].test.dtype is bool_
    assert [b.name for b in func.inputs] == ["x", "at"]
    assert [str(b.type) for b in func.outputs] == ["f32[24]"]
    assert repr(func) == "<Func all.kinds: 3 buffers, 6 loops>"


def test_the_content_is_without_the_name() -> None:
    other = parse_func(TEXT.replace("all.kinds", "other"))
    assert other.content == parse_func(TEXT).content
    assert other.name == "other"


def test_statements_are_shown_by_their_line() -> None:
    lines = [line.strip().removesuffix(" {") for line in TEXT.split("\n")[1:]]
    printed = [print_stmt(stmt) for stmt in statements(parse_func(TEXT).body)]
    assert printed == [line for line in lines if line != "}"]


@pytest.mark.parametrize("name", ["a0", "d0", "i.o", "i_1", "index", "n"])
def test_loops_may_have_any_name(name: str) -> None:
    text = f"func f(y: out f32[8]) {{\n  for {name} in 8 {{\n    %0: f32 = 0.0\n"
    text += f"    y[{name}] = %0 if 0 <= 2*{name} < 9\n  }}\n}}"
    func = parse_func(text)
    assert str(func) == text
    (loop, _, store) = statements(func.body)
    assert isinstance(loop, For)
    assert isinstance(store, Store)
    assert store.index == Expr.of(loop.axis)


@pytest.mark.parametrize(
    "constant",
    [
        "f32 = nan",
        "f32 = -0.0",
        "f16 = 0.1",
        "i8 = -128",
        "u64 = 18446744073709551615",
        "bool = true",
    ],
)
def test_constants_come_back(constant: str) -> None:
    text = f"func f(y: out f32[1]) {{\n  %c: {constant}\n}}"
    assert str(parse_func(text)) == text


def test_names_in_sibling_blocks_are_apart() -> None:
    text = inspect.cleandoc(
        """
        func f(y: out f32[4]) {
          for i in 4 {
            alloc t: scratch f32[4]
            %0: f32 = 1.0
            t[i] = %0
          }
          for i in 2 {
            alloc t: scratch i32[4]
            %0: i32 = 1
            t[i] = %0
          }
        }
        """
    )
    func = parse_func(text)
    assert str(func) == text
    stores = [s for s in statements(func.body) if isinstance(s, Store)]
    assert [str(s.buffer) for s in stores] == ["t: scratch f32[4]", "t: scratch i32[4]"]
    assert [s.value.dtype.name for s in stores] == ["f32", "i32"]


@pytest.mark.parametrize(
    ("line", "instead", "complaint"),
    [
        ("func all.kinds(", "fun all.kinds(", "line 1: expected a head such as func f"),
        ("x: in f32[24]", "x: ref f32[24]", "line 1: expected a parameter such as"),
        ("x: in f32[24]", "x: in f33[24]", "line 1: not a tensor type: 'f33[24]'"),
        ("at: in i32[8]", "at in i32[8]", "line 1: expected a parameter such as"),
        ("alloc whole: global", "alloc whole: heap", "line 2: expected a buffer such as"),
        ("alloc s: shared f32[8]", "alloc s: shared f32", "line 4: expected a buffer such as"),
        (
            "for b in 3 block {",
            "for b in 3 group {",
            "line 3: expected a loop such as for i in 8 until 3*j + 2 vector {, of: serial",
        ),
        ("for b in 3 block {", "for b to 3 {", "line 3: expected a loop such as"),
        ("until 8*b + 5", "until 8*c + 5", "line 5: there is no loop c round this"),
        ("until 8*b + 5", "until t", "line 5: there is no loop t round this"),
        ("%1: i32 = at[t]", "%1: i32 = at[t + ]", "line 9: expected an axis such as i at"),
        ("%1: i32 = at[t]", "%1: i33 = at[t]", "line 9: expected a scalar such as"),
        ("%1: i32 = at[t]", "%1: i32 = at(t)", "line 9: there is no op 'at'"),
        ("%1: i32 = at[t]", "%1: i32 = nothing[t]", "line 9: there is no buffer nothing"),
        ("compare(%1, %5)", "compare(%1, %9)", "line 14: %9 is not defined above"),
        ("compare(%1, %5)", "compared(%1, %5)", "line 14: there is no op 'compared'"),
        ("%6: bool = compare", "%6: i32 = compare", "line 14: %6 is a bool[], not a i32[]"),
        ('{direction="lt"}', '{direction="less"}', "line 14: "),
        ("%7: bool = true", "%7: bool = maybe", "line 15: maybe is not a bool"),
        ("if 0 <= d0[0:7] < 7 and", "if 0 <= d0[0:7] and", "line 10: not a bound"),
        ("r[v] = %0", "q[v] = %0", "line 17: there is no buffer q"),
        ("r[v] = %0", "r[w] = %0", "line 17: there is no loop w round this"),
        ("r[v] = %0", "r[v] = 0", "line 17: expected a statement: for, if, alloc"),
        ("r[v] = %0", "r[v] = %x", "line 17: %x is not defined above"),
        ("%2 * %0 tf32", "%2 * %0 bf16", "line 25: expected a statement"),
        ("if %7 {", "if %7", "line 30: expected a condition such as"),
        ("if %7 {", "if %9 {", "line 30: %9 is not defined above"),
        ("whole[i] = %8", "whole[i] = %2", "line 42: %2 is not defined above"),
        ("whole[i] = %8\n  }", "whole[i] = %8", "line 44: expected }"),
    ],
)
def test_a_wrong_line_is_named(line: str, instead: str, complaint: str) -> None:
    assert line in TEXT
    with pytest.raises(ParseError) as caught:
        parse_func(TEXT.replace(line, instead, 1))
    assert str(caught.value).startswith(complaint)


def test_text_behind_the_function_is_refused() -> None:
    with pytest.raises(ParseError, match="line 46: text after the end of the function"):
        parse_func(TEXT + "\n\nfunc other() {\n}")
    assert str(parse_func("\n" + TEXT + "\n\n")) == TEXT
    assert f32.name in TEXT
