"""Functions of the loop level as native code: each kind of loop, access and mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from func_helper import run, text_of

from bringup.errors import UnsupportedError
from bringup.loops import evaluate_func, parse_func
from bringup.loops.form import For, statements

Array = np.ndarray[Any, Any]


def numbers(count: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(count).integers(-50, 50, count).astype(dtype)


# -- registers -------------------------------------------------------------------------------------


def test_lanes_have_registers_of_their_own() -> None:
    """A buffer that begins within a vector loop exists once for each lane."""
    (y,) = run(
        """func f(x: in i32[24], y: out i32[24]) {
          for i in 3 parallel {
            for l in 8 vector {
              alloc r: register i32[2]
              %0: i32 = 5
              r[0] = %0
              r[1] = %0
              %1: i32 = x[8*i + l]
              r[0] add= %1
              r[1] add= %1 * %1 if 2 <= l < 8
              %2: i32 = r[0]
              %3: i32 = r[1] if 0 <= l < 7
              %4: i32 = sub(%2, %3)
              y[8*i + l] = %4
            }
          }
        }""",
        x := numbers(24, np.int32),
    )
    lane = np.arange(24) % 8
    assert (y == 5 + x - (lane < 7) * (5 + (lane >= 2) * x * x)).all()


def test_buffers_of_one_name_in_blocks_beside_one_another() -> None:
    (y,) = run(
        """func f(x: in i32[8], y: out i32[8]) {
          for i in 1 parallel {
            for l in 4 vector {
              alloc r: register i32[1]
              %0: i32 = x[l]
              r[0] = %0
              %1: i32 = r[0]
              y[l] = %1
            }
            for j in 4 {
              alloc r: register i32[1]
              %2: i32 = x[j + 4]
              r[0] = %2
              %3: i32 = r[0]
              y[j + 4] = %3
            }
          }
        }""",
        x := numbers(8, np.int32),
    )
    assert (y == x).all()


# -- vector loops, their ends and their masks ------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 8, 16])
def test_lanes_of_a_vector_loop_of_any_size(size: int) -> None:
    (y,) = run(
        f"""func f(x: in f32[{3 * size}], y: out f32[{3 * size}]) {{
          for i in 3 parallel {{
            for l in {size} vector {{
              %0: f32 = x[{size}*i + l]
              %1: f32 = add(%0, %0)
              y[{size}*i + l] = %1
            }}
          }}
        }}""",
        x := numbers(3 * size),
    )
    assert (y == x + x).all()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 23])
def test_a_vector_loop_that_ends_early_masks_lanes(size: int) -> None:
    count = -(-size // 8)
    (y,) = run(
        f"""func f(x: in i32[{size}], y: out i32[{size}]) {{
          for i in {count} parallel {{
            for l in 8 until -8*i + {size} vector {{
              %0: i32 = x[8*i + l]
              %1: i32 = mul(%0, %0)
              y[8*i + l] = %1
            }}
          }}
        }}""",
        x := numbers(size, np.int32),
    )
    assert (y == x * x).all()


def test_a_vector_loop_may_have_no_iteration() -> None:
    """A uniform load in it would read before the buffer."""
    (y,) = run(
        """func f(x: in f32[1], y: out f32[2]) {
          for i in 3 {
            for l in 2 until 2*i + -2 vector {
              %0: f32 = x[i + -2]
              y[2*i + l + -4] = %0
            }
          }
        }""",
        np.array([7], np.float32),
    )
    assert y.tolist() == [7, 7]


def test_serial_and_unrolled_loops_end_early() -> None:
    (y,) = run(
        """func f(y: out i64[10]) {
          for i in 4 parallel {
            for j in 4 until -3*i + 10 unroll {
              for k in 1 until -3*i + 10 + -1*j {
                %0: i64 = index 10*i + j
                y[3*i + j] = %0 if 0 <= j < 3
              }
            }
          }
        }"""
    )
    assert y.tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30]


def test_a_condition_that_differs_between_lanes_is_a_mask() -> None:
    (y,) = run(
        """func f(x: in f32[8], z: in f32[2], y: out f32[16]) {
          for i in 2 parallel {
            for l in 8 vector {
              %0: f32 = x[l]
              %1: f32 = 0.0
              %2: bool = compare(%0, %1) {direction="gt"}
              y[8*i + l] = %1
              if 0 <= i + l < 8 and %2 {
                %3: f32 = z[i]
                %4: f32 = mul(%0, %3)
                y[8*i + l] = %4
              }
            }
          }
        }""",
        x := np.array([1, -2, 3, -4, 5, -6, 7, 8], np.float32),
        z := np.array([10, 20], np.float32),
    )
    wanted = np.where(x > 0, x, 0) * z[:, None]
    wanted[1, 7] = 0
    assert (y.reshape(2, 8) == wanted).all()


def test_a_condition_on_loops_is_a_branch() -> None:
    (y,) = run(
        """func f(x: in f32[6], y: out f32[2]) {
          for i in 2 parallel {
            alloc a: register f32[1]
            %0: f32 = 1.0
            a[0] = %0
            for j in 3 {
              if 1 <= i + j < 3 {
                %1: f32 = x[3*i + j]
                a[0] add= %1
              }
            }
            %2: f32 = a[0]
            y[i] = %2
          }
        }""",
        x := numbers(6),
    )
    assert y.tolist() == [1 + x[1] + x[2], 1 + x[3] + x[4]]


# -- folds and registers ---------------------------------------------------------------------------


def test_sums_in_lanes_and_columns() -> None:
    (y,) = run(
        """func f(x: in f32[96], y: out f32[1]) {
          alloc a: register f32[16]
          for c in 2 unroll {
            for l in 8 vector {
              %0: f32 = -0.0
              a[8*c + l] = %0
            }
          }
          for i in 6 {
            for c in 2 unroll {
              for l in 8 vector {
                %1: f32 = x[16*i + 8*c + l]
                a[8*c + l] add= %1
              }
            }
          }
          alloc r: register f32[1]
          %2: f32 = -0.0
          r[0] = %2
          for c in 2 unroll {
            for l in 8 vector {
              %3: f32 = a[8*c + l]
              r[0] add= %3
            }
          }
          %4: f32 = r[0]
          y[0] = %4
        }""",
        x := numbers(96),
    )
    assert y[0] == x.sum()


def test_a_fold_of_lanes_that_end_early() -> None:
    (y,) = run(
        """func f(x: in i32[20], y: out i32[2]) {
          for k in 2 parallel {
            alloc r: register i32[1]
            %0: i32 = -100
            r[0] = %0
            for i in 2 {
              for l in 8 until -8*i + 10 vector {
                %1: i32 = x[10*k + 8*i + l]
                r[0] max= %1
              }
            }
            %2: i32 = r[0]
            y[k] = %2
          }
        }""",
        x := numbers(20, np.int32),
    )
    assert (y == x.reshape(2, 10).max(1)).all()


def test_accumulators_that_end_early_keep_what_they_have() -> None:
    (y,) = run(
        """func f(x: in f32[13], w: in f32[13], y: out f32[8]) {
          alloc a: register f32[8]
          for l in 8 vector {
            %0: f32 = 0.5
            a[l] = %0
          }
          for i in 2 {
            for l in 8 until -8*i + 13 vector {
              %1: f32 = x[8*i + l]
              %2: f32 = w[8*i + l]
              a[l] add= %1 * %2
            }
          }
          for l in 8 vector {
            %3: f32 = a[l]
            y[l] = %3
          }
        }""",
        x := numbers(13),
        w := numbers(13) + 1,
    )
    wanted = np.pad(x * w, (0, 3)).reshape(2, 8).sum(0) + 0.5
    assert (y == wanted).all()


def test_a_product_that_is_folded_is_rounded_once() -> None:
    tiny = np.float32(1 + 2**-12)
    (y,) = run(
        """func f(x: in f32[4], y: out f32[4]) {
          alloc a: register f32[4]
          for l in 4 vector {
            %0: f32 = -1.0
            a[l] = %0
            %1: f32 = x[l]
            a[l] add= %1 * %1
            %2: f32 = a[l]
            y[l] = %2
          }
        }""",
        np.full(4, tiny, np.float32),
    )
    assert (y == np.float32(float(tiny) ** 2 - 1)).all()
    assert y[0] != tiny * tiny - np.float32(1)


def test_products_of_half_floats_are_summed_in_f32() -> None:
    x = np.array([300, 0.001, 250, 3], np.float16)
    (y,) = run(
        """func f(x: in f16[4], y: out f32[1]) {
          alloc r: register f32[1]
          %0: f32 = 0.0
          r[0] = %0
          for i in 4 {
            %1: f16 = x[i]
            r[0] add= %1 * %1
          }
          %2: f32 = r[0]
          y[0] = %2
        }""",
        x,
    )
    total = np.float32(0)
    for value in x.astype(np.float32):
        total = np.float32(float(value) * float(value) + float(total))
    assert y[0] == total


def test_folds_into_memory() -> None:
    (y,) = run(
        """func f(x: in f32[40], y: out f32[11]) {
          for l in 10 vector {
            %0: f32 = 0.0
            y[l] = %0
          }
          %1: f32 = -1000.0
          y[10] = %1
          for i in 4 {
            for l in 10 vector {
              %2: f32 = x[10*i + l]
              y[l] add= %2 if 1 <= l < 10
              y[10] max= %2
            }
          }
        }""",
        x := numbers(40),
    )
    wanted = x.reshape(4, 10).sum(0)
    wanted[0] = 0
    assert (y == [*wanted, x.max()]).all()


def test_registers_are_read_by_lanes_and_by_elements() -> None:
    (y,) = run(
        """func f(x: in f32[8], y: out f32[12]) {
          alloc a: register f32[8]
          for l in 8 vector {
            %0: f32 = x[l]
            a[l] = %0
          }
          for i in 8 unroll {
            %1: f32 = 10.0
            a[i] add= %1 if 0 <= i < 3
          }
          for h in 4 vector {
            %2: f32 = a[h + 4]
            a[h] add= %2
          }
          for i in 4 unroll {
            %3: f32 = a[i]
            y[i] = %3
          }
          for l in 8 vector {
            %4: f32 = a[l]
            y[l + 4] = %4
          }
        }""",
        x := numbers(8),
    )
    a = x.copy()
    a[:3] += 10
    a[:4] += a[4:]
    assert (y == [*a[:4], *a]).all()


def test_one_divisor_of_many_elements() -> None:
    """Such a division is done by a reciprocal, and must still be rounded once."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(64).astype(np.float32)
    x[3], x[20], x[40] = np.inf, np.nan, 1e-40
    d = np.array([3, 0.1, 0, 1e38], np.float32)
    with np.errstate(all="ignore"):
        wanted = x / np.repeat(d, 16)
    (y,) = run(
        """func f(x: in f32[64], d: in f32[4], y: out f32[64]) {
          for i in 4 parallel {
            %0: f32 = d[i]
            for j in 2 {
              for l in 8 vector {
                %1: f32 = x[16*i + 8*j + l]
                %2: f32 = div(%1, %0)
                y[16*i + 8*j + l] = %2
              }
            }
          }
        }""",
        x,
        d,
    )
    assert np.array_equal(y, wanted, equal_nan=True)


