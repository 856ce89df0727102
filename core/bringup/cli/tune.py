"""``bringup tune``: faster schedules for the kernels of a function, kept for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bringup.cli.output import document, line, table
from bringup.cli.shell import found_wrong
from bringup.cli.subject import function_of, names_function
from bringup.errors import BringupError
from bringup.runtime import compiler, devices, tuned
from bringup.runtime.devices import OpenDevice
from bringup.runtime.tune import Tuned, tune


def show(
    subject: str,
    types: Sequence[str],
    device: str,
    seconds: float,
    *,
    keep: bool,
    ship: bool,
    as_json: bool,
) -> None:
    """Search, print what was found for each kernel, and keep what is faster.

    subject, types: as in `bringup.cli.dump.show`, but no file of IR text.
    ship: keep it in the backend's table for the class of machines, not in the user's.
    Raises BringupError.
    """
    if not names_function(subject):
        raise BringupError(
            f"{subject} names no function", fix="name file.py:function or module:function"
        )
    function, arguments = function_of(subject, types)
    with devices.use(device or None):
        opened = devices.get()
        path = _shipped(opened) if ship else tuned.path_of(opened.machine)
        try:
            compiled = function.lower(*arguments)
        except BringupError as error:
            raise found_wrong(error)  # noqa: B904  (the same object)
        found = list(tune(compiled, opened, seconds))
    faster = dict(each.entry for each in found if each.is_faster)
    if keep and faster:
        tuned.write(path, faster)
        compiler.forget()
    if as_json:
        kernels = [
            _row(each) | {"why": each.why, "schedule": str(each.schedule).split("\n")}
            for each in found
        ]
        document({"kernels": kernels, "file": str(path) if keep and faster else ""})
        return
    rows = [[str(cell) for cell in _row(each).values()] for each in found]
    table(("kernel", "time", "tried"), rows)
    for each in found:
        if each.why:
            line(f"\n{each.kernel.name}: {each.why}")
        if each.is_faster:
            line(f"\n{each.kernel.name}\n{each.schedule}")
    if keep and faster:
        line(f"\nkept in {path}")


def _shipped(device: OpenDevice) -> Path:
    path = tuned.shipped_path(device.backend, device.capabilities.target)
    if path is None:
        raise BringupError(
            f"backend {device.backend_name} ships no schedules",
            fix="give it `schedule_tables`, and a `target` with a name",
        )
    return path


def _row(each: Tuned) -> dict[str, str | int]:
    """A kernel, its time by that of the device's own schedule, and the variants measured."""
    return {"kernel": each.kernel.name, "time": f"{each.ratio:.2f}", "tried": each.tried}
