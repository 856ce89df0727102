"""Work that is queued looks as if it ran in the order in which it was given."""

from __future__ import annotations

import numpy as np

import bringup as bu
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.programs import (
    long_chain,
    long_transfers,
    results_equal,
    samples,
)
from bringup_conformance.runtime.proxy_devices import DelayingDevice

CHECKS = ContractChecks()


def _size(dut: DeviceFixture) -> int:
    """Elements that keep a queue busy for a while."""
    return dut.count(20_011, 2003)


def _sizes(dut: DeviceFixture) -> list[int]:
    """Elements that keep a queue busy; where work is queued, those too at which transfers may take
    another way.
    """
    sizes = [_size(dut)]
    if dut.info.capabilities.asynchronous:
        lengths = long_transfers(dut)
        sizes += [n // dut.dtype.itemsize + 1 for n in lengths if n < 1 << 23]
    return sizes


def _chained(x: Array, rounds: int) -> Array:
    one = np.array(1, x.dtype)
    for _ in range(rounds):
        x = np.flip(x) + one
    return np.asarray(x, order="C")


@CHECKS.shows("stream.read-after-write")
def _read_after_write(dut: DeviceFixture) -> None:
    """A pipeline of launches and copies without a wait, each reading what came before."""
    n, rounds = _size(dut), dut.count(40, 12)
    type_ = dut.type(n)
    forward = dut.lower(lambda a: bu.flip(a) + 1, type_)
    for round_ in range(3):
        x = dut.small(n, seed=round_)
        with dut.handles() as held:
            handle = held.put(x)
            for step in range(rounds):
                (result,) = held.run(forward, [handle])
                held.free(handle)
                handle = result
                if step % 3 == 0:
                    copy = held.alloc(type_.nbytes)
                    dut.device.copy(copy, handle, type_.nbytes)
                    held.free(handle)
                    handle = copy
            actual = held.get(handle, type_)
        dut.equal(actual, _chained(x, rounds), f"a pipeline of {rounds} launches")


@CHECKS.shows("stream.write-after-read")
def _write_after_read(dut: DeviceFixture) -> None:
    """An upload, a copy and a donated call write what slow work was given to read."""
    for n in _sizes(dut):
        _written_behind(dut, n, dut.count(40, 8))


def _written_behind(dut: DeviceFixture, n: int, rounds: int) -> None:
    """The same for operands of ``n`` elements."""
    type_ = dut.type(n)
    slow = dut.lower(lambda a: long_chain(dut, a, rounds), type_)
    take = dut.lower(lambda a: a + a, type_, donate=0)
    x, other = dut.small(n), np.full(n, 99, dut.dtype.numpy)
    for way in ("an upload", "a copy", "a donated call"):
        with dut.handles() as held:
            source, spare = held.put(x), held.put(other)
            (result,) = held.run(slow, [source])
            if way == "an upload":
                held.fill(source, other)
            elif way == "a copy":
                dut.device.copy(source, spare, type_.nbytes)
            else:
                held.run(take, [source], frozenset({0}))
            dut.equal(
                held.get(result, type_), _chained(x, rounds), f"work before {way} to its operand"
            )


@CHECKS.shows("stream.download-ordered")
def _download_ordered(dut: DeviceFixture) -> None:
    """Downloads right behind work that takes a while, each time on other data."""
    n, rounds = _size(dut), dut.count(60, 16)
    slow = dut.jit(lambda a: long_chain(dut, a, rounds))
    for round_ in range(dut.count(10, 4)):
        x = dut.small(n, seed=round_)
        actual = dut.host(slow(dut.array(x)))
        dut.equal(actual, _chained(x, rounds), f"a download right behind slow work, no. {round_}")
    for n in _sizes(dut)[1:]:
        x = dut.small(n)
        actual = dut.host(slow(dut.array(x)))
        dut.equal(actual, _chained(x, rounds), f"a download of {n} elements behind slow work")


@CHECKS.shows("stream.synchronize-completes")
def _synchronize_completes(dut: DeviceFixture) -> None:
    """After a wait, memory that the host sees holds the results, without asking again."""
    n, rounds = _size(dut), dut.count(60, 16)
    type_ = dut.type(n)
    slow = dut.lower(lambda a: long_chain(dut, a, rounds), type_)
    for round_ in range(3):
        x = dut.small(n, seed=round_)
        with dut.handles() as held:
            results = [held.run(slow, [held.put(x)])[0] for _ in range(3)]
            dut.device.synchronize()
            dut.device.synchronize()
            for handle in results:
                seen = dut.device.host_view(handle, type_)
                actual = held.get(handle, type_) if seen is None else np.array(seen)
                dut.equal(actual, _chained(x, rounds), "a result after a wait")


@CHECKS.shows("stream.free-in-flight")
def _free_in_flight(dut: DeviceFixture) -> None:
    """Operands and results are freed right behind launches, and their memory asked for again."""
    n, rounds = _size(dut), dut.count(40, 8)
    type_ = dut.type(n)
    slow = dut.lower(lambda a: long_chain(dut, a, rounds), type_)
    add = dut.lower(lambda a, b: a + b, type_, type_)
    junk = np.full(type_.nbytes, 0xFF, np.uint8)
    for round_ in range(dut.count(6, 3)):
        x, y = dut.small(n, seed=round_), dut.small(n, seed=round_ + 50)
        with dut.handles() as held:
            first, second = held.put(x), held.put(y)
            (middle,) = held.run(slow, [first])
            held.free(first)
            for _ in range(2):
                held.put(junk)
            (result,) = held.run(add, [middle, second])
            held.free(middle)
            held.free(second)
            for _ in range(3):
                held.put(junk)
            right = _chained(x, rounds) + y
            del first, second, middle
            dut.equal(held.get(result, type_), right, "work whose memory was freed behind it")


@CHECKS.shows("stream.interleaved")
def _interleaved(dut: DeviceFixture) -> None:
    """Programs in turn, on their own data, with all results looked at in the end."""
    problems = []
    with dut.handles() as held:
        ready = [(s, dut.lower(s.fn, *s.types)) for s in samples(dut)]
        inputs = [[held.put(x) for x in sample.inputs] for sample, _ in ready]
        for round_ in range(3):
            order = ready if round_ % 2 else ready[::-1]
            for sample, compiled in order:
                handles = inputs[next(i for i, r in enumerate(ready) if r[0] is sample)]
                problems.append((sample, held.run(compiled, handles)))
        for sample, results in problems:
            results_equal(dut, held, results, sample.expected, f"{sample.name} in turn: {{}}")


@CHECKS.shows(
    "stream.delays-harmless",
    "stream.read-after-write",
    "stream.write-after-read",
    "stream.download-ordered",
    "stream.free-in-flight",
)
def _explored(dut: DeviceFixture) -> None:
    """Random orders of allocations, transfers, launches, frees and waits; with delays too."""
    from bringup_conformance.runtime.machine import explore

    examples, steps = dut.count(60, 40), dut.count(40, 25)
    slower = dut.on_device(DelayingDevice(dut.device, dut.choices("delays")))
    for where, count in ((dut, examples), (slower, examples // 4)):
        problem = explore(where, count, steps)
        if problem is not None:
            dut.fail(problem)
