"""Races are found where there are some, and only there: random programs of blocks and threads,
against every pair of accesses of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bringup.errors import GraphError
from bringup.graph.index import Axis
from bringup.kernel.ranges import expr_value, mask_value
from bringup.loops import (
    Barrier,
    For,
    Func,
    If,
    Load,
    Store,
    evaluate_func,
    parse_func,
    statements,
    verify_func,
)
from bringup.loops.form import CONCURRENT, Stmt

BLOCKS, THREADS = 2, 3

#: One step into a loop: which entry of which loop (for threads, which loop of the block), its kind,
#: and the iteration.
Step = tuple[object, str, int]


@dataclass(frozen=True)
class Access:
    """An access to one element by a work item.

    epoch: how many barriers it has come to.
    """

    element: object
    writes: bool
    path: tuple[Step, ...]
    epoch: int


@dataclass
class Recorder:
    """Runs one work item after the other and notes every access."""

    accesses: list[Access] = field(default_factory=list)
    axes: dict[Axis, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = field(default_factory=dict)
    entries: int = 0

    def run(self, body: Sequence[Stmt], path: tuple[Step, ...], epoch: int) -> int:
        """Returns how many barriers the item has come to."""
        for stmt in body:
            match stmt:
                case Barrier():
                    epoch += 1
                case If():
                    if mask_value(stmt.mask, self.axes):
                        epoch = self.run(stmt.body, path, epoch)
                case For():
                    epoch = self.loop(stmt, path, epoch)
                case Load() | Store():
                    index = int(expr_value(stmt.index, self.axes))
                    element = (stmt.buffer.name, path[: int(stmt.buffer.name == "s")], index)
                    if mask_value(stmt.mask, self.axes):
                        access = Access(element, isinstance(stmt, Store), path, epoch)
                        self.accesses.append(access)
        return epoch

    def loop(self, loop: For, path: tuple[Step, ...], epoch: int) -> int:
        self.entries += 1
        entry: object = self.entries
        if loop.kind == "thread":
            entry = loop.name, loop.axis.size
        after = epoch
        for i in range(loop.axis.size):
            self.axes[loop.axis] = np.array(i)
            step = ((entry, loop.kind, i),) if loop.kind in CONCURRENT else ()
            after = self.run(loop.body, path + step, after if not step else epoch)
        return after if loop.kind in ("thread", "serial") else epoch


def conflict(one: Access, other: Access) -> bool:
    """Whether nothing orders two accesses of one element of which one is a write."""
    if one.element != other.element or not (one.writes or other.writes):
        return False
    at = 0
    while at < min(len(one.path), len(other.path)) and one.path[at] == other.path[at]:
        at += 1
    next_steps = [access.path[at] for access in (one, other) if at < len(access.path)]
    if any(kind == "thread" for _, kind, _ in next_steps):
        return one.epoch == other.epoch
    # Iterations of one entry of a loop are beside each other, those of two entries in order.
    return len(next_steps) == 2 and next_steps[0][0] == next_steps[1][0]


def races(func: Func) -> Iterator[tuple[Access, Access]]:
    recorder = Recorder()
    recorder.run(func.body, (), 0)
    return (pair for pair in combinations(recorder.accesses, 2) if conflict(*pair))


class Growth:
    """A program grown from small numbers, so that it shrinks to few statements: mostly loads, from
    memory of an iteration of the outer loop and from that of all.

    inner: the kind of the inner loops, in blocks of threads or in independent iterations.
    """

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)
        self.lines: list[str] = []
        self.names = 0
        self.outer, self.inner = (("block", "thread"), ("parallel", "parallel"))[self.below(3) == 2]

    def below(self, limit: int) -> int:
        return next(self.numbers, 0) % limit

    def fresh(self) -> int:
        self.names += 1
        return self.names

    def index(self, loops: Sequence[str], size: int) -> str:
        loop = loops[-1 - self.below(len(loops))]
        if self.below(3) == 0:
            other, shift = [*loops, "0"][self.below(len(loops) + 1)], self.below(size)
            return f"({loop} + {other} + {shift})%{size}"
        return f"({loop})%{size}"

    def access(self, loops: Sequence[str]) -> None:
        if self.below(2):
            place = f"s[{self.index(loops, THREADS)}]"
        else:
            own = f"{THREADS}*b + " if self.below(4) else ""
            place = f"y[{own}{self.index(loops, THREADS)}]"
        self.lines.append(f"%{self.fresh()}: i32 = {place}" if self.below(4) else f"{place} = %0")

    def block(self, loops: tuple[str, ...], depth: int, *, uniform: bool) -> None:
        """uniform: whether all threads come here."""
        for _ in range(1 + self.below(3)):
            choice = self.below(10)
            if choice < 5 or depth == 0:
                self.access(loops)
            elif choice < 7:
                self.lines += ["barrier"] * (uniform and self.inner == "thread")
            elif choice < 8:
                self.nested(f"for k{self.fresh()} in 2 {{", loops, depth, uniform=uniform)
            elif choice < 9 and "u" not in loops:
                self.nested(f"for u in 2 {self.inner} {{", loops, depth, uniform=uniform)
            else:
                of = loops[self.below(2)]
                low = self.below(2)
                branch = f"if {low} <= {of} < {low + 1 + self.below(2)} {{"
                self.nested(branch, loops, depth, uniform=uniform and of == "b")

    def nested(self, head: str, loops: tuple[str, ...], depth: int, *, uniform: bool) -> None:
        inner = (*loops, head.split()[1]) if head.startswith("for") else loops
        self.lines.append(head)
        self.block(inner, depth - 1, uniform=uniform)
        self.lines.append("}")

    def func(self) -> Func:
        for _ in range(1 + self.below(3)):
            choice, size = self.below(5), (THREADS, THREADS, 2)[self.below(3)]
            if choice == 0:
                self.access(("b",))
            self.lines += ["for r in 2 {"] * (choice == 1)
            self.nested(f"for t in {size} {self.inner} {{", ("b",), 3, uniform=True)
            self.lines += ["}"] * (choice == 1)
        space = "shared" if self.inner == "thread" else "global"
        text = [
            f"func f(y: out i32[{BLOCKS * THREADS}]) {{", "%0: i32 = 1",
            f"for i in {BLOCKS * THREADS} {{", "y[i] = %0", "}",
            f"for b in {BLOCKS} {self.outer} {{", f"alloc s: {space} i32[{THREADS}]",
            f"for t in {THREADS} {self.inner} {{", "s[t] = %0",
            *["barrier"] * (self.inner == "thread"), "}",
            *self.lines, "}", "}",
        ]  # fmt: skip
        return parse_func("\n".join(text))


numbers = st.lists(st.integers(0, 59), min_size=20, max_size=80)
programs = numbers.map(lambda numbers: Growth(numbers).func())


def refusal(check: Callable[[], None]) -> str:
    """What a check has against a program."""
    try:
        check()
    except GraphError as error:
        return str(error)
    return ""


def is_decided(body: Sequence[Stmt]) -> bool:
    """Whether the verifier knows how many barriers there are: conditions hold none."""
    branches = [stmt for stmt in statements(tuple(body)) if isinstance(stmt, If)]
    return not any(isinstance(s, Barrier) for branch in branches for s in statements(branch.body))


@settings(max_examples=150)
@given(func=programs)
def test_races_are_found_where_there_are_some(func: Func) -> None:
    """Running the function, and without running it where that decides."""
    expected = next(races(func), None)
    event("a race" if expected else "none")
    said = refusal(lambda: evaluate_func(func, [np.zeros(BLOCKS * THREADS, np.int32)]))
    assert ("another iteration" in said) == bool(said) == (expected is not None), f"{func}\n{said}"
    said = refusal(lambda: verify_func(func))
    assert ("rule races" in said) == bool(said), said
    if is_decided(func.body) or said:
        assert bool(said) == (expected is not None), f"{func}\n{said}\n{expected}"
