"""A vendor's backend takes part: ``bringup build --target mychip:rev2``, without the chip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_cases import Case
from c_program import compile_all, main_of, run
from typer.testing import CliRunner

import bringup as bu
from bringup.cli.app import app
from bringup.errors import BackendError, BringupError, UnsupportedError

#: A chip whose second revision has vectors; its compiler reads the C of the loops.
CHIP = """
from bringup.aot.c_source import CSource
from bringup.backend import *
from bringup.backend.link import Linked
from bringup.dtypes import f32
from bringup.errors import UnsupportedError

OPS = {"rev1": ["add"], "rev2": ["add", "mul"]}

class Chip(Backend):
    name = {name!r}
    def devices(self): raise NoHardware("it exists on paper")
    def open(self, index): raise AssertionError("opened")
    def targets(self): return tuple(OPS)
    def capabilities(self, target=""):
        if target not in ("", *OPS): raise UnsupportedError(f"mychip has no {target!r}")
        return Capabilities(kernels=claims(OPS[target or "rev1"], (f32,)))
    def lower(self, program, target=""): return Lowered(f"for {target}", "")
    def link(self, units, weights, target, options):
        LINK

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return Chip()
"""
LINK = 'return CSource().link(units, weights, "c11", options)'
TEXT = "def model(x):\n    return x * 2 + x\n"


def build(target: str) -> Any:
    command = ["build", "model.py:model(f32[5])", "--target", target]
    return CliRunner().invoke(app, command)


def test_a_library_is_made_without_the_chip(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mychip", CHIP.replace("LINK", LINK))
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TEXT)
    done = build("mychip:rev2")
    assert done.exit_code == 0, done.exception
    assert '#define MODEL_TARGET "rev2"' in Path("model.h").read_text()
    x = np.arange(5, dtype=np.float32)
    functions = {"triple": (lambda x: x * 2 + x, bu.float32[5])}
    library = bu.export("suite", functions, target="mychip:rev2")
    library.write(tmp_path)
    cases = {"triple": Case(lambda x: x, (x,), (x * 3,))}
    Path("main.c").write_text(main_of("suite", cases, library.arena_bytes))
    program = compile_all([tmp_path / "suite.c", tmp_path / "main.c"], tmp_path / "program", ())
    assert run(program, cases)["triple"][0].tolist() == (x * 3).tolist()


def test_what_a_revision_lacks_and_does_not_know_is_named(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mychip", CHIP.replace("LINK", LINK))
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TEXT)
    error = build("mychip:rev1").exception
    assert isinstance(error, UnsupportedError)
    assert "mul" in error.what
    assert error.location is not None
    assert Path(error.location.file).name == "model.py"
    error = build("mychip:rev3").exception
    assert isinstance(error, BringupError)
    assert error.what == "mychip has no 'rev3'"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("raise KeyError('vector')", "Chip.link: KeyError: 'vector'"),
        ("return b'code'", "Chip.link gave b'code', no Linked with an arena for each unit"),
        ("return Linked(b'code')", "no Linked with an arena for each unit"),
    ],
)
def test_a_link_that_fails_is_the_backends(link: str, message: str, install: Any) -> None:
    install("mychip", CHIP.replace("LINK", link))
    with pytest.raises(BringupError) as caught:
        bu.jit(lambda x: x + x).export("model", bu.float32[5], target="mychip:rev2")
    assert message in caught.value.what
    assert caught.value.fix == "report this to the backend's authors"


def test_a_broken_backend_is_called_so(install: Any) -> None:
    install("mychip", "raise ImportError('no compiler')")
    with pytest.raises(BackendError, match="no compiler"):
        bu.jit(lambda x: x + x).export("model", bu.float32[5], target="mychip:rev2")


def test_a_backend_without_link_says_what_goes_instead(install: Any) -> None:
    install("mychip", CHIP.replace("LINK", "return super().link(units, weights, target, options)"))
    with pytest.raises(UnsupportedError, match="'mychip' makes no libraries") as caught:
        bu.jit(lambda x: x + x).export("model", bu.float32[5], target="mychip:rev2")
    assert "target='program'" in str(caught.value.fix)
