"""A certificate looked through: whether it holds together and is what this suite asks for.

Hashes say whether a file was changed after the others.  Whoever changes all of them is met by what
follows from the rest: the cases that the declared capabilities, the seed and the suite make, the
counts and tolerances that the results make, and, on the device itself, the results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup_conformance.cases import Case, Check, NotOffered, Problem, Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.expectations import CERTIFYING, Expectations, judged
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.plan import FEW, Item, Plan, budget_of
from bringup_conformance.execution.protocol import case_timeout
from bringup_conformance.execution.running import run_item
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target, missing_from
from bringup_conformance.generate.choices import Stream
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import certificate
from bringup_conformance.reporting.certificate import FILES, FORMAT, MANIFEST
from bringup_conformance.reporting.declared import capabilities_of
from bringup_conformance.reporting.environment import environment, plain
from bringup_conformance.reporting.failures import TIMEOUT, case_to_json, suite_version
from bringup_conformance.reporting.results import Result

#: Cases that are run again if nobody says how many.
SAMPLE = 200
#: What a statement says of a device that must be so on the device at hand.
_OF_DEVICE = ("product", "details")

OnRerun = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate, read."""

    statement: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    capabilities: Capabilities
    declared: Mapping[str, Any]
    tolerances: Any
    skips: Sequence[Mapping[str, Any]]
    expectations: Mapping[str, Any]
    root: str

    @property
    def few(self) -> bool:
        """Whether its cases have few kernels."""
        return bool(self.statement["budget"].get("together") == FEW)

    def plan(self) -> Plan:
        """What its cases are made for."""
        support = Support(partial(missing_from, self.capabilities))
        seed, budget = self.statement["seed"], budget_of(self.capabilities, self.few)
        return Plan(self.capabilities, support, seed, budget)


def altered(folder: Path) -> list[str]:
    """Which files of a folder are not what its manifest says, a sentence each.  Raises OSError."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        hashes, root = dict(manifest["files"]), manifest["root"]
    except (ValueError, KeyError, TypeError):
        return [f"{MANIFEST} is none"]
    if manifest.get("format") != FORMAT:
        return [f"{MANIFEST} is of format {manifest.get('format')}, and this suite reads {FORMAT}"]
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    found = [f"{name} is missing" for name in FILES if name not in there]
    found += [f"{name} is no file of a certificate" for name in sorted(there - {*FILES})]
    if found:
        return found
    now = certificate.manifest({name: (folder / name).read_bytes() for name in FILES})
    found = [f"{name} was altered" for name in FILES if now["files"][name] != hashes.get(name)]
    if not found and now["root"] != root:
        found.append(f"{MANIFEST} was altered")
    return found


def read(folder: Path) -> Certificate:
    """Read the files.  Raises OSError; ValueError, KeyError or TypeError if they are none."""
    given = {
        name: json.loads((folder / name).read_text(encoding="utf-8"))
        for name in (*FILES, MANIFEST)
        if name.endswith(".json")
    }
    declared = given["capabilities.json"]
    return Certificate(
        given["statement.json"],
        given["results.json"]["cases"],
        capabilities_of(declared),
        declared,
        given["tolerances.json"],
        given["skips.json"],
        given["expectations.json"],
        given[MANIFEST]["root"],
    )


def inconsistent(given: Certificate) -> list[str]:
    """What does not follow from the rest of a certificate, or is not what this suite asks for."""
    statement = given.statement
    found = _of_suite(statement)
    if found:  # other cases are planned by another suite, so nothing else can be said
        return found
    planned = list(items(given))
    found += _of_cases(given, planned) or _of_failures(given, planned)
    if statement["budget"] != plain(budget_of(given.capabilities, given.few)):
        found.append("the statement's budget is not the one of the declared device")
    ladder = levels.ladder(statement["level"])
    if statement["counts"] != certificate.counts(given.rows, len(given.skips), ladder):
        found.append("the statement's counts do not follow from the results")
    if given.tolerances != certificate.tolerances(given.rows, given.capabilities):
        found.append("the tolerances do not follow from the op table and the results")
    return found


def _of_suite(statement: Mapping[str, Any]) -> list[str]:
    if statement["level"] not in CERTIFYING:
        return [f"level {statement['level']} gives no certificate"]
    if statement["suite"] != suite_version():
        return [f"it is by suite {statement['suite']}, and this is {suite_version()}: use that one"]
    if statement["sources"] != certificate.sources_hash():
        return ["the sources of this suite are not those that it was made with"]
    return []


def items(given: Certificate) -> Iterator[Item]:
    """Every case that the suite makes for what a certificate declares."""
    plan = given.plan()
    names = levels.ladder(given.statement["level"])
    units = chain.from_iterable(levels.units(plan, name) for name in names)
    return chain.from_iterable(unit.make() for unit in units)


def _of_cases(given: Certificate, planned: Sequence[Item]) -> list[str]:
    """Whether the results are of the planned cases, all of them and no others."""
    runs = {item.name: item for item in planned if not isinstance(item, Unsupported)}
    ran = {row["name"] for row in given.rows}
    skipped = Counter((skip["name"], skip["reason"]) for skip in given.skips)
    undeclared = Counter((i.name, i.reason) for i in planned if isinstance(i, Unsupported))
    # A check may find on the device that what it is about is not offered.
    more = [name for name, _ in skipped - undeclared if not isinstance(runs.get(name), Check)]
    less = [name for name, _ in undeclared - skipped]
    absent = runs.keys() - ran - {name for name, _ in skipped}
    others = ran - runs.keys()
    found = []
    if len(ran) < len(given.rows) or ran & {name for name, _ in skipped - undeclared}:
        found.append("a case stands in it twice")
    if absent:
        found.append(f"planned cases are not in it: {len(absent)}, such as {min(absent)}")
    if others:
        found.append(f"cases in it are not planned: {len(others)}, such as {min(others)}")
    if more:
        found.append(f"{min(more)} was skipped for a reason that the declaration does not give")
    if less:
        found.append(f"{min(less)} is not declared, and it does not say so")
    return found


def _of_failures(given: Certificate, planned: Sequence[Item]) -> list[str]:
    """Whether failures are known, and no entry of what is expected is stale."""
    expected = Expectations.from_json(given.expectations["entries"])
    runs = {item.name: item for item in planned if not isinstance(item, Unsupported)}
    results = [_result(row, runs[row["name"]]) for row in given.rows]
    skips = [Unsupported(**{k: v for k, v in s.items() if k != "vendor"}) for s in given.skips]
    known = judged(expected, results, skips, whole=True)
    found = [f"{name} failed, and no entry expects it" for name in known.failed[:1]]
    found += known.errors + [f"{entry} passes" for entry in known.xpassed]
    names = {each["name"] for each in given.expectations["known_failures"]}
    if names != set(known.xfailed):
        found.append("the known failures are not those of the results")
    return found


def _result(row: Mapping[str, Any], item: Case | Check) -> Result:
    good = row["status"] == "pass"
    case = case_to_json(item) if not good and isinstance(item, Case) else None
    return Result(
        row["name"],
        row["level"],
        row["op"],
        row["dtype"],
        tuple(row["rules"]),
        Verdict(),
        None if good else Problem("wrong", "it failed when it was certified"),
        document=None if case is None else {"case": case},
    )


def mismatched(given: Certificate, target: Target) -> list[str]:
    """In what a device is not the one of a certificate, a sentence each."""
    now = environment(target)
    found = [
        f"{name} is {now[name]!r} here, and {given.statement[name]!r} in it"
        for name in _OF_DEVICE
        if json.loads(json.dumps(now[name])) != given.statement[name]
    ]
    here = json.loads(json.dumps(now["capabilities"]))
    for name in sorted({*here, *given.declared}):
        if here.get(name) != given.declared.get(name):
            found.append(f"the device declares other {name} than the certificate's")
    return found


def sample(given: Certificate, count: int) -> set[str]:
    """The names of so many cases that ran, drawn by the certificate's own hash; 0 for all."""
    names = [row["name"] for row in given.rows]
    if not count or count >= len(names):
        return set(names)
    stream = Stream(given.root)
    for place in range(count):
        other = stream.integer(place, len(names) - 1)
        names[place], names[other] = names[other], names[place]
    return set(names[:count])


