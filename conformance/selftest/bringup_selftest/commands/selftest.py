"""``conformance selftest``: the suite on devices that are wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup.errors import BringupError
from bringup_conformance.commands.options import Json, progress
from bringup_conformance.execution.runner import usable_cores
from bringup_selftest import matrix, matrix_report
from bringup_selftest.killing import Options

Level = Annotated[
    str, typer.Option(metavar="LEVEL", help="How far a run goes that has to find them.")
]
Fast = Annotated[bool, typer.Option("--fast", help="Few faults and the cases that find them.")]
Small = Annotated[bool, typer.Option("--small", help="Runs of the size that simulators get.")]
Directed = Annotated[bool, typer.Option("--directed", help="Count only cases that meet the fault.")]

_Show = Callable[[matrix.Matrix], None]


def selftest(
    only: Annotated[
        str,
        typer.Option(
            metavar="WORDS", help="Faults of these ids, groups or kinds: 'IX02,fusion,plan'."
        ),
    ] = "",
    level: Level = "runtime",
    seed: Annotated[int, typer.Option(metavar="N", help="Which cases to draw.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", help="Runs of the right devices, each by a seed, for false positives."
        ),
    ] = 1,
    backend: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Right devices besides the reference.")
    ] = None,
    fast: Fast = False,
    small: Small = False,
    directed: Directed = False,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", metavar="N", help="Processes; 0 for the cores.")
    ] = 0,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for selftest.json and selftest.md.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plant faults in a right device and see what finds them.

    Status 1 if a group is not found out well enough, or a right device fails.
    """
    chosen = matrix.fast() if fast else matrix.selected(only)
    if not chosen:
        raise BringupError(f"no fault is of {only!r}", fix=_suggestion(only))
    options = Options(level, seed, simulated=small, directed=directed)
    if fast:
        options = Options("fusion", seed, simulated=True, directed=directed, only=matrix.FAST_CASES)
    whole = not only and not fast
    with _progress(as_json, report) as show:
        found = matrix.run(chosen, options, jobs or usable_cores(), seeds, backend or [], show)
    found.whole = whole
    _tell(found, report, as_json)
    raise typer.Exit(1 if found.problems else 0)


def _suggestion(only: str) -> str:
    """What a wrong selection should have been: close names, else what all faults belong to."""
    known = matrix.selected("")
    kinds, groups = (
        sorted({getattr(f, name).lower() for f in known}) for name in ("kind", "group")
    )
    close = get_close_matches(only, [*(f.id for f in known), *kinds, *groups], n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"use kinds ({', '.join(kinds)}) or words that groups begin with ({'; '.join(groups)})"


def _tell(found: matrix.Matrix, report: Path | None, as_json: bool) -> None:
    if report is not None:
        matrix_report.write(report, found)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        matrix_report.show(Console(), found)


@contextmanager
def _progress(as_json: bool, report: Path | None) -> Iterator[_Show]:
    """What shows, and writes into the report's folder, all that is known after each fault."""
    console = Console(stderr=as_json)
    bar = progress(console)
    task = bar.add_task("clean runs", total=None)

    def show(found: matrix.Matrix) -> None:
        last = f"{found.rows[-1].id} {found.rows[-1].title}"
        if found.clean:
            last = f"{found.clean[-1].device}, seed {found.clean[-1].seed}"
        bar.update(task, completed=len(found.rows), total=found.planned, description=last)
        if report is not None:
            matrix_report.write(report, found)

    with bar:
        yield show
