"""Which tool links for which target, on machines that have some of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bringup.aot import toolchain
from bringup.errors import BringupError

ZIG = [sys.executable, "-m", "ziglang"]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that are run, which make empty files."""
    seen: list[Sequence[str]] = []

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        path = command[command.index("-o") + 1] if "-o" in command else command[-2]
        Path(path).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(toolchain.subprocess, "run", run)
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "x86_64")
    for setting in ("BRINGUP_CC", "BRINGUP_TARGET_CC", "BRINGUP_TARGET_AR"):
        monkeypatch.delenv(setting, raising=False)
    return seen


def has(monkeypatch: pytest.MonkeyPatch, *names: str, zig: bool = False) -> None:
    there = set(names)
    monkeypatch.setattr(
        toolchain.shutil, "which", lambda name: f"/bin/{name}" if name in there else None
    )
    monkeypatch.setattr(toolchain, "find_spec", lambda name: name if zig else None)


ROWS = [
    ("x86_64-linux-gnu", "shared", ["gcc"], ["/bin/gcc"]),
    ("x86-64-v3", "static", ["ar", "x86_64-linux-gnu-ar"], ["/bin/ar"]),
    ("x86-64-v3", "shared", [], [*ZIG, "cc"]),
    ("x86-64-v3", "static", [], [*ZIG, "ar"]),
    ("aarch64-linux-gnu+sve", "shared", ["cc", "aarch64-linux-gnu-gcc"],
     ["/bin/aarch64-linux-gnu-gcc"]),
    ("aarch64-linux-gnu+sve", "shared", ["cc"], [*ZIG, "cc", "-target", "aarch64-linux-gnu"]),
    ("riscv64-linux-gnu+v", "static", ["ar", "riscv64-linux-gnu-ar"],
     ["/bin/riscv64-linux-gnu-ar"]),
    ("wasm32", "shared", ["cc"], [*ZIG, "cc", "-target", "wasm32-freestanding"]),
    ("wasm32", "static", ["ar", "llvm-ar"], ["/bin/llvm-ar"]),
    ("thumbv7em-none-eabihf", "static", ["arm-none-eabi-ar"], ["/bin/arm-none-eabi-ar"]),
    ("thumbv7em-none-eabihf", "static", [], [*ZIG, "ar"]),
]  # fmt: skip


@pytest.mark.parametrize(("target", "kind", "there", "wanted"), ROWS)
def test_a_tool_of_the_system_else_of_the_wheel(
    target: str,
    kind: str,
    there: list[str],
    wanted: list[str],
    commands: list[Sequence[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, *there, zig=True)
    toolchain.linked(kind, "model", b"", ["model_run"], target)
    assert list(commands[0][: len(wanted)]) == wanted
    assert "-target" not in commands[0][len(wanted) :]


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_a_target_without_a_tool_is_named(
    kind: str, commands: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, "cc", "ar")
    with pytest.raises(BringupError, match="no linker for aarch64-linux-gnu") as error:
        toolchain.linked(kind, "model", b"", ["model_run"], "aarch64-linux-gnu")
    assert "ziglang" in str(error.value)
    assert f"aarch64-linux-gnu-{'ar' if kind == 'static' else 'gcc'}" in str(error.value)
    assert not commands


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_a_tool_that_is_named_comes_first(
    kind: str, commands: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a backend's own target, too, which ``ziglang`` would not know."""
    has(monkeypatch, "rev2-gcc", "rev2-ar", zig=True)
    monkeypatch.setenv("BRINGUP_TARGET_CC", "clang '--target=my chip'")
    monkeypatch.setenv("BRINGUP_TARGET_AR", "chip-ar")
    toolchain.linked(kind, "model", b"", ["model_run"], "rev2")
    wanted = ["chip-ar"] if kind == "static" else ["clang", "--target=my chip"]
    assert list(commands[0][: len(wanted)]) == wanted


def test_the_wheel_is_not_asked_for_a_backends_own_target(
    commands: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, "gcc", zig=True)
    with pytest.raises(BringupError, match="no rev2-gcc or rev2-cc on the path") as error:
        toolchain.linked("shared", "model", b"", ["model_run"], "rev2")
    assert "BRINGUP_TARGET_CC='clang --target=" in str(error.value)
    toolchain.linked("static", "model", b"", ["model_run"], "rev2")
    assert [list(command[:4]) for command in commands] == [[*ZIG, "ar"]]


def test_nothing_is_shared_without_an_operating_system() -> None:
    with pytest.raises(BringupError, match="no operating system") as error:
        toolchain.linked("shared", "model", b"", ["model_run"], "thumbv7em-none-eabihf")
    assert "static" in str(error.value)
