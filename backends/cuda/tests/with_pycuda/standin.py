"""NVIDIA's ``libcuda.so.1`` replaced by the stand-in of ``libcuda/``: building and asking it.

It must be the first of its name that the loader finds: ``LD_LIBRARY_PATH`` of the interpreter that
imports pycuda, which cannot be set from inside.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parent / "libcuda"
LIBRARY = "libcuda.so.1"

# CUresult, as in cuda.h.
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
LAUNCH_FAILED = 719


def build(folder: Path, includes: list[Path]) -> Path:
    """The library in a folder.  includes: those with cuda.h.  Raises CalledProcessError."""
    target = folder / LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror",
            "-Wno-deprecated-declarations", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-shared",
            f"-Wl,-soname,{LIBRARY}", *(f"-I{path}" for path in includes), "-o", str(target),
            *map(str, sorted(SOURCES.glob("*.c"))), "-ldl", "-lpthread",
        ],
        check=True,
    )  # fmt: skip
    return target


class Launch(ctypes.Structure):
    """The launch that ran last."""

    _fields_ = (
        ("_kernel", ctypes.c_char * 256),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("bytes", ctypes.c_uint),
    )

    @property
    def kernel(self) -> str:
        """Its name."""
        return bytes(self._kernel).decode()


class StandIn:
    """What can be asked of the library that this process has loaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(LIBRARY)
        self.library.standin_used.restype = ctypes.c_uint64
        self.library.standin_memory.argtypes = [ctypes.c_uint64]

    def count(self, call: str) -> int:
        """How often a function was called, by its name in C."""
        found: int = self.library.standin_count(call.encode())
        return found

    def fail(self, call: str, status: int, nth: int = 1) -> None:
        """Its nth call from now on fails."""
        self.library.standin_fail(call.encode(), status, nth)

    def interrupt(self, call: str, nth: int = 1) -> None:
        """Ctrl-C is pressed during its nth call from now on; 0: no more."""
        self.library.standin_interrupt(call.encode(), nth)

    def used(self, device: int = 0) -> int:
        """Bytes of device memory that are allocated."""
        found: int = self.library.standin_used(device)
        return found

    def pinned(self) -> int:
        """Pieces of pinned memory that are allocated."""
        found: int = self.library.standin_pinned()
        return found

    def last(self) -> Launch:
        """The launch that ran last."""
        made = Launch()
        self.library.standin_last(ctypes.byref(made))
        return made

    def depth(self) -> int:
        """How many contexts this thread has pushed."""
        found: int = self.library.standin_depth()
        return found

    @contextmanager
    def fault(self, kernel: str, status: int) -> Iterator[None]:
        """Inside, a kernel fails when it runs; after it, contexts are usable again."""
        self.library.standin_fault(kernel.encode(), status)
        try:
            yield
        finally:
            self.library.standin_fault(b"", 0)
            self.library.standin_heal()

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[None]:
        """Inside, devices have so much."""
        before = 1 << 30
        self.library.standin_memory(nbytes)
        try:
            yield
        finally:
            self.library.standin_memory(before)


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])}\n")
