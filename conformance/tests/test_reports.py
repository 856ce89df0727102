"""The forms of a report: what each shows, that pages stand alone, that files keep to a schema."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import faulty
import numpy as np
import pytest
from faulty import Reference
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from bringup import ops
from bringup.dtypes import f32
from bringup.graph import Builder, Graph
from bringup_conformance import Report, cli, run
from bringup_conformance.cases import Case, Check, Outcome, Problem, Unsupported
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.verdict import BUCKETS, Mismatch, Verdict, bucket_ends, histogram
from bringup_conformance.reporting import documents, failures, roots, schema, terminal, writing
from bringup_conformance.reporting.compare import compare
from bringup_conformance.reporting.documents import Document, document_of
from bringup_conformance.reporting.html import page
from bringup_conformance.reporting.html.layout import place
from bringup_conformance.reporting.junit import junit
from bringup_conformance.reporting.reports import Failure, Tally
from bringup_conformance.reporting.results import result_of

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
    report.add(result_of(outcome, 0.25, found))


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


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on a device with two faults."""

    def edit(instr, operands, right, mode):  # type: ignore[no-untyped-def]
        right = faulty.drops_the_tail(instr, operands, right, mode)
        return faulty.sees_partial_sums(instr, operands, right, mode)

    folder = tmp_path_factory.mktemp("two")
    run(Reference(edit=edit, name="two faults"), "smoke", report=folder, shrink_seconds=20)
    return folder


# Histograms.


def test_every_error_is_in_the_bucket_that_ends_at_it_or_above() -> None:
    ends = bucket_ends()
    assert len(ends) == BUCKETS
    for i, end in enumerate(ends[:-1]):
        for value, bucket in ((end, i), (np.nextafter(end, np.inf), max(i + 1, 1))):
            counts = histogram(np.array([value]))
            assert counts == (0,) * bucket + (1,)
    assert histogram(np.array([np.inf])) == (0,) * (BUCKETS - 1) + (1,)
    assert histogram(np.array([])) == ()


def test_tallies_merge_exactly() -> None:
    parts = [Tally(1, 0, 5, 1, 0.1 * i, i, (i,) * i) for i in range(5)]
    forward = sum(parts[1:], parts[0])
    assert forward == sum(parts[:3][::-1], parts[4] + parts[3])
    assert forward.ulps == (10, 9, 7, 4)
    assert (forward.passed, forward.compared, forward.ulp) == (5, 25, 4)


# What failures have in common.


def test_the_cause_that_explains_most_comes_first() -> None:
    found = roots.roots(document_of(small_report()).failures)
    assert [(str(root), root.failures) for root in found] == [
        ("fusion of reduce → neg", (1, 2)),
        ("rule memory.input-unchanged", (3,)),
        ("floor on f32", (0,)),
    ]


def test_what_was_not_made_small_is_no_cause_of_its_own() -> None:
    documents_ = document_of(small_report()).failures
    alone = [documents_[2]]
    assert [str(root) for root in roots.roots(alone)] == ["unknown cause"]


def test_crashes_are_one_cause_whatever_their_numbers() -> None:
    report = Report("toy", "smoke", 0)
    for number in range(3):
        problem = Problem("crash", f"running: RuntimeError: lost at 0x{number}f after {number} ms")
        add(
            report, Outcome(case(f"smoke/programs/f32/{number}", negated_sum()), Verdict(), problem)
        )
    found = roots.roots(document_of(report).failures)
    assert [str(root) for root in found] == ["crash: RuntimeError: lost at N after N ms"]


