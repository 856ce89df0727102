"""Long runs: written as they go, gone on with, joined of parts, on devices that compile slowly."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import toys
from planted import AtHand, declaring, right, spoilt
from rich.console import Console
from typer.testing import CliRunner, Result

from bringup.backend.device import Executable
from bringup.errors import BringupError
from bringup.program.program import Program
from bringup_conformance import Progress, Report, cli, run
from bringup_conformance.cases import Case, Check, Problem, Unsupported
from bringup_conformance.execution import journal, levels, plan, runner
from bringup_conformance.execution.plan import Plan, Unit
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.schedule import Schedule
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting import certificate, terminal, verifying
from bringup_selftest.corpus import OpCall
from bringup_selftest.device import Reference

OPS = ("exp", "add", "sub", "gelu")


def checks(_plan: Plan) -> list[Unit]:
    check = Check("runtime/memory/kept", "runtime", "memory", ("memory.kept",), passes)
    return [Unit("runtime", "memory", "", "", "memory", partial(iter, [check]))]


def passes(_target: object) -> Problem | None:
    return None


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of a few cases each."""
    made = {**levels.MADE}

    def some(level: str, given: Plan) -> list[Unit]:
        units = made[level](given)
        return [u for u in units if (u.op in OPS and u.dtype in ("f32", "i32")) or u.number == "1"]

    for level in ("smoke", "ops", "fusion"):
        monkeypatch.setitem(levels.MADE, level, partial(some, level))
    monkeypatch.setitem(levels.MADE, "runtime", checks)


def rows(report: Report) -> list[dict[str, Any]]:
    """All cases, without the time they took."""
    return [{**result.to_json(), "seconds": 0} for result in report.results]


def stopped_after(units: int) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if progress.done >= units:
            raise KeyboardInterrupt

    return stop


def minus(call: OpCall) -> Any:
    return -call.right


def test_a_run_goes_on_with_what_is_not_whole(tmp_path: Path) -> None:
    first = run(right(), "runtime", report=tmp_path, on_progress=stopped_after(5))
    assert first.interrupted
    seen: list[str] = []
    second = run(
        right(),
        "runtime",
        report=tmp_path,
        resume=True,
        on_progress=lambda at: seen.append(at.doing),
    )
    whole = run(right(), "runtime")
    assert rows(second) == rows(whole)
    assert second.tallies == whole.tallies
    assert second.unsupported == whole.unsupported
    assert second.rules == whole.rules
    assert second.reduced == []
    again = {result.name for result in first.results[:-1]} & set(seen)
    assert len(again) <= 1, "only the unit that was stopped is run again"
    assert certificate.refusals(second, runner.Expectations()) == []


def test_a_run_that_was_killed_goes_on_with_its_failures(tmp_path: Path) -> None:
    device = spoilt({"sub": minus})
    first = run(device, "ops", report=tmp_path, shrink_seconds=5)
    path = tmp_path / journal.NAME
    text = path.read_bytes()
    path.write_bytes(text[:-20])  # half a line at the end
    journal.Journal.read(tmp_path)
    assert path.read_bytes() == text[:-20], "it may be a run under way that is looked at"
    second = run(device, "ops", report=tmp_path, resume=True, shrink_seconds=5)
    assert rows(second) == rows(first)
    assert second.failed == first.failed > 0
    assert len(list(tmp_path.glob("failure-*.json"))) == second.failed
    small = [f.nodes for f in second.failures if "cause" in f.document]
    assert small
    assert max(small) == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"seed": 1}, "seed is 1, and was 0"),
        ({"level": "smoke"}, "level is 'smoke', and was 'ops'"),
        ({"only": "exp"}, "only is 'exp', and was ''"),
        ({"fraction": (1, 2)}, r"fraction is \[1, 2\], and was None"),
    ],
)
def test_a_run_goes_on_as_what_it_was(edit: dict[str, Any], message: str, tmp_path: Path) -> None:
    run(right(), "ops", report=tmp_path, on_progress=stopped_after(3))
    asked = {"level": "ops", **edit}
    with pytest.raises(BringupError, match=message):
        run(right(), report=tmp_path, resume=True, **asked)


