"""The interpreter of the loop level: values, and what it refuses to give a value to."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from bringup.errors import GraphError
from bringup.loops import Func, evaluate_func, parse_func, verify_func

Array = np.ndarray[Any, Any]


def func_of(text: str) -> Func:
    return parse_func(inspect.cleandoc(text))


def run(func: Func, *inputs: Array) -> list[Array]:
    """The outputs of a function, whose memory held something else before."""
    outputs = [np.full(b.size, 99, b.dtype.numpy) for b in func.outputs]
    made, read = iter(outputs), iter(inputs)
    evaluate_func(func, [next(made if p.role == "out" else read) for p in func.params])
    return outputs


#: Each block of eight threads sums sixteen elements in a tree.
SUMS = """
    func sums(x: in i32[48], y: out i32[3]) {
      for b in 3 block {
        alloc parts: shared i32[8]
        for t in 8 thread {
          %0: i32 = x[16*b + t]
          parts[t] = %0
          %1: i32 = x[16*b + t + 8]
          parts[t] add= %1
          barrier
          if 0 <= t < 4 {
            %2: i32 = parts[t + 4]
            parts[t] add= %2
          }
          barrier
          if 0 <= t < 2 {
            %3: i32 = parts[t + 2]
            parts[t] add= %3
          }
          barrier
          if 0 <= t < 1 {
            %4: i32 = parts[1]
            parts[0] add= %4
            %5: i32 = parts[0]
            y[b] = %5
          }
        }
      }
    }