def test_a_guilty_pass_is_blamed_for_programs_with_what_it_does_away_with() -> None:
    report = Report("toy", "fusion", 0)
    without = Builder()
    with without as b:
        after = b.build([b.input(f32[3, 5])])
    cause = {
        "kind": "pass",
        "name": "drops",
        "ir_before": str(negated_sum()),
        "ir_after": str(after),
    }
    for number, more in ((0, {"cause": cause, "reduced": None}), (1, {})):
        name = f"fusion/programs/f32/{number}"
        add(
            report,
            Outcome(case(name, negated_sum()), Verdict(), wrong((0, 0), "1.0", "2.0")),
            **more,
        )
    found = roots.roots(document_of(report).failures)
    assert [(str(root), root.failures) for root in found] == [("pass drops", (0, 1))]


def test_a_kernel_of_many_ops_blames_none_for_others() -> None:
    report = Report("toy", "fusion", 0)
    ops_ = ("mul", "add", "sub", "exp", "sqrt")
    large = "\n".join(f"%{i}: f32[] = {op}(%0)" for i, op in enumerate(ops_))
    kernels = (large, "%1: f32[] = sub(%0, %0)", large)
    for number, kernel in enumerate(kernels):
        cause = {"kind": "kernel", "name": f"k{number}", "kernel": kernel}
        name = f"fusion/programs/f32/{number}"
        outcome = Outcome(case(name, negated_sum()), Verdict(), wrong((0, 0), "1.0", "2.0"))
        add(report, outcome, cause=cause)
    found = roots.roots(document_of(report).failures)
    assert [(str(root), root.failures) for root in found] == [("sub", (1, 0, 2))]


def test_two_faults_are_two_causes(two_faults: Path) -> None:
    found = roots.roots(documents.read(two_faults).failures)
    assert [str(root) for root in found] == ["mul on f32", "fusion of reduce → broadcast_in_dim"]


def test_what_was_expected_is_no_cause() -> None:
    document = document_of(small_report())
    names = [failure["case"]["name"] for failure in document.failures]
    assert roots.roots(document.failures, names) == []


# Terminals.


def test_plain_text(snapshot: SnapshotAssertion) -> None:
    assert shown(small_report()) == snapshot


def test_a_narrow_terminal_has_tables_in_parts(snapshot: SnapshotAssertion) -> None:
    text = shown(small_report(), force_terminal=True, width=36, color_system=None)
    assert text == snapshot


def test_a_clean_report_says_where_to_climb() -> None:
    report = Report("toy", "ops", 0)
    add(report, Outcome(case("ops/abs/f32/0", one("abs")), Verdict(0, 9)))
    assert "next: conformance run --backend=toy --level=fusion\n" in shown(report)
    report.reduced = ["one half alone"]
    assert "next: conformance run --backend=toy --level=ops\n" in shown(report)
    report.reduced, report.level = [], "exhaustive"
    assert "next:" not in shown(report)


# Pages.


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


def test_a_page_stands_alone(two_faults: Path) -> None:
    reader = check_page((two_faults / "report.html").read_text("utf-8"))
    written = json.loads((two_faults / "report.json").read_text("utf-8"))
    assert reader.tags["h1"] == reader.tags["main"] == reader.tags["nav"] == 1
    assert reader.tags["script"] == reader.tags["style"] == 1
    assert all(f"failure-{n}" in reader.ids for n in range(written["failed"]))


def test_a_page_of_everything() -> None:
    text = page(document_of(small_report()))
    check_page(text)
    body = re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)
    assert "no &lt;f64&gt; at all" in body
    assert "a &amp; b" in body
    assert ">fails</span>" in body
    assert 'title="abs f32: 1 passed, 0 failed; 100 elements; worst error 0.50' in body
    assert "exp f64: unsupported" in body
    assert 'class="node op guilty"' in body
    assert "conformance explain failure-001.json\nconformance replay failure-001.json" in body
    assert "conformance explain failure-003.json" not in body


def test_a_page_keeps_what_devices_say_as_text() -> None:
    report = Report('<b onload="x">', "smoke", 0)
    problem = Problem("crash", "</script><script>alert(1)</script>", log="<!-- \x00")
    add(report, Outcome(case("smoke/abs/f32/0", one("abs")), Verdict(), problem))
    reader = check_page(page(document_of(report)))
    assert reader.tags["script"] == 1
    assert reader.tags["b"] == 0


