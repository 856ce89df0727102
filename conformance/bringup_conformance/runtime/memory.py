"""What an allocation is: its bytes are its own, and no result depends on what it held."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np

import bringup as bu
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.runtime.banded import BandedPrograms, BandedSteps, banded
from bringup_conformance.runtime.bench import Bench, Handles, Promise
from bringup_conformance.runtime.crowds import crowds
from bringup_conformance.runtime.programs import ODD, Sample, samples, types_of

#: Bytes that fresh memory is filled with: NaN of every float, a large number, zero.
_POISONS = (0xFF, 0x7B, 0x00)


def _input_unchanged(bench: Bench) -> None:
    """Handles keep their bytes, and arrays of the host as well."""
    for sample in samples(bench):
        compiled = bench.lower(sample.fn, *sample.types)
        with bench.handles() as held:
            handles = [held.put(x) for x in sample.inputs]
            for _ in range(2):
                held.run(compiled, handles)
            for i, (handle, x, type_) in enumerate(
                zip(handles, sample.inputs, sample.types, strict=True)
            ):
                bench.equal(held.get(handle, type_), x, f"{sample.name}: input {i} after two calls")
        hosts = [x.copy() for x in sample.inputs]
        bench.jit(sample.fn)(*hosts)
        for i, (host, x) in enumerate(zip(hosts, sample.inputs, strict=True)):
            bench.equal(host, x, f"{sample.name}: host array {i} after a call on it")


def _outside_untouched(bench: Bench) -> None:
    """Runs with bands round memory, fused and taken apart, at sizes with tails."""
    for poison in _POISONS[:2]:
        guard = banded(bench.device, poison)
        inner = bench.elsewhere(guard)
        for sample in _tailed(bench):
            _run_banded(inner, sample, guard)
        _run_donated(inner, guard)
    _prefixes(bench)


def _run_banded(bench: Bench, sample: Sample, guard: BandedSteps | BandedPrograms) -> None:
    arrays = [bench.array(x) for x in sample.inputs]
    results = bench.jit(sample.fn)(*arrays)
    results = results if isinstance(results, list | tuple) else [results]
    for i, (result, right) in enumerate(zip(results, sample.expected, strict=True)):
        bench.equal(
            bench.host(result), right, f"{sample.name}: result {i}", "memory.contents-irrelevant"
        )
    guard.check_all()
    del arrays, results, result
    _no_faults(bench, guard, sample.name)


def _run_donated(bench: Bench, guard: BandedSteps | BandedPrograms) -> None:
    """Results that take the place of inputs lie between bands on every device."""
    for n in (*ODD, 1025):
        x = bench.small(n)
        step = bench.jit(lambda a: a * 2 + 1, donate_argnums=0)
        result = step(bench.array(x))
        bench.equal(
            bench.host(result),
            x * np.array(2, x.dtype) + np.array(1, x.dtype),
            f"a donated call on {n} elements",
            "donation.values-same",
        )
        guard.check_all()
        del result
        _no_faults(bench, guard, f"a donated call on {n} elements")


def _no_faults(bench: Bench, guard: BandedSteps | BandedPrograms, where: str) -> None:
    if guard.ledger.faults:
        bench.broken(f"{where}: {guard.ledger.faults[0]}", "memory.outside-untouched")


def _prefixes(bench: Bench) -> None:
    """Uploads and copies of part of an allocation leave the rest."""
    with bench.handles() as held:
        for nbytes in (1, 3, 8, 63, 65, 200):
            whole = np.full(256, 0x5A, np.uint8)
            target, source = held.put(whole), held.put(np.arange(256, dtype=np.uint8))
            held.fill(target, np.full(nbytes, 1, np.uint8))
            after = held.bytes(target, 256)
            right = whole.copy()
            right[:nbytes] = 1
            bench.equal(after, right, f"memory after an upload of {nbytes} bytes")
            bench.device.copy(target, source, nbytes)
            right[:nbytes] = np.arange(nbytes)
            bench.equal(held.bytes(target, 256), right, f"memory after a copy of {nbytes} bytes")


def _tailed(bench: Bench) -> Iterator[Sample]:
    """The samples, and a chain at sizes round those at which code changes path."""
    yield from samples(bench)
    shapes = bench.facts.capabilities.shapes
    one = np.array(1, bench.dtype.numpy)
    for edge in {shapes.vector, shapes.block}:
        for n in {max(edge - 1, 1), edge, edge + 1}:
            if bench.simulated and n > 1100:
                continue
            x = bench.small(n)
            yield Sample(f"x * x + 1 on {n} elements", lambda a: a * a + 1, (x,), (x * x + one,))


def _contents_irrelevant(bench: Bench) -> None:
    """Whatever the pool's memory held, results are the same: bytes are left there before calls."""
    for sample in (*samples(bench), *crowds(bench, 33)):
        compiled = bench.lower(sample.fn, *sample.types)
        for poison in _POISONS:
            _foul(bench, sample, poison)
            with bench.handles() as held:
                results = held.run(compiled, [held.put(x) for x in sample.inputs])
                _compare(bench, held, sample, results, f"with scratch full of {poison:#04x}")


