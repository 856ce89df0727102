"""Which compiler is taken, and when it runs."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import pytest

from bringup.aot import toolchain
from bringup.backend import NoHardware
from bringup.errors import CompileError
from bringup_c import compiler, plugin

FIVE = "int five(void) { return 5; }\n"


def test_the_setting_is_a_command_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CC", "gcc -m64 '-I/with space'")
    assert compiler.command() == ("gcc", "-m64", "-I/with space")


@pytest.mark.parametrize(
    ("there", "wheel", "expected"),
    [
        ({"cc", "gcc", "clang"}, True, ("/bin/cc",)),
        ({"gcc", "clang"}, True, ("/bin/gcc",)),
        ({"clang"}, True, ("/bin/clang",)),
        (set(), True, (sys.executable, "-m", "ziglang", "cc")),
    ],
)
def test_without_it_the_first_one_there(
    there: set[str], wheel: bool, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(there, wheel, monkeypatch)
    assert compiler.command() == expected


def install(there: set[str], wheel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_CC", raising=False)
    monkeypatch.setattr(
        toolchain.shutil, "which", lambda name: f"/bin/{name}" if name in there else None
    )
    monkeypatch.setattr(toolchain, "find_spec", lambda name: name if wheel else None)


def test_without_any_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(set(), False, monkeypatch)
    with pytest.raises(NoHardware, match="there is no C compiler: install cc, or the wheel"):
        plugin.bringup_backend().devices()


@pytest.mark.parametrize("command", ["/nowhere/cc", "false"])
def test_a_compiler_that_does_not_run_is_no_device(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CC", command)
    with pytest.raises(NoHardware, match="the C compiler does not run: "):
        plugin.bringup_backend().devices()


def test_the_device_is_called_as_its_compiler_calls_itself(installed: str) -> None:
    (info,) = plugin.bringup_backend().devices()
    assert info.product == installed
    assert info.details == (("command", " ".join(compiler.command())),)


def test_a_source_is_compiled_once(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler.build(FIVE).five() == 5
    sources = []
    compile_ = compiler._compile

    def counted(source: str, library: Path) -> None:
        sources.append(source)
        compile_(source, library)

    monkeypatch.setattr(compiler, "_compile", counted)
    assert compiler.build(FIVE).five() == 5
    assert sources == []
    six = FIVE.replace("5", "6")
    assert compiler.build(six).five() == 6
    assert sources == [six]
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DOTHER"))
    compiler.build(FIVE)
    monkeypatch.setattr(compiler, "version", lambda: "another version")
    compiler.build(FIVE)
    assert sources == [six, FIVE, FIVE]


def test_what_does_not_compile_is_an_error_with_source_and_log(installed: str) -> None:
    with pytest.raises(CompileError, match="the C compiler failed with status 1") as caught:
        compiler.build("int five(void) { return fife; }\n")
    assert "fife" in caught.value.log
    assert caught.value.source == "int five(void) { return fife; }\n"


def test_a_library_is_unloaded_with_its_last_function(installed: str) -> None:
    def loaded() -> int:
        return Path("/proc/self/maps").read_text().count("program.so")

    gc.collect()
    before = loaded()
    function: ctypes._CFuncPtr | None = compiler.build(FIVE).five
    gc.collect()
    assert loaded() > before
    assert function is not None
    assert function() == 5
    function = None
    gc.collect()
    assert loaded() == before