"""


def test_a_block_sums_through_shared_memory() -> None:
    func = func_of(SUMS)
    verify_func(func)
    x = np.arange(48, dtype=np.int32) ** 2
    (y,) = run(func, x)
    assert y.tolist() == x.reshape(3, 16).sum(axis=1).tolist()


@pytest.mark.parametrize("barrier", range(3))
def test_a_sum_without_one_of_its_barriers_is_a_race(barrier: int) -> None:
    parts = inspect.cleandoc(SUMS).split("      barrier\n")
    parts[barrier : barrier + 2] = ["".join(parts[barrier : barrier + 2])]
    func = parse_func("      barrier\n".join(parts))
    with pytest.raises(GraphError, match="several threads, with no barrier between them, use elem"):
        verify_func(func)
    with pytest.raises(GraphError) as caught:
        run(func, np.zeros(48, np.int32))
    assert "is read, and another iteration writes it: thread loop t, without a barrier" in str(
        caught.value
    )
    assert caught.value.notes[0].startswith(f"%{barrier + 2}: i32 = parts[")


def test_threads_that_come_back_are_the_same() -> None:
    """Loops of the same name and size in one block are the same threads, without a barrier."""
    text = """
        func twice(y: out i32[8]) {
          for b in 2 block {
            alloc s: shared i32[4]
            for t in 4 thread {
              %0: i32 = index 4*b + t
              s[t] = %0
            }
            for NAME in 4 thread {
              %1: i32 = s[NAME]
              y[4*b + NAME] = %1
            }
          }
        }
    """
    assert run(func_of(text.replace("NAME", "t")))[0].tolist() == list(range(8))
    with pytest.raises(GraphError, match="another iteration writes it: thread loop u"):
        run(func_of(text.replace("NAME", "u")))
    met = text.replace("for NAME in 4 thread {", "for NAME in 4 thread {\nbarrier")
    assert run(func_of(met.replace("NAME", "u")))[0].tolist() == list(range(8))


def test_what_a_block_does_once_is_done_by_one_of_its_threads() -> None:
    text = """
        func once(y: out i32[8]) {
          for b in 2 block {
            alloc s: SPACE i32[1]
            %0: i32 = index 7*b
            s[0] = %0
            for t in 4 thread {
              BARRIER
              %1: i32 = s[0]
              y[4*b + t] = %1
            }
          }
        }
    """
    wanted = [0] * 4 + [7] * 4
    met = text.replace("BARRIER", "barrier")
    without = text.replace("BARRIER", "")
    assert run(func_of(met.replace("SPACE", "shared")))[0].tolist() == wanted
    with pytest.raises(GraphError, match="s is read, and another iteration writes it: thread loop"):
        run(func_of(without.replace("SPACE", "shared")))
    # Every thread has memory of its own, and does the same.
    assert run(func_of(without.replace("SPACE", "register")))[0].tolist() == wanted


def test_shared_memory_may_be_filled_again_behind_a_barrier() -> None:
    text = """
        func rounds(x: in i32[32], y: out i32[8]) {
          for b in 2 block {
            for t in 4 thread {
              alloc sum: register i32[1]
              %0: i32 = 0
              sum[0] = %0
              for k in 4 {
                alloc s: shared i32[4]
                %1: i32 = x[16*b + 4*k + t]
                s[t] = %1
                barrier
                %2: i32 = s[-1*t + 3]
                sum[0] add= %2
                barrier
              }
              %3: i32 = sum[0]
              y[4*b + t] = %3
            }
          }
        }
    """
    x = np.arange(32, dtype=np.int32)
    wanted = x.reshape(2, 4, 4).sum(axis=1)[:, ::-1]
    func = func_of(text)
    verify_func(func)
    assert run(func, x)[0].tolist() == wanted.reshape(-1).tolist()
    last = "sum[0] add= %2\n                barrier"
    with pytest.raises(
        GraphError, match=r"s is written, and another iteration accesses it: thread"
    ):
        run(func_of(text.replace(last, "sum[0] add= %2")), x)


def test_each_kind_of_loop_that_runs_in_order_means_the_same() -> None:
    text = """
        func prefix(x: in i32[6], y: out i32[6]) {
          alloc sum: scratch i32[1]
          %0: i32 = 0
          sum[0] = %0
          for i in 6KIND {
            %1: i32 = x[i]
            sum[0] add= %1
            %2: i32 = sum[0]
            y[i] = %2
          }
        }
    """
    x = np.arange(6, dtype=np.int32)
    for kind in ("", " vector", " unroll"):
        assert run(func_of(text.replace("KIND", kind)), x)[0].tolist() == [0, 1, 3, 6, 10, 15]
    for kind in ("parallel", "block"):
        with pytest.raises(GraphError, match=f"another iteration accesses it: {kind} loop i"):
            run(func_of(text.replace("KIND", f" {kind}")), x)


def test_loops_and_branches_end_where_they_say() -> None:
    text = """
        func triangle(y: out i32[12]) {
          %0: i32 = 0
          for i in 12 parallel {
            y[i] = %0
          }
          for i in 3 KIND {
            for j in 4 until 2*i + 1 {
              %1: i32 = index 10*i + j
              if 0 <= j < 3 {
                y[4*i + j] = %1
              }
            }
          }
        }
    """
    for kind in ("parallel", "block", "unroll"):
        (y,) = run(func_of(text.replace("KIND", kind)))
        assert y.tolist() == [0, 0, 0, 0, 10, 11, 12, 0, 20, 21, 22, 0]
    items = text.replace("until 2*i + 1", "until 2*i + 1 parallel").replace("KIND", "parallel")
    assert run(func_of(items))[0].tolist() == [0, 0, 0, 0, 10, 11, 12, 0, 20, 21, 22, 0]


def test_what_independent_loops_wrote_is_there_behind_them() -> None:
    text = """
        func turned(x: in i32[12], y: out i32[12]) {
          for b in 2 block {
            alloc t: scratch i32[6]
            for i in 6 parallel {
              %0: i32 = x[6*b + i]
              t[i] = %0
            }
            for i in 6 parallel {
              %1: i32 = t[-1*i + 5]
              y[6*b + i] = %1
            }
          }
        }
    """
    (y,) = run(func_of(text), np.arange(12, dtype="i4"))
    assert y.tolist() == [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6]


@pytest.mark.parametrize("fold", ["add", "mul", "max", "min", "and", "or"])
def test_folds_are_the_monoids(fold: str) -> None:
    text = f"""
        func fold(x: in i32[5], y: out i32[1]) {{
          %0: i32 = x[0]
          y[0] = %0
          for i in 4 {{
            %1: i32 = x[i + 1]
            y[0] {fold}= %1
          }}
        }}
    """
    x = np.array([13, 11, -6, 7, 15], np.int32)
    ufuncs: dict[str, np.ufunc] = {
        "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
        "and": np.bitwise_and, "or": np.bitwise_or,
    }  # fmt: skip
    assert run(func_of(text), x)[0].tolist() == [ufuncs[fold].reduce(x)]


def test_products_are_summed_without_rounding_them() -> None:
    text = """
        func dot(x: in f32[1], y: out f32[1]) {
          %0: f32 = x[0]
          %1: f32 = -1.0
          y[0] = %1
          y[0] add= %0 * %0
        }
    """
    x = np.array([1 + 2**-12], np.float32)
    assert run(func_of(text), x)[0][0] == np.float32(2**-11 + 2**-24)
    assert x[0] * x[0] - 1 == np.float32(2**-11)


def test_masked_accesses_touch_nothing() -> None:
    text = """
        func padded(x: in f32[3], y: out f32[5]) {
          for i in 5 parallel {
            %0: f32 = x[i + -1] if 1 <= i < 4
            y[i] = %0
          }
          for i in 9 parallel {
            %1: f32 = 7.0
            y[i + -4] = %1 if 4 <= i < 5
          }
        }
    """
    assert run(func_of(text), np.array([1, 2, 3], "f4"))[0].tolist() == [7, 1, 2, 3, 0]


def test_loaded_indices_are_read_and_written_at() -> None:
    text = """
        func permuted(x: in f32[4], at: in i32[4], y: out f32[4]) {
          for i in 4 parallel {
            %0: i32 = at[i]
            %1: f32 = x[d0[0:3]](%0)
            %2: f32 = x[i]
            %3: i32 = index 2*d0[0:3] + i of %0
            %4: bool = inside 0 <= d0[0:3] < 2 of %0
            %5: f32 = select(%4, %1, %2)
            y[d0[0:3]](%0) = %5
          }
        }
    """
    x, at = np.array([10, 20, 30, 40], "f4"), np.array([2, 0, 3, 1], "i4")
    (y,) = run(func_of(text), x, at)
    assert y[at].tolist() == [x[i] if n >= 2 else x[n] for i, n in enumerate(at)]
    with pytest.raises(GraphError, match=r"d0\[0:3\] takes values 0 … 4") as caught:
        run(func_of(text), x, np.array([2, 0, 4, 1], "i4"))
    assert caught.value.notes == ("%1: f32 = x[d0[0:3]](%0)",)
    with pytest.raises(GraphError, match="element 2 of y is written, and another iteration acc"):
        run(func_of(text), x, np.array([2, 0, 2, 1], "i4"))


def test_an_index_out_of_range_in_lanes_that_do_not_run_is_nothing() -> None:
    text = """
        func some(x: in f32[4], at: in i32[4], y: out f32[4]) {
          for i in 4 parallel {
            %0: i32 = at[i]
            %1: f32 = 0.0
            y[i] = %1
            if 0 <= i < 2 {
              %2: f32 = x[d0[0:3]](%0)
              y[i] add= %2
            }
          }
        }
    """
    at = np.array([3, 1, 400, -1], "i4")
    assert run(func_of(text), np.arange(4, dtype="f4"), at)[0].tolist() == [3, 1, 0, 0]


#: What is wrong, a function without its head, what is said, and at which statement.
WRONG: dict[str, tuple[str, str, str]] = {
    "read beyond the end": (
        "for i in 4 parallel {\n%0: f32 = x[i + 1]\ny[i] = %0\n}",
        "element 4 of x is read, which has 4", "%0: f32 = x[i + 1]",
    ),
    "read before the start": (
        "for i in 4 {\n%0: f32 = x[i + -1]\ny[i] = %0\n}",
        "element -1 of x is read, which has 4", "%0: f32 = x[i + -1]",
    ),
    "write beyond the end": (
        "%0: f32 = 1.0\nfor i in 5 parallel {\ny[i] = %0\n}",
        "element 4 of y is written, which has 4", "y[i] = %0",
    ),
    "write to an in buffer": (
        "%0: f32 = 1.0\nx[0] = %0", "x is written, an in buffer is only read", "x[0] = %0",
    ),
    "element left out": (
        "%0: f32 = 1.0\nfor i in 4 parallel {\ny[i] = %0 if 0 <= 5*i < 14\n}",
        "1 of 4 elements of y are never written, element 3 first", "",
    ),
    "out read too early": (
        "for i in 4 parallel {\n%0: f32 = y[i]\ny[i] = %0\n}",
        "element 0 of y is read before it was written", "%0: f32 = y[i]",
    ),
    "fold into nothing": (
        "%0: f32 = 1.0\nfor i in 4 parallel {\ny[i] add= %0\n}",
        "element 0 of y is folded into before it was written", "y[i] add= %0",
    ),
    "scratch read too early": (
        "alloc t: scratch f32[4]\n%0: f32 = 1.0\nt[1] = %0\n"
        "for i in 4 {\n%1: f32 = t[i]\ny[i] = %1\n}",
        "element 0 of t is read before it was written", "%1: f32 = t[i]",
    ),
    "scratch of the iteration before": (
        "for i in 4 {\nalloc t: scratch f32[1]\n%0: f32 = 1.0\nt[0] = %0 if 0 <= i < 2\n"
        "%1: f32 = t[0]\ny[i] = %1\n}",
        "element 0 of t is read before it was written", "%1: f32 = t[0]",
    ),
    "register of another iteration": (
        "for i in 4 parallel {\nalloc r: register f32[1]\n%0: f32 = 1.0\nr[0] = %0 if 1 <= i < 4\n"
        "%1: f32 = r[0]\ny[i] = %1\n}",
        "element 0 of r is read before it was written", "%1: f32 = r[0]",
    ),
    "shared read too early": (
        "for b in 4 block {\nalloc s: shared f32[2]\nfor t in 2 thread {\n%0: f32 = s[t]\n}\n}",
        "element 0 of s is read before it was written", "%0: f32 = s[t]",
    ),
    "all write one": (
        "%0: f32 = 1.0\nfor i in 4 parallel {\ny[2] = %0\n}",
        "element 2 of y is written, and another iteration accesses it: parallel loop i",
        "y[2] = %0",
    ),
    "two write one": (
        "%0: f32 = 1.0\nfor i in 4 parallel {\ny[(i)//2] = %0\n}",
        "element 0 of y is written, and another iteration accesses it: parallel loop i",
        "y[(i)//2] = %0",
    ),
    "all fold into one": (
        "%0: f32 = 1.0\ny[0] = %0\nfor i in 4 parallel {\ny[0] add= %0\n}",
        "element 0 of y is folded into, and another iteration accesses it: parallel loop i",
        "y[0] add= %0",
    ),
    "two loops, one element": (
        "%0: f32 = 1.0\nfor i in 2 parallel {\nfor j in 2 block {\ny[2*j] = %0\n}\n}",
        "element 0 of y is written, and another iteration accesses it: parallel loop i",
        "y[2*j] = %0",
    ),
    "what a neighbour wrote": (
        "%0: f32 = 1.0\nfor i in 4 parallel {\ny[i] = %0\n%1: f32 = y[-1*i + 3]\n}",
        "element 3 of y is read, and another iteration writes it: parallel loop i",
        "%1: f32 = y[-1*i + 3]",
    ),
    "what a neighbour writes later": (
        "%0: f32 = 1.0\nfor i in 4 {\ny[i] = %0\n}\n"
        "for i in 4 parallel {\n%1: f32 = y[-1*i + 3]\ny[i] = %1\n}",
        "element 0 of y is written, and another iteration accesses it: parallel loop i",
        "y[i] = %1",
    ),
    "barriers do not order blocks": (
        "%0: f32 = 1.0\nfor b in 2 block {\nfor t in 2 thread {\ny[2*b + t] = %0\nbarrier\n"
        "%1: f32 = y[-2*b + t + 2]\n}\n}",
        "element 2 of y is read, and another iteration writes it: block loop b",
        "%1: f32 = y[-2*b + t + 2]",
    ),
    "a barrier for some": (
        "for b in 2 block {\nfor t in 2 thread {\nif 0 <= t < 1 {\nbarrier\n}\n}\n}",
        "only some threads of a block come to this barrier", "barrier",
    ),
    "a barrier for as long as each likes": (
        "for b in 2 block {\nfor t in 2 thread {\nfor k in 3 until t + 1 {\nbarrier\n}\n}\n}",
        "only some threads of a block come to this barrier", "barrier",
    ),
    "a barrier without threads": (
        "for b in 2 parallel {\nbarrier\n}", "a barrier stands outside of a block", "barrier",
    ),
    "private to the block": (
        "for b in 2 block {\nalloc r: scratch f32[2]\n%0: f32 = 1.0\nfor t in 2 thread {\n"
        "r[t] = %0\n}\n}",
        "a thread writes r, which is private to its block", "r[t] = %0",
    ),
    "a loop within itself": (
        "for i in 4 {\nfor i in 4 {\n}\n}", "loop i stands within itself", "for i in 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_the_form_forbids_is_an_error(case: str) -> None:
    body, what, stmt = WRONG[case]
    func = parse_func(f"func f(x: in f32[4], y: out f32[4]) {{\n{body}\n}}")
    with pytest.raises(GraphError) as caught:
        run(func, np.arange(4, dtype=np.float32))
    assert caught.value.what == f"func f: {what}"
    assert caught.value.notes == ((stmt,) if stmt else ())


def test_a_barrier_for_whole_blocks_is_one() -> None:
    text = """
        func f(y: out i32[4]) {
          for b in 2 block {
            alloc s: shared i32[2]
            for t in 2 thread {
              %0: i32 = index 2*b + t
              y[2*b + t] = %0
              if 1 <= b < 2 {
                s[t] = %0
                barrier
                %1: i32 = s[-1*t + 1]
                y[2*b + t] = %1
              }
            }
          }
        }
    """
    verify_func(func_of(text))
    assert run(func_of(text))[0].tolist() == [0, 1, 3, 2]


#: What threads of a block do to memory that was filled before, and in which loop lies a race.
READERS: dict[str, tuple[str, str]] = {
    "a thread replaces what all read": (
        "for t in 3 thread {\n%1: i32 = s[0]\nif 0 <= t < 1 {\n%2: i32 = s[0]\ns[0] = %0\n}\n}",
        "thread loop t",
    ),
    "a thread replaces what another read before it": (
        "for t in 3 thread {\nif 0 <= t < 1 {\n%1: i32 = s[0]\n}\nif 1 <= t < 2 {\n%1: i32 = s[0]\n"
        "s[0] = %0\n}\n}",
        "thread loop t",
    ),
    "a thread replaces what it alone read": (
        "for t in 3 thread {\nif 0 <= t < 1 {\n%2: i32 = s[0]\ns[0] = %0\n}\n}", "",
    ),
    "a thread replaces what the block read": (
        "%1: i32 = s[0]\nfor t in 3 thread {\nif 0 <= t < 1 {\n%2: i32 = s[0]\ns[0] = %0\n}\n}",
        "thread loop t",
    ),
    "the block replaces what a thread read": (
        "for t in 3 thread {\nif 0 <= t < 1 {\n%1: i32 = s[0]\n}\n}\n%2: i32 = s[0]\ns[0] = %0",
        "thread loop t",
    ),
    "a thread replaces what its own inner threads read": (
        "for t in 3 thread {\nfor u in 2 thread {\n%1: i32 = s[t]\n}\ns[t] = %0\n}",
        "thread loop u",
    ),
    "a thread replaces what another read, behind a barrier": (
        "for t in 3 thread {\n%1: i32 = s[-1*t + 2]\nbarrier\ns[t] = %0\n}", "",
    ),
    "the barrier is in the other block": (
        "for t in 3 thread {\n%1: i32 = s[-1*t + 2]\nif 1 <= b < 2 {\nbarrier\n}\ns[t] = %0\n}",
        "thread loop t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READERS)
def test_readers_are_remembered(case: str) -> None:
    body, loop = READERS[case]
    head = "func f(y: out i32[1]) {\n%0: i32 = 1\ny[0] = %0\nfor b in 2 block {\n"
    filled = "alloc s: shared i32[3]\nfor t in 3 thread {\ns[t] = %0\nbarrier\n}\n"
    func = parse_func(f"{head}{filled}{body}\n}}\n}}")
    if not loop:
        run(func)
        return
    with pytest.raises(GraphError, match=f"and another iteration accesses it: {loop}"):
        run(func)


def test_what_independent_iterations_read_may_be_replaced_behind_them() -> None:
    text = """
        func f(y: out i32[4]) {
          for b in 2 parallel {
            alloc t: scratch i32[1]
            %0: i32 = index b + 5
            t[0] = %0
            for i in 2 parallel {
              %1: i32 = t[0]
              y[2*b + i] = %1
            }
            t[0] = %0
          }
        }
    """
    assert run(func_of(text))[0].tolist() == [5, 5, 6, 6]


def test_long_loops_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which finds the same values, and races between the parts."""
    monkeypatch.setattr("bringup.loops.evaluate._AT_ONCE", 8)
    text = """
        func f(x: in i32[40], y: out i32[40]) {
          for i in 10 parallel {
            alloc t: scratch i32[4]
            for j in 4 parallel {
              %0: i32 = x[4*i + j]
              t[j] = %0
            }
            for j in 4 parallel {
              %1: i32 = t[-1*j + 3]
              y[4*i + j] = %1
            }
          }
        }
    """
    x = np.arange(40, dtype=np.int32)
    assert run(func_of(text), x)[0].tolist() == x.reshape(10, 4)[:, ::-1].reshape(-1).tolist()
    with pytest.raises(GraphError, match="another iteration accesses it: parallel loop i"):
        run(func_of(text.replace("y[4*i + j]", "y[(4*i + j)%36]")), x)


