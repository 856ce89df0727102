"""Pools of device and pinned memory, over the fake driver."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, FakeMemoryError
from fake_kernels import device_of, opened

from bringup.errors import DeviceError, DeviceLostError, OutOfMemoryError
from bringup_cuda.runtime.device import CudaDevice
from bringup_cuda.runtime.memory import size_class
from bringup_cuda.runtime.transfers import PART


def device(driver: FakeDriver | None = None) -> tuple[FakeDriver, CudaDevice]:
    made = driver or FakeDriver()
    return made, device_of(opened(made))


def data(nbytes: int, seed: int = 3) -> np.ndarray[Any, Any]:
    return (np.arange(nbytes) * 31 % (251 - seed)).astype(np.uint8)


def downloaded(gpu: CudaDevice, block: Any, nbytes: int) -> np.ndarray[Any, Any]:
    out = np.full(nbytes, 0xEE, np.uint8)
    gpu.download(block, out.data)
    return out


def test_classes_hold_what_is_asked_and_waste_an_eighth_at_most() -> None:
    before = 0
    for nbytes in [
        *range(1, 5000),
        *(n + d for n in (1 << 20, 3 << 21, 1 << 33) for d in (-1, 0, 1)),
    ]:
        size = size_class(nbytes)
        assert size >= nbytes
        assert size % 256 == 0
        assert size - nbytes <= max(255, size // 8)
        assert size_class(size) == size, "a class is its own"
        before = max(before, size)
        assert size_class(before) >= size


def test_freed_memory_is_handed_out_again_without_asking_the_driver() -> None:
    driver, gpu = device()
    first = gpu.alloc(1000)
    address = first.address
    gpu.free(first)
    driver.calls.clear()
    again = gpu.alloc(900)
    assert again.address == address
    assert driver.calls == []
    assert again is not first


def test_other_classes_and_live_blocks_are_not_touched() -> None:
    driver, gpu = device()
    blocks = [gpu.alloc(n) for n in (1, 256, 257, 4096, 4097)]
    assert len({b.address for b in blocks}) == 5
    assert driver.names("mem_alloc") == ["mem_alloc"] * 5
    assert gpu.pool.live_bytes == sum(size_class(b.nbytes) for b in blocks)
    for block in blocks:
        gpu.free(block)
    assert (gpu.pool.live_bytes, gpu.pool.cached_bytes) == (0, gpu.pool.reserved)


def test_nothing_is_asked_for_no_bytes() -> None:
    driver, gpu = device()
    driver.calls.clear()
    block = gpu.alloc(0)
    gpu.upload(block, memoryview(b""))
    gpu.download(block, memoryview(bytearray()))
    gpu.copy(block, block, 0)
    gpu.free(block)
    assert driver.calls == []


def test_memory_freed_twice_is_refused_and_its_next_owner_unharmed() -> None:
    _, gpu = device()
    first = gpu.alloc(100)
    gpu.free(first)
    second = gpu.alloc(100)
    with pytest.raises(DeviceError, match="freed twice"):
        gpu.free(first)
    third = gpu.alloc(100)
    assert third.address != second.address


def test_without_memory_what_is_kept_is_given_back_and_asked_for_once_more() -> None:
    driver, gpu = device(FakeDriver(memory=1 << 20))
    kept = [gpu.alloc(100_000) for _ in range(8)]
    for block in kept:
        gpu.free(block)
    driver.calls.clear()
    large = gpu.alloc(900_000)
    assert driver.names() == ["push", "mem_alloc", *["mem_free"] * 8, "mem_alloc", "pop"]
    assert gpu.pool.reserved == size_class(900_000)
    gpu.free(large)


def test_without_memory_and_nothing_kept_the_error_says_how_much_is_in_use() -> None:
    driver, gpu = device(FakeDriver(memory=1 << 20))
    held = gpu.alloc(900_000)
    driver.calls.clear()
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.alloc(300_000)
    assert driver.names("mem_alloc") == ["mem_alloc"], "there is nothing to give back"
    text = str(caught.value)
    assert "cuda: no memory for a buffer of 300000 bytes" in text
    assert f"{size_class(900_000)} bytes are in use" in text
    assert caught.value.fix is not None
    gpu.free(held)
    assert gpu.alloc(300_000).nbytes == 300_000, "the device stays usable"


def test_the_second_refusal_is_told() -> None:
    driver, gpu = device(FakeDriver(memory=1 << 20))
    gpu.free(gpu.alloc(1000))
    driver.refused["mem_alloc"] = [(FakeMemoryError, "out of memory")] * 2
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(5000)
    assert driver.names("mem_alloc") == ["mem_alloc"] * 3
    assert not driver.stack


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 58, (1 << 62) + 64])
def test_more_than_the_device_has_costs_nothing_that_is_kept(nbytes: int) -> None:
    driver, gpu = device()
    gpu.free(gpu.alloc(1000))
    driver.calls.clear()
    with pytest.raises(OutOfMemoryError, match="has not so much"):
        gpu.alloc(nbytes)
    assert driver.names("mem_alloc", "mem_free") == []


def test_other_errors_of_an_allocation_are_not_lack_of_memory() -> None:
    driver, gpu = device()
    driver.refused["mem_alloc"] = ["invalid argument"]
    with pytest.raises(DeviceError, match="invalid argument") as caught:
        gpu.alloc(10)
    assert type(caught.value) is DeviceError
    assert gpu.alloc(10).nbytes == 10


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("nbytes", [1, 255, 4096, 70_001, PART, 3 * PART + 17])
def test_bytes_go_there_and_back(nbytes: int, eager: bool) -> None:
    _, gpu = device(FakeDriver(eager=eager))
    block = gpu.alloc(nbytes)
    source = data(nbytes)
    gpu.upload(block, source.data)
    right = source.copy()
    source[...] = 7
    assert np.array_equal(downloaded(gpu, block, nbytes), right), "the source was free to change"


def test_a_prefix_leaves_the_rest() -> None:
    _, gpu = device()
    block = gpu.alloc(1000)
    gpu.upload(block, data(1000).data)
    gpu.upload(block, data(100, seed=9).data)
    found = downloaded(gpu, block, 1000)
    assert np.array_equal(found[:100], data(100, seed=9))
    assert np.array_equal(found[100:], data(1000)[100:])
    assert np.array_equal(downloaded(gpu, block, 7), found[:7])


def test_transfers_go_through_pinned_memory_that_is_used_again() -> None:
    driver, gpu = device()
    block = gpu.alloc(5000)
    for seed in range(5):
        gpu.upload(block, data(5000, seed).data)
        assert np.array_equal(downloaded(gpu, block, 5000), data(5000, seed))
    # One for the upload that is on its way when the download begins, one for the download.
    assert len(driver.names("pagelocked_empty")) <= 2
    assert gpu.host.bytes <= 2 * size_class(5000)


def test_parts_of_a_large_transfer_overlap() -> None:
    driver, gpu = device()
    block = gpu.alloc(5 * PART)
    driver.calls.clear()
    downloaded(gpu, block, 5 * PART)
    order = driver.names("dtoh", "event_synchronize")
    assert order[:4] == ["dtoh", "dtoh", "dtoh", "event_synchronize"]
    assert order.count("dtoh") == 5


def test_pinned_memory_is_bounded_by_waiting_for_the_oldest() -> None:
    driver, gpu = device()
    gpu.host.limit = 3 * 4096
    blocks = [gpu.alloc(4096) for _ in range(10)]
    for n, block in enumerate(blocks):
        gpu.upload(block, data(4096, n).data)
    assert gpu.host.bytes <= gpu.host.limit
    assert "event_synchronize" in driver.names()
    for n, block in enumerate(blocks):
        assert np.array_equal(downloaded(gpu, block, 4096), data(4096, n))


def test_what_no_transfer_uses_is_given_back() -> None:
    driver, gpu = device()
    block = gpu.alloc(100)
    gpu.upload(block, data(100).data)
    gpu.trim()
    assert gpu.host.bytes == 0
    assert driver.pinned == {}
    gpu.upload(block, data(100, 5).data)
    assert np.array_equal(downloaded(gpu, block, 100), data(100, 5))


def test_closing_gives_memory_and_context_back() -> None:
    driver, gpu = device()
    block = gpu.alloc(100)
    gpu.upload(block, data(100).data)
    gpu.free(block)
    gpu.close()
    assert driver.live == {}
    assert driver.pinned == {}
    assert driver.names()[-1] == "detach"
    assert not driver.stack


def test_a_closed_device_says_so_and_takes_memory_back() -> None:
    _, gpu = device()
    block = gpu.alloc(100)
    gpu.close()
    for use in (gpu.synchronize, lambda: gpu.alloc(100), lambda: downloaded(gpu, block, 100)):
        with pytest.raises(DeviceLostError, match="is closed"):
            use()
    gpu.free(block)


def test_threads_share_the_pool_and_leave_no_context_behind() -> None:
    driver, gpu = device()
    wrong: list[str] = []

    def work(seed: int) -> None:
        for n in range(40):
            nbytes = 100 + 37 * (n % 5)
            block = gpu.alloc(nbytes)
            gpu.upload(block, data(nbytes, seed + n % 7).data)
            if not np.array_equal(downloaded(gpu, block, nbytes), data(nbytes, seed + n % 7)):
                wrong.append(f"thread {seed}, round {n}")
            gpu.free(block)
        if driver.stack:
            wrong.append(f"thread {seed} leaves a context current")

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert gpu.pool.live_bytes == 0
