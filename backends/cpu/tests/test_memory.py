"""The allocator: alignment, reuse, counters, bounds, and who keeps a buffer alive."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.errors import OutOfMemoryError
from bringup_cpu import host
from bringup_cpu.memory import ALIGNMENT, Memory, memory

_MIB = 1 << 20


@pytest.fixture
def heap() -> Iterator[Memory]:
    """The allocator, its bounds restored in the end."""
    made = memory()
    bounds = (made.state.budget, made.state.cache_limit)
    gc.collect()
    yield made
    made.state.budget, made.state.cache_limit = bounds


def counts(heap: Memory) -> tuple[int, int]:
    return heap.state.live_allocations, heap.state.live_bytes


@pytest.mark.parametrize(
    "nbytes", [0, 1, 63, 64, 65, 4095, 4096, 100_000, _MIB - 1, _MIB, 5 * _MIB + 3]
)
def test_a_buffer_is_aligned_writable_and_counted(heap: Memory, nbytes: int) -> None:
    allocations, live = counts(heap)
    buffer = heap.alloc(nbytes)
    assert buffer.nbytes == nbytes
    assert buffer.address % ALIGNMENT == 0
    assert counts(heap) == (allocations + 1, live + nbytes)
    view = memoryview(buffer)
    assert (view.nbytes, view.readonly, view.format) == (nbytes, False, "B")
    array = np.frombuffer(buffer, np.uint8) if nbytes else np.zeros(0, np.uint8)
    array[:] = 7
    assert bytes(view[-3:]) == b"\7" * min(nbytes, 3)
    del view, array, buffer
    assert counts(heap) == (allocations, live)


def test_buffers_in_use_never_overlap(heap: Memory) -> None:
    before = counts(heap)
    drawn = random.Random(1)
    kept: list[tuple[Any, int]] = []
    for step in range(3000):
        if kept and drawn.random() < 0.5:
            buffer, mark = kept.pop(drawn.randrange(len(kept)))
            assert bytes(buffer) == bytes([mark]) * buffer.nbytes
            del buffer
        else:
            buffer = heap.alloc(drawn.choice([0, 1, 64, 100, 3000, 70_000, _MIB + 1]))
            memoryview(buffer)[:] = bytes([step % 251]) * buffer.nbytes
            kept.append((buffer, step % 251))
            del buffer
    spans = sorted((b.address, b.address + b.nbytes) for b, _ in kept)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    kept.clear()
    assert counts(heap) == before


@pytest.mark.parametrize("nbytes", [100, 50_000, 3 * _MIB])
def test_a_freed_block_is_handed_out_again(heap: Memory, nbytes: int) -> None:
    first = heap.alloc(nbytes)
    address = first.address
    del first
    assert heap.alloc(nbytes).address == address


def test_arrays_over_a_buffer_keep_it(heap: Memory) -> None:
    before = counts(heap)
    array = np.ndarray((1000,), np.float32, heap.alloc(4000))
    array[:] = 3
    part = array[10:20]
    del array
    others = [heap.alloc(4000) for _ in range(50)]
    for other in others:
        memoryview(other)[:] = bytes(4000)
    assert part.tolist() == [3.0] * 10
    del part, others, other
    assert counts(heap) == before


def test_the_budget_bounds_live_bytes(heap: Memory) -> None:
    heap.state.budget = heap.state.live_bytes + 10 * _MIB
    first = heap.alloc(8 * _MIB)
    before = counts(heap)
    with pytest.raises(OutOfMemoryError) as caught:
        heap.alloc(3 * _MIB)
    assert "no memory for a buffer of 3145728 bytes" in caught.value.what
    assert f"{before[1]} bytes are in use of {heap.state.budget}" in caught.value.notes[0]
    assert counts(heap) == before
    del first
    assert heap.alloc(9 * _MIB).nbytes == 9 * _MIB


@pytest.mark.parametrize("nbytes", [1 << 62, (1 << 63) - 1, (1 << 63) - 64, 1 << 63, 1 << 70])
def test_sizes_beyond_any_memory_are_our_error(heap: Memory, nbytes: int) -> None:
    before = counts(heap)
    heap.state.budget = (1 << 63) - 1
    with pytest.raises(OutOfMemoryError, match="no memory"):
        heap.alloc(nbytes)
    assert counts(heap) == before


def test_the_cache_is_bounded_and_given_back(heap: Memory) -> None:
    heap.trim()
    assert heap.state.cached_bytes == 0
    heap.state.cache_limit = 20 * _MIB
    kept = [heap.alloc(4 * _MIB) for _ in range(10)]
    kept.clear()
    assert 0 < heap.state.cached_bytes <= 20 * _MIB
    heap.trim(keep=5 * _MIB)
    assert heap.state.cached_bytes <= 5 * _MIB
    heap.trim()
    assert heap.state.cached_bytes == 0


def test_freed_memory_goes_back_to_the_system(python: Callable[..., Any]) -> None:
    code = """
