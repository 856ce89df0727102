"""``conformance mutants``: small mistakes in a backend's code, and what of a run finds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from bringup.cli.output import line, table
from bringup.cli.shell import device_names, one_of
from bringup.errors import BringupError
from bringup_conformance.commands import options
from bringup_conformance.commands.coverage import Packages, modules_of
from bringup_conformance.commands.options import Json, progress
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.runner import usable_cores
from bringup_selftest.mutants.mutant import Kind
from bringup_selftest.mutants.trying import Asked, Tried, tried

Backend = Annotated[
    str, typer.Option(metavar="NAME", help="A device.", autocompletion=device_names)
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        autocompletion=one_of(*get_args(Kind)),
        help="source: of the Python; emitted: of the LLVM IR that it makes with bringup.llvm."
        "  Both by default.",
    ),
]
Sample = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="How many of each kind, chosen by the seed; 0 for all."),
]
Seconds = Annotated[float, typer.Option(metavar="S", help="Seconds that one is tried for.")]
ReportFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for mutants.json.")]


def mutants(
    backend: Backend,
    level: options.Level = "runtime",
    seed: options.Seed = 0,
    only: options.Only = "",
    kinds: Kinds = None,
    packages: Packages = None,
    sample: Sample = 100,
    seconds: Seconds = 60.0,
    jobs: options.Jobs = None,
    report: ReportFolder = None,
    as_json: Json = False,
) -> None:
    """Plant small mistakes in a backend's code, one at a time, and see whether the suite fails.

    A mistake that lives is a case that the suite lacks, or one that changes no result: what only
    makes a program slower, or never happens.  Status 0 whatever lives.
    """
    for kind in kinds or ():
        if kind not in get_args(Kind):
            raise BringupError(f"no kind is {kind!r}", fix=f"use {' or '.join(get_args(Kind))}")
    chosen: tuple[Kind, ...] = tuple(k for k in get_args(Kind) if k in (kinds or get_args(Kind)))
    count = usable_cores() if jobs is None else max(1, jobs)
    wanted = Asked(backend, Job(level, seed, only), chosen, sample, seconds, count)
    with _progress(as_json, report) as show:
        found = tried(wanted, modules_of([backend], packages)[1], show)
        show(found)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _show(found)


def _show(found: Tried) -> None:
    console = Console()
    for row in found.rows:
        if not row.killed:
            line(f"lives: {row.title}  ({row.group}, met by {row.met} of {row.cases} items)")
    for name, what in found.failed.items():
        line(f"fails without a mistake, and is left out: {name}: {what}")
    for mutant in found.unmet:
        line(f"not met: {mutant.module}:{mutant.line}: {mutant.change}")
    rows = [
        (kind, rule, str(killed), str(of), f"{killed / of:.0%}")
        for (kind, rule), (killed, of) in found.by_rule().items()
    ]
    table(("kind", "rule", "killed", "of", ""), rows, console)
    killed = sum(row.killed for row in found.rows)
    line(
        f"{killed} of {len(found.rows)} mutants killed; {len(found.unmet)} are met by no item,"
        f" {found.refused} LLVM refuses; there are {found.of}"
    )


@contextmanager
def _progress(as_json: bool, report: Path | None) -> Iterator[Callable[[Tried], None]]:
    """What shows, and writes into the report's folder, all that is known after each mutant."""
    console = Console(stderr=as_json)
    bar = progress(console)
    task = bar.add_task("a clean run", total=None)

    def show(found: Tried) -> None:
        done = len(found.rows) + found.refused
        bar.update(task, completed=done, description=f"{len(found.rows)} tried")
        if report is not None:
            report.mkdir(parents=True, exist_ok=True)
            text = json.dumps(found.to_json(), indent=1, ensure_ascii=False)
            (report / "mutants.json").write_text(text + "\n", encoding="utf-8")

    with bar:
        yield show
