"""Reports for people: tables and a progress bar on a terminal, plain text everywhere else."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from bringup.cli import output
from bringup.html.markup import visible
from bringup_conformance.cases import Problem
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.execution.runner import OnProgress, Progress
from bringup_conformance.reporting import roots, views
from bringup_conformance.reporting.compare import Comparison
from bringup_conformance.reporting.reports import Document, Failure, Report, document_of
from bringup_conformance.reporting.roots import Root
from bringup_conformance.reporting.views import Row

#: Failures that are shown whole; the others are in their files.
MAX_SHOWN = 5
#: Other failures of one cause that are named.
MAX_NAMED = 6
#: Rows of tables that are shown unless more is asked for.
MAX_ROWS = 20
#: Seconds between lines of progress where there is no terminal.
INTERVAL = 10.0
#: Lines of a program that are shown.
MAX_LINES = 16
#: Causes that are named; the page names all.
MAX_CAUSES = 4
#: Changes of one sort that are named.
MAX_CHANGES = 20
#: Broken rules that are named.
MAX_RULES = 8
_STYLES = {"ok": "green", "FAIL": "bold red", "no": "yellow"}
# What stands for the states without a word.
_CELLS = {"": ".", "absent": ""}


@contextmanager
def progress(level: str, as_json: bool = False) -> Iterator[OnProgress]:
    """How far a run is, on a terminal as a bar, elsewhere in lines on standard error."""
    console = Console(stderr=as_json)
    shown = bar(console, level) if console.is_terminal else lines(Console(stderr=True))
    with shown as show:
        yield show


@contextmanager
def bar(console: Console, level: str) -> Iterator[OnProgress]:
    """A progress bar while a run is under way; failures are printed above it as they come.

    Until the run reports its progress first, the level is planned.
    """
    count = TextColumn("{task.fields[count]}")
    columns = (BarColumn(), count, TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True) as shown:
        task = shown.add_task(f"level {level}", total=None, count="planning")
        clock = _Clock()

        def show(now: Progress) -> None:
            if now.news:
                print_line(shown.console, now.news, "bold red")
            failed = f"{now.failed} failed  " if now.failed else ""
            left = clock.left(now)
            about = f"about {left} left  " if left else ""
            doing = visible("  ".join(now.jobs) or now.doing)
            shown.update(
                task,
                completed=now.done,
                total=now.total,
                count=f"{now.done}/{now.total} {now.counted}",
                description=f"{failed}{about}{doing}",
            )

        yield show


@contextmanager
def lines(console: Console, interval: float = INTERVAL) -> Iterator[OnProgress]:
    """A line for each failure as it comes, and one each few seconds that says how far the run is.

    interval: in seconds.
    """
    clock = _Clock()
    last: Progress | None = None

    def show(now: Progress) -> None:
        nonlocal last
        last = now
        clock.left(now)
        if now.news:
            print_line(console, now.news)

    with repeated(console, lambda: "" if last is None else clock.text(last), interval):
        yield show


@contextmanager
def repeated(console: Console, text: Callable[[], str], interval: float) -> Iterator[None]:
    """Print what ``text`` gives every ``interval`` seconds, unless it is empty."""
    over = threading.Event()

    def print_lines() -> None:
        while not over.wait(interval):
            if now := text():
                print_line(console, now)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Clock:
    """Tells how long a run has taken, and how long it will take."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: Progress | None = None

    def left(self, now: Progress) -> str:
        """The time left at the rate so far; empty while nothing is done."""
        first = self._first
        if first is None or now.total != first.total or now.done < first.done:
            # What was done before the first report is the work of an earlier run.
            first, self._start = now, time.monotonic()
            self._first = first
        done = now.done - first.done
        if not done or now.done >= now.total:
            return ""
        return _duration((time.monotonic() - self._start) / done * (now.total - now.done))

    def text(self, now: Progress) -> str:
        """All of it in one line."""
        left = self.left(now)
        parts = [
            f"{now.done} of {now.total} {now.counted}",
            f"{now.failed} failed",
            f"{_duration(time.monotonic() - self._start)} elapsed",
            f"about {left} left" if left else "",
            "  ".join(now.jobs) or now.doing,
        ]
        return ", ".join(filter(None, parts))


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def show_expected(console: Console, report: Report) -> None:
    """A line for every entry of the vendor's that the run says something about."""
    findings = report.findings
    if findings is None:
        return
    for entry, count in Counter(map(str, findings.xfailed.values())).items():
        print_line(console, f"XFAIL {count} as expected: {entry}", "yellow")
    for each in findings.xpassed:
        print_line(console, f"XPASS nothing fails any more: {each}", "bold yellow")
    for text in findings.errors:
        print_line(console, f"ERROR {text}", "bold red")
    for text in findings.unclaimed:
        print_line(console, f"UNCLAIMED {text}", "yellow")
    print_line(console, f"{len(findings.failed)} failed that were not expected to")


