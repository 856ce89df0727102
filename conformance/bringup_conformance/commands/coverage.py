"""``conformance coverage``: which lines of a backend's code a run enters."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bringup.cli.output import problem
from bringup.cli.shell import FOUND_WRONG, INTERRUPTED, device_names
from bringup.errors import BringupError
from bringup_conformance.commands import options
from bringup_conformance.commands.options import Json
from bringup_conformance.commands.run import interruptible
from bringup_conformance.execution import code_coverage as execution
from bringup_conformance.execution import runner
from bringup_conformance.reporting import code_coverage as reporting
from bringup_conformance.reporting import terminal
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
    level: options.Level = "runtime",
    seed: options.Seed = 0,
    only: options.Only = "",
    jobs: options.Jobs = None,
    timeout: options.RunTimeout = TIMEOUT,
    few_kernels: options.FewKernels = None,
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
    own, modules = modules_of(backends, packages)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [*modules.values()]
        with execution.measured(files, Path(folder), here=jobs == 0) as measurement:
            for backend in backends:
                with terminal.progress(level, as_json=as_json) as show, interruptible():
                    run = runner.run(
                        backend, level, seed, jobs=jobs, only=only, timeout=timeout,
                        few_kernels=few_kernels,
                        report=report and report / backend.replace(":", "-"),
                        command=("conformance", *sys.argv[1:]), on_progress=show,
                        shrink_seconds=0,  # no case enters what shrinking a failure enters
                    )  # fmt: skip
                if not run.passed + run.failed and not run.interrupted:
                    raise BringupError(
                        f"nothing was run on {backend!r}",
                        fix="`conformance run` with these options says why",
                    )
                reports.append(run)
                if run.interrupted:
                    break
        covered = reporting.code_coverage(measurement, reports, modules, [*own], report)
    runs = [each.to_json() for each in reports]
    text = json.dumps({"runs": runs, **covered.to_json()}, ensure_ascii=False)
    if report is not None:
        (report / "coverage.json").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        reporting.show(covered)
    if covered.share < fail_under:
        problem(f"{covered.share:.2f} % of lines and branches are entered, below {fail_under:g} %")
    if reports[-1].interrupted:
        raise typer.Exit(INTERRUPTED)
    ok = all(each.ok for each in reports) and covered.share >= fail_under
    raise typer.Exit(0 if ok else FOUND_WRONG)


def modules_of(
    backends: Iterable[str], packages: Sequence[str] | None
) -> tuple[dict[str, Path], dict[str, Path]]:
    """The modules of some backends' packages, or of the packages named; then these with those of
    core that only backends use, unless packages are named.  Raises BringupError.
    """
    modules = _modules(packages or (p for name in backends for p in execution.packages_of(name)))
    return modules, modules if packages else modules | _modules(execution.packages_of_backends())


def _modules(packages: Iterable[str]) -> dict[str, Path]:
    return {k: v for name in packages for k, v in execution.modules_of(name).items()}
