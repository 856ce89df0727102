"""``conformance replay``: a failure again."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from bringup_conformance.commands.shared import FailureFile, Json, Timeout, not_understood
from bringup_conformance.execution.replay import replay as replayed
from bringup_conformance.reporting import terminal


def replay(
    file: FailureFile,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Another device than the file's.")
    ] = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a failing program again.  Status 0 if it passes now."""
    try:
        failure, found = replayed(file, backend or None, timeout)
    except (ValueError, KeyError, TypeError) as error:
        raise not_understood(file, "replayed", error) from error
    if as_json:
        now = None if found is None else {"kind": found.kind, "what": found.what}
        typer.echo(json.dumps({**failure.to_json(), "passes": found is None, "now": now}))
    else:
        terminal.show_replay(Console(), failure, found)
    raise typer.Exit(0 if found is None else 1)
