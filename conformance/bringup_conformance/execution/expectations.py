"""What a vendor expects of a device: what it will never have, and what is broken for now.

A TOML file of entries, each with patterns for ops, dtypes and features, and a reason:

    [[unsupported]]
    dtype = "f64"
    reason = "the arithmetic unit has 32 bits"

    [[xfail]]
    op = ["exp", "expm1"]
    dtype = "f16"
    feature = "special"
    reason = "subnormals come out as 0; mended in stepping B1"

Patterns are shell patterns, alone or in a list; one that is left out fits everything.  Features of
a case are its level, the kind of its op, the ids of its rules, and the words of its name after the
dtype (``special``, ``mapped``, ``every``, ``chain``); never its number.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup.records import record
from bringup_conformance.cases import PROGRAMS, Unsupported
from bringup_conformance.reporting.results import Result

KINDS = ("unsupported", "xfail")
#: Levels whose whole run meets everything that an entry can be about.
CERTIFYING = ("runtime", "exhaustive")
_PATTERNS = ("op", "dtype", "feature")
_FIX = "each entry has a reason, and op, dtype or feature: a pattern, or a list of them"


@record
class Entry:
    """One entry.  kind: one of `KINDS`.  number: among the entries of its kind, from 1."""

    kind: str
    number: int
    op: tuple[str, ...]
    dtype: tuple[str, ...]
    feature: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        texts = [f"{name} {'|'.join(getattr(self, name))}" for name in _PATTERNS]
        patterns = ", ".join(text for text in texts if not text.endswith(" *"))
        return f"{self.kind} {self.number} ({patterns}: {self.reason})"

    def fits(self, op: str, dtypes: Iterable[str], features: Iterable[str]) -> bool:
        """Whether its patterns fit an op, one of some dtypes, and one of some features."""
        return (
            _fit(self.op, (op,))
            and (self.dtype == ("*",) or _fit(self.dtype, dtypes))
            and (self.feature == ("*",) or _fit(self.feature, features))
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _fit(patterns: Sequence[str], texts: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for text in texts for pattern in patterns)


@record
class Expectations:
    """The entries of a file, in its order."""

    entries: tuple[Entry, ...] = ()

    def of(self, kind: str) -> tuple[Entry, ...]:
        """The entries of one kind."""
        return tuple(entry for entry in self.entries if entry.kind == kind)

    def excuses(self, result: Result) -> Entry | None:
        """The entry that expects a failing case to fail, or None."""
        return next((e for e in self.of("xfail") if _expects(e, result)), None)

    def explains(self, item: Unsupported) -> Entry | None:
        """The entry that says that something undeclared stays so, or None."""
        features = features_of(item.name, item.level, item.op)
        entries = (e for e in self.of("unsupported") if e.fits(item.op, (item.dtype,), features))
        return next(entries, None)

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Expectations:
        """Read the `to_json` of entries.  Raises KeyError."""
        entries = []
        for each in data:
            op, dtype, feature = (tuple(each[name]) for name in _PATTERNS)
            entry = Entry(each["kind"], each["number"], op, dtype, feature, each["reason"])
            entries.append(entry)
        return cls(tuple(entries))


@dataclass(slots=True)
class Findings:
    """A run compared with what was expected of it.

    xfailed: failing cases, each with the entry that expects it.  failed: the other failing cases.
    xpassed: entries of which every case passes.  stale: entries that fit no case of the run.
    claimed: entries that call unsupported what the device declares and runs.
    reasons: the vendor's reasons for undeclared items, by name.  unclaimed: what the device does
    right without declaring it, if that was tried.
    """

    xfailed: dict[str, Entry] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    xpassed: list[Entry] = field(default_factory=list)
    stale: list[Entry] = field(default_factory=list)
    claimed: list[Entry] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    unclaimed: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        """Entries that are wrong, a sentence each."""
        stale = [f"{entry} fits no case of the run: take it out" for entry in self.stale]
        claimed = [
            f"{entry} is declared by the device all the same: withdraw the claim, or make it xfail"
            for entry in self.claimed
        ]
        return stale + claimed

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "xfailed": {name: str(entry) for name, entry in self.xfailed.items()},
            "failed": self.failed,
            "xpassed": [str(entry) for entry in self.xpassed],
            "errors": self.errors,
            "reasons": self.reasons,
            "unclaimed": self.unclaimed,
        }

    @property
    def ok(self) -> bool:
        """Whether nothing fails that is not expected to, and no entry is wrong."""
        return not self.failed and not self.errors


def load(path: Path) -> Expectations:
    """Read a file.  Raises BringupError for a file of another form, OSError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BringupError(f"{path} is no TOML: {error}") from error
    unknown = [name for name in data if name not in KINDS]
    if unknown:
        kinds = " and ".join(f"[[{kind}]]" for kind in KINDS)
        raise BringupError(f"{path}: nothing is expected by {unknown[0]!r}", fix=f"use {kinds}")
    return Expectations(tuple(entry for kind in KINDS for entry in _entries(path, kind, data)))