def test_a_page_of_thousands_of_failures_stays_small() -> None:
    report = Report("toy", "smoke", 0)
    for number in range(2000):
        name = f"smoke/programs/f32/{number}"
        add(report, Outcome(case(name, negated_sum()), Verdict(), wrong((0, 0), "1.0", "2.0")))
    text = page(document_of(report))
    check_page(text)
    assert len(text) < 1_500_000
    assert text.count("<svg") < 100


# Pictures.


def overlaps(graph_edges: list[tuple[int, int]], many: int) -> int:
    placed = place([60.0] * many, graph_edges)
    rows: dict[int, list[tuple[float, float]]] = {}
    for box in placed.boxes:
        assert box.x - box.width / 2 >= 0
        assert box.x + box.width / 2 <= placed.width
        rows.setdefault(box.layer, []).append((box.x - box.width / 2, box.x + box.width / 2))
    for a, b in graph_edges:
        assert placed.boxes[a].layer < placed.boxes[b].layer
    sides = [sorted(row) for row in rows.values()]
    return sum(a[1] > b[0] for row in sides for a, b in pairwise(row))


def test_boxes_never_overlap_and_edges_go_down() -> None:
    draws = np.random.default_rng(7)
    for _ in range(40):
        many = int(draws.integers(1, 40))
        edges = [
            (int(a), b) for b in range(1, many) for a in draws.integers(0, b, draws.integers(0, 4))
        ]
        assert overlaps(edges, many) == 0


def test_a_chain_is_straight() -> None:
    placed = place([60.0, 90.0, 40.0], [(0, 1), (1, 2)])
    assert len({round(box.x, 3) for box in placed.boxes}) == 1


# Build servers.


def test_junit(snapshot: SnapshotAssertion) -> None:
    assert junit(document_of(small_report())) == snapshot


def test_junit_has_a_suite_for_each_level_and_a_test_for_each_op_and_dtype() -> None:
    root = ElementTree.fromstring(junit(document_of(small_report())))
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == ["ops", "fusion", "runtime"]
    named = {
        (suite.get("name"), t.get("classname"), t.get("name")): t
        for suite in root
        for t in suite.iter("testcase")
    }
    assert named.keys() == {
        ("ops", "ops.elementwise.abs", "f32"),
        ("ops", "ops.elementwise.floor", "f32"),
        ("ops", "ops.elementwise.exp", "f64"),
        ("fusion", "fusion.programs.programs", "f32"),
        ("runtime", "runtime.runtime.memory", "memory"),
    }
    skipped = named["ops", "ops.elementwise.exp", "f64"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "no <f64> at all"
    fused = named["fusion", "fusion.programs.programs", "f32"]
    assert fused.get("time") == "0.750"
    [failure] = fused
    assert failure.get("message") == "2 of 3: output 0[2, 4] is 0.0, not -60.0"
    assert "conformance replay failure-001.json" in (failure.text or "")
    for suite in root:
        assert int(suite.get("tests", "")) == len(list(suite.iter("testcase")))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(count, "")) == len(list(suite.iter(tag)))


def test_junit_takes_whatever_a_device_says() -> None:
    report = Report("toy", "smoke", 0)
    problem = Problem("crash", "running: \x1b[31m\x00 <lost> ]]> \ud800")
    add(report, Outcome(case("smoke/abs/f32/0", one("abs")), Verdict(), problem))
    text = junit(document_of(report))
    [error] = ElementTree.fromstring(text.encode()).iter("error")
    assert error.get("type") == "crash"
    assert "<lost>" in (error.get("message") or "")


# Files.


