"""The journal of a run: a file in its report, `run.jsonl`, that grows as units end.

The first line says what runs and where.  Each other line holds the results of a unit, or what was
found out about a failure.  Every line holds a hash of itself and of the line before.  A run resumes
from its journal, and the parts of a run are joined by theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.cases import Unsupported
from bringup_conformance.execution.protocol import Done, Finished, Job
from bringup_conformance.execution.report_builder import ReportBuilder, Results
from bringup_conformance.reporting import certificate
from bringup_conformance.reporting.reports import Report
from bringup_conformance.reporting.results import Result

NAME = "run.jsonl"
#: Changes when a line of an earlier version means something else.
FORMAT = 1


@dataclass(slots=True)
class Journal:
    """The journal of a run.

    header: its first line.  units: the results of the whole units, by number in the whole level.
    names: of these units.  seconds: of the run, together with the runs that it resumes.
    last: the hash of the last line.
    """

    path: Path
    header: dict[str, Any]
    units: dict[int, list[Result | Unsupported]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    last: str = ""

    @classmethod
    def begin(cls, folder: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal.  Raises OSError."""
        journal = cls(folder / NAME, dict(header))
        journal.path.write_text("", encoding="utf-8")
        journal._append(journal.header)
        return journal

    @classmethod
    def read(cls, folder: Path, *, cut: bool = False) -> Journal:
        """The journal that a run left.  Half a line at its end is ignored: that run was killed.

        cut: remove the half line from the file, which will grow again.
        Raises BringupError if there is no journal or it was altered; OSError.
        """
        path = folder / NAME
        if not path.is_file():
            raise BringupError(
                f"{folder} holds no run to go on from: there is no {NAME}",
                fix="name the --report folder of an earlier run",
            )
        content = path.read_bytes()
        *lines, half = content.split(b"\n")
        journal = cls(path, {})
        for number, line in enumerate(lines, 1):
            try:
                journal._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BringupError(f"{path}, line {number}, was altered") from error
        if journal.header.get("format") != FORMAT:
            raise BringupError(f"{path} is of another format", fix="run the suite again")
        if cut and half:
            path.write_bytes(content.removesuffix(half))
        return journal

    def _take(self, data: dict[str, Any]) -> None:
        """Take a line that was read."""
        line_hash = data.pop("hash")
        if line_hash != _hash(self.last, data):
            raise ValueError(line_hash)
        self.last = line_hash
        if not self.header:
            self.header = data
        elif "unit" in data:
            number = int(data["unit"])
            self.names[number] = data["name"]
            self.seconds += data["seconds"]
            self.units[number] = [
                Unsupported(**each) if "reason" in each else Result.from_journal(each)
                for each in data["found"]
            ]
        else:
            number, name = data["explained"]
            self.units[number] = [
                each.with_document(data["document"])
                if isinstance(each, Result) and each.name == name
                else each
                for each in self.units[number]
            ]

    def add(self, number: int, name: str, results: Results, seconds: float) -> None:
        """Write down a whole unit.  seconds: since the last one."""
        self.units[number], self.names[number] = list(results), name
        self.seconds += seconds
        rows = [each.to_journal() if isinstance(each, Result) else asdict(each) for each in results]
        self._append({"unit": number, "name": name, "seconds": round(seconds, 3), "found": rows})

    def explained(self, number: int, name: str, document: Mapping[str, Any]) -> None:
        """Write down what was found out about a case, by the number of its unit and its name."""
        if number in self.units:
            self._append({"explained": [number, name], "document": document})

    def _append(self, data: Mapping[str, Any]) -> None:
        self.last = _hash(self.last, data)
        line = json.dumps({**data, "hash": self.last}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _hash(before: str, data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def header(job: Job, environment: Mapping[str, Any], units: int, level_size: int) -> dict[str, Any]:
    """The first line.  units: of this run.  level_size: units of the whole level."""
    return {
        "format": FORMAT,
        "level": job.level,
        "seed": job.seed,
        "only": job.only,
        "fraction": None if job.fraction is None else list(job.fraction),
        "few_kernels": job.few,
        "units": units,
        "of": level_size,
        "sources": certificate.sources_hash(),
        # As it is read back.
        "environment": json.loads(json.dumps(environment)),
    }


def job_of(header: Mapping[str, Any], timeout: float) -> Job:
    """What the run of a journal holds."""
    part = header["fraction"]
    fraction = None if part is None else (part[0], part[1])
    return Job(
        header["level"], header["seed"], header["only"], fraction, timeout, header["few_kernels"]
    )


_NAMES = {
    "details": "device's details", "capabilities": "device's declaration", "python": "Python",
    "code": "code of the device's plugin",
}  # fmt: skip


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *ignored: str) -> list[str]:
    """Why two headers are not of the same run, a sentence each.  ignored: names that may differ."""
    why = [
        f"{name} is {now[name]!r}, and was {before[name]!r}"
        for name in ("level", "seed", "only", "fraction", "few_kernels", "of")
        if name not in ignored and before[name] != now[name]
    ]
    if before["sources"] != now["sources"]:
        why.append("the sources of the suite or of the SDK have changed")
    old, new = (_lasting(each["environment"]) for each in (before, now))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            short = name in old and name in new and not isinstance(old[name], dict)
            values = f": {new[name]!r}, and was {old[name]!r}" if short else ""
            why.append(f"the {_NAMES.get(name, name)} is another{values}")
    return why


def _lasting(environment: Mapping[str, Any]) -> dict[str, Any]:
    """All but the memory: what some drivers say of it changes with what else runs."""
    declared = environment["capabilities"]
    limits = {**declared["limits"], "memory_bytes": 0}
    return {**environment, "capabilities": {**declared, "limits": limits}}


# Parts of a run, joined.


def read_parts(folders: Sequence[Path]) -> list[Journal]:
    """The journals of all parts of a run.

    Raises BringupError, with a note for each further reason, if they are no whole run; OSError.
    """
    parts = [Journal.read(folder) for folder in folders]
    why = refusals(parts)
    if why:
        raise BringupError(f"the parts are no whole run: {why[0]}", notes=tuple(why[1:]))
    return parts


def refusals(parts: Sequence[Journal]) -> list[str]:
    """Why parts are no whole run together, a sentence each."""
    first, header = parts[0], parts[0].header
    why = [
        f"{part.path.parent} is of another run than {first.path.parent}: {difference}"
        for part in parts[1:]
        for difference in differences(header, part.header, "fraction")
    ]
    if why:
        return why
    names = {number: name for part in parts for number, name in part.names.items()}
    counts = Counter(number for part in parts for number in part.units)
    twice = [number for number, count in counts.items() if count > 1]
    if twice:
        why.append(f"units are in several parts: {len(twice)}, such as {names[min(twice)]}")
    missing = header["of"] - len(counts)
    if header["only"]:
        why.append(f"the parts are of a selection: only {header['only']!r} was asked for")
    elif missing > 0:
        short = "".join(
            f"; {p.path.parent} lacks {p.header['units'] - len(p.units)} of its"
            f" {p.header['units']}: go on with --resume"
            for p in parts
            if len(p.units) < p.header["units"]
        )
        why.append(f"units are in no part: {missing} of {header['of']}{short}")
    return why


def joined(parts: Sequence[Journal], into: Path | None = None) -> Report:
    """The report of the parts of a run.

    into: a folder that receives files of its failures and a journal of its own.  Raises OSError.
    """
    header = parts[0].header
    environment = header["environment"]
    report = Report(environment["device"], header["level"], header["seed"])
    report.environment = environment
    report.few_kernels = header["few_kernels"]
    report.seconds = sum(part.seconds for part in parts)
    report.notes.append(f"joined of {', '.join(str(part.path.parent) for part in parts)}")
    journal = None
    if into is not None:
        journal = Journal.begin(into, {**header, "fraction": None, "units": header["of"]})
    builder = ReportBuilder(report, into)
    part_of = {number: part for part in parts for number in part.units}
    for number in sorted(part_of):
        part = part_of[number]
        results, name = part.units[number], part.names[number]
        if journal is not None:
            journal.add(number, name, results, 0.0)
        for item, result in enumerate(results):
            builder.add(Done(number, item, result))
        builder.finish(Finished(number), name)
    builder.close()
    return report