# -- one memory for an operand and a result --------------------------------------------------------

MAP = """
    func f(x: in f32[4], y: out f32[4]) {
      for i in 4 parallel {
        %0: f32 = x[INDEX]
        %1: f32 = neg(%0)
        y[i] = %1
      }
    }
"""


def test_an_element_may_be_replaced_by_what_is_made_of_it() -> None:
    x = np.arange(4, dtype=np.float32)
    evaluate_func(func_of(MAP.replace("INDEX", "i")), [x, x])
    assert x.tolist() == [0.0, -1.0, -2.0, -3.0]


@pytest.mark.parametrize("index", ["-1*i + 3", "0", "(i + 1)%4"])
@pytest.mark.parametrize("kind", ["parallel", "unroll"])
def test_an_element_that_another_iteration_reads_must_stay(index: str, kind: str) -> None:
    x = np.arange(4, dtype=np.float32)
    func = func_of(MAP.replace("INDEX", index).replace("parallel", kind))
    verify_func(func)  # which knows nothing of memory that is shared
    with pytest.raises(GraphError, match=r"another iteration accesses it|has replaced it"):
        evaluate_func(func, [x, x])


def test_a_replaced_element_is_not_read_again() -> None:
    func = func_of(MAP.replace("INDEX", "i").replace("y[i] = %1", "y[i] = %1\n%2: f32 = x[i]"))
    x = np.arange(4, dtype=np.float32)
    evaluate_func(func, [x, x.copy()])
    with pytest.raises(GraphError, match="x is read where y has replaced it"):
        evaluate_func(func, [x, x])


