"""The allocator: alignment, reuse, counters, bounds, and who keeps a buffer alive."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
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
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
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
