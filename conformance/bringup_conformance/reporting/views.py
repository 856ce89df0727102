"""What several forms of a report show: the matrix of ops and dtypes, the ladder of levels, costs,
and failures as text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Literal

from bringup.cli import output
from bringup.dtypes import STORED
from bringup.html.markup import visible
from bringup.ops.table import Kind, all_ops, find
from bringup.records import record
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.execution.levels import LEVELS
from bringup_conformance.oracle.verdict import Mismatch
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.reports import Document, Tally
from bringup_conformance.reporting.roots import graph_of

#: The kind of the areas of the runtime contract, which stand in the place of ops.
CONTRACT = "runtime"
#: What `untested` has beside the kinds of ops.
DTYPES = "dtypes"
#: The column of cases without a dtype.
NO_DTYPE = ""
State = Literal["ok", "FAIL", "no", "", "absent"]


@record
class Cell:
    """One op and dtype.  reasons: why cases of it were left out."""

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


@record
class Row:
    """An op, all programs, or an area of the runtime contract, with its cells by dtype.

    absent: dtypes that it does not take.  undeclared: those that the device does not declare.
    """

    kind: str
    op: str
    cells: Mapping[str, Cell]
    absent: frozenset[str] = frozenset()
    undeclared: frozenset[str] = frozenset()

    def state(self, dtype: str) -> State:
        """As of a cell.  What has no cell is absent if the row takes no such dtype, no if the
        device does not declare it, and else was left out of the run.
        """
        if dtype in self.cells:
            return self.cells[dtype].state
        return "absent" if dtype in self.absent else "no" if dtype in self.undeclared else ""

    @property
    def total(self) -> Tally:
        """All dtypes together."""
        return sum((cell.tally for cell in self.cells.values()), Tally())


@record
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
    names = [each.name for each in fields(Tally) if each.name != "ulps"]
    return {
        (row["level"], row["op"], row["dtype"]): Tally(
            **{name: row[name] for name in names}, ulps=tuple(row["ulps"])
        )
        for row in document.whole["results"]
    }


def matrix(document: Document) -> list[Row]:
    """A row for each op, in the order of kinds; programs and the runtime contract last."""
    cells: dict[str, dict[str, Cell]] = {}
    for (_, op, dtype), tally in tallies(document).items():
        of_op = cells.setdefault(op, {})
        of_op[dtype] = Cell(of_op.get(dtype, Cell()).tally + tally)
    for each in document.whole["unsupported_reasons"]:
        of_op = cells.setdefault(each["op"], {})
        cell = of_op.get(each["dtype"], Cell())
        reasons = dict.fromkeys((*cell.reasons, each["reason"]))
        of_op[each["dtype"]] = Cell(cell.tally, tuple(reasons))
    order = [*(kind.value for kind in Kind), PROGRAMS, CONTRACT]
    rows = [
        Row(kind_of(op), op, of_op, _absent(op), _undeclared(document, op))
        for op, of_op in cells.items()
    ]
    return sorted(rows, key=lambda row: order.index(row.kind))


_DTYPES = frozenset(dtype.name for dtype in STORED)
# Kinds of ops for which a device need not declare more than the dtype.
_FREE = (Kind.SOURCE, Kind.MOVEMENT, Kind.CONTROL)


def _absent(op: str) -> frozenset[str]:
    """The columns in which there can be nothing of an op."""
    row = find(op)
    if row is not None:
        return (_DTYPES | {NO_DTYPE}) - {dtype.name for dtype in row.dtypes}
    return frozenset({NO_DTYPE}) if op == PROGRAMS else _DTYPES | {NO_DTYPE}


def _undeclared(document: Document, op: str) -> frozenset[str]:
    """The dtypes that the device does not declare for an op; for one that can be decomposed, and
    for programs, those that it does not declare at all.
    """
    capabilities = document.whole.get("environment", {}).get("capabilities", {})
    claims = [*capabilities.get("ops", {}).items(), *capabilities.get("kernels", {}).items()]
    row = find(op)
    if row is not None and row.decompose is None and row.kind not in _FREE:
        claims = [(claim, names) for claim, names in claims if claim in row.claims]
    declared = {name for _, names in claims for name in names}
    return _DTYPES - declared if capabilities else frozenset()


def untested(document: Document) -> list[tuple[str, list[str]]]:
    """What the run left out entirely: ops by kind, and the dtypes that the device declares."""
    rows = matrix(document)
    known = {row.op for row in rows}
    kinds = [
        (kind.value, [row.name for row in all_ops() if row.kind is kind and row.name not in known])
        for kind in Kind
    ]
    dtypes = _DTYPES.difference(_undeclared(document, PROGRAMS), columns(rows))
    named = [(DTYPES, [dtype.name for dtype in STORED if dtype.name in dtypes])]
    return [(kind, names) for kind, names in (*named, *kinds) if names]


def by_kind(document: Document) -> list[tuple[str, list[Row]]]:
    """The matrix as a table for each kind: the kind, and its rows."""
    return [(kind, list(rows)) for kind, rows in groupby(matrix(document), key=lambda r: r.kind)]


def kind_of(op: str) -> str:
    """The kind of an op, or of what stands in the place of one."""
    if op == PROGRAMS:
        return PROGRAMS
    row = find(op)
    return CONTRACT if row is None else row.kind.value


def columns(rows: Iterable[Row]) -> list[str]:
    """The dtypes that rows have cells of, in the order of the dtypes; `NO_DTYPE` last."""
    present = {name for row in rows for name in row.cells}
    return [name for name in (*(d.name for d in STORED), NO_DTYPE) if name in present]


def ladder(document: Document) -> list[Rung]:
    """The levels of a run, the lowest first."""
    run = document.whole
    level = run["level"]
    levels = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else (level,)
    counts: dict[str, list[int]] = {name: [0, 0, 0] for name in levels}
    for (name, _, _), tally in tallies(document).items():
        counts.setdefault(name, [0, 0, 0])[0] += tally.passed
        counts[name][1] += tally.failed
    for each in run["unsupported_reasons"]:
        counts.setdefault(each["level"], [0, 0, 0])[2] += 1
    in_part = run.get("in_part", ())
    return [
        Rung(name, passed, failed, unsupported, name not in in_part)
        for name, (passed, failed, unsupported) in counts.items()
    ]


def unsupported(document: Document) -> list[tuple[str, str, list[str]]]:
    """What is unsupported: op, reason, and the dtypes it is about."""
    dtypes: dict[tuple[str, str], dict[str, None]] = {}
    for each in document.whole["unsupported_reasons"]:
        dtypes.setdefault((each["op"], each["reason"]), {})[each["dtype"]] = None
    return [(op, reason, list(names)) for (op, reason), names in dtypes.items()]


def climb(whole: Plain) -> str:
    """The command to run after one that found no failure; empty if there is no more."""
    command, level = f"conformance run --backend={shlex.quote(whole['backend'])}", whole["level"]
    if level not in LEVELS:
        return ""
    if scope(whole) != "whole":
        return f"{command} --level={level}"
    if whole["passed"] and level != LEVELS[-1]:
        return f"{command} --level={LEVELS[LEVELS.index(level) + 1]}"
    return ""


def scope(whole: Plain) -> str:
    """Whether a run was whole; if not, why not."""
    reasons: Sequence[str] = whole.get("reduced", ())
    if reasons:
        return f"reduced: {'; '.join(reasons)}"
    return f"reduced: only {whole['only']}" if whole.get("only") else "whole"


def costs(whole: Plain) -> list[tuple[str, str]]:
    """What a run says of time, kernels and bytes, as names and texts."""
    texts = [("time", f"{whole['seconds']:.1f} s")]
    cost: Plain = whole.get("costs", {})
    if cost.get("kernels"):
        total = cost["cases"]
        parts = {
            "compiling": cost["compiling"],
            "in first calls of programs": cost.get("first_calls", 0.0),
            "running": cost["running"],
            "in checks of the runtime": cost.get("checking", 0.0),
        }
        parts["in the suite itself"] = max(0.0, total - sum(parts.values()))
        shares = [f"{share(part, total)} {name}" for name, part in parts.items() if part]
        texts.append(("in cases", f"{total:.1f} s: {', '.join(shares)}"))
        moved = output.size_text(cost["bytes_read"] + cost["bytes_written"])
        texts.append(("launches", f"{cost['kernels']:,}, which move {moved}"))
    return texts


def number(value: float) -> str:
    """A ratio or an error for people; empty for none."""
    if not value:
        return ""
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}"


def share(part: float, whole: float) -> str:
    """A part in per cent, which is never rounded to none or all.

    >>> share(0, 7), share(1, 7), share(9999, 10000), share(1, 10000)
    ('0.0 %', '14.3 %', '> 99.9 %', '< 0.1 %')
    """
    if not whole:
        return "none"
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if 99.95 <= percent < 100 else f"{percent:.1f} %"


def recipe(data: Plain) -> str:
    """The recipe of an input: its kind, and the fields that are not the default."""
    others = [f"{key}={value}" for key, value in data.items() if key != "kind"]
    return " ".join([data.get("kind", "ramp"), *others])


def mismatch(m: Plain) -> str:
    """A wrong element in one line."""
    element = f"output {m['output']}[{', '.join(map(str, m['index']))}]"
    bounds = "" if m["low"] == m["high"] else f" (allowed: {m['low']} … {m['high']})"
    operands = f", of {', '.join(m['operands'])}" if m.get("operands") else ""
    return f"{element} is {m['actual']}, not {m['expected']}{bounds}{operands}"


#: Wrong elements that `failure_text` shows.
_MAX_MISMATCHES = 5


def headline(document: Plain) -> str:
    """The name of a failure's case, and to which dtypes its program was shrunk if it has no longer
    that of the case.
    """
    case, graph = document["case"], graph_of(smallest(document))
    name: str = case["name"]
    if graph is None or find(case["op"]) is None:
        return name
    values = graph.inputs or [v for instr in graph.instrs for v in instr.results]
    dtypes = dict.fromkeys(value.dtype.name for value in values)
    return name if case["dtype"] in dtypes else f"{name}, shrunk to {', '.join(dtypes)}"


def failure_text(document: Plain, path: Path) -> str:
    """A failure as plain text: what went wrong, the rules that this breaks, the smallest program
    known, its worst elements, what is guilty, and the command that runs it again.
    """
    return visible("\n".join(_failure_lines(document, path)))


def _failure_lines(document: Plain, path: Path) -> Iterator[str]:
    problem, form = problem_of(document), smallest(document)
    yield f"{headline(document)}: {problem['kind']}"
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