@pytest.mark.parametrize(
    ("buffers", "complaint"),
    [
        ([np.zeros(4, np.float32)], "takes 2 buffers, got 1"),
        ([np.zeros(4, np.float64), np.zeros(4, np.float32)], "x: in f32[4]: got float64"),
        ([np.zeros(5, np.float32), np.zeros(4, np.float32)], "x: in f32[4]: got float32 of shape"),
        ([np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)], "x: in f32[4]: the array is not"),
    ],
)
def test_wrong_buffers_are_refused(buffers: list[Array], complaint: str) -> None:
    with pytest.raises(GraphError) as caught:
        evaluate_func(func_of(MAP.replace("INDEX", "i")), buffers)
    assert complaint in caught.value.what


def test_buffers_that_overlap_otherwise_are_refused() -> None:
    memory = np.zeros(6, np.float32)
    with pytest.raises(GraphError, match="x and y overlap in memory"):
        evaluate_func(func_of(MAP.replace("INDEX", "i")), [memory[:4], memory[1:5]])


def test_an_empty_loop_does_nothing() -> None:
    text = """
        func f(x: in f32[0], y: out f32[0]) {
          for i in 0 parallel {
            for j in 3 {
              %0: f32 = x[i]
              y[i] = %0
            }
          }
        }
    """
    assert run(func_of(text), np.zeros(0, np.float32))[0].size == 0
