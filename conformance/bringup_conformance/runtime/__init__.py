"""Checks of what a device promises beyond the values of one program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bringup.dtypes import ALL, BY_NAME, DType
from bringup.ops.table import lookup
from bringup.types import TensorType
from bringup_conformance.cases import Check, Problem, Unsupported
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.execution.targets import Target
from bringup_conformance.runtime.bench import Bench, Broken, Facts, Promise
from bringup_conformance.runtime.tables import PROMISES

LEVEL = "runtime"
# What programs compute in: the first that the device adds and multiplies.
_PREFERRED = ("f32", "f16", "bf16", "f64", "i32", "i64", "i16", "u32")


def units(plan: Plan) -> list[Unit]:
    """The checks of level ``runtime``: one unit for each."""
    dtypes = tuple(d for d in ALL if _has(plan, ("select",), d))
    dtype = next((d for d in map(BY_NAME.__getitem__, _PREFERRED) if _computes(plan, d)), None)
    return [
        Unit(LEVEL, p.area, "", p.slug, p.area, partial(_items, plan, p, dtype, dtypes))
        for p in PROMISES
    ]


def _items(
    plan: Plan, promise: Promise, dtype: DType | None, dtypes: tuple[DType, ...]
) -> Iterator[Item]:
    name = f"{LEVEL}/{promise.area}/{promise.slug}"
    reason = _missing(plan, promise, dtype)
    if reason is not None or dtype is None:
        yield Unsupported(name, LEVEL, promise.area, "", reason or "")
        return
    facts = Facts(plan.capabilities, plan.support, plan.seed, dtype, dtypes)
    yield Check(name, LEVEL, promise.area, promise.rules, partial(_run, promise, facts))


def _run(promise: Promise, facts: Facts, target: Target) -> Problem | None:
    try:
        promise.run(Bench(facts, target))
    except Broken as broken:
        return broken.problem
    return None


def _missing(plan: Plan, promise: Promise, dtype: DType | None) -> str | None:
    """Why a device is not asked for a promise, or None."""
    if dtype is None:
        return f"it adds and multiplies none of {', '.join(_PREFERRED)}"
    if promise.needs and not getattr(plan.capabilities, promise.needs):
        return f"it does not declare {promise.needs!r}"
    absent = [name for name in promise.ops if not _has(plan, (name,), dtype)]
    return f"it has no {', '.join(absent)} of {dtype}" if absent else None


def _computes(plan: Plan, dtype: DType) -> bool:
    return _has(plan, ("add", "mul"), dtype)


def _has(plan: Plan, names: tuple[str, ...], dtype: DType) -> bool:
    return all(_runs(plan, name, dtype) for name in names)


def _runs(plan: Plan, name: str, dtype: DType) -> bool:
    row = lookup(name)
    if dtype not in row.dtypes:
        return False
    operands = [TensorType((4,), dtype)] * (row.arity or 1)
    attrs: dict[str, object] = {}
    if name == "select":
        operands[0] = TensorType((4,), BY_NAME["bool"])
    elif name == "reduce":
        attrs = {"kind": "add", "dims": (0,)}
    elif name == "sort":
        attrs = {"dim": 0}
    return plan.support.has(row, operands, attrs)
