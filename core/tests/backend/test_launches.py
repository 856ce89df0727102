"""What a launch costs in Python on devices that run step by step, and which step it serves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent))

from test_adapters import ARRAYS, HERE, Chip, T, Toy, V, X, Y, Z, negation, op, program

from bringup.backend import BufferView, step_locator
from bringup.backend.adapters_run import recording_steps, running_at
from bringup.errors import Location
from bringup.kernel.form import Kernel
from bringup.program.program import KernelStep

ELSEWHERE = Location("other.py", 3, "g")


def calls_of_python(call: Callable[[], object]) -> int:
    """How many functions written in Python run meanwhile."""
    count = 0

    def seen(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


class Idle(Chip):
    """Computes nothing, so that only what stands round a launch is counted."""

    def launch(self, loaded: Any, kernel: Kernel, views: list[BufferView]) -> None:
        self.events.append("launch")


def test_a_launch_is_three_calls_of_python() -> None:
    """``launch``, the question whether somebody observes it, and the list of its views, which is a
    call before Python 3.12.  What a program costs by itself is counted apart.
    """
    chip, kernels = Idle(), 40
    pairs = islice(pairwise([X, *[T, Z] * kernels]), kernels)
    steps = [KernelStep(negation("k0"), pair, HERE) for pair in pairs]
    few, run = (chip.compile(program(s, arena_bytes=128)) for s in (steps[:2], steps))
    x = chip.put(ARRAYS[0])
    for each in (few, run):
        each([x])
    chip.events.clear()
    more = calls_of_python(lambda: run([x])) - calls_of_python(lambda: few([x]))
    assert chip.events == ["launch"] * (kernels + 2)
    assert more <= 3 * (kernels - 2)


def test_a_step_can_be_asked_for_later() -> None:
    seen: list[Any] = []

    def spy(x: Any, y: Any) -> Any:
        seen.append(step_locator())
        return x + y

    toy, step, record = Toy(add=spy), op("add", [X, Y], Z), list[object]()
    with running_at(lambda _: ELSEWHERE), recording_steps(record):
        [z] = toy.compile(program([step]))([toy.put(a) for a in ARRAYS])
    assert np.array_equal(toy.take(z, V), ARRAYS[0] + ARRAYS[1])
    assert record == []
    (locate,) = seen
    located = locate()
    assert located == step
    assert located.location is ELSEWHERE
    assert record[0] is located
    assert step_locator()() is None
