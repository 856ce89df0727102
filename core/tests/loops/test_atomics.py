"""Folds that iterations side by side do to one element: text, values, rules, who renders them."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.c import DIALECTS, Dialect, render_c
from bringup.errors import GraphError, ScheduleError, UnsupportedError
from bringup.llvm.func.render import emit_func
from bringup.llvm.text import Module
from bringup.loops import evaluate_func, parse_func, verify_func
from bringup.loops.schedule import Schedule, apply

TEXT = """\
func counts(x: in i32[40], n: inout i32[4]) {
  for i in 40 parallel {
    %0: i32 = x[i]
    %1: i32 = 1
    n[d0[0:3]](%0) atomic add= %1 if 3 <= i < 40
  }
}"""
#: Threads that count in shared memory first.
TABLES = """\
func counts(x: in i32[40], n: inout i32[4]) {
  for b in 2 block {
    alloc table: shared i32[4]
    for t in 4 thread {
      %0: i32 = 0
      table[t] = %0
      barrier
      for k in 5 {
        %1: i32 = x[20*b + 4*k + t]
        %2: i32 = 1
        table[d0[0:3]](%1) atomic add= %2
      }
      barrier
      %3: i32 = table[t]
      n[t] atomic add= %3
    }
  }
}"""
X = np.random.default_rng(3).integers(0, 4, 40).astype(np.int32)


@pytest.mark.parametrize("text", [TEXT, TABLES])
def test_text_and_values(text: str) -> None:
    func = parse_func(text)
    verify_func(func)
    assert str(func) == text
    n = np.full(4, 5, np.int32)
    evaluate_func(func, [X, n])
    counted = X[3:] if text is TEXT else X
    assert n.tolist() == (np.bincount(counted, minlength=4) + 5).tolist()


# What is changed in a text, and what the verifier says of it.
WRONG = {
    "no fold": (TEXT, "atomic add= ", "atomic = ", "only a fold that gives the same bits"),
    "order": (
        TEXT.replace("i32[4]", "f32[4]").replace("%1: i32 = 1", "%1: f32 = 1.0"),
        "counts",
        "sums",
        "only a fold that gives the same bits",
    ),
    "product": (TEXT, "add= %1", "add= %1 * %1", "only a fold that gives the same bits"),
    "private": (
        TEXT,
        "    %1: i32 = 1\n",
        "    %1: i32 = 1\n    alloc p: scratch i32[1]\n    p[0] = %1\n    p[0] atomic add= %1\n",
        "which is private, is not atomic",
    ),
    "two kinds": (
        TEXT,
        "    %1: i32 = 1\n",
        "    %1: i32 = 1\n    n[d0[0:3]](%0) atomic max= %1\n",
        "is folded into atomically by max, too",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_verifier_refuses(name: str) -> None:
    text, old, new, complaint = WRONG[name]
    assert old in text
    with pytest.raises(GraphError, match=complaint):
        verify_func(parse_func(text.replace(old, new)))


# What makes a race of it.
RACES = {
    "a fold that is not atomic": (TABLES, "table[d0[0:3]](%1) atomic add=", "table[t] add="),
    "a read beside it": (TABLES, "      barrier\n      %3", "      %3"),
    "a store beside it": (TABLES, "      barrier\n      for k", "      for k"),
}


@pytest.mark.parametrize("name", RACES)
def test_the_interpreter_finds_races(name: str) -> None:
    text, old, new = RACES[name]
    assert old in text
    if name == "a fold that is not atomic":
        new = "table[0] add="
    func = parse_func(text.replace(old, new))
    with pytest.raises(GraphError, match="and another iteration"):
        evaluate_func(func, [X, np.zeros(4, np.int32)])


def test_the_verifier_finds_races() -> None:
    together = "func f(n: inout i32[4]) {\n  for i in 8 parallel {\n    %0: i32 = n[0]\n"
    together += "    n[0] atomic add= %0\n  }\n}"
    with pytest.raises(GraphError, match=r"several iterations of parallel loop i use element 0"):
        verify_func(parse_func(together))
    verify_func(parse_func(together.replace("%0: i32 = n[0]", "%0: i32 = 1")))


def test_loops_of_atomic_folds_may_run_side_by_side() -> None:
    func = parse_func(TEXT.replace("40 parallel", "40"))
    assert str(apply(func, Schedule.parse("parallelize i"))) == TEXT
    plain = parse_func(str(func).replace("atomic ", ""))
    with pytest.raises(ScheduleError, match="touch the same elements of n"):
        apply(plain, Schedule.parse("parallelize i"))
    with pytest.raises(ScheduleError, match="folds of one kind into one element"):
        apply(
            parse_func(str(func).replace("n[d0[0:3]](%0)", "n[0]")), Schedule.parse("rfactor i n i")
        )


def test_renderers_without_atomics_say_so() -> None:
    with pytest.raises(UnsupportedError, match="nothing folds atomically here"):
        emit_func(Module(), parse_func(TEXT), "counts")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_c_has_no_atomics(dialect: Dialect) -> None:
    with pytest.raises(UnsupportedError, match="folds nothing atomically"):
        render_c(parse_func(TEXT), dialect)
