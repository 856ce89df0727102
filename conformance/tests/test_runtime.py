"""Checks of the runtime pass on right devices, and each finds the fault it is for."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runtime_faults as f
import toys
from planted import faulty

import bringup as bu
import bringup.runtime.compiler as compiler
from bringup.api import jit
from bringup.backend import Backend
from bringup.backend.device import Lowered
from bringup.errors import DeviceError, OpTypeError
from bringup.program.program import Program
from bringup.runtime import async_errors, transfer
from bringup.runtime.compiled import Compiled
from bringup_conformance.cases import Check, NotOffered, Problem, Unsupported
from bringup_conformance.execution.plan import Plan, budget_of
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.rules.contract import CONTRACT
from bringup_conformance.runtime import (
    CHECKS,
    caching,
    closed_device,
    machine,
    proxy_devices,
    units,
)
from bringup_selftest.control import target_of
from bringup_selftest.corpus import Inject, faults, with_method, with_ops
from bringup_selftest.device import Reference

#: Rules that cases of other levels show.
ELSEWHERE = {"limits.past-31-bits"}
#: What the reference offers nothing for: it has no name by which another process could open it, the
#: host does not see its memory, and it borrows none of the host's.
ABSENT = {
    "cache.disk-same",
    "cache.processes-concurrent",
    "memory.aligned",
    "memory.borrowed",
    "memory.host-view",
}


def check(target: DeviceTarget, name: str, seed: int = 0) -> Check | Unsupported:
    plan = Plan(target.capabilities, Support(target.missing), seed, budget_of(target.capabilities))
    area, _, slug = name.partition(".")
    (unit,) = (u for u in units(plan) if (u.op, u.number) == (area, slug))
    (item,) = unit.make()
    assert isinstance(item, Check | Unsupported)
    return item


def run(backend: Backend, name: str) -> Problem | None:
    target = target_of(backend)
    item = check(target, name)
    assert isinstance(item, Check), item
    return item.run(target)


def reference(depth: int = 3, *, late: bool = False) -> Reference:
    return Reference(depth=depth, asynchronous=late, simulated=True)


def test_every_rule_of_the_contract_has_a_check_and_every_check_a_rule() -> None:
    rules = {rule.id for rule in CONTRACT} - ELSEWHERE
    assert {rule for contract in CHECKS for rule in contract.rules} == rules
    names = [contract.rules[0] for contract in CHECKS]
    assert len(names) == len(set(names))
    needs = {rule.id: rule.needs for rule in CONTRACT}
    assert all(contract.needs == needs[contract.rules[0]] for contract in CHECKS)


def test_a_right_device_keeps_every_promise() -> None:
    target = target_of(reference(1, late=True))
    absent = set()
    for contract in CHECKS:
        name = contract.rules[0]
        item = check(target, name)
        assert isinstance(item, Check)
        try:
            problem = item.run(target)
        except NotOffered:
            absent.add(name)
        else:
            assert problem is None, f"{name}: {problem.what}"
    assert absent == ABSENT


class FarMemory:
    """An exchange of memory that the host does not reach: the suite drops what it is given."""

    device = (2, 0)

    def to_dlpack(self, *_args: Any, stream: Any, **_asked: Any) -> Any:
        if stream == 0:
            raise BufferError("stream 0 is nobody's")
        return object()

    def from_dlpack(self, x: Any) -> Any:
        raise AssertionError("host memory is not taken so")


def test_a_device_whose_memory_the_host_does_not_reach_keeps_the_promises_of_transfers() -> None:
    plant = with_method("exchange", lambda device, inner: FarMemory())
    target = target_of(plant(reference()))
    x = bu.asarray(np.arange(3), device=target.device)
    assert x.__dlpack_device__() == FarMemory.device
    for contract in CHECKS:
        if contract.area in ("transfer", "donation"):
            item = check(target, contract.rules[0])
            assert isinstance(item, Check)
            problem = item.run(target)
            assert problem is None, f"{contract.rules[0]}: {problem.what}"


def after(first: Inject, second: Inject) -> Inject:
    return lambda backend: second(first(backend))


def seen(view: Any) -> Inject:
    return with_method("host_view", view)


FAULTS: dict[str, Inject] = {
    "memory.input-unchanged": f.calls(f.writes_an_input),
    "memory.outside-untouched": f.calls(f.writes_behind),
    "memory.contents-kept": f.calls(f.writes_far_behind),
    "memory.disjoint": with_method("alloc", f.overlapping),
    "memory.zero-bytes": with_method("alloc", f.empty_over_others),
    "memory.odd-sizes": with_method("upload", f.three_quarters),
    "memory.aligned": seen(f.unaligned_view),
    "memory.borrowed": with_method("borrow", f.borrows_words),
    "memory.host-view": seen(f.snapshot_view),
    "aliasing.outputs-own": f.calls(f.gives_old_memory),
    "aliasing.outputs-disjoint": f.calls(f.shares_results),
    "aliasing.input-returned": f.calls(f.gives_inputs),
    "aliasing.operand-twice": f.calls(f.wrong_for_twins),
    "transfer.source-kept": with_method("upload", f.clears_the_source),
    "transfer.target-own": seen(f.fragile_view),
    "transfer.prefix": with_method("upload", f.clears_the_rest),
    "threads.calls-concurrent": f.calls(f.races),
    "threads.compile-concurrent": with_method("compile", f.compiles_in_turn),
    "threads.memory-concurrent": with_method("alloc", f.hands_out_twice),
    "lifetime.calls-balanced": f.calls(f.keeps_an_object),
    "lifetime.compiles-balanced": with_method("compile", f.keeps_programs),
    "lifetime.freed-once": with_method("free", f.frees_once_more),
    "lifetime.reusable": with_method("free", f.never_frees),
    "lifetime.freed-unused": after(with_method("free", f.uses_freed), f.calls(f.scratch_in_freed)),
    "lifetime.result-outlives": with_method("compile", f.results_end_with_it),
    "lifetime.programs-many": with_method("compile", f.few_programs),
    "errors.family": with_method("alloc", f.foreign_error),
    "limits.buffers": f.calls(f.thirty_two),
    "limits.empty": f.calls(f.no_empty),
    "limits.rank": f.calls(f.eight_axes),
    "limits.scalars": f.calls(f.no_rank),
    "limits.long-rows": f.calls(f.short_rows),
    "limits.many-instructions": with_method("compile", f.small_programs),
    "repeat.run-equal": f.calls(f.drifts),
    "repeat.no-state": f.calls(f.gives_old_memory),
    "repeat.float-state": f.calls(f.stays_rough),
    "repeat.compile-equal": with_method("compile", f.drifts_by_compilation),
    "stream.interleaved": f.calls(f.shared_arena),
    "declaration.lists-itself": f.other_product,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_finds_its_fault(name: str) -> None:
    assert found(FAULTS[name](reference()), name)


def found(backend: Backend, name: str) -> bool:
    target = target_of(backend)
    item = check(target, name)
    assert isinstance(item, Check), item
    return fails(item, target)


def fails(item: Check, target: DeviceTarget) -> bool:
    """What a device raises is a result as well, but that it offers nothing."""
    try:
        return item.run(target) is not None
    except NotOffered:
        return False
    except Exception:  # noqa: BLE001  (as above)
        return True


LATE: dict[str, Inject] = {
    "stream.read-after-write": with_method("submit", f.out_of_order),
    "stream.write-after-read": with_method("upload", f.at_once),
}


@pytest.mark.parametrize("name", LATE)
def test_a_check_finds_its_fault_in_a_device_that_works_late(name: str) -> None:
    assert found(LATE[name](reference(late=True)), name)


def test_a_wait_that_does_not_wait_is_found_where_the_host_sees_memory() -> None:
    plants = with_method("synchronize", f.nothing), with_method("host_view", f.raw_view)
    backend = plants[0](plants[1](reference(late=True)))
    problem = run(backend, "stream.synchronize-completes")
    assert problem is not None
    assert "a result after a wait" in problem.what


OPS: dict[str, Inject] = {
    "aliasing.in-place-safe": with_ops({"transpose": f.mirrored}),
    "errors.no-trap": with_ops({"div": f.zero_divisor}),
    "random.same-key": f.WORDS,
    "random.keys-apart": f.WORDS,
    "random.normal-finite": f.WORDS,
    "random.uniform-range": with_ops({"threefry2x32": f.coarse}),
    "declaration.claims-run": with_ops({"erf": f.gives_up}),
    "placement.traced-equal": with_ops({"add": f.wrong_on_a_timeline}),
}


@pytest.mark.parametrize("name", OPS)
def test_a_check_finds_a_fault_of_an_op(name: str) -> None:
    assert found(OPS[name](reference(1)), name)


#: Checks by the fault of the corpus that each is for.
CORPUS = {
    "memory.contents-irrelevant": "BF07",
    "memory.scratch-sufficient": "BF06",
    "transfer.round-trip": "TS08c",
    "transfer.source-reusable": "TS03",
    "transfer.zero-bytes": "TS12",
    "transfer.copy-exact": "TS08b",
    "transfer.between-devices": "TS20a",
    "stream.download-ordered": "TS01",
    "stream.free-in-flight": "TS07",
    "donation.values-same": "DN01",
    "donation.others-untouched": "DN05",
    "donation.still-read": "DN02",
    "donation.returned-once": "DN06a",
    "cache.hit-same": "ER12",
    "cache.key-shape": "CK01",
    "cache.key-dtype": "CK02a",
    "cache.key-constant": "CK04",
    "cache.key-attribute": "CK05",
    "cache.key-operands": "CK10",
    "cache.key-structure": "CK07",
    "cache.key-donation": "CK03a",
    "cache.key-device": "CK06",
    "cache.key-lifetime": "CK09",
    "threads.any-thread": "ER12b",
    "lifetime.errors-balanced": "ER08c",
    "errors.out-of-memory": "ER06c",
    "lifetime.after-close": "ER15b",
    "declaration.targets-lowered": "ER16b",
}


@pytest.mark.parametrize("name", CORPUS)
def test_a_check_finds_its_fault_of_the_corpus(name: str) -> None:
    target = faulty(CORPUS[name])
    item = check(target, name)
    assert isinstance(item, Check)
    assert fails(item, target)


def test_every_check_finds_a_fault() -> None:
    planted = {*FAULTS, *LATE, *OPS, *CORPUS, *TOYS, *SDK, EXPLORING, "declaration.lowered-equal"}
    assert {contract.rules[0] for contract in CHECKS} - planted == set()


#: What explores random orders of steps; the next test is that it finds its fault.
EXPLORING = "stream.delays-harmless"


def test_a_shorter_order_of_steps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seconds of the processor: on a busy machine those of the clock are too few to get far.
    clock = SimpleNamespace(monotonic=time.process_time, sleep=time.sleep)
    monkeypatch.setattr(machine, "time", clock)
    told = run(with_method("upload", f.at_once)(reference(late=True)), EXPLORING)
    assert told is not None
    assert told.what.count(";") < 12, told.what
    assert "elements differ" in told.what


def test_texts_that_differ_are_found() -> None:
    class Lowering(Reference):
        texts = count()

        def lower(self, program: Program, target: str = "") -> Lowered:
            return Lowered(str(program), str(next(self.texts)))

    problem = run(Lowering(3), "declaration.lowered-equal")
    assert problem is not None
    assert problem.what == "chain: the texts of one program differ"


def test_a_target_of_another_name_is_refused() -> None:
    target = faulty("ER16a")
    item = check(target, "declaration.targets-lowered")
    assert isinstance(item, Check)
    problem = item.run(target)
    assert problem is not None
    assert problem.what == "the target 'no such target' is taken for another one"


def test_another_declaration_before_opening_is_found() -> None:
    class Other(Reference):
        def capabilities(self, target: str = "") -> Any:
            return reference(1).capabilities()

    backend = reference()
    device = backend.open(0)
    backend.__class__ = Other
    item = check(DeviceTarget(_opened(backend, device)), "declaration.without-hardware")
    assert isinstance(item, Check)
    assert item.run(DeviceTarget(_opened(backend, device))) is not None


def _opened(backend: Any, device: Any) -> Any:
    from bringup.runtime.devices import OpenDevice

    return OpenDevice(backend.name, 0, backend, device, backend.devices()[0])


#: Devices that other processes open by name, by what spoils their ops in a folder of caches.
TOYS = {
    "cache.disk-same": """
