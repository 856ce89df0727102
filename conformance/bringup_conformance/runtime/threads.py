"""Calls from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import bringup as bu
from bringup_conformance.runtime.bench import Bench, Promise
from bringup_conformance.runtime.crowds import crowds
from bringup_conformance.runtime.programs import Sample, long_chain, samples

_THREADS = 4
# What a thread may take, in seconds; far more than it needs.
_PATIENCE = 120.0


def together(bench: Bench, work: Sequence[Callable[[], None]]) -> None:
    """Do several things at once, each in a thread; raises what the first one to fail raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(do: Callable[[], None]) -> None:
        try:
            start.wait(_PATIENCE)
            do()
        except Exception as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    workers = [threading.Thread(target=run, args=(do,), daemon=True) for do in work]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(_PATIENCE)
    if errors:
        raise errors[0]
    if any(worker.is_alive() for worker in workers):
        bench.broken(f"threads did not end in {_PATIENCE:.0f} s", kind="hang")


def _calls_concurrent(bench: Bench) -> None:
    """Several threads call one function, each on its own data, and different ones."""
    n, rounds = bench.count(4099, 515), bench.count(30, 8)
    type_one = np.array(1, bench.dtype.numpy)
    same = bench.jit(lambda a, b: (long_chain(bench, a, 4) + b, a - b))
    same(bench.small(n), bench.small(n))

    def caller(which: int) -> None:
        for round_ in range(rounds):
            x, y = bench.small(n, seed=which), bench.small(n, seed=10 + round_)
            first, second = same(bench.array(x), bench.array(y))
            right = x + type_one * np.array(4, x.dtype) + y
            bench.equal(bench.host(first), right, f"thread {which}: result 0")
            bench.equal(bench.host(second), x - y, f"thread {which}: result 1")

    together(bench, [partial(caller, which) for which in range(_THREADS)])
    # Those that crowd the arena need scratch memory, and some are of equal types.
    crowding = [(s, bench.jit(s.fn)) for s in crowds(bench, 33)]
    ready = [*((s, bench.jit(s.fn)) for s in samples(bench)), *crowding]
    together(bench, [partial(_repeat, bench, s, fn, rounds) for s, fn in ready])
    for sample, fn in crowding:
        together(bench, [partial(_repeat, bench, sample, fn, rounds // 4)] * _THREADS)


def _repeat(bench: Bench, sample: Sample, fn: Callable[..., Any], rounds: int) -> None:
    for _ in range(rounds):
        results = fn(*map(bench.array, sample.inputs))
        listed = results if isinstance(results, tuple | list) else [results]
        for i, (result, right) in enumerate(zip(listed, sample.expected, strict=True)):
            where = f"{sample.name} beside other programs: result {i}"
            bench.equal(bench.host(result), right, where)


def _compile_concurrent(bench: Bench) -> None:
    """Several threads trace and compile at once: the same functions, others, and recorded ones."""
    bu.clear_caches()
    shared = [(s, bench.jit(s.fn)) for s in samples(bench)]

    def compiler(which: int) -> None:
        for sample, fn in (*shared[which:], *shared[:which]):
            _repeat(bench, sample, fn, 1)
            _repeat(bench, sample, bench.jit(sample.fn), 1)
        for n in range(4):
            x = bench.small(20 + 8 * which + n)
            found = bench.host(bench.array(x) * (n + 2) - which)
            right = x * np.array(n + 2, x.dtype) - np.array(which, x.dtype)
            bench.equal(found, right, f"thread {which}: recorded operations, size {x.size}")

    together(bench, [partial(compiler, which) for which in range(_THREADS)])


def _memory_concurrent(bench: Bench) -> None:
    """Several threads allocate, transfer, copy and free, each its own memory."""
    rounds = bench.count(120, 30)

    def worker(which: int) -> None:
        choices = bench.choices("threads", which)
        with bench.handles() as held:
            kept = []
            for n in range(rounds):
                data = np.full(choices.integer(1, 3000), (which * 64 + n) % 251, np.uint8)
                handle = held.put(data)
                copy = held.alloc(data.size)
                bench.device.copy(copy, handle, data.size)
                held.free(handle)
                kept.append((copy, data))
                if len(kept) > 6:
                    old, right = kept.pop(choices.integer(0, 5))
                    bench.equal(held.bytes(old, right.size), right, f"memory of thread {which}")
                    held.free(old)
                    del old
                del handle, copy

    together(bench, [partial(worker, which) for which in range(_THREADS)])


def _any_thread(bench: Bench) -> None:
    """Arrays made, functions compiled and results looked at by different threads."""
    x = bench.small(1029)
    made: dict[str, Any] = {}

    def make() -> None:
        made["array"] = bench.array(x)
        made["waiting"] = bench.array(x) * 3

    def compile_() -> None:
        made["fn"] = bench.jit(lambda a, b: (a + b, bu.flip(a)))
        made["first"] = made["fn"](made["array"], made["waiting"])

    def call() -> None:
        made["second"] = made["fn"](made["array"], made["waiting"])

    for step in (make, compile_, call):
        together(bench, [step])
    four = np.array(4, x.dtype)
    for results in (made["first"], made["second"], made["fn"](made["array"], made["waiting"])):
        bench.equal(bench.host(results[0]), x * four, "a sum that several threads made")
        bench.equal(bench.host(results[1]), np.flip(x).copy(), "a move that several threads made")


PROMISES: tuple[Promise, ...] = (
    Promise(("threads.calls-concurrent",), _calls_concurrent),
    Promise(("threads.compile-concurrent",), _compile_concurrent),
    Promise(("threads.memory-concurrent",), _memory_concurrent),
    Promise(("threads.any-thread",), _any_thread),
)
