"""The lines and branches of a backend's code that a measured run entered, and those it did not."""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bringup.cli.output import heading, line, table
from bringup.records import record
from bringup_conformance.execution.code_coverage import Measurement
from bringup_conformance.reporting.reports import Report

#: What excuses a line or branch: ``# pragma: no cover - reason``, ``# pragma: no branch - reason``,
#: or, in runs of one backend alone, ``# pragma: no cover on mydevice - reason``.
EXCUSE = re.compile(r"#\s*pragma: no (cover|branch)\b(?: on ([\w-]+))?(?:\s+-\s*(\w.*))?")
# Lines that do not count besides: stubs, and imports for type checkers.
_EXCLUDED = (
    r"^\s*(((async )?def .*?)?\)(\s*->.*?)?:\s*)?\.\.\.\s*(#|$)",
    r"if (typing\.)?TYPE_CHECKING:",
)
# The class of tables in `bringup` that name modules of the same package in strings.
_TABLE = "LazyTable"


@record
class Gap:
    """Statements in lines `first` to `last` that were never entered.  With `to`: a line that never
    went on to line `to`, which is 0 for the end of the function.  source: of the first line.
    """

    first: int
    last: int
    source: str
    to: int | None = None

    def __str__(self) -> str:
        if self.to is not None:
            return f"{self.first} -> {self.to or 'exit'}"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@record
class Excuse:
    """A comment that excuses a line or branch; without a reason it excuses nothing."""

    line: int
    reason: str


@record
class FileCoverage:
    """What was entered of one file.  lines: statements.  branches: ways that a line may go on."""

    module: str
    file: str
    lines: int
    lines_entered: int
    branches: int
    branches_entered: int
    gaps: tuple[Gap, ...]
    excuses: tuple[Excuse, ...]

    @property
    def share(self) -> float:
        """Percent of lines and branches that were entered."""
        return _share([self])


@record
class CodeCoverage:
    """What a run entered.

    not_imported: modules of the backend's packages that are not counted, since no process imported
    them and no counted module names them in an import.  They belong to other devices, or to none.
    notes: sentences about what may be missing.
    """

    sources: tuple[FileCoverage, ...]
    not_imported: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def share(self) -> float:
        """Percent of all lines and branches that were entered."""
        return _share(self.sources)

    def to_json(self) -> dict[str, Any]:
        """The fields, with the share of each file and of all."""
        sources = [{**asdict(each), "share": each.share} for each in self.sources]
        return {**asdict(self), "share": self.share, "sources": sources}


def _share(sources: Sequence[FileCoverage]) -> float:
    total = sum(each.lines + each.branches for each in sources)
    entered = sum(each.lines_entered + each.branches_entered for each in sources)
    return 100.0 * entered / total if total else 100.0


def code_coverage(
    measurement: Measurement,
    reports: Sequence[Report],
    modules: Mapping[str, Path],
    own: Sequence[str],
    folder: Path | None = None,
) -> CodeCoverage:
    """What measured runs entered.

    modules: the files that were measured, by module.  own: modules of the backend's packages; other
    modules count if these import them, directly or through others.  folder: receives the library's
    pages.
    """
    measured = {
        str(Path(name).resolve()) for name in measurement.coverage.get_data().measured_files()
    }
    imported = [name for name, file in modules.items() if str(file.resolve()) in measured]
    # A run opens other devices too, which import modules of core that this backend does not use.
    counted = _named([name for name in imported if name in own], modules)
    backends = {report.backend.partition(":")[0] for report in reports}
    (alone,) = backends if len(backends) == 1 else ("",)
    for which, what, others in (("exclude", "cover", _EXCLUDED), ("partial", "branch", ())):
        measurement.coverage.clear_exclude(which)
        where = f"(?: on {re.escape(alone)})?" if alone else ""
        for each in (rf"#\s*pragma: no {what}{where}\s+-\s*\w", *others):
            measurement.coverage.exclude(each, which)
    files = [str(modules[name]) for name in counted]
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "coverage.json"
        measurement.coverage.json_report(files, outfile=str(output))
        facts = json.loads(output.read_text(encoding="utf-8"))["files"]
    if folder is not None:
        measurement.coverage.html_report(files, directory=str(folder))
    by_path = {Path(name).resolve(): each for name, each in facts.items()}
    return CodeCoverage(
        tuple(
            _source(name, modules[name], by_path[modules[name].resolve()], alone)
            for name in counted
        ),
        tuple(name for name in own if name not in counted),
        tuple(_notes(measurement, reports)),
    )


