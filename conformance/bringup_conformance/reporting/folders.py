"""Folders of reports that nobody named: one for each run of a device, by its date, the last few."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from bringup.errors import BringupError
from bringup_conformance.execution import holding

#: Runs of a device that are kept.
KEPT = 10
_DATED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


def of(backend: str) -> Path:
    """Where runs of a device go."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in backend)
    return platformdirs.user_cache_path("bringup") / "conformance" / name


def new(backend: str) -> Path:
    """A folder for a run that begins now, which makes it; the oldest runs go.

    A temporary one without a cache.
    """
    folder = of(backend)
    date = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Among runs of one second the newest has the highest number.
        number = max((n for d, n, _ in _dated(folder) if d == date), default=0) + 1
        for old in kept(backend)[: 1 - KEPT]:
            if not holding.is_held(old):
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="conformance-"))
    return folder / (date if number == 1 else f"{date}-{number}")


def kept(backend: str) -> list[Path]:
    """The folders of the runs of a device that are there, the oldest first."""
    folder = of(backend)
    return [path for _, _, path in sorted(_dated(folder))] if folder.is_dir() else []


def _dated(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Dates of runs, their numbers among those of the same second, and where they are."""
    for path in folder.iterdir():
        if (match := _DATED.fullmatch(path.name)) is not None:
            yield match[1], int(match[2] or 1), path


def last_two(backend: str = "") -> tuple[Path, Path]:
    """The folders of the last two reports of a device: of the one that ran last, if none is named.

    Raises BringupError if there are not so many.
    """
    if not backend:
        root = of("x").parent
        names = [each.name for each in root.iterdir() if each.is_dir()] if root.is_dir() else []
        dated = {name: kept(name)[-1].name for name in names if kept(name)}
        backend = max(dated, key=lambda name: dated[name], default="")
    found = [each for each in kept(backend) if (each / "report.json").is_file()] if backend else []
    if len(found) < 2:
        whose = f" of {backend!r}" if backend else ""
        raise BringupError(
            f"there are no two reports{whose} to compare", fix="name two folders of reports"
        )
    return found[-2], found[-1]
