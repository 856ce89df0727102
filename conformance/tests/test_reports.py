"""The forms of a report for people: what each shows, and that pages stand alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from small import (
    add,
    case,
    check_page,
    expected_to_fail,
    negated_sum,
    one,
    shown,
    small_report,
    wrong,
)
from syrupy.assertion import SnapshotAssertion

from bringup import ops
from bringup.dtypes import f32, i16
from bringup.graph import Builder
from bringup.html.layout import place
from bringup_conformance import Report
from bringup_conformance.cases import Outcome, Problem
from bringup_conformance.oracle.verdict import BUCKETS, Verdict, bucket_ends, histogram
from bringup_conformance.reporting import failures, reports, roots, terminal, views
from bringup_conformance.reporting.html import page
from bringup_conformance.reporting.reports import Tally, document_of

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


def test_ops_that_the_same_failures_show_are_named_together() -> None:
    report = Report("toy", "fusion", 0)
    kernel = "%1: f32[] = sqrt(%0)\n%2: f32[] = div(%0, %1)"
    for number, more in ((0, {}), (1, {}), (2, {"ops": ["div"]})):
        cause = {"kind": "kernel", "name": f"k{number}", "kernel": kernel, **more}
        outcome = Outcome(
            case(f"fusion/programs/f32/{number}", negated_sum()),
            Verdict(),
            wrong((0, 0), "1.0", "2.0"),
        )
        add(report, outcome, cause=cause)
    failures = document_of(report).failures
    assert [str(root) for root in roots.roots(failures[:2])] == ["div or sqrt"]
    assert [str(root) for root in roots.roots(failures)] == ["div"]  # one of them is sure


def unary(report: Report, op: str, number: int, guilty: str = "") -> None:
    """Add a failure of one op.  guilty: the op that was found wrong alone, if it was looked for."""
    more: dict[str, object] = {}
    if guilty:
        cause = {"kind": "op", "name": guilty, "ir_before": str(one(guilty))}
        more = {"reduced": None, "cause": cause}
    outcome = Outcome(case(f"ops/{op}/f32/{number}", one(op)), Verdict(), wrong((0,), "1", "2"))
    add(report, outcome, **more)


def test_an_op_that_was_found_wrong_is_the_cause_and_no_part_of_its_decomposition() -> None:
    report = Report("toy", "ops", 0)
    for op, number, guilty in (("neg", 0, "neg"), ("neg", 1, "neg"), ("logistic", 0, "logistic")):
        unary(report, op, number, guilty)
    found = roots.roots(document_of(report).failures)
    assert [(str(root), root.failures) for root in found] == [
        ("neg on f32", (0, 1)),
        ("logistic on f32", (2,)),
    ]


def test_what_an_op_is_decomposed_into_may_be_the_cause_if_the_device_does_not_claim_it() -> None:
    report = Report("toy", "ops", 0)
    unary(report, "neg", 0, "neg")
    unary(report, "logistic", 0, "neg")
    unary(report, "logistic", 1)
    claims: dict[str, list[str]] = {"neg": ["f32"]}
    for name, counts in (("neg", [3]), ("logistic", [2, 1])):
        claims[name] = ["f32"]
        report.environment = {"capabilities": {"ops": claims, "kernels": {}}}
        document = document_of(report)
        found = roots.roots(document.failures, declared=document.declared)
        assert [len(root.failures) for root in found] == counts


def test_a_program_that_was_shrunk_to_another_dtype_says_so() -> None:
    report = Report("toy", "ops", 0)
    with Builder() as b:
        whole = b.build([ops.neg(b.input(i16[9]))])
    for number, small in ((0, one("neg")), (1, whole)):
        made = case(f"ops/neg/i16/{number}", whole)
        reduced = failures.case_to_json(replace(made, graph=small))
        add(report, Outcome(made, Verdict(), wrong((0,), "1", "2")), reduced=reduced)
    text = shown(report)
    assert "FAIL ops/neg/i16/0, shrunk to f32 (fused, wrong)" in text
    assert views.headline(document_of(report).failures[1]) == "ops/neg/i16/1"
    assert "ops/neg/i16/0, shrunk to f32" in page(document_of(report))


def test_two_faults_are_two_causes(two_faults: Path) -> None:
    found = roots.roots(reports.read(two_faults).failures)
    assert [str(root) for root in found] == ["sort on f32", "sub"]


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


def test_the_last_line_says_where_the_page_is() -> None:
    text = StringIO()
    terminal.show_report(Console(file=text), small_report(), Path("some", "folder"))
    assert text.getvalue().splitlines()[-1] == f"report: {Path('some', 'folder', 'report.html')}"


def test_a_clean_report_says_where_to_climb() -> None:
    report = Report("toy", "ops", 0)
    add(report, Outcome(case("ops/abs/f32/0", one("abs")), Verdict(0, 9)))
    assert "next: conformance run --backend=toy --level=fusion\n" in shown(report)
    report.left = 3
    text = StringIO()
    terminal.show_report(Console(file=text), report, Path("folder"))
    assert "next: conformance run --resume folder\n" in text.getvalue()
    assert "conformance run --resume ." in page(document_of(report))
    report.reduced, report.left = ["one half alone"], 0
    assert "next: conformance run --backend=toy --level=ops\n" in shown(report)
    assert "reduced, so it certifies nothing: one half alone\n" in shown(report)
    assert "in part" in page(document_of(report))
    report.reduced, report.level = [], "exhaustive"
    assert "next:" not in shown(report)


# Pages.


def test_a_page_stands_alone(two_faults: Path) -> None:
    reader = check_page((two_faults / "report.html").read_text("utf-8"))
    written = json.loads((two_faults / "report.json").read_text("utf-8"))
    assert reader.tags["h1"] == reader.tags["main"] == reader.tags["nav"] == 1
    assert reader.tags["script"] == reader.tags["style"] == 1
    assert all(f"failure-{n}" in reader.ids for n in range(written["failed"]))


def test_what_an_op_does_not_take_is_no_gap() -> None:
    report = small_report()
    taken = case("ops/add/i8/0", one("abs"))
    add(report, Outcome(replace(taken, op="add", dtype="i8"), Verdict(0, 1)))
    text = page(document_of(report))
    assert 'title="floor takes no i8"' in text
    assert 'title="abs i8: left out of this run"' in text


def test_what_a_run_left_out_looks_like_nothing_else() -> None:
    report = Report("toy", "ops", 0, only="exp")
    for op in ("exp", "max", "pad", "softmax"):
        add(report, Outcome(replace(case(f"ops/{op}/f32/0", one("abs")), op=op), Verdict(0, 1)))
    add(report, Outcome(replace(case("ops/and/bool/0", one("abs")), op="and"), Verdict(0, 1)))
    report.environment = {
        "capabilities": {
            "ops": {"max": ["f32", "f64"]},
            "kernels": {"exp": ["f32", "f16"], "and": ["bool"]},
        }
    }
    document = document_of(report)
    rows = {row.op: row for row in views.matrix(document)}
    names = ("f32", "f16", "f64", "i32", "")
    assert [rows["exp"].state(name) for name in names] == ["ok", "", "no", "absent", "absent"]
    # A kernel moves whatever dtype some claim holds, and a composite is decomposed.
    for op in ("pad", "softmax"):
        states = [rows[op].state(name) for name in ("f32", "f16", "f64", "bf16")]
        assert states == ["ok", "", "", "no"]
    text = page(document)
    check_page(text)
    assert "f64" not in views.columns(rows.values())
    add(report, Outcome(replace(case("ops/max/f64/0", one("abs")), op="max"), Verdict(0, 1)))
    text = page(document_of(report))
    assert 'class="cell none" title="pad f64: left out of this run">·</td>' in text
    assert 'class="cell no" title="exp f64: unsupported: the device does not declare it"' in text
    assert 'class="cell absent" title="and takes no f64"></td>' in text
    left = dict(views.untested(document_of(report)))
    assert left["dtypes"] == ["f16"]
    assert "abs" in left["elementwise"]
    assert "exp" not in left["elementwise"]
    assert "Left out of this run entirely" in text


def test_a_page_of_everything() -> None:
    text = page(document_of(small_report()))
    check_page(text)
    body = re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)
    assert "no &lt;f64&gt; at all" in body
    assert "a &amp; b" in body
    assert ">fails</span>" in body
    assert 'title="abs f32: 1 passed, 0 failed; 100 elements; worst error 0.50' in body
    assert "exp f64: unsupported" in body
    assert 'class="cell none" title="exp f32: left out of this run"' in body
    assert 'class="node op guilty"' in body
    for verb in ("explain", "replay", "shrink"):  # each to be copied alone
        assert f"<code>conformance {verb} failure-001.json</code>" in body
    assert "conformance explain failure-003.json" not in body


def test_a_page_keeps_what_devices_say_as_text() -> None:
    report = Report('<b onload="x">', "smoke", 0)
    problem = Problem("crash", "</script><script>alert(1)</script>", log="<!-- \x00")
    add(report, Outcome(case("smoke/abs/f32/0", one("abs")), Verdict(), problem))
    reader = check_page(page(document_of(report)))
    assert reader.tags["script"] == 1
    assert reader.tags["b"] == 0


def test_a_page_of_hundreds_of_failures_stays_small() -> None:
    report = Report("toy", "smoke", 0)
    for number in range(600):
        name = f"smoke/programs/f32/{number}"
        add(report, Outcome(case(name, negated_sum()), Verdict(), wrong((0, 0), "1.0", "2.0")))
    text = page(document_of(report))
    check_page(text)
    assert len(text) < 600_000
    assert text.count("<svg") < 100


def test_what_was_expected_is_told_and_no_failure_of_the_device() -> None:
    report = expected_to_fail()
    assert report.ok
    body = page(document_of(report))
    check_page(body)
    assert "passes, but for what was expected" in body
    assert "mended in stepping B1" in body
    assert "exp (f16)" in body
    assert 'id="next"' in body
    assert "Mend " not in body
    assert "next: conformance run --backend=toy --level=runtime" in shown(report)


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
