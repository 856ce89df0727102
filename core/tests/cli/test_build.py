"""``bringup build``: libraries and program files of one function or of several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import bringup as bu
from bringup.cli.app import app
from bringup.errors import BringupError, OpTypeError, ProgramFileError

TEXT = """\
import bringup as bu

HELD = bu.asarray([1.0, 2.0, 3.0, 4.0], dtype=bu.float32)


def scaled(x):
    return x * HELD


def power(x, n):
    return x**n
"""
SCALED, POWER = "model.py:scaled(f32[4])", "model.py:power(f32[2, 3], 2)"


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TEXT)


def build(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["build", *arguments])


def refusal(*arguments: str) -> BringupError:
    error = build(*arguments).exception
    assert isinstance(error, BringupError), error
    return error


def test_several_functions_are_one_library() -> None:
    done = build(SCALED, POWER, "--target", "c11", "--name", "maths", "--json")
    made = json.loads(done.stdout)
    assert made["arena_bytes"].keys() == {"maths_scaled", "maths_power"}
    assert set(made["files"]) == {"maths.c", "maths.h", "maths.hpp", "maths.rs"}
    assert "/* maths_power(x: f32[2,3], n: f32[]) ->" in Path("maths.h").read_text()


def test_a_program_file_has_entries_and_metadata() -> None:
    done = build(
        SCALED, f"other={SCALED}", POWER, "--target", "program", "--name", "maths",
        "--metadata", "author=Ada", "--metadata", "accuracy=0.98", "--metadata", 'tags=["a", null]',
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    file = bu.load("maths.bringup")
    assert file.metadata == {"author": "Ada", "accuracy": 0.98, "tags": ["a", None]}
    assert list(file.entries) == ["scaled", "other", "power"]
    x = np.ones(4, np.float32)
    assert file.entries["other"](x).tolist() == [1, 2, 3, 4]
    assert len(file.weights) == 1


def test_it_is_the_file_that_save_writes() -> None:
    """The hash, too: `bringup build`, `export` and `save` are one way."""

    def doubled(x: bu.Array) -> bu.Array:
        return x + x

    functions, metadata = {"doubled": (doubled, bu.float32[2])}, {"author": "Ada"}
    digest = bu.save("saved.bringup", functions, metadata=metadata)
    library = bu.export("maths", functions, target="program", metadata=metadata)
    assert library.files == {"maths.bringup": Path("saved.bringup").read_bytes()}
    alone = bu.jit(doubled).export("maths", bu.float32[2], target="program", metadata=metadata)
    alone.write(".")
    assert bu.load("maths.bringup").hash == digest


def test_a_program_file_stands_for_its_entries() -> None:
    build(SCALED, POWER, "--target", "program", "--name", "maths")
    assert build("maths.bringup", "--target", "c11").exit_code == 0
    assert "int maths_power(" in Path("maths.h").read_text()
    assert build("maths.bringup:scaled", "--target", "c11").exit_code == 0
    assert "int scaled_run(" in Path("scaled.h").read_text()
    both = build(
        "maths.bringup", "more=model.py:scaled(f32[4])", "--target", "c11", "--name", "all"
    )
    assert both.exit_code == 0, both.exception
    assert "int all_more(" in Path("all.h").read_text()


def test_what_cannot_be_built_says_what_to_do() -> None:
    error = refusal(SCALED, POWER, "--target", "c11")
    assert (error.what, error.fix) == (
        "scaled, power are a library without a name",
        "give one: --name",
    )
    error = refusal(SCALED, SCALED, "--target", "c11", "--name", "maths")
    assert error.what == "two functions are called scaled"
    assert error.fix == "name one of them: other=model.py:scaled"
    error = refusal("model.py:scaled", "f32[4]", "--target", "c11")
    assert "does not take the types given" in error.what
    error = refusal("model.py:scaled(f32[3])", "--target", "c11")
    assert isinstance(error, OpTypeError)
    assert refusal("model.py", "--target", "c11").what == "model.py names no function"
    error = refusal(SCALED, "--target", "c11", "--metadata", "author=Ada")
    assert error.what == "export: a library for c11 holds no metadata"
    for option in (("--threads", "2"), ("--small",), ("--weights", "external")):
        error = refusal(SCALED, "--target", "program", *option)
        assert error.fix == "leave weights, small and threads out"
    error = refusal(SCALED, "--target", "program", "--metadata", "author")
    assert error.what == "metadata 'author' has no value"


def test_a_damaged_file_is_found_wrong() -> None:
    build(SCALED, "--target", "program")
    data = bytearray(Path("scaled.bringup").read_bytes())
    data[-1] ^= 1
    Path("scaled.bringup").write_bytes(data)
    error = refusal("scaled.bringup", "--target", "c11", "--name", "other")
    assert isinstance(error, ProgramFileError)
    assert error.status == 1  # type: ignore[attr-defined]
    data[100] ^= 1
    Path("scaled.bringup").write_bytes(data)
    error = refusal("scaled.bringup", "--target", "c11", "--name", "other")
    assert isinstance(error, ProgramFileError)
    assert error.status == 1  # type: ignore[attr-defined]


def test_no_line_is_blamed_for_a_command() -> None:
    """The command was typed: it stands in no file."""
    command = [sys.executable, "-m", "bringup", "build", SCALED, "--target", "pdp11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no library can be made for 'pdp11'" in done.stderr
    assert "  at " not in done.stderr
