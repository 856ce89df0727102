"""Certificates: a directory that states what a device does right, with the evidence.

    statement.md, statement.json   product, versions, level, seed, budget, date, counts
    results.json                   every case: its name, what came of it, the hash of its verdict
    capabilities.json              what the device declares
    tolerances.json                the bound of every op and dtype, and the largest share of it seen
    skips.json                     what was not run, and why
    expectations.json              known failures: the vendor's entries with their reasons
    manifest.json                  SHA-256 of every file, and one hash of them all

Only whole runs of level runtime or exhaustive give one: right values do not help on a device that
loses memory or mixes up streams.  No case may fail that the vendor does not declare as a known
failure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import bringup
import bringup_conformance
from bringup.backend.capabilities import Capabilities
from bringup.dtypes import BY_NAME, DType
from bringup.errors import BringupError
from bringup.ops.table import Accuracy, OpDef, find
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.execution.expectations import CERTIFYING, Expectations, judged
from bringup_conformance.execution.levels import ladder
from bringup_conformance.execution.plan import budget_of
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting.environment import capabilities_of, hash_of_files, plain
from bringup_conformance.reporting.failures import suite_version
from bringup_conformance.reporting.reports import Report
from bringup_conformance.reporting.results import Result

#: Changes when a directory of an earlier version means something else.
FORMAT = 1
MANIFEST = "manifest.json"
FILES = (
    "statement.json", "statement.md", "results.json", "capabilities.json", "tolerances.json",
    "skips.json", "expectations.json",
)  # fmt: skip

Row = Mapping[str, Any]


def check_level(level: str) -> None:
    """Raises BringupError for a level that gives no certificate.

    Call it before the run, since it takes the hash of the sources that will run.
    """
    sources_hash()
    if level not in CERTIFYING:
        raise BringupError(
            f"level {level} gives no certificate: it leaves out what a device promises beyond the "
            "values of one program",
            fix=f"run level {' or '.join(CERTIFYING)}",
        )


def refusals(report: Report, expected: Expectations) -> list[str]:
    """Why a run gives no certificate, a sentence each; empty if it does."""
    findings = judged(expected, report.results, report.unsupported, whole=not report.reduced)
    why = [f"the run is not whole: {reason}" for reason in report.reduced]
    if report.level not in CERTIFYING:
        why.append(f"level {report.level} gives no certificate")
    if not report.passed:
        why.append("no case passed")
    failed = findings.failed
    if failed:
        count = len(failed)
        why.append(f"{count} case{'s' * (count > 1)} failed, the first of them {failed[0]}")
    why += findings.errors
    why += [f"{entry} passes now: take it out" for entry in findings.xpassed]
    return why


def write(report: Report, folder: Path, expected: Expectations | None = None) -> str:
    """Write the certificate of a run into a folder that is new, empty, or an earlier certificate's.

    Returns the hash of all of it.  Raises BringupError if the run gives none, or the folder holds
    something else; OSError.
    """
    expected = expected or Expectations()
    why = refusals(report, expected)
    if why:
        raise BringupError(f"no certificate: {'; '.join(why)}")
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = contents(report, expected)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    hashes = manifest({name: text.encode() for name, text in files.items()})
    (folder / MANIFEST).write_text(dumped(hashes), encoding="utf-8")
    return str(hashes["root"])


def check_folder(folder: Path) -> None:
    """Raises BringupError for a folder that holds anything but a certificate."""
    others = {p.name for p in folder.iterdir()} - {*FILES, MANIFEST} if folder.exists() else set()
    if others:
        raise BringupError(
            f"{folder} holds {min(others)}, which is of no certificate", fix="name a new folder"
        )


def contents(report: Report, expected: Expectations) -> dict[str, str]:
    """The texts of all files but the manifest."""
    findings = judged(expected, report.results, report.unsupported, whole=True)
    rows = [row_of(result) for result in report.results]
    capabilities = report.environment["capabilities"]
    reasons = findings.reasons
    skips = [{**asdict(each), "vendor": reasons.get(each.name, "")} for each in report.unsupported]
    known = [{"name": name, "entry": str(entry)} for name, entry in findings.xfailed.items()]
    statement = _statement(report, rows, len(skips))
    return {
        "statement.json": dumped(statement),
        "statement.md": markdown(statement, known, skips),
        "results.json": dumped({"format": FORMAT, "cases": rows}),
        "capabilities.json": dumped(capabilities),
        "tolerances.json": dumped(tolerances(rows, capabilities_of(capabilities))),
        "skips.json": dumped(skips),
        "expectations.json": dumped(
            {"entries": [entry.to_json() for entry in expected.entries], "known_failures": known}
        ),
    }


def dumped(data: object) -> str:
    """Data as the text of a file."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The hash of every file, and the hash of those with their names."""
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    return {
        "format": FORMAT,
        "files": hashes,
        "root": hashlib.sha256(lines.encode()).hexdigest(),
    }


def row_of(result: Result) -> dict[str, Any]:
    """A case in ``results.json``."""
    verdict = result.verdict
    return {
        "name": result.name,
        "level": result.level,
        "op": result.op,
        "dtype": result.dtype,
        "rules": list(result.rules),
        "status": result.status,
        "compared": verdict.compared,
        "open": verdict.open,
        "ratio": verdict.ratio,
        "ulp": verdict.ulp,
        "verdict": verdict_hash(result.status, verdict),
    }


