"""Schedules that were found by measuring, in tables that are text files.

`bringup tune` writes them: the user's, one for each machine, and those that a backend ships, one
for each class of machines (`Backend.schedule_tables`).  The compiler gives each kernel the schedule
that a table has for it, the user's first.  An entry is for one kernel and for the loops that it had
when it was measured: where a kernel gets other loops, the entry is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import config
from bringup.backend.vendor_errors import REPORT, vendor_call
from bringup.errors import BackendError, ParseError
from bringup.kernel.form import Kernel
from bringup.program.program import ControlStep, KernelStep, Program
from bringup.records import record

if TYPE_CHECKING:  # compiling loads no module of loops
    from bringup.backend.device import Backend
    from bringup.loops.form import Func
    from bringup.loops.schedule import Schedule

_HEAD = "# Schedules that bringup tune found; hashes name a kernel and its loops.\n"


@record
class Entry:
    """What a table has for a kernel.

    loops: `key_of` the loops before any step.  steps: the text of the schedule.
    """

    loops: str
    steps: str

    def schedule(self, path: Path, kernel: str) -> Schedule:
        """The steps.  Raises ParseError naming the file and the kernel that it was read from."""
        from bringup.loops.schedule import Schedule

        try:
            return Schedule.parse(self.steps)
        except ParseError as error:
            raise _broken(path, kernel, str(error)) from None


def folder() -> Path:
    """Where the user's tables are: ``BRINGUP_SCHEDULES``, else a folder of the user's data."""
    named = config.text("BRINGUP_SCHEDULES")
    if named:
        return Path(named)
    from platformdirs import user_data_path

    return user_data_path("bringup") / "schedules"


def path_of(machine: str) -> Path:
    """The user's table for a machine: the backend's name and the product, or an architecture."""
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in machine).split()
    return folder() / f"{'-'.join(words).lower()}.txt"


def shipped_path(backend: Backend, target: str) -> Path | None:
    """The table that a backend ships for the class of a target; None if it ships none.

    The file need not be there.
    """
    with vendor_call(backend, "schedule_tables"):
        tables: Any = backend.schedule_tables()
        if tables is None:
            return None
        name = backend.target(target).name
    if not isinstance(tables, Path):
        fault = f"{type(backend).__name__}.schedule_tables gave {tables!r}, no path of a folder"
        raise BackendError(fault, fix=REPORT)
    return tables / f"{name}.txt" if name else None


def key_of(content: Kernel | Func) -> str:
    """The name of a kernel or of its loops in a table: a hash of what they do."""
    return hashlib.sha256(content.content.encode()).hexdigest()[:24]


def read(path: Path) -> Mapping[str, Entry]:
    """The entries of a table by kernel; none if the file does not exist.

    Raises ParseError naming the file and the kernel.
    """
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@cache
def _parsed(path: Path, _changed: int) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in path.read_text(encoding="utf-8").split("\nkernel ")[1:]:
        head, _, steps = entry.partition("\n")
        kernel, _, loops = head.partition(" loops ")
        if not loops:
            raise _broken(path, head, "the line names no loops")
        found[kernel] = Entry(loops.strip(), steps.strip())
    return found


def _broken(path: Path, kernel: str, what: str) -> ParseError:
    return ParseError(f"{path}, kernel {kernel}: {what}", fix="mend the entry, or remove it")


def write(path: Path, found: Mapping[str, Entry]) -> None:
    """Put entries into a table, in place of those it has for the same kernels."""
    entries = sorted({**read(path), **found}.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (f"\nkernel {key} loops {each.loops}\n{each.steps}\n" for key, each in entries)
    path.write_text(_HEAD + "".join(texts), encoding="utf-8")


def with_schedules(program: Program, backend: Backend, target: str, machine: str = "") -> Program:
    """The program with the schedules that tables have for its kernels.

    target: as in `Backend.scheduled`.  machine: whose table comes before the backend's.
    """
    if not program.kernel_steps:
        return program
    paths = [path_of(machine)] if machine else []
    shipped = shipped_path(backend, target)
    paths += [] if shipped is None else [shipped]
    tables = [(path, entries) for path in paths if (entries := read(path))]
    return _placed(program, backend, target, tables) if tables else program


def _placed(
    program: Program,
    backend: Backend,
    target: str,
    tables: Sequence[tuple[Path, Mapping[str, Entry]]],
) -> Program:
    def placed(step: KernelStep) -> KernelStep:
        key = key_of(step.kernel)
        entries = [(path, entry) for path, table in tables if (entry := table.get(key))]
        if not entries:
            return step
        scheduled = backend.scheduled(step, target)
        loops = "" if scheduled is None else key_of(scheduled.before)
        for path, entry in entries:
            if entry.loops == loops:
                return replace(step, schedule=entry.schedule(path, key))
        return step

    def of(program: Program) -> Program:
        return replace(program, steps=tuple(
            placed(step) if isinstance(step, KernelStep)
            else replace(step, programs=tuple(map(of, step.programs)))
            if isinstance(step, ControlStep)
            else step
            for step in program.steps
        ))  # fmt: skip

    return of(program)


__all__ = [
    "Entry",
    "folder",
    "key_of",
    "path_of",
    "read",
    "shipped_path",
    "with_schedules",
    "write",
]
