"""Functions of the loop level as native code: loads and stores of the lanes of a vector loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from func_helper import run, text_of

from bringup.integers import ceil_power_of_two
from bringup.loops import parse_func

Array = np.ndarray[Any, Any]


def numbers(count: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(count).integers(-50, 50, count).astype(dtype)


def test_strides_of_loads_and_stores() -> None:
    x = numbers(24)
    (y,) = run(
        """func f(x: in f32[24], y: out f32[40]) {
          for l in 8 vector {
            %0: f32 = x[l + 3]
            %1: f32 = x[-1*l + 23]
            %2: f32 = x[3*l]
            %3: f32 = x[5]
            %4: f32 = x[(l)//3 + 2]
            y[l] = %0
            y[-1*l + 15] = %1
            y[3*l + 16] = %2
            y[3*l + 17] = %3
            y[3*l + 18] = %4
          }
        }""",
        x,
    )
    lanes = np.arange(8)
    assert (y[:8] == x[3:11]).all()
    assert (y[15:7:-1] == x[23:15:-1]).all()
    assert (y[16::3] == x[::3]).all()
    assert (y[17::3] == x[5]).all()
    assert (y[18::3] == x[lanes // 3 + 2]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 11, 16])
def test_lanes_that_are_near_each_other(dtype: Any, stride: int, count: int) -> None:
    """All lanes, or the first ones of a longer vector; nothing is gathered from whole vectors."""
    name = {"float32": "f32", "int8": "i8", "float64": "f64"}[np.dtype(dtype).name]
    size = stride * (count - 1) + 3
    x = np.arange(1, size + 1).astype(dtype)
    text = f"""func f(x: in {name}[{size}], y: out {name}[{count}]) {{
      for l in {count} vector {{
        %0: {name} = x[{stride}*l + 2]
        y[l] = %0
      }}
    }}"""
    (y,) = run(text, x)
    assert (y == x[2::stride]).all()
    lanes = ceil_power_of_two(count)
    assert ("gather" in text_of(parse_func(text))[1]) == (stride >= lanes)


def test_masks_of_lanes_that_are_near_each_other() -> None:
    """Masks of the kernel give zeros, of f32 without gathers."""
    text = """func f(x: in f32[9], y: out f32[40]) {
      for i in 5 parallel {
        for l in 8 vector {
          %0: f32 = x[2*l + i + -4] if 4 <= 2*l + i < 13
          y[8*i + l] = %0
        }
      }
    }"""
    (y,) = run(text, x := numbers(9))
    padded = np.pad(x, (4, 10))
    assert (y.reshape(5, 8) == [padded[i : i + 16 : 2] for i in range(5)]).all()
    assert "gather" not in text_of(parse_func(text))[1]


def test_one_element_of_lanes_that_are_masked_is_loaded_without_a_branch() -> None:
    text = """func f(x: in f32[3], y: out f32[24]) {
      for i in 3 parallel {
        for l in 8 vector {
          %0: f32 = x[i] if 2 <= l + i < 5
          y[8*i + l] = %0
        }
      }
    }"""
    (y,) = run(text, x := numbers(3))
    lanes = np.arange(8)
    rows = [np.where((lanes + i >= 2) & (lanes + i < 5), x[i], 0) for i in range(3)]
    assert (y.reshape(3, 8) == rows).all()
    assert "reduce.or" not in text_of(parse_func(text))[1]


def test_masked_loads_give_zero_and_touch_nothing() -> None:
    (y,) = run(
        """func f(x: in f32[10], y: out f32[48]) {
          for i in 3 parallel {
            for l in 16 vector {
              %0: f32 = x[16*i + l + -3] if 3 <= 16*i + l < 13
              y[16*i + l] = %0
            }
          }
        }""",
        x := numbers(10),
    )
    assert (y == np.pad(x, (3, 35))).all()


def test_a_masked_load_of_one_element() -> None:
    (y,) = run(
        """func f(x: in f32[2], y: out f32[12]) {
          for i in 3 parallel {
            for l in 4 vector {
              %0: f32 = x[i + -1] if 1 <= i < 3
              y[4*i + l] = %0
            }
          }
        }""",
        np.array([5, 6], np.float32),
    )
    assert y.tolist() == [0] * 4 + [5] * 4 + [6] * 4


def test_masked_stores_leave_elements_alone() -> None:
    (y,) = run(
        """func f(x: in f32[8], y: out f32[8]) {
          for l in 8 vector {
            %0: f32 = x[l]
            y[l] = %0
            %1: f32 = 9.0
            y[l] = %1 if 2 <= l < 5
          }
        }""",
        x := numbers(8),
    )
    assert (y == np.where([2 <= n < 5 for n in range(8)], 9, x)).all()


def test_loaded_indices() -> None:
    table, index = numbers(40), np.array([3, 0, 9, 9, 5, 1, 7, 2], np.int32)
    (y,) = run(
        """func f(x: in f32[40], n: in i32[8], y: out f32[24]) {
          for l in 8 vector {
            %0: i32 = n[l]
            %1: f32 = x[4*d0[0:9] + 1](%0)
            %2: i64 = index 2*d0[0:9] + l of %0
            %3: f32 = convert(%2) {dtype=f32}
            y[l] = %1
            y[l + 8] = %3
          }
          %4: i32 = n[2]
          for l in 8 vector {
            %5: f32 = x[4*d0[0:9] + l](%4) if 0 <= 4*d0[0:9] + l < 40
            y[l + 16] = %5
          }
        }""",
        table,
        index,
    )
    assert (y[:8] == table[4 * index + 1]).all()
    assert (y[8:16] == 2 * index + np.arange(8)).all()
    assert (y[16:] == np.pad(table[36:], (0, 4))).all()


def test_bools_are_bytes_in_memory() -> None:
    x, c = numbers(11, np.int8), numbers(11) > 0
    (y,) = run(
        """func f(x: in i8[11], c: in bool[11], y: out bool[11]) {
          for l in 11 vector {
            %0: i8 = x[l]
            %1: bool = c[l]
            %2: i8 = 0
            %3: bool = compare(%0, %2) {direction="lt"}
            %4: bool = and(%1, %3)
            y[-1*l + 10] = %4
          }
        }""",
        x,
        c,
    )
    assert (y[::-1] == (c & (x < 0))).all()


def test_scratch_memory_is_a_workers_own() -> None:
    (y,) = run(
        """func f(x: in f32[12], y: out f32[12]) {
          for i in 3 parallel {
            alloc t: scratch f32[4]
            for l in 4 vector {
              %0: f32 = x[4*i + l]
              t[-1*l + 3] = %0
            }
            for l in 4 vector {
              %1: f32 = t[l]
              y[4*i + l] = %1
            }
          }
        }""",
        x := numbers(12),
    )
    assert (y.reshape(3, 4) == x.reshape(3, 4)[:, ::-1]).all()


@pytest.mark.parametrize("lanes", [4, 6, 8])
@pytest.mark.parametrize(
    ("index", "place"),
    [
        ("l + -2*(l)%2 + 1", lambda n, lane: lane ^ 1),
        ("-1*l + {last}", lambda n, lane: n - 1 - lane),
        ("(3*l)%{lanes}", lambda n, lane: 3 * lane % n),
        ("(l)//2", lambda n, lane: lane // 2),
        ("l + -1*(l)%2 + {lanes}", lambda n, lane: n + lane - lane % 2),
    ],
    ids=["neighbours", "reversed", "strided", "twice", "second"],
)
def test_lanes_of_registers_change_places(lanes: int, index: str, place: Any) -> None:
    """Any constant permutation of a register buffer is a shuffle; nothing is stored."""
    index = index.format(lanes=lanes, last=lanes - 1)
    text = f"""func f(x: in f32[{2 * lanes}], y: out f32[{lanes}]) {{
      alloc r: register f32[{2 * lanes}]
      for n in 2 unroll {{
        for l in {lanes} vector {{
          %0: f32 = x[{lanes}*n + l]
          r[{lanes}*n + l] = %0
        }}
      }}
      for l in {lanes} vector {{
        %0: f32 = r[{index}]
        y[l] = %0
      }}
    }}"""
    x = numbers(2 * lanes)
    (y,) = run(text, x)
    assert (y == x[place(lanes, np.arange(lanes))]).all()
    _, source = text_of(parse_func(text))
    assert "alloca" not in source
    if lanes & (lanes - 1) == 0:
        assert "shufflevector" in source
        assert "extractelement" not in source


@pytest.mark.parametrize("lanes", [4, 8])
def test_squares_of_registers_are_transposed(lanes: int) -> None:
    x = numbers(lanes**2)
    loop = f"for r in {lanes} unroll {{\n for l in {lanes} vector {{"
    text = f"""func f(x: in f32[{lanes**2}], y: out f32[{lanes**2}]) {{
      alloc t: register f32[{lanes**2}]
      {loop}
          %0: f32 = x[{lanes}*r + l]
          t[{lanes}*r + l] = %0
        }}
      }}
      {loop}
          %0: f32 = t[r + {lanes}*l]
          y[{lanes}*r + l] = %0
        }}
      }}
    }}"""
    (y,) = run(text, x)
    assert (y.reshape(lanes, lanes) == x.reshape(lanes, lanes).T).all()
    _, source = text_of(parse_func(text))
    assert "extractelement" not in source
