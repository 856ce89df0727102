"""``conformance join``: parts of a run as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup_conformance.commands import asked
from bringup_conformance.commands.run import certify
from bringup_conformance.commands.shared import Json
from bringup_conformance.execution import expectations, journal
from bringup_conformance.reporting import certificate as certificates
from bringup_conformance.reporting import failures, folders, terminal


def join(
    parts: Annotated[
        list[Path], typer.Argument(metavar="PART", help="Folders of reports, one of each part.")
    ],
    report: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the joined report.")],
    certificate: asked.Certificate = None,
    expect: asked.Expect = None,
    as_json: Json = False,
) -> None:
    """Join the parts of a run, of --fraction 1/N to N/N, into one report.

    It certifies what a run of all of it does.  Parts that were altered, overlap, leave something
    out or are of other runs are refused.
    """
    known = None if expect is None else expectations.load(expect)
    if certificate is not None:
        certificates.check_folder(certificate)
    journals = journal.read_parts(parts)  # before the folder loses what it holds
    report.mkdir(parents=True, exist_ok=True)
    with folders.locked(report):
        failures.prepare(report)
        found = journal.joined(journals, report)
        found.findings = (
            None
            if known is None
            else expectations.judged(
                known, found.results, found.unsupported, whole=not found.reduced
            )
        )
        found.write_all(report)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        terminal.show_report(Console(), found, report)
    if certificate is not None:
        certify(found, certificate, known)
    raise typer.Exit(0 if found.ok else 1)
