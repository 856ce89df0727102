"""The command: what it prints, what it writes, and what it ends with."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from planted import faulty, right, spoilt
from typer import Typer
from typer.testing import CliRunner, Result

from bringup.cli import app as core
from bringup.errors import BringupError
from bringup.ops.table import all_ops
from bringup_conformance import cli
from bringup_conformance.execution.levels import APART, LEVELS
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting import folders

#: Programs of which the device "broken" fails two.
SOME = "fusion/soft,fusion/centred-rows,fusion/neighbours"
KEYS = [
    "backend",
    "level",
    "seed",
    "passed",
    "failed",
    "unsupported",
    "seconds",
    "reduced",
    "failures",
]


def conformance(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def status(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the whole command, error report included."""
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of a test is left in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceTarget]:
    """Devices by name: "broken", which spreads folds before they are complete."""
    known: dict[str, DeviceTarget] = {"broken": faulty("FU09", "broken")}
    others = DeviceTarget.named
    monkeypatch.setattr(DeviceTarget, "named", lambda name: known.get(name) or others(name))
    return known


def test_a_right_device_ends_with_0_and_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    done = conformance("run", "--backend=cpu", "--level", "smoke", "--seed", "3", "--json", "-j1")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert (found["backend"], found["level"], found["seed"]) == ("cpu", "smoke", 3)
    assert (found["failed"], found["unsupported"], found["failures"]) == (0, 0, [])
    assert found["passed"] > 40
    assert 0 < found["seconds"] < 60


def test_the_plain_report_has_a_table_for_each_kind_and_a_sum(cache: Path) -> None:
    done = conformance("run", "--backend=cpu", "--level=smoke", "--jobs=0", "-v")
    assert done.exit_code == 0
    heads = re.findall(r"^([A-Z]+)  ", done.stdout, re.MULTILINE)
    assert heads == ["SOURCE", "ELEMENTWISE", "MOVEMENT", "REDUCTION", "PROGRAMS"]
    assert re.search(r"^exp +ok .*\d\.\d\d", done.stdout, re.MULTILINE)
    assert re.search(r"cpu, level smoke, seed 0: \d+ passed, 0 failed, 0 unsupp", done.stdout)
    assert "\x1b" not in done.stdout
    assert not list(cache.rglob("failure-*"))
    assert "49 of 49 units" not in done.stdout, "progress is no part of the report"


def test_a_failure_is_shown_small_and_its_command_replays_it(
    named: dict[str, DeviceTarget], cache: Path
) -> None:
    done = conformance("run", "--backend=broken", f"--only={SOME}", "--jobs=0")
    assert done.exit_code == 1
    assert "FAIL fusion/programs/" in done.stdout
    assert "right without: fusion" in done.stdout
    assert re.search(rf"broken, level runtime, of '{SOME}' alone, seed 0", done.stdout)
    command = shlex.split(re.findall(r"^conformance (replay .*)$", done.stdout, re.MULTILINE)[0])
    assert Path(command[1]).is_relative_to(cache)
    again = conformance(*command)
    assert again.exit_code == 1
    assert "still fails (fused, wrong): output 0" in again.stdout
    mended = conformance(*command, "--backend=cpu")
    assert mended.exit_code == 0
    assert "passes now" in mended.stdout


