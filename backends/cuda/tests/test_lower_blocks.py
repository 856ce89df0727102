"""How many blocks a kernel is launched with: results do not depend on it, and devices choose it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from emulated import run_program, translated
from fake_driver import H100, FakeDriver
from fake_kernels import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lower import norm

import bringup as bu
from bringup import bfloat16, float16, float32
from bringup.llvm.simt import SimtKernel
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Command, Launch, Translated
from bringup_cuda.runtime.modules import MIN_UNITS, Multiprocessors, blocks_to_launch
from bringup_cuda_emulator import driver as emulated_driver

Array = np.ndarray[Any, Any]
Fn = Callable[..., Any]
f32 = float32

PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "elements": (lambda x: x * 2 + 1, (f32[20_001],)),
    "odd rows of f16": (lambda x, y: x + y, (float16[31, 257], float16[257])),
    "joined parts": (lambda x, y: bu.concat([x, y], axis=1), (bfloat16[40, 63], bfloat16[40, 9])),
    "sum": (bu.sum, (f32[70_001],)),
    "sums of rows": (lambda x: bu.sum(x, axis=1), (f32[9, 3001],)),
    "sums of short rows": (lambda x: bu.sum(x, axis=1), (f32[700, 12],)),
    "sums of columns": (lambda x: bu.sum(x, axis=0), (bfloat16[300, 1504],)),
    "softmax in warps": (lambda x: bu.nn.softmax(x, axis=1), (f32[300, 64],)),
    "softmax in registers": (lambda x: bu.nn.softmax(x, axis=1), (f32[9, 1500],)),
    "softmax in shared memory": (lambda x: bu.nn.softmax(x, axis=1), (f32[5, 20_001],)),
    "softmax of columns": (lambda x: bu.nn.softmax(x, axis=0), (f32[1000, 70],)),
    "layer norm": (norm, (f32[40, 130], f32[130], f32[130])),
    "transposition": (lambda x: x.T * 2, (f32[100, 130],)),
    "transposition of f16": (lambda x, y: x.T + y, (float16[130, 200], float16[200, 130])),
}


@cache
def reference(name: str) -> tuple[Program, Translated, list[Array], list[Array]]:
    """A program, inputs, and what it makes of them with a block for each unit."""
    fn, types = PROGRAMS[name]
    program, made = translated(fn, types)
    random = np.random.default_rng(5)
    inputs = [random.standard_normal(t.shape).astype(t.dtype.numpy) for t in types]
    return program, made, inputs, run_program(program, made, inputs)


def limited(command: Command, blocks: int) -> Command:
    assert isinstance(command, Launch)
    kernel = command.kernel
    assert not kernel.fixed
    return replace(command, kernel=replace(kernel, blocks=min(kernel.blocks, blocks)))


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=4)
@given(blocks=st.one_of(st.integers(1, 3), st.integers(4, 200)), seed=st.integers(0, 99))
def test_results_are_the_same_bits_for_any_number_of_blocks(
    name: str, blocks: int, seed: int
) -> None:
    program, made, inputs, wanted = reference(name)
    fewer = replace(made, commands=tuple(limited(c, blocks) for c in made.commands))
    found = run_program(program, fewer, inputs, seed)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


# -- what a multiprocessor holds -------------------------------------------------------------------


HOPPER = Multiprocessors.of(FakeDriver(), FakeDriver().Device(0))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # threads
        (256, 33, 0, 6),  # registers, by eights
        (256, 48, 0, 5),
        (256, 64, 0, 4),
        (256, 128, 0, 2),
        (1024, 64, 0, 1),
        (32, 16, 0, 32),  # blocks
        (96, 40, 0, 16),  # warps by the file: 48 of them, three to a block
        (128, 32, 100 << 10, 2),  # shared memory
        (128, 32, 227 << 10, 1),
        (1024, 255, 0, 1),  # what is launched runs
    ],
)
def test_blocks_at_once(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert HOPPER.resident_blocks(threads, registers, shared) == blocks


def test_devices_say_what_they_hold() -> None:
    assert Multiprocessors(*H100.values()) == HOPPER
    emulated: Any = emulated_driver
    emulated.init()
    found = Multiprocessors.of(emulated, emulated.Device(0))
    assert (found.threads, found.blocks, found.registers) == (2048, 32, 1 << 16)


class Function:
    """With attributes of the fake driver's."""

    def get_attribute(self, attr: Any) -> int:
        return {"NUM_REGS": 32, "SHARED_SIZE_BYTES": 1 << 10}[attr]


