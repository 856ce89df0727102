"""The rules of the form: each is shown to find the function that breaks it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from bringup.dtypes import DType, bool_, f32, f64, i64
from bringup.errors import GraphError
from bringup.graph import Literal
from bringup.graph.index import Axis, Bound, Expr
from bringup.kernel.ops import KERNEL_OPS
from bringup.loops import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    Param,
    Scalar,
    Store,
    parse_func,
    verify_func,
)
from bringup.loops.form import Stmt
from bringup.loops.verify import FUNC_RULES
from bringup.ops.table import OpDef, lookup

#: Half the sum of each row, by four threads, each of which sums every fourth element.
RIGHT = inspect.cleandoc(
    """
    func sums(x: in f32[30], y: out f32[3]) {
      for b in 3 block {
        alloc parts: shared f32[4]
        for t in 4 thread {
          alloc r: register f32[2]
          %0: f32 = -0.0
          for u in 2 unroll {
            r[u] = %0
          }
          for k in 3 until (-1*t + 9)//4 + 1 {
            %1: f32 = x[10*b + 4*k + t]
            r[0] add= %1
          }
          %2: f32 = r[0]
          parts[t] = %2
          for h in 2 {
            barrier
            %3: f32 = parts[t + -1*h + 2] if 0 <= t + h < 2
            if 0 <= t + h < 2 {
              parts[t] add= %3
            }
          }
          if 0 <= t < 1 {
            %4: f32 = parts[0]
            %5: f32 = 0.5
            %6: f32 = mul(%4, %5)
            y[b] = %6
          }
        }
      }
    }
    """
)

# Rule, a line, what stands there instead, what is said.
BROKEN: list[tuple[str, str, str, str]] = [
    ("buffers", "y: out f32[3]", "y: in f32[3]", "all parameters are in"),
    ("buffers", "for b in 3 block {", "for b in 3 parallel {", "yet in no block"),
    ("names", "%2: f32 = r[0]", "for t in 3 {\n}\n%2: f32 = r[0]",
     "loop t has the name of another that is seen here"),
    ("names", "alloc r: register f32[2]", "alloc x: scratch f32[2]\nalloc r: register f32[2]",
     "buffer x has the name of another"),
    ("names", "%6: f32 = mul(%4, %5)", "%6: f32 = 1.0\n%6: f32 = mul(%4, %5)", "scalar 6 has the"),
    ("names", "alloc r:", "for serial in 2 {\n}\nalloc r:", "loop serial is called as a kind"),
    ("loops", "until (-1*t + 9)//4 + 1", "until t",
     "loop k may have no iteration: it ends at t[4]"),
    ("loops", "for h in 2", "for h in 2 parallel", "parallel loop h is in a thread loop"),
    ("loops", "for h in 2", "for h in 2 block", "block loop h is in a thread loop"),
    ("accesses", "x: in f32[30]", "x: in f64[30]", "x: global f64[30] is accessed as f32"),
    ("accesses", "y[b] = %6", "y[b] = %6\nx[b] = %6", "x is an in buffer, which is only read"),
    ("accesses", "parts[t] add=", "parts[t] xor=", "there is no fold 'xor'"),
    ("accesses", "parts[t] add=", "parts[t] and=", "fold 'and' does not take f32"),
    ("accesses", "parts[t] add= %3", "parts[t] max= %3 * %3", "only fold 'add' has a factor"),
    ("accesses", "parts[t] add= %3", "parts[t] add= %3 tf32", "tf32 is for products of f32"),
    ("accesses", "parts[t] add= %3", "%i: i32 = 1\nparts[t] add= %3 * %i", "%i is i32, not f32"),
    ("indices", "r[0] add= %1", "r[d0[0:1]] add= %1", "names operands that are no loaded integers"),
    ("indices", "r[0] add= %1", "r[d0[0:1]](%1) add= %1", "are no loaded integers"),
    ("indices", "if 0 <= t < 1", "if 0 <= d0[0:1] < 1", "are no loaded integers"),
    ("indices", "for h in 2", "for h in 2 until d0[1:2]", "are no loaded integers"),
    ("ranges", "x[10*b + 4*k + t]", "x[10*b + 4*k + t + 1]", "reads element 30 of x, which has 30"),
    ("ranges", " until (-1*t + 9)//4 + 1", "", "reads element 30 of x"),
    ("ranges", " if 0 <= t + h < 2", "", "reads element 4 of parts"),
    ("ranges", "parts[t] add= %3", "parts[t + 3] add= %3", "writes element 4 of parts"),
    ("ranges", "parts[t] add= %3", "parts[t + -1] add= %3", "writes element -1 of parts"),
    ("registers", "r[0] add= %1", "r[k] add= %1 if 0 <= k < 2",
     "register buffer r is indexed by k"),
    ("registers", "for u in 2 unroll", "for u in 2", "register buffer r is indexed by u"),
    ("registers", "r[0] add= %1", "%i: i32 = 1\nr[d0[0:1]](%i) add= %1", "r is indexed by data"),
    ("fragments", "alloc parts: shared", "alloc parts: fragment",
     "fragment parts is indexed by h, which is not written out"),
    ("later", "parts[t] = %2", "parts[t] later = %2", "%2 is no element of the caller's memory"),
    ("outputs", "y[b] = %6", "y[b] = %6 if 0 <= b < 2", "element 2 of y, which is out, is never"),
    ("outputs", "y: out f32[3]", "y: out f32[4]", "element 3 of y, which is out, is never written"),
    ("outputs", "y[b] = %6", "parts[0] = %6", "element 0 of y, which is out, is never written"),
    ("outputs", "y[b] = %6", "y[2*b] = %6 if 0 <= b < 2", "element 1 of y, which is out, is never"),
    ("races", "parts[t] = %2", "parts[2] = %2", "every iteration of thread loop t writes parts[2]"),
    ("races", "if 0 <= t < 1 {", "if 0 <= b < 3 {", "every iteration of thread loop t writes y[b"),
    ("races", "y[b] = %6", "y[(b)//2 + 1] = %6\ny[0] = %6 if 0 <= b < 1",
     "several iterations of block loop b use element 1 of y: y[(b)//2 + 1] = %6"),
    ("races", "y[b] = %6", "y[b] = %6\ny[(b + 1)%3] = %6",
     "block loop b use element 0 of y: y[b] = %6 and y[(b + 1)%3] = %6"),
    ("races", "y[b] = %6", "y[b] = %6\n%7: f32 = y[(b + 2)%3]",
     "use element 0 of y: y[b] = %6 and %7: f32 = y[(b + 2)%3]"),
    ("races", "if 0 <= t < 1 {", "if 1 <= t < 2 {", "between them, use element 0 of parts"),
    ("races", "barrier", "",
     "several threads, with no barrier between them, use element 1 of parts: parts[t] = %2 and "),
    ("races", "for t in 4 thread {", "alloc r: scratch f32[2]\nfor t in 4 thread {",
     "a thread writes r, which is private to its block"),
    ("barriers", "for t in 4 thread {", "for t in 4 thread {\n%k: f32 = 1.0\n}\n"
     "for t in 4 until b + 2 thread {", "for t in 4 until b + 2"),
    ("barriers", "for h in 2 {", "for h in 2 until t + 1 {", "for h in 2 until t + 1"),
    ("barriers", "%2: f32 = r[0]", "if 0 <= t < 2 {\nbarrier\n}\n%2: f32 = r[0]", "if 0 <= t < 2"),
    ("barriers", "for b in 3 block {", "barrier\nfor b in 3 block {", "outside"),
    ("barriers", "barrier",
     "%i: bool = inside 0 <= t < 2\n%j: bool = and(%i, %i)\n"
     "if %j {\nbarrier\n}",
     "only some threads may come to a barrier: if %j"),
    ("barriers", "barrier",
     "%j: bool = compare(%2, %2) {direction=\"eq\"}\nif %j {\nbarrier\n}", "barrier: if %j"),
]  # fmt: skip


def changed(line: str, instead: str) -> Func:
    assert RIGHT.count(line) >= 1
    text = RIGHT.replace(line, instead, 1)
    if instead.startswith("alloc r: scratch"):
        text = text.replace("alloc r: register f32[2]", "")
    return parse_func(text)


def test_the_right_one_is_right() -> None:
    func = parse_func(RIGHT)
    assert str(func) == RIGHT
    verify_func(func)
    # Another thread may go on behind one more barrier.
    verify_func(changed("if 0 <= t < 1 {", "barrier\nif 1 <= t < 2 {"))


def complaint_about(func: Func) -> tuple[str, str, str | None]:
    with pytest.raises(GraphError) as caught:
        verify_func(func)
    error = caught.value
    assert error.fix is not None
    assert error.what.startswith(f"func {func.name}: ")
    assert error.notes == tuple(str(func).splitlines())
    rule, _, says = error.fix.removeprefix("rule ").partition(": ")
    assert says in {r.says for r in FUNC_RULES}
    return rule, error.what, error.instruction


@pytest.mark.parametrize(("rule", "line", "instead", "complaint"), BROKEN)
def test_the_verifier_names_the_rule(rule: str, line: str, instead: str, complaint: str) -> None:
    broken, what, stmt = complaint_about(changed(line, instead))
    assert (broken, complaint in what) == (rule, True), what
    assert stmt is None or stmt in str(changed(line, instead))


X, Y = Buffer("x", f32, 4), Buffer("y", f32, 4)
AXIS = Axis(0, 4, "i")
ONE = Let(Scalar("one", f32), lookup("constant"), (), {"value": Literal.of(1, f32)})


def func_of(*body: Stmt, params: tuple[Param, ...] | None = None) -> Func:
    """A function whose body, in a loop over all elements, writes ones in the end."""
    store = Store(Y, Expr.of(AXIS), ONE.result)
    return Func("f", params or (Param(X, "in"), Param(Y, "out")), (For(AXIS, (ONE, *body, store)),))


def let(name: str, *operands: Scalar, result: DType = f32, **attrs: Any) -> Let:
    return Let(Scalar("r", result), resolve_op(name), operands, attrs)


def resolve_op(name: str) -> OpDef:
    return KERNEL_OPS.get(name) or lookup(name)


#: What no text says.
BUILT: list[tuple[str, str, Func]] = [
    ("buffers", "parameter x has the role 'shared'",
     func_of(params=(Param(X, "shared"), Param(Y, "out")))),  # type: ignore[arg-type]
    ("buffers", "parameter x: shared f32[4] is not global",
     func_of(params=(Param(replace(X, space="shared"), "in"), Param(Y, "out")))),
    ("buffers", "'heap' is no space", func_of(Alloc(replace(X, name="z", space="heap")))),
    ("names", "two parameters are called y",
     func_of(params=(Param(replace(X, name="y"), "in"), Param(Y, "out")))),
    ("names", "'x y' is no name", func_of(params=(Param(replace(X, name="x y"), "in"),
     Param(Y, "out")))),
    ("names", "'a b' is no name", func_of(For(Axis(0, 4, "a b"), ()))),
    ("names", "'%' is no name", func_of(Load(Scalar("%", f32), X, Expr()))),
    ("scope", "there is no %two: f32 here", func_of(let("neg", Scalar("two", f32)))),
    ("scope", "there is no %one: f64 here", func_of(let("neg", Scalar("one", f64)))),
    ("scope", "there is no %r: f32 here", func_of(If((), (let("neg", ONE.result),)),
     let("abs", Scalar("r", f32)))),
    ("scope", "there is no buffer z: global f32[4] here",
     func_of(Load(Scalar("r", f32), replace(X, name="z"), Expr()))),
    ("scope", "there is no buffer x: global f32[5] here",
     func_of(Load(Scalar("r", f32), replace(X, size=5), Expr()))),
    ("scope", "there is no buffer z: scratch f32[4] here",
     func_of(If((), (Alloc(replace(X, name="z", space="scratch")),)),
             Load(Scalar("r", f32), replace(X, name="z", space="scratch"), Expr()))),
    ("loops", "'grid' is no kind of loop", func_of(For(Axis(0, 2, "j"), (), "grid"))),
     # type: ignore[arg-type]
    ("loops", "loop j has a negative size", func_of(For(Axis(0, -2, "j"), ()))),
    ("loops", "the axis of loop j has a number", func_of(For(Axis(3, 2, "j"), ()))),
    ("loops", "thread loop j is in no block loop", func_of(For(Axis(0, 2, "j"), (), "thread"))),
    ("scalars", "reduce is not an op on scalars",
     func_of(let("reduce", ONE.result, kind="add", dims=()))),
    ("scalars", "load is not an op on scalars",
     func_of(let("load", buffer=0, dtype=f32, index=Expr(), mask=()))),
    ("scalars", "add: takes 2 operands, got 1", func_of(let("add", ONE.result))),
    ("scalars", "neg gives f32[], not f64[]", func_of(let("neg", ONE.result, result=f64))),
    ("scalars", "the attributes of index are not bound", func_of(let("index", index=Expr(),
     result=i64))),
    ("scalars", "and: does not take f32", func_of(let("and", ONE.result, ONE.result))),
    ("scalars", "%one, a f32, is no condition", func_of(If((), (), ONE.result))),
    ("indices", "index j[2] uses j, which is no loop round it",
     func_of(Load(Scalar("r", f32), X, Expr.of(Axis(0, 2, "j"))))),
    ("indices", "index i[5] uses i, which is no loop round it",
     func_of(Load(Scalar("r", f32), X, Expr.of(Axis(0, 5, "i"))))),
    ("indices", "index j[2] uses j, which is no loop round it",
     func_of(let("index", index=Expr.of(Axis(0, 2, "j")), dtype=i64, result=i64))),
    ("indices", "index j[2] uses j, which is no loop round it",
     func_of(let("inside", mask=(Bound(Expr.of(Axis(0, 2, "j")), 0, 1),), result=bool_))),
    ("indices", "index j[2] uses j, which is no loop round it",
     func_of(For(Axis(0, 2, "j"), (), end=Expr.of(Axis(0, 2, "j"))))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "complaint", "func"), BUILT, ids=[c for _, c, _ in BUILT])
def test_what_no_text_says_is_found_too(rule: str, complaint: str, func: Func) -> None:
    broken, what, _ = complaint_about(func)
    assert (broken, complaint in what) == (rule, True), what


def test_every_rule_is_broken_above() -> None:
    assert {rule for rule, *_ in (*BROKEN, *BUILT)} == {r.name for r in FUNC_RULES}
    verify_func(func_of())


@pytest.mark.parametrize(
    "text",
    [
        # Data decides: undecided, not wrong.
        "for i in 4 parallel {\n%0: f32 = 1.0\n%1: bool = true\n"
        "if %1 {\ny[i] = %0\ny[3] = %0\n}\n}",
        "for i in 4 parallel {\n%0: f32 = 1.0\n%1: i32 = 2\ny[d0[0:3]](%1) = %0\n}",
        # Two stores that divide the elements between them.
        "for i in 2 parallel {\n%0: f32 = 1.0\ny[2*i] = %0\ny[2*i + 1] = %0\n}",
        "for i in 3 parallel {\n%0: f32 = 1.0\ny[i] = %0\n}\n%0: f32 = 2.0\ny[3] = %0",
        # A loop of one iteration, and a loop that is no loop.
        "for j in 1 parallel {\nfor i in 4 parallel {\n%0: f32 = 1.0\ny[i] = %0\n}\n}",
        # Elements that iterations of an outer loop use one after the other.
        "for k in 3 {\nfor i in 2 parallel {\n%0: f32 = 1.0\ny[k + i] = %0\n}\n}",
        # A loop that never runs.
        "for i in 4 parallel {\n%0: f32 = 1.0\ny[i] = %0\nfor z in 0 {\n%1: f32 = y[0]\n}\n}",
        # One iteration of many.
        "for j in 9 parallel {\nfor i in 4 {\n%0: f32 = 1.0\ny[i] = %0 if 0 <= j < 1\n}\n}",
        # What the tile of an iteration has is its own, and all of it is of whoever waits for all.
        "for j in 4 parallel {\nalloc t: scratch f32[2]\nfor i in 2 {\n%0: f32 = 1.0\n"
        "t[i] = %0\n}\n%1: f32 = t[1]\ny[j] = %1\n}",
        "alloc t: scratch f32[4]\nfor i in 4 parallel {\n%0: f32 = 1.0\nt[i] = %0\n}\n"
        "for i in 4 parallel {\n%1: f32 = t[i]\ny[i] = %1\n}",
    ],
)
def test_what_is_right_or_undecided_is_taken(text: str) -> None:
    verify_func(parse_func(f"func f(y: out f32[4]) {{\n{text}\n}}"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "for i in 2 parallel {\n%0: f32 = 1.0\nfor j in 3 {\ny[i + j] = %0\n}\n}",
            "several iterations of parallel loop i use element 1 of y: y[i + j] = %0",
        ),
        (
            "for b in 1 block {\nfor t in 4 thread {\n%0: f32 = 1.0\ny[t] = %0\n}\n"
            "for u in 4 thread {\n%1: f32 = y[u]\n}\n}",
            "several threads, with no barrier between them, use element 0 of y: y[t] = %0 and %1",
        ),
        (
            "for b in 1 block {\n%0: f32 = 1.0\ny[3] = %0\nfor t in 3 thread {\ny[t] = %0\n"
            "%1: f32 = y[t + 1]\n}\n}",
            "several threads, with no barrier between them, use element 1 of y: y[t] = %0 and %1",
        ),
    ],
)
def test_accesses_of_several_iterations_are_compared(text: str, complaint: str) -> None:
    rule, what, _ = complaint_about(parse_func(f"func f(y: out f32[4]) {{\n{text}\n}}"))
    assert (rule, complaint in what) == ("races", True), what
