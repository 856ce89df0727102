"""What is used once its device is closed.

Core closes a device at the end of its process, behind everything that was made on it; what runs
later still, such as an exit handler that saves a result, meets a closed device.  So this is also
a process of its own: ``python -m … name seed``.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup.errors import DeviceError
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime import second
from bringup_conformance.runtime.bench import Bench, Broken, Promise

_N = 300
_MODULE = "bringup_conformance.runtime.closing"


class _Left:
    """What a process still has of a device."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        x, one = bench.ramp(_N), np.array(1, bench.dtype.numpy)
        array, unused = bench.array(x), bench.array(x)
        step, taking = (bench.jit(lambda a: bu.flip(a) + 1, donate_argnums=d) for d in ((), 0))
        result, stepped = step(array), np.flip(x) + one
        bench.host(taking(bench.array(x)))
        waiting = array + 1
        self.uses: tuple[tuple[str, Callable[[], Any], Array], ...] = (
            ("an array", lambda: array, x),
            ("a result", lambda: result, stepped),
            ("work that nobody looked at", lambda: waiting, x + one),
            ("a program", lambda: step(array), stepped),
            ("a program, with new memory,", lambda: step(x), stepped),
            ("a program that takes its input", lambda: taking(unused), stepped),
            ("a new array", lambda: bench.array(x), x),
        )

    def use(self) -> None:
        """Raises Broken for a value that is neither right nor refused."""
        for what, made, right in self.uses:
            try:
                found = self.bench.host(made())
            except DeviceError:
                continue
            self.bench.equal(found, right, f"{what} of a closed device")


def _after_close(bench: Bench) -> None:
    """In a process that ends; or on a device of its own, where no other process finds the
    backend.
    """
    if bench.by_name is not None:
        said = second.wait(second.started(_MODULE, bench.by_name, str(bench.facts.seed)))
        bench.require(not said, f"in a process that ends: {said}")
        return
    try:
        target = DeviceTarget.of(bench.open.backend, bench.open.index)
    except DeviceError as error:
        raise NotOffered(f"it is not opened a second time: {error.what}") from None
    other = Bench(bench.facts, target)
    left = _Left(other)
    other.device.close()
    left.use()


def _end(made: list[_Left]) -> None:
    """Tell what is wrong with what is left."""
    try:
        for each in made:
            each.use()
    except Broken as broken:
        second.tell(broken.problem.what)
    except Exception as error:  # noqa: BLE001  (told where somebody waits)
        second.tell(f"{type(error).__name__}: {error}")
    else:
        second.tell("")


PROMISES: tuple[Promise, ...] = (Promise(("lifetime.after-close",), _after_close),)

if __name__ == "__main__":
    second.begin()
    left: list[_Left] = []
    # Exit handlers of this kind run last in, first out: this one behind the device's.
    weakref.finalize(_Left, _end, left)
    left.append(_Left(second.bench_of(sys.argv[1], int(sys.argv[2]))))
