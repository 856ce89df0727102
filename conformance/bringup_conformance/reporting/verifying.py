"""Verifies certificates: whether one is consistent, and whether it is what this suite asks for.

Hashes show whether a file was changed after the others.  Somebody who changes all of them is caught
by what follows from the rest: the cases that the declared capabilities, the seed and the suite
make, the counts and tolerances that the results make, and, on the device itself, the results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.errors import BringupError
from bringup.records import record
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
from bringup_conformance.reporting.certificate import FILES, FORMAT, MANIFEST, Row
from bringup_conformance.reporting.environment import capabilities_of, environment, plain
from bringup_conformance.reporting.failures import TIMEOUT, case_to_json, suite_version
from bringup_conformance.reporting.results import Result

#: Cases that run again unless the user says how many.
SAMPLE = 200
#: Fields of a statement that must be equal on the device that is verified.
_OF_DEVICE = ("product", "details")


@record
class Certificate:
    """The files of a certificate."""

    statement: Mapping[str, Any]
    rows: Sequence[Row]
    capabilities: Capabilities
    declared: Mapping[str, Any]
    tolerances: Any
    skips: Sequence[Row]
    expectations: Mapping[str, Any]
    root: str

    @classmethod
    def read(cls, folder: Path) -> Certificate:
        """Read the files.  Raises OSError; ValueError, KeyError or TypeError for other files."""
        files = {
            name: json.loads((folder / name).read_text(encoding="utf-8"))
            for name in (*FILES, MANIFEST)
            if name.endswith(".json")
        }
        declared = files["capabilities.json"]
        return cls(
            files["statement.json"],
            files["results.json"]["cases"],
            capabilities_of(declared),
            declared,
            files["tolerances.json"],
            files["skips.json"],
            files["expectations.json"],
            files[MANIFEST]["root"],
        )

    @property
    def few(self) -> bool:
        """Whether its cases have few kernels."""
        return bool(self.statement["budget"].get("together") == FEW)

    def items(self) -> Iterator[Item]:
        """Every item that the suite makes for the declared device."""
        support = Support(partial(missing_from, self.capabilities))
        budget = budget_of(self.capabilities, self.few)
        plan = Plan(self.capabilities, support, self.statement["seed"], budget)
        names = levels.ladder(self.statement["level"])
        units = chain.from_iterable(levels.units(plan, name) for name in names)
        return chain.from_iterable(unit.make() for unit in units)


def problems(
    folder: Path,
    backend: str = "",
    rerun: bool = False,
    sample: int = SAMPLE,
    timeout: float = TIMEOUT,
) -> tuple[list[str], dict[str, Any]]:
    """Why a certificate does not hold, a sentence each, and its statement.

    backend: the device to compare it with; by default the one that it names.  A device is opened
    only if it is named here or cases run again.  rerun: whether cases run again.  sample: how many
    of them; 0 for all.  timeout: seconds without a sign of life after which one hangs.
    Raises BackendError if the device cannot be opened, BringupError if the folder holds no
    certificate.
    """
    if not (folder / MANIFEST).is_file():
        raise BringupError(
            f"{folder} holds no certificate: there is no {MANIFEST}",
            fix="name the folder that `conformance run --certificate` wrote",
        )
    why = altered(folder)
    if why:
        return why, {}
    try:
        certificate = Certificate.read(folder)
        why = inconsistent(certificate)
    except (ValueError, LookupError, TypeError, AttributeError, BringupError) as error:
        return [f"its files are not those of a certificate: {error!r}"], {}
    statement = dict(certificate.statement)
    if not why and (backend or rerun):
        target = DeviceTarget.named(backend or str(statement["backend"]))
        why = mismatched(certificate, target)
        if rerun and not why:
            why = changed_results(certificate, target, sample, timeout)
    return why, statement


def altered(folder: Path) -> list[str]:
    """Which files of a folder are not what its manifest says, a sentence each.  Raises OSError."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        hashes, root = dict(manifest["files"]), manifest["root"]
    except (ValueError, KeyError, TypeError):
        return [f"{MANIFEST} is none"]
    if manifest.get("format") != FORMAT:
        return [f"{MANIFEST} is of format {manifest.get('format')}, and this suite reads {FORMAT}"]
    names = {path.name for path in folder.iterdir()} - {MANIFEST}
    why = [f"{name} is missing" for name in FILES if name not in names]
    why += [f"{name} is no file of a certificate" for name in sorted(names - {*FILES})]
    if why:
        return why
    now = certificate.manifest({name: (folder / name).read_bytes() for name in FILES})
    why = [f"{name} was altered" for name in FILES if now["files"][name] != hashes.get(name)]
    if not why and now["root"] != root:
        why.append(f"{MANIFEST} was altered")
    return why


def inconsistent(given: Certificate) -> list[str]:
    """What does not follow from the rest of a certificate, or is not what this suite asks for."""
    statement = given.statement
    # Another suite makes other cases, so nothing more can be said of its certificates.
    if statement["level"] not in CERTIFYING:
        return [f"level {statement['level']} gives no certificate"]
    if statement["suite"] != suite_version():
        return [f"it is by suite {statement['suite']}, and this is {suite_version()}: use that one"]
    if statement["sources"] != certificate.sources_hash():
        return ["the sources of this suite are not those that it was made with"]
    planned = list(given.items())
    why = _other_cases(given, planned) or _unknown_failures(given, planned)
    if statement["budget"] != plain(budget_of(given.capabilities, given.few)):
        why.append("the statement's budget is not the one of the declared device")
    ladder = levels.ladder(statement["level"])
    if statement["counts"] != certificate.counts(given.rows, len(given.skips), ladder):
        why.append("the statement's counts do not follow from the results")
    if given.tolerances != certificate.tolerances(given.rows, given.capabilities):
        why.append("the tolerances do not follow from the op table and the results")
    return why


