"""pyopencl, after the settings that it and PoCL read when they are first used.

PoCL runs whatever stands in its cache, damaged or written by others, and ends the process where it
misses a file; pyopencl cannot be imported where its cache is no folder.  Built programs are kept by
this package, with a checksum.  So PoCL has a folder for the life of a process, and pyopencl none.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "bringup-pocl-"


def _apply() -> None:
    """Make the settings, unless the user has others."""
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    folder = os.environ.get("POCL_CACHE_DIR", "")
    if folder and not Path(folder).name.startswith(_PREFIX):
        return
    # One that is there is the parent's, which removes it at its own end.
    own = tempfile.mkdtemp(prefix=_PREFIX)
    os.environ["POCL_CACHE_DIR"] = own
    atexit.register(_remove, own, os.getpid())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a fork goes on with the folder that its parent has
        shutil.rmtree(folder, ignore_errors=True)


_apply()

import pyopencl as cl  # noqa: E402

__all__ = ["cl"]
