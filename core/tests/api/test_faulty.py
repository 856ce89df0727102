"""Backends that break the seam's promises: one error of ours each, and never a wrong answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.backend import Capabilities, DeviceInfo
from bringup.errors import (
    BackendError,
    BringupError,
    CompileError,
    DeviceError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice

from .conftest import ReferenceBackend, ReferenceDevice, SharedDevice, opened

X = np.arange(6.0)


def deferred() -> Any:
    return (bu.exp(bu.asarray(X)) + 1).tolist()


def jitted() -> Any:
    fn = bu.jit(lambda x: (x + 1, x * 2))
    fn(bu.asarray(X))  # a function that is called once needs no dispatcher
    return [r.tolist() for r in fn(bu.asarray(X))]


def donated() -> Any:
    return bu.jit(lambda x: x * 2, donate_argnums=0)(bu.asarray(X)).tolist()


WAYS = pytest.mark.parametrize("way", [deferred, jitted, donated])


def changed(change: Callable[[list[Any], list[Any]], Any]) -> ReferenceDevice:
    """A device whose executables give ``change(inputs, results)``."""

    class Changed(ReferenceDevice):
        def compile(self, program: Any) -> Any:
            run = super().compile(program)
            return lambda inputs: change(list(inputs), run(inputs))

        def free(self, handle: Any) -> None:
            if id(handle) in self.alive:  # results are given twice here
                super().free(handle)

    return Changed()


@WAYS
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _, results: results[:-1], "results where"),
        (lambda _, results: [*results, results[0]], "results where"),
        (lambda *_: None, "NoneType where a list of handles is due"),
        (lambda _, results: [None] * len(results), "None is no handle"),
    ],
)
def test_wrong_results_of_an_executable(way: Any, change: Any, said: str) -> None:
    with devices.use(opened(changed(change))), pytest.raises(DeviceError, match=said) as caught:
        way()
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_one_handle_for_two_results_or_for_an_input_and_a_result() -> None:
    twice = changed(lambda _, results: [results[0]] * len(results))
    with devices.use(opened(twice)), pytest.raises(DeviceError, match="one handle twice"):
        jitted()
    same = changed(lambda inputs, results: [inputs[0], *results[1:]])
    with devices.use(opened(same)), pytest.raises(DeviceError, match="handle of an input"):
        jitted()


def failing(method: str, error: BaseException) -> ReferenceDevice:
    def fail(*_: Any) -> Any:
        raise error

    device: ReferenceDevice = type("Failing", (ReferenceDevice,), {method: fail})()
    return device


@WAYS
@pytest.mark.parametrize("method", ["alloc", "upload", "download"])
def test_foreign_exceptions_of_memory_become_ours(way: Any, method: str) -> None:
    for error, ours in ((ValueError("boom"), DeviceError), (MemoryError("boom"), OutOfMemoryError)):
        with devices.use(opened(failing(method, error))), pytest.raises(ours, match="boom") as got:
            way()
        assert got.value.__cause__ is error
        assert f"Failing.{method}" in str(got.value)
        assert got.value.location is not None
        assert got.value.location.file == __file__


def test_foreign_exceptions_of_waits_become_ours() -> None:
    for error, ours in ((OSError("boom"), DeviceError), (TimeoutError("boom"), DeviceTimeoutError)):
        with devices.use(opened(failing("synchronize", error))):
            x = bu.asarray(X)
            with pytest.raises(ours, match=r"Failing\.synchronize: .*boom") as got:
                bu.block_until_ready(x)
        assert got.value.__cause__ is error
        assert got.value.call == "synchronize"
        assert got.value.location is not None
        assert got.value.location.file == __file__


@WAYS
def test_foreign_exceptions_of_the_compiler_become_ours(way: Any) -> None:
    device = failing("compile", ValueError("boom\nsecond line"))
    with (
        devices.use(opened(device)),
        pytest.raises(CompileError, match=r"Failing\.compile: .*boom"),
    ):
        way()

    class Nothing(ReferenceDevice):
        def compile(self, program: Any) -> Any:
            return None

    with devices.use(opened(Nothing())), pytest.raises(CompileError, match="gave NoneType"):
        way()


class Bell(Exception):
    pass


class Ringer:
    def __call__(self, *_: Any) -> None:
        raise Bell

    def ring(self, *_: Any) -> None:
        raise Bell


@pytest.mark.parametrize("method", ["alloc", "upload", "download", "compile"])
@pytest.mark.parametrize(
    "handler",
    [Ringer(), Ringer().ring, partial(Ringer.ring, None)],
    ids=["object", "method", "partial"],
)
def test_what_a_signal_handler_raises_inside_a_backend_stays_the_program_s(
    method: str, handler: Any
) -> None:
    def interrupted(*_: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)

    device: ReferenceDevice = type("Interrupted", (ReferenceDevice,), {method: interrupted})()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with devices.use(opened(device)), pytest.raises(Bell):
            deferred()
        other = failing(method, ValueError("boom"))  # a handler in place says nothing about others
        with devices.use(opened(other)), pytest.raises(BringupError, match="boom"):
            deferred()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_alloc_that_gives_nothing() -> None:
    class Nothing(ReferenceDevice):
        def alloc(self, nbytes: int) -> Any:
            return None

    with devices.use(opened(Nothing())), pytest.raises(DeviceError, match="alloc gave no handle"):
        bu.asarray(X)


@pytest.mark.parametrize("seen", [np.zeros((2, 2), np.int8), np.zeros(6, np.int64), "nonsense"])
def test_a_view_of_another_type_is_not_shown(seen: Any) -> None:
    class Viewed(SharedDevice):
        def host_view(self, handle: Any, type_: Any) -> Any:
            return seen

    said = r"host_view gave .* where f64\[6\] is due"
    with devices.use(opened(Viewed())), pytest.raises(DeviceError, match=said):
        bu.asarray(X).tolist()


def test_a_dispatcher_that_is_none() -> None:
    class Wrong(ReferenceDevice):
        def dispatcher(self, layout: Any, slow: Any) -> Any:
            return 3

    for device in (Wrong(), failing("dispatcher", ValueError("boom"))):
        with devices.use(opened(device)), pytest.raises(DeviceError, match="dispatcher"):
            jitted()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"alignment": 0}, "alignment 0 is no power of two"),
        ({"alignment": 24}, "alignment 24 is no power of two"),
        ({"alignment": "64"}, "alignment '64' is no power of two"),
        ({"ops": 3}, "ops is a int"),
        ({"kernels": None}, "kernels is a NoneType"),
        ({"limits": None}, "limits is a NoneType"),
        ({"numerics": 1}, "numerics is a int"),
    ],
)
def test_capabilities_that_are_none(wrong: Any, said: str) -> None:
    with pytest.raises(BackendError, match=said):
        Capabilities(**wrong)


def backend(**methods: Any) -> OpenDevice:
    kind = type("Wrong", (ReferenceBackend,), methods)
    return OpenDevice("wrong", 0, kind(), ReferenceDevice(), DeviceInfo(0, "numpy"))


@pytest.mark.parametrize("given", [None, [3], ValueError("boom")])
def test_passes_of_a_backend_that_raise_or_are_none(given: Any) -> None:
    def passes(_: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    wrong = devices.use(backend(passes_before_fusion=passes))
    with wrong, pytest.raises(BringupError, match=r"Wrong\.passes_before_fusion"):
        deferred()


@pytest.mark.parametrize("made", ["text", None])
def test_a_lowering_that_is_none(made: Any) -> None:
    with devices.use(backend(lower=lambda *_: made)):
        compiled = bu.jit(lambda x: x * 4).lower(X)
        with pytest.raises(BackendError, match=r"Wrong\.lower gave"):
            _ = compiled.source
