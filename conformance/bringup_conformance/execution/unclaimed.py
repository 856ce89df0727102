"""What a device does not declare, and would do right all the same.

A device is asked to compile programs that its declaration rules out: core takes the declaration's
word for what may reach a device, so another declaration is put in its place, which claims one op
for every dtype, and moving, which passes may need for it.  Nothing else changes, and the device's
own ``compile`` decides.  At depth 1 that is the function in its table, at depth 2 its renderer, at
depth 3 its compiler; one that looks at its own declaration again refuses, and then nothing is said.

It may end the process, so it runs in one of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Device
from bringup.dtypes import BY_NAME, STORED
from bringup.ops.table import Kind, OpDef, all_ops, find, lookup
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.levels import table
from bringup_conformance.execution.running import run_case
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting.failures import TIMEOUT

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from bringup_conformance.execution.unclaimed import main
main()
"""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """An op and dtype that the device does not declare, all of whose cases pass."""

    op: str
    dtype: str
    cases: int

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} is not declared, and its {self.cases} cases pass"


class _Claiming:
    """A device with another declaration."""

    def __init__(self, device: Device, capabilities: Capabilities) -> None:
        self._device = device
        self.capabilities = capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def claiming(target: DeviceTarget, row: OpDef) -> DeviceTarget:
    """The same device, said to run an op with every dtype, and to move all of them."""
    known = target.capabilities
    moving = [each for each in all_ops() if each.kind in (Kind.MOVEMENT, Kind.SOURCE)]
    more = {claim: frozenset(STORED) for each in (*moving, row) for claim in each.claims}
    if known.kernels:
        capabilities = replace(known, kernels={**known.kernels, **more})
    else:
        capabilities = replace(known, ops={**known.ops, **more})
    device = cast(Device, _Claiming(target.device.device, capabilities))
    return DeviceTarget(replace(target.device, device=device))


def passes(target: DeviceTarget, pair: Pair, seed: int = 0) -> int:
    """How many cases of an op and dtype pass without the claim; 0 unless all of them do."""
    op, dtype = pair
    widened = claiming(target, lookup(op))
    unit = next(u for u in table(plan_of(widened, seed)) if (u.op, u.dtype) == (op, dtype))
    cases = [item for item in unit.make() if isinstance(item, Case)]
    good = all(run_case(widened, case).problem is None for case in cases)
    return len(cases) if good else 0


def pairs_of(unsupported: Iterable[Unsupported]) -> list[Pair]:
    """The ops and dtypes that a run found undeclared, each once."""
    pairs = [(each.op, each.dtype) for each in unsupported]
    return [p for p in dict.fromkeys(pairs) if find(p[0]) is not None and p[1] in BY_NAME]


def unclaimed(
    backend: str,
    pairs: Sequence[Pair],
    seed: int = 0,
    *,
    timeout: float = TIMEOUT,
    until: float = float("inf"),
) -> list[Unclaimed]:
    """Which of some undeclared pairs a device does right; in other processes, as many as it ends.

    timeout: seconds that one pair may take.  until: when to stop, by the clock `time.monotonic`.

    >>> unclaimed("mydevice", [])
    []
    """
    left, found = list(pairs), list[Unclaimed]()
    while left and time.monotonic() < until:
        done = 0
        seconds = min(timeout, until - time.monotonic())
        for pair, count in zip(left, _answers(backend, left, seed, seconds), strict=False):
            done += 1
            if count:
                found.append(Unclaimed(*pair, count))
            if time.monotonic() >= until:
                return found
        del left[: done + 1]  # the one behind the last answer ended the process
    return found


def _answers(backend: str, pairs: Sequence[Pair], seed: int, timeout: float) -> Iterator[int]:
    """Of each pair in turn the count of `passes`, until the process ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, backend, str(seed), str(timeout)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(sys.path) + "\n" + json.dumps(pairs) + "\n")
        process.stdin.close()
        for line in process.stdout:
            yield int(json.loads(line)["passes"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    """Answer for pairs given on standard input; what native code prints goes elsewhere."""
    import faulthandler
    import os

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = DeviceTarget.named(sys.argv[1])
    for pair in json.loads(sys.stdin.readline()):
        faulthandler.dump_traceback_later(float(sys.argv[3]), exit=True)
        answers.write(json.dumps({"passes": passes(target, tuple(pair), int(sys.argv[2]))}) + "\n")
        answers.flush()
        faulthandler.cancel_dump_traceback_later()
