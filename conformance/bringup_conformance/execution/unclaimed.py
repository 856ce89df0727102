"""What a device does not declare, and would do right all the same.

Core takes a device's declaration as the word for what may reach it.  So another declaration is put
in its place, which claims one op for every dtype, and the movement ops, which passes may need for
it.  Nothing else changes, and the device's own ``compile`` decides: at depth 1 the function in its
table, at depth 2 its renderer, at depth 3 its compiler.  A device that looks at its own declaration
again refuses, and then nothing is said.

The device may end its process over this, so it happens in another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Device
from bringup.dtypes import BY_NAME, STORED
from bringup.ops.table import Kind, OpDef, all_ops, find, lookup
from bringup.records import record
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.levels import table
from bringup_conformance.execution.processes import DeviceProcess, Remote
from bringup_conformance.execution.running import RemoteError, run_case
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting.failures import TIMEOUT

#: The names of an op and of a dtype.
Pair = tuple[str, str]


@record
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
    """The same device with a declaration that claims an op and all movement ops for every dtype."""
    declared = target.capabilities
    movement = [each for each in all_ops() if each.kind in (Kind.MOVEMENT, Kind.SOURCE)]
    more = {claim: frozenset(STORED) for each in (*movement, row) for claim in each.claims}
    if declared.kernels:
        capabilities = replace(declared, kernels={**declared.kernels, **more})
    else:
        capabilities = replace(declared, ops={**declared.ops, **more})
    device = cast(Device, _Claiming(target.device.device, capabilities))
    return DeviceTarget(replace(target.device, device=device))


def _count_passing(remote: Remote, op: str, dtype: str, seed: int) -> int:
    """How many cases of an op and dtype pass without the claim; 0 unless all of them do."""
    target = claiming(remote.target, lookup(op))
    unit = next(u for u in table(plan_of(target, seed)) if (u.op, u.dtype) == (op, dtype))
    cases = [item for item in unit.make() if isinstance(item, Case)]
    passed = all(run_case(target, case).problem is None for case in cases)
    return len(cases) if passed else 0


def pairs_of(unsupported: Iterable[Unsupported]) -> list[Pair]:
    """The ops and dtypes that a run found undeclared, each once."""
    pairs = dict.fromkeys((each.op, each.dtype) for each in unsupported)
    return [pair for pair in pairs if find(pair[0]) is not None and pair[1] in BY_NAME]


def unclaimed(
    backend: str,
    pairs: Sequence[Pair],
    seed: int = 0,
    *,
    timeout: float = TIMEOUT,
    until: float = float("inf"),
) -> list[Unclaimed]:
    """Which of some undeclared pairs a device does right.

    timeout: seconds that one pair may take.  until: when to stop, by the clock `time.monotonic`.

    >>> unclaimed("mydevice", [])
    []
    """
    right = list[Unclaimed]()
    with DeviceProcess(backend, timeout) as process:
        for op, dtype in pairs:
            now = time.monotonic()
            if now >= until:
                break
            try:
                deadline = min(now + timeout, until)
                count = process.call(_count_passing, op, dtype, seed, deadline=deadline)
            except RemoteError:  # it raised, hung or ended its process, so it is not right
                continue
            if count:
                right.append(Unclaimed(op, dtype, count))
    return right
