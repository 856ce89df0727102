"""A small report with something of everything, and what tests of its forms share."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

from rich.console import Console

from bringup import ops
from bringup.dtypes import f32
from bringup.graph import Builder, Graph
from bringup_conformance import Report, run
from bringup_conformance.cases import Case, Check, Outcome, Problem, Unsupported
from bringup_conformance.execution.expectations import Entry, Findings
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.verdict import Mismatch, Verdict
from bringup_conformance.reporting import failures, terminal
from bringup_conformance.reporting.reports import Failure
from bringup_conformance.reporting.results import result_of
from bringup_selftest.corpus import faults, with_ops
from bringup_selftest.device import Reference

EMPTY = {"meta", "br", "hr"}


def negated_sum() -> Graph:
    with Builder() as b:
        x = b.input(f32[3, 5])
        total = ops.reduce(x, kind="add", dims=(1,))
        return b.build([ops.broadcast_in_dim(ops.neg(total), shape=(3, 5), dims=(0,))])


def one(op: str) -> Graph:
    with Builder() as b:
        return b.build([getattr(ops, op)(b.input(f32[9]))])


def case(name: str, graph: Graph, rules: tuple[str, ...] = ()) -> Case:
    level, op, dtype, *_ = name.split("/")
    data = (tuple(Recipe("ramp") for _ in graph.inputs),)
    return Case(name, level, op, dtype, graph, data, rules=rules)


def wrong(index: tuple[int, ...], actual: str, expected: str) -> Problem:
    verdict = Verdict(
        1, 15, 0, 0.0, 0.0, (Mismatch(0, index, actual, expected, expected, expected),)
    )
    return Problem("wrong", str(verdict.mismatches[0]), verdict=verdict)


def add(report: Report, outcome: Outcome, **more: object) -> None:
    found = None
    if outcome.problem is not None:
        found = failures.document(outcome, failures.Run(report.backend, report.seed))
        file = Path(f"failure-{len(report.failures):03}.json")
        report.failures.append(Failure({**found, **more}, file))
    report.results.append(result_of(outcome, 0.25, found))


def small_report() -> Report:
    """A run with something of everything."""
    report = Report("toy", "fusion", 3, seconds=2.5)
    right = Verdict(0, 100, 2, 0.5, 1.5, (), (90, 0, 4, 3, 1))
    add(report, Outcome(case("ops/abs/f32/0", one("abs"), ("abs.f32.of-nan",)), right))
    floor = case("ops/floor/f32/0", one("floor"), ("floor.f32.of-minus-zero",))
    add(report, Outcome(floor, Verdict(1, 9), wrong((8,), "-0.0", "0.0")), nodes=1)
    add(report, Outcome(case("fusion/programs/f32/1", negated_sum()), right))
    for number in (2, 3):
        fused = case(f"fusion/programs/f32/{number}", negated_sum())
        small = {
            **failures.case_to_json(fused),
            "problem": failures.problem_to_json(wrong((2, 4), "0.0", "-60.0")),
        }
        more = {"reduced": small, "guilty": ["fusion"]} if number == 2 else {}
        add(report, Outcome(fused, right, wrong((2, 4), "0.0", "-60.0")), **more)
    alone = Check("runtime/memory/inputs", "runtime", "memory", ("memory.input-unchanged",), none)
    broken = Problem("broken", "input 0 changed", rules=("memory.input-unchanged",))
    add(report, Outcome(alone, Verdict(), broken))
    report.unsupported.append(Unsupported("ops/exp/f64", "ops", "exp", "f64", "no <f64> at all"))
    report.environment = {"product": "a & b", "details": {"driver": "7"}, "capabilities": {}}
    return report


def none(_target: object) -> None:
    return None


def shown(report: Report, **options: object) -> str:
    text = StringIO()
    terminal.show_report(Console(file=text, **options), report)  # type: ignore[arg-type]
    return text.getvalue()


def expected_to_fail() -> Report:
    """As `small_report`, but all that fails was said beforehand."""
    report = small_report()
    entry = Entry("xfail", 1, ("*",), ("*",), ("*",), "mended in stepping B1")
    names = [failure.document["case"]["name"] for failure in report.failures]
    report.findings = Findings(dict.fromkeys(names, entry), [], [entry], unclaimed=["exp (f16)"])
    return report


def run_two_faults(folder: Path) -> None:
    """A run on a device with two faults."""

    (turned,) = (fault for fault in faults() if fault.id == "FU14")
    backwards = with_ops({"sort": lambda call: call.right[..., ::-1]})
    backend = Reference(3, simulated=True, name="two faults")
    target = DeviceTarget.of(backwards(turned.inject(backend)))
    run(target, "ops", only="smoke,ops/sort/f32", report=folder, shrink_seconds=20)


class Reader(HTMLParser):
    """Checks that elements end where they should, and collects what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags[tag] += 1
        if tag not in EMPTY:
            self.open.append(tag)
        self.ids.update(filter(None, [given.get("id")]))
        refers = [given.get(name) for name in ("href", "src", "data", "action", "poster")]
        self.links += [link for link in refers if link]
        for name in ("aria-labelledby", "aria-describedby"):
            self.links += [f"#{part}" for part in (given.get(name) or "").split()]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag


def check_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    assert [name for name, many in reader.ids.items() if many > 1] == []
    assert all(link.startswith("#") and link[1:] in reader.ids for link in reader.links)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", text)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    return reader
