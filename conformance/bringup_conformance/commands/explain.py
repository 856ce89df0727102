"""``conformance explain``: what is guilty of a failure."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from bringup_conformance.commands.shared import FailureFile, Json, Timeout, not_understood
from bringup_conformance.diagnosis import reproduce
from bringup_conformance.reporting.causes import show_cause


def explain(
    file: FailureFile,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Another device than the file's.")
    ] = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Find the pass, kernel or place in memory that is guilty of a failure.

    Shows what it was given, what it made of that, and the generated source; the file keeps all of
    it.  Status 0 if the failure is gone.
    """
    try:
        failure, cause = reproduce.explain(file, backend or None, timeout)
    except (ValueError, KeyError, TypeError) as error:
        raise not_understood(file, "explained", error) from error
    if as_json:
        found = None if cause is None else {"title": cause.title, **cause.to_json()}
        typer.echo(json.dumps({**failure.to_json(), "passes": cause is None, "cause": found}))
    elif cause is None:
        typer.echo(f"passes now: {failure.document['case']['name']}")
    else:
        show_cause(Console(), failure, cause)
    raise typer.Exit(0 if cause is None else 1)
