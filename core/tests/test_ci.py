"""The helpers of `.ci/run`: none may let a check pass because there was nothing to check."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def helper(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


read = helper("readme_command").readme_command
devices = helper("devices")


def test_the_readme_promises_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert read(text, "use") == "pip install . && conformance run --backend=cpu"
    assert read(text, "develop") == 'pip install -e ".[dev]" && pytest'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- ci:use -->\nprose\n```sh\npip install .\n```\n",
        "<!-- ci:use -->\n```sh\na\nb\n```\n",
        "<!-- ci:use -->\n```sh\na\n```\n<!-- ci:use -->\n```sh\nb\n```\n",
    ],
    ids=["missing", "not next", "two lines", "twice"],
)
def test_an_unclear_readme_command_stops_the_check(text: str) -> None:
    with pytest.raises(SystemExit, match="one one-line sh block"):
        read(text, "use")


def row(name: str, state: str = "ready", reason: str = "") -> dict[str, str]:
    return {"name": name, "distribution": "bringup-x", "state": state, "reason": reason}


def test_the_ready_devices_of_one_distribution_are_named() -> None:
    other = {**row("y"), "distribution": "bringup-y"}
    assert devices.ready_names([row("x0"), other, row("x1")], "bringup-x") == ["x0", "x1"]


def test_an_absent_device_says_why() -> None:
    rows = [row("x", "no hardware", "no driver"), row("x-emulated")]
    assert devices.check_absent(rows, "x") == ["x: no hardware: no driver"]


@pytest.mark.parametrize(
    ("question", "about", "rows", "message"),
    [
        ("ready_names", "bringup-x", [], "does not list it"),
        ("ready_names", "bringup-x", [row("x", "broken", "ImportError")], "x is broken: Import"),
        ("check_absent", "x", [row("y")], "does not list x"),
        ("check_absent", "x", [row("x")], "should be 'no hardware'"),
        ("check_absent", "x", [row("x", "no hardware")], "should be 'no hardware' with a reason"),
        ("check_absent", "x", [row("x", "broken", "ImportError")], "should be 'no hardware'"),
    ],
)
def test_a_device_in_another_state_stops_the_check(
    question: str, about: str, rows: list[dict[str, str]], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        getattr(devices, question)(rows, about)


def test_the_lowest_versions_are_those_of_the_requirements() -> None:
    read = helper("lowest").lowest
    assert read(["numpy>=2", "a_b[x]>=1.5,<2"]) == ["numpy==2", "a_b==1.5"]
    with pytest.raises(SystemExit, match="'numpy' has no lowest version"):
        read(["numpy"])
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert len(read(tomllib.loads(text)["project"]["dependencies"])) >= 9
