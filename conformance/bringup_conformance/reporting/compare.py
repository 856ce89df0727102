"""Two reports side by side: what broke, what was mended, what is new or gone, and what drifted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bringup_conformance.reporting import views
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.views import Cell

#: A worst error that grew or shrank by less than this factor has not drifted.
DRIFT = 1.1
# Shares of a bound too small to speak of.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """One op and dtype whose state differs.  before, after: ok, FAIL, no, or empty."""

    op: str
    dtype: str
    before: str
    after: str

    def __str__(self) -> str:
        words = [_WORDS[state] for state in (self.before, self.after)]
        return f"{self.op} {self.dtype}".strip() + f": {words[0]}, now {words[1]}"


@dataclass(frozen=True, slots=True)
class Drift:
    """A worst error that changed, of an op and dtype that pass in both.

    what: "of bound" or "ULP".
    """

    op: str
    dtype: str
    what: str
    before: float
    after: float

    def __str__(self) -> str:
        values = [views.number(value) or "0" for value in (self.before, self.after)]
        return f"{self.op} {self.dtype}".strip() + f": {self.what} {values[0]}, now {values[1]}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between a report and a later one.

    differs: what the two runs were not alike in.  broke, mended: names of cases in both.  failing:
    names of cases that fail in the later one and are not in the earlier.  lost, gained: cells that
    ceased or began to be tested and right, other than by cases in both.  drifts: worst errors.
    rules_broken, rules_mended: ids.  rules_gone, rules_new: ids tested in one of them only.
    """

    differs: tuple[str, ...] = ()
    broke: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    lost: tuple[Change, ...] = ()
    gained: tuple[Change, ...] = ()
    drifts: tuple[Drift, ...] = ()
    rules_broken: tuple[str, ...] = ()
    rules_mended: tuple[str, ...] = ()
    rules_gone: tuple[str, ...] = ()
    rules_new: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether the later one shows something wrong or missing that the earlier did not."""
        return any((self.broke, self.failing, self.lost, self.rules_broken, self.rules_gone))

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self == Comparison(differs=self.differs)

    def to_json(self) -> dict[str, Any]:
        """The object that ``conformance compare --json`` prints."""
        return {"worse": self.worse, **asdict(self)}


_WORDS = {"ok": "right", "FAIL": "wrong", "no": "unsupported", "": "not tested"}
_ALIKE = ("backend", "level", "seed", "suite")


def compare(before: Document, after: Document) -> Comparison:
    """What differs."""
    was, now = _cases(before), _cases(after)
    changes = [*_changes(_cells(before), _cells(after))]
    broken, mended, gone, new = _rules(before, after)
    return Comparison(
        differs=tuple(_differences(before.whole, after.whole)),
        broke=tuple(n for n in now if now[n] == "fail" and was.get(n) == "pass"),
        mended=tuple(n for n in now if now[n] == "pass" and was.get(n) == "fail"),
        failing=tuple(n for n in now if now[n] == "fail" and n not in was),
        lost=tuple(c for c in changes if c.before == "ok" and c.after in ("no", "")),
        gained=tuple(c for c in changes if c.after == "ok" and c.before in ("no", "")),
        drifts=tuple(_drifts(_cells(before), _cells(after))),
        rules_broken=broken,
        rules_mended=mended,
        rules_gone=gone,
        rules_new=new,
    )


def _cases(document: Document) -> dict[str, str]:
    return {case["name"]: case["status"] for case in document.whole["cases"]}


def _cells(document: Document) -> dict[tuple[str, str], Cell]:
    return {
        (row.op, dtype): cell for row in views.matrix(document) for dtype, cell in row.cells.items()
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[str]:
    for name in _ALIKE:
        if before[name] != after[name]:
            yield f"{name}: {before[name]}, now {after[name]}"
    scopes = [views.scope(whole) for whole in (before, after)]
    if scopes[0] != scopes[1]:
        yield f"run: {scopes[0]}, now {scopes[1]}"
    old, new = (whole.get("environment", {}) for whole in (before, after))
    for name in ("product", "python", "numpy", "platform"):
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name)}, now {new.get(name)}"
    details = [env.get("details", {}) for env in (old, new)]
    for name in dict.fromkeys((*details[0], *details[1])):
        if details[0].get(name) != details[1].get(name):
            yield f"{name}: {details[0].get(name)}, now {details[1].get(name)}"


def _changes(
    before: Mapping[tuple[str, str], Cell], after: Mapping[tuple[str, str], Cell]
) -> Iterable[Change]:
    for op, dtype in dict.fromkeys((*before, *after)):
        states = [cells.get((op, dtype), Cell()).state for cells in (before, after)]
        if states[0] != states[1]:
            yield Change(op, dtype, *states)


def _drifts(
    before: Mapping[tuple[str, str], Cell], after: Mapping[tuple[str, str], Cell]
) -> Iterable[Drift]:
    for (op, dtype), cell in after.items():
        old = before.get((op, dtype), Cell())
        if not old.state == cell.state == "ok":
            continue
        pairs = (
            ("of bound", old.tally.ratio, cell.tally.ratio, _LEAST),
            ("ULP", old.tally.ulp, cell.tally.ulp, 0.0),
        )
        for what, a, b, least in pairs:
            if max(a, b) > least and max(a, b) > DRIFT * min(a, b):
                yield Drift(op, dtype, what, a, b)


def _rules(before: Document, after: Document) -> tuple[tuple[str, ...], ...]:
    """Those broken, mended, gone and new."""
    was, now = (
        {rule: tally["failed"] > 0 for rule, tally in document.whole.get("rules", {}).items()}
        for document in (before, after)
    )
    return (
        tuple(rule for rule, bad in now.items() if bad and not was.get(rule, False)),
        tuple(rule for rule, bad in now.items() if not bad and was.get(rule, False)),
        tuple(rule for rule in was if rule not in now),
        tuple(rule for rule in now if rule not in was),
    )
