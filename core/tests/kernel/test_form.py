"""The form's rules: each is shown to find the kernel that breaks it, by the verifier and, where it
runs, by the interpreter.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from bringup.errors import GraphError
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.kernel.parser import parse_kernel
from bringup.kernel.verify import KERNEL_RULES, verify_kernel

Array = np.ndarray[Any, Any]

#: Rows summed and divided by their sums, squares kept in a tile.
RIGHT = inspect.cleandoc(
    """
    kernel k
      b0: in f32[2,3]
      b1: out f32[2,3]
      b2: out f32[2]
      b3: tile f32[3]
      grid a0[2]
      stage 0 over a1[3]
        graph squares() {
          %0: f32[] = load() {buffer=0, dtype=f32, index=index<3*a0[2] + a1[3]>, mask=()}
          %1: f32[] = mul(%0, %0)
          return %1, %1
        }
        fold.add f32
        store b3[a1[3]]
      stage 1 over ()
        graph sums(%0: f32[]) {
          return %0
        }
        store b2[a0[2]]
      stage 2 over a1[3]
        graph parts(%0: f32[]) {
          %1: f32[] = load() {buffer=3, dtype=f32, index=index<a1[3]>, mask=()}
          %2: f32[] = div(%1, %0)
          return %2
        }
        store b1[3*a0[2] + a1[3]]
    """
)

# Rule, a line, what stands there instead, what is said.
BROKEN: list[tuple[str, str, str, str]] = [
    ("axes", "grid a0[2]", "grid a5[2]", "not numbered from a0"),
    ("axes", "stage 2 over a1[3]", "stage 2 over a2[3]", "not numbered from a1"),
    ("bodies", "graph sums(%0: f32[])", "graph sums(%0: f64[])", "the registers before it"),
    ("bodies", "mul(%0, %0)", "reshape(%0) {shape=()}", "not an op of a kernel"),
    ("bodies", "store b1[3*a0[2] + a1[3]]", "", "1 outputs and 0 sinks"),
    ("sinks", "fold.add f32", "fold.xor f32", "fold.xor"),
    ("sinks", "fold.add f32", "fold.and f32", "fold.and"),
    ("sinks", "fold.add f32", "fold.max f32 product", "a product is summed"),
    ("sinks", "store b2[a0[2]]", "store b0[a0[2]]", "an in buffer is only read"),
    ("sinks", "store b2[a0[2]]", "store b9[a0[2]]", "there is no b9"),
    ("sinks", "b2: out f32[2]", "b2: out f64[2]", "gets a f32"),
    ("accesses", "load() {buffer=0", "load() {buffer=2", "an out buffer is only written"),
    ("accesses", "load() {buffer=0", "load() {buffer=8", "which does not exist"),
    ("accesses", "b0: in f32[2,3]", "b0: in i32[2,3]", "loads f32 from b0"),
    ("indices", "store b2[a0[2]]", "store b2[a1[3]]", "which no loop around it has"),
    ("indices", "store b2[a0[2]]", "store b2[d0[0:1]]", "no loaded integers"),
    (
        "limits",
        "stage 0 over a1[3]",
        "stage 0 over a1[3] if a7[3] < a0[2] + 1",
        "it has no such axis",
    ),
    (
        "limits",
        "stage 0 over a1[3]",
        "stage 0 over a1[3] if a1[3] < a1[3] + 1",
        "a1[3] is no grid axis",
    ),
    ("limits", "0 over a1[3]", "0 over a1[3] if a1[3] < 2 and a1[3] < 3", "two limits of one"),
    ("limits", "stage 0 over a1[3]", "stage 0 over a1[3] if a1[3] < d0[1:3]", "a loaded index"),
    (
        "limits",
        "stage 0 over a1[3]",
        "stage 0 over a1[3] if a1[3] < a0[2]",
        "there may be no iteration",
    ),
    ("ranges", "index<3*a0[2] + a1[3]>", "index<3*a0[2] + a1[3] + 1>", "reads element 6 of b0"),
    ("ranges", "index<3*a0[2] + a1[3]>", "index<a0[2] + -1*a1[3]>", "reads element -"),
    ("ranges", "store b2[a0[2]]", "store b2[2*a0[2]]", "writes element 2 of b2"),
    ("outputs", "store b2[a0[2]]", "store b2[0]", "written 2 times"),
    ("outputs", "store b2[a0[2]]", "store b2[a0[2]] if 0 <= a0[2] < 1", "written 0 times"),
    (
        "outputs",
        "over a1[3]\n    graph p",
        "over a1[3] if a1[3] < a0[2] + 2\n    graph p",
        "0 times",
    ),
    ("outputs", "b2: out f32[2]", "b2: out f32[3]", "2 iterations write 3 elements"),
    ("tiles", "b3: tile f32[3]", "b3: tile f32[4]", "3 iterations write 4 elements"),
    ("tiles", "store b3[a1[3]]", "store b3[0]", "written 3 times"),
    ("tiles", "0 over a1[3]", "0 over a1[3] if a1[3] < a0[2] + 2", "whose loops end early"),
    ("tiles", "b3: tile f32[3]\n", "b3: tile f32[3]\n  b4: tile f32[3]\n", "written by 0 stages"),
    ("tiles", "b3: tile f32[3]", "b3: tile f32[6]", "3 iterations write 6 elements"),
]
#: What only the interpreter sees, or sees in another way.
CAUGHT_RUNNING = {
    "ranges": ("is read in stage", "is written in stage"),
    "outputs": ("is written by point", "never written", "several times"),
    "tiles": ("several times", "was not written"),
}


def changed(line: str, instead: str) -> Kernel:
    assert line in RIGHT
    text = RIGHT.replace(line, instead, 1)
    return parse_kernel("\n".join(row for row in text.split("\n") if row.strip()))


def outside(kernel: Kernel) -> list[Array]:
    decls = [d for d in kernel.buffers if d.role != "tile"]
    return [np.arange(d.type.size, dtype=d.type.dtype.numpy).reshape(d.type.shape) for d in decls]


def test_the_right_one_is_right() -> None:
    kernel = parse_kernel(RIGHT)
    verify_kernel(kernel)
    x, parts, sums = outside(kernel)
    evaluate_kernel(kernel, [x, parts, sums])
    assert sums.tolist() == [5.0, 50.0]
    assert parts.tolist() == (x * x / sums[:, None]).astype(np.float32).tolist()


def test_a_loop_ends_early_where_a_limit_says_so() -> None:
    text = """
        kernel k
          b0: in f32[7]
          b1: out f32[3]
          grid a0[3]
          stage 0 over a1[3] if a1[3] < -3*a0[3] + 7
            graph sums() {
              %0: f32[] = load() {buffer=0, dtype=f32, index=index<3*a0[3] + a1[3]>, mask=()}
              return %0
            }
            fold.add f32
          stage 1 over ()
            graph last(%0: f32[]) {
              return %0
            }
            store b1[a0[3]]
    """
    kernel = parse_kernel(inspect.cleandoc(text))
    assert str(kernel) == inspect.cleandoc(text)
    verify_kernel(kernel)
    x, sums = outside(kernel)
    evaluate_kernel(kernel, [x, sums])
    assert sums.tolist() == [3.0, 12.0, 6.0]
    without = parse_kernel(str(kernel).replace(" if a1[3] < -3*a0[3] + 7", ""))
    for check in (verify_kernel, lambda k: evaluate_kernel(k, [x, sums])):
        with pytest.raises(GraphError, match="element 7 of b0"):
            check(without)


@pytest.mark.parametrize(("rule", "line", "instead", "complaint"), BROKEN)
def test_the_verifier_names_the_rule(rule: str, line: str, instead: str, complaint: str) -> None:
    with pytest.raises(GraphError) as caught:
        verify_kernel(changed(line, instead))
    assert caught.value.fix is not None
    assert caught.value.fix.startswith(f"rule {rule}: ")
    assert complaint in caught.value.what
    assert caught.value.what.startswith("kernel k: ")


def test_every_rule_is_broken_above_or_below() -> None:
    assert {rule for rule, *_ in BROKEN} | {"buffers"} == {r.name for r in KERNEL_RULES}


def test_a_kernel_without_outputs_is_none() -> None:
    text = "kernel k\n  b0: in f32[2]\n  grid a0[2]"
    with pytest.raises(GraphError, match="nothing is written"):
        verify_kernel(parse_kernel(text))


@pytest.mark.parametrize(
    ("rule", "line", "instead"),
    # A tile with elements to spare harms no run.
    [(r, a, b) for r, a, b, _ in BROKEN if r in CAUGHT_RUNNING and not b.startswith("b3: tile")],
)
def test_the_interpreter_catches_it_too(rule: str, line: str, instead: str) -> None:
    kernel = changed(line, instead)
    with pytest.raises(GraphError) as caught:
        evaluate_kernel(kernel, outside(kernel))
    assert any(part in caught.value.what for part in CAUGHT_RUNNING[rule])


def test_a_tile_read_before_it_is_written() -> None:
    kernel = parse_kernel(
        RIGHT.replace("buffer=0, ", "buffer=3, ").replace("index<3*a0[2] + a1[3]>", "index<a1[3]>")
    )
    with pytest.raises(GraphError, match="reads tile b3, which stage 0 writes"):
        verify_kernel(kernel)
    with pytest.raises(GraphError, match="reads tile b3 where it was not written"):
        evaluate_kernel(kernel, outside(kernel))


# -- one memory for an operand and a result --------------------------------------------------------

MAP = inspect.cleandoc(
    """
    kernel k
      b0: in f32[4]
      b1: out f32[4]
      grid a0[4]
      stage 0 over ()
        graph body() {
          %0: f32[] = load() {buffer=0, dtype=f32, index=index<INDEX>, mask=()}
          %1: f32[] = neg(%0)
          return %1
        }
        store b1[a0[4]]
    """
)


def test_an_element_may_be_replaced_by_what_is_made_of_it() -> None:
    x = np.arange(4, dtype=np.float32)
    evaluate_kernel(parse_kernel(MAP.replace("INDEX", "a0[4]")), [x, x])
    assert x.tolist() == [0.0, -1.0, -2.0, -3.0]


@pytest.mark.parametrize("index", ["-1*a0[4] + 3", "0", "(a0[4] + 1)%4"])
def test_an_element_that_another_point_reads_must_stay(index: str) -> None:
    x = np.arange(4, dtype=np.float32)
    kernel = parse_kernel(MAP.replace("INDEX", index))
    verify_kernel(kernel)
    with pytest.raises(GraphError, match=r"overwrites element|has replaced it"):
        evaluate_kernel(kernel, [x, x])


def test_buffers_that_overlap_otherwise_are_refused() -> None:
    memory = np.zeros(6, np.float32)
    with pytest.raises(GraphError, match="b0 and b1 overlap in memory"):
        evaluate_kernel(parse_kernel(MAP.replace("INDEX", "a0[4]")), [memory[:4], memory[1:5]])


@pytest.mark.parametrize(
    ("buffers", "complaint"),
    [
        ([np.zeros(4, np.float32)], "takes 2 buffers, got 1"),
        ([np.zeros(4, np.float64), np.zeros(4, np.float32)], "b0 is in f32[4], got float64"),
        ([np.zeros(5, np.float32), np.zeros(4, np.float32)], "b0 is in f32[4], got float32"),
        ([np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)], "b0 is not contiguous"),
    ],
)
def test_wrong_buffers_are_refused(buffers: list[Array], complaint: str) -> None:
    with pytest.raises(GraphError) as caught:
        evaluate_kernel(parse_kernel(MAP.replace("INDEX", "a0[4]")), buffers)
    assert complaint in caught.value.what
