"""What the commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

#: What the command ends with if it could not do its work.
NOT_RUN = 2
#: What it ends with if someone stopped it, as programs that SIGINT ends do.
INTERRUPTED = 130
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
