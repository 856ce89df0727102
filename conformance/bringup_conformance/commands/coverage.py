"""``conformance coverage``: which lines of a backend's code a run enters."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bringup.cli.output import problem
from bringup.cli.shell import FOUND_WRONG, INTERRUPTED, device_names
from bringup.errors import BringupError
from bringup_conformance.commands import asked
from bringup_conformance.commands.run import ended_gently
from bringup_conformance.commands.shared import Json
from bringup_conformance.execution import measuring, runner
from bringup_conformance.reporting import entered, terminal
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.reports import Report

Backends = Annotated[
    list[str],
    typer.Option(
        "--backend",
        metavar="NAME",
        help="A device; again for more, such as all devices of one package.",
        autocompletion=device_names,
    ),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--package",
        metavar="NAME",
        help="A package or module to measure; again for more.  By default that of the backend's"
        " plugin, and what it uses of bringup that only backends use.",
    ),
]
ReportFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for pages, coverage.json and the runs' reports."),
]
FailUnder = Annotated[
    float,
    typer.Option(min=0, max=100, metavar="PERCENT", help="End with 1 if less is entered."),
]


def coverage(
    backends: Backends,
    level: asked.Level = "runtime",
    seed: asked.Seed = 0,
    only: asked.Only = "",
    jobs: asked.Jobs = None,
    timeout: asked.Timeout = TIMEOUT,
    few_kernels: asked.FewKernels = None,
    packages: Packages = None,
    report: ReportFolder = None,
    fail_under: FailUnder = 0.0,
    as_json: Json = False,
) -> None:
    """Run the suite and list the lines and branches of the backend's code that it never enters.

    This measures code, with the library `coverage`; `bringup ops --coverage` tells which ops a
    device has.  A line that cannot be entered is excused by a comment with a reason beside it:
    `# pragma: no cover - only other processors`, or `no branch` for a branch.  Status 1 if a case
    fails or less than --fail-under is entered.
    """
    options = runner.Options(
        jobs=jobs,
        only=only,
        timeout=timeout,
        few_kernels=few_kernels,
        command=("conformance", *sys.argv[1:]),
        shrink_seconds=0,  # what reducing a failure enters is entered by no case
    )
    own, modules = modules_of(backends, packages)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder:
        with measuring.measured([*modules.values()], Path(folder), here=jobs == 0) as measurement:
            for name in backends:
                reports.append(_run(name, level, seed, options, report, as_json))
                if reports[-1].interrupted:
                    break
        found = entered.entered(measurement, reports, modules, [*own], report)
    _tell(found, reports, report, as_json)
    if found.share < fail_under:
        problem(f"{found.share:.2f} % of lines and branches are entered, below {fail_under:g} %")
    if reports[-1].interrupted:
        raise typer.Exit(INTERRUPTED)
    ok = all(each.ok for each in reports) and found.share >= fail_under
    raise typer.Exit(0 if ok else FOUND_WRONG)


def _tell(
    found: entered.Entered, reports: Sequence[Report], folder: Path | None, as_json: bool
) -> None:
    runs = [each.to_json() for each in reports]
    text = json.dumps({"runs": runs, **found.to_json()}, ensure_ascii=False)
    if folder is not None:
        (folder / "coverage.json").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        entered.show(found)


def modules_of(
    backends: Iterable[str], packages: Sequence[str] | None
) -> tuple[dict[str, Path], dict[str, Path]]:
    """The modules of some backends' packages, or of the packages named; then these with those of
    core that only backends use, unless packages are named.  Raises BringupError.
    """
    own = _modules(packages or (p for name in backends for p in measuring.packages_of(name)))
    return own, own if packages else own | _modules(measuring.beneath())


def _modules(packages: Iterable[str]) -> dict[str, Path]:
    return {k: v for name in packages for k, v in measuring.modules_of(name).items()}


def _run(
    backend: str, level: str, seed: int, options: runner.Options, report: Path | None, as_json: bool
) -> Report:
    """Raises BringupError if there is nothing to run."""
    folder = report and report / backend.replace(":", "-")
    with terminal.progress(level, as_json=as_json) as show, ended_gently():
        how = replace(options, report=folder, on_progress=show)
        found = runner.run_with(backend, level, seed, how)
    if not found.passed + found.failed and not found.interrupted:
        raise BringupError(
            f"nothing was run on {backend!r}", fix="`conformance run` with these options says why"
        )
    return found
