"""What is given back, and when."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import bringup as bu
from bringup.errors import BringupError, DeviceError
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime import pressure
from bringup_conformance.runtime.banded import BandedPrograms, BandedSteps, banded
from bringup_conformance.runtime.bench import Bench, Promise
from bringup_conformance.runtime.programs import samples
from bringup_conformance.runtime.wrapping import Failing, Refusing

# A leak keeps an object of every round; so many rounds may keep one for another reason.
_LEAKED = 2
# Caches fill up some time; leaks go on.
_BATCHES = 4
# Bytes of a process that may stay: pools and heaps grow a little whatever is given back.
_SLACK = 24 << 20


def _steady(bench: Bench, what: str, do: Callable[[], None], rounds: int, nbytes: int) -> None:
    """Repeating something takes no more objects and memory than the first rounds did.

    nbytes: of each buffer that it makes.
    """
    for _ in range(max(rounds // 10, 3)):
        do()
    resident = _resident()
    grown = [_growth(bench, do, rounds)]
    while grown[-1] > rounds // _LEAKED and len(grown) < _BATCHES:
        grown.append(_growth(bench, do, rounds))
    if grown[-1] > rounds // _LEAKED:
        bench.broken(f"{what}: {grown[-1]} objects stay of {rounds} rounds, time and again")
    if nbytes * rounds > 2 * _SLACK:
        more = _resident() - resident
        bench.require(
            more < max(_SLACK, nbytes * rounds // 4),
            f"{what}: the process grew by {more >> 20} MiB in {rounds} rounds",
        )


def _growth(bench: Bench, do: Callable[[], None], rounds: int) -> int:
    """Objects that stay of so many rounds."""
    before = _objects(bench)
    for _ in range(rounds):
        do()
    return _objects(bench) - before


def _objects(bench: Bench) -> int:
    """Blocks of Python's memory in use once all queued work is done."""
    bench.host(bench.array(np.zeros(3, bench.dtype.numpy)) + 1)
    bench.device.synchronize()
    gc.collect()
    return sys.getallocatedblocks()


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _calls_balanced(bench: Bench) -> None:
    """Counts what is asked for and given back, then repeats calls and looks at the process."""
    guard = banded(bench.device)
    inner = bench.elsewhere(guard)
    _once(inner)
    gc.collect()
    kept = len(guard.ledger.live)
    for _ in range(5):
        _once(inner)
    gc.collect()
    left = len(guard.ledger.live) - kept
    bench.require(left == 0, f"{left} allocations are left of five rounds of calls")
    rounds, n = bench.count(1000, 60), bench.count(16_384, 4096)
    x = bench.small(n)
    step = bench.jit(lambda a: (a + 1, bu.flip(a) - a))

    def calls() -> None:
        first, _ = step(bench.array(x))
        bench.host(first * 2)

    _steady(bench, "calls", calls, rounds, 3 * x.nbytes)
    pressure.calls(bench)


def _once(bench: Bench) -> None:
    """Calls of every kind: compiled, recorded, donating, looked at and not."""
    for sample in samples(bench):
        arrays = [bench.array(x) for x in sample.inputs]
        bench.jit(sample.fn)(*arrays)
        bench.host(arrays[0] + 1)
        taking = bench.jit(lambda a: a + a, donate_argnums=0)
        taking(arrays[0])
        taking(sample.inputs[0])


def _compiles_balanced(bench: Bench) -> None:
    """Programs with tables are compiled, used and dropped."""
    guard = banded(bench.device)
    inner = bench.elsewhere(guard)
    x = bench.ramp(40, 40)
    tables = [np.flip(x, 0).copy(), np.flip(x, 1).copy(), x.T.copy()]

    def round_(n: int) -> None:
        table = tables[n % 3] + np.array(n, x.dtype)
        made = inner.jit(lambda a: a + inner.array(table))
        bench.equal(inner.host(made(inner.array(x))), x + table, "a program with a table")

    _emptied(guard)
    before = len(guard.ledger.live)
    for n in range(6):
        round_(n)
    left = _emptied(guard) - before
    bench.require(left <= 0, f"{left} allocations are left of programs that are gone")

    def compiles() -> None:
        bench.jit(lambda a: bu.flip(a) * 2 - a)(x)
        bu.clear_caches()

    _steady(bench, "compiling", compiles, 60, 0)
    pressure.compiles(bench)


def _emptied(guard: BandedSteps | BandedPrograms) -> int:
    """Allocations that are live when nobody holds a program."""
    bu.clear_caches()
    gc.collect()
    return len(guard.ledger.live)


