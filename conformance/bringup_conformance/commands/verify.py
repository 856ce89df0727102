"""``conformance verify``: whether a certificate holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup_conformance.commands.options import Json, Timeout
from bringup_conformance.reporting import verifying
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.terminal import print_line


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a certificate.")],
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="The device it is of: is it the one that is here?")
    ] = "",
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Run cases again on the device and compare.")
    ] = False,
    sample: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="How many of them, drawn by the hash; 0 for all."),
    ] = verifying.SAMPLE,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Refuse a certificate that was altered, is reduced, or is of another device.

    Status 0 if it holds, 1 with one sentence for each reason if it does not.
    """
    seconds = timeout or TIMEOUT
    problems, statement = verifying.problems(folder, backend, rerun, sample, seconds)
    if as_json:
        data = {"holds": not problems, "problems": problems, "statement": statement}
        typer.echo(json.dumps(data))
        raise typer.Exit(1 if problems else 0)
    console = Console()
    for each in problems:
        print_line(console, f"refused: {each}", "bold red")
    if problems:
        raise typer.Exit(1)
    what = f"{statement['product']}, level {statement['level']}, seed {statement['seed']}"
    print_line(console, f"{folder} holds: {what}", "bold green")
