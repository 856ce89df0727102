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
    closing,
    declared,
    donation,
    edges,
    keys,
    lifetime,
    memory,
    rejections,
    repeats,
    streams,
    threads,
    transfers,
)
from bringup_conformance.runtime.bench import Bench, Broken, Facts, Promise, facts_of, runs

LEVEL = "runtime"
#: All promises, by area.
PROMISES: tuple[Promise, ...] = (
    *memory.PROMISES,
    *aliasing.PROMISES,
    *transfers.PROMISES,
    *streams.PROMISES,
    *donation.PROMISES,
    *caching.PROMISES,
    *threads.PROMISES,
    *lifetime.PROMISES,
    *closing.PROMISES,
    *rejections.PROMISES,
    *edges.PROMISES,
    *repeats.PROMISES,
    *declared.PROMISES,
    *keys.PROMISES,
)


def units(plan: Plan) -> list[Unit]:
    """The checks of level ``runtime``: one unit for each."""
    facts = facts_of(plan.capabilities, plan.support, plan.seed)
    return [Unit(LEVEL, p.area, "", p.slug, p.area, partial(_items, facts, p)) for p in PROMISES]


def _items(facts: Facts | str, promise: Promise) -> Iterator[Item]:
    name = f"{LEVEL}/{promise.area}/{promise.slug}"
    reason = facts if isinstance(facts, str) else _missing(facts, promise)
    if isinstance(facts, str) or reason is not None:
        yield Unsupported(name, LEVEL, promise.area, "", reason or "")
    else:
        yield Check(name, LEVEL, promise.area, promise.rules, partial(_run, promise, facts))


def _run(promise: Promise, facts: Facts, target: Target) -> Problem | None:
    try:
        promise.run(Bench(facts, target))
    except Broken as broken:
        return broken.problem
    return None


def _missing(facts: Facts, promise: Promise) -> str | None:
    """Why a device is not asked for a promise, or None."""
    if promise.needs and not getattr(facts.capabilities, promise.needs):
        return f"it does not declare {promise.needs!r}"
    absent = [name for name in promise.ops if not runs(facts.support, name, facts.dtype)]
    return f"it has no {', '.join(absent)} of {facts.dtype}" if absent else None
