"""What the commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bringup.cli.shell import INTERRUPTED, NOT_RUN
from bringup.errors import BringupError

FailureFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file of a failure that a run wrote.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="SECONDS",
        help="Without a sign of life, before a case hangs; by default as of a failure's own run.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def progress(console: Console) -> Progress:
    """A bar of what is done of how much, which terminals alone show."""
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def not_understood(file: Path, done: str, error: Exception) -> BringupError:
    """The error for a failure file with something else in it than a run writes."""
    why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return BringupError(f"{file} cannot be {done}: {why}")


__all__ = ["INTERRUPTED", "NOT_RUN", "FailureFile", "Json", "Timeout", "not_understood", "progress"]