def _entries(path: Path, kind: str, data: Mapping[str, Any]) -> Iterator[Entry]:
    tables = data.get(kind, [])
    if not isinstance(tables, list):
        raise BringupError(f"{path}: {kind} is no list of tables", fix=f"write [[{kind}]]")
    for number, table in enumerate(tables, 1):
        where = f"{path}: {kind} {number}"
        if not isinstance(table, dict):
            raise BringupError(f"{where} is no table", fix=_FIX)
        for name in table:
            if name not in (*_PATTERNS, "reason"):
                raise BringupError(f"{where} has {name!r}", fix=_FIX)
        reason = table.get("reason")
        if not isinstance(reason, str) or not reason.strip():
            raise BringupError(f"{where} has no reason", fix=_FIX)
        if not any(name in table for name in _PATTERNS):
            raise BringupError(f"{where} fits everything", fix=_FIX)
        op, dtype, feature = (_patterns(where, name, table.get(name, "*")) for name in _PATTERNS)
        yield Entry(kind, number, op, dtype, feature, reason.strip())


def _patterns(where: str, name: str, value: object) -> tuple[str, ...]:
    patterns = [value] if isinstance(value, str) else value
    if (
        not isinstance(patterns, list)
        or not patterns
        or not all(isinstance(each, str) for each in patterns)
    ):
        raise BringupError(f"{where}: {name} is {value!r}", fix=_FIX)
    return tuple(patterns)


def features_of(name: str, level: str, op: str, rules: Sequence[str] = ()) -> tuple[str, ...]:
    """The features of a case: what is known of it besides op, dtype and number.

    >>> features_of("ops/exp/f32/special", "ops", "exp", ("exp.f32.nan-propagates",))
    ('ops', 'elementwise', 'exp.f32.nan-propagates', 'special')
    """
    row = find(op)
    kind = op if row is None else row.kind.value
    words = (word for part in name.split("/")[3:] for word in part.split("-"))
    return (level, kind, *rules, *(word for word in words if not word.isdigit()))


def judged(
    expectations: Expectations,
    results: Sequence[Result],
    unsupported: Sequence[Unsupported],
    *,
    whole: bool,
) -> Findings:
    """Compare a run with what was expected of it.

    whole: whether the run met all that an entry can be about; otherwise no entry is called stale.
    """
    findings = Findings()
    used: set[Entry] = set()
    for result in results:
        entry = None if result.problem is None else expectations.excuses(result)
        if entry is not None:
            findings.xfailed[result.name] = entry
        elif result.problem is not None:
            findings.failed.append(result.name)
    for item in unsupported:
        entry = expectations.explains(item)
        if entry is not None:
            used.add(entry)
            findings.reasons[item.name] = entry.reason
    failing = set(findings.xfailed.values())
    for entry in expectations.entries:
        if entry in used or entry in failing:
            continue
        fits = any(_fits_case(entry, result) for result in results)
        if fits and entry.kind == "xfail":
            findings.xpassed.append(entry)
        elif fits:
            findings.claimed.append(entry)
        elif whole:
            findings.stale.append(entry)
    return findings


def _fits_case(entry: Entry, result: Result) -> bool:
    features = features_of(result.name, result.level, result.op, result.rules)
    return entry.fits(result.op, (result.dtype,), features)


def _expects(entry: Entry, result: Result) -> bool:
    """Whether an entry fits a failing case: itself or, of a program, an instruction in it."""
    if _fits_case(entry, result):
        return True
    document = result.document
    if result.op != PROGRAMS or document is None:
        return False
    form = document.get("reduced") or document["case"]
    if "ir" not in form:
        return False
    features = features_of(result.name, result.level, result.op, result.rules)
    for instr in parse_graph(form["ir"], find).instrs:
        dtypes = [v.dtype.name for v in (*instr.operands, *instr.results)]
        row = find(instr.op.name)
        kind = "" if row is None else row.kind.value
        if entry.fits(instr.op.name, dtypes, (*features, kind)):
            return True
    return False
