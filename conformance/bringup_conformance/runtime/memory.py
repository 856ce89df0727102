"""What an allocation is: its bytes are its own, and no result depends on what it held."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np

import bringup as bu
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.runtime.arena_pressure import arena_samples
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture, Handles
from bringup_conformance.runtime.guard_bands import GuardedPrograms, GuardedSteps, with_guard_bands
from bringup_conformance.runtime.programs import ODD, Sample, results_equal, samples

CHECKS = ContractChecks()

#: Bytes that fresh memory is filled with: NaN of every float, a large number, zero.
_POISONS = (0xFF, 0x7B, 0x00)


@CHECKS.shows("memory.input-unchanged")
def _input_unchanged(dut: DeviceFixture) -> None:
    """Handles keep their bytes, and arrays of the host as well."""
    for sample in samples(dut):
        compiled = dut.lower(sample.fn, *sample.types)
        with dut.handles() as held:
            handles = [held.put(x) for x in sample.inputs]
            for _ in range(2):
                held.run(compiled, handles)
            for i, (handle, x, type_) in enumerate(
                zip(handles, sample.inputs, sample.types, strict=True)
            ):
                dut.equal(held.get(handle, type_), x, f"{sample.name}: input {i} after two calls")
        hosts = [x.copy() for x in sample.inputs]
        dut.jit(sample.fn)(*hosts)
        for i, (host, x) in enumerate(zip(hosts, sample.inputs, strict=True)):
            dut.equal(host, x, f"{sample.name}: host array {i} after a call on it")


@CHECKS.shows("memory.outside-untouched")
def _outside_untouched(dut: DeviceFixture) -> None:
    """Runs with bands round memory, fused and taken apart, at sizes with tails."""
    for poison in _POISONS[:2]:
        guard = with_guard_bands(dut.device, poison)
        inner = dut.on_device(guard)
        for sample in _tailed(dut):
            _run_banded(inner, sample, guard)
        _run_donated(inner, guard)
    _prefixes(dut)


def _run_banded(dut: DeviceFixture, sample: Sample, guard: GuardedSteps | GuardedPrograms) -> None:
    arrays = [dut.array(x) for x in sample.inputs]
    results = dut.jit(sample.fn)(*arrays)
    dut.all_equal(results, sample.expected, sample.name, "memory.contents-irrelevant")
    guard.check_all()
    del arrays, results
    _no_faults(dut, guard, sample.name)


def _run_donated(dut: DeviceFixture, guard: GuardedSteps | GuardedPrograms) -> None:
    """Results that take the place of inputs lie between bands on every device."""
    for n in (*ODD, 1025):
        x = dut.small(n)
        step = dut.jit(lambda a: a * 2 + 1, donate_argnums=0)
        result = step(dut.array(x))
        dut.equal(
            dut.host(result),
            x * np.array(2, x.dtype) + np.array(1, x.dtype),
            f"a donated call on {n} elements",
            "donation.values-same",
        )
        guard.check_all()
        del result
        _no_faults(dut, guard, f"a donated call on {n} elements")


def _no_faults(dut: DeviceFixture, guard: GuardedSteps | GuardedPrograms, where: str) -> None:
    if guard.ledger.faults:
        dut.fail(f"{where}: {guard.ledger.faults[0]}", "memory.outside-untouched")


def _prefixes(dut: DeviceFixture) -> None:
    """Uploads and copies of part of an allocation leave the rest."""
    with dut.handles() as held:
        for nbytes in (1, 3, 8, 63, 65, 200):
            whole = np.full(256, 0x5A, np.uint8)
            target, source = held.put(whole), held.put(np.arange(256, dtype=np.uint8))
            held.fill(target, np.full(nbytes, 1, np.uint8))
            after = held.bytes(target, 256)
            right = whole.copy()
            right[:nbytes] = 1
            dut.equal(after, right, f"memory after an upload of {nbytes} bytes")
            dut.device.copy(target, source, nbytes)
            right[:nbytes] = np.arange(nbytes)
            dut.equal(held.bytes(target, 256), right, f"memory after a copy of {nbytes} bytes")


def _tailed(dut: DeviceFixture) -> Iterator[Sample]:
    """The samples, and a chain at sizes round those at which code changes path."""
    yield from samples(dut)
    shapes = dut.info.capabilities.shapes
    one = np.array(1, dut.dtype.numpy)
    for edge in {shapes.vector, shapes.block}:
        for n in {max(edge - 1, 1), edge, edge + 1}:
            if dut.simulated and n > 1100:
                continue
            x = dut.small(n)
            yield Sample(f"x * x + 1 on {n} elements", lambda a: a * a + 1, (x,), (x * x + one,))


@CHECKS.shows("memory.contents-irrelevant")
def _contents_irrelevant(dut: DeviceFixture) -> None:
    """Whatever the pool's memory held, results are the same: bytes are left there before calls."""
    for sample in (*samples(dut), *arena_samples(dut, 33)):
        compiled = dut.lower(sample.fn, *sample.types)
        for poison in _POISONS:
            _foul(dut, sample, poison)
            with dut.handles() as held:
                results = held.run(compiled, [held.put(x) for x in sample.inputs])
                what = f"{sample.name} with scratch full of {poison:#04x}: {{}}"
                results_equal(dut, held, results, sample.expected, what)