def verdict_hash(status: str, verdict: Verdict) -> str:
    """A hash of a status and a verdict, without the texts of its mismatches."""
    data = {**asdict(verdict), "status": status}
    del data["mismatches"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@cache
def sources_hash() -> str:
    """A hash of the sources of the suite and of the SDK, whose op table says what is right.

    With other sources, equal seeds make other cases.
    """
    roots = [Path(package.__path__[0]) for package in (bringup, bringup_conformance)]
    return hash_of_files(
        (path.relative_to(root).as_posix(), path.read_bytes().replace(b"\r\n", b"\n"))
        for root in roots
        for path in sorted(root.rglob("*.py"))
    )


def _statement(report: Report, rows: Sequence[Row], skips: int) -> dict[str, Any]:
    environment = dict(report.environment)
    capabilities = capabilities_of(environment.pop("capabilities"))
    return {
        "format": FORMAT,
        "backend": report.backend,
        "plugin": {},
        **environment,
        "suite": suite_version(),
        "sources": sources_hash(),
        "level": report.level,
        "seed": report.seed,
        "budget": plain(budget_of(capabilities, report.few_kernels)),
        "date": report.date,
        "seconds": round(report.seconds, 1),
        "counts": counts(rows, skips, ladder(report.level)),
    }


def counts(rows: Sequence[Row], skips: int, levels: Iterable[str]) -> dict[str, Any]:
    """The counts of a statement, by the rows of its results."""
    failed = sum(row["status"] != "pass" for row in rows)
    return {
        "cases": len(rows),
        "passed": len(rows) - failed,
        "known_failures": failed,
        "skipped": skips,
        "rules": len({rule for row in rows for rule in row["rules"]}),
        "levels": {level: sum(row["level"] == level for row in rows) for level in levels},
        "elements": sum(row["compared"] for row in rows),
        "without_bound": sum(row["open"] for row in rows),
        "largest_share_of_a_bound": max((row["ratio"] for row in _passed(rows)), default=0.0),
    }


def _passed(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "pass"]


def tolerances(rows: Sequence[Row], capabilities: Capabilities) -> list[dict[str, Any]]:
    """For every op and dtype: the bound, and the worst seen of it in cases that passed."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in _passed(rows):
        if row["op"] == PROGRAMS or find(row["op"]) is not None:
            cases.setdefault((row["op"], row["dtype"]), []).append(row)
    return [
        {
            "op": op,
            "dtype": dtype,
            "bound": bound(op, BY_NAME[dtype], capabilities),
            "share": max(row["ratio"] for row in of_op),
            "ulp": max(row["ulp"] for row in of_op),
            "cases": len(of_op),
        }
        for (op, dtype), of_op in sorted(cases.items())
    ]


def bound(op: str, dtype: DType, capabilities: Capabilities) -> str:
    """How far a result of an op may be from the reference, in words.

    >>> from bringup.dtypes import f32
    >>> bound("exp", f32, Capabilities()), bound("neg", f32, Capabilities())
    ('2 ULP', 'exact')
    """
    row = find(op)
    if row is None:
        return "propagated through each program from the bounds of its ops"
    accuracies = (row.accuracy, *row.variant_accuracy.values())
    texts = dict.fromkeys(_bound(row, each, dtype, capabilities) for each in accuracies)
    return " or, by variant, ".join(texts)


def _bound(row: OpDef, accuracy: Accuracy, dtype: DType, capabilities: Capabilities) -> str:
    if accuracy.residual is not None:
        return "what its results are for, by residuals"
    if accuracy.exact or not dtype.is_float:
        return "exact"
    if dtype.name in accuracy.ulp:
        return f"{accuracy.ulp[dtype.name]:g} ULP"
    if accuracy.accumulates:
        chain = capabilities.numerics.longest_chain
        length = "n" if chain >= 1 << 48 else f"min(n, {chain})"
        return f"(L + log2(n/L) + c) u Σ|x|, L = {length}"
    return "derived from its decomposition" if row.decompose is not None else "exact"


def markdown(statement: Mapping[str, Any], known: Sequence[Row], skips: Sequence[Row]) -> str:
    """The statement for people."""
    number, device = statement["counts"], statement["details"]
    versions = {**statement["plugin"], "suite": statement["suite"], "numpy": statement["numpy"]}
    facts = {
        "backend": statement["backend"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "platform": f"{statement['platform']}, Python {statement['python']}",
        **device,
        "level": f"{statement['level']} ({', '.join(number['levels'])})",
        "seed": statement["seed"],
        "budget": ", ".join(f"{name} {value}" for name, value in statement["budget"].items()),
        "date": statement["date"],
        "cases": f"{number['passed']:,} passed, {number['known_failures']:,} known failures, "
        f"{number['skipped']:,} skipped",
        "elements": f"{number['elements']:,} compared, {number['without_bound']:,} without bound",
        "largest error": f"{number['largest_share_of_a_bound']:.3f} of its bound",
        "sources": statement["sources"],
    }
    lines = [f"# Conformance of {statement['product']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    lines += _section("Known failures", [f"{k['name']}: {k['entry']}" for k in known])
    reasons: dict[str, dict[str, None]] = {}
    for skip in skips:
        reasons.setdefault(skip["vendor"] or skip["reason"], {})[skip["op"]] = None
    lines += _section("Not run", [f"{', '.join(ops)}: {why}" for why, ops in reasons.items()])
    check = f"conformance verify . --backend {statement['backend']} --rerun"
    return "\n".join([*lines, "", f"Checked by `{check}`.", ""])


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _section(head: str, items: Sequence[str]) -> list[str]:
    return ["", f"## {head}", "", *(f"* {_cell(item)}" for item in items)] if items else []
