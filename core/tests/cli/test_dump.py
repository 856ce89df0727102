"""``bringup dump`` shows every level of a function or of a graph in a file, without hardware."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import bringup as bu
from bringup.cli.app import app
from bringup.errors import BringupError
from bringup.loops import parse_func
from bringup.loops.schedule import Schedule, apply

Install = Callable[..., Path]

PLUGIN = """
from bringup.backend import *
from bringup.dtypes import ALL

class Paper(Backend):
    name = {name!r}
    def devices(self): raise NoHardware("it exists on paper")
    def capabilities(self, target=""): return Capabilities(kernels=claims(["add", "exp"], ALL))
    def open(self, index): raise AssertionError("opened")
    def lower(self, program, target=""): return Lowered(f"source for {target}", "nop")

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return Paper()
"""
MODEL = """
import bringup as bu

def forward(x, y):
    return bu.exp(x + y) + x

def late(x, w):
    return bu.exp(x) @ w

def chosen(k, x):
    return bu.switch(k, [lambda v: v + v, bu.exp], x)
"""
IR = """graph twice(%0: f32[4]) {
  %1: f32[4] = add(%0, %0)
  return %1
}
"""


@pytest.fixture(autouse=True)
def files(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install("paper", PLUGIN)
    (tmp_path / "model_of_test.py").write_text(MODEL)
    (tmp_path / "twice.ir").write_text(IR)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("model_of_test", None)


def dump(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dump", "--target", "paper:v2", *arguments])


@pytest.mark.parametrize("subject", ["model_of_test.py:forward", "model_of_test:forward"])
def test_every_level_of_a_function(subject: str) -> None:
    result = dump(subject, "f32[4,8]", "f32[4,8]")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "graph forward(%0: f32[4,8], %1: f32[4,8]) {" in text
    assert "= exp(" in text
    assert "08-dce, 09-forward_loop_invariants, 10-materialize_outputs" in text
    assert "\nprogram forward(f32[4,8], f32[4,8]) -> (f32[4,8]) arena=0\n" in text
    assert "\nkernels: 1\nkernel k0" in text
    assert "\nkernels 1\n" in text
    assert "source for v2" not in text
    assert "nop" not in text
    assert "BRINGUP_DUMP" not in os.environ


def test_the_loops_of_each_kernel() -> None:
    result = dump("twice.ir", "--level", "loops")
    assert result.stdout == (
        "loops: 1\n"
        "func k0_add(b0: in f32[4], b1: out f32[4]) {\n"
        "  for g0 in 4 parallel {\n"
        "    %0: f32 = b0[g0]\n"
        "    %1: f32 = add(%0, %0)\n"
        "    b1[g0] = %1\n"
        "  }\n"
        "}\n\n"
    )
    found = json.loads(dump("twice.ir", "--level", "loops", "--json").stdout)
    assert found["loops"] == [result.stdout.partition("\n")[2].rstrip()]


def test_the_steps_of_a_schedule_and_the_loops_that_they_make() -> None:
    shown = dump("twice.ir", "--level", "loops", "--level", "schedule", "--target", "cpu").stdout
    loops, title, schedule = shown.partition("schedule: 1\n")
    assert title
    before = parse_func(loops.partition("\n")[2])
    steps, after = schedule.strip().split("\n\n")
    assert str(apply(before, Schedule.parse(steps))) == after
    assert " vector {" in after
    assert dump("twice.ir", "--level", "schedule").stdout == (
        "schedule: 1\nnot shown: the backend does not run this kernel by loops\n\n"
    )


def test_the_schedules_of_steps_that_the_library_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sorted.ir").write_text(str(bu.trace(bu.sort, bu.float32[40])))
    shown = dump(str(tmp_path / "sorted.ir"), "--level", "schedule", "--target", "cpu:x86-64-v3")
    assert "func o0_sort(x0: in f32[40], y0: out f32[40]) {" in shown.stdout
    assert shown.stdout.startswith("schedule: 1\n")
    monkeypatch.setenv("BRINGUP_DUMP", str(tmp_path / "dumps"))
    compiled = bu.jit(bu.sort).lower(bu.float32[40], target="cpu")
    (scheduled,) = compiled.library
    assert list(map(str, compiled.loops)) == [str(scheduled.before)]
    (file,) = (tmp_path / "dumps").rglob("93-schedule-o0_sort.txt")
    assert file.read_text() == f"{scheduled}\n"


def test_a_folder_of_dumps_has_kernels_and_their_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_DUMP", str(tmp_path / "dumps"))
    compiled = bu.jit(lambda x: x + x).lower(bu.float32[4], target="paper")
    files = {f.name: f.read_text() for f in (tmp_path / "dumps").rglob("9*.txt")}
    assert files == {
        "90-program.txt": f"{compiled.program}\n",
        "91-kernel-00.txt": f"{compiled.kernels[0]}\n",
        "92-loops-00.txt": f"{compiled.loops[0]}\n",
    }
    bu.jit(lambda x: x - x).lower(bu.float32[4], target="cpu")
    (schedule,) = (tmp_path / "dumps").rglob("93-schedule-00.txt")
    assert schedule.read_text().startswith("split g0 g0.b g0.v 4 tail=peel\n")
    assert files["92-loops-00.txt"].startswith("func k0_add(b0: in f32[4], b1: out f32[4]) {\n")


def test_a_backend_without_assembly_says_so(install: Install) -> None:
    install("bare", PLUGIN.replace('"nop"', '""'))
    result = dump("twice.ir", "--level", "asm", "--target", "bare:v2")
    assert result.stdout == "asm\nnot shown: the backend shows no assembly of twice\n\n"


def test_source_and_assembly_are_shown_when_asked_for() -> None:
    result = dump("twice.ir", "--level", "source", "--level", "asm")
    assert result.stdout == "source\nsource for v2\n\nasm\nnop\n\n"


def test_why_a_value_is_stored_between_kernels() -> None:
    arguments = ["f32[16,16]", "f32[16,16]", "--level", "fusion"]
    result = dump("model_of_test.py:late", *arguments, "--target", "cpu")
    assert result.stdout == (
        "fusion\n"
        "%2: f32[16,16] = exp(%0)\n"
        "  stored by k0_exp, read by k1_dot_general\n"
        "  not in k1_dot_general: contraction_computes_cheaply: "
        "the contraction would compute it for each row or column of the other operand\n"
        "  not in k1_dot_general: contraction_stores_results_only: "
        "a contraction of the kernel reads it\n\n"
    )


def test_chosen_levels_as_json() -> None:
    arguments = ["f32[4]", "2.5", "--level", "asm", "--level", "cost", "--json"]
    result = dump("model_of_test.py:forward", *arguments)
    found = json.loads(result.stdout)
    assert list(found) == ["format", "asm", "cost"]
    assert found["asm"] == "nop"
    assert found["cost"]["kernels"] == 1


def test_a_graph_in_a_file() -> None:
    result = dump("twice.ir", "--level", "passes")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("00-input\ngraph twice(%0: f32[4]) {\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:f"], "there is no file nowhere.py"),
        (["nowhere.ir"], "there is no file nowhere.ir"),
        (["no_such_module:f"], "there is no module 'no_such_module'"),
        (["model_of_test.py:forwards"], "has no function 'forwards'\n  fix: name one of forward"),
        (["model_of_test.py:forward", "f32[4"], "not a tensor type: 'f32[4'"),
        (["model_of_test.py:forward"], "forward(x, y) does not take the types given: missing"),
        (["model_of_test.py:forward", *["f32[4]"] * 3], "given: too many positional arguments"),
        (["model_of_test.py"], "model_of_test.py is Python, not a graph"),
        (["twice.ir", "f32[4]"], "a graph in a file has its types already"),
        (["twice.ir", "--level", "loop"], "there is no level 'loop'"),
        (["twice.ir", "--target", "papers"], "no backend is named 'papers'"),
    ],
)
def test_what_cannot_be_shown(arguments: list[str], message: str) -> None:
    result = dump(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, BringupError)
    assert message in str(result.exception)
    assert result.exception.fix


def test_branches_that_core_chooses_are_programs_of_their_own() -> None:
    """The passes shown are those of the function itself."""
    result = dump("model_of_test.py:chosen", "i32[]", "f32[4]", "--json")
    found = json.loads(result.stdout)
    assert "case(%0, %1)" in found["passes"]["00-input"]
    assert found["program"].count("program ") == 2
    assert found["cost"]["kernels"] == 1, "of one branch"


def test_what_is_lowered_prints_itself() -> None:
    lowered = bu.jit(lambda x: bu.nn.softmax(x @ x)).lower(bu.float32[8, 8])
    assert repr(lowered) == "<compiled lambda: 2 kernels>"
    head, *kernels = str(lowered).splitlines()
    assert head.startswith("lambda: 2 launches, reads 512 bytes, writes 512, ")
    assert kernels[0] == "  <kernel k0_dot_general of dot_general: grid 8×8, 2 buffers>"
    assert [repr(k) for k in lowered.kernels] == [line.strip() for line in kernels]
    shown = repr(lowered.placement())
    assert "dot_general(%0, %0)" in shown
    assert " → " in shown
    assert " object at 0x" not in shown + repr(lowered.kernels)


def test_brackets_beyond_pythons_stack_are_a_wrong_file() -> None:
    line = f"  %9: f32[4] = add(%0, %0) {{x={'(' * 3000}\n"
    Path("deep.ir").write_text(IR.replace("  return", f"{line}  return"))
    result = dump("deep.ir")
    assert isinstance(result.exception, BringupError)
    assert "brackets inside one another" in str(result.exception)
