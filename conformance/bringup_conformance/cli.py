"""The console script ``conformance``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bringup.errors import BringupError
from bringup_conformance.runner import LEVELS, Case, Report, run

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prove a device right.")
_WORST = 5


@app.command("run")
def run_command(
    backend: Annotated[str, typer.Option(help="device, as `bringup devices` lists it")],
    level: Annotated[str, typer.Option(help="smoke, ops or fusion")] = "fusion",
    seed: Annotated[int, typer.Option(help="which cases to draw")] = 0,
    only: Annotated[str, typer.Option(help="run only cases whose name contains this")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    report: Annotated[Path | None, typer.Option(help="folder for files of failures")] = None,
) -> None:
    """Run the suite on a device; exit status 0 if all is right, 1 if not, 2 if it cannot be run."""
    console = Console(stderr=as_json)
    if level not in LEVELS:
        console.print(f"no level {level!r}; use one of {', '.join(LEVELS)}")
        raise typer.Exit(2)
    try:
        found = _run(console, backend, level, seed, only)
    except BringupError as error:
        console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(2) from None
    if report is not None:
        _write(report, found)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        _show(console, found)
    raise typer.Exit(0 if found.ok else 1)


@app.command("list")
def list_command() -> None:
    """Print the levels."""
    for name in LEVELS:
        typer.echo(name)


def main() -> None:
    """Entry point of the console script."""
    app()


def _run(console: Console, backend: str, level: str, seed: int, only: str) -> Report:
    if not console.is_terminal:
        return run(backend, level, seed, only=only)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(level, total=None)

        def step(case: Case) -> None:
            progress.update(task, advance=1, description=case.name)

        return run(backend, level, seed, only=only, progress=step)


def _write(folder: Path, found: Report) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, failure in enumerate(found.failures):
        text = json.dumps(failure.to_json(), indent=1)
        (folder / f"failure-{number:03}.json").write_text(text, encoding="utf-8")


def _show(console: Console, found: Report) -> None:
    for failure in sorted(found.failures, key=lambda f: len(f.case.graph))[:_WORST]:
        console.print(f"[red]FAIL[/] {failure.case.name} ({failure.mode})", highlight=False)
        console.print(f"{failure.detail}\n{failure.case.graph}", markup=False, highlight=False)
    table = Table("op", "dtype", "pass", "fail", "worst ULP", "share of bound")
    for (group, dtype), (passed, failed, ulp, ratio) in found.cells.items():
        colour = "red" if failed else "green"
        table.add_row(
            group, dtype, str(passed), f"[{colour}]{failed}[/]", f"{ulp:.2f}", f"{ratio:.2f}"
        )
    console.print(table)
    for (claim, dtype), reason in found.unsupported.items():
        console.print(f"unsupported: {claim} {dtype}: {reason}", markup=False, highlight=False)
    console.print(
        f"{found.backend}, level {found.level}, seed {found.seed}: {found.passed} passed, "
        f"{found.failed} failed, {len(found.unsupported)} unsupported in {found.seconds:.1f} s",
        highlight=False,
    )
