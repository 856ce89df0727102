"""What the forms of a report show: the matrix, the ladder of levels, rules, and their counts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any, Literal

from bringup.cli import output
from bringup.dtypes import STORED
from bringup.ops.table import Kind, find
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.oracle.verdict import Mismatch
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.reports import Document, Tally

#: The kind of what is no op and no program: areas of the runtime contract.
CONTRACT = "runtime"
#: The column of what is of no one dtype.
NO_DTYPE = ""
State = Literal["ok", "FAIL", "no", ""]


@dataclass(frozen=True, slots=True)
class Cell:
    """One op and dtype.

    reasons: why cases of it were left out.
    """

    tally: Tally = field(default_factory=Tally)
    reasons: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """ok, FAIL, no (unsupported), or empty if nothing of it was tested."""
        if self.tally.failed:
            return "FAIL"
        if self.tally.passed:
            return "ok"
        return "no" if self.reasons else ""


@dataclass(frozen=True, slots=True)
class Row:
    """An op, all programs, or an area of the runtime contract, with its cells by dtype."""

    kind: str
    op: str
    cells: Mapping[str, Cell]

    @property
    def total(self) -> Tally:
        """All dtypes together."""
        return sum((cell.tally for cell in self.cells.values()), Tally())


@dataclass(frozen=True, slots=True)
class Rung:
    """A level of the ladder.  whole: whether nothing of it was left out."""

    level: str
    passed: int
    failed: int
    unsupported: int
    whole: bool = True

    @property
    def ran(self) -> bool:
        """Whether any case of it came to an end."""
        return self.passed + self.failed > 0

    def __str__(self) -> str:
        if not self.ran:
            return f"{self.level} not run"
        if self.failed:
            return f"{self.level} {self.failed:,} of {self.passed + self.failed:,} failed"
        return f"{self.level} ok" if self.whole else f"{self.level} ok as far as it ran"


def tallies(document: Document) -> dict[tuple[str, str, str], Tally]:
    """Tallies by level, op and dtype."""
    return {
        (row["level"], row["op"], row["dtype"]): Tally(
            row["passed"],
            row["failed"],
            row["compared"],
            row["open"],
            row["ratio"],
            row["ulp"],
            tuple(row["ulps"]),
        )
        for row in document.whole["results"]
    }


def matrix(document: Document) -> list[Row]:
    """A row for each op, in the order of kinds; programs and the runtime contract last."""
    found: dict[str, dict[str, Cell]] = {}
    for (_, op, dtype), tally in tallies(document).items():
        cells = found.setdefault(op, {})
        cells[dtype] = Cell(cells.get(dtype, Cell()).tally + tally)
    for each in document.whole["unsupported_reasons"]:
        cells = found.setdefault(each["op"], {})
        cell = cells.get(each["dtype"], Cell())
        reasons = dict.fromkeys((*cell.reasons, each["reason"]))
        cells[each["dtype"]] = Cell(cell.tally, tuple(reasons))
    order = [*(kind.value for kind in Kind), PROGRAMS, CONTRACT]
    rows = [Row(kind_of(op), op, cells) for op, cells in found.items()]
    return sorted(rows, key=lambda row: order.index(row.kind))


def by_kind(document: Document) -> list[tuple[str, list[Row]]]:
    """The matrix in tables: a kind, and its rows."""
    return [(kind, list(rows)) for kind, rows in groupby(matrix(document), key=lambda r: r.kind)]


def kind_of(op: str) -> str:
    """The kind of an op, or of what else stands in its place."""
    if op == PROGRAMS:
        return PROGRAMS
    row = find(op)
    return CONTRACT if row is None else row.kind.value


def columns(rows: Iterable[Row]) -> list[str]:
    """The dtypes that rows have cells of, in the order of the dtypes; no dtype last."""
    present = {name for row in rows for name in row.cells}
    return [name for name in (*(d.name for d in STORED), NO_DTYPE) if name in present]


def ladder(document: Document) -> list[Rung]:
    """The levels of a run, the lowest first."""
    run = document.whole
    counts: dict[str, list[int]] = {name: [0, 0, 0] for name in _levels(run["level"])}
    for (level, _, _), tally in tallies(document).items():
        counts.setdefault(level, [0, 0, 0])[0] += tally.passed
        counts[level][1] += tally.failed
    for each in run["unsupported_reasons"]:
        counts.setdefault(each["level"], [0, 0, 0])[2] += 1
    in_part = run.get("in_part", ())
    return [
        Rung(level, passed, failed, unsupported, level not in in_part)
        for level, (passed, failed, unsupported) in counts.items()
    ]


def _levels(highest: str) -> list[str]:
    """The level of a run with those below it; one that stands apart, alone."""
    if highest not in LEVELS:
        return [highest]
    return list(LEVELS[: LEVELS.index(highest) + 1])


def unsupported(document: Document) -> list[tuple[str, str, list[str]]]:
    """Op, reason, and the dtypes it is about."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for each in document.whole["unsupported_reasons"]:
        found.setdefault((each["op"], each["reason"]), {})[each["dtype"]] = None
    return [(op, reason, list(dtypes)) for (op, reason), dtypes in found.items()]


