"""Checks of what a device promises beyond the values of one program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bringup_conformance.cases import Check, Problem, Unsupported
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.execution.targets import Target
from bringup_conformance.runtime import (
    aliasing,
    caching,
    closed_device,
    declaration,
    donation,
    lifetime,
    limits,
    memory,
    random_numbers,
    rejections,
    repeat,
    streams,
    threads,
    transfers,
)
from bringup_conformance.runtime.fixture import (
    CheckFailed,
    ContractCheck,
    DeviceFixture,
    DeviceSummary,
    runs,
    summary_of,
)

LEVEL = "runtime"
_MODULES = (
    memory, aliasing, transfers, streams, donation, caching, threads, lifetime, closed_device,
    rejections, limits, repeat, declaration, random_numbers,
)  # fmt: skip
#: All checks, by area.
CHECKS: tuple[ContractCheck, ...] = tuple(check for module in _MODULES for check in module.CHECKS)


def units(plan: Plan) -> list[Unit]:
    """The checks of level ``runtime``: one unit for each."""
    info = summary_of(plan.capabilities, plan.support, plan.seed)
    return [Unit(LEVEL, c.area, "", c.slug, c.area, partial(_items, info, c)) for c in CHECKS]


def _items(info: DeviceSummary | str, check: ContractCheck) -> Iterator[Item]:
    name = f"{LEVEL}/{check.area}/{check.slug}"
    reason = info if isinstance(info, str) else _missing(info, check)
    if isinstance(info, str) or reason is not None:
        yield Unsupported(name, LEVEL, check.area, "", reason or "")
    else:
        yield Check(name, LEVEL, check.area, check.rules, partial(_run, check, info))


def _run(check: ContractCheck, info: DeviceSummary, target: Target) -> Problem | None:
    try:
        check.run(DeviceFixture(info, target))
    except CheckFailed as failed:
        return failed.problem
    return None


def _missing(info: DeviceSummary, check: ContractCheck) -> str | None:
    """Why a check does not apply to a device, or None."""
    if check.needs and not getattr(info.capabilities, check.needs):
        return f"it does not declare {check.needs!r}"
    absent = [name for name in check.ops if not runs(info.support, name, info.dtype)]
    return f"it has no {', '.join(absent)} of {info.dtype}" if absent else None
