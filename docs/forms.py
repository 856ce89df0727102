"""What pages of the forms show beside C: programs, functions of the loop level, schedules."""

from __future__ import annotations

import sys
from pathlib import Path

from bringup.records import record

TESTS = Path(__file__).parents[1] / "core/tests/loops"


@record
class Form:
    """One part of a form.

    says: a sentence or two.  text: a program and its types, or a function.  dialect: of the C.
    """

    title: str
    says: str
    text: str
    dialect: str = "C11"


#: Programs of one kernel or two: an expression, and the types of its arguments.
KERNELS = (
    Form(
        "A grid of points",
        "Every element is a point. The stage has no axes of its own: it computes its body once and "
        "stores the result.",
        "lambda x, y: x * 2 + y, f32[6], f32[6]",
    ),
    Form(
        "What moves becomes an index",
        "Transposes and slices are no ops of a kernel: they are in the index of the load.",
        "lambda x: -x.T[1:, ::2], f32[6, 4]",
    ),
    Form(
        "A mask",
        "Where a bound does not hold, a load gives 0 and touches no memory.",
        "lambda x: bu.pad(x, 1) * 2, f32[6]",
    ),
    Form(
        "A choice by position",
        "`inside` is whether bounds hold, as a bool. A concatenation is a choice of two loads.",
        "lambda x, y: bu.concat([x, y]) * 2, f32[6], f32[3]",
    ),
    Form(
        "A position as a value",
        "`index` is the value of an expression, wrapped to its integer dtype.",
        "lambda x: x * bu.arange(6), i32[6]",
    ),
    Form(
        "Data as an index",
        "`d0` is the value of the load's first operand, which the body has clamped to a known "
        "range.",
        "lambda x, i: -bu.take(x, i, axis=0), f32[100, 8], i32[5]",
    ),
    Form(
        "A fold",
        "The axis is of the stage alone. The fold makes a register of its results, which the next "
        "stage reads as its input.",
        "lambda x: bu.sum(x, axis=1) * 2, f32[40, 200]",
    ),
    Form(
        "Two folds of one stage",
        "A body may have any number of results, each with a sink of its own.",
        "lambda x: (bu.max(x, axis=1), bu.sum(x * x, axis=1)), f32[40, 200]",
    ),
    Form(
        "Products",
        "A product may be rounded together with its sum: C's renderers do what their target does "
        "fast.",
        "lambda x, w: x @ w, f32[4, 8], f32[8, 3]",
    ),
    Form(
        "Narrow floats, wide sums",
        "A fold of f16 or bf16 accumulates in f32 where it says so, and is rounded once.",
        "lambda x: bu.sum(x, axis=1), f16[40, 200]",
    ),
    Form(
        "A tile",
        "Scratch of one point: one stage writes it, later ones read it. This is softmax.",
        "lambda x: bu.nn.softmax(x), f32[40, 200]",
    ),
    Form(
        "A fold in chunks",
        "At few points a long fold leaves most of a machine idle, so a device may ask for chunks. "
        "The axis of the last chunk has a limit, where it ends early.",
        "lambda x: bu.sum(x), f32[100_000]",
    ),
)

