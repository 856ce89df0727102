"""Two graphs side by side in one text: what a pass took away, what it put there, and what it left.

Every graph numbers its own values, so a plain diff shows all that comes below an instruction that
went.  Here lines are matched with the numbers blanked; the matches give the numbers of one graph in
terms of the other, and a matched line that reads other values counts as changed after all.  What
stands where something went is taken for what it became, so that its readers count as left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

_VALUE = re.compile(r"%\d+")


def marked(before: str, after: str) -> list[str]:
    r"""Lines that begin with ``- ``, ``+ `` or two blanks; those that are left have the names they
    have after.

    >>> print(*marked("%1 = exp(%0)\n%2 = neg(%1)", "%1 = neg(%0)"), sep="\n")
    - %1 = exp(%0)
    - %2 = neg(%1)
    + %1 = neg(%0)
    """
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, list(map(_blank, old)), list(map(_blank, new)), autojunk=False)
    codes = matcher.get_opcodes()
    names = _moved(
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


def _made(line: str) -> list[str]:
    """The values that a line defines."""
    if line.lstrip().startswith("graph "):
        return _VALUE.findall(line)
    return _VALUE.findall(line.partition(" = ")[0]) if " = " in line else []


def _moved(gone: Sequence[str], come: Sequence[str]) -> dict[str, str]:
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
    names.update(zip(_made(old), _made(new), strict=False))


def _equal(old: Sequence[str], new: Sequence[str], names: dict[str, str]) -> list[str]:
    lines = []
    for a, b in zip(old, new, strict=True):
        made = len(_made(a))
        read = zip(_VALUE.findall(a)[made:], _VALUE.findall(b)[made:], strict=True)
        same = all(names.get(x) == y for x, y in read)
        _became(a, b, names)
        lines += [f"  {b}"] if same else [f"- {a}", f"+ {b}"]
    return lines
