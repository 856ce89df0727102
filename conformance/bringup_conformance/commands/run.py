"""``conformance run``: the suite on a device."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from bringup.cli.output import problem
from bringup.errors import BringupError
from bringup_conformance.commands import asked
from bringup_conformance.commands.shared import INTERRUPTED, NOT_RUN, Json
from bringup_conformance.execution import expectations, runner
from bringup_conformance.execution.journal import Journal, job_of
from bringup_conformance.execution.schedule import resembling
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import folders, terminal
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.reports import Report


def run(
    context: typer.Context,
    backend: asked.Backend = "",
    level: asked.Level = "runtime",
    seed: asked.Seed = 0,
    only: asked.Only = "",
    jobs: asked.Jobs = None,
    fraction: asked.Fraction = "",
    time_budget: asked.TimeBudget = None,
    timeout: asked.Timeout = TIMEOUT,
    few_kernels: asked.FewKernels = None,
    report: asked.ReportFolder = None,
    resume: asked.Resume = None,
    corpus: asked.Corpus = None,
    expect: asked.Expect = None,
    unclaimed: asked.Unclaimed = False,
    certificate: asked.Certificate = None,
    verbose: asked.Verbose = False,
    as_json: Json = False,
) -> None:
    """Run the suite on a device.

    Ctrl-C, or SIGTERM, ends it with what is known by then, and status 130.
    """
    part = _part(fraction)
    if resume is not None:
        before = _resumed(context, resume, report)
        backend = backend or before.header["environment"]["device"]
        job = job_of(before.header, timeout)
        level, seed, only, part = job.level, job.seed, job.only, job.fraction
    elif not backend:
        raise BringupError("no device is named", fix="add --backend NAME; `bringup devices` lists")
    if certificate is not None:
        _check(certificate, level, in_part=bool(only or part))
    options = runner.Options(
        jobs=jobs,
        only=only,
        fraction=part,
        time_budget=time_budget,
        timeout=timeout,
        report=resume or report or folders.new(backend),
        resume=resume is not None,
        few_kernels=few_kernels,
        command=("conformance", *sys.argv[1:]),
        expect=None if expect is None else expectations.load(expect),
        unclaimed=unclaimed,
        corpus=corpus,
    )
    with terminal.progress(level, as_json=as_json) as show, ended_gently():
        found = runner.run_with(backend, level, seed, replace(options, on_progress=show))
    _show(found, options, as_json, verbose)
    if certificate is not None:
        certify(found, certificate, options.expect)
    raise typer.Exit(0 if found.ok else 1)


def _resumed(context: typer.Context, folder: Path, report: Path | None) -> Journal:
    """The journal of a run to go on with, which says what that is.

    Raises BringupError for an option that says otherwise.
    """
    found = Journal.read(folder)
    known = {name: found.header[name] for name in ("level", "seed", "only", "few_kernels")}
    part = found.header["fraction"]
    known["fraction"] = "" if part is None else "/".join(map(str, part))
    known["report"] = folder
    for name, value in known.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and context.params[name] != value:
            raise BringupError(
                f"{folder} is of a run with {name} {value!r}, not {context.params[name]!r}",
                fix=f"leave out --{name.replace('_', '-')}",
            )
    return found


def _check(certificate: Path, level: str, *, in_part: bool) -> None:
    """Raises BringupError for what is known beforehand to give no certificate."""
    certificates.check_level(level)
    certificates.check_folder(certificate)
    if in_part:
        raise BringupError(
            "a part of a run gives no certificate", fix="leave out the selection and fraction"
        )


def _show(found: Report, options: runner.Options, as_json: bool, verbose: bool) -> None:
    """Print it; ends the command if there is too little of it."""
    none = found.passed + found.failed == 0
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    elif not none or found.unsupported or found.interrupted:
        terminal.show_expected(Console(), found)
        terminal.show_report(Console(), found, options.report, verbose=verbose)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if none:
        why, fix = "", ""
        if found.unsupported:
            why = ": the device declares none of it"
        elif found.only:
            why, names = f": no case is of {found.only!r}", resembling(found.only)
            meant = f"did you mean {' or '.join(map(repr, names))}? " if names else ""
            fix = f"\n  fix: {meant}`conformance list` names levels, ops and kinds"
        problem(f"nothing was run{why}{fix}")
        raise typer.Exit(NOT_RUN)


def certify(found: Report, folder: Path, expected: expectations.Expectations | None = None) -> None:
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


@contextmanager
def ended_gently() -> Iterator[None]:
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
