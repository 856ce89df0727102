"""What the commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup.errors import BringupError

#: What the command ends with if it could not do its work.
NOT_RUN = 2
#: What it ends with if someone stopped it, as programs that SIGINT ends do.
INTERRUPTED = 130
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def not_understood(file: Path, done: str, error: Exception) -> BringupError:
    """The error for a failure file with something else in it than a run writes."""
    why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return BringupError(f"{file} cannot be {done}: {why}")
