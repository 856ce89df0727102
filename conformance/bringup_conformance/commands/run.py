"""``conformance run``: the suite on a device."""

from __future__ import annotations

import json
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
from bringup_conformance.commands.shared import INTERRUPTED, NOT_RUN, Json
from bringup_conformance.execution import expectations, runner
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import expected as expected_text
from bringup_conformance.reporting import terminal
from bringup_conformance.reporting.reports import Report


def run(
    backend: Annotated[str, typer.Option(help="A device, as `bringup devices` lists it.")],
    level: Annotated[
        str,
        typer.Option(
            help="smoke, ops, fusion, runtime or exhaustive, each with those before it; or soak."
        ),
    ] = "fusion",
    seed: Annotated[int, typer.Option(help="Which cases to draw.")] = 0,
    only: Annotated[
        str, typer.Option(help="Cases of these levels, ops, kinds, dtypes or tags: 'add/f32,exp'.")
    ] = "",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            help="Worker processes: as many as cores, at most 4, by default; 0 for none.",
        ),
    ] = None,
    fraction: Annotated[
        str, typer.Option(help="i/N: part i of N; all parts together are the whole run.")
    ] = "",
    time_budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no more is begun.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a case counts as hanging.")
    ] = 60.0,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.html, .json, junit.xml, failures.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Folder from which level soak goes on, and that it fills.")
    ] = None,
    expect: Annotated[
        Path | None, typer.Option(help="TOML file of what is known to be missing or broken.")
    ] = None,
    unclaimed: Annotated[
        bool, typer.Option("--unclaimed", help="Also try what the device does not declare.")
    ] = False,
    certificate: Annotated[
        Path | None, typer.Option(help="New folder for a certificate, of a whole run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the suite on a device.

    Ctrl-C ends it with what is known by then, and status 130.
    """
    part = _part(fraction)
    expected = None if expect is None else expectations.load(expect)
    if certificate is not None:
        certificates.check_level(level)
        certificates.check_folder(certificate)
    folder = report or _own_folder(backend)
    with _progress(as_json) as show:
        found = runner.run(
            backend,
            level,
            seed,
            jobs=jobs,
            only=only,
            fraction=part,
            time_budget=time_budget,
            timeout=timeout,
            report=folder,
            on_progress=show,
            expect=expected,
            unclaimed=unclaimed,
            corpus=corpus,
        )
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        terminal.show_report(Console(), found, folder)
        expected_text.show(Console(), found)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if found.passed + found.failed == 0:
        problem(f"nothing was run: no case is of {only!r}" if only else "nothing was run")
        raise typer.Exit(NOT_RUN)
    if certificate is not None:
        _certify(found, certificate, expected)
    raise typer.Exit(0 if found.ok else 1)


def _certify(found: Report, folder: Path, expected: expectations.Expectations | None) -> None:
    """Write a certificate, or say why there is none and end with 1."""
    why = certificates.refusals(found, expected or expectations.Expectations())
    for each in why:
        problem(f"no certificate: {each}")
    if why:
        raise typer.Exit(1)
    root = certificates.write(found, folder, expected)
    typer.echo(f"certificate in {folder}, {root}", err=True)


def _part(fraction: str) -> tuple[int, int] | None:
    """The i and N of ``i/N``.  Raises BringupError if it is none."""
    if not fraction:
        return None
    part, _, parts = fraction.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise BringupError(f"{fraction!r} is no fraction", fix="use 1/N to N/N")
    return int(part), int(parts)


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