def show_report(
    console: Console, report: Report, folder: Path | None = None, *, verbose: bool = False
) -> None:
    """Tables, what is unsupported, rules, costs and the ladder of levels; then failures, grouped by
    cause, what to do next, and a summary.

    folder: where its files are, if they were written.  verbose: show tables of ops even if they are
    long.
    """
    document = document_of(report)
    causes = roots.roots(document.failures, document.excused, document.declared)
    tables = views.by_kind(document)
    count = sum(len(rows) for _, rows in tables)
    if verbose or count <= MAX_ROWS:
        for kind, rows in tables:
            _show_kind(console, kind, rows)
        print_line(console, "no: not supported  .: left out of this run")
    else:
        print_line(console, f"{count} ops and areas: tables with -v, and in the report")
    for op, reason, dtypes in views.unsupported(document):
        names = ", ".join(filter(None, dtypes))
        what = f"{op} ({names})" if names else op
        print_line(console, f"unsupported: {what}: {reason}", "yellow")
    _show_rules(console, document)
    for name, text in views.costs(document.whole):
        print_line(console, f"{name}: {text}")
    print_line(console, " · ".join(map(str, views.ladder(document))))
    compared = sum(row["compared"] for row in document.whole["results"])
    unbounded = sum(row["open"] for row in document.whole["results"])
    if compared:
        share = views.share(unbounded, compared)
        print_line(console, f"{compared:,} elements compared; {share} have no bound")
    if report.failures:
        print_line(console)
    _show_failures(console, report, causes)
    if report.reduced:
        print_line(
            console, f"reduced, so it certifies nothing: {'; '.join(report.reduced)}", "yellow"
        )
    for text in report.notes:
        print_line(console, f"note: {text}", "yellow")
    for text in next_steps(report, causes, folder):
        print_line(console, text, "bold")
    only = f", of {report.only!r} alone" if report.only else ""
    summary = (
        f"{report.backend}, level {report.level}{only}, seed {report.seed}: "
        f"{report.passed} passed, {report.failed} failed, {len(report.unsupported)} unsupported "
        f"in {report.seconds:.1f} s"
    )
    print_line(console, summary, "bold green" if report.ok else "bold red")
    if folder is not None:
        print_line(console, f"report: {folder / 'report.html'}", "cyan")


def next_steps(report: Report, causes: Sequence[Root], folder: Path | None = None) -> list[str]:
    """The best thing to do next: fix what most failures share, resume the run, or run the next
    level.

    folder: of the report.
    """
    if causes:
        cause, failure = causes[0], report.failures[causes[0].failures[0]]
        text = f"next: {cause}, in {len(cause.failures):,} of {len(report.failures):,} failures"
        others = [f"{root} ({len(root.failures):,})" for root in causes[1:MAX_CAUSES]]
        steps = [f"{text}; then {', '.join(others)}" if others else text]
        if failure.file is not None:
            verb = "explain" if failure.shown["ir"] else "replay"
            steps.append(f"  conformance {verb} {shlex.quote(str(failure.file))}")
        return steps
    if report.left and folder is not None:
        return [f"next: conformance run --resume {shlex.quote(str(folder))}"]
    step = views.climb(report.whole())
    return [f"next: {step}"] if step else []


