"""Reports for people: tables and a progress bar on a terminal, plain text everywhere else."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from bringup.cli import output
from bringup_conformance.cases import Problem
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.execution.runner import OnProgress, Progress
from bringup_conformance.reporting import roots, views
from bringup_conformance.reporting.compare import Comparison
from bringup_conformance.reporting.documents import Document, document_of
from bringup_conformance.reporting.plain import visible
from bringup_conformance.reporting.reports import Failure, Report
from bringup_conformance.reporting.roots import Root
from bringup_conformance.reporting.views import Row

#: Failures that are shown whole; the others are in their files.
MOST_SHOWN = 5
#: Other failures of one cause that are named.
MOST_NAMED = 6
#: Rows of tables that are shown unless more is asked for.
MOST_ROWS = 20
#: Seconds between lines of progress where there is no terminal.
EVERY = 10.0
#: Lines of a program that are shown.
MOST_LINES = 16
#: Causes that are named; the page names all.
MOST_CAUSES = 4
#: Changes of one sort that are named.
MOST_CHANGES = 20
#: Broken rules that are named.
MOST_RULES = 8
_STYLES = {"ok": "green", "FAIL": "bold red", "no": "yellow"}


@contextmanager
def progress(level: str, as_json: bool = False) -> Iterator[OnProgress]:
    """How far a run is, on a terminal as a bar, elsewhere in lines on standard error."""
    console = Console(stderr=as_json)
    if console.is_terminal:
        with bar(console, level) as show:
            yield show
    else:
        with lines(Console(stderr=True)) as show:
            yield show


@contextmanager
def bar(console: Console, level: str) -> Iterator[OnProgress]:
    """A progress bar while a run is under way; failures stand above it as they come.

    Until the first report of it the level is planned.
    """
    count = TextColumn("{task.fields[count]}")
    columns = (BarColumn(), count, TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True) as shown:
        task = shown.add_task(f"level {level}", total=None, count="planning")
        clock = _Clock()

        def show(at: Progress) -> None:
            if at.news:
                _line(shown.console, at.news, "bold red")
            failed = f"{at.failed} failed  " if at.failed else ""
            left = clock.left(at)
            about = f"about {left} left  " if left else ""
            doing = visible("  ".join(at.jobs) or at.doing)
            shown.update(
                task,
                completed=at.done,
                total=at.total,
                count=f"{at.done}/{at.total} {at.counted}",
                description=f"{failed}{about}{doing}",
            )

        yield show


@contextmanager
def lines(console: Console, every: float = EVERY) -> Iterator[OnProgress]:
    """A line for each failure as it comes, and one each few seconds that says how far the run is.

    every: seconds.
    """
    clock, last, over = _Clock(), list[Progress](), threading.Event()

    def show(at: Progress) -> None:
        last[:] = [at]
        clock.left(at)
        if at.news:
            _line(console, at.news)

    def tell() -> None:
        while not over.wait(every):
            for at in last:
                _line(console, clock.told(at))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield show
    finally:
        over.set()
        teller.join()


class _Clock:
    """Tells how long a run has taken, and how long it will take."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: Progress | None = None

    def left(self, at: Progress) -> str:
        """The time left at the rate of what was done; empty while nothing is."""
        if self._first is None or at.total != self._first.total or at.done < self._first.done:
            self._first, self._start = at, time.monotonic()  # what an earlier run did is no work
        done = at.done - self._first.done
        if not done or at.done >= at.total:
            return ""
        return _duration((time.monotonic() - self._start) / done * (at.total - at.done))

    def told(self, at: Progress) -> str:
        """All of it in one line."""
        left = self.left(at)
        parts = [
            f"{at.done} of {at.total} {at.counted}",
            f"{at.failed} failed",
            f"{_duration(time.monotonic() - self._start)} elapsed",
            f"about {left} left" if left else "",
            "  ".join(at.jobs) or at.doing,
        ]
        return ", ".join(filter(None, parts))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_expected(console: Console, report: Report) -> None:
    """A line for every entry of the vendor's that something can be said of."""
    found = report.findings
    if found is None:
        return
    for entry, count in Counter(map(str, found.xfailed.values())).items():
        _line(console, f"XFAIL {count} as expected: {entry}", "yellow")
    for each in found.xpassed:
        _line(console, f"XPASS nothing fails any more: {each}", "bold yellow")
    for text in found.errors:
        _line(console, f"ERROR {text}", "bold red")
    for text in found.unclaimed:
        _line(console, f"UNCLAIMED {text}", "yellow")
    _line(console, f"{len(found.failed)} failed that were not expected to")


