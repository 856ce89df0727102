"""Two graphs side by side in one text: what a pass took away, what it put there, and what it left.

Every graph numbers its own values, so a plain diff shows all that comes below an instruction that
went.  Here lines are matched with the numbers blanked; then the matches give the numbers of one
graph in terms of the other, and a matched line that reads other values counts as changed after all.
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
    names: dict[str, str] = {}
    lines: list[str] = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            lines += _equal(old[i:j], new[k:m], names)
        else:
            lines += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
    return lines


def _blank(line: str) -> str:
    return _VALUE.sub("%", line)


def _equal(old: Sequence[str], new: Sequence[str], names: dict[str, str]) -> list[str]:
    lines = []
    for a, b in zip(old, new, strict=True):
        if _same(a, b, names):
            lines.append(f"  {b}")
        else:
            lines += [f"- {a}", f"+ {b}"]
    return lines


def _same(old: str, new: str, names: dict[str, str]) -> bool:
    """Whether two lines alike but for numbers read the same values; then they make the same too."""
    made = old.partition(" = ")[0] if " = " in old else ""
    count = len(_VALUE.findall(made))
    pairs = list(zip(_VALUE.findall(old), _VALUE.findall(new), strict=True))
    if old.lstrip().startswith("graph "):
        names.update(pairs)
        return True
    good = all(names.get(a) == b for a, b in pairs[count:])
    if good:
        names.update(pairs[:count])
    return good
