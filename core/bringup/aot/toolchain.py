"""Compilers and linkers of the system, or those of the wheel ``ziglang`` where there are none."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.errors import BringupError, CompileError

#: The system and processor of targets that are called by a level of it.
_TRIPLES: Mapping[str, str] = {f"x86-64-v{level}": "x86_64-linux-gnu" for level in (2, 3, 4)}
#: What the tools of GNU and ``ziglang`` call targets, where it is not our name.
_GNU: Mapping[str, str] = {"thumbv7em-none-eabihf": "arm-none-eabi"}
_ZIG: Mapping[str, str] = {
    "wasm32": "wasm32-freestanding",
    "thumbv7em-none-eabihf": "thumb-freestanding-eabihf",
}


def host_compiler() -> tuple[str, ...] | None:
    """``BRINGUP_CC``, else cc, gcc or clang on the path, else clang of ``ziglang``, else None."""
    if setting := os.environ.get("BRINGUP_CC"):
        return tuple(shlex.split(setting))
    return tool(("cc", "gcc", "clang"), "")


def tool(names: Sequence[str], zig: str | None, kind: str = "cc") -> tuple[str, ...] | None:
    """The first of these commands on the path, else that of ``ziglang``, else None.

    zig: what this calls the target, empty for this machine; None leaves it out.  kind: ``cc`` for a
    compiler, ``ar`` for what makes static libraries.
    """
    for name in names:
        if path := shutil.which(name):
            return (path,)
    if zig is None or not find_spec("ziglang"):
        return None
    target = ("-target", zig) if zig and kind == "cc" else ()
    return (sys.executable, "-m", "ziglang", kind, *target)


def linked(kind: str, name: str, data: bytes, symbols: Sequence[str], target: str) -> bytes:
    """An object as a ``static`` or a ``shared`` library; of ``wasm32``, a module.

    Raises BringupError where no tool is for the target, or no system that loads a shared library;
    CompileError with what the linker said.
    """
    if kind == "shared" and "-none-" in target:
        raise BringupError(
            f"nothing loads a shared library on {target}, which has no operating system",
            fix="make a static one, or keep the object file",
        )
    with TemporaryDirectory(prefix="bringup-link-") as folder:
        source, result = Path(folder) / f"{name}.o", Path(folder) / "result"
        source.write_bytes(data)
        if kind == "static":
            command = [*_tool("ar", target), "rcs", str(result), str(source)]
        else:
            command = [*_tool("cc", target), *_flags(symbols, target)]
            command += ["-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(
                f"the linker failed with status {done.returncode}", log=done.stderr, source=""
            )
        return result.read_bytes()


def _flags(symbols: Sequence[str], target: str) -> Sequence[str]:
    """Of a shared library, or of a module for a browser, which lays out memory from __heap_base."""
    if target != "wasm32":
        return ("-shared",)
    exported = [f"-Wl,--export={symbol}" for symbol in (*symbols, "__heap_base")]
    return ("-nostdlib", "-Wl,--no-entry", *exported)


def _tool(kind: str, target: str) -> Sequence[str]:
    """A tool for a target, of ours or of a backend's own.  Raises BringupError."""
    setting = f"BRINGUP_TARGET_{kind.upper()}"
    if command := os.environ.get(setting):
        return shlex.split(command)
    triple = _TRIPLES.get(target, target.partition("+")[0])
    prefix = _GNU.get(triple, triple)
    names = {"cc": [f"{prefix}-gcc", f"{prefix}-cc"], "ar": [f"{prefix}-ar", "llvm-ar"]}[kind]
    found = None
    if triple.partition("-")[0] == platform.machine().replace("AMD64", "x86_64"):
        found = host_compiler() if kind == "cc" else tool((kind,), None)
    # An archive is of any target; a compiler has to know it, by a name of processor and system.
    zig = _ZIG.get(triple, triple if "-" in triple or kind == "ar" else None)
    found = found or tool(names, zig, kind)
    if found is None:
        wheel = "" if zig is None else ", and no wheel ziglang"
        example = {"cc": "'clang --target=…'", "ar": "llvm-ar"}[kind]
        raise BringupError(
            f"there is no linker for {target}: no {' or '.join(names)} on the path{wheel}",
            fix=f"name one, such as {setting}={example}, or link the object file yourself",
        )
    return found


def file_name(kind: str, name: str, target: str) -> str:
    """What the file of a library is called."""
    if kind == "static":
        return f"lib{name}.a"
    return f"{name}.wasm" if target == "wasm32" else f"lib{name}.so"


__all__ = ["file_name", "host_compiler", "linked", "tool"]
