"""A device one of whose methods fails: the run and the search name the method, and its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys
from planted import case, opened

from bringup.backend.vendor_errors import vendor_call
from bringup.errors import DeviceError
from bringup.program.program import Program
from bringup_conformance import run
from bringup_conformance.cases import Check, Problem
from bringup_conformance.diagnosis import reproduce
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.diagnosis.investigate import cause_of
from bringup_conformance.diagnosis.isolation import safe_target
from bringup_conformance.diagnosis.locate import locate
from bringup_conformance.execution.running import attempt, run_check
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reporting.roots import roots
from bringup_selftest.corpus import Inject, OpCall, with_device, with_method, with_ops
from bringup_selftest.device import Reference

#: An op step between two kernels.
PROGRAM = """graph g(%0: f32[5,16]) {
  %1: f32[5,16] = neg(%0)
  %2: f32[5,16] = cumulative(%1) {kind="add", dim=1}
  %3: f32[5,16] = abs(%2)
  return %3
}"""
CASE = case(PROGRAM, (Recipe("small"),), (Recipe("small", 1),))


def failing(name: str, fails: Callable[[int], bool]) -> Inject:
    """A device whose calls of a method fail, by their numbers."""
    numbers = count(1)

    def call(_device: Any, inner: Callable[..., Any], *args: Any) -> Any:
        if fails(next(numbers)):
            raise RuntimeError("CL_OUT_OF_RESOURCES")
        return inner(*args)

    return with_method(name, call)


def cause_and_problem(
    inject: Inject, depth: int, asynchronous: bool = False
) -> tuple[Cause, Problem]:
    target = opened(inject(Reference(depth, asynchronous)))
    problem = attempt(target, CASE)[1]
    assert problem is not None
    return cause_of(target, CASE, problem), problem


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("name", ["alloc", "upload", "download"])
def test_a_method_that_moves_bytes_is_named(name: str, first: int, depth: int) -> None:
    cause, problem = cause_and_problem(failing(name, lambda n: n >= first), depth)
    assert cause.title == f"the device's {name}"
    for what in (cause.what, problem.what):
        assert f"Reference.{name}: RuntimeError: CL_OUT_OF_RESOURCES\n" in what
        assert what.endswith(" (call)")  # the line of the device
        assert "test_failing_calls.py:" in what


@pytest.mark.parametrize("name", ["alloc", "upload", "download"])
def test_a_method_that_fails_once_is_named_though_nothing_fails_again(name: str) -> None:
    cause, _ = cause_and_problem(failing(name, lambda n: n == 2), 2)
    assert cause.title == f"the device's {name}"


@pytest.mark.parametrize("name", ["upload", "download"])
def test_the_search_finds_a_method_that_fails_without_any_step(name: str) -> None:
    cause = locate(opened(failing(name, lambda _: True)(Reference(2, True))), CASE)
    assert cause.title == f"the device's {name}"
    assert "without any step" in cause.what


def test_the_search_finds_bytes_that_change_on_their_way() -> None:
    def last_byte_lost(_device: Any, inner: Callable[..., Any], handle: Any, data: Any) -> None:
        inner(handle, np.append(np.frombuffer(data, np.uint8)[:-1], np.uint8(7)).data)

    cause, problem = cause_and_problem(with_method("upload", last_byte_lost), 2)
    assert problem.what == "input 0 changed: after the call the device has other bits of it"
    assert cause.title == "the device's upload or download"
    assert "input 0 of type f32[5,16] comes back with other bits" in cause.what


def test_the_search_finds_constants_that_change_on_their_way() -> None:
    def nothing(_device: Any, _inner: Callable[..., Any], _handle: Any, _data: Any) -> None: ...

    constant = """graph g() {
  %0: f32[2] = constant() {value=f32[2](1.0, 2.0)}
  %1: f32[2] = neg(%0)
  return %1, %0
}"""
    cause = locate(opened(with_method("upload", nothing)(Reference(2))), case(constant))
    assert cause.title == "the device's upload or download"
    assert "a constant of type f32[2] comes back with other bits" in cause.what


def test_the_search_looks_at_each_of_several_constants() -> None:
    def but_ones(_device: Any, inner: Callable[..., Any], handle: Any, data: Any) -> None:
        if np.frombuffer(data, np.float32)[0] != 1:
            inner(handle, data)

    constants = """graph g() {
  %0: f32[2] = constant() {value=f32[2](1.0, 2.0)}
  %1: f32[2] = constant() {value=f32[2](3.0, 4.0)}
  return %0, %1
}"""
    cause = locate(opened(with_method("upload", but_ones)(Reference(2))), case(constants))
    assert cause.title == "the device's upload or download"


def test_a_download_that_does_not_wait_is_told_from_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued: list[Callable[[], None]] = []

    def late(_device: Any, inner: Callable[..., None], *args: Any) -> None:
        queued[:] = [partial(inner, *args)]

    def sleep(_seconds: float) -> None:
        queued.pop()()

    monkeypatch.setattr("bringup_conformance.diagnosis.locate.time", SimpleNamespace(sleep=sleep))
    cause = locate(opened(with_method("launch", late)(Reference(2))), CASE)
    assert cause.title == "the device's download"
    assert cause.what == "it does not wait for k0_neg: a moment later it gives other bits"


def test_a_bool_that_is_neither_0_nor_1_is_shown_by_its_byte() -> None:
    def edit(call: OpCall) -> None:
        call.results[0].view(np.uint8)[...] *= 255

    text = """graph g(%0: f32[4]) {
  %1: bool[4] = compare(%0, %0) {direction="eq"}
  return %1
}"""
    cause = locate(opened(with_ops({"compare": edit})(Reference(1))), case(text))
    assert "output 0: a bool is neither 0 nor 1 in memory, but 0xff" in cause.what
    assert cause.trace == ()


@pytest.mark.parametrize(
    ("depth", "name", "title"),
    [
        (1, "compile", "compile of op neg"),
        (2, "lower_step", "lowering of kernel k0_neg"),
        (2, "render", "render of kernel k0_neg"),
        (2, "load", "load of kernel k0_neg"),
        (2, "launch", "launch of kernel k0_neg"),
        (3, "compile", "compile of kernel k0_neg"),
    ],
)
def test_what_runs_a_step_is_named_with_the_step(depth: int, name: str, title: str) -> None:
    cause, problem = cause_and_problem(failing(name, lambda _: True), depth)
    assert cause.title == title
    assert "CL_OUT_OF_RESOURCES" in cause.what
    assert cause.what.endswith(" (call)")
    assert problem.what.endswith(" (call)")


def test_what_an_executable_gives_is_no_fault_of_a_kernel() -> None:
    def nothing(_device: Any, inner: Callable[..., Any], program: Program) -> Callable[..., None]:
        inner(program)
        return lambda _inputs: None

    cause, problem = cause_and_problem(with_method("compile", nothing), 3)
    assert "an executable gave NoneType where a list of handles is due" in problem.what
    assert cause.title == "compile(…)() of kernel k0_neg"


def test_the_line_is_the_device_s_where_a_decorator_stands_round_it() -> None:
    @contextmanager
    def reported() -> Iterator[None]:
        yield

    @reported()
    def launch(_device: Any, _inner: Callable[..., Any], *_args: Any) -> None:
        raise ValueError("no queue")

    _, problem = cause_and_problem(with_method("launch", launch), 2)
    assert re.search(r"\n  in \S*test_failing_calls\.py:\d+ \(launch\)$", problem.what)


def test_a_function_of_an_op_is_named_with_the_op() -> None:
    def edit(device: Any) -> Any:
        def cumulative(*_views: Any, **_attrs: Any) -> None:
            raise KeyError("add")

        device.ops = {**device.ops, "cumulative": cumulative}
        return device

    cause, _ = cause_and_problem(with_device(edit), 2)
    assert cause.title == "function of op cumulative"


def test_a_wait_that_fails_for_a_step_leaves_the_step_guilty() -> None:
    """A device that works late says which step failed; its download only waited."""

    def edit(device: Any) -> Any:
        launch, submit = device.launch, device.submit

        def late(loaded: Any, kernel: Any, views: Any) -> None:
            from bringup.backend import current_step

            step = current_step()

            def fail() -> None:
                error = DeviceError("the queue stopped")
                error.step = step
                raise error

            launch(loaded, kernel, views)
            submit(fail)

        device.launch = late
        return device

    cause, problem = cause_and_problem(with_device(edit), 2, asynchronous=True)
    assert "the queue stopped" in problem.what
    assert problem.call == ""
    assert (cause.kind, cause.name) == ("kernel", "k0_neg")


def test_all_failures_of_a_method_have_one_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "    def upload(self, handle, data): raise OSError('clEnqueueWriteBuffer -5')"
    toys.install(
        tmp_path / "toy", monkeypatch, after=f"class Failing(Toy):\n{fails}\nToy = Failing\n"
    )
    report = run("toy", level="ops", only="floor,exp", jobs=1, report=tmp_path / "report")
    assert len(report.failures) > 1
    assert [str(root) for root in roots([f.document for f in report.failures])] == [
        "the device's upload"
    ]
    file = report.failures[0].file
    assert file is not None
    failure, cause = reproduce.explain(file, "toy")
    assert cause is not None
    assert cause.title == "the device's upload"
    assert failure.document["guilty"] == []


def test_steps_are_told_of_a_device_that_takes_no_attributes() -> None:
    """Nothing is put in the place of a device's methods to learn what it compiles."""

    def edit(device: Any) -> Any:
        kind = type(device)

        class Fixed(kind):  # type: ignore[misc, valid-type]
            __slots__ = ()
            compile = property(lambda self: lambda program: kind.compile(self, program))

            def __setattr__(self, name: str, value: Any) -> None:
                raise AttributeError(f"{name} is read-only")

        device.__class__ = Fixed
        return device

    def fails(target: Target) -> Problem | None:
        attempt(target, CASE)
        return Problem("broken", "something is wrong")

    target = opened(with_device(edit)(Reference(2)))
    problem = run_check(target, Check("runtime/x", "runtime", "x", (), fails)).problem
    assert problem is not None
    assert problem.what.splitlines()[1:] == [
        "  steps of the programs up to there: k0_neg, cumulative, k2_abs"
    ]


def test_what_a_call_inside_a_call_raises_is_the_inner_ones() -> None:
    error = DeviceError("no")
    with pytest.raises(DeviceError), vendor_call(object(), "compile"), vendor_call(None, "upload"):
        raise error
    assert error.call == "upload"


@pytest.mark.parametrize(("name", "operand"), [("upload", "data"), ("download", "out")])
@pytest.mark.parametrize("end", ["time.sleep(60)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_method_in_which_a_process_hangs_or_dies_is_named(
    name: str, operand: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"    def {name}(self, handle, {operand}): {end}"
    toys.install(tmp_path, monkeypatch, after=f"class Ending(Toy):\n{body}\nToy = Ending\n")
    small = case("graph g(%0: f32[4]) {\n  %1: f32[4] = exp(%0)\n  return %1\n}")
    problem = Problem("hang", "it was silent", phase=f"{name}ing")
    with safe_target(DeviceTarget.named("toy"), problem, 2.0) as safe:
        cause = cause_of(safe, small, problem)
    assert cause.title == f"the device's {name}"
