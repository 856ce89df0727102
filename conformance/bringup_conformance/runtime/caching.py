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
from bringup_conformance.runtime import second
from bringup_conformance.runtime.bench import Bench, Promise
from bringup_conformance.runtime.programs import Sample, samples
from bringup_conformance.runtime.second import check
from bringup_conformance.runtime.variants import families
from bringup_conformance.runtime.wrapping import Counting


def _nearly_same(rule: str) -> Callable[[Bench], None]:
    """Programs of one family in random order, as functions, as recorded operations, and again."""

    def run(bench: Bench) -> None:
        found = families(bench)[rule]
        if len(found) < 2:
            raise NotOffered("it has no two programs of this family")
        order = bench.choices(rule)
        for turn in ("compiled", "recorded", "compiled again"):
            left = list(found)
            while left:
                sample = left.pop(order.integer(0, len(left) - 1))
                if turn == "recorded":
                    _recorded(bench, sample)
                else:
                    check(bench, sample, f"{sample.name}, {turn}")

    return run


def _recorded(bench: Bench, sample: Sample) -> None:
    """The program as operations on arrays that nobody compiled by name."""
    with bu.device(bench.open):
        results = sample.fn(*map(bench.array, sample.inputs))
        results = results if isinstance(results, tuple) else (results,)
        for i, (result, right) in enumerate(zip(results, sample.expected, strict=True)):
            bench.equal(bench.host(result), right, f"{sample.name}, recorded: result {i}")


def _hit_same(bench: Bench) -> None:
    """The call that compiles, the next ones, one in another thread, and one compiled anew."""
    for sample in samples(bench):
        fn = bench.jit(sample.fn)
        for turn in ("the call that compiles", "the second call", "the third call"):
            _call(bench, fn, sample, turn)
        errors: list[BaseException] = []
        worker = threading.Thread(target=_caught, args=(errors, bench, fn, sample))
        worker.start()
        worker.join()
        if errors:
            raise errors[0]
        bu.clear_caches()
        check(bench, sample, f"{sample.name}, compiled anew")


def _compiled_once(bench: Bench) -> None:
    """How often the device is asked to compile: by an equal function, and by the same operations
    recorded again.
    """
    counting = Counting(bench.device)
    inner = bench.elsewhere(counting)
    for sample in samples(bench):
        recorded = partial(_recorded, inner, sample)
        runs = {
            "a function": partial(check, inner, sample, sample.name),
            "an equal function": partial(check, inner, _equal(sample), sample.name),
            "its operations, recorded": recorded,
            "the same operations again": recorded,
        }
        made: dict[str, int] = {}
        for what, run in runs.items():
            before = counting.compiled
            run()
            made[what] = counting.compiled - before
        bench.require(made["a function"] > 0, f"{sample.name}: the device compiled nothing")
        for what in ("an equal function", "the same operations again"):
            count = made[what]
            bench.require(not count, f"{sample.name}: {what} had the device compile {count} more")


def _equal(sample: Sample) -> Sample:
    """Another function that records the same program."""

    def other(*arrays: bu.Array) -> Any:
        return sample.fn(*arrays)

    return replace(sample, fn=other)


def _caught(
    errors: list[BaseException], bench: Bench, fn: Callable[..., object], sample: Sample
) -> None:
    try:
        _call(bench, fn, sample, "a call in another thread")
    except Exception as error:  # noqa: BLE001  (raised again in the thread that waits)
        errors.append(error)


def _call(bench: Bench, fn: Callable[..., object], sample: Sample, turn: str) -> None:
    results = fn(*map(bench.array, sample.inputs))
    listed = list(results) if isinstance(results, tuple | list) else [results]
    for i, (result, right) in enumerate(zip(listed, sample.expected, strict=True)):
        bench.equal(np.array(result), right, f"{sample.name}, {turn}: result {i}")


def _key_donation(bench: Bench) -> None:
    """Functions with and without donation, in turn, each way first once: where nothing is donated,
    inputs stay.
    """
    x, y = bench.ramp(65), bench.small(65, seed=2)
    ways: tuple[Any, ...] = ((), 0, 1, (0, 1), (), (0, 1), ())
    for factor, order in ((2, ways), (3, ways[1:]), (4, ways[2:]), (5, ways[3:])):

        def fn(a: bu.Array, b: bu.Array, factor: int = factor) -> bu.Array:
            return a * factor + b

        right = x * np.array(factor, x.dtype) + y
        for donate in order:
            made = bench.jit(fn, donate_argnums=donate)
            arrays = [bench.array(x), bench.array(y)]
            what = f"a * {factor} + b with {donate} donated"
            bench.equal(bench.host(made(*arrays)), right, what)
            given = (donate,) if isinstance(donate, int) else donate
            for i, (array, host) in enumerate(zip(arrays, (x, y), strict=True)):
                if i in given:
                    continue
                bench.require(not array.is_deleted, f"{what}: input {i} is deleted")
                bench.equal(bench.host(array), host, f"{what}: input {i} afterwards")


