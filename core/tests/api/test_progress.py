"""A person at a terminal is told of a compilation that takes long."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest

import bringup as bu
from bringup.runtime import debug


class Terminal(io.StringIO):
    """Standard error as a person sees it."""

    def isatty(self) -> bool:
        return True


def told(terminal: io.StringIO, reference: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is written while a program of one kernel takes 0.3 s to compile."""
    compile_at_once = reference.compile

    def slowly(program: Any) -> Any:
        time.sleep(0.3)
        return compile_at_once(program)

    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(reference, "compile", slowly)

    def long_step(x: bu.Array) -> bu.Array:
        return x * 2

    assert bu.jit(long_step)(bu.ones(2)).tolist() == [2.0, 2.0]
    return terminal.getvalue()


def test_a_terminal_is_told(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "PATIENCE", 0.01)
    lines = told(Terminal(), reference, monkeypatch).splitlines()
    own = [line for line in lines if "long_step" in line]
    assert own[0] == "bringup: compiling long_step (1 kernel) …"
    assert re.fullmatch(r"bringup: long_step took \d+ s", own[1])
    assert len(own) == 2


def test_short_compilations_are_silent(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(Terminal(), reference, monkeypatch) == ""


def test_a_file_and_a_setting_are_silent(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "PATIENCE", 0.01)
    assert told(io.StringIO(), reference, monkeypatch) == ""
    monkeypatch.setenv("BRINGUP_PROGRESS", "0")
    assert told(Terminal(), reference, monkeypatch) == ""


def test_a_program_that_fails_to_compile_is_said_to_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debug, "PATIENCE", 0.01)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)

    def interrupted() -> None:
        with debug.progress("step") as count:
            count(3)
            time.sleep(0.2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    first, last = terminal.getvalue().splitlines()
    assert first == "bringup: compiling step (3 kernels) …"
    assert last.startswith("bringup: step took")
