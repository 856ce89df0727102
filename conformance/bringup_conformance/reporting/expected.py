"""What came of what was expected, for people."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from bringup_conformance.reporting.plain import visible
from bringup_conformance.reporting.reports import Report


def show(console: Console, report: Report) -> None:
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


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style), soft_wrap=True)