def show_report(
    console: Console, report: Report, folder: Path | None = None, *, verbose: bool = False
) -> None:
    """Tables, what is unsupported, rules, costs and the ladder of levels; then failures, of one
    cause together, what to do next, and the sum of it.

    folder: where its files are, if they were written.  verbose: tables of ops though they are long.
    """
    document = document_of(report)
    causes = roots.roots(document.failures, document.excused)
    tables = views.by_kind(document)
    count = sum(len(rows) for _, rows in tables)
    if verbose or count <= MOST_ROWS:
        for kind, rows in tables:
            _show_kind(console, kind, rows)
    else:
        _line(console, f"{count} ops and areas: tables with -v, and in the report")
    for op, reason, names in views.unsupported(document):
        _line(console, f"unsupported: {_named(op, names)}: {reason}", "yellow")
    _show_rules(console, document)
    for text in costs(document.whole):
        _line(console, text)
    _line(console, " · ".join(map(str, views.ladder(document))))
    compared = sum(t.compared for t in report.tallies.values())
    open_ = sum(t.open for t in report.tallies.values())
    if compared:
        share = views.share(open_, compared)
        _line(console, f"{compared:,} elements compared; {share} have no bound")
    if report.failures:
        _line(console)
    _show_failures(console, report, causes)
    if report.reduced:
        _line(console, f"reduced, so it certifies nothing: {'; '.join(report.reduced)}", "yellow")
    for text in report.notes:
        _line(console, f"note: {text}", "yellow")
    for text in next_steps(report, causes, folder):
        _line(console, text, "bold")
    _line(console, _sum(report), "bold green" if report.ok else "bold red")
    if folder is not None:
        _line(console, f"report: {folder / 'report.html'}", "cyan")


def _sum(report: Report) -> str:
    reduced = f", of {report.only!r} alone" if report.only else ""
    return (
        f"{report.backend}, level {report.level}{reduced}, seed {report.seed}: "
        f"{report.passed} passed, {report.failed} failed, {len(report.unsupported)} unsupported "
        f"in {report.seconds:.1f} s"
    )


def next_steps(report: Report, causes: Sequence[Root], folder: Path | None = None) -> list[str]:
    """The next best thing to do: mend what most failures share, or run what is left, or climb.

    folder: of the report.
    """
    if causes:
        first, best = causes[0], report.failures[causes[0].failures[0]]
        many, all_ = len(first.failures), len(report.failures)
        text = f"next: {first}, in {many:,} of {all_:,} failures"
        others = [f"{root} ({len(root.failures):,})" for root in causes[1:MOST_CAUSES]]
        lines = [f"{text}; then {', '.join(others)}" if others else text]
        if best.file is not None:
            verb = "explain" if best.shown["ir"] else "replay"
            lines.append(f"  conformance {verb} {shlex.quote(str(best.file))}")
        return lines
    if report.left and folder is not None:
        return [f"next: conformance run --resume {shlex.quote(str(folder))}"]
    step = views.climb(report.whole())
    return [f"next: {step}"] if step else []


def costs(whole: Mapping[str, Any]) -> list[str]:
    """What the run says of time, kernels and bytes; nothing of what it does not know."""
    return [f"{name}: {text}" for name, text in views.costs(whole)]


def _show_rules(console: Console, document: Document) -> None:
    rules = document.whole.get("rules", {})
    if not rules:
        return
    broken = [name for name, tally in rules.items() if tally["failed"]]
    _line(console, f"rules: {len(rules) - len(broken):,} kept, {len(broken):,} broken")
    for name in broken[:MOST_RULES]:
        _line(console, f"  {name}", "red")
    if len(broken) > MOST_RULES:
        _line(console, f"  … and {len(broken) - MOST_RULES:,} more")


def _show_failures(console: Console, report: Report, causes: Sequence[Root]) -> None:
    """The best to begin with of each cause, with the names of the others; then the smallest of the
    rest.
    """
    others = {root.failures[0]: root for root in causes[:MOST_SHOWN]}
    grouped = {n for root in others.values() for n in root.failures}
    rest = [n for n in range(len(report.failures)) if n not in grouped]
    shown = [*others, *rest][:MOST_SHOWN]
    for n in shown:
        root = others.get(n)
        same = [] if root is None else [report.failures[m].case["name"] for m in root.failures[1:]]
        _show_failure(console, report.failures[n], str(root), same)
    left = len(report.failures) - len(grouped.union(shown))
    if left:
        _line(console, f"… and {left:,} more failures\n")


