"""``conformance compare``: what changed between two reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup.errors import BringupError
from bringup_conformance.commands.shared import Json
from bringup_conformance.reporting import folders, reports, terminal
from bringup_conformance.reporting.compare import compare as compared


def compare(
    before: Annotated[
        Path | None,
        typer.Argument(metavar="BEFORE", help="The folder of a report, or its report.json."),
    ] = None,
    after: Annotated[Path | None, typer.Argument(metavar="AFTER", help="A later one.")] = None,
    last: Annotated[
        bool, typer.Option("--last", help="The last two runs whose folder nobody named.")
    ] = False,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="With --last: the device; the one that ran last.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Tell what broke between two reports, what was mended, and what drifted.

    Status 1 if the later one is worse: something fails or is not tested any more.
    """
    if last and before is None:
        before, after = folders.last_two(backend)
    if before is None or after is None:
        raise BringupError("two reports are compared", fix="name their folders, or add --last")
    found = compared(reports.read(before), reports.read(after))
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        terminal.show_comparison(Console(), found)
    raise typer.Exit(1 if found.worse else 0)
