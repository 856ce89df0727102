"""Devices that run step by step: runs of loops, and short functions that are launched as one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from test_adapters import ARRAYS, HERE, C, LoopsChip, T, Toy, V, X, Z, negation, program, slot

import bringup as bu
from bringup.backend import BufferView, Capabilities, DeviceInfo, LibraryClaims, Limits
from bringup.backend import launches as launches_module
from bringup.backend.adapters import SimpleBackend
from bringup.backend.capabilities import CONTROL_CLAIMS
from bringup.backend.launches import copies_before, places_of_runs
from bringup.c import C11, c_claims
from bringup.dtypes import f32, f64, u8
from bringup.errors import DeviceError, UnsupportedError
from bringup.graph import Literal
from bringup.loops import Func
from bringup.program.program import KernelStep, LoopStep
from bringup.runtime import timeline
from bringup.runtime.devices import OpenDevice
from bringup.target import Target

KERNELS = c_claims(C11)
RUNS = 12


class Steps(LoopsChip):
    """Runs every op by the reference interpreter of loops, and any loop of few runs as steps."""

    capabilities = Capabilities(
        kernels=KERNELS,
        ops=LibraryClaims(KERNELS),
        limits=Limits(loop_runs=RUNS),
        alignment=16,
    )

    @property
    def launched(self) -> list[str]:
        """The names of what was launched, in order."""
        return [e.removeprefix("launch ") for e in self.events if e.startswith("launch ")]

    @property
    def built(self) -> list[str]:
        """The names of what was loaded."""
        return [e.removeprefix("load ") for e in self.events if e.startswith("load ")]

    def render(self, func: Func) -> str | bytes:
        self.sources.append(str(func))
        return super().render(func)

    @cached_property
    def sources(self) -> list[str]:
        return []


class Without(Steps):
    """The same without loops: core runs their bodies."""

    capabilities = replace(Steps.capabilities, limits=Limits())


class Joining(Steps):
    """The same, where a launch takes as long as a million instructions."""

    target = Target(launch_instructions=1_000_000)


def opened(chip: Steps) -> OpenDevice:
    backend = SimpleBackend("steps", lambda _: chip, chip.capabilities, render=str)
    return OpenDevice("steps", 0, backend, chip, DeviceInfo(0, "steps"))


def on(chip: Steps, function: Callable[..., Any], *arrays: Any) -> tuple[Any, Any]:
    """What a function gives on a device, and its compiled form."""
    device = opened(chip)
    jitted = bu.jit(function, device=device)
    result = jitted(*arrays)
    return np.asarray(result), jitted.lower(*arrays)


# Loops


def running_sums(x: Any) -> Any:
    """Of rows: a carried part, a stack that is read, one that is written."""

    def body(total: Any, row: Any) -> Any:
        return total + row, bu.sin(total) * row

    total, rows = bu.scan(body, bu.zeros(x.shape[1:]), x)
    return rows + total


def backwards(x: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        return bu.sin(total + row), total

    total, rows = bu.scan(body, bu.ones(x.shape[1:]), x, reverse=True)
    return rows * total


def in_place(x: Any) -> Any:
    """A part of the state that every run changes where it is."""
    return bu.fori_loop(0, x.shape[0], lambda i, y: y.at[i, 2].set(bu.sin(y[i, 1]) + 1), x)


def nested(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return bu.fori_loop(0, 2, lambda i, z: bu.sin(z) + i, y)

    def body(total: Any, row: Any) -> Any:
        return total + inner(row), inner(total)

    total, rows = bu.scan(body, bu.zeros(x.shape[1:]), x)
    return rows + total


@pytest.mark.parametrize("chip", [Steps, Joining])
@pytest.mark.parametrize("function", [running_sums, backwards, in_place, nested])
@pytest.mark.parametrize("trips", [2, 3, 6])
def test_a_loop_of_known_length_is_launches_of_one_program(
    function: Callable[..., Any], trips: int, chip: type[Steps]
) -> None:
    x = np.random.default_rng(0).normal(size=(trips, 8)).astype(np.float32)
    device = chip()
    result, lowered = on(device, function, x)
    np.testing.assert_array_equal(result, on(Without(), function, x)[0])
    (only,) = lowered.programs
    loops = [step for step in only.steps if isinstance(step, LoopStep)]
    assert [loop.trips for loop in loops] == [trips]
    # Each run launches the code of the one before it.
    assert len(device.launched) >= trips
    assert len(device.built) <= len(device.launched) - trips + 1


def test_runs_alternate_between_two_memories_and_the_last_one_writes_the_result() -> None:
    x = np.zeros((3, 8), np.float32)
    _, lowered = on(Steps(), running_sums, x)
    (step,) = [s for s in lowered.programs[0].steps if isinstance(s, LoopStep)]
    carried = slot("output", step.results[0].type)
    written = [place(carried) for place in places_of_runs(step, 0, 1 << 30)]
    assert written == [step.results[0], step.spare[0], step.results[0]]
    row = slot("input", step.body.inputs[-1], len(step.body.inputs) - 1)
    offsets = [place(row).offset for place in places_of_runs(step, 0, 1 << 30)]
    assert offsets == [0, 32, 64]


@pytest.mark.parametrize(
    ("rows", "why"), [(RUNS + 1, "more runs than the device takes"), (3, "rows of 12 bytes")]
)
def test_core_runs_a_loop_that_the_device_does_not_take(rows: int, why: str) -> None:
    x = np.random.default_rng(1).normal(size=(rows, 8 if rows > RUNS else 3)).astype(np.float32)
    result, lowered = on(Steps(), running_sums, x)
    np.testing.assert_array_equal(result, on(Without(), running_sums, x)[0])
    steps = [step for each in lowered.programs for step in each.steps]
    stacks = [s for s in steps if isinstance(s, LoopStep) and s.stacks]
    assert stacks == [], why


def test_core_runs_a_loop_round_one_whose_length_only_the_data_know() -> None:
    def body(total: Any, row: Any) -> Any:
        end = bu.while_loop(lambda y: bu.sum(y) < 100, lambda y: y * 2 + 1, row)
        return total + end, end

    def function(x: Any) -> Any:
        total, rows = bu.scan(body, bu.zeros(x.shape[1:]), x)
        return rows + total

    x = np.random.default_rng(2).uniform(size=(3, 8)).astype(np.float32)
    result, lowered = on(Steps(), function, x)
    np.testing.assert_array_equal(result, on(Without(), function, x)[0])
    assert len(lowered.programs) > 1


def test_a_donated_state_that_a_loop_changes_in_place_is_not_copied() -> None:
    x = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)
    chip = Steps()
    device = opened(chip)
    result = bu.jit(in_place, device=device, donate_argnums=0)(bu.asarray(x, device=device))
    np.testing.assert_array_equal(np.asarray(result), on(Without(), in_place, x)[0])
    assert [name for name in chip.launched if name.startswith("s1_copy")] == []
    kept = Steps()
    on(kept, in_place, x)
    assert [name for name in kept.launched if name.startswith("s1_copy")] == ["s1_copy0"]


def test_views_have_the_types_of_the_buffers_of_a_kernel() -> None:
    (program_,) = on(Steps(), in_place, np.zeros((3, 8), np.float32))[1].programs
    (step,) = [s for s in program_.steps if isinstance(s, LoopStep)]
    (copy,) = copies_before(program_, step, "")
    assert [s.type for s in copy.slots] == [b.type for b in copy.kernel.buffers]


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_that_is_claimed_without_a_limit_is_refused(trips: int) -> None:
    chip = Steps()
    chip.capabilities = replace(
        Steps.capabilities, ops={**LibraryClaims(KERNELS), **CONTROL_CLAIMS}, limits=Limits()
    )
    with pytest.raises(UnsupportedError) as caught:
        on(chip, lambda x: bu.fori_loop(0, trips, lambda _, y: bu.sin(y), x), ARRAYS[0])
    assert "Steps runs step by step, and the program holds a scan" in str(caught.value)
    assert "leave 'scan' out of Capabilities.ops, and " in str(caught.value)


def test_a_device_of_ops_alone_has_no_number_of_runs() -> None:
    toy = Toy()
    toy.capabilities = replace(Toy.capabilities, limits=Limits(loop_runs=RUNS))
    device = OpenDevice(
        "toy", 0, SimpleBackend("toy", lambda _: toy, toy.capabilities), toy, DeviceInfo(0, "toy")
    )
    looped = bu.jit(lambda x, y: bu.scan(lambda z, row: (z * row, ()), x, y)[0], device=device)
    with pytest.raises(UnsupportedError, match=r"Limits\.loop_runs at 0 if it takes ops alone"):
        looped(np.ones(16, np.float32), np.ones((4, 16), np.float32))


def test_constants_of_a_body_are_those_of_the_program() -> None:
    given, second = Literal.of(ARRAYS[0].tolist(), f32), slot("output", V, 1)
    body = replace(program([KernelStep(negation("k0"), (C, Z), HERE)]), constants=(given,))
    rows = slot("output", f32[2, 4])
    step = LoopStep((body,), (), (), (), (rows,), (), slot("arena", u8[0]), trips=2)
    first = KernelStep(negation("k0"), (C, second), HERE)
    whole = replace(program([first, step]), constants=(Literal.of(ARRAYS[1].tolist(), f32),))
    chip = Steps()
    z, other = chip.compile(whole)([])
    assert chip.take(z, rows.type).tolist() == [(-ARRAYS[0]).tolist()] * 2
    assert chip.take(other, V).tolist() == (-ARRAYS[1]).tolist()
    assert chip.launched == ["k0", "s1_k0", "s1_k0"]


def test_a_loop_of_elements_that_no_kernel_holds_is_refused() -> None:
    kernels = {name: dtypes - {f64} for name, dtypes in KERNELS.items()}
    chip = Steps()
    chip.capabilities = replace(Steps.capabilities, kernels=kernels, ops=LibraryClaims(kernels))

    def function(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + row, bu.full((4,), 2.5, dtype=bu.float64)

        return bu.scan(body, x[0], x)[1]

    with pytest.raises(UnsupportedError, match=r"claims 'reshape' for .*f8e5m2, not for f64"):
        on(chip, function, np.zeros((3, 4), np.float32))


# Short functions


def chain(*slots: Any) -> list[KernelStep]:
    pairs = enumerate(pairwise(slots))
    return [KernelStep(negation(f"k{n}"), pair, HERE) for n, pair in pairs]


def launches(steps: list[KernelStep], **options: Any) -> tuple[Joining, list[Any]]:
    chip = Joining()
    run = chip.compile(program(steps, **options))
    return chip, [chip.take(z, V).tolist() for z in run([chip.put(ARRAYS[0])])]


def test_short_functions_are_one_launch() -> None:
    chip, (z,) = launches(chain(X, T, Z), arena_bytes=128)
    assert chip.launched == ["j0_k0_and_1_more"]
    assert chip.built == ["j0_k0_and_1_more"]
    assert z == ARRAYS[0].tolist()


def test_a_function_that_takes_longer_than_a_launch_is_launched_alone() -> None:
    chip = Joining()
    chip.target = Target(launch_instructions=20)  # 3 instructions for each of 4 elements, 32 bytes
    chip.compile(program(chain(X, T, Z), arena_bytes=128))([chip.put(ARRAYS[0])])
    assert chip.launched == ["k0", "k1"]


def test_what_is_launched_together_takes_no_more_buffers_than_the_device() -> None:
    chip = Joining()
    chip.capabilities = replace(Joining.capabilities, limits=Limits(buffers=3))
    places = [slot("arena", V, offset=64 * n) for n in range(4)]
    run = chip.compile(program(chain(X, *places, Z), arena_bytes=256))
    assert chip.take(run([chip.put(ARRAYS[0])])[0], V).tolist() == (-ARRAYS[0]).tolist()
    assert chip.launched == ["j0_k0_and_1_more", "j1_k2_and_1_more", "k4"]


def test_functions_that_are_long_together_are_launched_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One source of all factors of matrices took PoCL twelve times as long as one for each."""
    monkeypatch.setattr(launches_module, "_MOST_STATEMENTS", 7)  # each has 3
    chip, (z,) = launches(chain(X, T, Z, T, Z), arena_bytes=128)
    assert chip.launched == ["j0_k0_and_1_more", "j1_k2_and_1_more"]
    assert z == ARRAYS[0].tolist()


