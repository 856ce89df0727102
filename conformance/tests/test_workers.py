"""Worker processes: crashes, silence and want of memory are results, and the report is one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import toys
from planted import right

from bringup.dtypes import f32
from bringup.errors import BackendError, BringupError
from bringup.graph import Builder, Graph
from bringup.ops.table import lookup
from bringup_conformance import Progress, Report, replay, run
from bringup_conformance.cases import Case, Outcome, Problem
from bringup_conformance.execution import heartbeat, pool, protocol, runner, running
from bringup_conformance.execution import schedule as schedule_module
from bringup_conformance.execution.processes import exit_reason
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.schedule import Schedule, chosen, sampled_order
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import folders, reports, views

#: Ends its process in every way there is.
ALL_WAYS = """
if name == "exp": os.kill(os.getpid(), signal.SIGSEGV)
if name == "floor": print("last words", flush=True); os._exit(7)
if name == "sqrt": time.sleep(60)
if name == "add": raise MemoryError("no room")
"""
ONE_EACH = "add,exp,floor,mul,sqrt"


def found(report: Report) -> list[dict[str, Any]]:
    """All cases, without what they took."""
    return [{**r.to_json(), "seconds": 0} for r in report.results]


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys.install(tmp_path / "toy", monkeypatch, ALL_WAYS)


def test_every_way_to_end_is_a_result_and_the_run_goes_on(deadly: None, tmp_path: Path) -> None:
    report = run(
        "toy", "smoke", only=ONE_EACH, jobs=2, timeout=1.0, shrink_seconds=0, report=tmp_path
    )
    kinds = {r.op: r.problem and r.problem.kind for r in report.results}
    assert kinds == {"mul": None, "floor": "crash", "exp": "crash", "sqrt": "hang", "add": "oom"}
    problems = {r.op: r.problem for r in report.results if r.problem is not None}
    assert problems["exp"].what == "its process ended with SIGSEGV"
    assert "Segmentation fault" in problems["exp"].log
    assert "in misbehave" in problems["exp"].log
    assert problems["floor"].what == "its process exited with status 7"
    assert problems["floor"].log == "last words"
    assert "in misbehave" in problems["sqrt"].log  # where it hung
    assert "MemoryError: no room" in problems["add"].what
    assert len(report.reduced) == 1  # what was asked for
    assert not report.ok
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["environment"]["product"] == "Toy One"
    assert written["environment"]["capabilities"]["ops"]["exp"] == ["f32"]
    assert {f["kind"] for f in written["failures"]} == {"crash", "hang", "oom"}
    assert len(list(tmp_path.glob("failure-*.json"))) == 4


def test_the_report_does_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch, "if name == 'floor' and operands[0].size > 9: os._exit(7)")
    only = "ops/floor,ops/add,ops/sub"
    reports = [run("toy", "ops", only=only, jobs=n, shrink_seconds=0) for n in (1, 3)]
    first, second = reports
    assert found(first) == found(second)
    assert first.failed > 1
    assert first.passed > 3
    assert first.tallies == second.tallies
    assert first.unsupported == second.unsupported
    assert first.reduced == second.reduced
    documents = [[f.document for f in report.failures] for report in reports]
    assert documents[0] == documents[1]
    here = run("toy", "ops", only="ops/add,ops/sub", jobs=0)
    known = found(first)
    assert all(each in known for each in found(here))
    assert here.environment == first.environment


def test_a_crash_is_made_small_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch, "if name == 'exp': os.abort()")
    report = run("toy", "smoke", only="exp,mul", jobs=1, report=tmp_path, shrink_seconds=6)
    [failure] = report.failures
    assert failure.problem["kind"] == "crash"
    assert "SIGABRT" in failure.problem["what"]
    assert failure.nodes == 1
    assert failure.file is not None
    again = replay(failure.file)[1]
    assert again is not None
    assert again.kind == "crash"
    assert "SIGABRT" in again.what


#: After an exp, the device fails everything.
LOSES = """
from bringup.errors import DeviceLostError
if name == "exp" or hasattr(misbehave, "lost"):
    misbehave.lost = DeviceLostError("it fell off the table")
    raise misbehave.lost
