"""The files of a report: for build servers, by their schema, read back, and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from small import (
    add,
    case,
    check_page,
    expected_to_fail,
    negated_sum,
    one,
    small_report,
)
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from bringup_conformance import Report, cli
from bringup_conformance.cases import Outcome, Problem
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import reports, terminal
from bringup_conformance.reporting.compare import compare
from bringup_conformance.reporting.html import page
from bringup_conformance.reporting.junit import junit
from bringup_conformance.reporting.reports import Document, document_of

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


def test_what_was_expected_to_fail_is_skipped() -> None:
    document = document_of(expected_to_fail())
    root = ElementTree.fromstring(junit(document))
    assert root.get("failures") == root.get("errors") == "0"
    reasons = [skipped.get("message") or "" for skipped in root.iter("skipped")]
    assert sum("mended in stepping B1" in reason for reason in reasons) == 3


def test_junit_takes_whatever_a_device_says() -> None:
    report = Report("toy", "smoke", 0)
    problem = Problem("crash", "running: \x1b[31m\x00 <lost> ]]> \ud800")
    add(report, Outcome(case("smoke/abs/f32/0", one("abs")), Verdict(), problem))
    text = junit(document_of(report))
    [error] = ElementTree.fromstring(text.encode()).iter("error")
    assert error.get("type") == "crash"
    assert "<lost>" in (error.get("message") or "")


# Files.


PAGE = Path(__file__).parents[2] / "docs/reference/report.md"


def documented(file: str) -> dict[str, str]:
    """The types of the documented fields of a file, by path."""
    section = PAGE.read_text("utf-8").partition(f"## `{file}`\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(.+?)` \| (.+?) \|", section, re.MULTILINE))


REPORT, FAILURE = documented("report.json"), documented("failure-NNN.json")


def undocumented(data: Any, fields: Mapping[str, str], path: str = "") -> list[str]:
    """Paths of a document that no field describes."""
    kind = fields.get(path, "")
    if kind == "any":
        return []
    found: list[str] = []
    if isinstance(data, dict):
        for key, value in data.items():
            paths = [f"{path}.{name}".removeprefix(".") for name in (key, "{}")]
            known = [
                p for p in paths if any(f == p or f.startswith((f"{p}.", f"{p}[")) for f in fields)
            ]
            found += undocumented(value, fields, known[0]) if known else paths[:1]
    elif isinstance(data, list) and not kind.startswith("list of"):
        for value in data:
            found += undocumented(value, fields, f"{path}[]")
    return list(dict.fromkeys(found))


def test_every_field_of_a_report_is_documented(two_faults: Path) -> None:
    whole = json.loads((two_faults / "report.json").read_text("utf-8"))
    assert len(REPORT) > 70
    assert len(FAILURE) > 70
    assert undocumented(whole, REPORT) == []
    for report in (small_report(), expected_to_fail()):
        assert undocumented(document_of(report).whole, REPORT) == []
    files = [*two_faults.glob("failure-*.json")]
    assert len(files) == whole["failed"]
    for file in files:
        document = json.loads(file.read_text("utf-8"))
        assert undocumented(document, FAILURE) == [], file
    for failure in document_of(small_report()).failures:
        assert undocumented(failure, FAILURE) == []


def test_a_field_that_nobody_documented_is_found() -> None:
    whole = {**document_of(small_report()).whole, "mood": 1, "cases": [{"name": "", "age": 3}]}
    assert undocumented(whole, REPORT) == ["cases[].age", "mood"]


def test_a_report_is_read_back_from_a_folder_that_moved(two_faults: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    two_faults.rename(moved)
    try:
        document = reports.read(moved)
        assert document == reports.read(moved / "report.json")
        assert any("reduced" in failure for failure in document.failures)
        assert page(document) == (moved / "report.html").read_text("utf-8")
    finally:
        moved.rename(two_faults)


def test_a_report_without_its_failure_files_still_has_forms(tmp_path: Path) -> None:
    small_report().write_all(tmp_path)
    document = reports.read(tmp_path)
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
        case "slow":
            whole["cases"][0]["seconds"] = 2.0
            whole["costs"]["kernels"] = 7
        case "lose":
            whole["results"] = [row for row in whole["results"] if row["op"] != "abs"]
            whole["cases"] = [each for each in whole["cases"] if each["op"] != "abs"]
            del whole["rules"]["abs.f32.of-nan"]
    return Document(whole, document.failures)


@pytest.mark.parametrize("edit", ["break", "mend", "drift", "slow", "lose"])
def test_compare_tells_what_changed(edit: str, snapshot: SnapshotAssertion) -> None:
    text = StringIO()
    found = compare(later(), later(edit))
    assert found.worse is (edit in ("break", "lose"))
    assert found.same is (edit == "slow")
    terminal.show_comparison(Console(file=text), found)
    assert text.getvalue() == snapshot


def test_equal_reports_are_the_same() -> None:
    found = compare(later(), later())
    assert found.same
    assert not found.worse


def test_a_page_tells_what_differs_from_an_earlier_report() -> None:
    before, after = later("mend"), later()
    text = page(after, before)
    reader = check_page(text)
    assert "compared" in reader.ids
    assert "#failure-0" in reader.links
    section = text.partition('<section id="compared"')[2].partition("</section>")[0]
    assert '<span class="state fail">worse</span>' in section
    assert '<a href="#failure-0">ops/floor/f32/0</a>' in section
    assert "time of cases in both (6)" in section
    assert 'title="floor f32: 0 passed, 1 failed; 9 elements; before: passed"' in text
    assert text.count('class="cell fail changed"') == 1
    assert 'class="cell ok changed"' not in text
    assert 'id="compared"' not in page(after)
    same = page(after, after)
    assert '<span class="state none">the same</span> as the run of' in same


def test_a_case_that_is_new_or_gone_is_neither_worse_nor_the_same() -> None:
    whole = json.loads(json.dumps(later().whole))
    whole["cases"][0]["name"] = "ops/abs/f32/1"
    found = compare(later(), Document(whole, later().failures))
    assert (found.new, found.gone) == (("ops/abs/f32/1",), ("ops/abs/f32/0",))
    assert not found.worse
    assert not found.same


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
    assert status("a", "c", "--json", "--html", str(tmp_path / "compared.html")) == 1
    assert 'id="compared"' in (tmp_path / "compared.html").read_text("utf-8")
    with pytest.raises(Exception, match="no report of this suite"):
        reports.read(Path(__file__))
