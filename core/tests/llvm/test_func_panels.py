"""What products need of native code: filled memory of units, squares across lanes, pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from func_helper import run, text_of

from bringup.loops import evaluate_func, parse_func, verify_func

Array = np.ndarray[Any, Any]


def numbers(count: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(count).integers(-50, 50, count).astype(dtype)


def assert_as_evaluated(text: str, *inputs: Array) -> Array:
    """The one output, which is that of the interpreter, however units are run."""
    func = parse_func(text)
    verify_func(func)
    (out,) = func.outputs
    expected = np.zeros(out.size, out.dtype.numpy)
    evaluate_func(func, [*inputs, expected])
    for together in (False, True):
        (made,) = run(func, *inputs, together=together)
        np.testing.assert_array_equal(made, expected)
    return expected


FILLED = """
func f(x: in f32[12], y: out f32[24]) {
  alloc s: scratch f32[12]
  for q in 12 {
    %0: f32 = x[q]
    s[q] = %0
  }
  for i in 3 parallel {
    alloc t: scratch f32[4]
    for p in 4 {
      %1: f32 = s[4*i + p]
      %2: f32 = mul(%1, %1)
      t[p] = %2
    }
    for j in 2 parallel {
      for k in 4 {
        %3: f32 = t[k]
        %4: f32 = s[k]
        %5: f32 = add(%3, %4)
        y[8*i + 4*j + k] = %5
      }
    }
  }
}"""


def test_memory_that_units_share_is_filled_where_it_changes() -> None:
    x = numbers(12)
    y = assert_as_evaluated(FILLED, x)
    expected = (x * x).reshape(3, 1, 4) + x[:4]
    np.testing.assert_array_equal(y.reshape(3, 2, 4), np.broadcast_to(expected, (3, 2, 4)))
    native, _ = text_of(parse_func(FILLED))
    assert native.units == 6


def test_what_others_see_is_no_filling() -> None:
    """A store to memory of the caller before a parallel loop happens once, in the one unit."""
    text = FILLED.replace("s[q] = %0", "s[q] = %0\n    z[q] = %0").replace(
        "y: out f32[24]", "y: out f32[24], z: out f32[12]"
    )
    x = numbers(12)
    (y, z) = run(text, x)
    np.testing.assert_array_equal(z, x)
    native, _ = text_of(parse_func(text))
    assert native.units == 1
    np.testing.assert_array_equal(y, run(FILLED, x)[0])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i16", "i8"])
@pytest.mark.parametrize("rows", [2, 3, 4, 6, 8, 14, 17])
@pytest.mark.parametrize(
    ("lanes", "end"), [(4, ""), (8, ""), (16, ""), (13, ""), (16, " until b + 11")]
)
@pytest.mark.parametrize("spare", [0, 3])
def test_squares_are_stored_across_lanes(
    rows: int, lanes: int, end: str, spare: int, dtype: str
) -> None:
    """Nothing else changes: neither what lies between the columns nor what follows the last."""
    apart = rows + spare
    size = apart * lanes
    text = f"""
func f(x: in {dtype}[{rows * lanes}], y: out {dtype}[{size + 64}]) {{
  alloc t: scratch {dtype}[{size + 64}]
  for i in {size + 64} {{
    %0: {dtype} = 7
    t[i] = %0
  }}
  for b in 2 {{
    for r in {rows} unroll {{
      for l in {lanes}{end} vector {{
        %1: {dtype} = x[{lanes}*r + l]
        t[{apart}*l + r] = %1
      }}
    }}
  }}
  for i in {size + 64} {{
    %2: {dtype} = t[i]
    y[i] = %2
  }}
}}"""
    text = text.replace("= 7", "= 7.0") if dtype.startswith("f") else text
    func = parse_func(text)
    x = numbers(rows * lanes, func.inputs[0].dtype.numpy)
    y = assert_as_evaluated(text, x)
    assert (y[-64:] == 7).all()


@pytest.mark.parametrize("pairs", [8, 16])
@pytest.mark.parametrize("rows", [2, 5, 14])
def test_pairs_are_stored_across_lanes(rows: int, pairs: int) -> None:
    text = f"""
