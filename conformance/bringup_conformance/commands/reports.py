"""``conformance compare``, ``join`` and ``verify``: commands on reports and certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup.errors import BringupError
from bringup_conformance.commands import options
from bringup_conformance.commands.options import Json, Timeout
from bringup_conformance.commands.run import certify
from bringup_conformance.execution import expectations, journal
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import failures, folders, reports, terminal, verifying
from bringup_conformance.reporting.compare import compare as compare_reports


def compare(
    before: Annotated[
        Path | None,
        typer.Argument(metavar="BEFORE", help="The folder of a report, or its report.json."),
    ] = None,
    after: Annotated[Path | None, typer.Argument(metavar="AFTER", help="A later one.")] = None,
    last: Annotated[
        bool, typer.Option("--last", help="The last two runs whose folder nobody named.")
    ] = False,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="With --last: the device; the one that ran last.")
    ] = "",
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also the later report's page, compared: 'compared.html'."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what broke between two reports, what was mended, and what drifted.

    Status 1 if the later one is worse: something fails or is not tested any more.
    """
    if last and before is None:
        before, after = folders.last_two(backend)
    if before is None or after is None:
        raise BringupError("two reports are compared", fix="name their folders, or add --last")
    earlier, later = reports.read(before), reports.read(after)
    comparison = compare_reports(earlier, later)
    if html is not None:
        from bringup_conformance.reporting.html import page  # which takes a while to import

        failures.put(html, page(later, earlier))
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), ensure_ascii=False))
    else:
        terminal.show_comparison(Console(), comparison)
    raise typer.Exit(1 if comparison.worse else 0)


def join(
    parts: Annotated[
        list[Path], typer.Argument(metavar="PART", help="Folders of reports, one of each part.")
    ],
    report: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the joined report.")],
    certificate: options.Certificate = None,
    expect: options.Expect = None,
    as_json: Json = False,
) -> None:
    """Join the parts of a run, of --fraction 1/N to N/N, into one report.

    It certifies what a run of all of it does.  Parts that were altered, overlap, leave something
    out or are of other runs are refused.
    """
    expected = None if expect is None else expectations.load(expect)
    if certificate is not None:
        certificates.check_folder(certificate)
    journals = journal.read_parts(parts)  # one may be in the folder that is written to
    report.mkdir(parents=True, exist_ok=True)
    with folders.locked(report):
        failures.prepare(report)
        whole = journal.joined(journals, report)
        if expected is not None:
            whole.findings = expectations.judged(
                expected, whole.results, whole.unsupported, whole=not whole.reduced
            )
        whole.write_all(report)
    if as_json:
        typer.echo(json.dumps(whole.to_json(), ensure_ascii=False))
    else:
        terminal.show_report(Console(), whole, report)
    if certificate is not None:
        certify(whole, certificate, expected)
    raise typer.Exit(0 if whole.ok else 1)


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
    seconds = timeout or failures.TIMEOUT
    problems, statement = verifying.problems(folder, backend, rerun, sample, seconds)
    if as_json:
        data = {"holds": not problems, "problems": problems, "statement": statement}
        typer.echo(json.dumps(data))
        raise typer.Exit(1 if problems else 0)
    console = Console()
    for each in problems:
        terminal.print_line(console, f"refused: {each}", "bold red")
    if problems:
        raise typer.Exit(1)
    what = f"{statement['product']}, level {statement['level']}, seed {statement['seed']}"
    terminal.print_line(console, f"{folder} holds: {what}", "bold green")
