"""Reports for people: tables and a progress bar on a terminal, plain text everywhere else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from bringup import dtypes
from bringup.cli import output
from bringup.ops.table import find
from bringup_conformance.cases import PROGRAMS, Problem
from bringup_conformance.execution.runner import OnProgress, Progress
from bringup_conformance.reporting.reports import Failure, Report, Tally

#: Failures that are shown whole; the others are in their files.
MOST_SHOWN = 5
#: Columns that the widest table needs.
_WIDTH = 120
_STYLES = {"ok": "green", "FAIL": "bold red", "no": "yellow"}


@contextmanager
def bar(console: Console) -> Iterator[OnProgress]:
    """A progress bar while a run is under way."""
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(at: Progress) -> None:
            failed = f"  {at.failed} failed" if at.failed else ""
            progress.update(
                task, completed=at.done, total=at.total, description=f"{at.doing}{failed}"
            )

        yield show


def show_report(console: Console, report: Report) -> None:
    """Failures, the smallest first, then a table for each kind of op, and the sum of it."""
    for failure in report.failures[:MOST_SHOWN]:
        _show_failure(console, failure)
    if len(report.failures) > MOST_SHOWN:
        _line(console, f"… and {len(report.failures) - MOST_SHOWN} more failures\n")
    for kind, rows in groupby(_rows(report), key=lambda row: row[0]):
        _show_kind(console, kind, [row[1:] for row in rows])
    _show_unsupported(console, report)
    compared = sum(t.compared for t in report.tallies.values())
    open_ = sum(t.open for t in report.tallies.values())
    reduced = f", of {report.only!r} alone" if report.only else ""
    _line(
        console,
        f"{report.backend}, level {report.level}{reduced}, seed {report.seed}: "
        f"{report.passed} passed, {report.failed} failed, {len(report.unsupported)} unsupported "
        f"in {report.seconds:.1f} s",
        "bold green" if report.ok else "bold red",
    )
    _line(console, f"{compared:,} elements compared; {_share(open_, compared)} have no bound")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _show_failure(console: Console, failure: Failure) -> None:
    summary = failure.to_json()
    _line(console, f"FAIL {summary['name']} ({summary['mode']}, {summary['kind']})", "bold red")
    _line(console, summary["program"])
    for data in failure.shown["data"]:
        _line(console, f"data: {', '.join(map(_recipe, data)) or 'none'}")
    worst = [_mismatch(m) for m in failure.problem["mismatches"][:3]]
    for text in worst or [summary["what"]]:
        _line(console, f"  {text}", "red")
    if summary["guilty"]:
        _line(console, f"right without: {', '.join(summary['guilty'])}")
    if summary["file"]:
        _line(console, f"conformance replay {shlex.quote(summary['file'])}", "cyan")
    _line(console)


def _recipe(recipe: Mapping[str, Any]) -> str:
    rest = [f"{key}={value}" for key, value in recipe.items() if key != "kind"]
    return " ".join([recipe.get("kind", "ramp"), *rest])


def _mismatch(m: Mapping[str, Any]) -> str:
    place = f"output {m['output']}[{', '.join(map(str, m['index']))}]"
    bounds = "" if m["low"] == m["high"] else f" (allowed: {m['low']} … {m['high']})"
    return f"{place} is {m['actual']}, not {m['expected']}{bounds}"


def _rows(report: Report) -> list[tuple[str, str, dict[str, Tally], dict[str, str]]]:
    """For every op: its kind, its name, tallies and reasons by dtype; in order of kinds."""
    found: dict[str, tuple[dict[str, Tally], dict[str, str]]] = {}
    for (_, op, dtype), tally in report.tallies.items():
        cells = found.setdefault(op, ({}, {}))[0]
        cells[dtype] = cells.get(dtype, Tally()) + tally
    for each in report.unsupported:
        found.setdefault(each.op, ({}, {}))[1][each.dtype] = each.reason
    rows = [(_kind(op), op, tallies, reasons) for op, (tallies, reasons) in found.items()]
    kinds = list(dict.fromkeys(row[0] for row in rows))
    return sorted(rows, key=lambda row: (row[0] == PROGRAMS, kinds.index(row[0])))


def _kind(op: str) -> str:
    row = find(op)
    return PROGRAMS if row is None else row.kind.value


def _show_kind(
    console: Console, kind: str, rows: Sequence[tuple[str, dict[str, Tally], dict[str, str]]]
) -> None:
    present = {name for _, tallies, reasons in rows for name in (*tallies, *reasons)}
    names = [d.name for d in dtypes.STORED if d.name in present]
    body = []
    for op, tallies, reasons in rows:
        every = tallies.values()
        cells = [_cell(tallies.get(n), reasons.get(n)) for n in names]
        failed = sum(t.failed for t in every)
        counts = (str(sum(t.passed for t in every)), str(failed) if failed else "")
        worst = (max((t.ratio for t in every), default=0), max((t.ulp for t in every), default=0))
        body.append([op, *cells, *counts, *map(_number, worst)])
    head = (kind, *names, "passed", "failed", "of bound", "ULP")
    _table(console, head, body)


def _cell(tally: Tally | None, reason: str | None) -> str:
    if tally is None:
        return "no" if reason is not None else ""
    return "FAIL" if tally.failed else "ok"


def _number(value: float) -> str:
    if not value:
        return ""
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}"


def _show_unsupported(console: Console, report: Report) -> None:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for each in report.unsupported:
        names = by_reason.setdefault((each.op, each.reason), [])
        if each.dtype not in names:
            names.append(each.dtype)
    for (op, reason), names in by_reason.items():
        _line(console, f"unsupported: {op} ({', '.join(names)}): {reason}", "yellow")


def show_replay(console: Console, failure: Failure, problem: Problem | None) -> None:
    """What became of a failure."""
    _line(console, failure.shown["ir"])
    if problem is None:
        _line(console, f"passes now: {failure.document['case']['name']}", "bold green")
        return
    mode = "fused" if problem.fused else "op by op"
    _line(console, f"still fails ({mode}, {problem.kind}): {problem.what}", "bold red")
    for mismatch in problem.verdict.mismatches[1:]:
        _line(console, f"  {mismatch}", "red")


def show_contents(found: Mapping[str, Any]) -> None:
    """What the suite holds."""
    for name in ("levels", "data"):
        rows = [(each["name"], each["holds"]) for each in found[name]]
        output.table((name, "holds"), rows)
        output.line()
    ops = [
        (op["name"], op["kind"], str(op["tier"]), " ".join(op["dtypes"]), str(op["special_cells"]))
        for op in found["ops"]
    ]
    output.table(("op", "kind", "tier", "dtypes", "special cells"), ops)


def _line(console: Console, text: str = "", style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _table(console: Console, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    if not console.is_terminal:
        output.table(head, body)
        _line(console)
        return
    kept = [i for i in range(len(head)) if any(row[i] for row in body)]
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i in kept:
        grid.add_column(head[i], justify="right" if i else "left", no_wrap=True)
    for row in body:
        grid.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in kept))
    # A terminal that is too narrow wraps lines; cut off, they would say less.
    console.print(grid, width=max(console.width, _WIDTH), crop=False, soft_wrap=True)
    _line(console)
