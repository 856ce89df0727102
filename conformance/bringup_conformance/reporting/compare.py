"""Two reports compared: what broke, what was fixed, what is new or gone, and what drifted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bringup.records import record
from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.views import Cell

#: A worst error that grew or shrank by less than this factor has not drifted.
DRIFT = 1.1
# A share of a bound that is too small to speak of.
_MIN_SHARE = 0.01


@record
class Change:
    """An op and dtype whose state differs.  before, after: ok, FAIL, no, or empty."""

    op: str
    dtype: str
    before: str
    after: str

    def __str__(self) -> str:
        words = [_WORDS[state] for state in (self.before, self.after)]
        return f"{self.op} {self.dtype}".strip() + f": {words[0]}, now {words[1]}"


@record
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


@record
class Comparison:
    """What differs between a report and a later one.

    differs: in what the two runs were not alike.  broke, mended: names of cases in both.  failing:
    names of cases that fail in the later one and are not in the earlier.  lost, gained: ops and
    dtypes that are right in one of them, and not tested or not supported in the other.  drifts:
    worst errors.
    rules_broken, rules_mended: ids.  rules_gone, rules_new: ids that are tested in one of them.
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
#: What two runs should have in common.
_COMMON = ("backend", "level", "seed", "suite")
_COMMON_ENVIRONMENT = ("product", "python", "numpy", "platform")

_Cells = Mapping[tuple[str, str], Cell]


def compare(before: Document, after: Document) -> Comparison:
    """What differs between a report and a later one."""
    documents = (before, after)
    was, now = ({c["name"]: c["status"] for c in d.whole["cases"]} for d in documents)
    old, new = (
        {(row.op, dtype): cell for row in views.matrix(d) for dtype, cell in row.cells.items()}
        for d in documents
    )
    changes = list(_changes(old, new))
    old_rules, new_rules = (
        {rule: tally["failed"] > 0 for rule, tally in d.whole.get("rules", {}).items()}
        for d in documents
    )
    return Comparison(
        differs=tuple(_differences(before.whole, after.whole)),
        broke=tuple(n for n in now if now[n] == "fail" and was.get(n) == "pass"),
        mended=tuple(n for n in now if now[n] == "pass" and was.get(n) == "fail"),
        failing=tuple(n for n in now if now[n] == "fail" and n not in was),
        lost=tuple(c for c in changes if c.before == "ok" and c.after in ("no", "")),
        gained=tuple(c for c in changes if c.after == "ok" and c.before in ("no", "")),
        drifts=tuple(_drifts(old, new)),
        rules_broken=tuple(r for r in new_rules if new_rules[r] and not old_rules.get(r, False)),
        rules_mended=tuple(r for r in new_rules if not new_rules[r] and old_rules.get(r, False)),
        rules_gone=tuple(r for r in old_rules if r not in new_rules),
        rules_new=tuple(r for r in new_rules if r not in old_rules),
    )


def _differences(before: Plain, after: Plain) -> Iterator[str]:
    """In what two runs were not alike."""
    yield from _changed({n: before[n] for n in _COMMON}, {n: after[n] for n in _COMMON})
    yield from _changed({"run": views.scope(before)}, {"run": views.scope(after)})
    old, new = (whole.get("environment", {}) for whole in (before, after))
    yield from _changed(*({n: env.get(n) for n in _COMMON_ENVIRONMENT} for env in (old, new)))
    yield from _changed(old.get("details", {}), new.get("details", {}))


def _changed(old: Plain, new: Plain) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name)}, now {new.get(name)}"


def _changes(before: _Cells, after: _Cells) -> Iterator[Change]:
    for op, dtype in dict.fromkeys((*before, *after)):
        old, new = (cells.get((op, dtype), Cell()).state for cells in (before, after))
        if old != new:
            yield Change(op, dtype, old, new)


def _drifts(before: _Cells, after: _Cells) -> Iterator[Drift]:
    for (op, dtype), cell in after.items():
        old = before.get((op, dtype), Cell())
        if not old.state == cell.state == "ok":
            continue
        pairs = (
            ("of bound", old.tally.ratio, cell.tally.ratio, _MIN_SHARE),
            ("ULP", old.tally.ulp, cell.tally.ulp, 0.0),
        )
        for what, a, b, least in pairs:
            if max(a, b) > least and max(a, b) > DRIFT * min(a, b):
                yield Drift(op, dtype, what, a, b)
