"""A report in the form that build servers read: one suite a level, one test an op and dtype."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from xml.etree import ElementTree as Tree

from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.reports import Document, Tally
from bringup_conformance.reporting.roots import FATAL

#: Failures of one test that are shown with their programs; the others are named.
MAX_SHOWN = 3
# Characters that XML 1.0 cannot hold.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class _Test:
    """What becomes one test.  failures: their documents, each with its file.  reasons: why cases
    were left out.
    """

    level: str
    op: str
    dtype: str
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    failures: list[tuple[Plain, str | None]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def junit(document: Document) -> str:
    """The text of ``junit.xml``."""
    whole = document.whole
    tests: dict[tuple[str, str, str], _Test] = {}

    def test_of(row: Plain) -> _Test:
        key = (row["level"], row["op"], row["dtype"])
        return tests.setdefault(key, _Test(*key))

    for key, tally in views.tallies(document).items():
        tests[key] = _Test(*key, tally=tally)
    for each in whole["unsupported_reasons"]:
        test_of(each).reasons.append(each["reason"])
    for each in whole["cases"]:
        test_of(each).seconds += each["seconds"]
    for failure, summary in zip(document.failures, whole["failures"], strict=True):
        test_of(failure["case"]).failures.append((failure, summary["file"]))
    root = Tree.Element("testsuites", name=f"conformance of {whole['backend']}")
    for rung in views.ladder(document):
        of_level = [test for test in tests.values() if test.level == rung.level]
        if of_level:
            root.append(_suite(document, rung.level, of_level))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{whole['seconds']:.3f}")
    Tree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Tree.tostring(root, encoding="unicode")}\n'


def _suite(document: Document, level: str, tests: list[_Test]) -> Tree.Element:
    whole = document.whole
    suite = Tree.Element("testsuite", name=level)
    properties = Tree.SubElement(suite, "properties")
    for name in ("backend", "seed", "suite"):
        Tree.SubElement(properties, "property", name=name, value=_text(str(whole[name])))
    Tree.SubElement(properties, "property", name="run", value=_text(views.scope(whole)))
    suite.extend(_testcase(test, document.excused) for test in tests)
    suite.set("tests", str(len(tests)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("time", f"{sum(test.seconds for test in tests):.3f}")
    return suite


def _testcase(test: _Test, excused: Plain) -> Tree.Element:
    """A test.  excused: names of cases that are expected to fail, each with the entry that does."""
    element = Tree.Element(
        "testcase",
        classname=f"{test.level}.{views.kind_of(test.op)}.{test.op}",
        name=test.dtype or test.op,
        time=f"{test.seconds:.3f}",
    )
    names = [failure["case"]["name"] for failure, _ in test.failures]
    if names and all(name in excused for name in names):
        Tree.SubElement(element, "skipped", message=_text(excused[names[0]]))
    elif names:
        first = problem_of(test.failures[0][0])
        kind = "error" if first["kind"] in FATAL else "failure"
        count = f"{test.tally.failed} of {test.tally.failed + test.tally.passed}"
        message = _text(f"{count}: {first['what'][:500]}")
        child = Tree.SubElement(element, kind, type=first["kind"], message=message)
        texts = [_failure_text(*each) for each in test.failures[:MAX_SHOWN]]
        if names[MAX_SHOWN:]:
            texts.append(f"also: {', '.join(names[MAX_SHOWN:])}")
        child.text = _text("\n\n".join(texts))
    elif not test.tally.passed:
        reasons = "; ".join(dict.fromkeys(test.reasons))
        Tree.SubElement(element, "skipped", message=_text(reasons or "nothing of it was run"))
    return element


def _failure_text(failure: Plain, file: str | None) -> str:
    command = f"conformance replay {shlex.quote(file)}" if file else ""
    case, problem = smallest(failure), problem_of(failure)
    return "\n".join(filter(None, (views.headline(failure), problem["what"], case["ir"], command)))


def _text(text: str) -> str:
    return _NOT_XML.sub("�", text)
