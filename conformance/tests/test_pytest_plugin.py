"""The suite as pytest shows it to a vendor's CI: one test for each op, dtype and feature."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import toys
from planted import right

from bringup_conformance import DeviceTarget
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.schedule import Schedule
from bringup_conformance.pytest_plugin import parts_of

#: A device with one op that is wrong, and one that ends the process.
FAULTS = """
if name == "floor": operands[0] = operands[0] + 8
if name == "exp": os.kill(os.getpid(), signal.SIGSEGV)
"""
UNRELATED = """
import sys
def test_nothing():
    loaded = {m for m in sys.modules if m.partition(".")[0] in ("bringup", "numpy")}
    loaded |= {m for m in sys.modules if m.startswith("bringup_conformance.")}
    assert loaded == {"bringup_conformance.pytest_plugin"}
"""


def searched(path: Path | None) -> str:
    """The search path of modules of this process, behind another folder."""
    return os.pathsep.join(filter(None, (path and str(path), os.environ.get("PYTHONPATH"))))


class Run:
    """A pytest process in a folder of its own, as a vendor starts it."""

    def __init__(self, folder: Path, *arguments: str, path: Path | None = None) -> None:
        (folder / "pytest.ini").write_text("[pytest]\n")
        environment = {**os.environ, "PYTHONPATH": searched(path)}
        command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        self.status, self.output = done.returncode, done.stdout + done.stderr

    def tests(self) -> list[str]:
        """Names of tests that ``-v`` or ``--collect-only`` tells."""
        return re.findall(r"device\.py::(\S+)", self.output)


def suite(folder: Path, *arguments: str, path: Path | None = None) -> Run:
    return Run(folder, "--pyargs", "bringup_conformance", *arguments, path=path)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "toy"
    with pytest.MonkeyPatch.context() as patch:
        toys.install(folder, patch, FAULTS)
    return folder


def test_without_a_device_one_skip_says_how_to_use_it(tmp_path: Path) -> None:
    run = suite(tmp_path, "-rs")
    assert run.status == 0, run.output
    assert "1 skipped" in run.output
    assert "--pyargs bringup_conformance --bringup-backend NAME" in run.output


@pytest.mark.parametrize(
    ("backend", "level", "what"),
    [("nowhere", "smoke", "nowhere"), ("cpu", "all", "'all'")],
)
def test_what_cannot_be_run_is_said_in_a_line(
    tmp_path: Path, backend: str, level: str, what: str
) -> None:
    run = suite(tmp_path, "--bringup-backend", backend, "--bringup-level", level)
    assert run.status != 0
    assert what in run.output
    assert "Traceback" not in run.output


def test_other_runs_load_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_unrelated.py").write_text(UNRELATED)
    run = Run(tmp_path)
    assert run.status == 0, run.output


def test_a_test_for_each_feature_shows_what_fails(toy: Path, tmp_path: Path) -> None:
    wanted = "smoke and (floor or exp) or ops/floor/f32/special or ops/sqrt/f"
    options = ["--bringup-backend", "toy", "--bringup-level", "ops", "-k", wanted, "-rs"]
    options += ["--bringup-shrink", "2"]
    files = ["--junitxml", "all.xml", "--bringup-report", "replays"]
    run = suite(tmp_path, *options, *files, path=toy)
    assert run.status == 1, run.output
    found = {
        each.attrib["name"]: each
        for each in ElementTree.parse(tmp_path / "all.xml").iter("testcase")
    }
    verdicts = {name: [child.tag for child in each] for name, each in found.items()}
    assert verdicts["smoke/floor/f32/values"] == ["properties", "failure"]
    assert verdicts["smoke/exp/f32/values"] == ["properties", "failure"]
    assert verdicts["ops/floor/f32/special"] == ["properties", "failure"]
    assert verdicts["ops/sqrt/f32/special"] == []
    assert verdicts["ops/sqrt/f16/values"] == ["skipped"]
    assert "it claims no op for f16" in run.output
    text = found["smoke/floor/f32/values"].findtext("failure") or ""
    assert "rules: numerics.elementwise" in text
    assert "floor(" in text
    [path] = set(re.findall(r"conformance replay (\S+floor-f32-\d+.json)", text))
    assert json.loads((tmp_path / path).read_text())["backend"] == "toy"
    died = found["smoke/exp/f32/values"].findtext("failure") or ""
    assert "SIGSEGV" in died
    assert "rules: declaration.claims-run" in died
    special = found["ops/floor/f32/special"]
    rules = {p.attrib["value"] for p in special.iter("property")}
    assert any(rule.startswith("floor.f32.") for rule in rules)


def test_ids_are_unique_and_the_same_in_every_process(tmp_path: Path) -> None:
    schedule = Schedule(right(), Job("runtime", 3))
    tests = parts_of(schedule)
    names = [test.name for test in tests]
    assert len(set(names)) == len(names)
    assert {"ops/add/f32/values", "ops/add/f32/special", "ops/add/f32/mapped"} <= {*names}
    assert {"fusion/programs/random/0000", "fusion/programs/mapped/0000"} <= {*names}
    assert any(name.startswith("runtime/memory/") for name in names)
    # Every item is in one test.
    whole = [w.unit for test in tests for w in test.works if not w.last]
    parts = [(w.unit, w.first) for test in tests for w in test.works if w.last]
    assert len(set(whole)) == len(whole)
    assert len(set(parts)) == len(parts)
    assert {*whole} | {unit for unit, _ in parts} == {*range(len(schedule.units))}
    level = ["--bringup-level", "smoke", "--bringup-seed", "3"]
    run = suite(tmp_path, "--bringup-backend", "cpu", *level, "--collect-only", "-q")
    here = parts_of(Schedule(DeviceTarget.named("cpu"), Job("smoke", 3)))
    assert run.tests() == [test.name for test in here]


def test_several_processes_share_the_tests(toy: Path, tmp_path: Path) -> None:
    options = ["--bringup-backend", "toy", "--bringup-level", "smoke", "--bringup-shrink", "0"]
    run = suite(tmp_path, *options, "-k", "f32 and (floor or sqrt or exp)", "-n", "2", path=toy)
    assert run.status == 1, run.output
    assert "2 failed, 1 passed" in run.output


def test_what_is_known_to_be_broken_is_xfailed(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text('[[xfail]]\nop = "floor"\nreason = "stepping B1"\n')
    options = ["--bringup-backend", "toy", "--bringup-level", "smoke", "--bringup-shrink", "0"]
    known = ["-k", "floor or sqrt", "--bringup-expect", "known.toml", "-rx"]
    run = suite(tmp_path, *options, *known, path=toy)
    assert run.status == 0, run.output
    assert re.search(r"1 passed, .*1 xfailed", run.output)
    assert "stepping B1" in run.output


def test_replays_of_the_plugin_are_replays(toy: Path, tmp_path: Path) -> None:
    options = ["--bringup-backend", "toy", "--bringup-level", "smoke", "-k", "floor"]
    options += ["--bringup-shrink", "2"]
    run = suite(tmp_path, *options, path=toy)
    [path] = {Path(p) for p in re.findall(r"conformance replay (\S+.json)", run.output)}
    assert ".pytest_cache" in path.parts
    # Not in this process, where other tests may have opened a device of that name.
    command = "from bringup_conformance.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "replay", str(path), "--json"],
        env={**os.environ, "PYTHONPATH": searched(toy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["now"]["kind"] == "wrong"


def test_level_soak_is_one_test_of_hypothesis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "toy"
    toys.install(place, monkeypatch, "if operands and operands[0].size: operands[0].flat[0] += 1")
    words = "--bringup-backend", "toy", "--bringup-level", "soak", "-p", "hypothesispytest"
    words += "-v", "-m", "hypothesis", "--bringup-report", "failures"
    failing = suite(tmp_path, *words, path=place)
    assert failing.status == 1, failing.output
    assert {*failing.tests()} == {"soak"}, failing.output
    (file,) = (tmp_path / "failures").glob("*.json")
    assert f"conformance replay {file.relative_to(tmp_path)}" in failing.output
    assert json.loads(file.read_text())["case"]["level"] == "soak"
