"""``conformance list``: what the suite consists of."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bringup.errors import BringupError
from bringup_conformance.commands.options import Json
from bringup_conformance.reporting import listing, terminal


def list_command(
    rules: Annotated[
        bool, typer.Option("--rules", help="The rules a device is held to, each with its id.")
    ] = False,
    only: Annotated[
        str,
        typer.Option(
            metavar="WORDS", help="Rules of an area or an op: 'memory', 'add', 'add.f32', or an id."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List the levels, tags, kinds of data, and ops with their dtypes; or the rules."""
    if only and not rules:
        raise BringupError("--only chooses among rules", fix="add --rules")
    contents = {"rules": listing.rules(only)} if rules else listing.contents()
    if rules and not contents["rules"]:
        raise BringupError(
            f"no rule is of {only!r}", fix="`conformance list --rules` names them all"
        )
    if as_json:
        typer.echo(json.dumps(contents, indent=2, ensure_ascii=False))
    elif rules:
        terminal.show_rules(contents["rules"])
    else:
        terminal.show_contents(contents)