@pytest.mark.parametrize(
    ("offset", "launched"),
    [(64, ["j0_k0_and_3_more"]), (72, ["j0_k0_and_1_more", "j1_k2_and_1_more"])],
)
def test_memory_in_common_is_one_parameter_or_ends_a_launch(
    offset: int, launched: list[str]
) -> None:
    chip, (z,) = launches(chain(X, T, Z, slot("arena", V, offset=offset), Z), arena_bytes=128)
    assert chip.launched == launched
    assert z == ARRAYS[0].tolist()


def test_an_output_that_is_an_input_is_one_parameter() -> None:
    donated = {"donated": frozenset({0}), "aliases": ((0, 0),)}
    chip, (z,) = launches(chain(X, Z, T, Z), arena_bytes=128, **donated)
    assert z == (-ARRAYS[0]).tolist()
    assert chip.launched == ["j0_k0_and_2_more"]
    assert "(b0: inout f32[4], b1: out f32[4])" in chip.sources[-1]


def test_an_error_tells_how_many_were_launched_together() -> None:
    class Failing(Joining):
        def launch(self, loaded: Any, func: Func, views: list[BufferView]) -> None:
            raise RuntimeError("bad grid")

    chip = Failing()
    run = chip.compile(program(chain(X, T, Z), arena_bytes=128))
    with pytest.raises(DeviceError) as caught:
        run([chip.put(ARRAYS[0])])
    assert str(caught.value) == (
        "k0: RuntimeError: bad grid\n"
        "  at model.py:12 (forward)\n"
        "  in instruction: kernel k0(f32[4], f32[4]) and 1 more in one launch"
    )


def test_the_source_of_a_program_is_that_of_what_is_launched() -> None:
    _, lowered = on(Joining(), lambda x: bu.cumsum(bu.sort(x)) + 1, np.zeros(8, np.float32))
    (text,) = lowered.source.split("\n\n")
    assert re.match(r"func j0_\w+_and_\d_more\(b0: in f32\[8\]", text)
    _, apart = on(Steps(), lambda x: bu.cumsum(bu.sort(x)) + 1, np.zeros(8, np.float32))
    assert "_more(" not in apart.source


def test_the_timeline_adds_up_what_is_launched_together(tmp_path: Path) -> None:
    timeline.start(tmp_path / "t.json")
    try:
        launches(chain(X, T, Z), arena_bytes=128)
    finally:
        timeline.stop()
    text = (tmp_path / "t.json").read_text("utf-8")
    assert '"name": "k0 and 1 more"' in text
    assert '"bytes": 64' in text
