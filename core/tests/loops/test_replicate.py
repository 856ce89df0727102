"""Threads that run all statements of a block and share some of its loops: values and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import assert_equal_values

from bringup.errors import ScheduleError
from bringup.loops import Func, parse_func, verify_func
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
        for line in body:
            for word, text in words.items():
                line = line.replace(word, text)
            self.lines.append(line)
        self.lines += ["}", "}"]

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
