"""Random orders of all that a device does, against a model of what its memory holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from bringup.backend.device import Handle
from bringup.records import record
from bringup.runtime.compiled import Compiled
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import DeviceFixture, Handles
from bringup_conformance.runtime.programs import long_chain

#: Elements of every value: with a tail for any vector.
_N = 301
#: Most values alive at once.
_MOST = 12
#: Seconds for finding a shorter order of steps.
_SHRINKING = 5.0


@record
class _Action:
    """A program with what it does to the model.

    takes: operands.  donated: those it takes for itself.
    """

    name: str
    compiled: Compiled
    reference: Callable[..., tuple[Array, ...]]
    takes: int
    donated: frozenset[int] = frozenset()


def explore(dut: DeviceFixture, examples: int, steps: int) -> str | None:
    """The shortest order of steps found after which memory is not what it should be, and what is
    wrong; or None.
    """
    actions = _actions(dut)
    failed = _Failed()

    class Machine(_Machine):
        def __init__(self) -> None:
            super().__init__(dut, actions, failed)

    try:
        run_state_machine_as_test(
            seed(dut.choices("machine").integer(0, 1 << 32))(Machine),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                database=None,
                deadline=None,
                derandomize=False,  # the seed decides
                verbosity=Verbosity.quiet,
                report_multiple_bugs=False,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
    except Exception:
        if not failed.told:
            raise
        return min(failed.told, key=len)
    return None


@dataclass(slots=True)
class _Failed:
    """What went wrong in the orders tried.

    since: when it did for the first time; some time after that, shorter orders are not looked for.
    """

    told: list[str] = field(default_factory=list)
    since: float = 0.0

    def add(self, what: str) -> None:
        """One more."""
        self.since = self.since or time.monotonic()
        self.told.append(what)

    @property
    def late(self) -> bool:
        """Whether to leave it at what was found."""
        return bool(self.told) and time.monotonic() - self.since > _SHRINKING


class _Wrong(Exception):
    """Memory does not hold what it should."""


def _actions(dut: DeviceFixture) -> tuple[_Action, ...]:
    type_ = dut.type(_N)
    rounds = dut.count(24, 4)
    one, two = (np.array(n, dut.dtype.numpy) for n in (1, 2))

    def chained(x: Array) -> tuple[Array, ...]:
        for _ in range(rounds):
            x = np.flip(x) + one
        return (x,)

    def slow(x: Any) -> Any:
        return long_chain(dut, x, rounds)

    def both(x: Any, y: Any) -> Any:
        return x - y, y

    return (
        _Action("next", dut.lower(lambda x: x + 1, type_), lambda x: (x + one,), 1),
        _Action("slow", dut.lower(slow, type_), chained, 1),
        _Action("both", dut.lower(both, type_, type_), lambda x, y: (x - y, y), 2),
        _Action(
            "donating",
            dut.lower(lambda x: x + 2, type_, donate=0),
            lambda x: (x + two,),
            1,
            frozenset({0}),
        ),
    )


class _Machine(RuleBasedStateMachine):
    """Every rule does one thing at the seam and the same to arrays of the host."""

    def __init__(self, dut: DeviceFixture, actions: tuple[_Action, ...], failed: _Failed) -> None:
        super().__init__()
        if failed.late:
            reject()
        self.fixture = dut
        self.actions = actions
        self.failed = failed
        self.held = Handles(dut.device)
        self.live: list[tuple[int, Handle, Array]] = []
        self.made = 0
        self.steps: list[str] = []

    def teardown(self) -> None:
        """Look at all that is left, then give it back."""
        try:
            for number, handle, right in self.live:
                self._look(number, handle, right)
        finally:
            self.live.clear()
            self.held.close()

    @rule(value=st.integers(0, 9))
    @precondition(lambda self: len(self.live) < _MOST)
    def alloc(self, value: int) -> None:
        """New memory, filled from memory of the host that is overwritten at once."""
        right = self.fixture.small(_N, seed=value) + np.array(value, self.fixture.dtype.numpy)
        handle = self.held.alloc(right.nbytes)
        self._fill(handle, right)
        self._keep("alloc", handle, right)

    @rule(at=st.integers(0, 99), value=st.integers(0, 9), length=st.integers(0, _N))
    @precondition(lambda self: bool(self.live))
    def upload(self, at: int, value: int, length: int) -> None:
        """Some first elements of a value."""
        number, handle, right = self._at(at)
        data = self.fixture.small(_N, seed=100 + value)[:length]
        self._fill(handle, data)
        right[:length] = data
        self.steps.append(f"upload {length} to {number}")

    @rule(to=st.integers(0, 99), at=st.integers(0, 99), length=st.integers(0, _N))
    @precondition(lambda self: len(self.live) > 1)
    def copy(self, to: int, at: int, length: int) -> None:
        """Some first elements of a value to another one."""
        (target, into, left), (source, handle, right) = self._at(to), self._at(at)
        if target == source:
            return
        self.fixture.device.copy(into, handle, length * self.fixture.dtype.itemsize)
        left[:length] = right[:length]
        self.steps.append(f"copy {length} from {source} to {target}")

    @rule(which=st.integers(0, 3), at=st.integers(0, 99), other=st.integers(0, 99))
    @precondition(lambda self: 0 < len(self.live) < _MOST)
    def launch(self, which: int, at: int, other: int) -> None:
        """A program on one value or two, which may be the same."""
        action = self.actions[which]
        chosen = [self._at(at), self._at(other)][: action.takes]
        results = self.held.run(action.compiled, [h for _, h, _ in chosen], action.donated)
        right = action.reference(*(x.copy() for _, _, x in chosen))
        numbers = [n for n, _, _ in chosen]
        taken = {numbers[i] for i in action.donated}
        self.live = [entry for entry in self.live if entry[0] not in taken]
        for handle, array in zip(results, right, strict=True):
            self._keep(f"{action.name} of {numbers}", handle, array.copy())

    @rule(at=st.integers(0, 99))
    @precondition(lambda self: bool(self.live))
    def free(self, at: int) -> None:
        """A value that nobody needs; queued work may."""
        number, handle, _ = entry = self._at(at)
        self.live = [e for e in self.live if e is not entry]
        self.held.free(handle)
        self.steps.append(f"free {number}")

    @rule(at=st.integers(0, 99))
    @precondition(lambda self: bool(self.live))
    def download(self, at: int) -> None:
        """A value is what the model says."""
        self._look(*self._at(at))

    @rule()
    def synchronize(self) -> None:
        """Wait for all work."""
        self.fixture.device.synchronize()
        self.steps.append("synchronize")

    @rule(milliseconds=st.integers(0, 2))
    def pause(self, milliseconds: int) -> None:
        """Let the queue run on."""
        time.sleep(milliseconds / 1000)
        self.steps.append("pause")

    def _at(self, at: int) -> tuple[int, Handle, Array]:
        return self.live[at % len(self.live)]

    def _keep(self, what: str, handle: Handle, right: Array) -> None:
        self.live.append((self.made, handle, right))
        self.steps.append(f"{self.made} = {what}")
        self.made += 1

    def _fill(self, handle: Handle, data: Array) -> None:
        source = data.copy()
        self.held.fill(handle, source)
        source[...] = 55

    def _look(self, number: int, handle: Handle, right: Array) -> None:
        self.steps.append(f"download {number}")
        actual = self.held.get(handle, self.fixture.type(_N))
        wrong = np.flatnonzero(actual != right)
        if wrong.size:
            first = int(wrong[0])
            what = (
                f"after {'; '.join(self.steps)}: {wrong.size} of {_N} elements differ, the first"
                f" at {first}: {actual[first]}, not {right[first]}"
            )
            self.failed.add(what)
            raise _Wrong(what)
