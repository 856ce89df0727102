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

#: What ``ziglang`` calls a target, where it is not our name.
_ZIG: Mapping[str, str] = {
    "x86-64-v2": "x86_64-linux-gnu",
    "x86-64-v3": "x86_64-linux-gnu",
    "x86-64-v4": "x86_64-linux-gnu",
    "riscv64-linux-gnu+v": "riscv64-linux-gnu",
    "wasm32": "wasm32-freestanding",
    "thumbv7em-none-eabihf": "thumb-freestanding-eabihf",
}


def host_compiler() -> tuple[str, ...] | None:
    """``BRINGUP_CC``, else cc, gcc or clang on the path, else clang of ``ziglang``, else None."""
    if setting := os.environ.get("BRINGUP_CC"):
        return tuple(shlex.split(setting))
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    return (*_zig(), "cc") if find_spec("ziglang") else None


def _zig() -> tuple[str, ...]:
    return sys.executable, "-m", "ziglang"


def linked(kind: str, name: str, data: bytes, symbols: Sequence[str], target: str) -> bytes:
    """An object as a ``static`` or a ``shared`` library; of ``wasm32``, a module.

    Raises BringupError where no tool is for the target, CompileError with what the linker said.
    """
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


def _tool(name: str, target: str) -> Sequence[str]:
    """A tool for a target.  Raises BringupError."""
    triple = _ZIG.get(target, target) if target != "wasm32" else target
    if triple.partition("-")[0] == platform.machine().replace("AMD64", "x86_64"):
        own = host_compiler() if name == "cc" else (shutil.which(name) or "",)
        if own and own[0]:
            return own
    for tool in (f"{triple}-gcc", f"{triple}-cc") if name == "cc" else (f"{triple}-{name}",):
        if path := shutil.which(tool):
            return (path,)
    if find_spec("ziglang"):
        kind = ("-target", _ZIG.get(target, target)) if name == "cc" else ()
        return (*_zig(), name, *kind)
    raise BringupError(
        f"there is no linker for {target}",
        fix="install the wheel ziglang, or keep the object file and link it yourself",
    )


def suffix_of(kind: str, target: str) -> str:
    """What the file of a library ends with."""
    if kind == "static":
        return ".a"
    return ".wasm" if target == "wasm32" else ".so"


__all__ = ["host_compiler", "linked", "suffix_of"]
