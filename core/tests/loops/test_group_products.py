"""Products that instructions are asked for and that come later: text, values, and what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import assert_equal_values

from bringup.c import C11, CUDA, render_c
from bringup.errors import GraphError, ParseError, ScheduleError, UnsupportedError
from bringup.loops import Func, evaluate_func, parse_func, verify_func
from bringup.loops.schedule import Schedule, apply

PRODUCT = """
func f(x: in f32[64], y: in f32[64], z: out f32[16]) {
  for i in 4 parallel {
    for j in 4 parallel {
      alloc r0: register f32[1]
      %0: f32 = -0.0
      r0[0] = %0
      for k in 16 {
        %1: f32 = x[16*i + k]
        %2: f32 = y[j + 4*k]
        r0[0] add= %1 * %2
      }
      %3: f32 = r0[0]
      z[4*i + j] = %3
    }
  }
}"""
TILED = """
split i i.o i 4
bind i.o block
distribute i j space=scratch scalars=repeat
split k k.o k {depth}
reorder k.o k i j
precompute %1 k.o xs i,k space=shared
precompute %2 k.o ys k,j space=shared
set_space r0 shared
bind xs.0 thread
bind ys.0 thread
unroll xs.1 ys.1
split i i.t i.u 2
split j j.t j.u 2
reorder i.t j.t i.u j.u
reorder i.t j.t i.u j.u k
tensorize i.t 4x4x{depth}
bind j.t thread
bind i.t thread
unroll i.u j.u
set_space r0 fragment
"""
PIPED = "double_buffer k.o 3 xs ys ahead=1 pending=1"


def tiled(depth: int = 4) -> Func:
    return apply(parse_func(PRODUCT), Schedule.parse(TILED.format(depth=depth)))


def piped() -> Func:
    return apply(tiled(), Schedule.parse(PIPED))


def test_text_and_values() -> None:
    func = piped()
    text = str(func)
    assert str(parse_func(text)) == text
    assert text.count(" later add= %1 * %2") == 1
    assert text.count("commit products") == 1
    assert text.index("wait products 1") < text.index("barrier") < text.index("by 4x4x4")
    # They are asked for before the next copies are started.
    assert text.index("later add") < text.index("if 0 <= k.o < 3")
    assert_equal_values(parse_func(PRODUCT), func)


@given(
    st.sampled_from([2, 4, 8, 16]),
    st.integers(2, 6),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from(["", "xs", "ys", "xs ys"]),
)
def test_random_pipelines_keep_values(
    depth: int, count: int, ahead: int, pending: int, later: str
) -> None:
    step = f"double_buffer k.o {count} {later} ahead={ahead} pending={pending}"
    fits = 0 < (ahead or count - 1 - pending) < count - pending
    func = tiled(depth)
    if not fits:
        with pytest.raises(ScheduleError, match="copies are filled ahead"):
            apply(func, Schedule.parse(step))
        return
    after = apply(func, Schedule.parse(step))
    assert str(parse_func(str(after))) == str(after)
    assert_equal_values(parse_func(PRODUCT), after)


CHANGE = "for t in 4 thread {\n%9: f32 = 1.0\n@ = %9\n}\n"
# What is changed in the text, and what verifier and interpreter say of it; None for nothing.
WRONG: dict[str, tuple[str, str, str | None, str | None]] = {
    "no wait at the end": ("wait products 0", "", None, "of r0 is read while it is on its way"),
    "a wait for older groups": (
        "wait products 1", "wait products 2", None, "element 0 of ys is written while products"),
    "no group": ("commit products", "", None, "is written while products read it"),
    "a wait behind the barrier": (
        "      wait products 1\n      barrier\n", "barrier\nwait products 1\n", None,
        "of ys is written, and another iteration accesses it"),
    "no barrier": ("      barrier\n      for i.t", "for i.t", "with no barrier between them",
                   "without a barrier"),
    "a factor is changed": (
        "commit products", "commit products\n" + CHANGE.replace("@", "xs[4*t]"),
        "no barrier between them", "of xs is written while products read it"),
    "a sum is changed": (
        "commit products", "commit products\nfor i.t in 2 thread {\nfor j.t in 2 thread {\n"
        "%9: f32 = 1.0\nr0[8*i.t + 2*j.t] = %9\n}\n}\n", None,
        "element 0 of r0 is written while it is on its way"),
    "another fold": (
        "later add= %1 * %2", "later max= %1", "products are added to a fragment", None),
    "no shape": (
        " by 4x4x4", "", "r0 cannot be stored later", "r0 is stored later, which is no"),
    "a factor of the caller's": (
        "%1: f32 = xs[", "%1: f32 = x[", "factor %1 is not in shared memory", None),
    "some threads only": (
        "      commit products\n", "for t in 4 thread {\nif 0 <= t < 2 {\ncommit products\n}\n}\n",
        "only some", "only some threads of a block come to this commit"),
    "outside of blocks": (
        "  for i.o in 1 block {", "  wait products 1\n  for i.o in 1 block {", "outside",
        "outside"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name: str) -> None:
    old, new, static, dynamic = WRONG[name]
    text = str(piped())
    assert old in text
    func = parse_func(text.replace(old, new, 1))
    if static is None:
        verify_func(func)
    else:
        with pytest.raises(GraphError) as caught:
            verify_func(func)
        assert static in caught.value.what
    buffers = [np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(16, np.float32)]
    if dynamic is None:
        return
    with pytest.raises(GraphError) as caught:
        evaluate_func(func, buffers)
    assert dynamic in caught.value.what


@pytest.mark.parametrize(
    "line", ["wait products", "wait products x", "wait copies 1", "commit copies", "commit all"]
)
def test_what_is_in_flight_is_named(line: str) -> None:
    with pytest.raises(ParseError):
        parse_func(str(piped()).replace("wait products 0", line))


@pytest.mark.parametrize(
    ("old", "new", "step", "message"),
    [
        ("", "", "double_buffer k.o 3 ahead=2 pending=1",
         "2 of 3 copies are filled ahead, and 1 more are multiplied"),
        ("", "", "double_buffer k.o 3 pending=2", "0 of 3 copies are filled ahead, and 2 more"),
        ("", "", "double_buffer k.o 3 pending=-1", "copies are filled ahead"),
        (" by 4x4x4", "", PIPED, "it does more than multiply by instructions"),
        ("alloc r0: fragment", "alloc r0: shared", PIPED, "r0 is not in space fragment"),
        ("%1: f32 = xs[", "%1: f32 = x[", PIPED, "x is not in space shared"),
    ],
)  # fmt: skip
def test_refused(old: str, new: str, step: str, message: str) -> None:
    text = str(tiled())
    assert old in text
    with pytest.raises(ScheduleError) as caught:
        apply(parse_func(text.replace(old, new, 1)), Schedule.parse(step))
    assert message in caught.value.what
    assert caught.value.fix


def test_a_compiler_of_serial_code_takes_them() -> None:
    source = render_c(piped(), C11)
    assert "wait" not in source
    assert "commit" not in source


def test_dialects_whose_threads_stand_for_several_refuse() -> None:
    with pytest.raises(UnsupportedError, match="in no registers"):
        render_c(piped(), CUDA)
