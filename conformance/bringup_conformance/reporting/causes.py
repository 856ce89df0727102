"""The cause of a failure, for people: a sentence, what changed, the kernel and its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from rich.console import Console

from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.reporting import views
from bringup_conformance.reporting.reports import Failure
from bringup_conformance.reporting.terminal import print_line

#: Lines of assembly that are shown; more are in the file.
_SHORT = 60
# Lines before a kernel that are not worth leaving out.
_PRELUDE = 12
_STYLES = {"- ": "red", "+ ": "green"}


def show_cause(console: Console, failure: Failure, cause: Cause) -> None:
    """All that was found out."""
    name = views.headline(failure.document)
    print_line(console, f"{name} on {failure.document['backend']}", "bold")
    _section(console, "smallest program", failure.shown["ir"].splitlines())
    worst = [views.mismatch(m) for m in failure.problem["mismatches"][:3]]
    _section(console, "", worst or [failure.problem["what"]], "red")
    step = "" if cause.step is None else f", step {cause.step} of {cause.steps}"
    print_line(console, f"guilty: {cause.title}{step}", "bold red")
    print_line(console, f"  {cause.what}")
    if failure.document.get("guilty"):
        print_line(console, f"  right without: {', '.join(failure.document['guilty'])}")
    print_line(console)
    _section(console, "from its element to the program's", cause.trace)
    _section(console, "places in memory", cause.slots)
    _show_change(console, cause)
    others = [text for text in cause.kernels if text != cause.kernel]
    if cause.kernel:
        count = {0: "none", 1: "another one"}.get(len(others), f"{len(others)} others")
        _section(console, f"guilty kernel, {count} beside it", cause.kernel.splitlines())
    else:
        _section(console, "kernels", "\n\n".join(cause.kernels).splitlines())
    _section(console, "its source", source_lines(cause))
    assembly = cause.asm.splitlines()
    if len(assembly) <= _SHORT:
        _section(console, "its assembly", assembly)
    else:
        print_line(console, f"its assembly: {len(assembly)} lines, in the file", "bold")


def source_lines(cause: Cause) -> list[str]:
    """The source from the first line of the kernel: what a backend puts before all its kernels is
    in the file.
    """
    lines = cause.source.splitlines()
    name = re.compile(rf"\b{re.escape(cause.name)}\b") if cause.name else None
    first = next((n for n, line in enumerate(lines) if name and name.search(line)), 0)
    # Attributes and comments of the kernel stand right before it.
    while first and lines[first - 1].strip():
        first -= 1
    if first < _PRELUDE:
        return lines
    return [f"… {first} lines before it are in the file", *lines[first:]]


def _show_change(console: Console, cause: Cause) -> None:
    """What went in and what came out; of two graphs, what changed."""
    if not cause.ir_before or not cause.ir_after:
        _section(console, "the least part that is wrong", cause.ir_before.splitlines())
        return
    if cause.kind in ("pass", "kernel pass"):
        print_line(console, f"what {cause.name} changed", "bold")
        for line in marked(cause.ir_before, cause.ir_after):
            print_line(console, f"  {line}", _STYLES.get(line[:2], ""))
        print_line(console)
        return
    _section(console, "what it is to compute", cause.ir_before.splitlines())
    if cause.ir_after != cause.kernel:
        _section(console, "what that became", cause.ir_after.splitlines())


def _section(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if not lines:
        return
    if title:
        print_line(console, title, "bold")
    for line in lines:
        print_line(console, f"  {line}", style)
    print_line(console)


_VALUE = re.compile(r"%\d+")


def marked(before: str, after: str) -> list[str]:
    r"""A diff of two graphs: lines that begin with ``- ``, ``+ `` or two blanks.

    Every graph numbers its own values, so in a plain diff every line below a removed instruction
    differs.  Here lines are matched without the numbers.  The matches translate the numbers of the
    first graph into those of the second, and a matched line that reads other values counts as
    changed after all.  Where lines were replaced, the last new one stands for the last old one, so
    that what reads it counts as unchanged.  Unchanged lines have the numbers of the second graph.

    >>> print(*marked("%1 = exp(%0)\n%2 = neg(%1)", "%1 = neg(%0)"), sep="\n")
    - %1 = exp(%0)
    - %2 = neg(%1)
    + %1 = neg(%0)
    """
    old, new = before.splitlines(), after.splitlines()
    old_blank, new_blank = ([_VALUE.sub("%", line) for line in lines] for lines in (old, new))
    codes = SequenceMatcher(None, old_blank, new_blank, autojunk=False).get_opcodes()
    names: dict[str, str] = {}

    def translate(old_line: str, new_line: str) -> None:
        names.update(zip(_defined(old_line), _defined(new_line), strict=False))

    # Lines that were moved: removed in one place and added in another.
    added: dict[str, list[str]] = {}
    for tag, _, _, k, m in codes:
        for number in range(k, m) if tag != "equal" else ():
            added.setdefault(new_blank[number], []).append(new[number])
    for tag, i, j, _, _ in codes:
        for number in range(i, j) if tag != "equal" else ():
            if added.get(old_blank[number]):
                translate(old[number], added[old_blank[number]].pop(0))
    lines: list[str] = []
    for tag, i, j, k, m in codes:
        if tag != "equal":
            if i < j and k < m:
                translate(old[j - 1], new[m - 1])
            lines += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
            continue
        for a, b in zip(old[i:j], new[k:m], strict=True):
            first = len(_defined(a))
            operands = zip(_VALUE.findall(a)[first:], _VALUE.findall(b)[first:], strict=True)
            same = all(names.get(x) == y for x, y in operands)
            translate(a, b)
            lines += [f"  {b}"] if same else [f"- {a}", f"+ {b}"]
    return lines


def _defined(line: str) -> list[str]:
    """The values that a line defines."""
    if line.lstrip().startswith("graph "):
        return _VALUE.findall(line)
    return _VALUE.findall(line.partition(" = ")[0]) if " = " in line else []
