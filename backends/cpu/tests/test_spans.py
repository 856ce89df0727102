"""The timeline of a CPU run: phases of compilation, transfers, kernels by thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.runtime import timeline

Event = dict[str, Any]

# The second worker comes when the system lets it, so the calls go on until it has.
_PROGRAM = """
import json
import numpy as np
import bringup as bu

host = np.linspace(-3, 3, 1 << 20, dtype=np.float32)

@bu.jit
def normal(x):
    total = bu.sum(bu.sin(x) * bu.sin(x))
    return bu.cos(x) / total

x = bu.asarray(host)
for k in range({calls}):
    y = normal(x)
found = np.from_dlpack(y)
wanted = np.cos(host) / np.sum(np.sin(host.astype(np.float64)) ** 2)
assert np.allclose(found, wanted, rtol=1e-4), (found, wanted)
print(json.dumps([kernel.name for kernel in normal.lower(x).kernels]))
"""


def spans(path: Path, category: str) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


def inside(inner: Event, outer: Event) -> bool:
    # Times are floats of µs: half a ns may be lost.
    start, end = outer["ts"] - 1e-2, outer["ts"] + outer["dur"] + 1e-2
    return bool(start <= inner["ts"] and inner["ts"] + inner["dur"] <= end)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    path = tmp_path_factory.mktemp("trace") / "run.json"
    env = {**os.environ, "BRINGUP_THREADS": "2", "BRINGUP_TRACE": str(path)}
    env["XDG_CACHE_HOME"] = str(path.parent)
    code = _PROGRAM.format(calls=60)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


def test_compile_phases_are_there_and_nest(traced: tuple[Path, list[str]]) -> None:
    phases = spans(traced[0], "compile")
    names = {e["name"] for e in phases}
    assert {"simplify", "fuse", "plan", "backend compile", "emit", "llvm"} <= names
    by_name = {e["name"]: e for e in phases}
    whole, emit, llvm = (by_name[n] for n in ("backend compile", "emit", "llvm"))
    assert whole["args"]["program"] == "normal"
    program = next(e for e in phases if e["name"] == "compile normal")
    assert program["args"]["device"] == "cpu"
    assert all(inside(by_name[name], program) for name in ("simplify", "fuse", "plan"))
    assert inside(whole, program)
    assert inside(emit, whole)
    assert inside(llvm, whole)
    assert emit["ts"] + emit["dur"] <= llvm["ts"] + 1e-2
    assert llvm["args"] == {"compiled": True}


def test_transfers_are_there(traced: tuple[Path, list[str]]) -> None:
    uploads = [e for e in spans(traced[0], "transfer") if e["name"] == "upload"]
    assert uploads[0]["args"] == {"bytes": 4 << 20}


def test_looks_at_results_and_the_memory_of_calls_are_there(
    traced: tuple[Path, list[str]],
) -> None:
    [look] = [e for e in spans(traced[0], "transfer") if e["name"] == "view"]
    assert look["args"] == {"bytes": 4 << 20}
    events = json.loads(traced[0].read_text())["traceEvents"]
    counts = [e["args"]["memory of the call"] for e in events if e["ph"] == "C"]
    # An argument, a result of as many bytes, and partial sums.
    assert len(counts) == 2 * 60
    assert set(counts[1::2]) == {0}
    assert 8 << 20 < counts[0] < 9 << 20


def test_the_phases_of_an_op_are_there_under_its_name(
    python: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    code = "import bringup as bu; bu.cumulative_sum(bu.ones(1 << 20) * 2)[-1].tolist()"
    python(code, BRINGUP_THREADS="1", BRINGUP_TRACE=str(path))
    assert [e["name"] for e in spans(path, "kernel")].count("cumulative") == 2


def test_every_kernel_is_there_on_every_thread_that_ran_a_part(
    traced: tuple[Path, list[str]],
) -> None:
    path, kernels = traced
    assert len(kernels) == 3, "the sum is two kernels"
    events, runs = spans(path, "kernel"), spans(path, "program")
    assert len(runs) == 60
    assert {e["name"] for e in runs} == {"normal"}
    assert all(run["args"]["bytes"] > 4 << 20 and run["args"]["flops"] > 0 for run in runs)
    assert all("<string>:" in e["args"]["line"] for e in events)
    # What the launches move and compute is what their program does.
    for fact in ("bytes", "flops"):
        of = {e["name"]: e["args"][fact] for e in events}
        assert sum(of.values()) == runs[0]["args"][fact]
    launched = set(kernels)
    assert {e["name"] for e in events} == launched
    (main,) = {e["tid"] for e in runs}
    threads = {e["tid"] for e in events}
    assert main in threads
    assert len(threads) == 2
    for run in runs:
        parts = [e for e in events if inside(e, run)]
        assert {e["name"] for e in parts} == launched
        assert 3 <= len(parts) <= 5
        for name in launched:
            mine = [e for e in parts if e["name"] == name]
            assert len({e["tid"] for e in mine}) == len(mine), "one event a thread"
    assert len([e for run in runs for e in events if inside(e, run)]) == len(events)


def test_kernels_come_in_order_and_say_how_busy_they_were(
    traced: tuple[Path, list[str]],
) -> None:
    path, kernels = traced
    events = spans(path, "kernel")
    for run in spans(path, "program"):
        ends = 0.0
        for name in kernels:
            parts = [e for e in events if e["name"] == name and inside(e, run)]
            assert ends <= min(e["ts"] for e in parts) + 1e-2
            ends = max(e["ts"] + e["dur"] for e in parts)
    for event in events:
        assert event["args"]["parts"] >= 1
        assert 0 < event["args"]["busy_us"] <= event["dur"] + 1e-2
    shared = [e for e in events if e["name"] == kernels[-1]]
    assert max(e["args"]["parts"] for e in shared) > 1


def test_threads_have_names(traced: tuple[Path, list[str]]) -> None:
    events = json.loads(traced[0].read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["MainThread", "worker 1"]
    assert names.keys() == {e["tid"] for e in events if e["ph"] == "X"}


def test_without_a_timeline_the_code_has_no_trace_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup_cpu.codegen import generate
    from bringup_cpu.executable import NativeCode

    texts: list[NativeCode] = []

    def spy(*args: Any, **kwargs: Any) -> NativeCode:
        texts.append(generate(*args, **kwargs))
        return texts[-1]

    monkeypatch.setattr("bringup_cpu.codegen.generate", spy)
    bu.jit(lambda x: x * 3 + 25)(np.ones(7, np.float32))
    assert len(texts) == 1
    for word in ("clock_gettime", "traced", "PyThread"):
        assert word not in texts[0].text


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "t.json"
    timeline.start(path)
    yield path
    timeline.stop()


def test_every_call_is_measured_and_none_once_the_timeline_stopped(started: Path) -> None:
    fn = bu.jit(lambda x: x * 5 + 26)
    x = np.arange(9, dtype=np.float32)
    for _ in range(50):
        assert np.array_equal(np.asarray(fn(x)), x * 5 + 26)
    timeline.stop()
    assert np.array_equal(np.asarray(fn(x)), x * 5 + 26)
    assert len(spans(started, "kernel")) == 50
    assert len(spans(started, "program")) == 50


def test_kernels_of_a_program_with_constants_and_an_arena(started: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((33, 65)).astype(np.float32)
    x = rng.standard_normal((65, 33)).astype(np.float32)

    def fn(x: Any) -> Any:
        y = bu.asarray(table) @ x
        return y @ y, bu.sum(y)

    product, total = bu.jit(fn)(x)
    timeline.stop()
    y = table.astype(np.float64) @ x
    assert np.allclose(np.asarray(product), y @ y, rtol=1e-4, atol=1e-3)
    assert np.isclose(float(total), y.sum(), rtol=1e-4)
    assert len(spans(started, "kernel")) >= 2


def test_calls_from_two_threads_lie_on_their_threads(started: Path) -> None:
    fn = bu.jit(lambda x: bu.sum(bu.exp(x), axis=1))
    x = np.zeros((64, 1 << 6), np.float32)
    fn(x)

    def work() -> None:
        for _ in range(20):
            assert np.array_equal(np.asarray(fn(x)), np.full(64, 1 << 6, np.float32))

    threads = [threading.Thread(target=work, name=f"user {k}") for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.stop()
    runs = spans(started, "program")
    assert len(runs) == 41
    assert len({e["tid"] for e in runs}) == 3
    events = spans(started, "kernel")
    for run in runs:
        assert any(e["tid"] == run["tid"] and inside(e, run) for e in events)


def test_a_forked_child_traces_into_its_own_file(
    python: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "fork.json"
    code = """
import os
import numpy as np
import bringup as bu
fn = bu.jit(lambda x: bu.sin(x) + bu.cos(x))
x = np.ones(1 << 18, np.float32)
first = np.asarray(fn(x))
child = os.fork()
assert np.array_equal(first, np.asarray(fn(x)))
if not child:
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
print(child)
"""
    child = python(code, BRINGUP_TRACE=str(path), BRINGUP_THREADS="2").stdout.strip()
    own = tmp_path / f"fork.{child}.json"
    assert [len(spans(p, "program")) for p in (path, own)] == [2, 1]
    assert {e["pid"] for e in spans(own, "kernel")} == {int(child)}
