"""Tiles of blocks: fragments, copies that come later, and a product that has both."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import assert_equal_values

from bringup.c import C11, CUDA, render_c
from bringup.errors import GraphError, ParseError, ScheduleError, UnsupportedError
from bringup.llvm.simt.matrix import shared_places
from bringup.loops import Func, evaluate_func, parse_func, verify_func
from bringup.loops.form import Alloc, For, statements
from bringup.loops.fragments import in_registers
from bringup.loops.schedule import Schedule, apply

TEXT = """\
func f(x: in f32[64], y: out f32[64]) {
  for b in 2 block {
    alloc s: shared f32[32]
    alloc a: fragment f32[32]
    for t in 8 thread {
      for v in 4 vector {
        %0: f32 = x[32*b + 4*t + v]
        s[4*t + v] later = %0
      }
    }
    commit
    wait 0
    barrier
    for t in 8 thread {
      for u in 4 unroll {
        %1: f32 = s[-8*u + -1*t + 31]
        a[8*u + t] = %1
      }
    }
    for t in 8 thread {
      for u in 4 unroll {
        %2: f32 = a[8*u + t]
        y[32*b + 8*u + t] = %2
      }
    }
  }
}"""

PRODUCT = """
func f(x: in f32[221], y: in f32[252], z: out f32[273]) {
  for i in 13 parallel {
    for j in 21 parallel {
      alloc r0: register f32[1]
      %0: f32 = -0.0
      r0[0] = %0
      for k in 12 {
        %1: f32 = x[17*i + k]
        %2: f32 = y[21*k + j]
        r0[0] add= %1 * %2
      }
      %3: f32 = r0[0]
      %4: f32 = abs(%3)
      z[21*i + j] = %4
    }
  }
}"""
STEPS = """
split i i.o i.i 8
split j j.o j.i 8
reorder i.o j.o i.i j.i
bind i.o block
bind j.o block
share i.i j.i %3 pad=2
split k k.o k.i 5
pad k.i
pad i.i.in j.i.in
distribute i.i.in j.i.in space=scratch scalars=repeat
reorder k.o k.i i.i.in j.i.in
precompute %1_1 k.o xs i.i.in,k.i space=shared pad=1
precompute %2_1 k.o ys k.i,j.i.in space=shared
set_space r0 shared
split i.i.in i.y i.u 2
split j.i.in j.v j.x 4
reorder i.y j.x k.i i.u j.v
reorder i.y j.x i.u j.v
precompute %1_1 k.i xr i.u space=register
reorder xs.1 xs.0
bind j.x thread
bind i.y thread
bind xs.0 thread
bind ys.1 thread
unroll xs.1 ys.0
unroll k.i i.u j.v
set_space r0 fragment
bind j.i thread
serialize i.i
double_buffer k.o 3 xs
"""


def test_text_and_values() -> None:
    func = parse_func(TEXT)
    verify_func(func)
    assert str(func) == TEXT
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    evaluate_func(func, [x, y])
    assert (y.reshape(2, 32) == x.reshape(2, 32)[:, ::-1]).all()


# What is changed in the text, and what verifier and interpreter say of it; None for nothing.
WRONG: dict[str, tuple[str, str, str | None, str | None]] = {
    "no barrier": ("    barrier\n", "", "use element 0 of s", "without a barrier"),
    "no wait": ("    wait 0\n", "", None, "element 31 of s is read while it is on its way"),
    "a wait for older groups": ("wait 0", "wait 1", None, "is read while it is on its way"),
    "no group": ("    commit\n", "", None, "is read while it is on its way"),
    "a wait behind the barrier": (
        "    wait 0\n    barrier\n", "    barrier\n    wait 0\n", None, "without a barrier"),
    "written on its way": (
        "    wait 0\n", "    for t in 8 thread {\n%9: f32 = 1.0\ns[t] = %9\n}\nwait 0\n",
        "use element 1 of s", "element 0 of s is written while it is on its way"),
    "another thread's register": (
        "%2: f32 = a[8*u + t]", "%2: f32 = a[-8*u + -1*t + 31]",
        "other threads have the elements of a before", "in a register of another thread"),
    "a register that is not unrolled": (
        "for u in 4 unroll {\n        %2", "for u in 4 {\n        %2",
        "indexed by u, which is not", None),
    "a register by data": (
        "%2: f32 = a[8*u + t]", "%8: i32 = 1\n%2: f32 = a[d0[0:8] + 8*u](%8)", "indexed by data",
        "in a register of another thread"),
    "no threads": (
        "for t in 8 thread {\n      for u in 4 unroll {\n        %2",
        "for t in 8 unroll {\n      for u in 4 unroll {\n        %2", "used by no thread",
        "no thread uses it"),
    "later to no shared memory": (
        "8*u + t] = %2", "8*u + t] later = %2", "y cannot be stored later", "no shared memory"),
    "later and folded": (
        "%0: f32 = x[32*b + 4*t + v]", "%7: f32 = x[32*b + 4*t + v]\n%0: f32 = neg(%7)",
        "%0 is no element of the caller's memory", None),
    "used before it comes": (
        "        s[4*t", "        %7: f32 = neg(%0)\n        s[4*t", "%0 is used before", None),
    "some threads only": (
        "    commit\n", "    for t in 8 thread {\nif 0 <= t < 4 {\ncommit\n}\n}\n", "only some",
        "only some threads of a block come to this commit"),
    "outside of blocks": ("  for b in 2 block {", "  wait 1\n  for b in 2 block {", "outside",
                          "outside"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name: str) -> None:
    old, new, static, dynamic = WRONG[name]
    assert old in TEXT
    func = parse_func(TEXT.replace(old, new, 1))
    if static is None:
        verify_func(func)
    else:
        with pytest.raises(GraphError) as caught:
            verify_func(func)
        assert static in caught.value.what
    buffers = [np.zeros(64, np.float32), np.zeros(64, np.float32)]
    if dynamic is None:
        evaluate_func(func, buffers)
    else:
        with pytest.raises(GraphError) as caught:
            evaluate_func(func, buffers)
        assert dynamic in caught.value.what


@pytest.mark.parametrize("line", ["wait", "wait x", "wait -1"])
def test_a_wait_names_a_number(line: str) -> None:
    with pytest.raises(ParseError):
        parse_func(TEXT.replace("wait 0", line))


def product() -> Func:
    return apply(parse_func(PRODUCT), Schedule.parse(STEPS))


def test_a_product_in_tiles() -> None:
    func = product()
    # Twelve products, each rounded once, of numbers up to 3; the order is the same.
    assert_equal_values(parse_func(PRODUCT), func)
    text = str(func)
    assert str(parse_func(text)) == text
    assert "alloc r0: fragment f32[64]" in text
    assert text.count(" later = ") == 2
    assert "alloc ys.r: fragment f32[40]" in text


def test_fragments_as_registers() -> None:
    """Each of the 16 threads has four sums and some elements on their way."""
    body, _ = in_registers(product().body)
    sizes = {
        s.buffer.name: s.buffer.size
        for s in statements(body)
        if isinstance(s, Alloc) and s.buffer.space == "register"
    }
    assert sizes == {"r0": 4, "ys.r": 5, "xr": 2}
    assert not any(isinstance(s, Alloc) and s.buffer.space == "fragment" for s in statements(body))


#: A factor in registers of a warp: where a lane has its elements is where it would have sums.
HELD = """\
func f(x: in f16[256], y: in f16[128], z: out f32[128]) {
  for b in 1 block {
    alloc p: fragment f16[256]
    alloc s: shared f16[128]
    alloc r: fragment f32[128]
    for y in 8 thread {
      for x in 4 thread {
        for l in 2 unroll {
          for h in 2 unroll {
            for c in 2 unroll {
              %0: f16 = x[c + 8*h + 128*l + 2*x + 16*y]
              p[c + 8*h + 128*l + 2*x + 16*y] = %0
            }
          }
          for c in 2 unroll {
            %1: f32 = 0.0
            r[c + 64*l + 2*x + 8*y] = %1
          }
        }
        for k in 4 {
          %2: f16 = y[32*k + 4*y + x]
          s[32*k + 4*y + x] = %2
        }
      }
    }
    barrier
    for y in 8 thread by 16x8x16 {
      for x in 4 thread {
        for l in 2 unroll {
          for c in 2 unroll {
            for h in 2 {
              for e in 4 {
                for p in 2 {
                  %3: f16 = p[p + 8*h + 128*l + 2*e + 16*y]
                  %4: f16 = s[c + 64*h + 8*p + 2*x + 16*e]
                  %5: f32 = convert(%3) {dtype=f32}
                  %6: f32 = convert(%4) {dtype=f32}
                  r[c + 64*l + 2*x + 8*y] add= %5 * %6
                }
              }
            }
          }
        }
      }
    }
    for y in 8 thread {
      for x in 4 thread {
        for l in 2 unroll {
          for c in 2 unroll {
            %7: f32 = r[c + 64*l + 2*x + 8*y]
            z[c + 64*l + 2*x + 8*y] = %7
          }
        }
      }
    }
  }
}"""


def test_a_factor_in_registers_of_a_warp() -> None:
    func = parse_func(HELD)
    verify_func(func)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    z = np.zeros((16, 8), np.float32)
    evaluate_func(func, [x, y, z])
    np.testing.assert_array_equal(z, x.astype(np.float32) @ y.astype(np.float32))
    _, ranks = in_registers(func.body)
    assert ranks["p"] == {offset: n for n, offset in enumerate((0, 1, 8, 9, 128, 129, 136, 137))}


HELD_WRONG = {
    "other lanes have them": (
        ("p[p + 8*h + 128*l + 2*e + 16*y]", "p[4*p + 8*h + 128*l + e + 16*y]"),
        "other threads than those of the instruction have p",
    ),
    "no instruction exchanges them": ((" by 16x8x16", ""), "indexed by e, h, p, which is not"),
}


@pytest.mark.parametrize("name", HELD_WRONG)
def test_factors_that_a_warp_does_not_have(name: str) -> None:
    change, says = HELD_WRONG[name]
    with pytest.raises(GraphError, match=says):
        verify_func(parse_func(HELD.replace(*change)))


#: Two warps of two threads.
WARPS = """\
func f(x: in f32[4], y: in f32[4], z: inout f32[4]) {
  for b in 1 block {
    alloc p: fragment f32[4]
    for w in 2 thread {
      for t in 2 thread {
        %0: f32 = x[t + 2*w]
        p[t + 2*w] = %0
      }
    }
    for w in 2 thread {
      for t in 2 thread by 1x2x2 {
        for e in 2 {
          %1: f32 = p[e + 2*w]
          %2: f32 = y[2*e + t]
          z[t + 2*w] add= %1 * %2
        }
      }
    }
  }
}"""


def test_a_factor_of_another_warp() -> None:
    x, y = (np.arange(4, dtype=np.float32) + n for n in range(2))
    z = np.zeros(4, np.float32)
    verify_func(parse_func(WARPS))
    evaluate_func(parse_func(WARPS), [x, y, z])
    np.testing.assert_array_equal(z.reshape(2, 2), x.reshape(2, 2) @ y.reshape(2, 2))
    other = parse_func(WARPS.replace("p[e + 2*w]", "p[e + -2*w + 2]"))
    with pytest.raises(GraphError, match="other threads than those of the instruction have p"):
        verify_func(other)
    with pytest.raises(GraphError, match="which is in a register of another thread"):
        evaluate_func(other, [x, y, z])


def test_shared_memory_is_used_again_behind_a_barrier() -> None:
    nest = product().body[0]
    while isinstance(nest, For) and nest.kind == "block" and isinstance(nest.body[0], For):
        nest = nest.body[0]
    assert isinstance(nest, For)
    places, size = shared_places(nest.body)
    at = {alloc.buffer.name: place for alloc, place in places.items()}
    sizes = {alloc.buffer.name: alloc.buffer.size * 4 for alloc in places}
    assert at["v3"] == 0
    assert abs(at["xs"] - at["ys"]) >= min(sizes["xs"], sizes["ys"])
    assert size < sum(sizes.values())


def test_a_compiler_of_serial_code_takes_them() -> None:
    source = render_c(product(), C11)
    assert "wait" not in source
    assert "commit" not in source


def test_dialects_whose_threads_stand_for_several_refuse() -> None:
    with pytest.raises(UnsupportedError, match="in no registers"):
        render_c(product(), CUDA)


FILLED = """
func f(x: in f32[16], y: out f32[12]) {
  for b in 1 block {
    for k in 3 {
      alloc s: shared f32[4]
      for t in 4 thread {
        %0: f32 = x[4*k + t]
        s[t] = %0
      }
      barrier
      for t in 4 thread {
        %1: f32 = s[-1*t + 3]
        y[4*k + t] = %1
      }
      barrier
    }
  }
}"""
REFUSED = {
    "nothing ahead": ("", "", "double_buffer k 1 s", "0 of 1 copies are filled ahead"),
    "all ahead": ("", "", "double_buffer k 2 s ahead=2", "2 of 2 copies are filled"),
    "no barrier": ("      barrier\n    }\n", "    }\n", "double_buffer k 2", "threads do not meet"),
    "an early end": ("for k in 3 {", "for k in 3 until b + 2 {", "double_buffer k 2", "not meet"),
    "meetings inside": (
        "        s[t] = %0\n", "        barrier\n        s[t] = %0\n", "double_buffer k 2",
        "threads meet in loops inside it"),
    "another buffer": ("", "", "double_buffer k 2 y", "it fills no y"),
    "a fold": ("s[t] = %0", "s[t] = %0\ns[t] add= %0", "double_buffer k 2",
               "no nest of loops that stores an element"),
    "computed": ("s[t] = %0", "%9: f32 = neg(%0)\ns[t] = %9", "double_buffer k 2 s",
                 "s is computed, so it does not come by itself"),
    "a serial loop": ("for t in 4 thread {\n        %0", "for t in 4 {\n        %0",
                      "double_buffer k 2", "registers would be indexed by loop t"),
    "what it writes": ("x: in f32[16]", "x: in f32[12]", "double_buffer k 2 s", "it writes x"),
    "a name that exists": ("for t in 4", "for k.f in 4", "double_buffer k 2 s", "loop k.f exists"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    old, new, step, message = REFUSED[name]
    text = FILLED.replace(old, new, 1) if old else FILLED
    if name == "a name that exists":
        text = text.replace("[t]", "[k.f]", 1).replace("4*k + t]", "4*k + k.f]", 1)
    with pytest.raises(ScheduleError) as caught:
        apply(parse_func(text), Schedule.parse(step))
    assert message in caught.value.what
    assert caught.value.fix


WIDE = """
func f(x: in i8[4], y: out i8[4]) {
  for i in 4 {
    alloc r: register i8[1]
    %0: i8 = x[i]
    r[0] = %0
    r[0] max= %0
    %1: i8 = r[0]
    y[i] = %1
  }
}"""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("widen r i32", "r is no sum of integers"),
        ("widen r i8", "i8 is no wider integer than i8"),
        ("widen r f32", "f32 is no wider integer"),
        ("widen y i32", "f allocates no buffer y"),
    ],
)
def test_more_is_refused(step: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        apply(parse_func(WIDE), Schedule.parse(step))
    assert message in caught.value.what


@pytest.mark.parametrize(
    ("old", "new", "step", "message"),
    [
        ("alloc a: fragment", "alloc a: shared", "set_space a fragment", None),
        ("for t in 8 thread {\n      for u in 4 unroll {\n        %2",
         "for t in 8 thread {\n      for u in 4 {\n        %2", "set_space a fragment",
         "fragment a is indexed by u, which is not written out"),
        ("a[8*u + t] = %1", "a[8*u + -1*t + 7] = %1", "set_space a fragment",
         "other threads have the elements of a before"),
        ("%2: f32 = a[8*u + t]", "%2: f32 = a[u + t]", "set_space a fragment",
         "two threads have an element of a"),
        ("", "", "serialize u", "fragment a is indexed by u, which is not written out"),
        ("", "", "unroll t", "fragment a is used by no thread"),
        ("", "", "split t t.o t.i 2", None),
    ],
)  # fmt: skip
def test_threads_agree_who_has_an_element(
    old: str, new: str, step: str, message: str | None
) -> None:
    text = TEXT.replace(old, new) if old else TEXT
    func = parse_func(text.replace("alloc a: fragment", "alloc a: shared") if old else text)
    if message is None:
        verify_func(apply(func, Schedule.parse(step)))
        return
    with pytest.raises(ScheduleError) as caught:
        apply(func, Schedule.parse(step))
    assert message in caught.value.what


NEST = """\
func f(x: in f16[8], y: in f16[8], z: inout f32[4]) {
  for i in 2 {
    for j in 2 {
      for k in 4 {
        %0: f16 = x[4*i + k]
        %1: f16 = y[2*k + j]
        %2: f32 = convert(%0) {dtype=f32}
        %3: f32 = convert(%1) {dtype=f32}
        z[2*i + j] add= %2 * %3
      }
    }
  }
}"""


@pytest.mark.parametrize(
    ("old", "new", "step", "message"),
    [
        ("", "", "tensorize i 2x2x4", None),
        ("", "", "tensorize i 16x8", "16x8 is no shape"),
        ("", "", "tensorize i 2x4x2", "loop i multiplies tiles of 2x2x4, not 2x4x2"),
        ("2*i + j] add", "i] add", "tensorize i 2x2x4", "several products in one element"),
        ("add= %2 * %3", "max= %2", "tensorize i 2x2x4", "no loop i holds nothing but loops"),
        ("y[2*k + j]", "y[2*k + j] if 0 <= k < 3", "tensorize i 2x2x4", "no loop i holds nothing"),
        ("%2 * %3", "%2 * %2", "tensorize i 2x2x4", "no loop i holds nothing but loops"),
        ("convert(%1) {dtype=f32}", "convert(%1) {dtype=f32}\n%9: f32 = neg(%3)",
         "tensorize i 2x2x4", "no loop i holds nothing but loops"),
        ("in 4 {", "in 4 until i + 2 {", "tensorize i 2x2x4", "no loop i holds nothing but loops"),
        ("2*i + j] add", "k] add", "tensorize i 2x2x4", "no loop i holds nothing but loops"),
    ],
)  # fmt: skip
def test_what_an_instruction_multiplies(old: str, new: str, step: str, message: str | None) -> None:
    func = parse_func(NEST.replace(old, new, 1) if old else NEST)
    if message is None:
        after = apply(func, Schedule.parse(step))
        assert "for i in 2 by 2x2x4 {" in str(after)
        assert str(parse_func(str(after))) == str(after)
        assert_equal_values(func, after)
        return
    with pytest.raises(ScheduleError) as caught:
        apply(func, Schedule.parse(step))
    assert message in caught.value.what


def test_lines_whose_chunks_change_places_say_so() -> None:
    text = TEXT.replace("alloc s: shared f32[32]", "alloc s: shared f32[32] swizzle 16")
    func = parse_func(text)
    assert str(func) == text
    verify_func(func)
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    evaluate_func(func, [x, y])
    assert (y.reshape(2, 32) == x.reshape(2, 32)[:, ::-1]).all()


def test_registers_have_no_banks() -> None:
    with pytest.raises(ScheduleError, match="registers have no banks"):
        apply(parse_func(WIDE), Schedule.parse("precompute %0 . v i space=register pad=1"))
