"""Compiled programs that are used again."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bringup as bu
from bringup_conformance.cases import NotOffered
from bringup_conformance.runtime import second_process
from bringup_conformance.runtime.cache_key_cases import families
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.programs import Sample, call_sample, samples
from bringup_conformance.runtime.proxy_devices import CountingDevice

CHECKS = ContractChecks()


def _nearly_same(rule: str) -> Callable[[DeviceFixture], None]:
    """Programs of one family in random order, as functions, as recorded operations, and again."""

    def run(dut: DeviceFixture) -> None:
        family = families(dut)[rule]
        if len(family) < 2:
            raise NotOffered("it has no two programs of this family")
        order = dut.choices(rule)
        for call in ("compiled", "recorded", "compiled again"):
            left = list(family)
            while left:
                sample = left.pop(order.integer(0, len(left) - 1))
                if call == "recorded":
                    _recorded(dut, sample)
                else:
                    call_sample(dut, sample, f"{sample.name}, {call}")

    return run


def _recorded(dut: DeviceFixture, sample: Sample) -> None:
    """The program as operations on arrays that nobody compiled by name."""
    with bu.device(dut.open):
        call_sample(dut, sample, f"{sample.name}, recorded", fn=sample.fn)


@CHECKS.shows("cache.hit-same")
def _hit_same(dut: DeviceFixture) -> None:
    """The call that compiles, the next ones, one in another thread, and one compiled anew."""
    for sample in samples(dut):
        fn = dut.jit(sample.fn)
        for call in ("the call that compiles", "the second call", "the third call"):
            call_sample(dut, sample, f"{sample.name}, {call}", fn=fn)
        errors: list[BaseException] = []
        worker = threading.Thread(target=_caught, args=(errors, dut, fn, sample))
        worker.start()
        worker.join()
        if errors:
            raise errors[0]
        bu.clear_caches()
        call_sample(dut, sample, f"{sample.name}, compiled anew")


@CHECKS.shows("cache.compiled-once")
def _compiled_once(dut: DeviceFixture) -> None:
    """How often the device is asked to compile: by an equal function, and by the same operations
    recorded again.
    """
    counting = CountingDevice(dut.device)
    inner = dut.on_device(counting)
    for sample in samples(dut):
        recorded = partial(_recorded, inner, sample)
        runs = {
            "a function": partial(call_sample, inner, sample, sample.name),
            "an equal function": partial(call_sample, inner, _equal(sample), sample.name),
            "its operations, recorded": recorded,
            "the same operations again": recorded,
        }
        functions: dict[str, int] = {}
        for what, run in runs.items():
            before = counting.compiled
            run()
            functions[what] = counting.compiled - before
        dut.require(functions["a function"] > 0, f"{sample.name}: the device compiled nothing")
        for what in ("an equal function", "the same operations again"):
            count = functions[what]
            dut.require(not count, f"{sample.name}: {what} had the device compile {count} more")


def _equal(sample: Sample) -> Sample:
    """Another function that records the same program."""

    def other(*arrays: bu.Array) -> Any:
        return sample.fn(*arrays)

    return replace(sample, fn=other)


def _caught(
    errors: list[BaseException], dut: DeviceFixture, fn: Callable[..., object], sample: Sample
) -> None:
    try:
        call_sample(dut, sample, f"{sample.name}, a call in another thread", fn=fn)
    except Exception as error:  # noqa: BLE001  (raised again in the thread that waits)
        errors.append(error)


@CHECKS.shows("cache.key-donation")
def _key_donation(dut: DeviceFixture) -> None:
    """Functions with and without donation, in call, each way first once: where nothing is donated,
    inputs stay.
    """
    x, y = dut.ramp(65), dut.small(65, seed=2)
    ways: tuple[Any, ...] = ((), 0, 1, (0, 1), (), (0, 1), ())
    for factor, order in ((2, ways), (3, ways[1:]), (4, ways[2:]), (5, ways[3:])):

        def fn(a: bu.Array, b: bu.Array, factor: int = factor) -> bu.Array:
            return a * factor + b

        right = x * np.array(factor, x.dtype) + y
        for donate in order:
            compiled = dut.jit(fn, donate_argnums=donate)
            arrays = [dut.array(x), dut.array(y)]
            what = f"a * {factor} + b with {donate} donated"
            dut.equal(dut.host(compiled(*arrays)), right, what)
            donated = (donate,) if isinstance(donate, int) else donate
            for i, (array, host) in enumerate(zip(arrays, (x, y), strict=True)):
                if i in donated:
                    continue
                dut.require(not array.is_deleted, f"{what}: input {i} is deleted")
                dut.equal(dut.host(array), host, f"{what}: input {i} afterwards")


@CHECKS.shows("cache.key-device")
def _key_device(dut: DeviceFixture) -> None:
    """One function on two devices of the backend in call: each result is on its own device."""
    fixtures = (dut, dut.neighbour())
    for sample in samples(dut):
        fn = bu.jit(sample.fn)
        for call in range(4):
            where = fixtures[call % 2]
            arrays = [where.array(x) for x in sample.inputs]
            results = fn(*arrays)
            for result in results if isinstance(results, tuple) else (results,):
                dut.require(
                    result.device is where.open,
                    f"{sample.name}: a result for {where.open} is on {result.device}",
                )
            call_sample(where, sample, f"{sample.name}, on {where.open}", fn=fn)


@CHECKS.shows("cache.key-lifetime")
def _key_lifetime(dut: DeviceFixture) -> None:
    """Many programs of like structure, each dropped before the next is made."""
    x = dut.ramp(9)
    for n in range(dut.count(60, 24)):
        value, factor = n % 7, n // 7

        def fn(a: bu.Array, value: int = value, factor: int = factor) -> bu.Array:
            return a * factor + value

        right = x * np.array(factor, x.dtype) + np.array(value, x.dtype)
        compiled = dut.jit(fn)
        dut.equal(dut.host(compiled(dut.array(x))), right, f"x * {factor} + {value}")
        del compiled, fn
        if n % 6 == 5:
            bu.clear_caches()
            gc.collect()


@CHECKS.shows("cache.disk-same")
def _disk_same(dut: DeviceFixture) -> None:
    """A process that finds what another one compiled, and one that finds it damaged."""
    name, seed = _named(dut), dut.info.seed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for call, what in enumerate(("the first", "the second", "after damage, the third")):
            if call == 2:
                _damage(path)
            said = second_process.wait(second_process.start(name, seed, call, path))
            if said:
                dut.fail(f"{what} of several processes in call: {said}")


def _damage(folder: Path) -> None:
    """Cut, empty and overwrite files in call; of folders with files, leave one as it is, put a file
    in the place of the next, and let everybody write into the third.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for number, path in enumerate(files):
        data = path.read_bytes()
        middle = len(data) // 2
        spoilt = data[:middle] + b"\xff" * (len(data) - middle)
        path.write_bytes((data[:middle], b"", spoilt)[number % 3])
    for number, inner in enumerate(sorted({path.parent for path in files} - {folder})):
        if not inner.is_dir():  # it was in one that is a file now
            continue
        if number % 3 == 1:
            shutil.rmtree(inner)
            inner.touch()
        elif number % 3 == 2:
            inner.chmod(0o777)


@CHECKS.shows("cache.processes-concurrent")
def _processes_concurrent(dut: DeviceFixture) -> None:
    """Two processes that compile the same programs at once, with files in one folder."""
    name, seed = _named(dut), dut.info.seed
    with tempfile.TemporaryDirectory() as folder:
        started = [second_process.start(name, seed, 7, Path(folder)) for _ in range(2)]
        said = [second_process.wait(process) for process in started]
    for what in filter(None, said):
        dut.fail(f"one of two processes at once: {what}")


def _named(dut: DeviceFixture) -> str:
    name = dut.by_name
    if name is None:
        raise NotOffered("another process cannot open it by name")
    return name


CHECKS.shows("cache.key-shape")(_nearly_same("cache.key-shape"))
CHECKS.shows("cache.key-dtype")(_nearly_same("cache.key-dtype"))
CHECKS.shows("cache.key-constant")(_nearly_same("cache.key-constant"))
CHECKS.shows("cache.key-attribute")(_nearly_same("cache.key-attribute"))
CHECKS.shows("cache.key-operands")(_nearly_same("cache.key-operands"))
CHECKS.shows("cache.key-structure")(_nearly_same("cache.key-structure"))
