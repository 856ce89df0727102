"""``conformance compare``: what changed between two reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup_conformance.commands.shared import Json
from bringup_conformance.reporting import documents, terminal
from bringup_conformance.reporting.compare import compare as compared


def compare(
    before: Annotated[Path, typer.Argument(help="The folder of a report, or its report.json.")],
    after: Annotated[Path, typer.Argument(help="A later one.")],
    as_json: Json = False,
) -> None:
    """Tell what broke between two reports, what was mended, and what drifted.

    Status 1 if the later one is worse: something fails or is not tested any more.
    """
    found = compared(documents.read(before), documents.read(after))
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        terminal.show_comparison(Console(), found)
    raise typer.Exit(1 if found.worse else 0)
