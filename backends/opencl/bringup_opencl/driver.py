"""pyopencl, with folders of this process for what it and PoCL keep.

PoCL runs whatever stands in its cache, damaged or written by others, and ends the process where it
misses a file; pyopencl cannot be used where its cache is no folder.  Built programs are kept by
this package, with a checksum, so neither needs a cache that lasts.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what killed processes leave stays there
    fcntl = None  # type: ignore[assignment]

_PREFIX = "bringup-opencl-"


def _new_folder() -> str:
    """A new folder, which this process and its forks have locked as long as they live."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(OSError):  # a file system without locks
            if fcntl is not None:
                fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        if Path(folder).exists():
            return folder  # else another process found it before it was locked


def _clean(folder: Path) -> None:
    """Remove the folder of a process that was killed: nobody has it locked."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a fork goes on with the folder that its parent has
        shutil.rmtree(folder, ignore_errors=True)


_own = _new_folder()
if fcntl is not None:
    for _folder in Path(_own).parent.glob(f"{_PREFIX}*"):
        _clean(_folder)
atexit.register(_remove, _own, os.getpid())
# One of the parent's goes when that ends; one that the user chose stays.
if Path(os.environ.get("POCL_CACHE_DIR", _PREFIX)).name.startswith(_PREFIX):
    os.environ["POCL_CACHE_DIR"] = _own
_cache = os.environ.get("XDG_CACHE_HOME")
os.environ["XDG_CACHE_HOME"] = _own
try:
    import pyopencl as cl
    import pyopencl.invoker
    import pyopencl.tools  # noqa: F401
finally:
    if _cache is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = _cache

__all__ = ["cl"]