def rerun(
    given: Certificate,
    target: Target,
    count: int,
    on_item: OnRerun | None = None,
    timeout: float = TIMEOUT,
) -> list[str]:
    """Run cases again on a device: which come out otherwise, a sentence each.

    count: how many, 0 for all; those that found something not offered are always among them.
    timeout: seconds without a sign of life after which one hangs, as of a run.
    Verdicts must be equal to the last bit on a device that declares equal results for equal runs.
    Programs run in a process of their own where the device has a name to be opened by.
    """
    wanted = sample(given, count) | {skip["name"] for skip in given.skips}
    rows = {row["name"]: row for row in given.rows}
    found, done = [], 0
    with _safe(target, case_timeout(given.statement["level"], timeout)) as safe:
        for item in items(given):
            if item.name not in wanted or isinstance(item, Unsupported):
                continue
            if on_item is not None:
                on_item(done, len(wanted), item.name)
            done += 1
            where = safe if isinstance(item, Case) else target
            what = _differs(rows.get(item.name), item, where)
            if what:
                found.append(f"{item.name} {what}")
    return found


def _safe(target: Target, timeout: float) -> AbstractContextManager[Target]:
    return Isolated(target, timeout) if isinstance(target, DeviceTarget) else nullcontext(target)


def _differs(row: Mapping[str, Any] | None, item: Case | Check, target: Target) -> str:
    """How a case comes out now, if otherwise; empty if not.  row: of its result; None if it found
    that what it is about is not offered.
    """
    if row is None and "heavy" in item.tags:  # which hangs on the host
        return ""
    try:
        outcome = run_item(target, item)
    except NotOffered as error:
        return "" if row is None else f"is not offered now: {error}"
    if row is None:
        return "was skipped as not offered, and it is"
    if outcome.status != row["status"]:
        why = "" if outcome.problem is None else f": {outcome.problem.what}"
        return f"is a {outcome.status} now, and a {row['status']} in it{why}"
    same = certificate.verdict_hash(outcome.status, outcome.verdict) == row["verdict"]
    if not same and outcome.status == "pass" and target.capabilities.deterministic:
        return "gives another verdict now, on a device that declares equal results"
    return ""