def test_indices_and_conditions_as_values() -> None:
    (y,) = run(
        """func f(y: out i32[24]) {
          for i in 3 parallel {
            for l in 8 vector {
              %0: i32 = index (8*i + l)//5
              %1: bool = inside 4 <= (8*i + l)%7 < 9 and 0 <= i < 2
              %2: i32 = index -1*i + -1
              %3: i32 = select(%1, %0, %2)
              y[8*i + l] = %3
            }
          }
        }"""
    )
    flat = np.arange(24)
    row = flat // 8
    wanted = np.where((flat % 7 >= 4) & (row < 2), flat // 5, -row - 1)
    assert (y == wanted).all()


# -- units -----------------------------------------------------------------------------------------


def test_parallel_loops_round_everything_are_the_units() -> None:
    func = parse_func(
        """func f(y: out i64[30]) {
          for i in 5 parallel {
            for j in 6 parallel {
              %0: i64 = index 6*i + j
              y[6*i + j] = %0
            }
          }
        }"""
    )
    assert text_of(func)[0].units == 30
    assert run(func)[0].tolist() == list(range(30))


def test_parallel_loops_that_end_early() -> None:
    (y,) = run(
        """func f(y: out i64[7]) {
          for i in 2 parallel {
            for j in 4 until -1*i + 4 parallel {
              %0: i64 = index 10*i + j
              y[4*i + j] = %0
            }
          }
        }"""
    )
    assert y.tolist() == [0, 1, 2, 3, 10, 11, 12]


# Each iteration of two loops sums with a register of its own, of one name.
SIBLINGS = """func f(x: in f32[8], y: out f32[4], z: out f32[4]) {
  for i in 2 parallel {
    alloc r: register f32[1]
    %0: f32 = -0.0
    r[0] = %0
    for j in 4 {
      %1: f32 = x[4*i + j]
      r[0] add= %1
    }
    %2: f32 = r[0]
    y[i] = %2
  }
  for i in 4 parallel {
    alloc r: register f32[1]
    %0: f32 = 1.0
    r[0] = %0
    for j in 2 {
      %1: f32 = x[2*i + j]
      r[0] mul= %1
    }
    %2: f32 = r[0]
    z[i] = %2
    if 0 <= i < 2 {
      y[i + 2] = %2
    }
  }
}"""


def test_independent_loops_one_after_the_other_have_units_of_their_own() -> None:
    x = np.arange(8, dtype=np.float32)
    assert text_of(parse_func(SIBLINGS))[0].units == 6
    y, z = run(SIBLINGS, x)
    assert y.tolist() == [6, 22, 0, 6]
    assert z.tolist() == [0, 6, 20, 42]


def test_registers_of_one_name_in_blocks_side_by_side() -> None:
    x = np.arange(8, dtype=np.float32)
    y, z = run(SIBLINGS.replace(" parallel", ""), x)
    assert y.tolist() == [6, 22, 0, 6]
    assert z.tolist() == [0, 6, 20, 42]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y[i + 2] = %2", "y[i + 1] = %2"),
        ("%1: f32 = x[2*i + j]", "%1: f32 = y[2*i + j] if 0 <= i < 1"),
    ],
)
def test_loops_that_need_one_another_are_one_unit(before: str, after: str) -> None:
    assert before in SIBLINGS
    assert text_of(parse_func(SIBLINGS.replace(before, after)))[0].units == 1


