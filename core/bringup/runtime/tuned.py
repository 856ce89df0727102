"""Schedules that were found by measuring, a file for each machine.

`bringup tune` writes the files, and the compiler gives each kernel the schedule that its machine's
file has for it.  A kernel is found by the text of its loops, so an entry that was found for other
loops is never used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bringup import config
from bringup.errors import ParseError
from bringup.program.program import ControlStep, KernelStep, Program

if TYPE_CHECKING:  # compiling loads no module of loops
    from bringup.backend.device import Backend
    from bringup.loops.form import Func
    from bringup.loops.schedule import Schedule

_HEAD = "# Schedules that bringup tune found; a kernel is named by a hash of its loops.\n"


def folder() -> Path:
    """Where the files are: ``BRINGUP_SCHEDULES``, else a folder of the user's data."""
    named = config.text("BRINGUP_SCHEDULES")
    if named:
        return Path(named)
    from platformdirs import user_data_path

    return user_data_path("bringup") / "schedules"


def path_of(machine: str) -> Path:
    """The file of a machine.  machine: the backend's name and the product, or an architecture."""
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in machine).split()
    return folder() / f"{'-'.join(words).lower()}.txt"


def key_of(func: Func) -> str:
    """The name of a kernel in a file: a hash of its loops before any step."""
    return hashlib.sha256(func.content.encode()).hexdigest()[:24]


def read(path: Path) -> Mapping[str, Schedule]:
    """The schedules of a file, by `key_of`; none if it does not exist.

    Raises ParseError naming the file and the line.
    """
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@cache
def _parsed(path: Path, _changed: int) -> Mapping[str, Schedule]:
    from bringup.loops.schedule import Schedule

    found: dict[str, Schedule] = {}
    for entry in path.read_text(encoding="utf-8").split("\nkernel ")[1:]:
        head, _, steps = entry.partition("\n")
        try:
            found[head.split()[0]] = Schedule.parse(steps)
        except (ParseError, IndexError) as error:
            raise ParseError(
                f"{path}, kernel {head}: {error}", fix="mend the entry, or remove it"
            ) from None
    return found


def write(path: Path, found: Mapping[str, Schedule]) -> None:
    """Put schedules into a file, in place of those it has for the same kernels."""
    entries = {**read(path), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (f"\nkernel {key}\n{schedule}\n" for key, schedule in sorted(entries.items()))
    path.write_text(_HEAD + "".join(texts), encoding="utf-8")


def with_schedules(program: Program, backend: Backend, machine: str, target: str) -> Program:
    """The program with the schedules that were found for its kernels on a machine.

    target: as in `Backend.scheduled`.
    """
    found = read(path_of(machine))
    if not found:
        return program

    def placed(step: KernelStep) -> KernelStep:
        scheduled = backend.scheduled(step, target)
        schedule = None if scheduled is None else found.get(key_of(scheduled.before))
        return step if schedule is None else replace(step, schedule=schedule)

    def of(program: Program) -> Program:
        return replace(program, steps=tuple(
            placed(step) if isinstance(step, KernelStep)
            else replace(step, programs=tuple(map(of, step.programs)))
            if isinstance(step, ControlStep)
            else step
            for step in program.steps
        ))  # fmt: skip

    return of(program)


__all__ = ["folder", "key_of", "path_of", "read", "with_schedules", "write"]
