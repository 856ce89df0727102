"""``conformance verify``: a certificate looked through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bringup.errors import BringupError
from bringup_conformance.commands.shared import Json, Timeout
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting import certificate, verifying
from bringup_conformance.reporting.failures import TIMEOUT


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
    found, statement = looked_through(folder, backend, rerun, sample, timeout or TIMEOUT)
    if as_json:
        typer.echo(json.dumps({"holds": not found, "problems": found, "statement": statement}))
    else:
        _show(found, statement, folder)
    raise typer.Exit(1 if found else 0)


def looked_through(
    folder: Path,
    backend: str = "",
    rerun: bool = False,
    sample: int = verifying.SAMPLE,
    timeout: float = TIMEOUT,
) -> tuple[list[str], dict[str, object]]:
    """Why a certificate does not hold, a sentence each, and what it states.

    The device is the one it names, unless another is asked for; it is opened only if it was asked
    for or cases are run again.  Raises BackendError if it cannot be opened, BringupError if the
    folder holds no certificate.
    """
    if not (folder / certificate.MANIFEST).is_file():
        raise BringupError(
            f"{folder} holds no certificate: there is no {certificate.MANIFEST}",
            fix="name the folder that `conformance run --certificate` wrote",
        )
    found = verifying.altered(folder)
    if found:
        return found, {}
    try:
        given = verifying.read(folder)
        found = verifying.inconsistent(given)
    except (ValueError, LookupError, TypeError, AttributeError, BringupError) as error:
        return [f"its files are not those of a certificate: {error!r}"], {}
    statement = dict(given.statement)
    if found or not (backend or rerun):
        return found, statement
    target = DeviceTarget.named(backend or str(statement["backend"]))
    found = verifying.mismatched(given, target)
    if rerun and not found:
        found = verifying.rerun(given, target, sample, timeout=timeout)
    return found, statement


def _show(found: list[str], statement: dict[str, object], folder: Path) -> None:
    console = Console()
    for each in found:
        console.print(Text(f"refused: {each}", "bold red"), soft_wrap=True)
    if not found:
        what = f"{statement['product']}, level {statement['level']}, seed {statement['seed']}"
        console.print(Text(f"{folder} holds: {what}", "bold green"), soft_wrap=True)