"""


def test_a_lost_device_is_one_failure_and_another_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch, LOSES)
    only = "add,exp,floor,mul"
    report = run("toy", "smoke", only=only, jobs=1, report=tmp_path, shrink_seconds=6)
    assert {r.op: r.status for r in report.results} == {
        "add": "pass", "exp": "fail", "floor": "pass", "mul": "pass",
    }  # fmt: skip
    [failure] = report.failures
    assert failure.problem["kind"] == "crash"
    assert "it fell off the table" in failure.problem["what"]
    assert "status" not in failure.problem["what"]
    assert failure.nodes == 1, "it is made small where nothing was lost before"
    assert failure.file is not None
    again = replay(failure.file)[1]
    assert again is not None
    assert "it fell off the table" in again.what


def test_a_lost_device_ends_the_run_that_has_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch, LOSES)
    report = run("toy", "smoke", only="add,exp,floor,mul", jobs=0)
    assert [r.op for r in report.results if r.status == "fail"] == ["exp"]
    assert "the device is lost in this process by smoke/exp" in report.reduced[1]


def test_a_unit_that_kills_again_and_again_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch, "os._exit(1)")
    monkeypatch.setattr(pool, "MAX_EXITS_PER_UNIT", 2)
    report = run(
        "toy", "ops", only="ops/exp/0,ops/exp/mapped,ops/exp/deep", jobs=1, shrink_seconds=0
    )
    assert all(r.problem is not None and r.problem.log for r in report.results)
    assert [r.status for r in report.results] == ["fail"] * pool.MAX_EXITS_PER_UNIT
    what = "ops/exp/f32: what follows the last failure is left out"
    assert report.reduced[1:] == [what]


def test_a_device_that_only_dies_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch, "os._exit(1)")
    monkeypatch.setattr(pool, "MAX_EXITS_IN_A_ROW", 4)
    report = run("toy", "smoke", only=ONE_EACH, jobs=1, shrink_seconds=0)
    assert "4 workers ended in a row; the last: its process exited" in report.reduced[1]
    assert report.failed == 3
    assert not report.ok


def test_work_that_fails_late_is_a_result_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "import threading; threading.Timer(0.05, os._exit, [9]).start() if name == 'exp' else 0"
    toys.install(tmp_path, monkeypatch, later + "; time.sleep(0.03)")
    report = run("toy", "smoke", only="exp,mul", jobs=1, shrink_seconds=0)
    assert report.failed >= 1
    assert all("status 9" in f.problem["what"] for f in report.failures)


@pytest.mark.parametrize(
    ("opening", "message"),
    [("os._exit(3)", "its process exited with status 3"), ("raise OSError('no')", "OSError: no")],
)
def test_a_device_that_cannot_be_opened_is_no_run(
    opening: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch, opening=opening)
    with pytest.raises(BackendError, match=message):
        run("toy", "smoke", jobs=2)


@pytest.mark.parametrize("jobs", [0, 2])
def test_an_interrupt_ends_the_run_with_what_is_known(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch)

    def stop(progress: Progress) -> None:
        if progress.done >= 70:
            raise KeyboardInterrupt

    report = run("toy", "ops", jobs=jobs, report=tmp_path, on_progress=stop)
    assert report.interrupted
    assert 0 < report.passed < 90
    assert report.reduced[0].startswith("interrupted; ")
    # Of two workers, one may be at the last of smoke as the other does the first of ops.
    assert report.in_part in (["ops"], ["smoke", "ops"][-1 - (jobs > 1) :])
    assert [str(rung) for rung in views.ladder(reports.document_of(report))] == [
        f"{level} ok{' as far as it ran' * (level in report.in_part)}" for level in ("smoke", "ops")
    ]
    assert json.loads((tmp_path / "report.json").read_text())["reduced"] == report.reduced


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_time_budget_says_what_it_left_out(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch)
    report = run("toy", "smoke", jobs=jobs, time_budget=0)
    total = len(Schedule(right(), Job("smoke")).units)
    assert report.reduced == [f"the time budget of 0 s left out {total} of {total} units"]
    assert report.results == []
    assert report.in_part == ["smoke"]


@cache
def a_while(jobs: int) -> int:
    """Seconds in which this machine, busy as it may be, opens a device and runs some cases."""
    start = time.monotonic()
    run("toy", "smoke", only="smoke/exp/f32", jobs=jobs)
    return 4 + int(2.5 * (time.monotonic() - start))


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_time_budget_that_ends_in_the_middle_leaves_no_whole_run(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of the smoke programs, which come first, calls 128 ops.
    toys.install(tmp_path, monkeypatch, "time.sleep(0.01)")
    budget = a_while(jobs)
    start = time.monotonic()
    report = run("toy", "ops", jobs=jobs, time_budget=budget)
    assert time.monotonic() - start < 1.3 * budget, "planning, too, is of the budget"
    assert report.passed
    left = re.fullmatch(r"the time budget of \S+ s left out (\d+) of \d+ units", report.reduced[0])
    assert left is not None
    assert int(left[1]) > 100
    assert report.in_part in (["ops"], ["smoke", "ops"])  # smoke comes first


def test_a_time_budget_bounds_cases_under_way_and_reducing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "time.sleep(99) if name == 'sin' else os._exit(7) if name == 'mul' else 0"
    toys.install(tmp_path / "toy", monkeypatch, slow)
    budget = a_while(2)
    start = time.monotonic()
    report = run(
        "toy", "smoke", only="smoke/sin,smoke/mul", jobs=2, time_budget=budget, report=tmp_path
    )
    assert time.monotonic() - start < 1.3 * budget
    assert [result.op for result in report.results] == ["mul"]
    assert re.match(f"the time budget of {budget} s left out . of 3 units", report.reduced[1])
    assert json.loads((tmp_path / "report.json").read_text())["failed"] == 1


def test_what_a_time_budget_leaves_is_thinned_evenly() -> None:
    units = Schedule(right(), Job("runtime")).units
    places = [unit.id for unit in units]
    order = sampled_order(places, seed=3)
    assert sorted(order) == list(range(len(units)))
    assert order == sampled_order(places, seed=3) != sampled_order(places, seed=4)
    groups = Counter((place.level, place.op) for place in places if place.level != "smoke")
    smoke = sum(place.level == "smoke" for place in places)
    first = [(places[n].level, places[n].op) for n in order[: smoke + len(groups)]]
    assert {group for group in first if group[0] != "smoke"} == set(groups)
    for done in (len(units) // 4, len(units) // 2):
        met = Counter((places[n].level, places[n].op) for n in order[:done])
        shares = [met[group] / count for group, count in groups.items() if count > 20]
        assert max(shares) - min(shares) < 0.1


def test_what_sees_most_comes_first_under_a_time_budget() -> None:
    places = [unit.id for unit in Schedule(right(), Job("fusion")).units]
    order = [str(places[n]) for n in sampled_order(places, seed=3)]
    exp = [name for name in order if name.startswith("ops/exp/")]
    assert exp[:3] == ["ops/exp/f64/special", "ops/exp/f64", "ops/exp/f32/special"]
    kinds = [
        2 if re.search(r"/(mapped-)?\d+$", name) else int("/many-" in name or "/public-" in name)
        for name in order
        if name.startswith("fusion/")
    ]
    assert kinds == sorted(kinds)
    assert {*kinds} == {0, 1, 2}


def test_a_folder_is_of_one_run_at_a_time(tmp_path: Path) -> None:
    def again(_progress: Progress) -> None:
        with pytest.raises(BringupError, match="another run writes its report to"):
            run(right(), "smoke", only="smoke/exp", report=tmp_path)
        met.append(folders.is_locked(tmp_path))

    met: list[bool] = []
    run(right(), "smoke", only="smoke/exp", report=tmp_path, on_progress=again)
    assert met
    assert all(met)
    assert not folders.is_locked(tmp_path)
    assert run(right(), "smoke", only="smoke/exp", report=tmp_path).ok


def test_parts_are_alike_and_together_the_whole() -> None:
    units = Schedule(right(), Job("fusion")).units
    parts = [chosen(units, (i, 3), seed=5) for i in (1, 2, 3)]
    assert sorted(units.index(u) for part in parts for u in part) == list(range(len(units)))
    assert all(abs(len(part) - len(units) / 3) <= 1 for part in parts)
    assert all(60 < sum(u.level == "fusion" for u in part) < 160 for part in parts)
    assert [units.index(u) for u in parts[0]] == sorted(units.index(u) for u in parts[0])
    assert chosen(units, (1, 3), seed=6) != parts[0]


def test_parts_of_a_run_say_so() -> None:
    report = run(right(), "smoke", fraction=(2, 30))
    assert report.reduced == ["part 2 of 30 was asked for"]
    assert report.in_part == ["smoke"]
    assert report.passed
    with pytest.raises(BringupError, match="no fraction"):
        run(right(), "smoke", fraction=(0, 3))


def test_a_target_at_hand_has_no_workers() -> None:
    target: Target = right()
    with pytest.raises(BringupError, match="cannot run in workers"):
        run(target, "smoke", jobs=2)


@pytest.mark.parametrize(
    ("code", "log", "hangs", "kind"),
    [
        (-11, "", "", "crash"),
        (-9, "", "", "oom"),
        (-9, "", "it was silent", "hang"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "", "oom"),
        (1, "Timeout (0:00:01)!\nThread 0x", "", "hang"),
        (0, "", "", "crash"),
    ],
)
def test_the_end_of_a_process_tells_its_kind(code: int, log: str, hangs: str, kind: str) -> None:
    assert exit_reason(code, log, hangs)[0] == kind


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_command_ends_with_a_report_when_it_is_told_to(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = f"if name == 'exp': [os.kill(os.getppid(), signal.{name}) for _ in 'ab']; time.sleep(60)"
    toys.install(tmp_path / "toy", monkeypatch, tell)
    # A shell tells what it starts in the background to ignore interrupts.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    path = f"import sys; sys.path[:] = {sys.path!r}"
    program = f"{heard}; {path}; from bringup_conformance.cli import main"
    arguments = ["run", "--backend=toy", "--level=smoke", "-j1", f"--report={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; main()", *arguments],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["reduced"][0].startswith("interrupted; ")
    assert written["passed"] > 3


def test_the_reference_of_a_data_set_serves_both_ways_of_running_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = []

    def counted(graph: Graph, *rest: Any) -> Any:
        graphs.append(graph)
        return analyse(graph, *rest)

    monkeypatch.setattr(running, "analyse", counted)
    with Builder() as builder:
        graph = builder.build([lookup("neg")(builder.input(f32[4]))], "g")
    data = ((Recipe("signed"),), (Recipe("small"),))
    case = Case("a/b/f32", "fusion", "programs", "f32", graph, data, split=True)
    target, compiled = right(), list[bool]()
    make = target.compile

    def counting(graph: Graph, *, fuse: bool = True, **rest: Any) -> Any:
        compiled.append(fuse)
        return make(graph, fuse=fuse, **rest)

    monkeypatch.setattr(target, "compile", counting)
    outcome = running.run_case(target, case)
    assert outcome.problem is None
    assert outcome.verdict.compared == 2 * 2 * 4
    assert (sorted(compiled), len(graphs)) == ([False, True], 2)


def test_one_case_in_some_runs_op_by_op() -> None:
    items = [i for u in Schedule(right(), Job("smoke")).units for i in u.make()]
    programs = [i for i in items if isinstance(i, Case) and i.op == "programs"]
    split = [case.name for case in programs if case.split]
    assert 0 < len(split) < len(programs) / 2
    again = [i for u in Schedule(right(), Job("smoke")).units for i in u.make()]
    assert [i.name for i in again if isinstance(i, Case) and i.split][-len(split) :] == split


# Signs of life.


def test_device_calls_are_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Six outputs, data sets and a second run: many seconds altogether, each call far below a limit.
    toys.install(tmp_path, monkeypatch, "time.sleep(0.4)")
    report = run("toy", "ops", only="ops/exp/f32/0", jobs=1, timeout=1.5, shrink_seconds=0)
    assert max(result.seconds for result in report.results) > 2 * 1.5
    assert {result.status for result in report.results} == {"pass"}


def test_a_process_that_gets_little_time_does_not_hang() -> None:
    # Once in a while a short computation, as the processor of a busy machine allows.
    starved = "import time\nwhile True:\n    time.sleep(0.3)\n    sum(range(1_000_000))"
    idle = "import time; time.sleep(60)"
    busy = "while True: pass"
    limits = {starved: 20.0, idle: 0.5, busy: 0.5}
    found = {}
    for program, limit in limits.items():
        process = subprocess.Popen([sys.executable, "-c", program])
        watch = heartbeat.Watchdog()
        try:
            watch.watch(process.pid)
            end = time.monotonic() + 6
            why = ""
            while not why and time.monotonic() < end:
                time.sleep(0.1)
                why = watch.hang_reason(min(limit, 1.0))
            found[program] = why
        finally:
            process.kill()
            process.wait()
            watch.close()
    assert found[starved] == ""
    assert found[idle].endswith("and waited")
    assert found[busy].endswith("and computed")


def test_what_is_alive_for_ever_hangs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "ALIVE_FACTOR", 2)
    watch = heartbeat.Watchdog()
    monkeypatch.setattr(heartbeat, "_page", watch._page)
    why = ""
    while not why:
        with heartbeat.phase("launching"):
            assert watch.phase == "launching"
            time.sleep(0.01)
        why = watch.hang_reason(0.3)
    assert why == "it took longer than 2 × 0.3 s, though it was alive"
    watch.close()


#: Hangs in the case that it meets first, once, whatever process meets it.
HANGS_ONCE = """
if name == "exp" and not os.path.exists({mark!r}):
    open({mark!r}, "w").close()
    time.sleep(60)
