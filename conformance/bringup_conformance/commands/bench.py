"""``conformance bench``: the speed of a device, beside what it could do."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup.errors import BringupError
from bringup.runtime import devices
from bringup_conformance.bench import terminal
from bringup_conformance.bench.measure import Bench
from bringup_conformance.bench.measure import bench as measure
from bringup_conformance.bench.page import page
from bringup_conformance.bench.tuning import improve
from bringup_conformance.bench.workloads import SIZES, WORKLOADS, Workload
from bringup_conformance.commands import options
from bringup_conformance.commands.options import Json
from bringup_conformance.reporting.terminal import INTERVAL, repeated

_DATA, _PAGE = "bench.json", "report.html"


def bench(
    backend: options.Backend = "",
    only: Annotated[
        str, typer.Option(metavar="WORDS", help="Programs or families: 'folds,transpose'.")
    ] = "",
    sizes: Annotated[
        str, typer.Option(metavar="WORDS", help="Some of small, medium and large.")
    ] = ",".join(SIZES),
    against: Annotated[
        str,
        typer.Option(metavar="NAME", help="Another device, or the folder of an earlier bench."),
    ] = "",
    tune: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Then search so long for faster schedules of the launches that lose most, keep"
            " them as `bringup tune` does, and measure again.",
        ),
    ] = 0,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for report.html and bench.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a device on some thirty programs, as shares of its bandwidth and arithmetic.

    Close other programs: times are medians, but a busy machine is slow in all of them.
    """
    if not backend:
        raise BringupError("no device is named", fix="add --backend NAME; `bringup devices` lists")
    chosen, sized = _workloads(only), _sizes(sizes)
    other = _against(against, chosen, sized)
    found = _measured(backend, chosen, sized)
    if tune:
        with devices.use(backend) as device:
            better = [each.kernel.name for each in improve(device, found, tune) if each.is_faster]
        found, other = _measured(backend, chosen, sized), other or found
        found = replace(found, tuned=better)
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        (report / _DATA).write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
        (report / _PAGE).write_text(page(found, other), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        terminal.show(Console(), found, other)


def _measured(name: str, chosen: set[str], sizes: list[str]) -> Bench:
    """A bench that says on standard error how far it is: on a terminal at once, else now and then.

    Raises as `bringup_conformance.bench.measure.bench`, and BackendError for an unknown device.
    """
    console, doing = Console(stderr=True), f"{name}: the roofs"
    shown = console.status(doing) if console.is_terminal else None

    def show(row: str, done: int, count: int) -> None:
        nonlocal doing
        doing = f"{name}: {done} of {count}, {row}"
        if shown is not None:
            shown.update(doing)

    with devices.use(name) as device, shown or repeated(console, lambda: doing, INTERVAL):
        date = time.strftime("%Y-%m-%d %H:%M:%S")
        return measure(device, date, sizes, lambda each: each.name in chosen, show)


def _workloads(words: str) -> set[str]:
    """The names of programs that are meant.  Raises BringupError for an unknown word."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]

    def of(word: str) -> list[Workload]:
        return [each for each in WORKLOADS if word in (each.name, each.family)]

    for word in wanted:
        if not of(word):
            families = ", ".join(dict.fromkeys(each.family for each in WORKLOADS))
            raise BringupError(
                f"{word!r} is no program of the bench", fix=f"name one, or a family: {families}"
            )
    return {each.name for word in wanted for each in of(word)} or {each.name for each in WORKLOADS}


def _sizes(words: str) -> list[str]:
    """Raises BringupError for an unknown word."""
    wanted = [word.strip() for word in words.split(",")]
    for word in wanted:
        if word not in SIZES:
            raise BringupError(f"{word!r} is no size", fix=f"use some of {', '.join(SIZES)}")
    return [size for size in SIZES if size in wanted]


def _against(name: str, chosen: set[str], sizes: list[str]) -> Bench | None:
    """An earlier bench, or one of another device that is made now."""
    if not name:
        return None
    path = Path(name)
    file = path / _DATA if path.is_dir() else path
    if not file.is_file():
        return _measured(name, chosen, sizes)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BringupError(f"{file} is no JSON", fix="name the folder of a bench") from error
    return Bench.from_json(data)