def _show_failure(console: Console, failure: Failure, cause: str, same: Sequence[str]) -> None:
    """One failure.  same: names of others that may come of its cause."""
    summary = failure.to_json()
    mode = f"{summary['mode']}, " if summary["program"] else ""
    _line(console, f"FAIL {summary['name']} ({mode}{summary['kind']})", "bold red")
    if summary["program"]:
        lines = summary["program"].splitlines()
        _line(console, "\n".join(lines[:MOST_LINES]))
        if len(lines) > MOST_LINES:
            _line(console, f"  … {len(lines) - MOST_LINES} more lines in the file")
        for data in failure.shown["data"]:
            _line(console, f"data: {', '.join(map(views.recipe, data)) or 'none'}")
    worst = [views.mismatch(m) for m in failure.problem["mismatches"][:3]]
    for text in worst or [summary["what"]]:
        _line(console, f"  {text}", "red")
    if summary["guilty"]:
        _line(console, f"right without: {', '.join(summary['guilty'])}")
    if failure.document.get("alone"):
        _line(console, f"in a process of its own: {failure.document['alone']}", "yellow")
    found = failure.document.get("cause")
    if found:
        _line(console, f"guilty: {Cause.from_json(found).title}")
    for verb in ("explain", "replay") if summary["program"] else ("replay",):
        if summary["file"]:
            _line(console, f"conformance {verb} {shlex.quote(summary['file'])}", "cyan")
    if same:
        names = ", ".join(same[:MOST_NAMED])
        more = f", … {len(same) - MOST_NAMED:,} more" if len(same) > MOST_NAMED else ""
        _line(console, f"{len(same):,} more by the same cause, {cause}: {names}{more}")
    _line(console)


def _named(op: str, names: Sequence[str]) -> str:
    given = ", ".join(filter(None, names))
    return f"{op} ({given})" if given else op


def _show_kind(console: Console, kind: str, rows: Sequence[Row]) -> None:
    names = views.columns(rows)
    body = []
    for row in rows:
        total = row.total
        cells: list[str] = [row.cells[n].state if n in row.cells else "" for n in names]
        counts = (str(total.passed), str(total.failed) if total.failed else "")
        body.append([row.op, *cells, *counts, *map(views.number, (total.ratio, total.ulp))])
    head = (kind, *(name or "any" for name in names), "passed", "failed", "of bound", "ULP")
    _table(console, head, body)


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


def show_comparison(console: Console, found: Comparison) -> None:
    """What differs between two reports, the worst first."""
    for text in found.differs:
        _line(console, f"differs: {text}", "yellow")
    groups: tuple[tuple[str, str, Sequence[object]], ...] = (
        ("broke", "bold red", found.broke),
        ("new and failing", "bold red", found.failing),
        ("rule broken", "bold red", found.rules_broken),
        ("lost", "red", found.lost),
        ("rule not tested any more", "red", found.rules_gone),
        ("mended", "green", found.mended),
        ("rule kept again", "green", found.rules_mended),
        ("gained", "green", found.gained),
        ("rule tested now", "green", found.rules_new),
        ("drifted", "", found.drifts),
    )
    for title, style, items in groups:
        most = MOST_CHANGES if "red" in style else MOST_CHANGES // 4
        for item in items[:most]:
            _line(console, f"{title}: {item}", style)
        if len(items) > most:
            _line(console, f"{title}: … and {len(items) - most:,} more", style)
    counts = ", ".join(
        f"{len(items):,} {title if len(items) == 1 else title.replace('rule ', 'rules ')}"
        for title, _, items in groups
        if items
    )
    verdict = "worse" if found.worse else "the same" if found.same else "not worse"
    text = f"{verdict}: {counts}" if counts else verdict
    _line(console, text, "bold red" if found.worse else "bold green")


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


def show_rules(found: Sequence[Mapping[str, Any]]) -> None:
    """The rules with what checks them."""
    rows = []
    for rule in found:
        cells = "" if rule["cells"] == [rule["says"]] else " ".join(rule["cells"])
        says = f"{rule['says']} {cells}".rstrip()
        rows.append((rule["id"], rule["test"] or "nothing", says))
    output.table(("rule", "checked by", "says"), rows)


def _line(console: Console, text: str = "", style: str = "") -> None:
    console.print(Text(visible(text), style=style), soft_wrap=True)


def _table(console: Console, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """A table; on a terminal too narrow for it, its columns in parts."""
    body = [[visible(cell) for cell in row] for row in body]
    if not console.is_terminal:
        output.table(head, body, console)
        _line(console)
        return
    kept = [i for i in range(len(head)) if any(row[i] for row in body)]
    for part in parts(head, body, kept, console.width):
        grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for i in part:
            grid.add_column(head[i], justify="right" if i else "left", no_wrap=True)
        for row in body:
            grid.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in part))
        console.print(grid, crop=False, soft_wrap=True)
    _line(console)


def parts(
    head: Sequence[str], body: Sequence[Sequence[str]], kept: Sequence[int], width: int
) -> list[list[int]]:
    """Columns in groups that fit a width, each with the first column in front.

    >>> parts(["op", "f16", "f32"], [["add", "ok", "ok"]], [0, 1, 2], 9)
    [[0, 1], [0, 2]]
    """
    wide = {i: 1 + max(len(head[i]), *(len(row[i]) for row in body)) for i in kept}
    first, *rest = kept
    found = [[first]]
    for i in rest:
        used = sum(wide[j] for j in found[-1])
        if used + wide[i] > width + 1 and len(found[-1]) > 1:
            found.append([first])
        found[-1].append(i)
    return found