def test_a_report_holds_all_of_it_and_nothing_of_an_earlier_run(
    named: dict[str, DeviceTarget], tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "report"
    asked = ("run", "--backend=broken", "--jobs=0", f"--report={folder}")
    done = conformance(*asked, f"--only={SOME}", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert found["failed"] == len(found["failures"]) > 1
    written = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert {key: written[key] for key in KEYS} == found
    assert written["only"] == SOME
    assert sum(row["failed"] for row in written["results"]) == found["failed"]
    first = found["failures"][0]
    assert first["nodes"] <= 2
    assert (first["mode"], first["kind"], first["guilty"]) == ("fused", "wrong", ["fusion"])
    assert {f["file"] for f in found["failures"]} == set(map(str, folder.glob("failure-*.json")))
    replayed = conformance("replay", first["file"], "--json")
    assert replayed.exit_code == 1
    assert json.loads(replayed.stdout)["passes"] is False
    named["broken"] = right("broken")
    assert conformance(*asked, "--only=smoke/exp").exit_code == 0
    assert not list(folder.glob("failure-*.json"))


def test_a_run_is_compared_with_an_earlier_one(
    named: dict[str, DeviceTarget], tmp_path: Path
) -> None:
    earlier, folder = tmp_path / "earlier", tmp_path / "now"
    asked = ("run", "--backend=toy", "--level=ops", "--jobs=0")
    named["toy"] = right("toy")
    assert conformance(*asked, "--only=neg/f32,exp/f32", f"--report={earlier}").exit_code == 0
    same = conformance(
        *asked, "--only=neg/f32,exp/f32", f"--report={folder}", f"--against={earlier}"
    )
    assert same.exit_code == 0
    assert same.stdout.splitlines()[-1] == "the same"
    less = conformance(
        *asked, "--only=neg/f32", f"--report={folder}", f"--against={folder}", "--json"
    )
    assert less.exit_code == 1  # nothing fails, but exp is not tested any more
    found = json.loads(less.stdout)
    assert found["failed"] == 0
    assert [change["op"] for change in found["comparison"]["lost"]] == ["exp"]
    assert 'id="compared"' in (folder / "report.html").read_text("utf-8")


def test_a_device_that_is_not_there_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status("run", "--backend=nonesuch", monkeypatch=monkeypatch) == 2
    shown = capfd.readouterr()
    assert "no backend is named 'nonesuch'" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--backend=cpu", "--level=all", "--report=r"], "no level is named 'all'"),
        (["run", "--backend=none", "--report=r"], "no backend is named 'none'"),
        (["coverage", "--backend=none", "--report=r"], "no backend is named 'none'"),
        (["mutants", "--backend=none", "--report=r"], "no backend is named 'none'"),
        (["run", "--backend=cpu", "--only=expo", "-j0"], "no case is of 'expo'"),
        (
            ["run", "--backend=cpu", "--level=smoke", "--only=special/sin", "-j0"],
            "no case of level smoke is of 'special/sin'\n  fix: level ops has some: --level ops",
        ),
        (["run", "--backend=cpu", "--only=sinn/f32", "-j0"], "fix: did you mean 'sin' or 'sinh'"),
        (["run", "--level=smoke"], "no device is named\n  fix: add --backend NAME"),
        (["run", "--resume=nowhere"], "nowhere holds no run to go on from"),
        (["compare", "--last", "--backend=nonesuch"], "no two reports of 'nonesuch' to compare"),
        (["run", "--nope"], "fix: `conformance run --help` tells what there is"),
        (["rnu"], "fix: did you mean 'run'?"),
        (["run", "--backend=cpu", "--seed=x"], "error: invalid value for '--seed'"),
        (["compare", "a"], "two reports are compared\n  fix: name their folders, or add --last"),
        (["join", "nowhere", "--report=j"], "nowhere holds no run to go on from"),
        (["run", "--backend=cpu", "--fraction=3/2"], "'3/2' is no fraction"),
        (["run", "--backend=cpu", "--fraction=half"], "'half' is no fraction"),
        (["run", "--backend=cpu", "--report=/dev/null/x", "--level=smoke"], "error: /dev/null"),
        (["run", "--backend=cpu", "--corpus=c", "--level=smoke"], "level smoke has no corpus"),
        (["run", "--backend=cpu", "--certificate=c", "--only=exp"], "a part of a run gives no"),
        (["run", "--backend=cpu", "--certificate=c", "--fraction=1/2"], "a part of a run gives no"),
        (["replay", "nowhere.json"], "error: nowhere.json: No such file or directory"),
        (["verify", "nowhere"], "fix: name the folder that `conformance run --certificate` wrote"),
        (["selftest", "--only=FU9", "--report=r"], "fix: did you mean FU09"),
        (["selftest", "--only=ZZ99"], "fix: use kinds (fus, key, mem, "),
    ],
)
def test_what_cannot_be_run_ends_with_2_says_why_and_leaves_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert status(*arguments, monkeypatch=monkeypatch) == 2
    shown = capfd.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert not [*folder.iterdir()]