def _show_rules(console: Console, document: Document) -> None:
    rules = document.whole.get("rules", {})
    if not rules:
        return
    broken = [name for name, tally in rules.items() if tally["failed"]]
    print_line(console, f"rules: {len(rules) - len(broken):,} kept, {len(broken):,} broken")
    for name in broken[:MAX_RULES]:
        print_line(console, f"  {name}", "red")
    if len(broken) > MAX_RULES:
        print_line(console, f"  … and {len(broken) - MAX_RULES:,} more")


def _show_failures(console: Console, report: Report, causes: Sequence[Root]) -> None:
    """Of each cause the failure to begin with, and the names of the others; then the smallest of
    the rest.
    """
    cause_of = {cause.failures[0]: cause for cause in causes[:MAX_SHOWN]}
    grouped = {n for cause in cause_of.values() for n in cause.failures}
    ungrouped = [n for n in range(len(report.failures)) if n not in grouped]
    shown = [*cause_of, *ungrouped][:MAX_SHOWN]
    for n in shown:
        cause = cause_of.get(n)
        others = () if cause is None else cause.failures[1:]
        names = [report.failures[m].case["name"] for m in others]
        _show_failure(console, report.failures[n], str(cause), names)
    left = len(report.failures) - len(grouped.union(shown))
    if left:
        print_line(console, f"… and {left:,} more failures\n")


def _show_failure(console: Console, failure: Failure, cause: str, others: Sequence[str]) -> None:
    """One failure.  others: names of the failures that may have the same cause."""
    summary = failure.to_json()
    mode = f"{summary['mode']}, " if summary["program"] else ""
    print_line(
        console, f"FAIL {views.headline(failure.document)} ({mode}{summary['kind']})", "bold red"
    )
    if summary["program"]:
        program = summary["program"].splitlines()
        print_line(console, "\n".join(program[:MAX_LINES]))
        if len(program) > MAX_LINES:
            print_line(console, f"  … {len(program) - MAX_LINES} more lines in the file")
        for data in failure.shown["data"]:
            print_line(console, f"data: {', '.join(map(views.recipe, data)) or 'none'}")
    worst = [views.mismatch(m) for m in failure.problem["mismatches"][:3]]
    for text in worst or [summary["what"]]:
        print_line(console, f"  {text}", "red")
    if summary["guilty"]:
        print_line(console, f"right without: {', '.join(summary['guilty'])}")
    if failure.document.get("alone"):
        print_line(console, f"in a process of its own: {failure.document['alone']}", "yellow")
    if failure.document.get("cause"):
        print_line(console, f"guilty: {Cause.from_json(failure.document['cause']).title}")
    for verb in ("explain", "replay") if summary["program"] else ("replay",):
        if summary["file"]:
            print_line(console, f"conformance {verb} {shlex.quote(summary['file'])}", "cyan")
    if others:
        names = ", ".join(others[:MAX_NAMED])
        more = f", … {len(others) - MAX_NAMED:,} more" if len(others) > MAX_NAMED else ""
        print_line(console, f"{len(others):,} more by the same cause, {cause}: {names}{more}")
    print_line(console)


def _show_kind(console: Console, kind: str, rows: Sequence[Row]) -> None:
    dtypes = views.columns(rows)
    body = []
    for row in rows:
        total = row.total
        cells = [_CELLS.get(state := row.state(name), state) for name in dtypes]
        counts = (str(total.passed), str(total.failed) if total.failed else "")
        body.append([row.op, *cells, *counts, *map(views.number, (total.ratio, total.ulp))])
    head = (kind, *(name or "any" for name in dtypes), "passed", "failed", "of bound", "ULP")
    _table(console, head, body)