def test_no_iterations() -> None:
    func = parse_func("func f(y: out f32[1]) {\n  for i in 0 parallel {\n  }\n}")
    assert text_of(func)[0].units == 0
    (y,) = run(
        """func f(y: out f32[1]) {
          %0: f32 = 4.0
          y[0] = %0
          for i in 0 {
            y[i + 7] = %0
          }
        }"""
    )
    assert y.tolist() == [4]


# -- what CPUs do not run --------------------------------------------------------------------------

_REFUSED = {
    "barrier": "for i in 4 {\n barrier\n }",
    "kind thread": "for i in 4 thread {\n }",
    "within vector loop": (
        "for i in 4 vector {\n for j in 4 vector {\n %0: f32 = 1.0\n y[4*i + j] = %0\n }\n }"
    ),
    "differs between lanes": (
        "for i in 4 vector {\n for j in 4 until i {\n %0: f32 = 1.0\n y[4*i + j] = %0\n }\n }"
    ),
    "constant indices": (
        "alloc r: register f32[4]\n for i in 4 {\n %0: f32 = 1.0\n r[i] = %0\n }"
    ),
    "store to one element": (
        "alloc r: register f32[1]\n for i in 4 vector {\n %1: i64 = index i\n"
        " %0: f32 = convert(%1) {dtype=f32}\n r[0] = %0\n }"
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", _REFUSED)
def test_what_a_cpu_does_not_run(reason: str) -> None:
    func = parse_func(f"func f(y: out f32[16]) {{\n{_REFUSED[reason]}\n}}")
    with pytest.raises(UnsupportedError, match=reason):
        text_of(func)


WHILE = """
func powers(x: in f32[6], y: out f32[6], n: out i32[6]) {
  for i in 6 parallel {
    alloc more: register bool[1]
    %0: bool = true
    more[0] = %0
    alloc v: register f32[1]
    %1: f32 = x[i]
    v[0] = %1
    alloc count: register i32[1]
    %2: i32 = 0
    count[0] = %2
    for k in 20 until 2*i + 8 {
      %3: bool = more[0]
      if %3 {
        %4: f32 = v[0]
        %5: f32 = add(%4, %4)
        v[0] = %5
        %6: i32 = 1
        count[0] add= %6
        %7: f32 = 100.0
        %8: bool = compare(%5, %7) {direction="lt"}
        more[0] = %8
      }
    }
    %9: f32 = v[0]
    y[i] = %9
    %10: i32 = count[0]
    n[i] = %10
  }
}"""


def test_a_loop_that_is_one_condition_ends_where_it_is_false() -> None:
    func = parse_func(WHILE)
    x = np.array([1, 60, 0.001, 99, 5, 1e-6], np.float32)
    y, n = np.zeros(6, np.float32), np.zeros(6, np.int32)
    evaluate_func(func, [x, y, n])
    assert n.tolist() == [7, 1, 12, 1, 5, 18]
    assert [a.tolist() for a in run(func, x)] == [y.tolist(), n.tolist()]
    (loop,) = [s for s in statements(func.body) if isinstance(s, For) and s.name == "k"]
    assert loop.while_true is not None
    assert "while" in text_of(func)[1]
    # Another statement beside the condition happens in every iteration.
    after = parse_func(WHILE.replace("      if %3 {", "      count[0] add= %2\n      if %3 {"))
    (loop,) = [s for s in statements(after.body) if isinstance(s, For) and s.name == "k"]
    assert loop.while_true is None


INVARIANT = """\
func total(x: in f32[3], y: out f32[1]) {
  alloc r: register f32[1]
  %0: f32 = 1.0
  r[0] = %0
  %1: f32 = x[0]
  for i in 4 unroll {
    r[0] add= %1
  }
  %2: f32 = r[0]
  y[0] = %2
}"""


def test_copies_that_fold_a_value_from_outside_of_them() -> None:
    (found,) = run(INVARIANT, np.array([2, 5, 7], np.float32))
    assert found.tolist() == [9]