def climb(whole: Mapping[str, Any]) -> str:
    """The command to run after one that found no failure; empty if there is no more."""
    command, level = f"conformance run --backend={shlex.quote(whole['backend'])}", whole["level"]
    if level not in LEVELS:
        return ""
    if scope(whole) != "whole":
        return f"{command} --level={level}"
    if whole["passed"] and level != LEVELS[-1]:
        return f"{command} --level={LEVELS[LEVELS.index(level) + 1]}"
    return ""


def scope(whole: Mapping[str, Any]) -> str:
    """Whether a run was whole; if not, why not."""
    reasons: Sequence[str] = whole.get("reduced", ())
    if reasons:
        return f"reduced: {'; '.join(reasons)}"
    return f"reduced: only {whole['only']}" if whole.get("only") else "whole"


def costs(whole: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run says of time, kernels and bytes; nothing of what it does not know."""
    found = [("time", f"{whole['seconds']:.1f} s")]
    spent: Mapping[str, Any] = whole.get("costs", {})
    if spent.get("kernels"):
        found.append(("in cases", f"{spent['cases']:.1f} s: {', '.join(_shares(spent))}"))
        moved = output.size_text(spent["bytes_read"] + spent["bytes_written"])
        found.append(("launches", f"{spent['kernels']:,}, which move {moved}"))
    return found


def _shares(spent: Mapping[str, Any]) -> list[str]:
    """Of the seconds in cases: the device's, those of checks that use it by turns, and the rest."""
    named = {
        "compiling": spent["compiling"],
        "running": spent["running"],
        "in checks of the runtime": spent.get("checking", 0.0),
    }
    named["in the suite itself"] = max(0.0, spent["cases"] - sum(named.values()))
    return [f"{share(part, spent['cases'])} {name}" for name, part in named.items() if part]


def number(value: float) -> str:
    """A ratio or an error for people; empty for none."""
    if not value:
        return ""
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}"


def share(part: float, whole: float) -> str:
    """A part in per cent; never rounded to none or all.

    >>> share(0, 7), share(1, 7), share(9999, 10000), share(1, 10000)
    ('0.0 %', '14.3 %', '> 99.9 %', '< 0.1 %')
    """
    if not whole:
        return "none"
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if 99.95 <= percent < 100 else f"{percent:.1f} %"


def recipe(data: Mapping[str, Any]) -> str:
    """One input's recipe: its kind, and what of it is not the default."""
    rest = [f"{key}={value}" for key, value in data.items() if key != "kind"]
    return " ".join([data.get("kind", "ramp"), *rest])


def mismatch(m: Mapping[str, Any]) -> str:
    """One wrong element in one line."""
    place = f"output {m['output']}[{', '.join(map(str, m['index']))}]"
    bounds = "" if m["low"] == m["high"] else f" (allowed: {m['low']} … {m['high']})"
    made = f", of {', '.join(m['operands'])}" if m.get("operands") else ""
    return f"{place} is {m['actual']}, not {m['expected']}{bounds}{made}"


#: Wrong elements that `failure_text` shows.
_MAX_MISMATCHES = 5
# What a terminal may act on: control characters but tabs and ends of lines, and those that turn the
# direction of text.
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""A device's text as it may be shown: what a terminal would act on is written as an escape.

    >>> visible("lost\x1b[2J\n")
    'lost\\x1b[2J\n'
    """
    return _ACTIVE.sub(lambda match: ascii(match[0])[1:-1], text)


def failure_text(document: Plain, path: Path) -> str:
    """A failure as plain text: what went wrong, the rules that this breaks, the smallest program
    known, its worst elements, what is guilty, and the command that runs it again.
    """
    return visible("\n".join(_failure_lines(document, path)))


def _failure_lines(document: Plain, path: Path) -> Iterator[str]:
    problem, form = problem_of(document), smallest(document)
    yield f"{document['case']['name']}: {problem['kind']}"
    yield indent(problem["what"], "  ")
    rules = document["problem"].get("rules", ())
    if rules:
        yield f"  rules: {', '.join(rules)}"
    if form["ir"]:
        kind = "the smallest program that fails" if document.get("reduced") else "the program"
        mode = "fused" if problem["fused"] else "instruction by instruction"
        yield f"  {kind}, {mode}:"
        yield indent(form["ir"].rstrip(), "    ")
    worst = list(map(Mismatch.from_json, problem["mismatches"][1:_MAX_MISMATCHES]))
    if worst:
        yield f"  {problem['wrong']} of {problem['compared']} elements are wrong, also:"
        yield from (f"    {mismatch}" for mismatch in worst)
    if document.get("guilty"):
        yield f"  right without: {', '.join(document['guilty'])}"
    if problem.get("log"):
        yield "  last words of the process:"
        yield indent(problem["log"].rstrip(), "    ")
    yield f"  again: conformance replay {path}"
