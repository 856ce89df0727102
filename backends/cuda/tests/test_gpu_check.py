"""The script for machines with a GPU: all of it that can be tried without one."""

from __future__ import annotations

import json
import os
import stat
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import gpu_check
import ml_dtypes
import numpy as np
import pytest
from assembling import Assemble
from distributions import write_metadata
from gpu_checks import (
    bars,
    benching,
    judging,
    programs,
    running,
    tables,
    training,
)
from gpu_checks.copying import PTX
from gpu_checks.measuring import Side, measure
from gpu_checks.parts import PARTS, Part, chosen
from gpu_checks.peers import Ours, Warps
from gpu_checks.rows import GROUPS, Row
from gpu_checks.work import WORKS, Task

import bringup as bu
from bringup.graph import Graph
from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.execution.targets import DeviceTarget, Runnable

EMULATED = "cuda-emulated"
#: The program that warpgroups multiply where there are some.
WIDE = "wide product bf16"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes of the script need where the distribution is not installed."""
    if list(metadata.distributions(name="bringup-cuda-emulator", path=_lasting())):
        return
    monkeypatch.setenv("PYTHONPATH", str(write_metadata(tmp_path / "site")))


def _lasting() -> list[str]:
    """Where other processes look, too."""
    return [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]


def _task(tmp_path: Path, argument: str = "", seconds: float = 600) -> Task:
    out = tmp_path / "rows.jsonl"
    out.write_text("")
    return Task(argument, EMULATED, time.monotonic() + seconds, True, out)


def _rows(task: Task) -> list[dict[str, Any]]:
    return [json.loads(line) for line in task.out.read_text().splitlines()]


# ---- the parts


def test_the_parts_fit_in_eight_minutes() -> None:
    assert sum(part.seconds for part in PARTS) <= 8 * 60


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_has_something_to_run(part: Part) -> None:
    name, _, argument = part.work.partition(":")
    module, _, function = WORKS[name].partition(":")
    assert callable(getattr(import_module(module), function))
    known = {"conformance": LEVELS, "bench": GROUPS, "training": ("digits", "transformer")}
    assert argument in known.get(name, ("",))


def test_parts_are_chosen_by_name_and_unknown_ones_are_refused() -> None:
    assert [part.name for part in chosen(["ops", "smoke"])] == ["smoke", "ops"]
    with pytest.raises(SystemExit, match="no part is called speed"):
        chosen(["speed"])


@pytest.mark.usefixtures("environment")
def test_parts_run_in_processes_and_what_they_find_is_written(tmp_path: Path) -> None:
    words = ["run", "--device", EMULATED, "--quick", "--minutes", "60"]
    words += ["--only", "install,smoke,calls,memcheck"]
    assert gpu_check.main([*words, "--results", str(tmp_path)]) == 0
    found = json.loads((tmp_path / f"gpu-{EMULATED}.json").read_text())
    states = {name: part["status"] for name, part in found["parts"].items()}
    assert states == {"install": "skipped", "smoke": "done", "calls": "done", "memcheck": "skipped"}
    (smoke,) = found["parts"]["smoke"]["rows"]
    assert smoke["passed"] > 40
    assert not smoke["failed"]
    assert [row["kind"] for row in found["parts"]["calls"]["rows"][1:]] == ["call", "other"]
    page = (tmp_path / f"gpu-{EMULATED}.md").read_text()
    assert "| smoke | conformance, level smoke | done |" in page
    assert "bars of time are not judged" in page


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_of_rows_runs_and_is_right(group: str, tmp_path: Path) -> None:
    task = _task(tmp_path, group)
    assert benching.work(task)
    versions, *rows = _rows(task)
    assert versions["versions"] == {"peers": "an emulated device has none"}
    assert [row["name"] for row in rows] == [row.name for row in GROUPS[group](True)]
    assert all(row["seconds"]["bringup"] > 0 and row["bytes"] > 0 for row in rows)
    for row in rows:
        both = {"bringup", "bringup, mma.sync"} <= row["seconds"].keys()
        assert both == (row["kind"] in ("matmul", "fused"))


def test_products_are_timed_without_warpgroups_too(
    compiled_for: Callable[[str], list[str]],
) -> None:
    """On the same device, compiled once for what comes before it, and nothing else is."""
    made = compiled_for("translate")
    row = GROUPS["matrices"](True)[0]
    drawn = [np.ones(operand.shape, ml_dtypes.bfloat16) for operand in row.operands]
    results = []
    for peer in (Ours(EMULATED), Warps(EMULATED), Ours(EMULATED)):
        way = peer.way(row)
        assert way is not None
        call, given = peer.ready(way), [peer.upload(array) for array in drawn]
        results += [peer.download(call(*given)) for _ in range(2)]
    assert made == ["sm_90a", "sm_90", "sm_90a"]
    assert all((result == 128).all() for result in results)
    assert Warps(EMULATED).way(GROUPS["calls"](True)[0]) is None


def test_rows_of_full_size_move_what_the_bars_are_about() -> None:
    rows: list[Row] = [row for group in ("memory", "matrices") for row in GROUPS[group](False)]
    by_kind = {row.kind: row for row in rows}
    assert by_kind["elementwise"].bytes == 16 * 10**8
    assert by_kind["rows"].bytes == 2 * 2 * 8192 * 4096
    assert by_kind["matmul"].flops == 2 * 8192**3
    assert all(row.operands[0].shape in ((10**8,), (10**4,) * 2) for row in rows
               if row.kind in ("elementwise", "reduction"))  # fmt: skip


def test_digits_train_within_the_bounds_of_every_step(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    task = _task(tmp_path, "digits")
    assert training.work(task)
    *steps, whole = _rows(task)
    assert [step["name"] for step in steps] == ["step 1", "step 2"]
    assert all(step["compared"] > 5000 and not step["open"] for step in steps)
    assert set(whole["losses"]) == {"cpu", EMULATED}


# ---- what goes wrong


def _run(tmp_path: Path, seconds: float = 60) -> running.Run:
    work = tmp_path / "work"
    work.mkdir()
    return running.Run("cuda", True, seconds, tmp_path / "results", work, None, None)


def _parts_of(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "results").glob("gpu-*.json")
    found: dict[str, Any] = json.loads(path.read_text())["parts"]
    return found


def _saying(monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str]) -> list[Part]:
    """Parts that are little scripts, which find the file of their rows in ``sys.argv[1]``."""

    def command(_asked: Any, part: Part, out: Path, _seconds: float) -> list[str]:
        return [sys.executable, "-c", scripts[part.name], str(out)]

    monkeypatch.setattr(running, "_command", command)
    return [Part(name, name, 3, "programs") for name in scripts]


def test_a_part_that_fails_hangs_or_dies_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "import sys; open(sys.argv[1], 'a').write('{\"name\": 1}\\n'); "
    scripts = {
        "hangs": row + "import time; sys.stdout.flush(); time.sleep(99)",
        "raises": row + "raise ValueError('no such thing')",
        "dies": "import os; os.abort()",
        "wrong": row.replace("1}", '1, \\"wrong\\": 2}'),
        "good": row,
    }
    monkeypatch.setattr(running, "GRACE", 0.1)
    assert running.run(_run(tmp_path, 15), _saying(monkeypatch, scripts)) == 1
    found = _parts_of(tmp_path)
    states = {name: part["status"] for name, part in found.items()}
    assert states == {
        "hangs": "out of time", "raises": "failed", "dies": "failed", "wrong": "failed",
        "good": "done",
    }  # fmt: skip
    assert found["hangs"]["rows"] == [{"name": 1}]
    assert found["raises"]["why"].endswith("ValueError: no such thing")
    assert found["dies"]["why"] == "exit status -6"


def test_few_parts_in_much_time_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    parts = _saying(monkeypatch, {"one": "pass", "other": "pass"})
    run_part = running._run_part

    def seen(asked: Any, part: Part, seconds: float, *rest: Any) -> None:
        given.append(seconds)
        run_part(asked, part, seconds, *rest)

    monkeypatch.setattr(running, "_run_part", seen)
    running.run(_run(tmp_path, 100), parts)
    assert given[0] == 50


def test_parts_after_the_time_are_skipped_and_found_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = _saying(monkeypatch, {"first": "pass", "second": "pass"})
    run = _run(tmp_path)
    assert running.run(run, parts[:1]) == 0
    late = running.Run("cuda", True, 0, run.results, run.work, None, None)
    assert running.run(late, parts[1:]) == 0
    found = _parts_of(tmp_path)
    assert {name: part["status"] for name, part in found.items()} == {
        "first": "done", "second": "skipped",
    }  # fmt: skip
    assert found["second"]["why"] == "no time was left"


@pytest.mark.parametrize(("status", "state"), [(0, "done"), (86, "failed")])
def test_compute_sanitizer_decides_by_its_status_and_its_summary_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, state: str
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        f"#!/bin/sh\necho $@\necho '========= ERROR SUMMARY: 3 errors'\nexit {status}\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    part = next(part for part in PARTS if part.name == "memcheck")
    assert running.run(_run(tmp_path), [part]) == (status > 0)
    (found,) = _parts_of(tmp_path).values()
    assert found["status"] == state
    assert found["summary"] == "ERROR SUMMARY: 3 errors"
    if status:
        assert "--tool memcheck --target-processes all --error-exitcode 86 --report" in found["why"]


# ---- bars and tables


def _found(**parts: Any) -> dict[str, Any]:
    made = {
        name: {"title": name, "status": "done", "seconds": 1.0, "rows": rows}
        for name, rows in parts.items()
    }
    found = {
        "device": "cuda", "product": "GPU 1", "emulated": False, "quick": False,
        "date": "2026-01-01 00:00", "commit": "abc", "environment": {"driver": "1"},
        "parts": made,
    }  # fmt: skip
    return {**found, "bars": bars.judge(found)}


def _timed(kind: str, **seconds: float) -> dict[str, Any]:
    names = {"again": "bringup, plain, again", "plain": "bringup, plain"}
    taken = {names.get(name, name): value for name, value in seconds.items()}
    return {"name": kind, "kind": kind, "bytes": 10**9, "seconds": taken, "noise": 0.02}


@pytest.mark.parametrize(
    ("row", "number", "shown", "met"),
    [
        (_timed("elementwise", bringup=1e-3, copy=0.95e-3), 0, "95%", True),
        (_timed("elementwise", bringup=1e-3, copy=0.85e-3), 0, "85%", False),
        (_timed("reduction", bringup=1e-3, copy=0.95e-3), 1, "95%", True),
        (_timed("rows", bringup=1e-3, copy=0.86e-3), 2, "86%", True),
        (_timed("matmul", bringup=1e-3, torch=0.8e-3), 3, "80%", True),
        (_timed("matmul", bringup=1e-3, torch=0.6e-3), 3, "60%", False),
        (_timed("matmul", bringup=1e-3), 3, "–", None),
        (_timed("fused", bringup=1.01e-3, plain=1e-3, again=1e-3), 4, "+1.0%", True),
        (_timed("fused", bringup=1.05e-3, plain=1e-3, again=1e-3), 4, "+5.0%", False),
        (_timed("call", bringup=8e-6), 5, "8.0 µs", True),
        (_timed("call", bringup=12e-6), 5, "12.0 µs", False),
    ],
)
def test_bars_of_time(row: dict[str, Any], number: int, shown: str, met: bool | None) -> None:
    bar = _found(rows=[row])["bars"][number]
    assert (bar["found"], bar["met"]) == (shown, met)


def test_the_worst_row_decides_and_times_of_small_sizes_do_not() -> None:
    rows = [_timed("rows", bringup=1e-3, copy=c) for c in (0.9e-3, 0.5e-3)]
    found = _found(rows=rows)
    assert found["bars"][2] == {
        "what": "softmax and layer norm (8192, 4096)",
        "needed": "≥ 85% of the copy's speed",
        "found": "50%",
        "met": False,
    }
    assert bars.judge({**found, "quick": True})[2]["met"] is None


def test_conformance_that_failed_is_a_missed_bar_and_parts_that_did_not_run_none() -> None:
    level = {"passed": 5, "failed": 0, "reduced": ["only 'ops' was asked for"]}
    found = _found(smoke=[level], ops=[level], fusion=[level], runtime=[level])
    assert found["bars"][6]["found"] == "20 cases passed, 0 failed, done"
    assert found["bars"][6]["met"] is True
    del found["parts"]["ops"]
    assert bars.judge(found)[6]["met"] is None
    found["parts"]["smoke"]["status"] = "failed"
    assert bars.judge(found)[6]["met"] is False


def test_the_table_of_results() -> None:
    rows = [
        {"name": "", "versions": {"torch": "2.11"}},
        {**_timed("elementwise", bringup=1e-3, copy=0.95e-3, torch=2e-3), "name": "x | y"},
        {**_timed("matmul", bringup=2e-3), "flops": 10**12},
    ]
    page = tables.table(_found(memory=rows)).split("\n")
    assert page[:4] == [
        "# GPU 1",
        "",
        "`gpu_check.py run --device cuda`, 2026-01-01 00:00, commit abc, driver 1.",
        "",
    ]
    assert "| elementwise, 10⁸ elements | ≥ 90% of the copy's speed | 95% | yes |" in page
    start = page.index("| program | bringup, µs | torch, µs | copy, µs | rate |")
    assert page[start + 2 :] == [
        "| x \\| y | 1,000 | 2,000 | 950 | 1000 GB/s, 95% of the copy's |",
        "| matmul | 2,000 | – | – | 500.0 TFLOP/s |",
        "",
        "torch 2.11",
        "",
    ]


def test_a_file_of_results_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu-1.json"
    path.write_text(json.dumps(_found()))
    assert gpu_check.main(["table", str(path)]) == 0
    assert capsys.readouterr().out.startswith("# GPU 1\n")


# ---- measuring and judging


def test_sides_are_called_in_turn_and_waited_for() -> None:
    order: list[str] = []
    sides = [
        Side(name, lambda _, name=name: order.append(name), lambda: order.append("wait"))
        for name in ("a", "b")
    ]
    times = measure(sides, 1, quick=True)
    assert list(times) == ["a", "b"]
    assert order == ["a", "wait", "b", "wait"] * 2


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_kernel_that_copies_assembles(assemble: Assemble, architecture: str) -> None:
    assemble(PTX, architecture)


def test_the_kernel_that_copies_loads_all_before_it_stores() -> None:
    lines = [line for line in PTX.split("\n") if ".v4.b32" in line]
    assert ["ld" in line for line in lines] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("name", ["softmax", "training step", "random", "scatter", WIDE])
def test_programs_lie_within_their_bounds(name: str) -> None:
    function, operands = programs.PROGRAMS[name]
    graph = programs.traced(function, operands)
    target = DeviceTarget.named(EMULATED)
    found = judging.judge_graph(target, graph, operands, lambda: 60.0, longest=8)
    assert found.verdict.ok
    assert found.verdict.compared > 0
    assert not found.late


def test_a_program_is_multiplied_by_warpgroups() -> None:
    function, operands = programs.PROGRAMS[WIDE]
    made = bu.jit(function).lower(*operands, target="cuda:sm_90a")
    assert "wgmma.mma_async" in made.asm


class _Spoilt(DeviceTarget):
    """Adds a little to the first element of every result of floats."""

    def compile(
        self, graph: Graph, *, fuse: bool = True, skip: frozenset[str] = frozenset()
    ) -> Runnable:
        run = super().compile(graph, fuse=fuse, skip=skip)

        def spoilt(inputs: Any) -> list[Any]:
            results = run(inputs)
            for each in results:
                if each.dtype == np.float32:
                    each.reshape(-1)[:1] += 1e-3
            return results

        return spoilt


def test_a_result_outside_its_bounds_is_found_in_any_piece() -> None:
    function, operands = programs.PROGRAMS["training step"]
    graph = programs.traced(function, operands)
    target = _Spoilt(DeviceTarget.named("cpu").device)
    whole = judging.judge_graph(target, graph, operands, lambda: 60.0)
    pieces = judging.judge_graph(target, graph, operands, lambda: 60.0, longest=4)
    assert not whole.verdict.ok
    assert pieces.verdict.wrong > whole.verdict.wrong
    assert pieces.pieces > whole.pieces


def test_a_program_whose_time_is_up_says_so() -> None:
    function, operands = programs.PROGRAMS["softmax"]
    graph = programs.traced(function, operands)
    found = judging.judge_graph(DeviceTarget.named("cpu"), graph, operands, lambda: -1.0)
    assert found.row()["late"]
    assert found.verdict.compared == 0
