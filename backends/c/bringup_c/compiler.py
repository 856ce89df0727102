"""The C compiler of this machine, and the libraries it made, which are kept on disk."""

from __future__ import annotations

import ctypes
import subprocess
import weakref
from _ctypes import dlclose
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_cache_path

from bringup.aot.toolchain import host_compiler
from bringup.backend import NoHardware
from bringup.c import C11
from bringup.errors import CompileError
from bringup.llvm.host.object_cache import Emitted, ObjectCache, StoredObject, object_key

FLAGS = (*C11.flags, "-fPIC", "-shared")


@cache
def command() -> tuple[str, ...]:
    """As `host_compiler` finds it.  Raises NoHardware if there is none."""
    found = host_compiler()
    if found is None:
        raise NoHardware("there is no C compiler: install cc, or the wheel ziglang")
    return found


@cache
def version() -> str:
    """The first line of what the compiler says of itself.  Raises NoHardware if it does not run."""
    try:
        done = subprocess.run([*command(), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHardware(f"the C compiler does not run: {error}") from None
    return done.stdout.partition("\n")[0]


def build(source: str) -> ctypes.CDLL:
    """The library of a source, compiled unless it is on disk.  Raises CompileError."""
    key = object_key(Emitted(source), *command(), *FLAGS, version())
    objects = ObjectCache(user_cache_path("bringup") / "c", limit=128 << 20)
    with TemporaryDirectory(prefix="bringup-c-") as folder:
        path = Path(folder) / "program.so"
        stored = objects.get(key)
        if stored is None:
            _compile(source, path)
            objects.put(key, StoredObject(path.read_bytes()))
        else:
            path.write_bytes(stored.data)
        library = ctypes.CDLL(str(path))
    weakref.finalize(library, dlclose, library._handle).atexit = False
    return library


def _compile(source: str, library: Path) -> None:
    file = library.with_suffix(".c")
    file.write_text(source, encoding="utf-8")
    arguments = [*command(), *FLAGS, "-o", str(library), str(file), "-lm"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        what = f"the C compiler failed with status {done.returncode}"
        raise CompileError(what, log=done.stderr, source=source)
