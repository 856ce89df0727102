"""The console script ``conformance``: the commands and their options.

Exit status: 0 if all is right, 1 if something failed, 2 if nothing could be run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import platformdirs
import typer
from rich.console import Console

from bringup.cli.output import problem
from bringup.errors import BringupError
from bringup_conformance import listing, runner, terminal

app = typer.Typer(
    help="Prove a device right.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: What the command ends with if it could not do its work.
NOT_RUN = 2
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def main() -> None:
    """Entry point of the console script; errors of ours end it with status 2 and their text."""
    try:
        app()
    except (BringupError, OSError) as error:
        problem(str(error))
        sys.exit(NOT_RUN)


@app.command()
def run(
    backend: Annotated[str, typer.Option(help="A device, as `bringup devices` lists it.")],
    level: Annotated[
        str, typer.Option(help="smoke, ops or fusion; each with those before it.")
    ] = "fusion",
    seed: Annotated[int, typer.Option(help="Which cases to draw.")] = 0,
    only: Annotated[
        str, typer.Option(help="Cases of these levels, ops, kinds, dtypes or tags: 'add/f32,exp'.")
    ] = "",
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.json and a file for each failure.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the suite on a device."""
    folder = report or _own_folder(backend)
    with _progress(as_json) as show:
        found = runner.run(backend, level, seed, only=only, report=folder, on_progress=show)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        terminal.show_report(Console(), found)
    if found.passed + found.failed == 0:
        problem(f"nothing was run: no case is of {only!r}" if only else "nothing was run")
        raise typer.Exit(NOT_RUN)
    raise typer.Exit(0 if found.ok else 1)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the levels, the ops with their dtypes, and the passes a failure may be traced to."""
    found = listing.contents()
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        terminal.show_contents(found)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A file of a failure that a run wrote.")],
    backend: Annotated[str, typer.Option(help="Another device than the file's.")] = "",
    as_json: Json = False,
) -> None:
    """Run a failing program again.  Status 0 if it passes now."""
    try:
        failure, found = runner.replay(file, backend or None)
    except (ValueError, KeyError, TypeError) as error:
        raise BringupError(f"{file} cannot be replayed: {error}") from error
    if as_json:
        now = None if found is None else {"kind": found.kind, "what": found.what}
        typer.echo(json.dumps({**failure.to_json(), "passes": found is None, "now": now}))
    else:
        terminal.show_replay(Console(), failure, found)
    raise typer.Exit(0 if found is None else 1)


def _own_folder(backend: str) -> Path:
    """Where files of failures go if nobody says: the cache, or a temporary folder without one."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in backend)
    folder = platformdirs.user_cache_path("bringup") / "conformance" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="conformance-"))
    return folder


@contextmanager
def _progress(as_json: bool) -> Iterator[runner.OnProgress]:
    console = Console(stderr=as_json)
    if not console.is_terminal:
        yield lambda _progress: None
        return
    with terminal.bar(console) as show:
        yield show