import os
from itertools import pairwise
from pathlib import Path
from bringup_cpu.memory import memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
heap = memory()
before = resident()
kept = [heap.alloc(8 << 20) for _ in range(20)]
for b in kept: memoryview(b)[:] = bytes(8 << 20)
assert resident() > before + (150 << 20)
del b
kept.clear()
heap.trim()
assert resident() < before + (40 << 20), (before, resident())
"""
    python(code)


def test_the_peak(heap: Memory) -> None:
    heap.reset_peak()
    live = heap.state.live_bytes
    kept = [heap.alloc(_MIB) for _ in range(5)]
    del kept[2:]
    kept.append(heap.alloc(10))
    assert heap.state.peak_bytes == live + 5 * _MIB
    heap.reset_peak()
    assert heap.state.peak_bytes == live + 2 * _MIB + 10


def test_only_the_allocator_makes_buffers(heap: Memory) -> None:
    kind: Any = heap.buffer_type
    with pytest.raises(TypeError, match="cannot create"):
        kind()
    with pytest.raises(TypeError):
        kind.__new__(kind)
    with pytest.raises(TypeError):
        object.__new__(kind)
    with pytest.raises(TypeError):
        type("Sub", (kind,), {})
    with pytest.raises(TypeError):
        kind.address = 0
    buffer = heap.alloc(8)
    for name in ("address", "nbytes", "other"):
        with pytest.raises(AttributeError):
            setattr(buffer, name, 1)


def test_buffers_keep_no_reference_to_their_type(heap: Memory) -> None:
    before = sys.getrefcount(heap.buffer_type)
    for _ in range(1000):
        heap.alloc(100)
    assert abs(sys.getrefcount(heap.buffer_type) - before) < 5


def test_threads_share_it(heap: Memory) -> None:
    before = counts(heap)
    failures: list[int] = []

    def work(mark: int) -> None:
        drawn = random.Random(mark)
        for _ in range(400):
            buffer = heap.alloc(drawn.choice([10, 500, 40_000, _MIB]))
            view = memoryview(buffer)
            view[:] = bytes([mark]) * buffer.nbytes
            if view[0] != mark or view[-1] != mark:
                failures.append(mark)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert counts(heap) == before


def test_the_size_of_the_machine_or_its_control_group(tmp_path: Path) -> None:
    everything = host.memory(tmp_path, tmp_path / "none")
    assert everything > 64 * _MIB
    (tmp_path / "self").write_text("0::/a/b\n")
    for name, text in (("a/b", "max\n"), ("a", "1073741824\n")):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(text)
    assert host.memory(tmp_path, tmp_path / "self") == min(everything, 1 << 30)


def test_a_process_may_fork_with_buffers(python: Callable[..., Any]) -> None:
    code = """
import os
from bringup_cpu.memory import memory
heap = memory()
kept = [heap.alloc(n) for n in (10, 5000, 3 << 20)]
for k, b in enumerate(kept): memoryview(b)[:] = bytes([k + 1]) * b.nbytes
child = os.fork()
if not child:
    for k, b in enumerate(kept):
        assert bytes(b) == bytes([k + 1]) * b.nbytes
        memoryview(b)[:] = bytes(b.nbytes)
    del b
    kept.clear()
    heap.trim()
    assert heap.alloc(3 << 20).nbytes == 3 << 20
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
assert all(bytes(b) == bytes([k + 1]) * b.nbytes for k, b in enumerate(kept))
"""
    python(code)


def test_borrowed_memory_is_kept_and_given_back(heap: Memory) -> None:
    allocations, live = counts(heap)
    held = np.arange(1 << 18, dtype=np.uint8)
    address, reference = held.ctypes.data, weakref.ref(held)
    buffer = heap.borrow(held.data)
    assert (buffer.address, buffer.nbytes) == (address, held.nbytes)
    assert counts(heap) == (allocations + 1, live)
    del held
    assert reference() is not None
    assert bytes(memoryview(buffer)[:4]) == b"\0\1\2\3"
    del buffer
    assert reference() is None
    assert counts(heap) == (allocations, live)
    # The block of its header has data of its own again.
    for later in [heap.alloc(n) for n in (0, 8, 64)]:
        assert later.address % ALIGNMENT == 0
        assert not address <= later.address < address + (1 << 18)
        memoryview(later)[:] = b"\xff" * later.nbytes
