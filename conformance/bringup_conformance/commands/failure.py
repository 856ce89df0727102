"""``conformance replay``, ``explain`` and ``shrink``: commands on the file of a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup.errors import BringupError
from bringup_conformance.commands.options import FailureFile, Json, OtherBackend, Timeout
from bringup_conformance.diagnosis import reproduce
from bringup_conformance.execution.replay import replay as replay_file
from bringup_conformance.reporting import causes, terminal


@contextmanager
def _readable(file: Path, done: str) -> Iterator[None]:
    """Raises BringupError for a failure file that does not hold what a run writes."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise BringupError(f"{file} cannot be {done}: {why}") from error


def replay(
    file: FailureFile,
    backend: OtherBackend = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a failing program again.  Status 0 if it passes now."""
    with _readable(file, "replayed"):
        failure, problem = replay_file(file, backend or None, timeout)
    if as_json:
        now = None if problem is None else {"kind": problem.kind, "what": problem.what}
        typer.echo(json.dumps({**failure.to_json(), "passes": problem is None, "now": now}))
    else:
        terminal.show_replay(Console(), failure, problem)
    raise typer.Exit(0 if problem is None else 1)


def explain(
    file: FailureFile,
    backend: OtherBackend = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Find the pass, kernel or place in memory that is guilty of a failure.

    Shows what it was given, what it made of that, and the generated source; the file keeps all of
    it.  Status 0 if the failure is gone.
    """
    with _readable(file, "explained"):
        failure, cause = reproduce.explain(file, backend or None, timeout)
    if as_json:
        data = None if cause is None else {"title": cause.title, **cause.to_json()}
        typer.echo(json.dumps({**failure.to_json(), "passes": cause is None, "cause": data}))
    elif cause is None:
        typer.echo(f"passes now: {failure.document['case']['name']}")
    else:
        causes.show_cause(Console(), failure, cause)
    raise typer.Exit(0 if cause is None else 1)


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
    backend: OtherBackend = "",
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make the program of a failure smaller, trying harder than a run does.

    Status 0 if the failure is gone.
    """
    with _readable(file, "shrunk"):
        failure, before = reproduce.shrink(
            file, backend or None, seconds, attempts, output, timeout
        )
    passes = before is None
    if as_json:
        data = {**failure.to_json(), "passes": passes, "nodes_before": before}
        typer.echo(json.dumps(data))
    elif passes:
        typer.echo(f"passes now: {failure.document['case']['name']}")
    else:
        typer.echo(failure.shown["ir"])
        typer.echo(f"{before} -> {failure.nodes} instructions: {failure.file}")
    raise typer.Exit(0 if passes else 1)