"""


def test_a_hang_that_does_not_come_again_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misbehaviour = HANGS_ONCE.format(mark=str(tmp_path / "mark"))
    toys.install(tmp_path / "toy", monkeypatch, misbehaviour)
    monkeypatch.setattr(runner, "_BUSY_LOAD", -1.0)
    monkeypatch.setattr(runner, "_MANY_RETRIED", 1)
    report = run("toy", "ops", only="ops/exp,ops/add", jobs=2, timeout=1.5, shrink_seconds=0)
    assert (tmp_path / "mark").exists()
    assert report.failed == 0
    names = [result.name for result in report.results]
    whole = run("toy", "ops", only="ops/exp,ops/add", jobs=0)
    assert names == [result.name for result in whole.results], "the rest of its op is run"
    assert report.reduced == whole.reduced
    [note] = report.notes
    assert note.startswith(f"1 of {len(names) + 1} cases gave no sign of life in time")
    assert "a longer --timeout" in note


PHASES = """
class Stuck(Toy):
    def compile(self, program):
        if "exp" in str(program):
            time.sleep(60)
        return super().compile(program)
    def download(self, handle, out):
        super().download(handle, out)
        if hasattr(misbehave, "sqrt"):
            time.sleep(60)
Toy = Stuck
"""


def test_a_hang_has_the_phase_it_is_in_and_is_not_reduced_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = "if name == 'sqrt': misbehave.sqrt = True"
    toys.install(tmp_path / "toy", monkeypatch, marks, after=PHASES)
    report = run(
        "toy", "smoke", only="smoke/sqrt,smoke/exp", jobs=2, timeout=1.0, report=tmp_path,
        shrink_seconds=3,
    )  # fmt: skip
    found = {f.document["case"]["op"]: f for f in report.failures}
    assert {op: f.document["problem"]["phase"] for op, f in found.items()} == {
        "exp": "compiling", "sqrt": "downloading",
    }  # fmt: skip
    assert found["sqrt"].problem["what"].startswith("downloading: it was silent for 1 s and waited")
    assert "in download" in found["sqrt"].problem["log"]
    for failure in report.failures:
        assert failure.problem["phase"] == failure.document["problem"]["phase"]
        assert failure.document["options"]["timeout"] == 1.0
        assert failure.file is not None
        again = replay(failure.file)[1]
        assert again is not None
        assert again.phase == failure.problem["phase"]


def test_a_hang_that_is_elsewhere_when_it_is_alone_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = right()
    schedule = Schedule(target, Job("smoke", only="smoke/exp/f32"))
    met = Problem("hang", "downloading: it was silent", phase="downloading", log="stack")
    now = Problem("hang", "compiling: it was silent", phase="compiling", log="stack")

    def hangs(_target: Target, case: Case) -> Outcome:
        return Outcome(case, Verdict(), now)

    monkeypatch.setattr(schedule_module, "run_case", hangs)
    document = {"case": {"name": "smoke/exp/f32/0"}}
    task = protocol.Explain(0, 0, met, document, 5.0, alone=True)
    found = schedule.explain(task, target).document
    assert found == {**document, "alone": "hangs elsewhere: compiling: it was silent"}
    assert met.alike(replace(met, what="another"))
    assert not met.alike(now)


def test_where_there_is_no_time_for_hangs_only_the_guilty_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch, "time.sleep(60) if name == 'exp' else 0")
    start = time.monotonic()
    report = run(
        "toy", "smoke", only="smoke/exp/f32", jobs=1, timeout=2.0, report=tmp_path, shrink_seconds=7
    )
    [failure] = report.failures
    assert "reduced" not in failure.document
    assert failure.document["cause"]["name"] == "exp"
    assert failure.document["problem"]["phase"] == "launching"
    assert failure.document["cause"]["what"].endswith("launching: it was silent for 2 s and waited")
    assert time.monotonic() - start < 90


def test_a_worker_closes_its_device_and_one_that_cannot_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    close = f"open({str(closed)!r}, 'a').write('x'); time.sleep(60)"
    slow = f"class Slow(Toy):\n    def close(self): {close}\nToy = Slow\n"
    toys.install(tmp_path / "toy", monkeypatch, after=slow)
    monkeypatch.setattr("bringup_conformance.execution.processes.GRACE", 1.0)
    start = time.monotonic()
    assert run("toy", "smoke", only="smoke/exp", jobs=1, report=tmp_path).ok
    assert closed.read_text() == "x"
    assert time.monotonic() - start < 50
