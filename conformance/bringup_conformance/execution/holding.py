"""A folder that one run at a time writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup.errors import BringupError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder; it is free again however this one ends.

    Raises BringupError if another has it.  Where the system locks no folders, nothing is kept.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BringupError(
                f"another run writes its report to {folder}", fix="name another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(opened)


def is_held(folder: Path) -> bool:
    """Whether another run has a folder."""
    try:
        with held(folder):
            return False
    except BringupError:
        return True