def _foul(dut: DeviceFixture, sample: Sample, poison: int) -> None:
    """Leave bytes in memory of the sizes that a call is going to ask for."""
    arrays = (*sample.inputs, *sample.expected)
    total = sum(a.nbytes for a in arrays)
    with dut.handles() as held:
        for nbytes in (*(a.nbytes for a in arrays), total, 2 * total, 4 * total):
            for _ in range(2):
                held.put(np.full(nbytes, poison, np.uint8))


@CHECKS.shows("memory.disjoint")
def _disjoint(dut: DeviceFixture) -> None:
    """Many allocations of many sizes, each full of bytes of its own; also after frees."""
    choices = dut.choices("disjoint")
    with dut.handles() as held:
        live: dict[int, tuple[object, Array]] = {}
        for n in range(dut.count(400, 150)):
            if live and choices.integer(0, 2) == 0:
                number = list(live)[choices.integer(0, len(live) - 1)]
                handle, right = live.pop(number)
                _still(dut, held, handle, right)
                held.free(handle)
                del handle
            nbytes = choices.integer(1, 64) * (1, 7, 64, 333)[choices.integer(0, 3)]
            data = np.full(nbytes, n % 251, np.uint8)
            data[::3] = (n // 251 + 5) % 251
            live[n] = held.put(data), data
        for handle, right in live.values():
            _still(dut, held, handle, right)


def _still(dut: DeviceFixture, held: Handles, handle: object, right: Array) -> None:
    dut.equal(held.bytes(handle, right.size), right, f"{right.size} bytes among others")


@CHECKS.shows("memory.zero-bytes")
def _zero_bytes(dut: DeviceFixture) -> None:
    """Empty memory, twice, transferred, freed, and then memory that holds something."""
    device, empty = dut.device, memoryview(b"")
    with dut.handles() as held:
        first, second = held.alloc(0), held.alloc(0)
        for handle in (first, second):
            device.upload(handle, empty)
            device.download(handle, memoryview(bytearray()))
        device.copy(first, second, 0)
        other = held.put(np.arange(64, dtype=np.uint8))
        held.free(first)
        del first
        others = [held.put(np.full(64, 9, np.uint8)) for _ in range(4)]
        device.upload(second, empty)
        held.free(second)
        others += [held.put(np.full(64, 8, np.uint8)) for _ in range(4)]
        right = np.arange(64, dtype=np.uint8)
        dut.equal(held.bytes(other, 64), right, "memory allocated beside empty memory")
        for i, handle in enumerate(others):
            right = np.full(64, 9 if i < 4 else 8, np.uint8)
            dut.equal(held.bytes(handle, 64), right, "memory allocated after empty memory")


@CHECKS.shows("memory.odd-sizes")
def _odd_sizes(dut: DeviceFixture) -> None:
    """All bytes of allocations of any size, each with its neighbours alive."""
    sizes = [*range(1, 40), 63, 64, 65, 127, 129, 255, 257, 1023, 1025, 4095, 4097, 65537]
    with dut.handles() as held:
        data = [(np.arange(n) * (i + 3) % 251).astype(np.uint8) for i, n in enumerate(sizes)]
        handles = [held.put(x) for x in data]
        for handle, right in zip(handles, data, strict=True):
            dut.equal(held.bytes(handle, right.size), right, f"{right.size} bytes")


@CHECKS.shows("memory.aligned")
def _aligned(dut: DeviceFixture) -> None:
    """Addresses of what the host can see."""
    alignment = dut.info.capabilities.alignment
    with dut.handles() as held:
        for nbytes in (1, 8, 60, 64, 100, 4096, 100_000):
            handle = held.alloc(nbytes)
            seen = dut.device.host_view(handle, dut.type(nbytes, dtype=bu.uint8))
            if seen is None:
                raise NotOffered("the host does not see its memory")
            offset = seen.ctypes.data % alignment
            dut.require(
                offset == 0, f"{nbytes} bytes start {offset} bytes past a multiple of {alignment}"
            )


@CHECKS.shows("memory.host-view")
def _host_view(dut: DeviceFixture) -> None:
    """A view equals a download, follows later work, and outlives every handle."""
    x = dut.ramp(1000)
    type_ = dut.type(1000)
    compiled = dut.lower(lambda a: a + a, type_)
    with dut.handles() as held:
        source = held.put(x)
        (result,) = held.run(compiled, [source])
        seen = dut.device.host_view(result, type_)
        if seen is None:
            raise NotOffered("the host does not see its memory")
        dut.equal(np.array(seen), x + x, "a host view of a result")
        held.fill(result, x)
        dut.device.synchronize()
        dut.equal(np.array(seen), x, "a host view after an upload to its memory")
    del result, source
    gc.collect()
    with dut.handles() as held:
        for _ in range(8):
            held.put(np.zeros(x.nbytes, np.uint8))
        dut.equal(np.array(seen), x, "a host view after its handle is gone")


@CHECKS.shows("memory.borrowed")
def _borrowed(dut: DeviceFixture) -> None:
    """Borrowed memory equals an upload, in calls too, stays as it is, and outlives its owner."""
    x = dut.ramp(1000)
    type_ = dut.type(1000)
    room = np.empty(x.nbytes + dut.info.capabilities.alignment, np.uint8)
    start = -room.ctypes.data % dut.info.capabilities.alignment
    lent = room[start : start + x.nbytes]
    lent[:] = x.view(np.uint8)
    compiled = dut.lower(lambda a: a + a, type_)
    with dut.handles() as held:
        handle = dut.device.borrow(lent.data)
        if handle is None:
            raise NotOffered("the device borrows no memory of the host")
        held.own(handle)
        dut.equal(held.get(handle, type_), x, "borrowed memory")
        (result,) = held.run(compiled, [handle])
        dut.equal(held.get(result, type_), x + x, "a call on borrowed memory")
        dut.equal(lent.view(x.dtype), x, "memory of the host after a call on it")
        size = room.size
        del lent, room
        gc.collect()
        others = [np.full(size, 0xFF, np.uint8) for _ in range(8)]
        dut.equal(held.get(handle, type_), x, "borrowed memory that its owner has given up")
        del others


@CHECKS.shows("memory.scratch-sufficient")
def _scratch_sufficient(dut: DeviceFixture) -> None:
    """Full arenas, fused and taken apart, on sizes in turn, full of what was there before."""
    target = DeviceTarget(dut.open)
    for n in (13, 65, 7, 301):
        for sample in arena_samples(dut, n):
            graph = bu.trace(sample.fn, *sample.types)
            for fuse in (False, True):
                run = target.compile(graph, fuse=fuse)
                for poison in _POISONS[:2]:
                    _foul(dut, sample, poison)
                    actual = run(list(sample.inputs))
                    where = f"{sample.name} on {n}, {'fused' if fuse else 'in parts'}"
                    dut.all_equal(actual, sample.expected, where)


@CHECKS.shows("memory.contents-kept")
def _contents_kept(dut: DeviceFixture) -> None:
    """Memory in every gap of the pool keeps its bytes while programs allocate and run there."""
    sizes = [n * dut.dtype.itemsize for n in (33, 81, 86, 257)]
    with dut.handles() as held:
        live, gaps = [], []
        for number in range(dut.count(24, 12)):
            for nbytes in sizes:
                data = (np.arange(nbytes) * 7 + number).astype(np.uint8)
                live.append((held.put(data), data))
                gaps.append(held.alloc(nbytes))
        while gaps:
            held.free(gaps.pop())
        for _ in range(2):
            for sample in samples(dut):
                compiled = dut.lower(sample.fn, *sample.types)
                held.run(compiled, [held.put(x) for x in sample.inputs])
        for handle, right in live:
            actual = held.bytes(handle, right.size)
            wrong = int((~same_bits(actual, right)).sum())
            dut.require(not wrong, f"{wrong} bytes of other memory changed while programs ran")