func f(x: in i8[{2 * rows * pairs}], y: out i16[{2 * rows * pairs}]) {{
  alloc t: scratch i16[{2 * rows * pairs}]
  for r in {rows} unroll {{
    for l in {2 * pairs} vector {{
      %0: i8 = x[{2 * pairs}*r + l]
      %1: i16 = convert(%0) {{dtype=i16}}
      t[{2 * rows}*(l)//2 + 2*r + (l)%2] = %1
    }}
  }}
  for i in {2 * rows * pairs} {{
    %2: i16 = t[i]
    y[i] = %2
  }}
}}"""
    x = numbers(2 * rows * pairs, np.int8)
    y = assert_as_evaluated(text, x)
    np.testing.assert_array_equal(y, x.reshape(rows, pairs, 2).transpose(1, 0, 2).ravel())


@pytest.mark.parametrize(("lanes", "group"), [(8, 2), (16, 2), (16, 4), (4, 2)])
def test_products_of_groups_of_lanes(lanes: int, group: int) -> None:
    """One group of a factor for all lanes, and sums of the products of each group."""
    sums = lanes // group
    text = f"""
func f(x: in i16[{3 * group}], y: in i16[{3 * lanes}], z: out i32[{sums}]) {{
  alloc r: register i32[{sums}]
  for s in {sums} vector {{
    %0: i32 = 5
    r[s] = %0
  }}
  for k in 3 {{
    for l in {lanes} vector {{
      %1: i16 = x[{group}*k + (l)%{group}]
      %2: i32 = convert(%1) {{dtype=i32}}
      %3: i16 = y[{lanes}*k + l]
      %4: i32 = convert(%3) {{dtype=i32}}
      %5: i32 = mul(%2, %4)
      r[(l)//{group}] add= %5
    }}
  }}
  for s in {sums} vector {{
    %6: i32 = r[s]
    z[s] = %6
  }}
}}"""
    assert_as_evaluated(text, numbers(3 * group, np.int16), numbers(3 * lanes, np.int16))


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_are_interleaved_in_registers(rows: int) -> None:
    text = f"""
func f(x: in f32[{8 * rows}], y: out f32[{8 * rows}]) {{
  alloc r: register f32[{8 * rows}]
  for q in {rows} unroll {{
    for l in 8 vector {{
      %0: f32 = x[8*q + l]
      r[{rows}*l + q] = %0
    }}
  }}
  for i in {8 * rows} vector {{
    %1: f32 = r[i]
    y[i] = %1
  }}
}}"""
    assert_as_evaluated(text, numbers(8 * rows))


def test_a_condition_of_all_lanes_guards_a_vector() -> None:
    """The load would be far outside where the condition does not hold."""
    text = """
func f(x: in f32[16], y: out f32[24]) {
  for i in 3 {
    for l in 8 vector {
      %0: f32 = x[1000000*i + l + -1000000] if 1 <= i < 2
      y[8*i + l] = %0
    }
  }
}"""
    x = numbers(16)
    y = assert_as_evaluated(text, x)
    np.testing.assert_array_equal(y, np.concatenate([np.zeros(8), x[:8], np.zeros(8)]))


def test_quotients_of_outer_loops_are_computed_before_a_loop() -> None:
    text = """
func f(x: in i32[60], y: out i32[60]) {
  for i in 12 {
    for j in 5 {
      %0: i32 = x[12*j + 4*(i)//4 + (i)%4]
      %1: i32 = index (i)//4 + (j)%2
      %2: i32 = add(%0, %1)
      y[5*i + j] = %2
    }
  }
}"""
    assert_as_evaluated(text, numbers(60, np.int32))
    _, code = text_of(parse_func(text))
    body = code[code.index("body", code.index("body") + 4) :]
    assert code.count("udiv i64") + code.count("urem i64") >= 1
    inner = body[body.rindex("phi i64") :]
    assert "udiv" not in inner.split("br label")[0]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i16", "bool"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("mask", ["", "0 <= i + 4*b < 11", "0 <= k + 2*b < 13", "both"])
def test_what_lanes_read_far_apart_is_read_in_squares(lanes: int, mask: str, dtype: str) -> None:
    """With masks of whole rows, of their elements, and of both; never by gathers."""
    if mask == "both":
        mask = "0 <= i + 4*b < 11 and 0 <= k + 2*b < 13"
    rows, by = lanes + 8, lanes + 4
    where = f" if {mask}" if mask else ""
    text = f"""
func f(x: in {dtype}[{rows * by}], y: out {dtype}[{3 * lanes * lanes}]) {{
  for b in 3 {{
    for k in {lanes} unroll {{
      for i in {lanes} vector {{
        %0: {dtype} = x[{by}*i + {4 * by + 2}*b + k]{where}
        y[{lanes * lanes}*b + {lanes}*k + i] = %0
      }}
    }}
  }}
}}"""
    func = parse_func(text)
    x = (
        numbers(rows * by) > 0
        if dtype == "bool"
        else numbers(rows * by, func.inputs[0].dtype.numpy)
    )
    assert_as_evaluated(text, x)
    assert "gather" not in text_of(func)[1]


COPIED = """
func f(x: in f32[64], z: in f32[6144], y: out f32[4096]) {
  for b in 2 {
    alloc s: scratch f32[8]
    alloc t: scratch f32[2048]
    for k in 8 {
      %0: f32 = 0.0
      s[k] = %0
      for r in 4 {
        %1: f32 = x[8*r + k]
        s[k] add= %1 * %1
      }
    }
    for i in 32 {
      for j.o in 16 {
        for j.i in 4 unroll {
          %2: f32 = z[2048*b + 96*i + 4*j.o + j.i]
          t[32*j.i + 128*j.o + i] = %2
        }
      }
    }
    for q in 2048 {
      %3: f32 = t[q]
      %4: f32 = s[0]
      %5: f32 = add(%3, %4)
      y[2048*b + q] = %5
    }
  }
}"""


def test_rows_that_are_copied_behind_products_are_asked_for_before_them() -> None:
    assert_as_evaluated(COPIED, numbers(64), numbers(6144))
    text = text_of(parse_func(COPIED))[1]
    before, _, behind = text.partition("fma")
    # A row of 64 f32 has four cache lines.
    assert before.count("call void @llvm.prefetch") == 4
    assert "call void @llvm.prefetch" not in behind
    for changed in (
        COPIED.replace("add= %1 * %1", "add= %1"),  # no products
        COPIED.replace("96*i", "64*i"),  # no rows apart
        COPIED.replace("for i in 32", "for i in 2"),  # too little to wait for
    ):
        assert "llvm.prefetch" not in text_of(parse_func(changed))[1]


def test_one_element_for_lanes_of_which_some_are_masked_is_loaded_once() -> None:
    text = """
func f(x: in f32[4], y: out f32[32]) {
  for i in 4 parallel {
    for l in 8 vector {
      %0: f32 = x[i] if 0 <= l + -2*i < 3
      y[8*i + l] = %0
    }
  }
}"""
    assert "gather" not in text_of(parse_func(text))[1]
    assert_as_evaluated(text, numbers(4))


PARTS = """
func f(x: in f32[LONG], y: out f32[LONG]) {
  for i in 2 parallel {
    alloc t: SPACE f32[LANES]
    for s in 2 {
      for l in LANES vector {
        if 0 <= l + -HALF*s < HALF {
          %0: f32 = x[LANES*i + l]
          t[l] = %0
        }
      }
    }
    for m in LANES vector {
      %1: f32 = t[m]
      y[LANES*i + m] = %1
    }
  }
}"""


@pytest.mark.parametrize(("lanes", "is_masked"), [(8, False), (16, True)])
def test_parts_of_private_vectors_are_blended_where_masks_are_slow(
    lanes: int, is_masked: bool
) -> None:
    text = PARTS.replace("LONG", str(2 * lanes)).replace("HALF", str(lanes // 2))
    text = text.replace("LANES", str(lanes)).replace("SPACE", "scratch")
    assert ("masked.store" in text_of(parse_func(text))[1]) == is_masked
    assert_as_evaluated(text, numbers(2 * lanes))


SUMS = """
func f(x: in f32[64], w: in f32[8], y: out f32[64]) {
  for i in 2 parallel {
    alloc p: scratch f32[32]
    for q in 4 {
      for l in 8 vector {
        %0: f32 = x[32*i + 8*q + l]
        %1: f32 = mul(%0, %0)
        p[8*q + l] = %1
      }
    }
    alloc r: register f32[8]
    for c in 8 vector {
      %2: f32 = 0.0
      r[c] = %2
    }
    for k in 4 {
      for d in 8 vector {
        %3: f32 = p[8*k + d]
        %4: f32 = w[k]
        r[d] add= %3 * %4
      }
    }
    for o in ROWS {
      for e in 8 vector {
        %5: f32 = r[e]
        y[32*i + 8*o + e] = %5
      }
    }
  }
}"""


def test_panels_beside_sums_are_filled_by_a_function() -> None:
    text = SUMS.replace("ROWS", "4")
    found = text_of(parse_func(text))[1]
    assert "define internal void @inner.panels0(ptr %p0, ptr %p1, i64 %i0) noinline" in found
    assert found.count("call void @inner.panels0(") == 1
    assert_as_evaluated(text, numbers(64), numbers(8))
    alone = text[: text.index("    alloc r:")] + "    for o in 32 {\n      %5: f32 = p[o]\n"
    alone += "      y[32*i + o] = %5\n    }\n  }\n}"
    assert "noinline" not in text_of(parse_func(alone))[1]
    assert_as_evaluated(alone, numbers(64), numbers(8))
