"""The suite finds faults planted in a right device, makes them small, and finds no others."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from typer.testing import CliRunner

import bringup as bu
from bringup.backend import BufferView
from bringup.dtypes import f32
from bringup.errors import DeviceError, OutOfMemoryError
from bringup_conformance.cli import app, main
from bringup_conformance.execution import runner
from bringup_selftest import matrix, process_pool
from bringup_selftest.control import ControlConfig, control_of, target_of
from bringup_selftest.corpus import Fault, Faults, OpCall, OpEdit, faults
from bringup_selftest.device import Reference
from bringup_selftest.killing import Kill, Options, examine
from bringup_selftest.memory import Heap
from bringup_selftest.not_injected import NOT_INJECTED

#: The part of the list that is about single ops.
LISTED = (  # noqa: SIM905
    "IX02 IX03 IX04 IX07 IX08 IX09 IX12 IX14 MT01 MT02 MT03 MT05 MT06 DT01 DT02 DT03 DT10 DT11 "
    "SV03 SV04 SV12 IN03 IN05 IN09 RD01 RD03 RD07 RD09 RD10 RD11 RD12 RD14 RD15 RD17 BR01 BR03 "
    "BR04 BR05 BR06 BR07 BR08 BR09 BR11 GS05 GS06 GS07 GS09 GS10 SO01 SO02 SO04 SO05 CV01 CV02 "
    "CV04 CV05 CV06 CV07 CV09 DO01 DO03 DO05 DO06 DO07 FP01 FP02 FP03 FP04 FP05 FP06 FP08 FP09 "
    "CA01 CA02 CA04"
).split()
#: What finds the faults below, so that a control takes a second.
ONLY = "smoke,ops/mul/f32,ops/neg/f32,ops/sort/f32,ops/convert/f64,fusion/pair/f32"
HOW = Options(level="fusion", simulated=True, only=ONLY, shrink_seconds=2.0)


def of(*ids: str) -> list[Fault]:
    found = [fault for fault in faults() if fault.id in ids]
    assert len(found) == len(ids)
    return found


def op_fault(id: str, group: str, title: str, names: str, edit: OpEdit) -> Fault:
    made = Faults(group)
    made.op(id, title, names)(edit)
    return made[0]


def rows(*ids: str, how: Options = HOW) -> Sequence[Kill]:
    return list(process_pool.examined(of(*ids), how, 1))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_reference_runs_what_users_write(depth: int) -> None:
    device = target_of(Reference(depth)).device
    x = bu.array(np.arange(12, dtype=np.float32).reshape(3, 4), device=device)

    def softmax(a: bu.Array) -> bu.Array:
        e = bu.exp(a - bu.max(a, axis=1, keepdims=True))
        return e / bu.sum(e, axis=1, keepdims=True)

    made = np.asarray(bu.jit(softmax)(x))
    np.testing.assert_allclose(made.sum(axis=1), np.ones(3), rtol=1e-6)
    total = bu.while_loop(lambda n: n < 5, lambda n: n + 1, bu.array(np.int32(0), device=device))
    assert int(np.asarray(total)) == 5


def test_nothing_is_found_in_the_reference() -> None:
    control = control_of(ControlConfig(3, level="fusion", simulated=True, only=ONLY))
    assert control.failed == {}
    assert len(control.items) > 60


def test_faults_of_ops_are_found_and_made_small() -> None:
    found = rows("MT01", "SV04c", "SO05", "CA04")
    assert [row.id for row in found if not row.killed] == []
    assert {row.size for row in found} == {1}
    assert found[0].cases > found[0].met  # the others were not run: they cannot differ


def test_a_run_of_cases_that_meet_the_fault_says_so() -> None:
    (row,) = rows("SO05", how=Options("fusion", 0, True, True, 0, ONLY))
    assert row.cases == row.met


def test_a_fault_that_changes_nothing_survives() -> None:
    def nothing(_call: OpCall) -> None:
        return None

    *_, (row, settled) = examine(
        op_fault("XX01", "Nothing", "nothing is wrong", "mul", nothing), HOW
    )
    assert settled
    assert not row.killed
    found = matrix.Matrix(HOW, [row])
    assert found.survivors == [row]
    assert found.problems == ["Nothing: 0 of 1 killed, at least 95% should be"]


def test_what_hangs_and_what_ends_its_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_call: OpCall) -> None:
        while True:
            time.sleep(1)

    def crashes(_call: OpCall) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    wrong = (
        op_fault("XX02", "Ends", "it never ends", "mul", hangs),
        op_fault("XX03", "Ends", "it takes its process with it", "neg", crashes),
        *of("SO05"),
    )
    monkeypatch.setattr(process_pool, "faults", lambda: wrong)
    done = {
        row.id: row for row in process_pool.examined(wrong, replace(HOW, shrink_seconds=0), 2, 3)
    }
    assert [done[id].killed for id in ("XX02", "XX03", "SO05")] == [True] * 3
    assert done["XX02"].problem == "hang"
    assert done["XX03"].problem == "crash"
    assert "SIGSEGV" in done["XX03"].what
    assert done["XX02"].item and done["XX03"].item  # noqa: PT018
    assert done["SO05"].problem == "wrong"


def test_an_interrupt_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_chosen: object, _how: Options, _jobs: int) -> Iterator[Kill]:
        yield Kill("SO05", "Sorting", "op", "", killed=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix, "examined", stopped)
    found = matrix.run(of("SO05", "MT01"), HOW, 1, 1, [], lambda _found: None)
    assert [row.id for row in found.rows] == ["SO05"]
    assert found.problems == ["it was interrupted"]
    assert not found.to_json()["whole"]


def test_what_meets_a_fault_is_what_its_wrapper_changes() -> None:
    control = control_of(ControlConfig(1, level="fusion", simulated=True, only=ONLY))
    (fault,) = of("SO05")
    met = control.meets(fault.inject(Reference(1)))
    assert {control.items[n].op for n in met} >= {"sort"}
    assert all("sort" in control.met[n].ops for n in met)
    assert len(met) < len(control.items) / 2


def test_a_failure_of_a_planted_device_is_one_of_a_run(tmp_path: Path) -> None:
    (fault,) = of("SV04c")
    report = runner.run(
        target_of(fault.inject(Reference(1))), "ops", only="ops/neg/f32", report=tmp_path
    )
    assert not report.ok
    assert (tmp_path / "report.json").exists()


def test_work_of_another_thread_does_not_overtake_what_waits() -> None:
    device = target_of(Reference(1, asynchronous=True)).device.device
    done: list[str] = []
    other = Thread(target=lambda: device.submit(lambda: done.append("second")))

    def first() -> None:
        other.start()
        other.join(0.2)  # work that overtook this would be done by then
        done.append("first")

    device.submit(first)
    device.drain()
    other.join()
    device.drain()
    assert done == ["first", "second"]


def test_memory_past_a_block_is_its_neighbour() -> None:
    heap = Heap(1024)
    first, second = heap.alloc(8), heap.alloc(8)
    heap.bytes_of(first, 8)[...] = 7
    array, at = heap.elements(BufferView(second, 0, f32[2]))
    array[at + 2 : at + 18] = 0
    assert not heap.bytes_of(first, 8).any()
    heap.free(first)
    assert heap.alloc(8).start == first.start
    with pytest.raises(DeviceError, match="freed twice"):
        heap.free(first)
    with pytest.raises(OutOfMemoryError):
        heap.alloc(2048)


def test_small_blocks_that_stay_leave_room_for_large_ones() -> None:
    heap = Heap(1 << 20)
    small, large = [], []
    for _ in range(4):
        large.append(heap.alloc(1 << 17))
        small.append(heap.alloc(64))
    for block in large:
        heap.free(block)
    whole = heap.alloc((1 << 20) - 4 * 64)
    heap.free(whole)
    for block in small:
        heap.free(block)
    assert heap.alloc(1 << 20).start == 0


def test_ids_are_unique_and_every_fault_says_what_is_wrong() -> None:
    assert len(faults()) > 150
    assert all(f.title and f.group and f.kind for f in faults())
    assert {f.id for f in matrix.fast()} == set(matrix.FAST)
    assert [f.id for f in matrix.selected("MT01")] == ["MT01"]
    assert {f.group for f in matrix.selected("casts")} == {"Casts"}


def test_every_line_about_ops_is_planted_or_excused() -> None:
    planted = {fault.id for fault in faults()}
    assert {name for name in LISTED if name not in planted} <= set(NOT_INJECTED)


def test_the_command_writes_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["selftest", "--only", "SV04c", "--level", "smoke", "--small", "--report"]
    result = CliRunner().invoke(app, [*words, str(tmp_path), "-j", "1", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1)
    assert found["false_positives"] == 0
    assert found["rows"][0]["id"] == "SV04c"
    assert json.loads((tmp_path / "selftest.json").read_text()) == found
    assert "| SV04c | neg is 0 - x |" in (tmp_path / "selftest.md").read_text()
    monkeypatch.setattr(sys, "argv", ["conformance", "selftest", "--only", "no such fault"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
