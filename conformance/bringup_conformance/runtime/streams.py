"""Work that is queued looks as if it ran in the order in which it was given."""

from __future__ import annotations

import numpy as np

import bringup as bu
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.bench import Bench, Promise
from bringup_conformance.runtime.programs import long_chain, long_transfers, samples
from bringup_conformance.runtime.wrapping import Delaying


def _size(bench: Bench) -> int:
    """Elements that keep a queue busy for a while."""
    return bench.count(20_011, 2003)


def _sizes(bench: Bench) -> list[int]:
    """Elements that keep a queue busy; where work is queued, those too at which transfers may take
    another way.
    """
    found = [_size(bench)]
    if bench.facts.capabilities.asynchronous:
        lengths = long_transfers(bench)
        found += [n // bench.dtype.itemsize + 1 for n in lengths if n < 1 << 23]
    return found


def _chained(x: Array, rounds: int) -> Array:
    one = np.array(1, x.dtype)
    for _ in range(rounds):
        x = np.flip(x) + one
    return np.asarray(x, order="C")


def _read_after_write(bench: Bench) -> None:
    """A pipeline of launches and copies without a wait, each reading what came before."""
    n, rounds = _size(bench), bench.count(40, 12)
    type_ = bench.type(n)
    forward = bench.lower(lambda a: bu.flip(a) + 1, type_)
    for round_ in range(3):
        x = bench.small(n, seed=round_)
        with bench.handles() as held:
            handle = held.put(x)
            for step in range(rounds):
                (result,) = held.run(forward, [handle])
                held.free(handle)
                handle = result
                if step % 3 == 0:
                    copy = held.alloc(type_.nbytes)
                    bench.device.copy(copy, handle, type_.nbytes)
                    held.free(handle)
                    handle = copy
            found = held.get(handle, type_)
        bench.equal(found, _chained(x, rounds), f"a pipeline of {rounds} launches")


def _write_after_read(bench: Bench) -> None:
    """An upload, a copy and a donated call write what slow work was given to read."""
    for n in _sizes(bench):
        _written_behind(bench, n, bench.count(40, 8))


def _written_behind(bench: Bench, n: int, rounds: int) -> None:
    """The same for operands of ``n`` elements."""
    type_ = bench.type(n)
    slow = bench.lower(lambda a: long_chain(bench, a, rounds), type_)
    take = bench.lower(lambda a: a + a, type_, donate=0)
    x, other = bench.small(n), np.full(n, 99, bench.dtype.numpy)
    for way in ("an upload", "a copy", "a donated call"):
        with bench.handles() as held:
            source, spare = held.put(x), held.put(other)
            (result,) = held.run(slow, [source])
            if way == "an upload":
                held.fill(source, other)
            elif way == "a copy":
                bench.device.copy(source, spare, type_.nbytes)
            else:
                held.run(take, [source], frozenset({0}))
            bench.equal(
                held.get(result, type_), _chained(x, rounds), f"work before {way} to its operand"
            )


def _download_ordered(bench: Bench) -> None:
    """Downloads right behind work that takes a while, each time on other data."""
    n, rounds = _size(bench), bench.count(60, 16)
    slow = bench.jit(lambda a: long_chain(bench, a, rounds))
    for round_ in range(bench.count(10, 4)):
        x = bench.small(n, seed=round_)
        found = bench.host(slow(bench.array(x)))
        bench.equal(found, _chained(x, rounds), f"a download right behind slow work, no. {round_}")
    for n in _sizes(bench)[1:]:
        x = bench.small(n)
        found = bench.host(slow(bench.array(x)))
        bench.equal(found, _chained(x, rounds), f"a download of {n} elements behind slow work")


def _synchronize_completes(bench: Bench) -> None:
    """After a wait, memory that the host sees holds the results, without asking again."""
    n, rounds = _size(bench), bench.count(60, 16)
    type_ = bench.type(n)
    slow = bench.lower(lambda a: long_chain(bench, a, rounds), type_)
    for round_ in range(3):
        x = bench.small(n, seed=round_)
        with bench.handles() as held:
            results = [held.run(slow, [held.put(x)])[0] for _ in range(3)]
            bench.device.synchronize()
            bench.device.synchronize()
            for handle in results:
                seen = bench.device.host_view(handle, type_)
                found = held.get(handle, type_) if seen is None else np.array(seen)
                bench.equal(found, _chained(x, rounds), "a result after a wait")


def _free_in_flight(bench: Bench) -> None:
    """Operands and results are freed right behind launches, and their memory asked for again."""
    n, rounds = _size(bench), bench.count(40, 8)
    type_ = bench.type(n)
    slow = bench.lower(lambda a: long_chain(bench, a, rounds), type_)
    add = bench.lower(lambda a, b: a + b, type_, type_)
    junk = np.full(type_.nbytes, 0xFF, np.uint8)
    for round_ in range(bench.count(6, 3)):
        x, y = bench.small(n, seed=round_), bench.small(n, seed=round_ + 50)
        with bench.handles() as held:
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
            bench.equal(held.get(result, type_), right, "work whose memory was freed behind it")


def _interleaved(bench: Bench) -> None:
    """Programs in turn, on their own data, with all results looked at in the end."""
    found = []
    with bench.handles() as held:
        ready = [(s, bench.lower(s.fn, *s.types)) for s in samples(bench)]
        inputs = [[held.put(x) for x in sample.inputs] for sample, _ in ready]
        for round_ in range(3):
            order = ready if round_ % 2 else ready[::-1]
            for sample, compiled in order:
                handles = inputs[next(i for i, r in enumerate(ready) if r[0] is sample)]
                found.append((sample, held.run(compiled, handles)))
        for sample, results in found:
            for i, (handle, right) in enumerate(zip(results, sample.expected, strict=True)):
                type_ = bench.type(*right.shape)
                bench.equal(held.get(handle, type_), right, f"{sample.name} in turn: result {i}")


def _explored(bench: Bench) -> None:
    """Random orders of allocations, transfers, launches, frees and waits; with delays too."""
    from bringup_conformance.runtime.machine import explore

    examples, steps = bench.count(60, 40), bench.count(40, 25)
    slower = bench.elsewhere(Delaying(bench.device, bench.choices("delays")))
    for where, count in ((bench, examples), (slower, examples // 4)):
        found = explore(where, count, steps)
        if found is not None:
            bench.broken(found)


PROMISES: tuple[Promise, ...] = (
    Promise(("stream.read-after-write",), _read_after_write),
    Promise(("stream.write-after-read",), _write_after_read),
    Promise(("stream.download-ordered",), _download_ordered),
    Promise(("stream.synchronize-completes",), _synchronize_completes),
    Promise(("stream.free-in-flight",), _free_in_flight),
    Promise(("stream.interleaved",), _interleaved),
    Promise(
        (
            "stream.delays-harmless",
            "stream.read-after-write",
            "stream.write-after-read",
            "stream.download-ordered",
            "stream.free-in-flight",
        ),
        _explored,
    ),
)
