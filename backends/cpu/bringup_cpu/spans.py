"""Kernels on the timeline: when each thread worked on each kernel, measured by native code.

Only programs that were compiled while the timeline was on are measured.  Their kernels are called
through a wrapper that reads the clock; the memory for its records follows the buffers of the call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Callee, Module, Val, array, const, i32, i64, ptr, void
from bringup.runtime import timeline

#: `time.perf_counter_ns` reads this clock, and so does the timeline.
_CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)


class Record:
    """Word offsets in the record of one thread about one launch; records are cache lines.

    FIRST, LAST: start of its first part and end of its last, in ns.  BUSY: ns inside parts.
    PARTS: their number.  THREAD: its native id.
    """

    FIRST, LAST, BUSY, PARTS, THREAD = range(5)
    WORDS = 8


def record_bytes(threads: int) -> int:
    """Bytes of the records of one launch."""
    return 8 * Record.WORDS * threads


def emit_traced(module: Module, kernel: str, pointers: int) -> Callee:
    """A function with the kernel's signature that runs it and records the time.

    pointers: number of the kernel's pointers; the records of the launch follow them.
    """
    name = f"{kernel}.traced"
    if name in module.functions:
        return module.functions[name].callee
    params = [("buffers", ptr), ("begin", i64), ("end", i64), ("worker", i64)]
    b, (buffers, begin, end, worker) = define(module, name, void, params)
    records = b.load(ptr, b.gep(buffers, pointers, ptr))
    record = b.gep(records, b.mul(worker, number(Record.WORDS)), i64)
    moment = b.alloca(array(i64, 2), align=8)
    start = _now(b, moment)
    b.call(module.functions[kernel].callee, (buffers, begin, end, worker))
    stop = _now(b, moment)
    parts = b.bump(record, 8 * Record.PARTS, number(1))
    with b.if_then(b.icmp("eq", parts, number(1))):
        b.put(record, 8 * Record.FIRST, start)
        b.put(record, 8 * Record.THREAD, b.c("PyThread_get_thread_native_id", i64))
    b.put(record, 8 * Record.LAST, stop)
    b.bump(record, 8 * Record.BUSY, b.sub(stop, start))
    b.ret()
    return module.functions[name].callee


def _now(b: Emit, moment: Val) -> Val:
    b.c("clock_gettime", i32, const(i32, _CLOCK), moment)
    seconds = b.mul(b.get(moment, 0), number(1_000_000_000))
    return b.add(seconds, b.get(moment, 8))


class Records:
    """Memory for the records of one run, zeroed.  address: of the first launch's.

    launches: of each its name, and what is known of it.
    """

    def __init__(self, launches: Sequence[tuple[str, Mapping[str, Any]]], threads: int) -> None:
        self._launches = launches
        self._words: np.ndarray[Any, Any] = np.zeros(
            (len(launches), threads, Record.WORDS), np.int64
        )
        self.address: int = self._words.ctypes.data

    def publish(self) -> None:
        """Put the records of the threads on the timeline."""
        own = threading.get_native_id()
        for launch, worker in np.argwhere(self._words[:, :, Record.PARTS]).tolist():
            first, last, busy, parts, thread = self._words[launch, worker, :5].tolist()
            if thread != own:
                timeline.name_thread(thread, f"worker {worker}")
            name, facts = self._launches[launch]
            found = {"parts": parts, "busy_us": busy / 1000, **facts}
            timeline.record(name, "kernel", first, last - first, thread, **found)
