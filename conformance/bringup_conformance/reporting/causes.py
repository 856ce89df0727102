"""What is guilty of a failure, for people: a sentence, what changed, the kernel and its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from rich.console import Console
from rich.text import Text

from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.reporting import views
from bringup_conformance.reporting.plain import visible
from bringup_conformance.reporting.reports import Failure

#: Lines of assembly that are shown; more are in the file.
_SHORT = 60
# Lines before a kernel that are not worth leaving out.
_PRELUDE = 12
_STYLES = {"- ": "red", "+ ": "green"}


def show_cause(console: Console, failure: Failure, cause: Cause) -> None:
    """All that was found out."""
    case = failure.document["case"]
    _line(console, f"{case['name']} on {failure.document['backend']}", "bold")
    _section(console, "smallest program", failure.shown["ir"].splitlines())
    worst = [views.mismatch(m) for m in failure.problem["mismatches"][:3]]
    _section(console, "", worst or [failure.problem["what"]], "red")
    _line(console, f"guilty: {cause.title}{_step(cause)}", "bold red")
    _line(console, f"  {cause.what}")
    if failure.document.get("guilty"):
        _line(console, f"  right without: {', '.join(failure.document['guilty'])}")
    _line(console)
    _section(console, "from its element to the program's", cause.trace)
    _section(console, "places in memory", cause.slots)
    _show_change(console, cause)
    others = [text for text in cause.kernels if text != cause.kernel]
    if cause.kernel:
        _section(console, f"guilty kernel, {_count(others)} beside it", cause.kernel.splitlines())
    else:
        _section(console, "kernels", "\n\n".join(cause.kernels).splitlines())
    _section(console, "its source", source_lines(cause))
    assembly = cause.asm.splitlines()
    if len(assembly) <= _SHORT:
        _section(console, "its assembly", assembly)
    else:
        _line(console, f"its assembly: {len(assembly)} lines, in the file", "bold")


def source_lines(cause: Cause) -> list[str]:
    """The source from where the kernel begins: what a backend puts before all its kernels is in the
    file.
    """
    lines = cause.source.splitlines()
    named = re.compile(rf"\b{re.escape(cause.name)}\b") if cause.name else None
    first = next((n for n, line in enumerate(lines) if named and named.search(line)), 0)
    # Attributes and comments of the kernel stand right before it.
    while first and lines[first - 1].strip():
        first -= 1
    if first < _PRELUDE:
        return lines
    return [f"… {first} lines before it are in the file", *lines[first:]]


def _step(cause: Cause) -> str:
    return "" if cause.step is None else f", step {cause.step} of {cause.steps}"


def _count(others: Sequence[str]) -> str:
    return {0: "none", 1: "another one"}.get(len(others), f"{len(others)} others")


def _show_change(console: Console, cause: Cause) -> None:
    """What went in and what came out; of two graphs, what changed."""
    if not cause.ir_before or not cause.ir_after:
        _section(console, "the least part that is wrong", cause.ir_before.splitlines())
        return
    if cause.kind in ("pass", "kernel pass"):
        _line(console, f"what {cause.name} changed", "bold")
        for line in marked(cause.ir_before, cause.ir_after):
            _line(console, f"  {line}", _STYLES.get(line[:2], ""))
        _line(console)
        return
    _section(console, "what it is to compute", cause.ir_before.splitlines())
    if cause.ir_after != cause.kernel:
        _section(console, "what that became", cause.ir_after.splitlines())


def _section(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if not lines:
        return
    if title:
        _line(console, title, "bold")
    for line in lines:
        _line(console, f"  {line}", style)
    _line(console)


def _line(console: Console, text: str = "", style: str = "") -> None:
    console.print(Text(visible(text), style=style), soft_wrap=True)


_VALUE = re.compile(r"%\d+")


def marked(before: str, after: str) -> list[str]:
    r"""Lines that begin with ``- ``, ``+ `` or two blanks; those that are left have the names they
    have after.

    Every graph numbers its own values, so a plain diff shows all that comes below an instruction
    that went.  Here lines are matched with the numbers blanked; the matches give the numbers of one
    graph in terms of the other, and a matched line that reads other values counts as changed after
    all.  What stands where something went is taken for what it became, so that its readers count as
    left alone.

    >>> print(*marked("%1 = exp(%0)\n%2 = neg(%1)", "%1 = neg(%0)"), sep="\n")
    - %1 = exp(%0)
    - %2 = neg(%1)
    + %1 = neg(%0)
    """
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, list(map(_blank, old)), list(map(_blank, new)), autojunk=False)
    codes = matcher.get_opcodes()
    names = _renamed(
        [line for tag, i, j, _, _ in codes if tag != "equal" for line in old[i:j]],
        [line for tag, _, _, k, m in codes if tag != "equal" for line in new[k:m]],
    )
    lines: list[str] = []
    for tag, i, j, k, m in codes:
        if tag == "equal":
            lines += _equal(old[i:j], new[k:m], names)
            continue
        if i < j and k < m:
            _became(old[j - 1], new[m - 1], names)
        lines += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
    return lines


def _blank(line: str) -> str:
    return _VALUE.sub("%", line)


def _defined(line: str) -> list[str]:
    """The values that a line defines."""
    if line.lstrip().startswith("graph "):
        return _VALUE.findall(line)
    return _VALUE.findall(line.partition(" = ")[0]) if " = " in line else []


def _renamed(gone: Sequence[str], come: Sequence[str]) -> dict[str, str]:
    """Names of what went in one place and came in another."""
    waiting: dict[str, list[str]] = {}
    for line in come:
        waiting.setdefault(_blank(line), []).append(line)
    names: dict[str, str] = {}
    for line in gone:
        if waiting.get(_blank(line)):
            _became(line, waiting[_blank(line)].pop(0), names)
    return names


def _became(old: str, new: str, names: dict[str, str]) -> None:
    names.update(zip(_defined(old), _defined(new), strict=False))


def _equal(old: Sequence[str], new: Sequence[str], names: dict[str, str]) -> list[str]:
    lines = []
    for a, b in zip(old, new, strict=True):
        made = len(_defined(a))
        read = zip(_VALUE.findall(a)[made:], _VALUE.findall(b)[made:], strict=True)
        same = all(names.get(x) == y for x, y in read)
        _became(a, b, names)
        lines += [f"  {b}"] if same else [f"- {a}", f"+ {b}"]
    return lines