def _other_cases(certificate: Certificate, planned: Sequence[Item]) -> list[str]:
    """Why the results are not of all planned cases and of no others, a sentence each."""
    runs = {item.name: item for item in planned if not isinstance(item, Unsupported)}
    ran = {row["name"] for row in certificate.rows}
    skipped = Counter((skip["name"], skip["reason"]) for skip in certificate.skips)
    undeclared = Counter((i.name, i.reason) for i in planned if isinstance(i, Unsupported))
    more, less = skipped - undeclared, undeclared - skipped
    # A check may find on the device that what it is about is not offered.
    unexplained = [name for name, _ in more if not isinstance(runs.get(name), Check)]
    absent = runs.keys() - ran - {name for name, _ in skipped}
    others = ran - runs.keys()
    why = []
    if len(ran) < len(certificate.rows) or ran & {name for name, _ in more}:
        why.append("a case stands in it twice")
    if absent:
        why.append(f"planned cases are not in it: {len(absent)}, such as {min(absent)}")
    if others:
        why.append(f"cases in it are not planned: {len(others)}, such as {min(others)}")
    if unexplained:
        first = min(unexplained)
        why.append(f"{first} was skipped for a reason that the declaration does not give")
    if less:
        first, _ = min(less)
        why.append(f"{first} is not declared, and it does not say so")
    return why


def _unknown_failures(certificate: Certificate, planned: Sequence[Item]) -> list[str]:
    """Failures that no entry expects, and entries that are wrong, a sentence each."""
    expected = Expectations.from_json(certificate.expectations["entries"])
    items = {item.name: item for item in planned if not isinstance(item, Unsupported)}
    results = []
    for row in certificate.rows:
        problem = document = None
        if row["status"] != "pass":
            problem = Problem("wrong", "it failed when it was certified")
            item = items[row["name"]]
            document = {"case": case_to_json(item)} if isinstance(item, Case) else None
        names = {key: row[key] for key in ("name", "level", "op", "dtype")}
        results.append(
            Result(
                **names,
                rules=tuple(row["rules"]),
                verdict=Verdict(),
                problem=problem,
                document=document,
            )
        )
    skips = [
        Unsupported(**{k: v for k, v in s.items() if k != "vendor"}) for s in certificate.skips
    ]
    findings = judged(expected, results, skips, whole=True)
    why = [f"{name} failed, and no entry expects it" for name in findings.failed[:1]]
    why += findings.errors + [f"{entry} passes" for entry in findings.xpassed]
    known = {each["name"] for each in certificate.expectations["known_failures"]}
    if known != set(findings.xfailed):
        why.append("the known failures are not those of the results")
    return why


def mismatched(certificate: Certificate, target: Target) -> list[str]:
    """In what a device is not the one of a certificate, a sentence each."""
    now = json.loads(json.dumps(environment(target)))
    why = [
        f"{name} is {now[name]!r} here, and {certificate.statement[name]!r} in it"
        for name in _OF_DEVICE
        if now[name] != certificate.statement[name]
    ]
    declared = now["capabilities"]
    for name in sorted({*declared, *certificate.declared}):
        if declared.get(name) != certificate.declared.get(name):
            why.append(f"the device declares other {name} than the certificate's")
    return why


def changed_results(
    certificate: Certificate, target: Target, count: int, timeout: float = TIMEOUT
) -> list[str]:
    """Run cases again on a device: which have other results, a sentence each.

    count: how many, drawn by the certificate's own hash; 0 for all.  Those that found something not
    offered are always among them.
    Verdicts must be equal to the last bit on a device that declares equal results for equal runs.
    Programs run in a process of their own where the device has a name to be opened by.
    """
    names = [row["name"] for row in certificate.rows]
    if 0 < count < len(names):
        stream = Stream(certificate.root)
        for index in range(count):
            other = stream.integer(index, len(names) - 1)
            names[index], names[other] = names[other], names[index]
        del names[count:]
    wanted = {*names, *(skip["name"] for skip in certificate.skips)}
    rows = {row["name"]: row for row in certificate.rows}
    limit = case_timeout(certificate.statement["level"], timeout)
    isolated = isinstance(target, DeviceTarget)
    why = []
    with Isolated(target, limit) if isolated else nullcontext(target) as safe:
        for item in certificate.items():
            if item.name in wanted and not isinstance(item, Unsupported):
                where = safe if isinstance(item, Case) else target
                what = _changed(rows.get(item.name), item, where)
                if what:
                    why.append(f"{item.name} {what}")
    return why


def _changed(row: Row | None, item: Case | Check, target: Target) -> str:
    """How the result of an item differs from its row; empty if it does not.

    row: None if the item found that what it is about is not offered.
    """
    if row is None and "heavy" in item.tags:  # it would hang on the host
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
