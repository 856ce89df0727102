"""The runtime over the emulator: results of everything that is queued in some order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.ops.evaluate import evaluate
from bringup.program.program import LoopStep
from bringup.runtime import transfer
from bringup.runtime.compiler import Options, compile_graph
from bringup.runtime.devices import get
from bringup_cuda.runtime.device import CudaDevice
from bringup_cuda.runtime.executable import CudaExecutable

DEVICE = "cuda-emulated"
X = np.arange(60, dtype=np.int32).reshape(5, 12)


def jit(fn: Any, **options: Any) -> Any:
    return bu.jit(fn, device=DEVICE, **options)


def there(x: np.ndarray[Any, Any]) -> bu.Array:
    return bu.asarray(x, device=DEVICE)


def test_a_program_of_the_user_runs_where_it_is_told() -> None:
    result = jit(lambda x, y: bu.flip(x) * y + 1)(X, X)
    assert result.device is get(DEVICE)
    assert np.array_equal(np.asarray(result), X[::-1, ::-1] * X + 1)
    recorded = bu.sum(there(X) * 2, axis=1)
    assert np.array_equal(np.asarray(recorded), (X * 2).sum(axis=1))


def test_graphs_replay_what_launches_did() -> None:
    def fn(x: Any) -> Any:
        for _ in range(3):
            x = bu.sum(x, axis=0, keepdims=True, dtype=x.dtype) - bu.flip(x)
        return x

    call = jit(fn)
    x, right = there(X), X
    compiled = call.lower(x).executable
    assert isinstance(compiled, CudaExecutable)
    for _ in range(8):
        x = call(x)
        right = np.asarray(_reference(right))
    assert np.array_equal(np.asarray(x), right)


def _reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for _ in range(3):
        x = np.sum(x, axis=0, keepdims=True, dtype=x.dtype) - np.flip(x)
    return x


def test_loops_and_branches() -> None:
    doubled = jit(lambda x: bu.while_loop(lambda y: bu.max(y) < 1000, lambda y: y * 2 + 1, x))
    right = X
    while right.max() < 1000:
        right = right * 2 + 1
    assert np.array_equal(np.asarray(doubled(X)), right)
    chosen = jit(lambda n, x: bu.switch(n, (lambda y: y + 1, lambda y: y * 3), x))
    for number, wanted in ((0, X + 1), (1, X * 3), (5, X * 3)):
        assert np.array_equal(np.asarray(chosen(np.int32(number), X)), wanted)


def test_what_one_stage_loads_for_its_own_store_serves_all_threads_after_it() -> None:
    def body(state: Any) -> Any:
        count, _, x = state
        total, step = bu.sum(x * x), bu.astype(count, x.dtype)
        return count + 1, total + step, x + step * total

    x = np.array([1.0, 0.0, 2.0], np.float32)
    first = (there(np.int32(0)), there(np.float32(0)), there(x))
    _, last, found = jit(lambda s: bu.while_loop(lambda s: s[0] < 3, body, s))(first)
    assert float(last) == 112
    assert np.asarray(found).tolist() == [226, 225, 227]


@pytest.mark.parametrize("width", [1, 3, 4, 7, 12])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_a_scan_lie_at_any_address(width: int, reverse: bool) -> None:
    rows = X[:, :width].astype(np.int8)
    call = jit(lambda c, r: bu.scan(lambda c, r: (c + r, c - r), c, r, reverse=reverse))
    last, made = call(np.ones(width, np.int8), rows)
    carry, right = np.ones(width, np.int8), np.empty_like(rows)
    for at in reversed(range(5)) if reverse else range(5):
        right[at] = carry - rows[at]
        carry = carry + rows[at]
    assert np.array_equal(np.asarray(last), carry)
    assert np.array_equal(np.asarray(made), right)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_scan_starts_with_what_it_changes_in_place(rows: int) -> None:
    """Without simplification, which would drop a scan of no rows."""

    def step(held: Any, row: Any) -> Any:
        held = bu.dynamic_update_slice(held, row[:1], (row[0],))
        return held, bu.sum(held)

    inputs = [np.arange(64, dtype=np.int32), X[:rows, :3]]
    graph = bu.trace(lambda x, y: bu.scan(step, x, y), *inputs)
    device, options = get(DEVICE), Options(skip=frozenset({"simplify"}))
    compiled = compile_graph(graph, device, options=options)
    (program,) = compiled.programs
    (loop,) = (s for s in program.steps if isinstance(s, LoopStep))
    assert (loop.trips, len(loop.updated)) == (rows, 1)
    assert compiled.executable is not None
    buffers = [transfer.upload(device.device, x) for x in inputs]
    results = transfer.execute(device.device, compiled.executable, buffers, 2)
    for buffer, type_, right in zip(results, program.outputs, evaluate(graph, inputs), strict=True):
        assert np.array_equal(transfer.download(device.device, buffer, type_), right)


def test_training_by_donation_takes_no_more_memory() -> None:
    gpu = get(DEVICE).device
    assert isinstance(gpu, CudaDevice)
    step = jit(lambda w, g: w - g * 2, donate_argnums=0)
    w, g = there(X), there(X + 1)
    w = step(w, g)
    live, reserved = gpu.pool.live_bytes, gpu.pool.reserved
    right = X - (X + 1) * 2
    for _ in range(6):
        w = step(w, g)
        right = right - (X + 1) * 2
    assert (gpu.pool.live_bytes, gpu.pool.reserved) == (live, reserved)
    assert np.array_equal(np.asarray(w), right)


FAULTY = """
from dataclasses import replace
import numpy as np, bringup as bu
from bringup.errors import DeviceError
from bringup_cuda.codegen import lower
plain = lower.translate
def broken(program, target=""):
    made = plain(program, target)
    commands = []
    for command in made.commands:
        slots = list(command.arguments)
        slots[-1] = replace(slots[-1], offset=1 << 24)
        commands.append(replace(command, arguments=tuple(slots)))
    return replace(made, commands=tuple(commands))
good = bu.jit(lambda x: x + 1, device="cuda-emulated")
x = bu.asarray(np.arange(40), device="cuda-emulated")
assert np.asarray(good(x))[-1] == 40
lower.translate = broken
bad = bu.jit(lambda x: bu.abs(x) * 3, device="cuda-emulated")
result = bad(x)  # queued, and not known to fail
lower.translate = plain
fine = good(x)
for _ in range(2):
    try:
        np.asarray(result)
    except DeviceError as error:
        print(error)
    else:
        raise SystemExit("nothing failed")
assert np.asarray(fine)[-1] == 40  # the emulator goes on, as no GPU would
assert np.asarray(good(x))[-1] == 40
assert np.asarray(bu.asarray(np.ones(3), device="cuda-emulated:1") + 1).sum() == 6
"""


def test_a_kernel_that_leaves_its_memory_is_named_with_the_line(tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(n for n, text in enumerate(FAULTY.splitlines(), 1) if text.startswith("bad ="))
    assert "k0_abs_mul" in done.stdout
    assert done.stdout.count("out of bounds") == 2, "the result is lost for good"
    assert f"{script}:{line}" in done.stdout


def test_a_sum_that_changes_donated_memory_is_read_by_the_thread_that_writes_it() -> None:
    step = jit(lambda p, g: p - 0.5 * bu.sum(g, axis=(0, 2)), donate_argnums=0)
    g = np.ones((8, 16, 64), np.float32)
    found = step(there(np.arange(16, dtype=np.float32)), there(g))
    assert np.asarray(found).tolist() == [n - 256 for n in range(16)]
