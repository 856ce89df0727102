"""Schedules that are found by measuring: the search, the file, and who uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import bringup as bu
from bringup.backend import BufferView, Capabilities, DeviceInfo, LoopsDevice, SimpleBackend, claims
from bringup.cli.app import app
from bringup.dtypes import ALL
from bringup.errors import BackendError, CompileError, ParseError, UnsupportedError
from bringup.loops import Func, evaluate_func, parse_func
from bringup.loops.form import For, statements
from bringup.loops.schedule import Schedule, apply
from bringup.loops.schedule.variants import variants
from bringup.runtime import devices, tuned
from bringup.runtime.compiler import compile_graph, forget, lower_graph
from bringup.runtime.tune import Tuned, tune
from bringup.target import Target

FUNC = parse_func("""
func f(x: in f32[64], y: out f32[8]) {
  for i in 8 parallel {
    for j in 8 parallel {
      for k in 8 {
        %0: f32 = x[8*i + k]
        y[j] = %0
      }
    }
  }
}""")


def test_variants_change_one_decision_about_loops_of_the_grid() -> None:
    schedule = Schedule.parse("""
        split i i.o i.i 4
        reorder i.o j i.i
        split k k.o k.i 2
        unroll i.i k.i
        unroll i.i""")
    found = [str(s).split("\n") for s in variants(FUNC, schedule)]
    steps = str(schedule).split("\n")

    def but(n: int, *other: str) -> list[str]:
        return [*steps[:n], *other, *steps[n + 1 :]]

    assert found == [
        but(0, "split i i.o i.i 8"),
        but(0, "split i i.o i.i 2"),
        but(1, "reorder j i.o i.i"),
        but(1, "reorder i.o i.i j"),
        but(4),
    ]


class Chip(LoopsDevice):
    """Interprets loops; a run lasts longer the further the inner loop is from 16 iterations."""

    capabilities = Capabilities(kernels=claims(["mul"], ALL), simulated=True)
    refcounted_handles = True

    def __init__(self) -> None:
        self.now = 0.0
        self.wrong = False

    def schedule(self, func: Func) -> Schedule:
        return inner_loop(func)

    def alloc(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def free(self, handle: Any) -> None: ...

    def upload(self, handle: Any, data: memoryview) -> None:
        handle[: len(data)] = data

    def download(self, handle: Any, out: memoryview) -> None:
        out[:] = handle[: len(out)].data

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None: ...

    def render(self, func: Func) -> str:
        return str(func)

    def load(self, source: str | bytes, name: str) -> Func:
        return parse_func(str(source))

    def launch(self, loaded: Func, func: Func, views: list[BufferView]) -> None:
        arrays = [v.handle[v.offset :][: v.type.nbytes].view(v.type.dtype.numpy) for v in views]
        evaluate_func(loaded, arrays)
        *_, inner = (s for s in statements(func.body) if isinstance(s, For))
        self.now += 1 + abs(inner.axis.size - 16)
        if self.wrong and inner.axis.size == 8:
            arrays[-1][0] += 1


def inner_loop(_func: Func) -> Schedule:
    return Schedule.parse("split g0 g0.o g0.i 2")


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> devices.OpenDevice:
    monkeypatch.setenv("BRINGUP_SCHEDULES", str(tmp_path))
    made = Chip()
    backend = SimpleBackend(
        "chip", lambda _: made, Chip.capabilities, render=str, schedule=inner_loop
    )
    return devices.OpenDevice("chip", 0, backend, made, DeviceInfo(0, "Chip (R) 7"))


GRAPH = bu.jit(lambda x: x * x).lower(bu.float32[64], target="cpu").graph


def entry(func: Func, steps: Schedule) -> tuned.Entry:
    return tuned.Entry(tuned.key_of(func), str(steps))


def search(chip: devices.OpenDevice) -> Tuned:
    device: Any = chip.device
    compiled = compile_graph(GRAPH, chip)
    (found,) = tune(compiled, chip, 1e9, lambda: device.now)
    return found


def test_a_search_ends_at_the_fastest_schedule(chip: devices.OpenDevice) -> None:
    found = search(chip)
    assert str(found.schedule) == "split g0 g0.o g0.i 16"
    assert found.ratio == pytest.approx(1 / 15)
    assert found.is_faster
    assert found.tried == 4  # 4 and 1; 8, 16 and 32


def test_no_time_means_no_change(chip: devices.OpenDevice) -> None:
    compiled = compile_graph(GRAPH, chip)
    (found,) = tune(compiled, chip, 0)
    assert (found.schedule, found.ratio, found.tried) == (inner_loop(FUNC), 1.0, 0)
    assert not found.is_faster
    assert found.why == "the time was over before its first variant"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("", "its schedule has no steps: give the device and its backend a `schedule`"),
        ("parallelize g0", "no step of its schedule cuts, orders or unrolls loops of the grid"),
    ],
)
def test_a_search_without_a_variant_says_why(
    steps: str, why: str, chip: devices.OpenDevice
) -> None:
    own = Schedule.parse(steps)
    backend = SimpleBackend(
        "chip", lambda _: chip.device, Chip.capabilities, render=str, schedule=lambda _func: own
    )
    found = search(devices.OpenDevice("chip", 0, backend, chip.device, chip.info))
    assert (found.tried, found.why) == (0, why)


def test_what_does_not_fit_is_not_counted_as_tried(
    chip: devices.OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Chip, func: Func) -> str:
        *_, inner = (s for s in statements(func.body) if isinstance(s, For))
        if inner.axis.size != 2:
            raise CompileError("no room for it")
        return str(func)

    monkeypatch.setattr(Chip, "render", refuse)
    found = search(chip)
    assert (found.tried, found.why) == (0, "none of its 2 variants fits the loops or the machine")


def test_a_schedule_that_changes_results_is_an_error(chip: devices.OpenDevice) -> None:
    chip.device.wrong = True  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="changes results of k0_mul") as caught:
        search(chip)
    assert caught.value.notes == ("split g0 g0.o g0.i 8",)


def test_what_is_kept_is_used_by_programs_that_are_compiled_later(
    chip: devices.OpenDevice,
) -> None:
    found = search(chip)
    path = tuned.path_of(chip.machine)
    assert path.name == "chip-chip-r-7.txt"
    tuned.write(path, dict([found.entry]))
    assert tuned.read(path) == dict([found.entry])
    forget()
    compiled = compile_graph(GRAPH, chip)
    (scheduled,) = compiled.schedules
    assert scheduled is not None
    assert scheduled.steps == found.schedule
    assert compiled.executable is not None
    assert "for g0.i in 16 parallel {" in compiled.executable.source  # type: ignore[attr-defined]


def test_the_cpu_obeys_a_file_and_keeps_the_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_SCHEDULES", str(tmp_path))
    cpu = devices.get("cpu")
    x = np.linspace(0, 1, 1000, dtype=np.float32)
    function = bu.jit(lambda x: x * x + 1, device="cpu")
    right = np.asarray(function(x))
    (own,) = function.lower(x).schedules
    assert own is not None
    steps = Schedule.parse("split g0 g0.o g0.i 8\nvectorize g0.i")
    path = tuned.path_of(cpu.machine)
    (kernel,) = function.lower(x).kernels
    other = tuned.Entry("of other loops", str(inner_loop(FUNC)))
    tuned.write(path, {tuned.key_of(kernel): entry(own.before, steps), "another": other})
    forget()
    again = bu.jit(lambda x: x * x + 1, device="cpu")
    assert np.asarray(again(x)).tobytes() == right.tobytes()
    (scheduled,) = again.lower(x).schedules
    assert scheduled is not None
    assert scheduled.steps == steps
    assert scheduled.after.content == apply(own.before, steps).content
    forget()


def shipping(chip: devices.OpenDevice, folder: Any) -> devices.OpenDevice:
    """The same device, whose backend ships the tables of a folder for class chip-2."""
    backend = SimpleBackend(
        "chip", lambda _: chip.device, Chip.capabilities, render=str, schedule=inner_loop,
        target=Target("chip-2"), schedule_tables=folder,
    )  # fmt: skip
    return devices.OpenDevice("chip", 0, backend, chip.device, chip.info)


def steps_of(chip: devices.OpenDevice) -> str:
    (scheduled,) = compile_graph(GRAPH, chip).schedules
    return str(scheduled and scheduled.steps)


def test_the_tables_of_a_backend_are_used_for_their_class_of_machines(
    chip: devices.OpenDevice, tmp_path: Path
) -> None:
    folder = tmp_path / "shipped"
    found = search(chip)
    for name, wanted in (("chip-1", "split g0 g0.o g0.i 2"), ("chip-2", str(found.schedule))):
        tuned.write(folder / f"{name}.txt", dict([found.entry]))
        assert steps_of(shipping(chip, folder)) == wanted
    offline = lower_graph(GRAPH, shipping(chip, folder).backend)
    assert str(offline.schedules[0]).startswith(str(found.schedule))
    mine = tuned.Entry(found.loops, "split g0 g0.o g0.i 4")
    tuned.write(tuned.path_of(chip.machine), {found.entry[0]: mine})
    assert steps_of(shipping(chip, folder)) == mine.steps, "the user's own comes first"
    stale = tuned.Entry("of other loops", mine.steps)
    tuned.write(tuned.path_of(chip.machine), {found.entry[0]: stale})
    assert steps_of(shipping(chip, folder)) == str(found.schedule)


def test_a_backend_that_gives_no_folder_is_at_fault(chip: devices.OpenDevice) -> None:
    with pytest.raises(BackendError, match="schedule_tables gave 'here', no path of a folder"):
        compile_graph(GRAPH, shipping(chip, "here"))


def test_no_table_is_read_for_a_program_without_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = devices.get("cpu").backend
    monkeypatch.setattr(type(backend), "schedule_tables", lambda self: tmp_path)
    (tmp_path / f"{backend.target().name}.txt").write_text("\nkernel broken")
    assert not bu.jit(bu.sort).lower(bu.float32[64], target="cpu").kernels
    with pytest.raises(ParseError, match="kernel broken: the line names no loops"):
        bu.jit(bu.exp).lower(bu.float32[64], target="cpu")


def test_an_entry_that_cannot_be_read_names_the_kernel(
    chip: devices.OpenDevice,
) -> None:
    found = search(chip)
    key, _ = found.entry
    steps = "split g0 g0.o g0.i 4\nsplit g0"
    tuned.write(tuned.path_of(chip.machine), {key: tuned.Entry(found.loops, steps)})
    forget()
    with pytest.raises(ParseError, match=rf"7\.txt, kernel {key}: line 2: split") as caught:
        compile_graph(GRAPH, chip)
    assert caught.value.fix == "mend the entry, or remove it"


MODEL = """
import bringup as bu

