"""Two reports compared: what broke, what was mended, what is new or gone or drifted, and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from bringup.cli import output
from bringup.records import record
from bringup_conformance.reporting import views
from bringup_conformance.reporting.failures import Plain
from bringup_conformance.reporting.reports import Document
from bringup_conformance.reporting.views import Cell

#: A worst error that grew or shrank by less than this factor has not drifted.
DRIFT = 1.1
#: The factor and the seconds from which on an op is slower or faster: times are noisy.
SLOWER, SLOWER_SECONDS = 1.5, 0.5
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
class Cost:
    """What a run cost.  unit: "s", "bytes", or empty for a count."""

    what: str
    unit: str
    before: float
    after: float

    def texts(self) -> tuple[str, str]:
        """The earlier value and the later one."""
        before, after = (_amount(value, self.unit) for value in (self.before, self.after))
        return before, after

    def __str__(self) -> str:
        before, after = self.texts()
        return f"{self.what}: {before}, now {after}"


@record
class Comparison:
    """What differs between a report and a later one.

    differs: in what the two runs were not alike.  broke, mended: names of cases in both.  failing:
    names of cases that fail in the later one and are not in the earlier.  new: of others that the
    earlier has not.  gone: of cases that the later has not.  lost, gained: ops and
    dtypes that are right in one of them, and not tested or not supported in the other.  drifts:
    worst errors.
    rules_broken, rules_mended: ids.  rules_gone, rules_new: ids that are tested in one of them.
    costs: of the cases in both; where both have the same cases, of the whole runs too.
    slower, faster: ops by the seconds of the cases in both.
    """

    differs: tuple[str, ...] = ()
    broke: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    lost: tuple[Change, ...] = ()
    gained: tuple[Change, ...] = ()
    drifts: tuple[Drift, ...] = ()
    rules_broken: tuple[str, ...] = ()
    rules_mended: tuple[str, ...] = ()
    rules_gone: tuple[str, ...] = ()
    rules_new: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    slower: tuple[Cost, ...] = ()
    faster: tuple[Cost, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether the later one shows something wrong or missing that the earlier did not."""
        return any((self.broke, self.failing, self.lost, self.rules_broken, self.rules_gone))

    @property
    def same(self) -> bool:
        """Whether nothing differs, but for times."""
        return not any(items for _, _, items in self.groups())

    def groups(self) -> tuple[Group, ...]:
        """What differs, the worst first, with its title and whether it is worse or better."""
        return (
            ("broke", "worse", self.broke),
            ("new and failing", "worse", self.failing),
            ("rule broken", "worse", self.rules_broken),
            ("lost", "worse", self.lost),
            ("rule not tested any more", "worse", self.rules_gone),
            ("mended", "better", self.mended),
            ("rule kept again", "better", self.rules_mended),
            ("gained", "better", self.gained),
            ("rule tested now", "better", self.rules_new),
            ("drifted", "", self.drifts),
            ("new case", "", self.new),
            ("case gone", "", self.gone),
        )

    @property
    def verdict(self) -> str:
        """The comparison in two words at most."""
        return "worse" if self.worse else "the same" if self.same else "not worse"

    def to_json(self) -> dict[str, Any]:
        """The object that ``conformance compare --json`` prints."""
        return {"worse": self.worse, **asdict(self)}


#: A title, "worse", "better" or neither, and what is of this kind.
Group = tuple[str, Literal["worse", "better", ""], Sequence[object]]
_WORDS = {"ok": "right", "FAIL": "wrong", "no": "unsupported", "": "not tested"}
#: What two runs should have in common.
_COMMON = ("backend", "level", "seed", "suite")
_COMMON_ENVIRONMENT = ("product", "python", "numpy", "platform")

_Cells = Mapping[tuple[str, str], Cell]


def compare(before: Document, after: Document) -> Comparison:
    """What differs between a report and a later one."""
    documents = (before, after)
    was, now = ({c["name"]: c["status"] for c in d.whole["cases"]} for d in documents)
    old, new = map(cells, documents)
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
        new=tuple(n for n in now if now[n] == "pass" and n not in was),
        gone=tuple(n for n in was if n not in now),
        lost=tuple(c for c in changes if c.before == "ok" and c.after in ("no", "")),
        gained=tuple(c for c in changes if c.after == "ok" and c.before in ("no", "")),
        drifts=tuple(_drifts(old, new)),
        rules_broken=tuple(r for r in new_rules if new_rules[r] and not old_rules.get(r, False)),
        rules_mended=tuple(r for r in new_rules if not new_rules[r] and old_rules.get(r, False)),
        rules_gone=tuple(r for r in old_rules if r not in new_rules),
        rules_new=tuple(r for r in new_rules if r not in old_rules),
        costs=tuple(_costs(before.whole, after.whole)),
        slower=tuple(_slower(before.whole, after.whole)),
        faster=tuple(
            Cost(cost.what, cost.unit, cost.after, cost.before)
            for cost in _slower(after.whole, before.whole)
        ),
    )


def cells(document: Document) -> dict[tuple[str, str], Cell]:
    """The cells of the matrix, by op and dtype."""
    rows = views.matrix(document)
    return {(row.op, dtype): cell for row in rows for dtype, cell in row.cells.items()}


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


def _costs(before: Plain, after: Plain) -> Iterator[Cost]:
    """Seconds of the cases in both; of runs of the same cases, what they cost in all."""
    old, new = ({c["name"]: c["seconds"] for c in whole["cases"]} for whole in (before, after))
    both = old.keys() & new.keys()
    if both:
        seconds = (sum(each[name] for name in both) for each in (old, new))
        yield Cost(f"time of cases in both ({len(both):,})", "s", *seconds)
    if old.keys() != new.keys() or not (before.get("costs") and after.get("costs")):
        return
    fields = (
        ("time of compiling", "s", ("compiling",)),
        ("time of first calls", "s", ("first_calls",)),
        ("time of running", "s", ("running",)),
        ("launches", "", ("kernels",)),
        ("bytes moved", "bytes", ("bytes_read", "bytes_written")),
    )
    for what, unit, names in fields:
        amounts = [sum(whole["costs"].get(name, 0) for name in names) for whole in (before, after)]
        cost = Cost(what, unit, *amounts)
        if len(set(cost.texts())) > 1:
            yield cost


def _slower(before: Plain, after: Plain) -> list[Cost]:
    """Ops whose cases in both runs took longer, the most first."""
    old = {case["name"]: case["seconds"] for case in before["cases"]}
    sums: dict[str, tuple[float, float]] = {}
    for case in after["cases"]:
        if case["name"] in old:
            first, second = sums.get(case["op"], (0.0, 0.0))
            sums[case["op"]] = (first + old[case["name"]], second + case["seconds"])
    longer = (
        Cost(op, "s", a, b)
        for op, (a, b) in sums.items()
        if b > SLOWER * a and b > a + SLOWER_SECONDS
    )
    return sorted(longer, key=lambda cost: cost.before - cost.after)


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return output.size_text(int(value))
    return f"{value:.2f} s" if unit == "s" else f"{value:,.0f}"
