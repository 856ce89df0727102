"""Arrays of more than 2^31 bytes: read to their end, and copied whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bringup import ops
from bringup.backend.capabilities import Capabilities
from bringup.dtypes import DType, i32, u8
from bringup.graph import Builder, Graph, Literal
from bringup.types import TensorType
from bringup_conformance.cases import Check, NotOffered, Problem, Unsupported
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.oracle.numbers import Array

if TYPE_CHECKING:
    from bringup_conformance.execution.targets import Target

#: What the checks stand under, in place of an op.
AREA = "limits"
_RULE = "limits.past-31-bits"
#: Bytes of the array, past what a signed 32-bit integer counts; no multiple of anything.
BYTES = (1 << 31) + 4 * 1027
#: Copies of the array that a check holds at once, on the host and on a device that shares its
#: memory.
_COPIES = 5
# A prime, so that no offset by a power of two goes unseen.
_PERIOD = 251
_TAIL = 4099
_CHUNK = 1 << 26
_WRITES = "far_writes"

Make = Callable[[TensorType], Graph]


def units(plan: Plan) -> list[Unit]:
    """Reading the far end of an array, and computing all of it."""
    # One unit, so that no two workers hold such arrays at a time.
    return [Unit("exhaustive", AREA, "", "heavy", AREA, partial(_items, plan))]


def _items(plan: Plan) -> Iterator[Item]:
    for dtype, name, make in ((u8, "read", _read), (u8, "copy", _copy), (i32, "read", _read)):
        yield _item(plan, dtype, name, make)


def _item(plan: Plan, dtype: DType, name: str, make: Make) -> Item:
    full = f"exhaustive/{AREA}/{dtype.name}/{name}"
    type_ = dtype[BYTES // dtype.itemsize]
    graph = make(type_)
    reason = plan.support.reason_of(graph) or _too_large(plan.capabilities, type_)
    if reason is not None:
        return Unsupported(full, "exhaustive", AREA, dtype.name, reason)
    return Check(
        name=full,
        level="exhaustive",
        op=AREA,
        rules=(_RULE,),
        run=partial(_run, graph),
        dtype=dtype.name,
        tags=("heavy",),
    )


def _too_large(capabilities: Capabilities, type_: TensorType) -> str | None:
    """Why an array of the type is not tried, or None."""
    limits, size = capabilities.limits, f"{type_.nbytes / 2**30:.1f} GiB"
    if capabilities.simulated:
        return f"the device is simulated, and {size} would take it long"
    if limits.elements < type_.size:
        return f"arrays have {limits.elements} elements at most, by declaration"
    if limits.memory_bytes and limits.memory_bytes < 2 * type_.nbytes:
        return f"the device has {limits.memory_bytes / 2**30:.1f} GiB, by declaration"
    return None


def available() -> int:
    """Bytes of the host's memory that can be had."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    words = next(line.split() for line in lines if line.startswith("MemAvailable"))
    return int(words[1]) * 1024


def _read(type_: TensorType) -> Graph:
    """The last elements backwards, some of all of them, and the largest."""
    n = type_.size
    with Builder() as builder:
        x = builder.input(type_)
        tail = ops.slice(x, start=(n - 1,), limit=(n - 1 - _TAIL,), stride=(-1,))
        some = ops.slice(x, start=(5,), limit=(n,), stride=(65_537,))
        return builder.build([tail, some, ops.reduce(x, kind="max", dims=(0,))], "far_reads")


def _copy(type_: TensorType) -> Graph:
    with Builder() as builder:
        x = builder.input(type_)
        return builder.build([ops.xor(x, ops.constant(value=Literal.splat(1, type_)))], _WRITES)


def _run(graph: Graph, target: Target) -> Problem | None:
    type_ = graph.inputs[0].type
    needed, there = _COPIES * type_.nbytes, available()
    if there < needed:
        free, due = f"{there / 2**30:.1f} GiB", f"{needed / 2**30:.1f} GiB"
        raise NotOffered(f"this host has {free} free, and the check needs {due}")
    data = _data(type_)
    results = target.compile(graph)([data])
    if graph.name == _WRITES:
        return _differs(results[0], lambda chunk: data[chunk] ^ data.dtype.type(1))
    n = data.size
    wanted = [data[: n - 1 - _TAIL : -1], data[5::65_537], data.max()]
    for output, (actual, right) in enumerate(zip(results, wanted, strict=True)):
        problem = _differs(actual.reshape(-1), right.reshape(-1).__getitem__)
        if problem is not None:
            return Problem("wrong", f"output {output}: {problem.what}")
    return None


def _data(type_: TensorType) -> Array:
    """Numbers that no shift by a power of two leaves alike; the largest is the last."""
    period = np.arange(_PERIOD).astype(type_.dtype.numpy)
    data: Array = np.resize(period, type_.shape)
    data[-1] = _PERIOD + 1
    return data


def _differs(actual: Array, right: Callable[[slice], Array]) -> Problem | None:
    """The first element that differs, found chunk by chunk: whole copies need too much memory."""
    for start in range(0, actual.size, _CHUNK):
        chunk = slice(start, min(start + _CHUNK, actual.size))
        wrong = np.flatnonzero(actual[chunk] != right(chunk))
        if wrong.size:
            index = start + int(wrong[0])
            what = f"element {index:,} is {actual[index]}, not {right(slice(index, index + 1))[0]}"
            return Problem("wrong", what)
    return None
