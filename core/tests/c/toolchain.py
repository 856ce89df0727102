"""The C compilers of this machine, and functions compiled and loaded by one."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.c import C11, Dialect, render_all, scratch_bytes, symbol, units
from bringup.loops import Func

Array = np.ndarray[Any, Any]

NO_COMPILER = "no C compiler: set BRINGUP_CC, or install gcc, clang or the wheel ziglang"


@cache
def compilers() -> tuple[tuple[str, ...], ...]:
    """The commands of all compilers found, the one to use first: BRINGUP_CC alone if it is set."""
    chosen = os.environ.get("BRINGUP_CC")
    if chosen:
        return (tuple(shlex.split(chosen)),)
    paths = {name: shutil.which(name) for name in ("gcc", "clang", "cc")}
    found = {os.path.realpath(path): (path,) for path in paths.values() if path is not None}
    commands: list[tuple[str, ...]] = list(found.values())
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "cc"))
    return tuple(commands)


@cache
def compiler() -> tuple[str, ...]:
    """The command to compile with; where there is none, skips the test, or fails it in CI."""
    if not compilers():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_COMPILER)
    return compilers()[0]


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="bringup-c-")
    _open.append(folder)
    return Path(folder.name)


_open: list[tempfile.TemporaryDirectory[str]] = []


def compile_c(source: str, *, flags: Sequence[str] = (), command: Sequence[str] = ()) -> Path:
    """The path of a shared library; compilers' warnings are errors."""
    number = len(list(_folder().iterdir()))
    path = _folder() / f"{number}.c"
    path.write_text(source)
    library = path.with_suffix(".so")
    warnings = (
        "-Wall",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-Wno-tautological-compare",
    )
    extra = shlex.split(os.environ.get("BRINGUP_CC_FLAGS", ""))
    line = [*(command or compiler()), *C11.flags, *warnings, *flags, *extra, "-fPIC", "-shared"]
    done = subprocess.run(
        [*line, "-o", str(library), str(path), "-lm"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000] + "\n" + source[:8000]
    return library


class Compiled:
    """Functions of one source, by name."""

    def __init__(
        self, funcs: Sequence[Func], *, flags: Sequence[str] = (), dialect: Dialect = C11
    ) -> None:
        self.funcs = {func.name: func for func in funcs}
        self.source = render_all(funcs, dialect)
        self.library = ctypes.CDLL(str(compile_c(self.source, flags=flags)))

    def run(self, name: str, arrays: Sequence[Array], parts: int = 1) -> None:
        """Call a function; outputs are written in place.

        parts: calls that share the units.
        """
        func = self.funcs[name]
        ends = [units(func) * part // parts for part in range(parts + 1)]
        for begin, end in itertools.pairwise(ends):
            self.call(name, arrays, begin, end)

    def call(self, name: str, arrays: Sequence[Array], begin: int, end: int) -> None:
        """Run a range of units."""
        func = self.funcs[name]
        entry = self.library[symbol(func, C11)]
        buffers = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
        scratch = np.empty(scratch_bytes(func, C11) + 64, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % 64
        entry(buffers, ctypes.c_int64(begin), ctypes.c_int64(end), ctypes.c_void_p(start))