def _key_device(bench: Bench) -> None:
    """One function on two devices of the backend in turn: each result is on its own device."""
    places = (bench, bench.neighbour())
    for sample in samples(bench):
        fn = bu.jit(sample.fn)
        for turn in range(4):
            where = places[turn % 2]
            arrays = [where.array(x) for x in sample.inputs]
            results = fn(*arrays)
            for result in results if isinstance(results, tuple) else (results,):
                bench.require(
                    result.device is where.open,
                    f"{sample.name}: a result for {where.open} is on {result.device}",
                )
            _call(where, fn, sample, f"on {where.open}")


def _key_lifetime(bench: Bench) -> None:
    """Many programs of like structure, each dropped before the next is made."""
    x = bench.ramp(9)
    for n in range(bench.count(60, 24)):
        value, factor = n % 7, n // 7

        def fn(a: bu.Array, value: int = value, factor: int = factor) -> bu.Array:
            return a * factor + value

        right = x * np.array(factor, x.dtype) + np.array(value, x.dtype)
        made = bench.jit(fn)
        bench.equal(bench.host(made(bench.array(x))), right, f"x * {factor} + {value}")
        del made, fn
        if n % 6 == 5:
            bu.clear_caches()
            gc.collect()


def _disk_same(bench: Bench) -> None:
    """A process that finds what another one compiled, and one that finds it damaged."""
    name, seed = _named(bench), bench.facts.seed
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for turn, what in enumerate(("the first", "the second", "after damage, the third")):
            if turn == 2:
                _damage(place)
            said = second.wait(second.start(name, seed, turn, place))
            if said:
                bench.broken(f"{what} of several processes in turn: {said}")


def _damage(folder: Path) -> None:
    """Cut, empty and overwrite files in turn; of folders with files, leave one as it is, put a file
    in the place of the next, and let everybody write into the third.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for number, path in enumerate(files):
        data = path.read_bytes()
        middle = len(data) // 2
        spoilt = data[:middle] + b"\xff" * (len(data) - middle)
        path.write_bytes((data[:middle], b"", spoilt)[number % 3])
    for number, inner in enumerate(sorted({path.parent for path in files} - {folder})):
        if number % 3 == 1:
            shutil.rmtree(inner)
            inner.touch()
        elif number % 3 == 2:
            inner.chmod(0o777)


def _processes_concurrent(bench: Bench) -> None:
    """Two processes that compile the same programs at once, with files in one folder."""
    name, seed = _named(bench), bench.facts.seed
    with tempfile.TemporaryDirectory() as folder:
        started = [second.start(name, seed, 7, Path(folder)) for _ in range(2)]
        said = [second.wait(process) for process in started]
    for what in filter(None, said):
        bench.broken(f"one of two processes at once: {what}")


def _named(bench: Bench) -> str:
    name = bench.by_name
    if name is None:
        raise NotOffered("another process cannot open it by name")
    return name


PROMISES: tuple[Promise, ...] = (
    Promise(("cache.hit-same",), _hit_same),
    Promise(("cache.compiled-once",), _compiled_once),
    Promise(("cache.key-shape",), _nearly_same("cache.key-shape")),
    Promise(("cache.key-dtype",), _nearly_same("cache.key-dtype")),
    Promise(("cache.key-constant",), _nearly_same("cache.key-constant")),
    Promise(("cache.key-attribute",), _nearly_same("cache.key-attribute")),
    Promise(("cache.key-operands",), _nearly_same("cache.key-operands")),
    Promise(("cache.key-structure",), _nearly_same("cache.key-structure")),
    Promise(("cache.key-donation",), _key_donation),
    Promise(("cache.key-device",), _key_device),
    Promise(("cache.key-lifetime",), _key_lifetime),
    Promise(("cache.disk-same",), _disk_same),
    Promise(("cache.processes-concurrent",), _processes_concurrent),
)
