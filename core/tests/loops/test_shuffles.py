"""Threads that exchange values: text, values, rules, and the folds that are made of exchanges."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import assert_equal_values

from bringup.c import C11, CUDA, HIP, METAL, OPENCL, Dialect, render_c
from bringup.errors import GraphError, ParseError, ScheduleError, UnsupportedError
from bringup.loops import Func, evaluate_func, parse_func, verify_func
from bringup.loops.schedule import Schedule, apply

TEXT = """\
func f(x: in f32[128], y: out f32[128]) {
  for b in 2 block {
    for g in 2 thread {
      for t in 32 thread {
        %0: f32 = x[64*b + 32*g + t]
        %1: f32 = shuffle %0 over t xor 5
        %2: f32 = shuffle %1 over g xor 1
        y[64*b + 32*g + t] = %2
      }
    }
  }
}"""
ROWS = """
func f(x: in f32[768], y: out f32[3]) {
  for b in 3 parallel {
    alloc r: register f32[1]
    %0: f32 = -0.0
    r[0] = %0
    for i in 256 {
      %1: f32 = x[256*b + i]
      r[0] add= %1
    }
    %2: f32 = r[0]
    y[b] = %2
  }
}"""


def test_text_and_values() -> None:
    func = parse_func(TEXT)
    verify_func(func)
    assert str(func) == TEXT
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    evaluate_func(func, [x, y])
    i = np.arange(128)
    assert (y == x[i ^ 32 ^ 5]).all()


# What is changed in the text, and what verifier and interpreter say of it.
WRONG = {
    "no partner": ("over g xor 1", "over g xor 2", "not all threads of loop g have a partner"),
    "only some": (
        "%1: f32 = shuffle %0 over t xor 5",
        "%1: f32 = 0.0\nif 0 <= t < 8 {\n%9: f32 = shuffle %0 over t xor 5\n}",
        "only some threads",
    ),
    "no threads": ("for g in 2 thread", "for g in 2", "there is no thread loop g round it"),
    "another type": ("%1: f32 = shuffle", "%1: i32 = shuffle", "the value is f32"),
    "no value": ("shuffle %0 over t", "shuffle %7 over t", "%7 is not defined above"),
    "no loop": ("over t xor 5", "over k xor 5", "there is no loop k round it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_verifier_refuses(name: str) -> None:
    old, new, complaint = WRONG[name]
    assert old in TEXT
    with pytest.raises((GraphError, ParseError), match=complaint):
        verify_func(parse_func(TEXT.replace(old, new)))


@pytest.mark.parametrize("name", ["no partner", "only some"])
def test_the_interpreter_refuses(name: str) -> None:
    old, new, complaint = WRONG[name]
    buffers = [np.zeros(128, np.float32), np.zeros(128, np.float32)]
    with pytest.raises(GraphError, match=complaint):
        evaluate_func(parse_func(TEXT.replace(old, new)), buffers)


def folded(lanes: int) -> Func:
    steps = f"split i o k 128\nreorder k o\nbind b block\nreplicate b t k lanes={lanes}"
    return apply(parse_func(ROWS), Schedule.parse(steps))


@pytest.mark.parametrize("lanes", [1, 2, 32, 128])
def test_folds_through_exchanges(lanes: int) -> None:
    func = folded(lanes)
    verify_func(func)
    text = str(func)
    # As many warps as a warp has lanes, or fewer, exchange their sums, too.
    warps = 128 // lanes
    assert text.count("shuffle") == {1: 0, 2: 1, 32: 7, 128: 7}[lanes]
    assert (f"alloc r.parts: shared f32[{warps}]" in text) == (warps > 1)
    assert str(parse_func(text)) == text
    # 128 additions that round, of sums that are at most 256 times as large as a number.
    assert_equal_values(parse_func(ROWS), func, bound=128 * 256 * 2.0**-24)


@pytest.mark.parametrize("lanes", [0, 3, 256])
def test_lanes_divide_the_threads(lanes: int) -> None:
    with pytest.raises(ScheduleError, match=f"{lanes} of 128 threads exchange"):
        folded(lanes)


@pytest.mark.parametrize("step", ["split t a b 4", "peel t 1 0"])
def test_loops_of_exchanging_threads_stay(step: str) -> None:
    with pytest.raises(ScheduleError):
        apply(parse_func(TEXT), Schedule.parse(step))


@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize(
    "step", ["bind t block", "parallelize t", "vectorize t", "unroll t", "serialize t"]
)
def test_threads_that_meet_stay_threads(lanes: int, step: str) -> None:
    with pytest.raises(ScheduleError, match="the threads of loop t wait for one another"):
        apply(folded(lanes), Schedule.parse(step))


def test_what_depends_on_an_exchange_stays_in_its_loop() -> None:
    text = TEXT.replace("y[64*b + 32*g + t] = %2", "for k in 2 {\n%3: f32 = neg(%2)\n}\n"
                        "y[64*b + 32*g + t] = %2")  # fmt: skip
    func = apply(parse_func(text), Schedule.parse("hoist t"))
    assert "shuffle" in str(func)
    verify_func(func)


def test_what_depends_on_an_exchange_is_not_computed_first() -> None:
    text = TEXT.replace("%2: f32 = shuffle %1 over g xor 1", "%2: f32 = neg(%1)")
    with pytest.raises(ScheduleError, match="threads exchange what it needs"):
        apply(parse_func(text), Schedule.parse("precompute %2 b z g,t"))


CALLS = {
    "CUDA": (CUDA, "const float vr_1 = __shfl_xor_sync(0xffffffffu, vr, 1);"),
    "HIP": (HIP, "const float vr_1 = __shfl_xor(vr, 1);"),
    "METAL": (METAL, "const float vr_1 = simd_shuffle_xor(vr, 1);"),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_dialects(name: str) -> None:
    dialect, line = CALLS[name]
    assert line in render_c(folded(32), dialect)


NARROW = {
    "CUDA": " v1 = (unsigned short)__shfl_xor_sync(0xffffffffu, (unsigned int)v0, 5);",
    "HIP": " v1 = (unsigned short)__shfl_xor((unsigned int)v0, 5);",
    "METAL": " v1 = (ushort)simd_shuffle_xor((uint)v0, 5);",
}


WARP = TEXT.replace("shuffle %1 over g xor 1", "neg(%1)")


@pytest.mark.parametrize("name", NARROW)
def test_what_is_short_is_exchanged_as_an_integer_of_32_bits(name: str) -> None:
    dialect, _ = CALLS[name]
    assert NARROW[name] in render_c(parse_func(WARP.replace("f32", "bf16")), dialect)


def test_integers_of_64_bits_are_exchanged_as_two_where_there_is_no_function() -> None:
    text = render_c(parse_func(WARP.replace("f32", "i64")), METAL)
    assert "const long v1 = as_type<long>(simd_shuffle_xor(as_type<uint2>(v0), 5));" in text


@pytest.mark.parametrize("dialect", [C11, OPENCL], ids=lambda dialect: str(dialect.name))
def test_dialects_without_such_functions_refuse(dialect: Dialect) -> None:
    with pytest.raises(UnsupportedError):
        render_c(folded(32), dialect)


def test_threads_of_two_warps_exchange_nothing() -> None:
    with pytest.raises(UnsupportedError, match="one whole warp"):
        render_c(folded(64), CUDA)
    with pytest.raises(UnsupportedError, match="one whole warp"):
        render_c(parse_func(TEXT.replace("t in 32 thread", "t in 8 thread")), CUDA)
