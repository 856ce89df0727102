"""``conformance list``: what the suite holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bringup.cli.output import problem
from bringup_conformance.commands.shared import NOT_RUN, Json
from bringup_conformance.reporting import listing, terminal


def list_command(
    rules: Annotated[
        bool, typer.Option("--rules", help="The rules a device is held to, each with its id.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Rules of an area or an op: 'memory', 'add', 'add.f32', or an id.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the levels, the ops with their dtypes, and the kinds of data; or the rules."""
    if only and not rules:
        problem("--only chooses among rules: add --rules")
        raise typer.Exit(NOT_RUN)
    found = {"rules": listing.rules(only)} if rules else listing.contents()
    if rules and not found["rules"]:
        problem(f"no rule is of {only!r}: `conformance list --rules` names them all")
        raise typer.Exit(NOT_RUN)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif rules:
        terminal.show_rules(found["rules"])
    else:
        terminal.show_contents(found)
