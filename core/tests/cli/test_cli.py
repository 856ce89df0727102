"""The command line: plain text and JSON that scripts can rely on, and honest exit codes."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from bringup.backend.discovery import BackendStatus, Candidate, candidates, select
from bringup.backend.probing import probe_elsewhere
from bringup.cli import ops
from bringup.cli.app import app, run
from bringup.cli.output import table
from bringup.config import VARIABLES
from bringup.errors import BringupError
from bringup.kernel.ops import KERNEL_OPS

Install = Callable[..., Path]

KEYS = ["name", "backend", "distribution", "version", "state", "reason"]


INSTALLED = frozenset(candidate.name for candidate in candidates())


@functools.cache
def probed(name: str) -> BackendStatus:
    """The state of a backend that is there before any test."""
    return probe_elsewhere(select(name, candidates()))


@pytest.fixture(autouse=True)
def _installed_backends_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe is a process; those of backends that tests bring are made each time."""

    def probe(candidate: Candidate) -> BackendStatus:
        known = candidate.name in INSTALLED
        return probed(candidate.name) if known else probe_elsewhere(candidate)

    monkeypatch.setattr("bringup.backend.registry.probe_elsewhere", probe)


def bringup(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def fails(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the whole command, error report included."""
    monkeypatch.setattr(sys, "argv", ["bringup", *arguments])
    with pytest.raises(SystemExit) as caught:
        run()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def zoo(install: Install, healthy: str) -> Install:
    """Three backends: one with two devices, one broken and talkative, one brought twice."""
    two = '[DeviceInfo(0, "Good One"), DeviceInfo(1, "Good Two")]'
    install("good", healthy.replace('[DeviceInfo(0, "Good One")]', two))
    install("bad", "print('hello from bad')\nimport nobody_has_it")
    install("both", distribution="vendor-a")
    install("both", distribution="vendor-b")
    return install


def rows(result: Result, of: str) -> dict[str, Any]:
    found = json.loads(result.stdout)
    assert list(found) == ["format", of]
    assert found["format"] == 1
    return {row["name"]: row for row in found[of]}


@pytest.mark.usefixtures("zoo")
def test_devices_as_json() -> None:
    result = bringup("devices", "--json")
    assert result.exit_code == 0
    found = rows(result, "devices")
    assert all(list(row) == KEYS for row in found.values())
    assert found["good"] == {
        "name": "good",
        "backend": "good",
        "distribution": "bringup-good",
        "version": "1.0",
        "state": "ready",
        "reason": "",
    }
    assert found["good:1"]["backend"] == "good"
    assert found["bad"]["state"] == "broken"
    assert found["bad"]["reason"] == "ModuleNotFoundError: No module named 'nobody_has_it'"
    twice = [row for row in json.loads(result.stdout)["devices"] if row["name"] == "both"]
    assert [(r["distribution"], r["state"]) for r in twice] == [
        ("vendor-a", "duplicate"),
        ("vendor-b", "duplicate"),
    ]


@pytest.mark.usefixtures("zoo")
def test_devices_as_plain_text() -> None:
    lines = bringup("devices").stdout.splitlines()
    assert lines[0].split() == ["NAME", "PRODUCT", "STATE", "DISTRIBUTION", "VERSION", "REASON"]
    [second] = [line for line in lines if line.startswith("good:1 ")]
    assert second.split("  ")[-1] != ""
    assert second.split() == ["good:1", "Good", "Two", "ready", "bringup-good", "1.0"]
    [bad] = [line for line in lines if line.startswith("bad ")]
    assert bad.endswith("ModuleNotFoundError: No module named 'nobody_has_it'")


@pytest.mark.usefixtures("zoo")
def test_doctor_names_faults_fixes_and_prints_and_fails() -> None:
    result = bringup("doctor")
    assert result.exit_code == 1
    text = result.stdout
    assert "\x1b" not in text
    assert "bad printed: hello from bad" in text
    assert "install the Python module 'nobody_has_it', or reinstall bringup-bad;" in text
    assert "imported where a device is opened, not with the plugin" in text
    assert "vendor-a 1.0 and vendor-b 1.0 both bring it" in text
    assert "uninstall all but one: pip uninstall vendor-a or vendor-b" in text
    assert "BRINGUP_TRACE" in text
    assert not [m for m in sys.modules if m.startswith("plugin_")]


def test_doctor_finds_a_wrong_variable(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    install("good")
    right = bringup("doctor")
    monkeypatch.setenv("BRINGUP_CHECK", "9")
    wrong = bringup("doctor")
    assert wrong.exit_code == 1
    assert "set BRINGUP_CHECK to one of 0, 1, 2, or unset it" in wrong.stdout
    assert "BRINGUP_CHECK to" not in right.stdout
    assert right.stdout.splitlines()[-1] != wrong.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("BRINGUP_DUMP", "file/inside", "to a directory that can be written"),
        ("BRINGUP_TRACE", "nowhere/trace.json", "to a file in a directory that exists"),
        ("BRINGUP_TRACE", ".", "to a file in a directory that exists"),
    ],
)
def test_paths_that_cannot_be_written_are_found_by_doctor_and_said_when_needed(
    name: str, value: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    doctor = bringup("doctor")
    assert doctor.exit_code == 1, doctor.stderr
    assert f"set {name} {fix}" in doctor.stdout
    code = "import bringup as bu; print('imported'); (bu.ones(2) + 1).tolist()"
    used = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert used.returncode == 1
    assert used.stdout == "imported\n"
    assert f"fix: set {name} {fix}" in used.stderr


def test_doctor_as_json(install: Install) -> None:
    install("good")
    result = bringup("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"bringup", "numpy", "llvmlite"} <= set(report["versions"])
    [good] = [row for row in report["backends"] if row["name"] == "good"]
    assert (good["state"], good["fix"]) == ("ready", "")
    assert good["devices"] == [{"index": 0, "product": "Good One", "details": []}]
    assert set(report["variables"]) == {variable.name for variable in VARIABLES}
    assert Path(report["cache"]["path"]).is_absolute()
    faults = {"broken", "incompatible", "duplicate"} & {row["state"] for row in report["backends"]}
    assert result.exit_code == (1 if faults else 0)


def test_the_op_table() -> None:
    lines = bringup("ops").stdout.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "TIER", "DTYPES", "MEANING"]
    [exp] = [line for line in lines if line.startswith("exp ")]
    assert exp.split()[:4] == ["exp", "elementwise", "0", "floats"]
    facts = rows(bringup("ops", "--json"), "ops")
    assert len(facts) == len(lines) - 1
    assert facts["add"]["tier0_claims"] == ["add"]
    assert facts["reduce"]["tier0_claims"] == ["reduce.add", "reduce.max"]


def test_one_op() -> None:
    text = bringup("ops", "reduce").stdout
    assert "reduce.add, " in text
    assert "\ndims" in text
    fact = json.loads(bringup("ops", "reduce", "--json").stdout)
    assert [(a["name"], a["required"]) for a in fact["attrs"]] == [("kind", True), ("dims", True)]
    assert fact["accuracy"].startswith("grows with the number of terms")
    assert "max: exact" in fact["accuracy"]


class Suite:
    """An entry point of a suite that knows two ops."""

    @staticmethod
    def load() -> Callable[[str], list[dict[str, str]]]:
        def coverage(backend: str) -> list[dict[str, str]]:
            names = ("reference", "device", "gradient", "conformance")
            there = dict.fromkeys(names, "")
            return [
                {"op": "exp", "dtype": "f32", **there},
                {"op": "exp", "dtype": "f64", **there, "device": f"{backend} has no f64"},
                {"op": "iota", "dtype": "i8", **there, "gradient": "integers have none"},
                {"op": "convert", "dtype": "f32", **there, "device": "in part: it has no f8e5m2"},
            ]

        return coverage


def test_what_is_covered_and_why_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.cli.coverage.entry_points", lambda group: [Suite])
    lines = bringup("ops", "--coverage", "--backend", "small").stdout.splitlines()
    marks = {words[0]: words[1:] for words in map(str.split, lines) if len(words) == 16}
    columns = [word.lower() for word in marks["OP"]]
    assert dict(zip(columns, marks["exp"], strict=True))["f32"] == "RDGC"
    assert dict(zip(columns, marks["exp"], strict=True))["f64"] == "R.GC"
    assert dict(zip(columns, marks["exp"], strict=True))["i8"] == "-"
    assert dict(zip(columns, marks["iota"], strict=True))["i8"] == "RD.C"
    assert dict(zip(columns, marks["convert"], strict=True))["f32"] == "RdGC"
    gaps = [line.split("  ") for line in lines[lines.index("Gaps") + 2 :]]
    assert [[word.strip() for word in gap if word] for gap in gaps] == [
        ["device", "small has no f64", "exp (f64)"],
        ["gradient", "integers have none", "iota (i8)"],
        ["device", "in part: it has no f8e5m2", "convert (f32)"],
    ]
    facts = json.loads(bringup("ops", "iota", "--coverage", "--json").stdout)
    assert [each["dtype"] for each in facts["coverage"]] == ["i8"]


def test_without_a_suite_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bringup.cli.coverage.entry_points", lambda group: [])
    assert fails("ops", "--coverage", monkeypatch=monkeypatch) == 2
    assert "no suite is installed" in capsys.readouterr().err


def test_an_unknown_op_fails_with_close_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails("ops", "transposed", monkeypatch=monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: no op is named 'transposed'" in err
    assert "fix: did you mean transpose" in err


#: Wrong uses, what is said of them, and the fix.
WRONG = [
    (["devcies"], "no such command 'devcies'", "did you mean 'devices'?"),
    (["nothing"], "no such command 'nothing'", "`bringup --help` tells what there is"),
    (["devices", "--jsom"], "no such option: --jsom", "did you mean --json?"),
    (["devices", "extra"], "got unexpected extra argument", "`bringup devices --help`"),
    (["dump"], "missing argument 'FUNCTION'", "`bringup dump --help`"),
    (["ops", "sofmax"], "no op is named 'sofmax'", "did you mean softmax"),
    (["dump", "nowhere.py:f"], "there is no file nowhere.py", "name file.py:function"),
    (["dump", "json:dumps", "f32"], "not a tensor type: 'f32'", "write it like f32[4,8]"),
    (["dump", "a.ir", "--level", "kernel"], "there is no level 'kernel'", "did you mean kernels"),
]


@pytest.mark.parametrize(("arguments", "what", "fix"), WRONG, ids=[" ".join(a) for a, *_ in WRONG])
def test_wrong_uses_are_told_alike(
    arguments: list[str],
    what: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With `--json` too: then the error is one object on standard output."""
    assert fails(*arguments, monkeypatch=monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {what}")
    assert f"\n  fix: {fix}" in err
    assert fails(*arguments, "--json", monkeypatch=monkeypatch) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"].startswith(what)
    assert error["fix"].startswith(fix)


def test_without_a_command_there_is_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(monkeypatch=monkeypatch) == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_wrong_function_is_a_finding_and_not_a_wrong_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong_function.py"
    file.write_text("def f(x):\n    return x @ x\n")
    assert fails("dump", f"{file}:f", "f32[2,3]", monkeypatch=monkeypatch) == 1
    assert "error: matmul: contracted sizes" in capsys.readouterr().err


def test_kernel_ops_are_told_too() -> None:
    result = bringup("ops", "load")
    assert result.exit_code == 0
    assert "the bodies of kernels alone" in result.stdout
    for name in KERNEL_OPS:
        assert bringup("ops", name).exit_code == 0
        assert json.loads(bringup("ops", name, "--json").stdout)["name"] == name


def test_an_op_answers_to_its_claims() -> None:
    assert bringup("ops", "reduce.add").stdout == bringup("ops", "reduce").stdout
    with pytest.raises(BringupError, match="no op is claimed as 'reduce") as caught:
        ops.row_of("reduce.plus")
    assert "claims of reduce: reduce.add, " in str(caught.value)


def complete(words: str) -> list[str]:
    environment = {
        **os.environ,
        "_BRINGUP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = "import sys; sys.argv = ['bringup']; from bringup.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def test_shells_complete_commands_ops_levels_and_devices() -> None:
    assert complete("bringup de") == ["devices"]
    assert complete("bringup ops log_s") == ["log_sigmoid", "log_softmax"]
    assert complete("bringup dump x --level ker") == ["kernels"]
    assert "cpu" in complete("bringup dump x --target c")


@pytest.mark.parametrize("module", ["bringup", "bringup_conformance"])
def test_both_commands_run_as_modules(module: str) -> None:
    for option in ("--version", "-V"):
        done = subprocess.run(
            [sys.executable, "-m", module, option], capture_output=True, text=True, check=True
        )
        assert re.fullmatch(r"bringup 0\.\d+\.\d+\n", done.stdout)


def test_texts_of_plugins_do_not_control_the_terminal(install: Install, healthy: str) -> None:
    install("good", healthy.replace("Good One", "\\x1b[31mred\\x07\\nnext"))
    result = bringup("devices")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout
    assert "\\x1b[31mred\\x07 next" in result.stdout


def test_names_are_not_folded_in_a_narrow_window() -> None:
    with StringIO() as file:
        console = Console(file=file, force_terminal=True, width=40)
        row = ("a-device-of-a-long-name:1", "a product with a long name", "ready")
        table(("name", "product", "state"), [row], console)
        assert "a-device-of-a-long-name:1" in file.getvalue()


def shown(width: int) -> list[str]:
    with StringIO() as file:
        console = Console(file=file, force_terminal=True, color_system=None, width=width)
        rows = [
            ("fine:1", "a product with a long name", "ready", "bringup-template", ""),
            ("bad", "", "no hardware", "bringup-bad", "libdriver.so.1 is not there"),
        ]
        columns = ("name", "product", "state", "distribution", "reason")
        table(columns, rows, console, apart=True)
        return [line.rstrip() for line in file.getvalue().splitlines()]


def test_rows_stand_apart_where_a_window_is_too_narrow_for_their_words() -> None:
    assert shown(60) == [
        "fine:1",
        "  product       a product with a long name",
        "  state         ready",
        "  distribution  bringup-template",
        "",
        "bad",
        "  state         no hardware",
        "  distribution  bringup-bad",
        "  reason        libdriver.so.1 is not there",
    ]
    text = shown(80)
    assert text[0].split() == ["name", "product", "state", "distribution", "reason"]
    assert {"no hardware", "bringup-bad"} <= {w.strip() for line in text for w in line.split("  ")}


def test_the_version() -> None:
    result = bringup("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("bringup 0.")


def test_the_console_script_and_its_imports() -> None:
    code = (
        "import sys\nfrom bringup.cli import main\n"
        "assert not {'typer', 'rich'} & set(sys.modules)\n"
        "sys.argv = ['bringup', 'ops', 'exp']\nmain()\n"
    )
    env = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "60"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "exp" in done.stdout
    assert "\x1b[3" not in done.stdout