LOOPS = (
    Form(
        "Parallel and serial loops",
        "Iterations of a `parallel` loop are independent: in C11 the caller says which to run, so "
        "that it can share them among workers.",
        """
        func f(x: in f32[15], y: out f32[5]) {
          for i in 5 parallel {
            %0: f32 = 0.0
            y[i] = %0
            for j in 3 {
              %1: f32 = x[3*i + j]
              y[i] max= %1
            }
          }
        }
        """,
    ),
    Form(
        "A loop that ends early",
        "The size stays a constant, so that every index has a known range.",
        """
        func f(x: in f32[20], y: out f32[20]) {
          for i in 3 parallel {
            for j in 8 until -8*i + 20 {
              %0: f32 = x[8*i + j]
              y[8*i + j] = %0
            }
          }
        }
        """,
    ),
    Form(
        "A loop that is written out",
        "",
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 6 parallel {
            for j in 2 unroll {
              %0: f32 = x[2*i + j]
              y[2*i + j] = %0
            }
          }
        }
        """,
    ),
    Form(
        "Lanes of a vector",
        "A `vector` loop means what a serial one does. Where a dialect has vector types, its "
        "statements are statements on vectors.",
        """
        func f(x: in f32[24], y: out f32[24]) {
          for i in 3 parallel {
            for j in 8 vector {
              %0: f32 = x[8*i + j]
              %1: f32 = mul(%0, %0)
              y[8*i + j] = %1
            }
          }
        }
        """,
    ),
    Form(
        "The same in OpenCL C",
        "Work items share the iterations of outermost `parallel` loops, however many there are.",
        """
        func f(x: in f32[24], y: out f32[24]) {
          for i in 3 parallel {
            for j in 8 vector {
              %0: f32 = x[8*i + j]
              %1: f32 = mul(%0, %0)
              y[8*i + j] = %1
            }
          }
        }
        """,
        "OPENCL",
    ),
    Form(
        "A masked load",
        "It gives 0 and touches no memory where the mask does not hold.",
        """
        func f(x: in f32[8], y: out f32[10]) {
          for i in 10 parallel {
            %0: f32 = x[i + -1] if 0 <= i + -1 < 8
            y[i] = %0
          }
        }
        """,
    ),
    Form(
        "Positions as values",
        "",
        """
        func f(y: out i32[12], z: out bool[12]) {
          for i in 12 parallel {
            %0: i32 = index (i)//4
            y[i] = %0
            %1: bool = inside 0 <= i < 7
            z[i] = %1
          }
        }
        """,
    ),
    Form(
        "Data as an index",
        "`d0` is the scalar in brackets, known to lie in 0 … 9 since it has been clamped.",
        """
        func f(x: in f32[10], p: in i32[4], y: out f32[4]) {
          for i in 4 parallel {
            %0: i32 = p[i]
            %1: i32 = 0
            %2: i32 = max(%0, %1)
            %3: i32 = 9
            %4: i32 = min(%2, %3)
            %5: f32 = x[d0[0:9]](%4)
            y[i] = %5
          }
        }
        """,
    ),
    Form(
        "Floats that C does not know",
        "f16, bf16 and the floats to store are integers in registers. Each op is computed in f32 "
        "and rounded once, by the scalar library that the source brings along.",
        """
        func f(x: in f16[6], y: out bf16[6]) {
          for i in 6 parallel {
            %0: f16 = x[i]
            %1: f16 = mul(%0, %0)
            %2: bf16 = convert(%1) {dtype=bf16}
            y[i] = %2
          }
        }
        """,
    ),
    Form(
        "A fold into a register",
        "The element becomes its combination with the value. Folds into one element may happen in "
        "any order.",
        """
        func f(x: in f32[40], y: out f32[4]) {
          for i in 4 parallel {
            alloc r: register f32[1]
            %0: f32 = -0.0
            r[0] = %0
            for k in 10 {
              %1: f32 = x[10*i + k]
              r[0] add= %1
            }
            %2: f32 = r[0]
            y[i] = %2
          }
        }
        """,
    ),
    Form(
        "A fold of products",
        "The rounding of the product may be skipped: `bu_muladd_f32` is a fused multiply-add where "
        "the target has one.",
        """
        func f(x: in f32[40], w: in f32[10], y: out f32[4]) {
          for i in 4 parallel {
            %0: f32 = -0.0
            y[i] = %0
            for k in 10 {
              %1: f32 = x[10*i + k]
              %2: f32 = w[k]
              y[i] add= %1 * %2
            }
          }
        }
        """,
    ),
    Form(
        "Scratch",
        "A buffer for the rest of the block. Large ones lie in memory that the caller gives, "
        "`scratch_bytes(func, dialect)` for each call; up to 1 KiB they are local arrays.",
        """
        func f(x: in f32[600], y: out f32[600]) {
          for i in 2 parallel {
            alloc t: scratch f32[300]
            for j in 300 {
              %0: f32 = x[300*i + j]
              %1: f32 = exp(%0)
              t[j] = %1
            }
            for j in 300 {
              %2: f32 = t[-1*j + 299]
              y[300*i + j] = %2
            }
          }
        }
        """,
    ),
    Form(
        "A permutation of lanes",
        "Neighbouring lanes are exchanged. Any index that is a constant in each lane is one; "
        "renderers of machine code make shuffles of it.",
        """
        func f(x: in f32[8], y: out f32[8]) {
          for i in 1 parallel {
            alloc r: register f32[8]
            for l in 8 vector {
              %0: f32 = x[l]
              r[l] = %0
            }
            for l in 8 vector {
              %1: f32 = r[l + -2*(l)%2 + 1]
              y[l] = %1
            }
          }
        }
        """,
    ),
    Form(
        "A condition",
        "",
        """
        func f(x: in f32[8], m: in bool[8], y: inout f32[8]) {
          for i in 8 parallel {
            %0: bool = m[i]
            if 2 <= i < 6 and %0 {
              %1: f32 = x[i]
              y[i] = %1
            }
          }
        }
        """,
    ),
    Form(
        "A loop that ends at data",
        "A loop that holds a condition on a register alone ends where the register is false.",
        """
        func f(x: in f32[60], y: out f32[3]) {
          for c in 3 parallel {
            alloc more: register bool[1]
            %0: bool = true
            more[0] = %0
            %1: f32 = 0.0
            y[c] = %1
            for k in 20 {
              %2: bool = more[0]
              if %2 {
                %3: f32 = x[20*c + k]
                y[c] max= %3
                %4: f32 = 9.0
                %5: bool = compare(%3, %4) {direction="lt"}
                more[0] = %5
              }
            }
          }
        }
        """,
    ),
    Form(
        "Blocks, threads, barriers",
        "Threads of a block have shared memory, and see what others wrote behind a barrier.",
        """
        func f(x: in f32[128], y: out f32[128]) {
          for b in 4 block {
            alloc s: shared f32[32]
            for t in 32 thread {
              %0: f32 = x[32*b + t]
              s[t] = %0
              barrier
              %1: f32 = s[-1*t + 31]
              y[32*b + t] = %1
            }
          }
        }
        """,
        "CUDA",
    ),
    Form(
        "A value of another thread",
        "Of that whose number differs in the bits of 4.",
        """
        func f(x: in f32[32], y: out f32[32]) {
          for b in 1 block {
            for t in 32 thread {
              %0: f32 = x[t]
              %1: f32 = shuffle %0 over t xor 4
              %2: f32 = add(%0, %1)
              y[t] = %2
            }
          }
        }
        """,
        "CUDA",
    ),
    Form(
        "Stores that come later",
        "Copies to shared memory that no thread waits for before `wait`. In C they are stores; "
        "renderers of machine code make asynchronous copies of them.",
        """
        func f(x: in f32[128], y: out f32[128]) {
          for b in 4 block {
            alloc s: shared f32[32]
            for t in 32 thread {
              %0: f32 = x[32*b + t]
              s[t] later = %0
              commit
              wait 0
              barrier
              %1: f32 = s[-1*t + 31]
              y[32*b + t] = %1
            }
          }
        }
        """,
        "OPENCL",
    ),
    Form(
        "Atomic folds",
        "Only renderers of machine code have them.",
        """
        func f(x: in i32[100], y: inout i32[10]) {
          for b in 5 block {
            for t in 20 thread {
              %0: i32 = x[20*b + t]
              y[0] atomic add= %0
            }
          }
        }
        """,
        "CUDA",
    ),
)


def steps() -> dict[str, tuple[str, str, str, str]]:
    """For each primitive of schedules a function, a schedule and the function after it, the
    shortest that its golden tests have, with the name of the case.
    """
    sys.path.append(str(TESTS))
    from test_schedule_golden import CASES

    shortest: dict[str, tuple[str, str, str, str]] = {}
    for name, texts in sorted(CASES.items(), key=lambda item: sum(map(len, item[1]))):
        step, _, case = name.partition(": ")
        shortest.setdefault(step, (case, *texts))
    return shortest
