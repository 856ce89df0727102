"""``conformance run``: the suite on a device."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from bringup.cli.output import problem
from bringup.cli.shell import INTERRUPTED, NOT_RUN
from bringup.errors import BringupError
from bringup_conformance.commands import options
from bringup_conformance.commands.options import Json
from bringup_conformance.execution import expectations, runner
from bringup_conformance.execution.journal import Journal, job_of
from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.execution.schedule import resembling
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import folders, terminal
from bringup_conformance.reporting.compare import Comparison, compare
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.listing import level_of
from bringup_conformance.reporting.reports import Report, document_of, read


def run(
    context: typer.Context,
    backend: options.Backend = "",
    level: options.Level = "runtime",
    seed: options.Seed = 0,
    only: options.Only = "",
    jobs: options.Jobs = None,
    fraction: options.Fraction = "",
    time_budget: options.TimeBudget = None,
    timeout: options.RunTimeout = TIMEOUT,
    few_kernels: options.FewKernels = None,
    report: options.ReportFolder = None,
    resume: options.Resume = None,
    against: options.Against = None,
    corpus: options.Corpus = None,
    expect: options.Expect = None,
    unclaimed: options.Unclaimed = False,
    certificate: options.Certificate = None,
    verbose: options.Verbose = False,
    as_json: Json = False,
) -> None:
    """Run the suite on a device.

    Ctrl-C, or SIGTERM, ends it with what is known by then, and status 130.
    """
    part = _part(fraction)
    if resume is not None:
        journal = _resumed(context, resume)
        backend = backend or journal.header["environment"]["device"]
        job = job_of(journal.header, timeout)
        level, seed, only, part = job.level, job.seed, job.only, job.fraction
    elif not backend:
        raise BringupError("no device is named", fix="add --backend NAME; `bringup devices` lists")
    if certificate is not None:
        certificates.check_level(level)
        certificates.check_folder(certificate)
    if certificate is not None and (only or part):
        raise BringupError(
            "a part of a run gives no certificate", fix="leave out the selection and fraction"
        )
    before = None if against is None else read(against)
    folder = resume or report or folders.new(backend)
    expected = None if expect is None else expectations.load(expect)
    with terminal.progress(level, as_json=as_json) as show, interruptible():
        whole = runner.run(
            backend, level, seed, jobs=jobs, only=only, fraction=part, time_budget=time_budget,
            timeout=timeout, report=folder, resume=resume is not None, few_kernels=few_kernels,
            command=("conformance", *sys.argv[1:]), on_progress=show, expect=expected,
            unclaimed=unclaimed, corpus=corpus, against=before,
        )  # fmt: skip
    comparison = None if before is None else compare(before, document_of(whole))
    _show(whole, folder, comparison, as_json, verbose)
    if certificate is not None:
        certify(whole, certificate, expected)
    worse = comparison is not None and comparison.worse
    raise typer.Exit(0 if whole.ok and not worse else 1)


def _part(fraction: str) -> tuple[int, int] | None:
    """The i and N of ``i/N``.  Raises BringupError if it is something else."""
    if not fraction:
        return None
    part, _, parts = fraction.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise BringupError(f"{fraction!r} is no fraction", fix="use 1/N to N/N")
    return int(part), int(parts)


def _resumed(context: typer.Context, folder: Path) -> Journal:
    """The journal of a run to resume, which says what that run is.

    Raises BringupError for an option that says otherwise.
    """
    journal = Journal.read(folder)
    header = journal.header
    known = {name: header[name] for name in ("level", "seed", "only", "few_kernels")}
    part = header["fraction"]
    known["fraction"] = "" if part is None else "/".join(map(str, part))
    known["report"] = folder
    for name, value in known.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and context.params[name] != value:
            raise BringupError(
                f"{folder} is of a run with {name} {value!r}, not {context.params[name]!r}",
                fix=f"leave out --{name.replace('_', '-')}",
            )
    return journal


def _show(
    report: Report, folder: Path, comparison: Comparison | None, as_json: bool, verbose: bool
) -> None:
    """Print a report; ends the command if it was interrupted or nothing was run."""
    nothing = report.passed + report.failed == 0
    if as_json:
        data = report.to_json()
        more = {} if comparison is None else {"comparison": comparison.to_json()}
        typer.echo(json.dumps({**data, **more}, ensure_ascii=False))
    elif not nothing or report.unsupported or report.interrupted:
        terminal.show_expected(Console(), report)
        terminal.show_report(Console(), report, folder, verbose=verbose)
        if comparison is not None:
            terminal.show_comparison(Console(), comparison)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if nothing:
        why, fix = "", ""
        if report.unsupported:
            why = ": the device declares none of it"
        elif report.only:
            why, fix = _nothing_selected(report)
        problem(f"nothing was run{why}{fix}")
        raise typer.Exit(NOT_RUN)


def _nothing_selected(report: Report) -> tuple[str, str]:
    """Why a selection selects nothing, and what to do."""
    level = level_of(report.only)
    if level in LEVELS[LEVELS.index(report.level) + 1 :]:
        return (
            f": no case of level {report.level} is of {report.only!r}",
            f"\n  fix: level {level} has some: --level {level}",
        )
    names = resembling(report.only)
    guess = f"did you mean {' or '.join(map(repr, names))}? " if names else ""
    fix = f"\n  fix: {guess}`conformance list` names levels, ops, kinds and tags"
    return f": no case is of {report.only!r}", fix


def certify(
    report: Report, folder: Path, expected: expectations.Expectations | None = None
) -> None:
    """Write a certificate, or say why there is none and end with 1."""
    why = certificates.refusals(report, expected or expectations.Expectations())
    for each in why:
        problem(f"no certificate: {each}")
    if why:
        raise typer.Exit(1)
    root = certificates.write(report, folder, expected)
    typer.echo(f"certificate in {folder}, {root}", err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run with a report.  Others are ignored: what limits the
    time of a command often sends two.
    """
    # A shell makes what runs in its background ignore the keyboard.
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
