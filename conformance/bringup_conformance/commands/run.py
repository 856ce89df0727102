"""``conformance run``: the suite on a device."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import platformdirs
import typer
from rich.console import Console

from bringup.cli.output import problem
from bringup.errors import BringupError
from bringup_conformance.commands import asked
from bringup_conformance.commands.shared import INTERRUPTED, NOT_RUN, Json
from bringup_conformance.execution import expectations, holding, runner
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import expected as expected_text
from bringup_conformance.reporting import terminal
from bringup_conformance.reporting.reports import Report


def run(
    backend: asked.Backend,
    level: asked.Level = "runtime",
    seed: asked.Seed = 0,
    only: asked.Only = "",
    jobs: asked.Jobs = None,
    fraction: asked.Fraction = "",
    time_budget: asked.TimeBudget = None,
    timeout: asked.Timeout = 60.0,
    report: asked.ReportFolder = None,
    corpus: asked.Corpus = None,
    expect: asked.Expect = None,
    unclaimed: asked.Unclaimed = False,
    certificate: asked.Certificate = None,
    as_json: Json = False,
) -> None:
    """Run the suite on a device.

    Ctrl-C, or SIGTERM, ends it with what is known by then, and status 130.
    """
    options = runner.Options(
        jobs=jobs,
        only=only,
        fraction=_part(fraction),
        time_budget=time_budget,
        timeout=timeout,
        report=report or _own_folder(backend),
        expect=None if expect is None else expectations.load(expect),
        unclaimed=unclaimed,
        corpus=corpus,
    )
    if certificate is not None:
        _check(certificate, level, in_part=bool(only or fraction))
    with _progress(as_json) as show, _ended_gently():
        found = runner.run_with(backend, level, seed, replace(options, on_progress=show))
    _show(found, options, as_json)
    if certificate is not None:
        _certify(found, certificate, options.expect)
    raise typer.Exit(0 if found.ok else 1)


def _check(certificate: Path, level: str, *, in_part: bool) -> None:
    """Raises BringupError for what is known beforehand to give no certificate."""
    certificates.check_level(level)
    certificates.check_folder(certificate)
    if in_part:
        raise BringupError(
            "a part of a run gives no certificate", fix="leave out the selection and fraction"
        )


def _show(found: Report, options: runner.Options, as_json: bool) -> None:
    """Print it; ends the command if there is too little of it."""
    none = found.passed + found.failed == 0
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    elif not none or found.unsupported or found.interrupted:
        terminal.show_report(Console(), found, options.report)
        expected_text.show(Console(), found)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if none:
        why = f": no case is of {found.only!r}" if found.only else ""
        if found.unsupported:
            why = ": the device declares none of it"
        problem(f"nothing was run{why}")
        raise typer.Exit(NOT_RUN)


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
    """Where files of failures go if nobody says: the cache; a temporary folder without one, or
    while another run writes there.
    """
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in backend)
    folder = platformdirs.user_cache_path("bringup") / "conformance" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = holding.is_held(folder)
    except OSError:
        taken = True
    return Path(tempfile.mkdtemp(prefix="conformance-")) if taken else folder


@contextmanager
def _ended_gently() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run with a report, and others do not end the report:
    what limits a command's time often sends two.
    """
    # A shell has what runs in its background ignore the keyboard.
    both = (signal.SIGINT, signal.SIGTERM)
    signals = [each for each in both if signal.getsignal(each) is not signal.SIG_IGN]

    def end(_signal: int, _frame: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(each, end) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


@contextmanager
def _progress(as_json: bool) -> Iterator[runner.OnProgress]:
    console = Console(stderr=as_json)
    if not console.is_terminal:
        yield lambda _progress: None
        return
    with terminal.bar(console) as show:
        yield show
