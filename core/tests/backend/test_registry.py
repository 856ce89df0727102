"""One plugin's defects stay its own: real distributions, found by metadata, broken in every way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.backend import Backend, BackendStatus, list_backends, load
from bringup.errors import BackendError

Install = Callable[..., Path]

HEAD = """
from bringup.backend import *
from bringup.backend import hookimpl
"""
HANDSHAKE = """
@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))
"""
RAISES = (
    HEAD
    + HANDSHAKE
    + """
class Angry(Backend):
    name = {name!r}
    def devices(self): raise ValueError("devices is angry")
    def capabilities(self, target=""): raise ValueError("capabilities is angry")
    def open(self, index): raise ValueError("open is angry")

@hookimpl
def bringup_backend():
    return Angry()
"""
)
BACKEND = """
@hookimpl
def bringup_backend():
    return {}
"""

# name: (source, state, what the reason says, what the fix says, class of the original error)
BROKEN: dict[str, tuple[str, str, str, str, type[BaseException] | None]] = {
    "import-error": (
        "import a_module_nobody_has",
        "broken",
        "ModuleNotFoundError: No module named 'a_module_nobody_has'",
        "install the Python module 'a_module_nobody_has'",
        ModuleNotFoundError,
    ),
    "shared-library": (
        "import ctypes; ctypes.CDLL('libnobody_has_it.so.7')",
        "broken",
        "OSError: libnobody_has_it.so.7",
        "install the library it needs",
        OSError,
    ),
    "syntax": ("def f(:", "broken", "SyntaxError", "report this", SyntaxError),
    "raises": ("raise ZeroDivisionError('at import')", "broken", "at import", "report", Exception),
    "exits": ("import sys; sys.exit(3)", "broken", "SystemExit: 3", "report this", SystemExit),
    "signature": (
        HEAD + "@hookimpl\ndef bringup_handshake(version): ...\n",
        "broken",
        "PluginValidationError",
        "report this",
        Exception,
    ),
    "misspelled": (
        HEAD + HANDSHAKE + "@hookimpl\ndef bringup_backnd(): ...\n",
        "broken",
        "unknown hook 'bringup_backnd'",
        "report this",
        Exception,
    ),
    "unmarked": (
        "def bringup_handshake(): ...",
        "broken",
        "it implements no bringup_handshake",
        "mark it with @hookimpl",
        None,
    ),
    "half": (HEAD + HANDSHAKE, "broken", "it implements no bringup_backend", "define", None),
    "hook-raises": (
        HEAD + "@hookimpl\ndef bringup_handshake(): raise KeyError('lost')",
        "broken",
        "KeyError: 'lost'",
        "report this",
        KeyError,
    ),
    "no-handshake": (
        HEAD + "@hookimpl\ndef bringup_handshake(): return (1, 1)",
        "broken",
        "bringup_handshake() gave tuple (1, 1) where a Handshake is due",
        "return a Handshake",
        None,
    ),
    "odd-range": (
        HEAD + "@hookimpl\ndef bringup_handshake(): return Handshake(api=(2, 1), opset=(1, 1))",
        "broken",
        "gave tuple (2, 1) where an inclusive range (low, high) is due",
        "return an inclusive range",
        None,
    ),
    "too-new": (
        HEAD + "@hookimpl\ndef bringup_handshake(): return Handshake(api=(7, 9), opset=(1, 1))",
        "incompatible",
        "it accepts backend API levels 7 to 9, and this bringup has 1",
        "pip install --upgrade bringup",
        None,
    ),
    "too-old": (
        HEAD + "@hookimpl\ndef bringup_handshake(): return Handshake(api=(1, 1), opset=(0, 0))",
        "incompatible",
        "it accepts opsets 0 to 0, and this bringup has 1",
        "pip install --upgrade bringup-too-old",
        None,
    ),
    "no-backend": (
        HEAD + HANDSHAKE + BACKEND.format("object()"),
        "broken",
        "bringup_backend() gave object <object object",
        "return a Backend",
        None,
    ),
    "abstract": (
        HEAD + HANDSHAKE + "class B(Backend): pass\n" + BACKEND.format("B()"),
        "broken",
        "TypeError: Can't instantiate abstract class B",
        "report this",
        TypeError,
    ),
    "other-name": (
        HEAD + HANDSHAKE + BACKEND.format("SimpleBackend('x', None, Capabilities())"),
        "broken",
        "its Backend.name is 'x', its entry point is named 'other-name'",
        "give both one name",
        None,
    ),
    "no-capabilities": (
        HEAD + HANDSHAKE + BACKEND.format("SimpleBackend('no-capabilities', None, {})"),
        "broken",
        "capabilities() gave dict {} where a Capabilities is due",
        "return a Capabilities",
        None,
    ),
    "angry": (RAISES, "broken", "ValueError: capabilities is angry", "report this", ValueError),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_refused_with_its_own_error(name: str, install: Install) -> None:
    source, state, reason, fix, original = BROKEN[name]
    install(name, source)
    with pytest.raises(BackendError) as caught:
        load(name)
    text = str(caught.value)
    assert f"backend {name!r} of bringup-{name} 1.0 is {state}: " in text
    assert reason in text
    assert f"\n  fix: {caught.value.fix}" in text
    assert fix in str(caught.value.fix)
    if original is None:
        assert caught.value.__cause__ is None
    else:
        assert isinstance(caught.value.__cause__, original)


def test_the_healthy_ones_work_beside_every_broken_one(install: Install) -> None:
    for name, row in BROKEN.items():
        install(name, row[0])
    install("good")
    backend = load("good")
    assert isinstance(backend, Backend)
    assert load("good") is backend
    loaded = {m for m in sys.modules if m.startswith("plugin_")}
    assert loaded == {"plugin_bringup_good"}


def test_listing_imports_nothing(install: Install) -> None:
    for name in ("good", "fine"):
        install(name)
    install("import-error", BROKEN["import-error"][0])
    rows = {row.name: row for row in list_backends()}
    assert {"good", "fine", "import-error"} <= set(rows)
    assert rows["good"] == BackendStatus("good", "bringup-good", "1.0", "installed")
    assert not [m for m in sys.modules if m.startswith("plugin_")]


def test_metadata_tells_of_a_missing_package_and_requirement(install: Install) -> None:
    install("gone", "")
    install("needy", requires=("numpy>=1", "nobody-has-it>=2", 'absent; python_version < "3"'))
    rows = {row.name: row for row in list_backends()}
    assert rows["gone"].state == "broken"
    assert "its package plugin_bringup_gone cannot be found" in rows["gone"].reason
    assert "pip install --force-reinstall bringup-gone" in rows["gone"].fix
    assert rows["needy"].state == "installed"
    assert rows["needy"].reason == "it requires nobody-has-it>=2, not installed"
    assert rows["needy"].fix == 'pip install "nobody-has-it>=2"'


def test_a_missing_requirement_is_the_fix_of_an_import_error(install: Install) -> None:
    install("needy", "import nobody_has_it", requires=("nobody-has-it",))
    with pytest.raises(BackendError, match='fix: pip install "nobody-has-it"'):
        load("needy")


def test_an_unknown_name_is_answered_with_the_known_ones(install: Install) -> None:
    install("goodness")
    with pytest.raises(BackendError, match=r"no backend is named 'godness'; installed: .*goodness"):
        load("godness")
    with pytest.raises(BackendError, match="fix: use 'goodness'"):
        load("godness")
    with pytest.raises(BackendError, match=r"fix: install the package .* bringup-xyzzy"):
        load("xyzzy")


def test_two_distributions_with_one_name_are_both_refused(install: Install) -> None:
    install("good", distribution="vendor-a")
    install("good", distribution="vendor-b", version="2.1")
    with pytest.raises(BackendError) as caught:
        load("good")
    assert "vendor-a 1.0 and vendor-b 2.1 both bring it" in str(caught.value)
    assert "pip uninstall vendor-a or vendor-b" in str(caught.value)
    rows = [row for row in list_backends() if row.name == "good"]
    assert [(r.distribution, r.state) for r in rows] == [
        ("vendor-a", "duplicate"),
        ("vendor-b", "duplicate"),
    ]
    assert not [m for m in sys.modules if m.startswith("plugin_")]


def test_no_other_distribution_takes_a_name_from_core(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.backend.discovery.CORE_DISTRIBUTION", "core-dist")
    install("good", distribution="core-dist")
    install("good", "raise ZeroDivisionError", distribution="a-vendor")
    assert load("good").name == "good"
    rows = {row.distribution: row for row in list_backends(probe=True) if row.name == "good"}
    assert (rows["core-dist"].state, rows["a-vendor"].state) == ("ready", "duplicate")
    assert rows["a-vendor"].fix.endswith("pip uninstall a-vendor")


def test_one_distribution_found_twice_on_the_path_counts_once(install: Install) -> None:
    root = install("good")
    sys.path.append(str(root) + "/.")
    assert load("good").name == "good"


def test_unreadable_metadata_of_a_neighbour_hides_nobody(install: Install) -> None:
    install("mess", entry_points="[bringup.backends]\nthis is no entry point\n")
    install("good")
    install("foreign", entry_points="[console_scripts]\nno entry point either\n")
    assert load("good").name == "good"
    rows = {row.name: row for row in list_backends()}
    assert rows["good"].state == "ready"
    assert rows["bringup-mess"].state == "broken"
    assert "its metadata cannot be read: " in rows["bringup-mess"].reason
    assert "bringup-foreign" not in rows


NOISY = """
import sys, logging
print("driver 1.2 says hello")
print("and a warning", file=sys.stderr)
kept = sys.stdout
logging.getLogger("noisy").addHandler(logging.StreamHandler())
"""


def test_prints_of_a_plugin_are_kept_away(
    install: Install, healthy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    install("noisy", NOISY + healthy)
    load("noisy")
    assert capfd.readouterr() == ("", "")
    [row] = [row for row in list_backends() if row.name == "noisy"]
    assert row.output == "driver 1.2 says hello\nand a warning\n"
    # Later prints and logs of the plugin are ordinary ones.
    kept = sys.modules["plugin_bringup_noisy"].kept
    print("later", file=kept, flush=True)
    assert capfd.readouterr().out == "later\n"


def test_a_broken_plugin_shows_its_last_words(install: Install) -> None:
    install("noisy", NOISY + "raise OSError('no device node')")
    with pytest.raises(BackendError, match=r"printed: driver 1\.2 says hello"):
        load("noisy")


def test_a_plugin_repaired_in_place_loads_on_the_next_try(install: Install, healthy: str) -> None:
    root = install("good", "raise ImportError('not yet')")
    with pytest.raises(BackendError, match="not yet"):
        load("good")
    (root / "plugin_bringup_good.py").write_text(healthy.replace("{name!r}", "'good'"))
    assert load("good").name == "good"


PROBED = {
    "good": ("", "ready", ""),
    "absent": (
        HEAD
        + HANDSHAKE
        + "def find(): raise NoHardware('no card in any slot')\n"
        + BACKEND.format("SimpleBackend('absent', None, Capabilities(), find)"),
        "no hardware",
        "no card in any slot",
    ),
    "crash": (
        "import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)",
        "broken",
        "it crashed its interpreter (SIGSEGV)",
    ),
    "quits": ("import os; os._exit(5)", "broken", "ended with status 5"),
    "exits": ("raise SystemExit('bye')", "broken", "SystemExit: bye"),
    "too-new": (*BROKEN["too-new"][:2], "API levels 7 to 9"),
    "lists-wrong": (
        HEAD
        + HANDSHAKE
        + BACKEND.format("SimpleBackend('lists-wrong', None, Capabilities(), lambda: 3)"),
        "broken",
        "devices() gave int 3 where a sequence of DeviceInfo is due",
    ),
    "lists-angry": (
        RAISES.replace('raise ValueError("capabilities is angry")', "return Capabilities()"),
        "broken",
        "devices() raised ValueError: devices is angry",
    ),
}


def test_a_probe_finds_every_state_and_imports_nothing_here(install: Install) -> None:
    for name, (source, _, _) in PROBED.items():
        install(name, *([source] if source else []))
    rows = {row.name: row for row in list_backends(probe=True)}
    for name, (_, state, reason) in PROBED.items():
        assert (name, rows[name].state) == (name, state), rows[name]
        assert reason in rows[name].reason
    assert rows["good"].devices[0].product == "Good One"
    assert rows["crash"].output == "last words\n"
    assert not [m for m in sys.modules if m.startswith("plugin_")]


def test_a_plugin_that_hangs_is_broken(install: Install) -> None:
    from bringup.backend.discovery import candidates, select
    from bringup.backend.probing import probe_elsewhere

    install("hangs", "import time; time.sleep(60)")
    status = probe_elsewhere(select("hangs", candidates()), seconds=1.5)
    assert status.state == "broken"
    assert status.reason == "it did not answer within 1.5 s"


def test_where_no_interpreter_starts_a_probe_says_so(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("idle", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    rows = {row.name: row for row in list_backends(probe=True)}
    wanted = f"no Python interpreter to try it in: {tmp_path}/gone does not start: No such file"
    assert rows["idle"].reason.startswith(wanted)