def _notes(measurement: Measurement, reports: Sequence[Report]) -> Iterator[str]:
    yield from (f"a part of the data is lost: {each}" for each in measurement.lost)
    for each in reports:
        ended = sum(1 for r in each.results if r.problem is not None and r.problem.log)
        if ended:
            yield f"{each.backend}: {ended} cases ended their process: what they enter may be lost"
        if each.failed:
            yield f"{each.backend}: {each.failed} cases failed: `conformance run` tells more"
        yield from (f"{each.backend}: the run is not whole: {why}" for why in each.reduced)


def _named(imported: Sequence[str], modules: Mapping[str, Path]) -> list[str]:
    """The modules that are imported, and those that they might import: what their import statements
    and their tables of modules name, and so on.
    """
    named, left = set[str](), list(imported)
    while left:
        name = left.pop()
        if name in named:
            continue
        named.add(name)
        package = name if modules[name].name == "__init__.py" else name.rpartition(".")[0]
        nodes = [*ast.walk(ast.parse(modules[name].read_bytes()))]
        if any(isinstance(node, ast.Name) and node.id == _TABLE for node in nodes):
            texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
            whole = (*texts, *(f"{package}.{text}" for text in texts))
            left += [text for text in whole if text in modules]
        for node in nodes:
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names if alias.name in modules]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - node.level]
                base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
                left += [name for name in names if name in modules]
    return [name for name in modules if name in named]


def _source(module: str, file: Path, facts: Mapping[str, Any], alone: str) -> FileCoverage:
    text = file.read_text(encoding="utf-8").splitlines()
    summary = facts["summary"]
    excuses = (
        Excuse(number, match[3] or "")
        for number, each in enumerate(text, 1)
        if (match := EXCUSE.search(each)) is not None and match[2] in (None, alone)
    )
    return FileCoverage(
        module,
        os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file),
        summary["num_statements"],
        summary["covered_lines"],
        summary["num_branches"],
        summary["covered_branches"],
        tuple(_gaps(facts, text)),
        tuple(excuses),
    )


def _gaps(facts: Mapping[str, Any], text: Sequence[str]) -> list[Gap]:
    missing = set(facts["missing_lines"])
    gaps: list[Gap] = []
    is_open = False
    for number in sorted([*missing, *facts["executed_lines"]]):
        if number not in missing:
            is_open = False
        elif is_open:
            gaps[-1] = replace(gaps[-1], last=number)
        else:
            gaps.append(Gap(number, number, text[number - 1].strip()))
            is_open = True
    for start, to in facts["missing_branches"]:
        if start not in missing and to not in missing:  # else the lines tell
            gaps.append(Gap(start, start, text[start - 1].strip(), max(0, to)))
    return sorted(gaps, key=lambda gap: (gap.first, gap.to or 0))


def show(covered: CodeCoverage) -> None:
    """Print what was not entered, file by file, then the shares."""
    console = Console()
    for source in covered.sources:
        bare = [each.line for each in source.excuses if not each.reason]
        if source.gaps or bare:
            heading(f"{source.file}  {source.share:.1f} %")
            table(("line", "source"), [(str(gap), gap.source) for gap in source.gaps], console)
            for number in bare:
                line(f"{number}: an excuse without a reason excuses nothing: write `- reason`")
            line()
    columns = ("module", "share", "lines", "not entered", "branches", "not entered", "excuses")
    rows = [
        (
            each.module,
            f"{each.share:.1f} %",
            str(each.lines),
            str(each.lines - each.lines_entered),
            str(each.branches),
            str(each.branches - each.branches_entered),
            str(sum(1 for excuse in each.excuses if excuse.reason) or ""),
        )
        for each in covered.sources
    ]
    table(columns, rows, console)
    line()
    if covered.not_imported:
        line(f"not imported, not counted: {', '.join(covered.not_imported)}")
    for note in covered.notes:
        line(f"note: {note}")
    line(f"{covered.share:.1f} % of lines and branches were entered")
