"""Opened devices: one object each, a default that changes by block, errors that say what to do."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bringup.errors import BackendError, OutOfMemoryError
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice, epoch, get, parse, use

Install = Callable[..., Path]

PLUGIN = """
from bringup.backend import *

class Dummy(OpsDevice):
    ops = {}
    capabilities = Capabilities()
    def __init__(self, index): self.index = index
    def alloc(self, nbytes): return bytearray(nbytes)
    def free(self, handle): pass
    def upload(self, handle, data): pass
    def download(self, handle, out): pass
    def copy(self, target, source, nbytes): pass
    def synchronize(self): pass
    def close(self): print("closed", {name!r}, self.index, flush=True)

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    two = [DeviceInfo(0, "First"), DeviceInfo(1, "Second")]
    return SimpleBackend({name!r}, Dummy, Capabilities(), two)
"""


@pytest.fixture(autouse=True)
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "_open", {})
    monkeypatch.setattr(devices, "_default", None)
    yield
    gc.collect()


def test_there_is_one_object_per_device(install: Install) -> None:
    install("toy", PLUGIN)
    first, second = get("toy"), get("toy:1")
    assert first is get("toy:0") is get(first)
    assert second is get("toy:1") is not first
    assert (first.name, second.name, second.index) == ("toy", "toy:1", 1)
    assert repr(second) == "<device toy:1: Second>"
    assert first.backend is second.backend
    assert devices.opened() == (first, second)
    assert first.capabilities is first.device.capabilities


@pytest.mark.parametrize(
    ("spec", "meaning"), [("a", ("a", 0)), ("a:0", ("a", 0)), ("a-b:12", ("a-b", 12))]
)
def test_specs_that_name_a_device(spec: str, meaning: tuple[str, int]) -> None:
    assert parse(spec) == meaning


@pytest.mark.parametrize("spec", ["", ":1", "a:", "a:x", "a:-1", "a:1:2"])
def test_specs_that_name_none(spec: str) -> None:
    with pytest.raises(BackendError, match='write "name" or "name:index"'):
        get(spec)


def test_an_index_that_is_not_there(install: Install) -> None:
    install("toy", PLUGIN)
    with pytest.raises(BackendError) as caught:
        get("toy:2")
    assert str(caught.value) == (
        'backend \'toy\' has no device 2\n  fix: use one of "toy:0", "toy:1"'
    )


BACKEND = PLUGIN.split("@hookimpl\ndef bringup_backend", maxsplit=1)[0] + (
    "@hookimpl\ndef bringup_backend():\n    return SimpleBackend({name!r}, ARGS)\n"
)
FAULTS = [
    ("Dummy, Capabilities(), []", "has no hardware: it reports no devices", "NoHardware"),
    ("Dummy, Capabilities(), lambda: 1 / 0", "cannot list its devices: ZeroDivisionError", "Zero"),
    ("Dummy, Capabilities(), [4]", r"devices\(\) gave list \[4\] where a sequence", "NoneType"),
    ("lambda i: 1 / 0, Capabilities()", "toy:0 cannot be opened: ZeroDivisionError", "Zero"),
    ("lambda i: 3, Capabilities()", "toy:0 is no Device with capabilities: int", "NoneType"),
]


@pytest.mark.parametrize(("arguments", "message", "cause"), FAULTS)
def test_a_backend_that_fails_later_fails_alone(
    arguments: str, message: str, cause: str, install: Install
) -> None:
    install("toy", BACKEND.replace("ARGS", arguments))
    install("fine", PLUGIN)
    with pytest.raises(BackendError, match=message) as caught:
        get("toy")
    assert type(caught.value.__cause__).__name__.startswith(cause)
    assert get("fine").name == "fine"


def test_an_error_of_ours_passes_through(install: Install) -> None:
    source = "from bringup.errors import *\ndef full(index): raise OutOfMemoryError('full')\n"
    install("toy", source + BACKEND.replace("ARGS", "full, Capabilities()"))
    with pytest.raises(OutOfMemoryError, match="full"):
        get("toy")


def test_use_changes_the_default_inside_the_block_of_one_thread(install: Install) -> None:
    install("toy", PLUGIN)
    seen: list[OpenDevice] = []
    with use("toy") as outer:
        with use("toy:1") as inner:
            assert get() is inner
            with use(outer):
                assert get(None) is outer
            assert get() is inner
        assert get() is outer
        devices._default = get("toy:1")
        thread = threading.Thread(target=lambda: seen.append(get()))
        thread.start()
        thread.join()
        assert seen == [get("toy:1")]
    assert get() is get("toy:1")


def test_the_block_ends_by_an_exception_too(install: Install) -> None:
    install("toy", PLUGIN)
    devices._default = get("toy:1")
    with pytest.raises(KeyError), use("toy"):
        raise KeyError
    assert get() is get("toy:1")
    assert epoch.value > 0


def test_the_epoch_never_repeats_and_is_negative_while_defaults_may_differ(
    install: Install,
) -> None:
    install("toy", PLUGIN)
    seen = [epoch.value]
    with use("toy"):
        seen.append(epoch.value)
        with use("toy:1"):
            seen.append(epoch.value)
        seen.append(epoch.value)
    seen.append(epoch.value)
    assert [v > 0 for v in seen] == [True, False, False, False, True]
    assert len({abs(v) for v in seen}) == 5


def test_the_default_comes_with_core(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("other", PLUGIN)
    install("own-broken", "import nobody_has_it", distribution="core-dist")
    monkeypatch.setattr("bringup.backend.discovery.CORE_DISTRIBUTION", "core-dist")
    with pytest.raises(BackendError) as caught:
        get()
    text = str(caught.value)
    assert "no backend that comes with bringup itself is ready" in text
    assert "backend 'own-broken' of core-dist 1.0 is broken" in text
    assert "name a device of another backend:" in text
    assert "other" in str(caught.value.fix)
    assert "own-broken" not in str(caught.value.fix)
    monkeypatch.setattr("bringup.backend.discovery.CORE_DISTRIBUTION", "bringup-other")
    assert get() is get("other")


def test_devices_close_at_exit_after_what_is_on_them(install: Install) -> None:
    root = install("toy", PLUGIN)
    code = f"""
import os, sys, weakref
sys.path.insert(0, {str(root)!r})
from bringup.runtime.devices import get
device = get("toy:1")
weakref.finalize(device.device, print, "buffers gone", flush=True)
if os.fork() == 0:
    sys.exit()
os.wait()
raise SystemExit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "buffers gone\nbuffers gone\nclosed toy 1\n"