def test_every_field_of_a_report_is_documented(two_faults: Path) -> None:
    whole = json.loads((two_faults / "report.json").read_text("utf-8"))
    assert schema.undocumented(whole, schema.REPORT) == []
    assert schema.undocumented(document_of(small_report()).whole, schema.REPORT) == []
    files = [*two_faults.glob("failure-*.json")]
    assert len(files) == whole["failed"]
    for file in files:
        document = json.loads(file.read_text("utf-8"))
        assert schema.undocumented(document, schema.FAILURE) == [], file
    for failure in document_of(small_report()).failures:
        assert schema.undocumented(failure, schema.FAILURE) == []


def test_a_field_that_nobody_documented_is_found() -> None:
    whole = {**document_of(small_report()).whole, "mood": 1, "cases": [{"name": "", "age": 3}]}
    assert schema.undocumented(whole, schema.REPORT) == ["cases[].age", "mood"]


def test_a_report_is_read_back_from_a_folder_that_moved(two_faults: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    two_faults.rename(moved)
    try:
        document = documents.read(moved)
        assert document == documents.read(moved / "report.json")
        assert any("reduced" in failure for failure in document.failures)
        assert page(document) == (moved / "report.html").read_text("utf-8")
    finally:
        moved.rename(two_faults)


def test_a_report_without_its_failure_files_still_has_forms(tmp_path: Path) -> None:
    writing.write(small_report(), tmp_path)
    document = documents.read(tmp_path)
    check_page(page(document))
    ElementTree.fromstring(junit(document))
    assert document.failures[1]["case"]["ir"] == str(negated_sum())


# Comparing.


def later(edit: str = "") -> Document:
    report = small_report()
    document = document_of(report)
    return document if not edit else changed(document, edit)


def changed(document: Document, edit: str) -> Document:
    whole = json.loads(json.dumps(document.whole))
    status = {case["name"]: case for case in whole["cases"]}
    rows = {(row["op"], row["dtype"]): row for row in whole["results"]}
    match edit:
        case "break":
            status["ops/abs/f32/0"]["status"] = "fail"
            rows["abs", "f32"].update(passed=0, failed=1)
            whole["rules"]["abs.f32.of-nan"] = {"passed": 0, "failed": 1}
        case "mend":
            status["ops/floor/f32/0"]["status"] = "pass"
            rows["floor", "f32"].update(passed=1, failed=0)
            whole["rules"]["floor.f32.of-minus-zero"] = {"passed": 1, "failed": 0}
        case "drift":
            rows["abs", "f32"].update(ratio=0.75, ulp=1.55)
        case "lose":
            whole["results"] = [row for row in whole["results"] if row["op"] != "abs"]
            whole["cases"] = [each for each in whole["cases"] if each["op"] != "abs"]
            del whole["rules"]["abs.f32.of-nan"]
    return Document(whole, document.failures)


@pytest.mark.parametrize("edit", ["break", "mend", "drift", "lose"])
def test_compare_tells_what_changed(edit: str, snapshot: SnapshotAssertion) -> None:
    text = StringIO()
    found = compare(later(), later(edit))
    assert found.worse is (edit in ("break", "lose"))
    assert not found.same
    terminal.show_comparison(Console(file=text), found)
    assert text.getvalue() == snapshot


def test_equal_reports_are_the_same() -> None:
    found = compare(later(), later())
    assert found.same
    assert not found.worse


def test_compare_ends_with_1_if_the_later_report_is_worse(tmp_path: Path) -> None:
    for name, edit in (("a", ""), ("b", "mend"), ("c", "break")):
        (tmp_path / name).mkdir()
        text = json.dumps(dict(later(edit).whole))
        (tmp_path / name / "report.json").write_text(text, encoding="utf-8")

    def status(a: str, b: str, *more: str) -> int:
        paths = (str(tmp_path / a), str(tmp_path / b / "report.json"))
        return CliRunner().invoke(cli.app, ["compare", *paths, *more]).exit_code

    assert status("a", "a") == 0
    assert status("a", "b") == 0
    assert status("b", "a") == 1
    assert status("a", "c", "--json") == 1
    with pytest.raises(Exception, match="no report of this suite"):
        documents.read(Path(__file__))
