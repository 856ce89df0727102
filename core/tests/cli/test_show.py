"""``bringup show`` tells what a program file holds; other commands take entries as functions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import bringup as bu
from bringup.cli.app import app
from bringup.errors import BringupError, ProgramFileError

W = bu.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    scaled = bu.jit(lambda x, mode: bu.exp(x) @ W if mode == "exp" else x, static_argnums=1)
    functions = {"scaled": (scaled, bu.float32[2, 3], "exp"), "ramp": (lambda: bu.arange(3),)}
    bu.save("model.bringup", functions, metadata={"name": "tiny", "tags": ["a", 1]})
    return tmp_path / "model.bringup"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_it_shows_functions_types_and_what_they_need(path: Path) -> None:
    digest = bu.load(path).hash
    text = run("show", "model.bringup").stdout
    first, *rest = text.splitlines()
    assert first.startswith("model.bringup: ")
    assert first.endswith(f"opset 1, by bringup {bu.__version__}")
    assert rest == [
        f"sha256 {digest}",
        "name: tiny",
        'tags: ["a", 1]',
        "",
        "scaled(x: f32[2,3]) -> f32[2,4]",
        "  mode = 'exp'",
        "  ops: dot_general, exp",
        "  dtypes: f32",
        "",
        "ramp() -> i64[3]",
        "  ops: iota",
        "  dtypes: i64",
        "",
        "weights",
        "  W: f32[3,4]",
    ]


def test_it_prints_json(path: Path) -> None:
    shown = json.loads(run("show", "model.bringup", "--json").stdout)
    assert shown["bytes"] == path.stat().st_size
    assert shown["metadata"] == {"name": "tiny", "tags": ["a", 1]}
    assert shown["weights"] == {"W": "f32[3,4]"}
    assert shown["entries"]["scaled"] == {
        "arguments": {"x": "f32[2,3]"},
        "result": "f32[2,4]",
        "static": {"mode": "'exp'"},
        "ops": ["dot_general", "exp"],
        "dtypes": ["f32"],
    }


def test_it_checks_the_weights(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    error = run("show", "model.bringup").exception
    assert isinstance(error, ProgramFileError)
    assert "damaged" in error.what
    assert error.status == 1  # type: ignore[attr-defined]


def test_entries_are_functions_to_other_commands() -> None:
    result = run("dump", "model.bringup:scaled", "--level", "passes")
    assert "graph lambda(%0: f32[2,3], %1: f32[3,4]) {" in result.stdout, result.output
    result = run("build", "model.bringup:ramp", "--target", "program", "--name", "one")
    assert result.stdout.startswith("one.bringup  "), result.output
    assert bu.load("one.bringup")().tolist() == [0, 1, 2]
    result = run("build", "one.bringup", "--target", "program", "--name", "two")
    assert bu.load("two.bringup")().tolist() == [0, 1, 2], result.output
    for subject in ("model.bringup", "model.bringup:other"):
        error = run("dump", subject).exception
        assert isinstance(error, BringupError)
        assert error.what == "model.bringup has entries scaled, ramp"
