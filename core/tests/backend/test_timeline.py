"""The timeline is JSON that Perfetto reads, whatever becomes of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from bringup.errors import BringupError
from bringup.runtime import timeline


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    timeline.stop()


def events(path: Path, phase: str = "X") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [e for e in found if e["ph"] == phase]


def test_spans_become_complete_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    timeline.start(path)
    before = perf_counter() * 1e6
    outer, inner = timeline.span("outer", "compile", graph="main"), timeline.span("inner", "kernel")
    with outer, inner:
        inner.note(bytes=12, share=float("nan"), shape=(2, 3))
    after = perf_counter() * 1e6
    timeline.stop()
    inner_event, outer_event = events(path)
    assert outer_event["name"] == "outer"
    assert outer_event["cat"] == "compile"
    assert outer_event["args"] == {"graph": "main"}
    assert inner_event["args"] == {"bytes": 12, "share": "nan", "shape": "(2, 3)"}
    assert before <= outer_event["ts"] <= inner_event["ts"]
    end = inner_event["ts"] + inner_event["dur"]
    assert end <= outer_event["ts"] + outer_event["dur"] <= after
    assert (outer_event["pid"], outer_event["tid"]) == (os.getpid(), threading.get_native_id())


def test_threads_and_native_events_have_names(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    timeline.start(path)

    def work() -> None:
        with timeline.span("work", "kernel"):
            pass

    thread = threading.Thread(target=work, name="worker 7")
    thread.start()
    thread.join()
    timeline.name_thread(4242, "native 1")
    timeline.name_thread(4242, "another name")
    timeline.record("kernel_0", "kernel", 5_000, 1_500, 4242, elements=9)
    timeline.stop()
    names = {e["tid"]: e["args"]["name"] for e in events(path, "M") if e["name"] == "thread_name"}
    work_event, native = events(path)
    assert names == {work_event["tid"]: "worker 7", 4242: "native 1"}
    assert (native["ts"], native["dur"], native["tid"]) == (5, 1.5, 4242)


def test_nothing_is_kept_and_little_is_spent_when_off(tmp_path: Path) -> None:
    assert not timeline.enabled()
    assert timeline.span("a", "b") is timeline.span("c", "d", e=1)
    timeline.record("a", "b", 0, 0, 0)
    timeline.name_thread(1, "x")
    with timeline.span("a", "b") as nothing:
        nothing.note(x=1)
    timeline.start(tmp_path / "t.json")
    assert timeline.enabled()
    timeline.stop()
    assert events(tmp_path / "t.json") == []


def test_the_file_is_whole_after_every_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_FLUSH_EVERY", 10)
    path = tmp_path / "t.json"
    timeline.start(path)
    assert events(path) == []
    for i in range(25):
        with timeline.span(f"step {i} «ü»", "kernel"):
            pass
    assert len(events(path)) in (18, 19, 20)
    timeline.stop()
    assert [e["name"] for e in events(path)] == [f"step {i} «ü»" for i in range(25)]


def test_an_error_inside_a_span_is_named_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    timeline.start(path)
    with pytest.raises(KeyError), timeline.span("bad", "compile"):
        raise KeyError("x")
    timeline.stop()
    assert events(path)[0]["args"] == {"error": "KeyError"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BringupError, match="set BRINGUP_TRACE to a file in a directory"):
        timeline.start(tmp_path / "nowhere" / "t.json")
    assert not timeline.enabled()


def test_the_variable_traces_a_process_that_forks_and_dies_of_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    code = """
import os, sys
from bringup.runtime.timeline import span
with span("parent", "compile"):
    child = os.fork()
if child == 0:
    with span("child", "kernel"):
        sys.exit()
os.wait()
with span("doomed", "kernel"):
    raise RuntimeError("boom")
"""
    env = {**os.environ, "BRINGUP_TRACE": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: boom" in done.stderr
    assert [e["name"] for e in events(path)] == ["parent", "doomed"]
    [other] = set(tmp_path.iterdir()) - {path}
    assert [e["name"] for e in events(other)] == ["child"]
    assert other.name == f"t.{events(other)[0]['pid']}.json"