def test_a_run_goes_on_on_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(right(), "ops", report=tmp_path, on_progress=stopped_after(3))
    other = declaring(lambda given: given, name="reference")
    with pytest.raises(BringupError, match="the device is another: 'other', and was 'reference'"):
        run(right("other"), "ops", report=tmp_path, resume=True)
    limits = replace(other.capabilities.limits, rank=8)
    lower = declaring(lambda given: replace(given, limits=limits), name="reference")
    with pytest.raises(BringupError, match="the device's declaration is another"):
        run(lower, "ops", report=tmp_path, resume=True)
    # Some drivers count only the memory that is free.
    limits = replace(other.capabilities.limits, memory_bytes=1 << 30)
    fuller = declaring(lambda given: replace(given, limits=limits), name="reference")
    assert run(fuller, "ops", report=tmp_path, resume=True).ok
    monkeypatch.setattr(certificate, "sources_hash", lambda: "others")
    with pytest.raises(BringupError, match="the sources of the suite or of the SDK have changed"):
        run(right(), "ops", report=tmp_path, resume=True)


def test_a_run_goes_on_with_the_code_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch)
    folder, file = tmp_path / "report", tmp_path / "toy" / "plugin_toy.py"
    run("toy", "ops", report=folder, jobs=0, on_progress=stopped_after(3))
    text = file.read_text("utf-8")
    file.write_text(f"{text}\n# installed again\n", "utf-8")
    with pytest.raises(BringupError, match="the code of the device's plugin is another"):
        run("toy", "ops", report=folder, jobs=0, resume=True)
    file.write_text(text, "utf-8")
    assert run("toy", "ops", report=folder, jobs=0, resume=True).ok


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Three parts of a run, one of which was stopped and gone on with."""
    found = [tmp_path / f"part-{i}" for i in (1, 2, 3)]
    for i, folder in enumerate(found, 1):
        run(AtHand(right()), "runtime", fraction=(i, 3), report=folder)
    again = tmp_path / "part-2"
    run(AtHand(right()), "runtime", fraction=(2, 3), report=again, on_progress=stopped_after(2))
    assert len(journal.Journal.read(again).units) < len(journal.Journal.read(found[0]).units)
    run(AtHand(right()), "runtime", fraction=(2, 3), report=again, resume=True)
    return found


def test_parts_join_to_a_certificate(parts: list[Path], tmp_path: Path) -> None:
    whole = run(AtHand(right()), "runtime")
    folder = tmp_path / "certificate"
    names = [*map(str, parts), "--report", str(tmp_path / "joined"), "--certificate", str(folder)]
    done = CliRunner().invoke(cli.app, ["join", *names])
    assert done.exit_code == 0, done.output
    assert verifying.problems(folder)[0] == []
    direct = tmp_path / "direct"
    certificate.write(whole, direct)
    for name in ("results.json", "tolerances.json", "skips.json", "capabilities.json"):
        assert (folder / name).read_text() == (direct / name).read_text()
    written = json.loads((tmp_path / "joined" / "report.json").read_text())
    assert written["reduced"] == []
    assert written["passed"] == whole.passed


def test_what_is_no_whole_run_together_is_refused(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = parts

    def refused(*folders: Path) -> str:
        with pytest.raises(BringupError) as caught:
            journal.read_parts(folders)
        return str(caught.value)

    assert "units are in no part: " in refused(first, second)
    text = refused(first, second, second)
    assert "units are in several parts: " in text
    assert "units are in no part: " in text
    run(AtHand(right()), "runtime", 1, fraction=(3, 3), report=tmp_path / "seed")
    assert "seed is 1, and was 0" in refused(first, second, tmp_path / "seed")
    run(AtHand(right()), "runtime", fraction=(3, 3), report=third, on_progress=stopped_after(2))
    assert re.search(r"part-3 lacks \d+ of its \d+: go on with --resume", refused(*parts))
    path = second / journal.NAME
    lines = path.read_text().splitlines(keepends=True)
    good = "".join(lines)
    path.write_text(good.replace('"problem": null', '"problem":  null', 1).replace("f32", "f16", 1))
    assert "was altered" in refused(*parts)
    path.write_text("".join([*lines[:3], *lines[4:]]))
    assert f"{path}, line 4, was altered" in refused(*parts)


def test_a_report_is_written_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(runner, "_SAVE_SHARE", 1e9)
    seen: list[dict[str, Any]] = []

    def look(progress: Progress) -> None:
        path = tmp_path / "report.json"
        if progress.done and path.is_file():
            seen.append(json.loads(path.read_text()))

    report = run(spoilt({"sub": minus}), "ops", report=tmp_path, on_progress=look, shrink_seconds=0)
    assert len({found["passed"] for found in seen}) > 3
    assert all(found["reduced"][0].startswith("it is under way: ") for found in seen[:-1])
    assert any(found["failed"] and found["failures"] for found in seen)
    assert json.loads((tmp_path / "report.json").read_text())["passed"] == report.passed
    assert [path.name for path in tmp_path.glob(".*")] == []


class Slow(Reference):
    """A device that takes a while to compile."""

    compiled = 0

    def open(self, index: int) -> Any:
        device = super().open(index)
        compile_ = device.compile

        def slowly(program: Program) -> Executable:
            Slow.compiled += len(program.steps)
            time.sleep(0.02 * len(program.steps))
            return compile_(program)

        device.compile = slowly  # type: ignore[method-assign]
        return device


def test_a_device_that_compiles_slowly_is_told_so_and_given_fewer_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SLOW_SECONDS", 0.018)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    news: list[str] = []
    slow = DeviceTarget.of(Slow(1, simulated=True))
    found = run(
        slow,
        "ops",
        report=tmp_path,
        on_progress=lambda at: news.append(at.news) if at.news else None,
    )
    [told] = news
    assert re.match(r"the device takes 0.0\d+ s to compile a kernel", told)
    assert re.search(
        r"level ops \(\d+ units, about \d+ kernels\) will take about \d+ minutes", told
    )
    assert "--time-budget" in told
    assert found.few_kernels
    usual, few = (
        [i for u in Schedule(right(), Job("ops", few=f)).units for i in u.make()]
        for f in (False, True)
    )
    assert {result.name for result in found.results} == {
        i.name for i in few if not isinstance(i, Unsupported)
    }
    most = [
        max(len(i.graph.outputs) for i in items if isinstance(i, Case) and i.data)
        for items in (usual, few)
    ]
    assert most[1] <= plan.FEW < most[0]
    assert not any(i.split for i in few if isinstance(i, Case))
    assert any(i.split for i in usual if isinstance(i, Case))
    again = run(slow, "ops", report=tmp_path, resume=True)
    assert rows(again) == rows(found)


def test_a_busy_machine_is_not_taken_for_a_slow_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLOW_SECONDS", 0.018)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 1e3, 1e3))
    news: list[str] = []
    slow = DeviceTarget.of(Slow(1, simulated=True))
    found = run(slow, "smoke", on_progress=lambda at: news.append(at.news) if at.news else None)
    assert not found.few_kernels
    [told] = news
    assert "s of it computing, and the machine is busy: a load of 1000 on" in told
    assert "--few-kernels" in told
    # A compiler that computes for long is slow on any machine.
    monkeypatch.setattr(runner, "SLOW_CPU_SECONDS", 0.0)
    assert run(slow, "smoke").few_kernels


def test_a_quick_device_has_its_usual_cases() -> None:
    assert not run(right(), "smoke").few_kernels


def test_a_certificate_of_few_kernels_holds(tmp_path: Path) -> None:
    report = run(AtHand(right()), "runtime", few_kernels=True)
    certificate.write(report, tmp_path / "c")
    problems, statement = verifying.problems(tmp_path / "c")
    assert problems == []
    assert isinstance(statement["budget"], dict)
    assert statement["budget"]["together"] == plan.FEW


def test_lines_say_how_far_a_run_is_and_what_fails() -> None:
    text = StringIO()
    with terminal.lines(Console(file=text, width=200), interval=0.05) as show:
        show(Progress(0, 10, "ops/exp", 0))
        show(Progress(4, 10, "ops/add", 1, news="FAIL ops/exp/f32/0: \x1b[2J"))
        until = time.monotonic() + 20
        while "4 of 10" not in text.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    lines = text.getvalue().splitlines()
    assert "FAIL ops/exp/f32/0: \\x1b[2J" in lines
    line = r"4 of 10 units, 1 failed, 0:\d\d elapsed, about 0:\d\d left, ops/add"
    assert re.fullmatch(line, lines[-1])


def test_failures_stand_above_the_bar_as_they_come() -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    with terminal.bar(console, "ops") as show:
        show(Progress(3, 10, "ops/add", 1, news="FAIL ops/exp/f32/0: \x1b]0;title"))
    assert "FAIL ops/exp/f32/0: \\x1b]0;title\n" in text.getvalue()


def test_the_bar_says_what_is_planned_and_what_is_counted() -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    with terminal.bar(console, "fusion") as show:
        before = text.getvalue()
        show(Progress(3, 10, "ops/add", 0))
    assert "planning" in before
    assert "level fusion" in before
    assert "/?" not in before
    assert "3/10 units" in text.getvalue()
    with terminal.bar(console, "soak") as show:
        show(Progress(7, 60, "program 3", 0, counted="seconds"))
    assert "7/60 seconds" in text.getvalue()


def test_a_command_without_a_terminal_tells_failures_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceTarget, "named", lambda _name: spoilt({"sub": minus}))
    done: Result = CliRunner().invoke(
        cli.app,
        ["run", "--backend=reference", "--jobs=0", "--level=ops", "--only=ops/sub/f32",
         f"--report={tmp_path}"],
    )  # fmt: skip
    assert done.exit_code == 1
    assert re.search(r"^FAIL ops/sub/f32/0: output 0\[", done.stderr, re.MULTILINE)
    assert "more by the same cause" in done.stdout
    *_, before_last, last = done.stdout.splitlines()
    assert before_last.startswith("reference, level ops")
    assert last.startswith("report: ")


def test_results_come_back_from_a_journal_as_they_were(tmp_path: Path) -> None:
    report = run(spoilt({"sub": minus}), "ops", report=tmp_path, shrink_seconds=0)
    read = journal.Journal.read(tmp_path)
    found = {each.name: each for unit in read.units.values() for each in unit}
    for result in report.results:
        again = found[result.name]
        assert isinstance(again, type(result))
        plain = result.to_journal()
        assert json.loads(json.dumps(again.to_journal())) == json.loads(json.dumps(plain))
        assert certificate.row_of(again) == certificate.row_of(result)


def test_a_wrong_element_is_shown_with_its_operands() -> None:
    report = run(spoilt({"sub": minus}), "ops", only="ops/sub/f32", shrink_seconds=0)
    [problem] = (
        f.document["problem"] for f in report.failures if f.case["name"] == "ops/sub/f32/0"
    )
    given = problem["mismatches"][0]
    first, second = map(float, given["operands"])
    assert float(given["expected"]) == pytest.approx(first - second)
    assert problem["what"].endswith(f", of {given['operands'][0]}, {given['operands'][1]}")
