"""``conformance shrink``: a failure made smaller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bringup_conformance.commands.shared import FailureFile, Json, Timeout, not_understood
from bringup_conformance.diagnosis import reproduce


def shrink(
    file: FailureFile,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to try at most.", min=0)
    ] = 60.0,
    attempts: Annotated[
        int, typer.Option(metavar="N", help="Programs to try at most.", min=0)
    ] = 5000,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another file to write to.")
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Another device than the file's.")
    ] = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make the program of a failure smaller, trying harder than a run does.

    Status 0 if the failure is gone.
    """
    try:
        failure, before = reproduce.shrink(
            file, backend or None, seconds, attempts, output, timeout
        )
    except (ValueError, KeyError, TypeError) as error:
        raise not_understood(file, "shrunk", error) from error
    passes = before is None
    if as_json:
        found = {**failure.to_json(), "passes": passes, "nodes_before": before}
        typer.echo(json.dumps(found))
    elif passes:
        typer.echo(f"passes now: {failure.document['case']['name']}")
    else:
        typer.echo(failure.shown["ir"])
        typer.echo(f"{before} -> {failure.nodes} instructions: {failure.file}")
    raise typer.Exit(0 if passes else 1)
