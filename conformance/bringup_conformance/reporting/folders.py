"""Folders of reports: a lock on each, and those that nobody named, one for each run of a device."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from bringup.errors import BringupError

#: Runs of a device that are kept.
KEPT = 10
_DATED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, so that one run at a time writes to it; it is free again however this one
    ends.

    Raises BringupError if another run has it.  Where the system cannot lock folders, it does
    nothing.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BringupError(
                f"another run writes its report to {folder}", fix="name another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether another run has a folder."""
    try:
        with locked(folder):
            return False
    except BringupError:
        return True


def of(backend: str) -> Path:
    """The folder of the runs of a device."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in backend)
    return platformdirs.user_cache_path("bringup") / "conformance" / name


def new(backend: str) -> Path:
    """A name for the folder of a run that begins now; the oldest runs are removed.

    It is temporary where there is no cache.
    """
    folder = of(backend)
    date = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Among runs of one second the newest has the highest number.
        number = max((n for d, n, _ in _dated(folder) if d == date), default=0) + 1
        for old in kept(backend)[: 1 - KEPT]:
            if not is_locked(old):
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="conformance-"))
    return folder / (date if number == 1 else f"{date}-{number}")


def kept(backend: str) -> list[Path]:
    """The folders that the runs of a device left, the oldest first."""
    folder = of(backend)
    return [path for _, _, path in sorted(_dated(folder))] if folder.is_dir() else []


def _dated(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """The date of each run, its number among those of the same second, and its folder."""
    for path in folder.iterdir():
        if (match := _DATED.fullmatch(path.name)) is not None:
            yield match[1], int(match[2] or 1), path


def last_two(backend: str = "") -> tuple[Path, Path]:
    """The folders of the last two reports of a device; by default of the one that ran last.

    Raises BringupError if there are no two.
    """
    if not backend:
        root = of("x").parent
        names = [each.name for each in root.iterdir() if each.is_dir()] if root.is_dir() else []
        dates = {name: kept(name)[-1].name for name in names if kept(name)}
        backend = max(dates, key=lambda name: dates[name], default="")
    reports = [each for each in kept(backend) if (each / "report.json").is_file()]
    if not backend or len(reports) < 2:
        whose = f" of {backend!r}" if backend else ""
        raise BringupError(
            f"there are no two reports{whose} to compare", fix="name two folders of reports"
        )
    return reports[-2], reports[-1]
