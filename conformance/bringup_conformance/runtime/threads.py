"""Calls from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import bringup as bu
from bringup_conformance.runtime.arena_pressure import arena_samples
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.programs import Sample, call_sample, long_chain, samples

CHECKS = ContractChecks()

_THREADS = 4
# What a thread may take, in seconds; far more than it needs.
_PATIENCE = 120.0


def together(dut: DeviceFixture, work: Sequence[Callable[[], None]]) -> None:
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
        dut.fail(f"threads did not end in {_PATIENCE:.0f} s", kind="hang")


@CHECKS.shows("threads.calls-concurrent")
def _calls_concurrent(dut: DeviceFixture) -> None:
    """Several threads call one function, each on its own data, and different ones."""
    n, rounds = dut.count(4099, 515), dut.count(30, 8)
    type_one = np.array(1, dut.dtype.numpy)
    same = dut.jit(lambda a, b: (long_chain(dut, a, 4) + b, a - b))
    same(dut.small(n), dut.small(n))

    def caller(which: int) -> None:
        for round_ in range(rounds):
            x, y = dut.small(n, seed=which), dut.small(n, seed=10 + round_)
            first, second = same(dut.array(x), dut.array(y))
            right = x + type_one * np.array(4, x.dtype) + y
            dut.equal(dut.host(first), right, f"thread {which}: result 0")
            dut.equal(dut.host(second), x - y, f"thread {which}: result 1")

    together(dut, [partial(caller, which) for which in range(_THREADS)])
    # These need scratch memory, and some are of equal types.
    with_scratch = [(s, dut.jit(s.fn)) for s in arena_samples(dut, 33)]
    ready = [*((s, dut.jit(s.fn)) for s in samples(dut)), *with_scratch]
    together(dut, [partial(_repeat, dut, s, fn, rounds) for s, fn in ready])
    for sample, fn in with_scratch:
        together(dut, [partial(_repeat, dut, sample, fn, rounds // 4)] * _THREADS)


def _repeat(dut: DeviceFixture, sample: Sample, fn: Callable[..., Any], rounds: int) -> None:
    for _ in range(rounds):
        call_sample(dut, sample, f"{sample.name} beside other programs", fn=fn)


@CHECKS.shows("threads.compile-concurrent")
def _compile_concurrent(dut: DeviceFixture) -> None:
    """Several threads trace and compile at once: the same functions, others, and recorded ones."""
    bu.clear_caches()
    shared = [(s, dut.jit(s.fn)) for s in samples(dut)]

    def compiler(which: int) -> None:
        for sample, fn in (*shared[which:], *shared[:which]):
            _repeat(dut, sample, fn, 1)
            _repeat(dut, sample, dut.jit(sample.fn), 1)
        for n in range(4):
            x = dut.small(20 + 8 * which + n)
            actual = dut.host(dut.array(x) * (n + 2) - which)
            right = x * np.array(n + 2, x.dtype) - np.array(which, x.dtype)
            dut.equal(actual, right, f"thread {which}: recorded operations, size {x.size}")

    together(dut, [partial(compiler, which) for which in range(_THREADS)])


@CHECKS.shows("threads.memory-concurrent")
def _memory_concurrent(dut: DeviceFixture) -> None:
    """Several threads allocate, transfer, copy and free, each its own memory."""
    rounds = dut.count(120, 30)

    def worker(which: int) -> None:
        choices = dut.choices("threads", which)
        with dut.handles() as held:
            live = []
            for n in range(rounds):
                data = np.full(choices.integer(1, 3000), (which * 64 + n) % 251, np.uint8)
                handle = held.put(data)
                copy = held.alloc(data.size)
                dut.device.copy(copy, handle, data.size)
                held.free(handle)
                live.append((copy, data))
                if len(live) > 6:
                    old, right = live.pop(choices.integer(0, 5))
                    dut.equal(held.bytes(old, right.size), right, f"memory of thread {which}")
                    held.free(old)
                    del old
                del handle, copy

    together(dut, [partial(worker, which) for which in range(_THREADS)])


@CHECKS.shows("threads.any-thread")
def _any_thread(dut: DeviceFixture) -> None:
    """Arrays made, functions compiled and results looked at by different threads."""
    x = dut.small(1029)
    shared: dict[str, Any] = {}

    def make() -> None:
        shared["array"] = dut.array(x)
        shared["waiting"] = dut.array(x) * 3

    def compile_() -> None:
        shared["fn"] = dut.jit(lambda a, b: (a + b, bu.flip(a)))
        shared["first"] = shared["fn"](shared["array"], shared["waiting"])

    def call() -> None:
        shared["second"] = shared["fn"](shared["array"], shared["waiting"])

    for step in (make, compile_, call):
        together(dut, [step])
    four = np.array(4, x.dtype)
    for results in (
        shared["first"],
        shared["second"],
        shared["fn"](shared["array"], shared["waiting"]),
    ):
        dut.equal(dut.host(results[0]), x * four, "a sum that several threads made")
        dut.equal(dut.host(results[1]), np.flip(x).copy(), "a move that several threads made")
