"""``conformance list``: what the suite holds."""

from __future__ import annotations

import json

import typer

from bringup_conformance.commands.shared import Json
from bringup_conformance.reporting import listing, terminal


def list_command(as_json: Json = False) -> None:
    """List the levels, the ops with their dtypes, and the passes a failure may be traced to."""
    found = listing.contents()
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        terminal.show_contents(found)