def _errors_balanced(bench: Bench) -> None:
    """Compilers that refuse, programs that fail, functions that raise."""
    x = bench.ramp(300)
    guard = banded(bench.device)
    refusing, failing = Refusing(guard), Failing(guard, late=False)
    for wrapper in (refusing, failing):
        wrapper.refcounted_handles = False
    first, second = bench.elsewhere(refusing), bench.elsewhere(failing)
    refusing.refuses = failing.fails = True
    before = _emptied(guard)
    for n in range(8):
        _fails(first, x, n)
        _fails(second, x, n)
        _raises(second, x)
    left = _emptied(guard) - before
    bench.require(left <= 0, f"{left} allocations are left of calls that failed")
    if guard.ledger.faults:
        bench.broken(guard.ledger.faults[0], "errors.family")
    unfit = bench.jit(lambda a, b: a + b)
    array, other = bench.array(x), bench.array(x[:7])

    def errors() -> None:
        with suppress(BringupError):
            unfit(array, other)
        _raises(bench, x)

    _steady(bench, "calls that fail", errors, bench.count(200, 40), 0)
    pressure.errors(bench)


def _fails(bench: Bench, x: Array, n: int) -> None:
    for donate in ((), 0):
        with suppress(DeviceError):
            bench.host(bench.jit(lambda a: a * 2 + n, donate_argnums=donate)(bench.array(x)))
            bench.broken("a failing device gave a result")


class _OwnError(Exception):
    """What user code raises."""


def _raises(bench: Bench, x: Array) -> None:
    def fn(a: bu.Array) -> bu.Array:
        a = a + a
        raise _OwnError

    with suppress(_OwnError):
        bench.jit(fn)(bench.array(x))


def _freed_once(bench: Bench) -> None:
    """All that is used and freed was allocated and not yet freed, in every kind of call."""
    guard = banded(bench.device)
    inner = bench.elsewhere(guard)
    for _ in range(2):
        _once(inner)
        gc.collect()
    _emptied(guard)
    if guard.ledger.faults:
        bench.broken(guard.ledger.faults[0])


def _freed_unused(bench: Bench) -> None:
    """Freed memory, filled by its next owner, shows up in no later result, nor changes."""
    x = bench.ramp(2003)
    fn = bench.jit(lambda a: (bu.flip(a) + a, a * 2))
    with bench.handles() as held:
        owned = []
        for n in range(bench.count(20, 8)):
            scratch = held.put(np.full(x.nbytes, 0xEE, np.uint8))
            held.free(scratch)
            del scratch
            data = np.full(x.nbytes, n + 1, np.uint8)
            owned.append((held.put(data), data))
            first, second = fn(bench.array(x))
            bench.equal(bench.host(first), np.flip(x) + x, "a result among freed memory")
            bench.equal(bench.host(second), x + x, "a result among freed memory")
        for handle, right in owned:
            bench.equal(held.bytes(handle, right.size), right, "memory that had another owner")


def _reusable(bench: Bench) -> None:
    """Allocating and freeing in turn, in total far more than is live at once."""
    nbytes, rounds = bench.count(8 << 20, 256 << 10), bench.count(400, 60)
    limit = bench.facts.capabilities.limits.memory_bytes
    if limit:
        nbytes = min(max(nbytes, limit // 8), limit // 4, 1 << 28)
    data = np.full(16, 7, np.uint8)

    def turn() -> None:
        with bench.handles() as held:
            for _ in range(2):
                handle = held.alloc(nbytes)
                held.fill(handle, data)
                bench.equal(held.bytes(handle, 16), data, "memory that is used again")
        bench.device.synchronize()

    _steady(bench, "allocating and freeing", turn, rounds, 16)


def _result_outlives(bench: Bench) -> None:
    """Results are read when function, arguments, other results and caches are gone."""
    x = bench.ramp(1500)

    def made() -> tuple[Any, ...]:
        fn = bench.jit(lambda a: (a + a, bu.flip(a), a[5:]))
        array = bench.array(x)
        results = fn(array)
        return (*results, array * 3)

    results = made()
    one = results[1]
    waiting = results[3]
    del results
    bu.clear_caches()
    gc.collect()
    for _ in range(4):
        bench.host(bench.array(np.zeros_like(x)) + 1)
    bench.equal(bench.host(one), np.flip(x).copy(), "a result whose program is gone")
    bench.equal(bench.host(waiting), x * np.array(3, x.dtype), "work whose inputs are gone")


def _programs_many(bench: Bench) -> None:
    """Many programs alive at once, called in another order than they were compiled in."""
    x = bench.ramp(31)
    count = bench.count(80, 24)
    made = [bench.jit(lambda a, n=n: a * 2 + n) for n in range(count)]
    array = bench.array(x)
    for fn in made:
        fn(array)
    for n in (*reversed(range(count)), *range(0, count, 3)):
        right = x * np.array(2, x.dtype) + np.array(n, x.dtype)
        bench.equal(bench.host(made[n](array)), right, f"program {n} of {count}")


PROMISES: tuple[Promise, ...] = (
    Promise(("lifetime.calls-balanced",), _calls_balanced),
    Promise(("lifetime.compiles-balanced",), _compiles_balanced),
    Promise(("lifetime.errors-balanced",), _errors_balanced),
    Promise(("lifetime.freed-once",), _freed_once),
    Promise(("lifetime.freed-unused",), _freed_unused),
    Promise(("lifetime.reusable",), _reusable),
    Promise(("lifetime.result-outlives",), _result_outlives),
    Promise(("lifetime.programs-many",), _programs_many),
)
