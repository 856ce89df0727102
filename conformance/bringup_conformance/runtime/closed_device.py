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
from bringup_conformance.runtime import second_process
from bringup_conformance.runtime.fixture import CheckFailed, ContractChecks, DeviceFixture

CHECKS = ContractChecks()

_N = 300
_MODULE = "bringup_conformance.runtime.closed_device"


class _Left:
    """What a process still has of a device."""

    def __init__(self, dut: DeviceFixture) -> None:
        self.fixture = dut
        x, one = dut.ramp(_N), np.array(1, dut.dtype.numpy)
        array, unused = dut.array(x), dut.array(x)
        step, taking = (dut.jit(lambda a: bu.flip(a) + 1, donate_argnums=d) for d in ((), 0))
        result, stepped = step(array), np.flip(x) + one
        dut.host(taking(dut.array(x)))
        waiting = array + 1
        self.uses: tuple[tuple[str, Callable[[], Any], Array], ...] = (
            ("an array", lambda: array, x),
            ("a result", lambda: result, stepped),
            ("work that nobody looked at", lambda: waiting, x + one),
            ("a program", lambda: step(array), stepped),
            ("a program, with new memory,", lambda: step(x), stepped),
            ("a program that takes its input", lambda: taking(unused), stepped),
            ("a new array", lambda: dut.array(x), x),
        )

    def use(self) -> None:
        """Raises CheckFailed for a value that is neither right nor refused."""
        for what, made, right in self.uses:
            try:
                actual = self.fixture.host(made())
            except DeviceError:
                continue
            self.fixture.equal(actual, right, f"{what} of a closed device")


@CHECKS.shows("lifetime.after-close")
def _after_close(dut: DeviceFixture) -> None:
    """In a process that ends; or on a device of its own, where no other process finds the
    backend.
    """
    if dut.by_name is not None:
        said = second_process.wait(second_process.started(_MODULE, dut.by_name, str(dut.info.seed)))
        dut.require(not said, f"in a process that ends: {said}")
        return
    try:
        target = DeviceTarget.of(dut.open.backend, dut.open.index)
    except DeviceError as error:
        raise NotOffered(f"it is not opened a second time: {error.what}") from None
    other = DeviceFixture(dut.info, target)
    left = _Left(other)
    other.device.close()
    left.use()


def _end(left: list[_Left]) -> None:
    """Tell what is wrong with what is left."""
    try:
        for each in left:
            each.use()
    except CheckFailed as broken:
        second_process.tell(broken.problem.what)
    except Exception as error:  # noqa: BLE001  (told where somebody waits)
        second_process.tell(f"{type(error).__name__}: {error}")
    else:
        second_process.tell("")


if __name__ == "__main__":
    second_process.begin()
    left: list[_Left] = []
    # Exit handlers of this kind run last in, first out: this one behind the device's.
    weakref.finalize(_Left, _end, left)
    left.append(_Left(second_process.fixture_of(sys.argv[1], int(sys.argv[2]))))
