"""A report in the form that build servers read: one suite a level, one test an op and dtype."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from xml.etree import ElementTree as Tree

from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain, problem_of, smallest
from bringup_conformance.reporting.reports import Document, Tally
from bringup_conformance.reporting.roots import FATAL

#: Failures of one test whose programs are told; the others are named.
MOST_TOLD = 3
_Key = tuple[str, str, str]
# What XML 1.0 cannot hold.
_UNHEARD = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(document: Document) -> str:
    """The text of ``junit.xml``."""
    whole, groups = document.whole, _groups(document)
    root = Tree.Element("testsuites", name=f"conformance of {whole['backend']}")
    for rung in views.ladder(document):
        tests = [group for key, group in groups.items() if key[0] == rung.level]
        if tests:
            root.append(_suite(document, rung.level, tests))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{whole['seconds']:.3f}")
    Tree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Tree.tostring(root, encoding="unicode")}\n'


class _Group:
    """What becomes one test."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.tally = Tally()
        self.seconds = 0.0
        self.failures: list[tuple[Plain, str | None]] = []
        self.reasons: list[str] = []

    @property
    def names(self) -> list[str]:
        """Of its failures."""
        return [failure["case"]["name"] for failure, _ in self.failures]


def _groups(document: Document) -> dict[_Key, _Group]:
    found: dict[_Key, _Group] = {}

    def group(key: _Key) -> _Group:
        return found.setdefault(key, _Group(key))

    for key, tally in views.tallies(document).items():
        group(key).tally = tally
    for each in document.whole["unsupported_reasons"]:
        group((each["level"], each["op"], each["dtype"])).reasons.append(each["reason"])
    for each in document.whole["cases"]:
        group((each["level"], each["op"], each["dtype"])).seconds += each["seconds"]
    for failure, summary in zip(document.failures, document.whole["failures"], strict=True):
        case = failure["case"]
        key = (case["level"], case["op"], case["dtype"])
        group(key).failures.append((failure, summary["file"]))
    return found


def _suite(document: Document, level: str, groups: Sequence[_Group]) -> Tree.Element:
    whole = document.whole
    counts: defaultdict[str, int] = defaultdict(int)
    suite = Tree.Element("testsuite", name=level)
    facts = Tree.SubElement(suite, "properties")
    for name in ("backend", "seed", "suite"):
        Tree.SubElement(facts, "property", name=name, value=_text(str(whole[name])))
    Tree.SubElement(facts, "property", name="run", value=_text(views.scope(whole)))
    for group in groups:
        test = _test(group, document.excused)
        suite.append(test)
        for child in test:
            counts[child.tag] += 1
    kinds = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    suite.set("tests", str(len(groups)))
    for name, kind in kinds:
        suite.set(name, str(counts[kind]))
    suite.set("time", f"{sum(group.seconds for group in groups):.3f}")
    return suite


def _test(group: _Group, excused: Plain) -> Tree.Element:
    level, op, dtype = group.key
    test = Tree.Element(
        "testcase",
        classname=f"{level}.{views.kind_of(op)}.{op}",
        name=dtype or op,
        time=f"{group.seconds:.3f}",
    )
    if group.failures and all(name in excused for name in group.names):
        Tree.SubElement(test, "skipped", message=_text(excused[group.names[0]]))
    elif group.failures:
        first = problem_of(group.failures[0][0])
        name = "error" if first["kind"] in FATAL else "failure"
        message = f"{group.tally.failed} of {group.tally.failed + group.tally.passed}: "
        told = Tree.SubElement(
            test, name, type=first["kind"], message=_text(message + first["what"][:500])
        )
        told.text = _text("\n\n".join(_told(group)))
    elif not group.tally.passed:
        reasons = "; ".join(dict.fromkeys(group.reasons))
        Tree.SubElement(test, "skipped", message=_text(reasons or "nothing of it was run"))
    return test


def _told(group: _Group) -> list[str]:
    """The first failures with programs, the others by name."""
    found = []
    for failure, file in group.failures[:MOST_TOLD]:
        parts = [failure["case"]["name"], problem_of(failure)["what"], smallest(failure)["ir"]]
        if file:
            parts.append(f"conformance replay {shlex.quote(file)}")
        found.append("\n".join(filter(None, parts)))
    names = ", ".join(group.names[MOST_TOLD:])
    return [*found, f"also: {names}"] if names else found


def _text(text: str) -> str:
    return _UNHEARD.sub("�", text)