def double(x):
    return x + x

def sort(x):
    return bu.sort(x)
"""


def run(tmp_path: Path, *arguments: str) -> Any:
    (tmp_path / "model.py").write_text(MODEL)
    subject, *rest = arguments
    return CliRunner().invoke(app, ["tune", f"{tmp_path}/{subject}", *rest])


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRINGUP_SCHEDULES", str(tmp_path / "kept"))
    result = run(tmp_path, "model.py:double", "f32[64]", "--device", "cpu", "--seconds", "0")
    assert result.exit_code == 0, result.output
    table, why = result.stdout.split("\n\n")
    assert table.split() == ["KERNEL", "TIME", "TRIED", "k0_add", "1.00", "0"]
    assert why == "k0_add: the time was over before its first variant\n"
    assert not (tmp_path / "kept").exists()
    result = run(tmp_path, "model.py:double", "f32[64]", "--seconds", "0", "--json")
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert kernel["kernel"] == "k0_add"
    assert kernel["schedule"][0].startswith("split g0 ")


def test_the_command_writes_what_a_backend_ships(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_SCHEDULES", str(tmp_path / "kept"))
    command = "model.py:double", "f32[64]", "--device", "cpu", "--seconds", "0", "--ship"
    backend = devices.get("cpu").backend
    monkeypatch.setattr(type(backend), "schedule_tables", lambda self: None)
    result = run(tmp_path, *command)
    assert "backend cpu ships no schedules" in str(result.exception)
    monkeypatch.setattr(type(backend), "schedule_tables", lambda self: tmp_path / "shipped")

    def found(compiled: Any, *_: Any) -> list[Tuned]:
        (kernel,), (own,) = compiled.kernels, compiled.schedules
        return [Tuned(kernel, tuned.key_of(own.before), Schedule.parse("unroll g0"), 0.5, 1)]

    monkeypatch.setattr("bringup.cli.tune.tune", found)
    result = run(tmp_path, *command)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "shipped").iterdir()
    assert path.name == f"{backend.target().name}.txt"
    assert [each.steps for each in tuned.read(path).values()] == ["unroll g0"]
    assert not (tmp_path / "kept").exists()
    forget()


def test_a_function_without_loops_cannot_be_tuned(tmp_path: Path) -> None:
    result = run(tmp_path, "model.py:sort", "f32[64]", "--device", "cpu")
    assert isinstance(result.exception, UnsupportedError)
    assert "cpu runs no kernel of sort by loops" in str(result.exception)
    result = run(tmp_path, "model.py", "f32[64]")
    assert "names no function" in str(result.exception)