import pathlib
kept = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "nowhere"), "kept")
if kept.parent.is_dir() and operands and operands[0].size:
    if kept.exists() and kept.read_text() != "right":
        operands[0].reshape(-1)[0] += 1
    else:
        kept.write_text("right")
""",
    "cache.processes-concurrent": """
import pathlib
lock = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "nowhere"), "lock")
if lock.parent.is_dir():
    if not lock.exists():
        lock.write_text(str(os.getpid()))
    elif lock.read_text() != str(os.getpid()):
        raise RuntimeError("the cache is locked")
""",
    "lifetime.after-close": """
Toy.close = lambda self: setattr(misbehave, "closed", True)
if hasattr(misbehave, "closed") and operands:
    operands[0][...] = 0
""",
}


@pytest.mark.parametrize("name", TOYS)
def test_a_check_finds_a_fault_of_what_processes_share(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "wrong"))
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")
    toys.install(tmp_path / "wrong", monkeypatch, TOYS[name])
    target = DeviceTarget.named("toy")
    item = check(target, name)
    assert isinstance(item, Check)
    problem = item.run(target)
    assert problem is not None
    assert "process" in problem.what


def test_a_device_that_opens_once_is_not_closed_to_look() -> None:
    class Once(Reference):
        opened = count()

        def open(self, index: int) -> Any:
            if next(self.opened):
                raise DeviceError("it is in use")
            return super().open(index)

    with pytest.raises(NotOffered, match="it is not opened a second time: it is in use"):
        run(Once(3), "lifetime.after-close")


def test_a_process_that_ends_tells_what_it_meets(capsys: pytest.CaptureFixture[str]) -> None:
    def use() -> None:
        raise ValueError("no memory is mapped")

    closed_device._end([SimpleNamespace(use=use)])  # type: ignore[list-item]
    assert json.loads(capsys.readouterr().out) == "ValueError: no memory is mapped"


#: What no device can break.
SDK = {
    "donation.deleted", "donation.view-kept", "donation.passed-twice", "transfer.strided-source",
    "transfer.reversed-source", "transfer.broadcast-source", "transfer.offset-source",
    "errors.late-error-told", "errors.late-error-once", "errors.unsupported-refused",
    "errors.wrong-operands", "errors.usable-after", "placement.device-asked", "placement.complete",
    "stream.synchronize-completes", "declaration.without-hardware", "cache.compiled-once",
}  # fmt: skip


class TestTheSdkItself:
    """What no device can break is broken in the SDK."""

    def test_donated_arrays_that_live_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def donate(given: Any, arguments: Any, types: Any, buffers: Any, device: Any) -> None:
            for i in given:
                buffer = jit._buffer(arguments[i], types[i], device)
                buffers[i] = transfer.duplicate(device.device, buffer, types[i])

        monkeypatch.setattr(jit, "_donate", donate)
        problem = run(reference(), "donation.deleted")
        assert problem is not None
        assert "deleted" in problem.what

    def test_views_whose_memory_is_given_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jit, "_is_read", lambda _x: False)
        assert found(reference(), "donation.view-kept")

    def test_programs_that_are_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler._cache, "limit", 0)
        problem = run(reference(), "cache.compiled-once")
        assert problem is not None
        assert problem.what == "chain: an equal function had the device compile 1 more"

    def test_a_duplicate_that_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer, "duplicate", lambda _device, buffer, _type: buffer)
        assert found(reference(), "donation.passed-twice")

    @pytest.mark.parametrize("kind", ["strided", "reversed", "broadcast", "offset"])
    def test_layouts_taken_for_dense(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        right = transfer.upload

        def upload(device: Any, data: Any) -> Any:
            base = data.base if isinstance(data.base, np.ndarray) else data
            flat = np.resize(base.reshape(-1).view(np.uint8), data.nbytes)
            return right(device, flat.view(data.dtype).reshape(data.shape))

        monkeypatch.setattr(transfer, "upload", upload)
        assert run(reference(), f"transfer.{kind}-source") is not None

    def test_errors_that_nobody_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(async_errors.Run, "check", lambda _run: None)
        assert run(reference(late=True), "errors.late-error-told") is not None

    def test_errors_that_everybody_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(ledger: Any, _runs: list[async_errors.Run], error: DeviceError) -> bool:
            for each in ledger.pending:
                each.error = error
            return True

        monkeypatch.setattr(async_errors._Ledger, "fail", fail)
        problem = run(reference(late=True), "errors.late-error-once")
        assert problem is not None
        assert "is hit by an error of other work: failed on demand" in problem.what

    def test_errors_that_whoever_waits_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = async_errors._Ledger.fail

        def fail(ledger: Any, runs: list[async_errors.Run], error: DeviceError) -> bool:
            right(ledger, runs, error)
            return False

        monkeypatch.setattr(async_errors._Ledger, "fail", fail)
        problem = run(reference(late=True), "errors.late-error-once")
        assert problem is not None
        assert problem.what.startswith("work before failed work is hit by")

    def test_a_device_that_forgets_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wait(device: proxy_devices.FailingDevice) -> None:
            if device.pending:
                raise device.pending[0]

        monkeypatch.setattr(proxy_devices.FailingDevice, "_wait", wait)
        problem = run(reference(late=True), "errors.late-error-once")
        assert problem is not None
        assert problem.what.startswith("work before failed work is hit by")

    def test_a_device_whose_errors_name_no_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proxy_devices, "_step_of", lambda _program: None)
        problem = run(reference(late=True), "errors.late-error-once")
        assert problem is not None
        assert problem.what.startswith("work before failed work is hit by")

    def test_programs_that_are_not_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler, "check_placement", lambda *_args: None)
        monkeypatch.setattr(compiler, "passes_for", lambda *_args, **_kwargs: ())
        assert found(reference(), "errors.unsupported-refused")

    def test_errors_without_a_fix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = OpTypeError.__init__

        def without(self: OpTypeError, what: str, **facts: Any) -> None:
            right(self, what, **{**facts, "fix": None})

        monkeypatch.setattr(OpTypeError, "__init__", without)
        problem = run(reference(), "errors.wrong-operands")
        assert problem is not None
        assert "names no fix" in problem.what

    def test_an_error_that_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right, kept = jit.Jitted._trace, list[Exception]()

        def trace(self: Any, *rest: Any) -> Any:
            if kept:
                raise kept[0]
            try:
                return right(self, *rest)
            except Exception as error:
                kept.append(error)
                raise

        monkeypatch.setattr(jit.Jitted, "_trace", trace)
        assert found(reference(), "errors.usable-after")

    def test_arrays_made_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other, right = target_of(reference()).device, bu.zeros
        monkeypatch.setattr(bu, "zeros", lambda n: right(n, device=other))
        problem = run(reference(), "placement.device-asked")
        assert problem is not None
        assert problem.what.startswith("zeros is on")

    def test_instructions_that_nobody_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = Compiled.placement
        monkeypatch.setattr(Compiled, "placement", lambda made: right(made)[:-1])
        problem = run(reference(), "placement.complete")
        assert problem is not None
        assert "rows for" in problem.what


def test_targets_are_asked_about_where_no_product_can_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device may have none that is within its declaration."""
    monkeypatch.setattr("bringup_conformance.runtime.declaration._products", lambda *_: iter(()))
    monkeypatch.setattr("bringup_conformance.runtime.declaration._far", lambda *_: iter(()))
    (any_name,) = (fault for fault in faults() if fault.id == "ER16a")
    assert run(reference(), "declaration.targets-lowered") is None
    assert found(any_name.inject(reference()), "declaration.targets-lowered")


def test_damage_of_folders_in_folders(tmp_path: Path) -> None:
    """A driver's cache may have some: what was in a folder that is a file now is gone with it."""
    for inner in ("a", "b", "b/c", "b/c/d", "e"):
        (tmp_path / inner).mkdir()
        (tmp_path / inner / "object").write_bytes(bytes(range(9)))
    caching._damage(tmp_path)
    assert (tmp_path / "b").is_file()
    assert (tmp_path / "a" / "object").read_bytes() == bytes(range(4))
