"""Threads that run all statements of a block and share some of its loops: values and refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import assert_equal_values

from bringup.errors import GraphError, ScheduleError
from bringup.loops import Func, evaluate_func, parse_func, verify_func
from bringup.loops.schedule import Schedule, apply

#: Iterations that threads share, and those of a loop within.
SIZE, INNER = 8, 3


def _sum(terms: list[tuple[int, str]], by: int = 1, const: int = 0) -> str:
    """An index expression, multiplied."""
    words = [f"{by * c}*{name}" for c, name in terms]
    return " + ".join([*words, str(const)])


class _Block:
    """The text of a block of random stages, each of which may use what came before.

    nest: loops round its body.  point: the number of a point of the nest.
    """

    def __init__(self, numbers: list[int], nest: tuple[tuple[str, int, str], ...]) -> None:
        self.numbers = iter(numbers)
        self.nest = nest
        self.lines: list[str] = []
        self.outputs: list[tuple[str, int]] = []
        self.loops: list[str] = []
        self.scalars: list[str] = []
        self.shared: list[str] = []
        self.count = 0
        self.point, self.points = [(1, "b")], 2
        for name, size, _ in nest:
            self.point = [*((c * size, other) for c, other in self.point), (1, name)]
            self.points *= size

    def below(self, limit: int) -> int:
        return next(self.numbers, 0) % limit

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def scalar(self) -> str:
        """A scalar that the block has, made where there is none."""
        if not self.scalars:
            name = f"%c{self.fresh()}"
            self.lines.append(f"{name}: i32 = {self.below(5)}")
            self.scalars.append(name)
        return self.scalars[self.below(len(self.scalars))]

    def loop(self, body: list[str], *, may_end: bool = True) -> None:
        """Statements for each iteration of a loop that threads share.

        PLACE is the number of an iteration, ELEMENT that of one of a point, BACK counts down.
        """
        number = self.fresh()
        name = f"s{number}"
        self.loops.append(name)
        end = f" until {SIZE - 2}" if may_end and self.below(3) == 0 else ""
        self.lines += [f"for {name} in {SIZE}{end} {{", f"for u{number} in {INNER} {{"]
        place = [(INNER, name), (1, f"u{number}")]
        whole = SIZE * INNER
        words = {
            "PLACE": _sum(place),
            "BACK": _sum(place, -1, whole - 1),
            "ELEMENT": f"{_sum(self.point, whole)} + {_sum(place)}",
            "%v": f"%v{number}_",
        }
        text = "\n".join(body)
        for word, instead in words.items():
            text = text.replace(word, instead)
        self.lines += [text, "}", "}"]

    def element(self) -> list[str]:
        """The statements that compute %vb of one iteration."""
        op, scalar = ("add", "max", "sub")[self.below(3)], self.scalar()
        return ["%va: i32 = x[ELEMENT]", f"%vb: i32 = {op}(%va, {scalar})"]

    def fold(self) -> None:
        fold, start = (("add", 0), ("max", -(1 << 31)))[self.below(2)]
        number = self.fresh()
        self.lines += [f"alloc r{number}: register i32[1]", f"%n{number}: i32 = {start}"]
        self.lines.append(f"r{number}[0] = %n{number}")
        for _ in range(1 + self.below(2)):
            self.loop([*self.element(), f"r{number}[0] {fold}= %vb"])
        self.lines.append(f"%r{number}: i32 = r{number}[0]")
        self.scalars.append(f"%r{number}")

    def tile(self) -> None:
        """What one loop writes another one reads, in its order or from the end."""
        name = f"t{self.fresh()}"
        self.lines.append(f"alloc {name}: scratch i32[{SIZE * INNER}]")
        self.loop([*self.element(), f"{name}[PLACE] = %vb"], may_end=False)
        place = ("PLACE", "BACK")[self.below(2)]
        self.shared += [name] if place == "BACK" else []
        self.output([f"%vb: i32 = {name}[{place}]"])

    def output(self, element: list[str]) -> None:
        name = f"y{self.fresh()}"
        self.outputs.append((name, self.points * SIZE * INNER))
        self.loop([*element, f"{name}[ELEMENT] = %vb"])

    def once(self) -> None:
        number, scalar = self.fresh(), self.scalar()
        self.outputs.append((f"z{number}", self.points))
        self.lines.append(f"%z{number}: i32 = add({scalar}, {scalar})")
        self.lines.append(f"z{number}[{_sum(self.point)}] = %z{number}")

    def func(self) -> Func:
        for _ in range(2 + self.below(4)):
            kind = self.below(4)
            if kind == 0:
                self.output(self.element())
            else:
                (self.fold, self.tile, self.once)[kind - 1]()
        self.output(self.element())
        inout = ", ".join(f"{name}: inout i32[{size}]" for name, size in self.outputs)
        head = [f"func f(x: in i32[{self.points * SIZE * INNER}], {inout}) {{"]
        head.append("for b in 2 block {")
        head += [f"for {name} in {size} {kind} {{" for name, size, kind in self.nest]
        return parse_func("\n".join([*head, *self.lines, *["}"] * (2 + len(self.nest))]))

    def steps(self, lanes: int) -> Schedule:
        tiles = "shared" if self.shared else "private"
        return Schedule.parse(f"replicate b t {' '.join(self.loops)} lanes={lanes} tiles={tiles}")


NESTS = ((), (("i", 3, "thread"),), (("v", 2, "vector"),), (("i", 2, "thread"), ("v", 2, "vector")))


@given(
    st.lists(st.integers(0, 719), min_size=10, max_size=60),
    st.sampled_from(NESTS),
    st.sampled_from((1, 2, 8)),
)
def test_random_blocks_keep_values(
    numbers: list[int], nest: tuple[tuple[str, int, str], ...], lanes: int
) -> None:
    block = _Block(numbers, nest)
    func = block.func()
    verify_func(func)
    after = apply(func, block.steps(lanes))
    assert str(parse_func(str(after))) == str(after)
    assert_equal_values(func, after)


ROWS = """
func f(x: in f32[16], y: out f32[16]) {
  for b in 2 block {
    alloc t: scratch f32[8]
    alloc r: register f32[1]
    %0: f32 = -inf
    r[0] = %0
    for i in 8 {
      %1: f32 = x[8*b + i]
      r[0] max= %1
      t[i] = %1
    }
    %2: f32 = r[0]
    for j in 8 {
      %3: f32 = t[j]
      %4: f32 = sub(%3, %2)
      y[8*b + j] = %4
    }
  }
}"""
# What is changed in the text, the steps, and what the last of them says.
REFUSED = {
    "no block": (
        ("in 2 block", "in 2"),
        "replicate b t i j",
        "serial loop b is no block and no thread of one",
    ),
    "no loop beside the others": (
        ("", ""),
        "split i i.o k 2\nreplicate b t k j",
        "does not hold k",
    ),
    "several lengths": (("", ""), "split i i.o k 2\nreplicate b t i.o j", "have 4, 8 iterations"),
    "lanes": (("", ""), "replicate b t i j lanes=16", "16 of 8 threads exchange registers"),
    "a word": (("", ""), "replicate b t i j tiles=global", "tiles cannot be 'global'"),
    "threads in threads": (
        ("in 8 {", "in 8 thread {"),
        "replicate b t j",
        "threads in loop b already",
    ),
    "a parallel loop": (
        ("for j in 8 {", "for j in 8 parallel {"),
        "replicate b t i",
        "parallel loop j would be in a thread loop",
    ),
    "a fold that begins with something else": (
        ("-inf", "0.0"),
        "replicate b t i j",
        "fold into r, which does not begin neutral",
    ),
    "a fold of two kinds": (
        ("r[0] max= %1", "r[0] max= %1\nr[0] min= %1"),
        "replicate b t i j",
        "do more with r than folds of one kind",
    ),
    "an order": (
        ("y[8*b + j]", "y[8*b]"),
        "replicate b t i j",
        "iterations that threads share meet at elements of y",
    ),
    "what another thread has": (
        ("t[j]", "t[-1*j + 7]"),
        "replicate b t i j",
        "a thread needs elements of t that another one has",
    ),
    "what another thread has, in no loop": (
        ("%2: f32 = r[0]", "%5: f32 = t[3]\n%2: f32 = r[0]"),
        "replicate b t i j",
        "a thread needs elements of t that another one has",
    ),
    "memory of the block for each of its threads": (
        ("for b in 2 block {", "for c in 1 block {\nfor b in 2 thread {"),
        "replicate b t i j",
        "would share memory with those of others",
    ),
    "a kept buffer that is written": (("", ""), "keep y b", "it is written in between"),
    "a kept buffer that is read once": (("", ""), "keep x b", "no two nests touch the same"),
    "a kept buffer of other elements": (
        ("t[j]", "t[-1*j + 7]"),
        "keep t b",
        "nests touch other elements of it",
    ),
    "a kept buffer of one element": (
        ("t[j]", "t[0]"),
        "keep t b",
        "nests touch other elements of it",
    ),
    "a loop of registers that runs side by side": (
        ("in 8 {", "in 8 parallel {"),
        "keep t b",
        "loop i is parallel",
    ),
    "the name of a loop": (("", ""), "add_loop b", "a loop b exists already"),
    "shared memory of an iteration": (
        ("for b in 2 block {", "for c in 1 block {\nfor b in 2 parallel {"),
        "set_space t shared\nbind b thread",
        "iterations of loop b would share one t",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    (old, new), steps, message = REFUSED[name]
    assert old in ROWS
    text = ROWS.replace(old, new)
    if "for c in" in text:
        text += "\n}"
    *before, last = Schedule.parse(steps).steps
    func = apply(parse_func(text), before)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        last(func)


def test_what_one_thread_needs_alone_it_computes() -> None:
    """Scalars that only go to memory that all see are those of the first thread."""
    text = ROWS.replace(
        "y[8*b + j] = %4\n    }", "y[8*b + j] = %4\n    }\n%5: f32 = neg(%2)\nz[b] = %5"
    )
    func = parse_func(text.replace("y: out f32[16]", "y: out f32[16], z: out f32[2]"))
    after = apply(func, Schedule.parse("replicate b t i j lanes=8"))
    found = str(after).split("if 0 <= t < 1 {")[1].split()
    assert found == ["%5:", "f32", "=", "neg(%2)", "z[b]", "=", "%5", "}", "}", "}", "}"]
    assert_equal_values(func, after)


def test_threads_that_are_not_there_come_to_no_barrier() -> None:
    """An early end of the only thread loop of a block says how many threads there are."""
    text = """
    func f(x: in f32[20], y: out f32[20]) {
      for b in 2 block {
        alloc s: shared f32[16]
        for t in 16 until -16*b + 20 thread {
          %0: f32 = x[16*b + t]
          s[t] = %0
          barrier
          %1: f32 = s[0]
          y[16*b + t] = %1
        }
      }
    }"""
    func = parse_func(text)
    verify_func(func)
    x, y = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    evaluate_func(func, [x, y])
    assert y.tolist() == [0.0] * 16 + [16.0] * 4
    other = parse_func(text.replace("barrier", "if 0 <= t < 2 {\nbarrier\n}"))
    with pytest.raises(GraphError, match="only some threads of a block come to this barrier"):
        evaluate_func(other, [x, y])