def damaged(**changes: object) -> str:
    """A failure file with other values in its case."""
    case = {
        "name": "a/b/f32", "level": "ops", "op": "neg", "dtype": "f32", "data": [[{}]],
        "ir": "graph g(%0: f32[3]) {\n  %1: f32[3] = neg(%0)\n  return %1\n}",
    }  # fmt: skip
    problem = {"kind": "wrong", "what": "", "fused": True}
    document = {
        "format": 2, "backend": "cpu", "options": {"skip": []}, "problem": problem,
        "case": {**case, **changes},
    }  # fmt: skip
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "no JSON",
        '{"format": 1}',
        "[]",
        damaged(ir=5),
        damaged(ir="(" * 2000),
        damaged(ir="graph g(%0: f32" + "[" * 3000),
        damaged(data=5),
        damaged(data=[[5]]),
        damaged(cells=[5]),
    ],
)
def test_a_file_that_is_no_failure_ends_with_2(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failure.json"
    file.write_text(text, encoding="utf-8")
    assert status("replay", str(file), monkeypatch=monkeypatch) == 2
    assert "cannot be replayed" in capfd.readouterr().err


def helps(app: Typer, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--help"])
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize(
    ("app", "command"), [(core.app, "devices"), (cli.app, "verify")], ids=["bringup", "conformance"]
)
def test_help_has_words_for_what_is_given_and_examples(app: Typer, command: str) -> None:
    names = re.findall(r"^  (\w+)  ", helps(app).partition("Commands:\n")[2], re.MULTILINE)
    assert command in names
    for name in names:
        text = helps(app, name)
        assert not re.findall(r"<.*?>", text), f"{name}: a type of Python stands for a word"
        assert not re.findall(r"[\[{][a-z_]+[\]}]", text.splitlines()[0]), name
        assert re.search(rf"Examples:\n\n    \w+ {name}\b", text), name


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom bringup_conformance import cli\n"
        "try: cli.main()\n"
        "except SystemExit: print(*(name for name in sys.modules if 'bringup_conf' in name))"
    )

    def imported(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", code, *arguments, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split()

    assert imported() == ["bringup_conformance", "bringup_conformance.cli"]
    listing = imported("list")
    assert "bringup_conformance.commands.list" in listing
    assert "bringup_conformance.commands.run" not in listing


def test_the_list_names_levels_ops_and_data() -> None:
    found = json.loads(conformance("list", "--json").stdout)
    assert [level["name"] for level in found["levels"]] == [*LEVELS, *APART]
    assert {op["name"] for op in found["ops"]} == {row.name for row in all_ops()}
    assert all(each["holds"] for each in found["levels"] + found["tags"] + found["data"])
    plain = conformance("list")
    assert plain.exit_code == 0
    assert "concatenate" in plain.stdout


def test_runs_that_nobody_named_a_folder_for_are_kept_and_compared(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "KEPT", 2)
    asked = ("run", "--backend=cpu", "--level=smoke", "--jobs=0", "--only")
    assert conformance(*asked, "smoke/exp").exit_code == 0
    [first] = folders.kept("cpu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", first.name)
    assert isinstance(conformance("compare", "--last").exception, BringupError)
    assert conformance(*asked, "smoke/exp").exit_code == 0
    assert conformance("compare", "--last").stdout.splitlines()[-1] == "the same"
    assert conformance(*asked, "smoke/log,smoke/exp").exit_code == 0
    compared = conformance("compare", "--last", "--backend=cpu").stdout
    assert "gained: log f32: not tested, now right" in compared
    assert len(folders.kept("cpu")) == 2
    assert first not in folders.kept("cpu")
    whole = json.loads((folders.kept("cpu")[-1] / "report.json").read_text(encoding="utf-8"))
    assert re.match(r"\d{4}-\d\d-\d\dT", whole["date"])
    assert whole["environment"]["plugin"].keys() == {"bringup"}
    assert whole["command"][0] == "conformance"


def test_runs_of_one_second_stay_in_their_order(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)

    monkeypatch.setattr(folders, "datetime", Clock)
    monkeypatch.setattr(folders, "KEPT", 2)
    made = []
    for _ in range(12):
        made.append(folders.new("cpu"))
        made[-1].mkdir()
        assert folders.kept("cpu") == made[-2:]


def test_what_a_device_says_does_nothing_to_a_terminal(
    named: dict[str, DeviceTarget], tmp_path: Path
) -> None:
    def says(_call: object) -> None:
        raise RuntimeError("lost \x1b[2J\x9b2J\u202e\x07")

    named["broken"] = spoilt({"exp": says}, "broken")  # type: ignore[dict-item]
    done = conformance(
        "run", "--backend=broken", "--only=smoke/exp", "--jobs=0", f"--report={tmp_path}"
    )
    assert done.exit_code == 1
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (done.stdout, done.stderr, page):
        assert "lost \\x1b[2J\\x9b2J\\u202e\\x07" in text
        assert not re.search("[\x1b\x9b\u202e\x07]", text)
    for verb in ("replay", "explain"):
        shown = conformance(verb, str(tmp_path / "failure-000.json")).stdout
        assert "lost \\x1b[2J" in shown
        assert "\x1b" not in shown