def _foul(bench: Bench, sample: Sample, poison: int) -> None:
    """Leave bytes in memory of the sizes that a call is going to ask for."""
    arrays = (*sample.inputs, *sample.expected)
    total = sum(a.nbytes for a in arrays)
    with bench.handles() as held:
        for nbytes in (*(a.nbytes for a in arrays), total, 2 * total, 4 * total):
            for _ in range(2):
                held.put(np.full(nbytes, poison, np.uint8))


def _compare(
    bench: Bench, held: Handles, sample: Sample, results: Sequence[object], where: str
) -> None:
    for i, (handle, right) in enumerate(zip(results, sample.expected, strict=True)):
        (type_,) = types_of((right,))
        bench.equal(held.get(handle, type_), right, f"{sample.name} {where}: result {i}")


def _disjoint(bench: Bench) -> None:
    """Many allocations of many sizes, each full of bytes of its own; also after frees."""
    choices = bench.choices("disjoint")
    with bench.handles() as held:
        live: dict[int, tuple[object, Array]] = {}
        for n in range(bench.count(400, 150)):
            if live and choices.integer(0, 2) == 0:
                number = list(live)[choices.integer(0, len(live) - 1)]
                handle, right = live.pop(number)
                _still(bench, held, handle, right)
                held.free(handle)
                del handle
            nbytes = choices.integer(1, 64) * (1, 7, 64, 333)[choices.integer(0, 3)]
            data = np.full(nbytes, n % 251, np.uint8)
            data[::3] = (n // 251 + 5) % 251
            live[n] = held.put(data), data
        for handle, right in live.values():
            _still(bench, held, handle, right)


def _still(bench: Bench, held: Handles, handle: object, right: Array) -> None:
    bench.equal(held.bytes(handle, right.size), right, f"{right.size} bytes among others")


def _zero_bytes(bench: Bench) -> None:
    """Empty memory, twice, transferred, freed, and then memory that holds something."""
    device, empty = bench.device, memoryview(b"")
    with bench.handles() as held:
        first, second = held.alloc(0), held.alloc(0)
        for handle in (first, second):
            device.upload(handle, empty)
            device.download(handle, memoryview(bytearray()))
        device.copy(first, second, 0)
        kept = held.put(np.arange(64, dtype=np.uint8))
        held.free(first)
        del first
        others = [held.put(np.full(64, 9, np.uint8)) for _ in range(4)]
        device.upload(second, empty)
        held.free(second)
        others += [held.put(np.full(64, 8, np.uint8)) for _ in range(4)]
        right = np.arange(64, dtype=np.uint8)
        bench.equal(held.bytes(kept, 64), right, "memory allocated beside empty memory")
        for i, handle in enumerate(others):
            right = np.full(64, 9 if i < 4 else 8, np.uint8)
            bench.equal(held.bytes(handle, 64), right, "memory allocated after empty memory")


def _odd_sizes(bench: Bench) -> None:
    """All bytes of allocations of any size, each with its neighbours alive."""
    sizes = [*range(1, 40), 63, 64, 65, 127, 129, 255, 257, 1023, 1025, 4095, 4097, 65537]
    with bench.handles() as held:
        data = [(np.arange(n) * (i + 3) % 251).astype(np.uint8) for i, n in enumerate(sizes)]
        handles = [held.put(x) for x in data]
        for handle, right in zip(handles, data, strict=True):
            bench.equal(held.bytes(handle, right.size), right, f"{right.size} bytes")


def _aligned(bench: Bench) -> None:
    """Addresses of what the host can see."""
    alignment = bench.facts.capabilities.alignment
    with bench.handles() as held:
        for nbytes in (1, 8, 60, 64, 100, 4096, 100_000):
            handle = held.alloc(nbytes)
            seen = bench.device.host_view(handle, bench.type(nbytes, dtype=bu.uint8))
            if seen is None:
                raise NotOffered("the host does not see its memory")
            at = seen.ctypes.data % alignment
            bench.require(
                at == 0, f"{nbytes} bytes start {at} bytes past a multiple of {alignment}"
            )


def _host_view(bench: Bench) -> None:
    """A view equals a download, follows later work, and outlives every handle."""
    x = bench.ramp(1000)
    type_ = bench.type(1000)
    compiled = bench.lower(lambda a: a + a, type_)
    with bench.handles() as held:
        source = held.put(x)
        (result,) = held.run(compiled, [source])
        seen = bench.device.host_view(result, type_)
        if seen is None:
            raise NotOffered("the host does not see its memory")
        bench.equal(np.array(seen), x + x, "a host view of a result")
        held.fill(result, x)
        bench.device.synchronize()
        bench.equal(np.array(seen), x, "a host view after an upload to its memory")
    del result, source
    gc.collect()
    with bench.handles() as held:
        for _ in range(8):
            held.put(np.zeros(x.nbytes, np.uint8))
        bench.equal(np.array(seen), x, "a host view after its handle is gone")


def _scratch_sufficient(bench: Bench) -> None:
    """Crowded arenas, fused and taken apart, on sizes in turn, full of what was there before."""
    target = DeviceTarget(bench.open)
    for n in (13, 65, 7, 301):
        for sample in crowds(bench, n):
            graph = bu.trace(sample.fn, *sample.types)
            for fuse in (False, True):
                run = target.compile(graph, fuse=fuse)
                for poison in _POISONS[:2]:
                    _foul(bench, sample, poison)
                    found = run(list(sample.inputs))
                    for i, (result, right) in enumerate(zip(found, sample.expected, strict=True)):
                        where = f"{sample.name} on {n}, {'fused' if fuse else 'in parts'}"
                        bench.equal(result, right, f"{where}: result {i}")


def _contents_kept(bench: Bench) -> None:
    """Memory in every gap of the pool keeps its bytes while programs allocate and run there."""
    sizes = [n * bench.dtype.itemsize for n in (33, 81, 86, 257)]
    with bench.handles() as held:
        kept, gaps = [], []
        for number in range(bench.count(24, 12)):
            for nbytes in sizes:
                data = (np.arange(nbytes) * 7 + number).astype(np.uint8)
                kept.append((held.put(data), data))
                gaps.append(held.alloc(nbytes))
        while gaps:
            held.free(gaps.pop())
        for _ in range(2):
            for sample in samples(bench):
                compiled = bench.lower(sample.fn, *sample.types)
                held.run(compiled, [held.put(x) for x in sample.inputs])
        for handle, right in kept:
            found = held.bytes(handle, right.size)
            wrong = int((~same_bits(found, right)).sum())
            bench.require(not wrong, f"{wrong} bytes of other memory changed while programs ran")


PROMISES: tuple[Promise, ...] = (
    Promise(("memory.input-unchanged",), _input_unchanged),
    Promise(("memory.outside-untouched",), _outside_untouched),
    Promise(("memory.contents-irrelevant",), _contents_irrelevant),
    Promise(("memory.disjoint",), _disjoint),
    Promise(("memory.contents-kept",), _contents_kept),
    Promise(("memory.zero-bytes",), _zero_bytes),
    Promise(("memory.odd-sizes",), _odd_sizes),
    Promise(("memory.aligned",), _aligned),
    Promise(("memory.host-view",), _host_view),
    Promise(("memory.scratch-sufficient",), _scratch_sufficient),
)