def show_replay(console: Console, failure: Failure, problem: Problem | None) -> None:
    """What came of a failure that ran again."""
    print_line(console, failure.shown["ir"])
    if problem is None:
        print_line(console, f"passes now: {failure.document['case']['name']}", "bold green")
        return
    mode = "fused" if problem.fused else "op by op"
    print_line(console, f"still fails ({mode}, {problem.kind}): {problem.what}", "bold red")
    for mismatch in problem.verdict.mismatches[1:]:
        print_line(console, f"  {mismatch}", "red")


def show_comparison(console: Console, comparison: Comparison) -> None:
    """What differs between two reports, the worst first."""
    for text in comparison.differs:
        print_line(console, f"differs: {text}", "yellow")
    styles = {"worse": "red", "better": "green", "": ""}
    counts = []
    for title, look, items in comparison.groups():
        most = MAX_CHANGES if look == "worse" else MAX_CHANGES // 4
        for item in items[:most]:
            print_line(console, f"{title}: {item}", styles[look])
        if len(items) > most:
            print_line(console, f"{title}: … and {len(items) - most:,} more", styles[look])
        if items:
            counts.append(f"{len(items):,} {title if len(items) == 1 else _plural(title)}")
    costs = (
        ("", comparison.costs),
        ("slower: ", comparison.slower),
        ("faster: ", comparison.faster),
    )
    for title, items in costs:
        for cost in items[: MAX_CHANGES // 4]:
            print_line(console, f"{title}{cost}")
    text = f"{comparison.verdict}: {', '.join(counts)}" if counts else comparison.verdict
    print_line(console, text, "bold red" if comparison.worse else "bold green")


def _plural(title: str) -> str:
    return title.replace("rule ", "rules ").replace("case", "cases")


def show_contents(contents: Mapping[str, Any]) -> None:
    """What the suite holds."""
    for name in ("levels", "tags", "data"):
        rows = [(each["name"], each["holds"]) for each in contents[name]]
        output.table((name, "holds"), rows)
        output.line()
    ops = [
        (op["name"], op["kind"], str(op["tier"]), " ".join(op["dtypes"]), str(op["special_cells"]))
        for op in contents["ops"]
    ]
    output.table(("op", "kind", "tier", "dtypes", "special cells"), ops)


def show_rules(rules: Sequence[Mapping[str, Any]]) -> None:
    """The rules with what checks them."""
    rows = []
    for rule in rules:
        cells = "" if rule["cells"] == [rule["says"]] else " ".join(rule["cells"])
        says = f"{rule['says']} {cells}".rstrip()
        rows.append((rule["id"], rule["test"] or "nothing", says))
    output.table(("rule", "checked by", "says"), rows)


def print_line(console: Console, text: str = "", style: str = "") -> None:
    """Print a line, however wide the terminal is; control characters as escapes."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def _table(console: Console, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """A table; on a terminal too narrow for it, its columns in parts."""
    body = [[visible(cell) for cell in row] for row in body]
    if not console.is_terminal:
        output.table(head, body, console)
        print_line(console)
        return
    shown = [i for i in range(len(head)) if any(row[i] for row in body)]
    for part in parts(head, body, shown, console.width):
        grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for i in part:
            grid.add_column(head[i], justify="right" if i else "left", no_wrap=True)
        for row in body:
            grid.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in part))
        console.print(grid, crop=False, soft_wrap=True)
    print_line(console)


def parts(
    head: Sequence[str], body: Sequence[Sequence[str]], shown: Sequence[int], width: int
) -> list[list[int]]:
    """Columns in groups that fit a width, each with the first column in front.

    >>> parts(["op", "f16", "f32"], [["add", "ok", "ok"]], [0, 1, 2], 9)
    [[0, 1], [0, 2]]
    """
    wide = {i: 1 + max(len(head[i]), *(len(row[i]) for row in body)) for i in shown}
    first, *others = shown
    groups = [[first]]
    for i in others:
        used = sum(wide[j] for j in groups[-1])
        if used + wide[i] > width + 1 and len(groups[-1]) > 1:
            groups.append([first])
        groups[-1].append(i)
    return groups
