"""Handles, poison, guards, bounds, capacity and counters."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from bringup_simulator import (
    DTYPES,
    GUARD,
    Accelerator,
    Binding,
    CommandFailedError,
    DoubleFreeError,
    GuardError,
    Handle,
    InvalidHandleError,
    Operand,
    OutOfBoundsError,
    OutOfDeviceMemoryError,
    UseAfterFreeError,
)


def contents(chip: Accelerator, handle: Handle) -> bytes:
    out = np.empty(chip.nbytes(handle), np.uint8)
    chip.download(handle, out)
    return out.tobytes()


def test_fresh_memory_is_poison_also_where_memory_was_used_before() -> None:
    chip = Accelerator()
    first = chip.alloc(64)
    chip.upload(first, bytes(64))
    chip.free(first)
    assert contents(chip, chip.alloc(64)) == b"\xff" * 64


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2"])
def test_poison_is_nan_in_every_float_type(dtype: str) -> None:
    chip = Accelerator()
    values = np.frombuffer(contents(chip, chip.alloc(64)), DTYPES[dtype])
    assert np.isnan(values.astype(np.float64)).all()


def test_another_poison_shows_values_that_depend_on_it() -> None:
    chip = Accelerator(poison=0x2A)
    assert contents(chip, chip.alloc(3)) == b"***"


def test_handles_are_no_addresses() -> None:
    chip = Accelerator()
    a, _ = chip.alloc(64), chip.alloc(64)
    for forged in (a + 1, a + 64, 0, a - 1):
        with pytest.raises(InvalidHandleError, match="no handle"):
            chip.nbytes(Handle(forged))
    for nonsense in (None, "x", True, float(a)):
        with pytest.raises(InvalidHandleError):
            chip.nbytes(nonsense)  # type: ignore[arg-type]


def test_handles_of_zero_bytes_are_valid_and_distinct() -> None:
    chip = Accelerator()
    a, b = chip.alloc(0), chip.alloc(0)
    assert a != b
    chip.upload(a, b"")
    chip.copy(b, a, 0)
    chip.download(b, np.empty((0, 3), np.float32))
    assert chip.counters.live_allocations == 2
    chip.free(a)
    chip.download(b, np.empty(0))
    chip.free(b)
    assert chip.counters.live_allocations == 0


def test_freed_handles_stay_dead() -> None:
    chip = Accelerator()
    handle = chip.alloc(16)
    chip.free(handle)
    again = chip.alloc(16)
    assert again != handle
    with pytest.raises(DoubleFreeError):
        chip.free(handle)
    with pytest.raises(UseAfterFreeError):
        chip.upload(handle, b"x")
    with pytest.raises(UseAfterFreeError):
        chip.copy(again, handle, 1)


def test_a_handle_means_nothing_to_another_device() -> None:
    one, other = Accelerator(index=0), Accelerator(index=1)
    handle = one.alloc(16)
    with pytest.raises(InvalidHandleError):
        other.nbytes(handle)


def test_transfers_out_of_bounds_are_refused_at_once() -> None:
    chip = Accelerator()
    a, b = chip.alloc(16), chip.alloc(64)
    for act in (
        lambda: chip.upload(a, bytes(17)),
        lambda: chip.download(a, np.empty(17, np.uint8)),
        lambda: chip.copy(a, b, 17),
        lambda: chip.copy(b, a, 17),
    ):
        with pytest.raises(OutOfBoundsError, match="has 16"):
            act()
    assert contents(chip, a) == b"\xff" * 16


@pytest.mark.parametrize("offset", [-4, 16, 14])
def test_windows_out_of_bounds_are_refused_at_once(offset: int) -> None:
    chip = Accelerator()
    operand = Operand(chip.alloc(16), "u8", (4,), offset)
    with pytest.raises(OutOfBoundsError, match="has 16"):
        chip.call("look", lambda view: None, [operand])


@pytest.mark.parametrize("after", [1, 4, GUARD])
def test_guards_name_the_command_that_overran(after: int) -> None:
    chip = Accelerator()
    handle = chip.alloc(100)

    def overrun(view: np.ndarray) -> None:
        as_strided(view, (100 + after,), (1,), writeable=True)[100:] ^= 0xFF

    chip.call("overrun", overrun, [Operand(handle, "u8", (100,), writable=True)])
    expected = f"overrun: GuardError: .* {after} bytes past the end, the nearest 1 away"
    with pytest.raises(CommandFailedError, match=expected) as caught:
        chip.synchronize()
    assert isinstance(caught.value.__cause__, GuardError)
    chip.synchronize()


def test_guards_catch_an_underrun() -> None:
    chip = Accelerator()
    operand = Operand(chip.alloc(8), "u8", (8,), writable=True)

    def underrun(view: np.ndarray) -> None:
        as_strided(view[::-1], (12,), (-1,), writeable=True)[-1] ^= 1

    chip.call("underrun", underrun, [operand])
    with pytest.raises(CommandFailedError, match="1 bytes before the start, the nearest 4 away"):
        chip.synchronize()


def damage(chip: Accelerator, handle: Handle) -> None:
    """Overwrite a guard behind the queue's back."""
    allocation = chip._memory.find(handle)
    allocation.storage[GUARD + allocation.nbytes] ^= 1


def test_guards_are_checked_on_free_on_synchronise_and_on_demand() -> None:
    chip = Accelerator()
    chip.check_guards()
    for check in (chip.check_guards, chip.synchronize):
        handle = chip.alloc(10)
        damage(chip, handle)
        with pytest.raises(GuardError, match="1 bytes past the end, the nearest 1 away"):
            check()
        check()
    damage(chip, handle)
    with pytest.raises(GuardError):
        chip.free(handle)
    assert chip.counters.live_allocations == 1


def test_out_of_memory_leaves_the_device_usable() -> None:
    chip = Accelerator(capacity=1024)
    a = chip.alloc(1000)
    with pytest.raises(OutOfDeviceMemoryError, match="100 bytes asked for"):
        chip.alloc(100)
    chip.upload(a, bytes(1000))
    assert contents(chip, a) == bytes(1000)
    chip.free(a)
    chip.free(chip.alloc(1024))
    assert chip.counters.live_bytes == 0


def test_memory_of_a_queued_free_is_found_again() -> None:
    chip = Accelerator(capacity=1024)
    a = chip.alloc(1024)
    chip.upload(a, bytes(1024))
    chip.free(a)
    assert chip.counters.commands == 0
    b = chip.alloc(1024)
    assert contents(chip, b) == b"\xff" * 1024


def test_counters_follow_what_happens() -> None:
    chip = Accelerator()
    a, b = chip.alloc(100), chip.alloc(50)
    chip.free(b)
    chip.upload(a, bytes(60))
    chip.copy(a, a, 20)
    contents(chip, a)
    now = chip.counters
    assert (now.live_bytes, now.live_allocations, now.peak_bytes) == (100, 1, 150)
    assert (now.uploaded, now.copied, now.downloaded, now.commands) == (60, 20, 100, 3)


def test_a_buffer_bound_too_small_is_refused_at_launch(double: str) -> None:
    chip = Accelerator()
    kernel = chip.load(double, "double")
    small, right = chip.alloc(4 * 127), chip.alloc(4 * 128)
    with pytest.raises(OutOfBoundsError, match="which has 508"):
        chip.launch(kernel, [Binding(small), Binding(right)])
