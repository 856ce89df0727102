"""Each primitive of schedules, before and after, as text, and the values of both."""

from __future__ import annotations

import pytest
from schedule_cases import MORE_CASES
from schedule_functions import (
    BESIDE,
    CHUNKS,
    COND,
    LINE,
    MASKED,
    NEST,
    PLAIN,
    ROLL,
    ROWS,
    SHIFT,
    SUM,
    WITHIN,
)
from schedule_product_cases import PRODUCT_CASES
from schedule_tile_cases import TILE_CASES
from schedules import assert_equal_values

from bringup.loops import parse_func
from bringup.loops.schedule import PRIMITIVES, Schedule, apply

#: A function, a schedule, and the function after it; the first word is the primitive.
CASES: dict[str, tuple[str, str, str]] = {
    **MORE_CASES,
    **PRODUCT_CASES,
    **TILE_CASES,
    "split: a size that divides has no end": (
        NEST,
        """
        split j j.o j.i 2
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 3 parallel {
            for j.o in 2 {
              for j.i in 2 {
                %0: f32 = x[4*i + j.i + 2*j.o]
                %1: f32 = neg(%0)
                y[4*i + j.i + 2*j.o] = %1
              }
            }
          }
        }
        """,
    ),
    "split: the last block ends early": (
        LINE,
        """
        split i i.o i.i 4
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.o in 3 {
            for i.i in 4 until -4*i.o + 10 {
              %0: f32 = x[i.i + 4*i.o]
              %1: f32 = neg(%0)
              y[i.i + 4*i.o] = %1
            }
          }
        }
        """,
    ),
    "split: the last iterations become a loop": (
        LINE,
        """
        split i i.o i.i 4 tail=peel
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.o in 2 {
            for i.i in 4 {
              %0: f32 = x[i.i + 4*i.o]
              %1: f32 = neg(%0)
              y[i.i + 4*i.o] = %1
            }
          }
          for i.t in 2 {
            %0_1: f32 = x[i.t + 8]
            %1_1: f32 = neg(%0_1)
            y[i.t + 8] = %1_1
          }
        }
        """,
    ),
    "split: the last block repeats iterations": (
        SHIFT,
        """
        split i i.o i.i 4 tail=overlap
        """,
        """
        func f(x: in f32[11], y: out f32[10]) {
          for i.o in 2 {
            for i.i in 4 {
              %0: f32 = x[i.i + 4*i.o]
              %1: f32 = x[i.i + 4*i.o + 1]
              %2: f32 = add(%0, %1)
              y[i.i + 4*i.o] = %2
            }
          }
          for i.i in 4 {
            %0_1: f32 = x[i.i + 6]
            %1_1: f32 = x[i.i + 7]
            %2_1: f32 = add(%0_1, %1_1)
            y[i.i + 6] = %2_1
          }
        }
        """,
    ),
    "split: both halves of a loop that ends early end early": (
        CHUNKS,
        """
        split i i.o i.i 2
        """,
        """
        func f(x: in f32[10], y: out f32[4]) {
          for c in 4 parallel {
            alloc r: register f32[1]
            %0: f32 = -0.0
            r[0] = %0
            for i.o in 2 until (-3*c + 1)//2 + 5 {
              for i.i in 2 until -3*c + -2*i.o + 10 {
                if 0 <= i.i + 2*i.o < 3 {
                  %1: f32 = x[3*c + i.i + 2*i.o]
                  r[0] add= %1
                }
              }
            }
            %2: f32 = r[0]
            y[c] = %2
          }
        }
        """,
    ),
    "split: an end decides masks": (
        MASKED,
        """
        split i i.o i.i 4
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.o in 3 {
            for i.i in 4 until -4*i.o + 10 {
              %0: f32 = x[i.i + 4*i.o]
              %1: f32 = neg(%0)
              y[i.i + 4*i.o] = %1
            }
          }
        }
        """,
    ),
    "peel: masks between the seams vanish": (
        ROLL,
        """
        peel i 1 0
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.first in 1 parallel {
            %1_1: f32 = x[9]
            y[0] = %1_1
          }
          for i in 9 parallel {
            %0: f32 = x[i]
            y[i + 1] = %0
          }
        }
        """,
    ),
    "peel: the last iterations": (
        LINE,
        """
        peel i 0 2
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i in 8 {
            %0: f32 = x[i]
            %1: f32 = neg(%0)
            y[i] = %1
          }
          for i.last in 2 {
            %0_1: f32 = x[i.last + 8]
            %1_1: f32 = neg(%0_1)
            y[i.last + 8] = %1_1
          }
        }
        """,
    ),
    "fuse": (
        PLAIN,
        """
        fuse i j ij
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for ij in 12 {
            %0: f32 = x[ij]
            %1: f32 = neg(%0)
            y[ij] = %1
          }
        }
        """,
    ),
    "fuse: an early end becomes a condition": (
        LINE,
        """
        split i i.o i.i 4
        fuse i.o i.i i
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i in 12 {
            if 1 <= -1*i + 10 < 11 {
              %0: f32 = x[i]
              %1: f32 = neg(%0)
              y[i] = %1
            }
          }
        }
        """,
    ),
    "pad": (
        ROWS,
        """
        split i i.o i.i 2
        distribute i.i
        pad i.i
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          for i.o in 3 parallel {
            alloc r: register f32[2]
            alloc v1: register f32[2]
            %0: f32 = -0.0
            for i.i in 2 unroll {
              r[i.i] = %0
              %1: f32 = x[3*i.i + 6*i.o] if 1 <= -1*i.i + -2*i.o + 5 < 6
              v1[i.i] = %1
            }
            for i.i in 2 unroll {
              %1_1: f32 = v1[i.i]
              for j in 3 {
                %2: f32 = x[3*i.i + 6*i.o + j] if 1 <= -1*i.i + -2*i.o + 5 < 6
                %3: f32 = sub(%2, %1_1)
                r[i.i] add= %3
              }
            }
            for i.i in 2 until -2*i.o + 5 unroll {
              %4: f32 = r[i.i]
              y[i.i + 2*i.o] = %4
            }
          }
        }
        """,
    ),
    "reorder": (
        NEST,
        """
        reorder j i
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for j in 4 {
            for i in 3 parallel {
              %0: f32 = x[4*i + j]
              %1: f32 = neg(%0)
              y[4*i + j] = %1
            }
          }
        }
        """,
    ),
    "reorder: an end that names an inner loop becomes the end of that one": (
        LINE,
        """
        split i i.o i.i 4
        reorder i.i i.o
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.i in 4 {
            for i.o in 3 until (-1*i.i + 1)//4 + 3 {
              %0: f32 = x[i.i + 4*i.o]
              %1: f32 = neg(%0)
              y[i.i + 4*i.o] = %1
            }
          }
        }
        """,
    ),
    "reorder: scalars go innermost": (
        BESIDE,
        """
        reorder j i
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          for k in 5 {
            %5: f32 = 0.0
            y[k] = %5
          }
          for j in 3 {
            for i in 5 {
              %1: f32 = x[3*i]
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1)
              y[i] add= %3
            }
          }
        }
        """,
    ),
    "distribute: what connects parts goes to registers": (
        ROWS,
        """
        distribute i
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          alloc r: register f32[5]
          alloc v1: register f32[5]
          %0: f32 = -0.0
          for i in 5 unroll {
            r[i] = %0
            %1: f32 = x[3*i]
            v1[i] = %1
          }
          for i in 5 unroll {
            %1_1: f32 = v1[i]
            for j in 3 {
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1_1)
              r[i] add= %3
            }
          }
          for i in 5 unroll {
            %4: f32 = r[i]
            y[i] = %4
          }
        }
        """,
    ),
    "hoist: scalars": (
        WITHIN,
        """
        hoist j
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          for i in 5 parallel {
            alloc r: register f32[1]
            %0: f32 = -0.0
            r[0] = %0
            %1: f32 = x[3*i]
            for j in 3 {
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1)
              r[0] add= %3
            }
            %4: f32 = r[0]
            y[i] = %4
          }
        }
        """,
    ),
    "hoist: a condition and what it guards": (
        COND,
        """
        hoist j
        """,
        """
        func f(x: in f32[4], y: out f32[12]) {
          for i in 3 {
            %0: f32 = 0.0
            for j in 4 {
              y[4*i + j] = %0
            }
          }
          for i in 3 {
            if 1 <= i < 3 {
              for j in 4 {
                %1: f32 = x[i]
                %2: f32 = neg(%1)
                y[4*i + j] = %2
              }
            }
          }
        }
        """,
    ),
    "rfactor": (
        SUM,
        """
        split i i.o i.i 4
        rfactor i.o y i.i
        """,
        """
        func f(x: in f32[24], y: out f32[1]) {
          %0: f32 = -0.0
          y[0] = %0
          alloc y.i.o: register f32[4]
          for i.i in 4 unroll {
            %y: f32 = -0.0
            y.i.o[i.i] = %y
          }
          for i.o in 6 {
            for i.i in 4 unroll {
              %1: f32 = x[i.i + 4*i.o]
              y.i.o[i.i] add= %1
            }
          }
          for i.i in 4 unroll {
            %y_1: f32 = y.i.o[i.i]
            y[0] add= %y_1
          }
        }
        """,
    ),
    "rfactor: of a register makes shorter chains": (
        SUM,
        """
        split i i.o l 4
        split i.o i.b i.o 2
        rfactor i.b y l
        rfactor i.o y.i.b l
        """,
        """
        func f(x: in f32[24], y: out f32[1]) {
          %0: f32 = -0.0
          y[0] = %0
          alloc y.i.b: register f32[4]
          for l in 4 unroll {
            %y: f32 = -0.0
            y.i.b[l] = %y
          }
          for i.b in 3 {
            alloc y.i.b.i.o: register f32[4]
            for l in 4 unroll {
              %y_i_b: f32 = -0.0
              y.i.b.i.o[l] = %y_i_b
            }
            for i.o in 2 {
              for l in 4 unroll {
                %1: f32 = x[8*i.b + 4*i.o + l]
                y.i.b.i.o[l] add= %1
              }
            }
            for l in 4 unroll {
              %y_i_b_1: f32 = y.i.b.i.o[l]
              y.i.b[l] add= %y_i_b_1
            }
          }
          for l in 4 unroll {
            %y_1: f32 = y.i.b[l]
            y[0] add= %y_1
          }
        }
        """,
    ),
    "unroll": (
        NEST,
        """
        unroll j
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 3 parallel {
            for j in 4 unroll {
              %0: f32 = x[4*i + j]
              %1: f32 = neg(%0)
              y[4*i + j] = %1
            }
          }
        }
        """,
    ),
    "vectorize": (
        NEST,
        """
        vectorize j
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 3 parallel {
            for j in 4 vector {
              %0: f32 = x[4*i + j]
              %1: f32 = neg(%0)
              y[4*i + j] = %1
            }
          }
        }
        """,
    ),
    "parallelize": (
        NEST,
        """
        parallelize j
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 3 parallel {
            for j in 4 parallel {
              %0: f32 = x[4*i + j]
              %1: f32 = neg(%0)
              y[4*i + j] = %1
            }
          }
        }
        """,
    ),
    "bind": (
        NEST,
        """
        bind i block
        bind j thread
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 3 block {
            for j in 4 thread {
              %0: f32 = x[4*i + j]
              %1: f32 = neg(%0)
              y[4*i + j] = %1
            }
          }
        }
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    before, schedule, after = CASES[name]
    result = apply(parse_func(before), Schedule.parse(schedule))
    expected = parse_func(after)
    assert str(result) == str(expected)
    assert_equal_values(parse_func(before), result)


def test_every_primitive_has_a_case() -> None:
    assert {name.partition(":")[0] for name in CASES} == set(PRIMITIVES)
