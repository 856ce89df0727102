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
from bringup_conformance.runtime import full_memory
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.guard_bands import GuardedPrograms, GuardedSteps, with_guard_bands
from bringup_conformance.runtime.programs import samples
from bringup_conformance.runtime.proxy_devices import FailingDevice, RefusingDevice

CHECKS = ContractChecks()

# A leak keeps an object of every round; so many rounds may keep one for another reason.
_LEAKED = 2
# Caches fill up some time; leaks go on.
_BATCHES = 4
# Bytes of a process that may stay: pools and heaps grow a little whatever is given back.
_SLACK = 24 << 20


def _steady(
    dut: DeviceFixture, what: str, do: Callable[[], None], rounds: int, nbytes: int
) -> None:
    """Repeating something takes no more objects and memory than the first rounds did.

    nbytes: of each buffer that it makes.
    """
    for _ in range(max(rounds // 10, 3)):
        do()
    resident = _resident()
    grown = [_growth(dut, do, rounds)]
    while grown[-1] > rounds // _LEAKED and len(grown) < _BATCHES:
        grown.append(_growth(dut, do, rounds))
    if grown[-1] > rounds // _LEAKED:
        dut.fail(f"{what}: {grown[-1]} objects stay of {rounds} rounds, time and again")
    if nbytes * rounds > 2 * _SLACK:
        more = _resident() - resident
        dut.require(
            more < max(_SLACK, nbytes * rounds // 4),
            f"{what}: the process grew by {more >> 20} MiB in {rounds} rounds",
        )


def _growth(dut: DeviceFixture, do: Callable[[], None], rounds: int) -> int:
    """Objects that stay of so many rounds."""
    before = _objects(dut)
    for _ in range(rounds):
        do()
    return _objects(dut) - before


def _objects(dut: DeviceFixture) -> int:
    """Blocks of Python's memory in use once all queued work is done."""
    dut.host(dut.array(np.zeros(3, dut.dtype.numpy)) + 1)
    dut.device.synchronize()
    gc.collect()
    return sys.getallocatedblocks()


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@CHECKS.shows("lifetime.calls-balanced")
def _calls_balanced(dut: DeviceFixture) -> None:
    """Counts what is asked for and given back, then repeats calls and looks at the process."""
    guard = with_guard_bands(dut.device)
    inner = dut.on_device(guard)
    _once(inner)
    gc.collect()
    count = len(guard.ledger.live)
    for _ in range(5):
        _once(inner)
    gc.collect()
    left = len(guard.ledger.live) - count
    dut.require(left == 0, f"{left} allocations are left of five rounds of calls")
    rounds, n = dut.count(1000, 60), dut.count(16_384, 4096)
    x = dut.small(n)
    step = dut.jit(lambda a: (a + 1, bu.flip(a) - a))

    def calls() -> None:
        first, _ = step(dut.array(x))
        dut.host(first * 2)

    _steady(dut, "calls", calls, rounds, 3 * x.nbytes)
    full_memory.calls(dut)


def _once(dut: DeviceFixture) -> None:
    """Calls of every kind: compiled, recorded, donating, looked at and not."""
    for sample in samples(dut):
        arrays = [dut.array(x) for x in sample.inputs]
        dut.jit(sample.fn)(*arrays)
        dut.host(arrays[0] + 1)
        taking = dut.jit(lambda a: a + a, donate_argnums=0)
        taking(arrays[0])
        taking(sample.inputs[0])


@CHECKS.shows("lifetime.compiles-balanced")
def _compiles_balanced(dut: DeviceFixture) -> None:
    """Programs with tables are compiled, used and dropped."""
    guard = with_guard_bands(dut.device)
    inner = dut.on_device(guard)
    x = dut.ramp(40, 40)
    tables = [np.flip(x, 0).copy(), np.flip(x, 1).copy(), x.T.copy()]

    def round_(n: int) -> None:
        table = tables[n % 3] + np.array(n, x.dtype)
        compiled = inner.jit(lambda a: a + inner.array(table))
        dut.equal(inner.host(compiled(inner.array(x))), x + table, "a program with a table")

    _emptied(guard)
    before = len(guard.ledger.live)
    for n in range(6):
        round_(n)
    left = _emptied(guard) - before
    dut.require(left <= 0, f"{left} allocations are left of programs that are gone")

    def compiles() -> None:
        dut.jit(lambda a: bu.flip(a) * 2 - a)(x)
        bu.clear_caches()

    _steady(dut, "compiling", compiles, 60, 0)
    full_memory.compiles(dut)
    full_memory.caches(dut)


def _emptied(guard: GuardedSteps | GuardedPrograms) -> int:
    """Allocations that are live when nobody holds a program."""
    bu.clear_caches()
    gc.collect()
    return len(guard.ledger.live)


@CHECKS.shows("lifetime.errors-balanced")
def _errors_balanced(dut: DeviceFixture) -> None:
    """Compilers that refuse, programs that fail, functions that raise."""
    x = dut.ramp(300)
    guard = with_guard_bands(dut.device)
    refusing, failing = RefusingDevice(guard), FailingDevice(guard, late=False)
    for wrapper in (refusing, failing):
        wrapper.refcounted_handles = False
    first, second = dut.on_device(refusing), dut.on_device(failing)
    refusing.refuses = failing.fails = True
    before = _emptied(guard)
    for n in range(8):
        _fails(first, x, n)
        _fails(second, x, n)
        _raises(second, x)
    left = _emptied(guard) - before
    dut.require(left <= 0, f"{left} allocations are left of calls that failed")
    if guard.ledger.faults:
        dut.fail(guard.ledger.faults[0], "errors.family")
    unfit = dut.jit(lambda a, b: a + b)
    array, other = dut.array(x), dut.array(x[:7])

    def errors() -> None:
        with suppress(BringupError):
            unfit(array, other)
        _raises(dut, x)

    _steady(dut, "calls that fail", errors, dut.count(200, 40), 0)
    full_memory.errors(dut)


def _fails(dut: DeviceFixture, x: Array, n: int) -> None:
    for donate in ((), 0):
        with suppress(DeviceError):
            dut.host(dut.jit(lambda a: a * 2 + n, donate_argnums=donate)(dut.array(x)))
            dut.fail("a failing device gave a result")


class _OwnError(Exception):
    """What user code raises."""


def _raises(dut: DeviceFixture, x: Array) -> None:
    def fn(a: bu.Array) -> bu.Array:
        a = a + a
        raise _OwnError

    with suppress(_OwnError):
        dut.jit(fn)(dut.array(x))


@CHECKS.shows("lifetime.freed-once")
def _freed_once(dut: DeviceFixture) -> None:
    """All that is used and freed was allocated and not yet freed, in every kind of call."""
    guard = with_guard_bands(dut.device)
    inner = dut.on_device(guard)
    for _ in range(2):
        _once(inner)
        gc.collect()
    _emptied(guard)
    if guard.ledger.faults:
        dut.fail(guard.ledger.faults[0])


@CHECKS.shows("lifetime.freed-unused")
def _freed_unused(dut: DeviceFixture) -> None:
    """Freed memory, filled by its next owner, shows up in no later result, nor changes."""
    x = dut.ramp(2003)
    fn = dut.jit(lambda a: (bu.flip(a) + a, a * 2))
    with dut.handles() as held:
        owned = []
        for n in range(dut.count(20, 8)):
            scratch = held.put(np.full(x.nbytes, 0xEE, np.uint8))
            held.free(scratch)
            del scratch
            data = np.full(x.nbytes, n + 1, np.uint8)
            owned.append((held.put(data), data))
            first, second = fn(dut.array(x))
            dut.equal(dut.host(first), np.flip(x) + x, "a result among freed memory")
            dut.equal(dut.host(second), x + x, "a result among freed memory")
        for handle, right in owned:
            dut.equal(held.bytes(handle, right.size), right, "memory that had another owner")


@CHECKS.shows("lifetime.reusable")
def _reusable(dut: DeviceFixture) -> None:
    """Allocating and freeing in turn, in total far more than is live at once."""
    nbytes, rounds = dut.count(8 << 20, 256 << 10), dut.count(400, 60)
    limit = dut.info.capabilities.limits.memory_bytes
    if limit:
        nbytes = min(max(nbytes, limit // 8), limit // 4, 1 << 28)
    data = np.full(16, 7, np.uint8)

    def turn() -> None:
        with dut.handles() as held:
            for _ in range(2):
                handle = held.alloc(nbytes)
                held.fill(handle, data)
                dut.equal(held.bytes(handle, 16), data, "memory that is used again")
        dut.device.synchronize()

    _steady(dut, "allocating and freeing", turn, rounds, 16)


@CHECKS.shows("lifetime.result-outlives")
def _result_outlives(dut: DeviceFixture) -> None:
    """Results are read when function, arguments, other results and caches are gone."""
    x = dut.ramp(1500)

    def make_results() -> tuple[Any, ...]:
        fn = dut.jit(lambda a: (a + a, bu.flip(a), a[5:]))
        array = dut.array(x)
        results = fn(array)
        return (*results, array * 3)

    results = make_results()
    one = results[1]
    waiting = results[3]
    del results
    bu.clear_caches()
    gc.collect()
    for _ in range(4):
        dut.host(dut.array(np.zeros_like(x)) + 1)
    dut.equal(dut.host(one), np.flip(x).copy(), "a result whose program is gone")
    dut.equal(dut.host(waiting), x * np.array(3, x.dtype), "work whose inputs are gone")


@CHECKS.shows("lifetime.programs-many")
def _programs_many(dut: DeviceFixture) -> None:
    """Many programs alive at once, called in another order than they were compiled in."""
    x = dut.ramp(31)
    count = dut.count(80, 24)
    functions = [dut.jit(lambda a, n=n: a * 2 + n) for n in range(count)]
    array = dut.array(x)
    for fn in functions:
        fn(array)
    for n in (*reversed(range(count)), *range(0, count, 3)):
        right = x * np.array(2, x.dtype) + np.array(n, x.dtype)
        dut.equal(dut.host(functions[n](array)), right, f"program {n} of {count}")