@pytest.mark.parametrize(
    ("blocks", "persistent", "launched"),
    [
        (1_000_000, False, 1_000_000),
        (1_000_000, True, 8 * 132),
        (MIN_UNITS * 8 * 132, True, 8 * 132),
        (MIN_UNITS * 8 * 132 - 1, True, MIN_UNITS * 8 * 132 - 1),
        (7, True, 7),
    ],
)
def test_blocks_that_are_launched(blocks: int, persistent: bool, launched: int) -> None:
    """Many times more than fit become those that fit, where the kernel says that it pays."""
    kernel = SimtKernel("k", blocks, 256, persistent=persistent)
    driver: Any = FakeDriver()
    assert blocks_to_launch(kernel, Function(), driver, HOPPER) == launched


BIG: dict[str, tuple[Fn, tuple[TensorType, ...], bool]] = {
    "elements": (lambda x, y: x + y, (f32[100_000_000],) * 2, False),
    "softmax": (lambda x: bu.nn.softmax(x, axis=1), (f32[8192, 4096],), False),
    "layer norm": (norm, (f32[8192, 4096], f32[4096], f32[4096]), False),
    "sum": (bu.sum, (f32[100_000_000],), False),
    "softmax of short rows": (lambda x: bu.nn.softmax(x, axis=1), (f32[1_000_000, 64],), True),
    "sums of short rows": (lambda x: bu.sum(x, axis=1), (f32[1_000_000, 32],), True),
    "transposition": (lambda x: x.T + 1, (f32[8192, 8192],), True),
}


@pytest.mark.parametrize("name", BIG)
def test_blocks_of_little_work_are_persistent(name: str) -> None:
    """Those that stream 32 KiB and more are not: the hardware balances them."""
    fn, types, little = BIG[name]
    _, made = translated(fn, types)
    kernel = made.kernels[0]
    assert kernel.persistent is little
    assert not kernel.fixed
    driver: Any = FakeDriver()
    launched = blocks_to_launch(kernel, Function(), driver, HOPPER)
    held = HOPPER.count * HOPPER.resident_blocks(kernel.threads, 32, 1 << 10)
    assert launched == (held if little else kernel.blocks)


def test_the_runtime_launches_them() -> None:
    """By the fake driver, whose kernels do nothing and have 40 registers."""
    driver = FakeDriver()
    fn = bu.jit(lambda x: x.T * 2, device=opened(driver))
    for side, blocks in ((1024, 2048), (4096, 132 * 12)):
        np.asarray(fn(np.zeros((side, 2 * side), np.float32)))
        assert [c[3] for c in driver.calls if c[0] == "launch"][-1] == (blocks, 1)


def test_the_emulated_device_runs_them_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[int] = []
    queue = emulated_driver.Function.prepared_async_call

    def note(self: Any, grid: Any, *rest: Any, **more: Any) -> None:
        launched.append(grid[0])
        queue(self, grid, *rest, **more)

    monkeypatch.setattr(emulated_driver.Function, "prepared_async_call", note)
    x = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    fn = bu.jit(lambda x: x.T * 2, device="cuda-emulated")
    assert np.array_equal(np.asarray(fn(bu.asarray(x, device="cuda-emulated"))), x.T * 2)
    assert launched == [4 * 16]  # of four multiprocessors with 16 blocks each, for 1,024
