"""What a run has done so far, in a file of its report that grows as units end: `run.jsonl`.

The first line says what is run and where, each other one what came of a unit, or what was found out
about a failure.  Every line holds a hash of itself and the line before.  A run goes on from it, and
parts of a run are joined by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.cases import Unsupported
from bringup_conformance.execution.schedule import Job
from bringup_conformance.reporting import certificate
from bringup_conformance.reporting.results import Result

NAME = "run.jsonl"
#: Changes when a line of an earlier version means something else.
FORMAT = 1
Found = Sequence[Result | Unsupported]


@dataclass(slots=True)
class Journal:
    """A journal at hand.

    header: its first line.  units: by number in the whole level, what came of each item, of units
    that are whole.  names: of these.  seconds: that it took, all runs together.
    """

    path: Path
    header: dict[str, Any]
    units: dict[int, list[Result | Unsupported]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    last: str = ""

    @classmethod
    def begin(cls, folder: Path, header: Mapping[str, Any]) -> Journal:
        """A new one.  Raises OSError."""
        made = cls(folder / NAME, dict(header))
        made.path.write_text("", encoding="utf-8")
        made._write(made.header)
        return made

    @classmethod
    def read(cls, folder: Path, *, cut: bool = False) -> Journal:
        """One that a run left, but for half a line at its end, of a run that was killed.

        cut: take that off the file, which is to grow again.
        Raises BringupError if there is none, or it was altered; OSError.
        """
        path = folder / NAME
        if not path.is_file():
            raise BringupError(
                f"{folder} holds no run to go on from: there is no {NAME}",
                fix="name the --report folder of an earlier run",
            )
        text = path.read_bytes()
        lines = text.split(b"\n")
        whole = text[: len(text) - len(lines[-1])]
        made = cls(path, {})
        for number, line in enumerate(lines[:-1], 1):
            try:
                made._take(line, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BringupError(f"{path}, line {number}, was altered") from error
        if made.header.get("format") != FORMAT:
            raise BringupError(f"{path} is of another format", fix="run the suite again")
        if cut and whole != text:
            path.write_bytes(whole)
        return made

    def _take(self, line: bytes, data: dict[str, Any]) -> None:
        hash_ = data.pop("hash")
        if hash_ != _hash(self.last, data):
            raise ValueError(hash_)
        self.last = hash_
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

    def add(self, number: int, name: str, found: Found, seconds: float) -> None:
        """A unit is whole.  seconds: since the last one."""
        self.units[number], self.names[number] = list(found), name
        self.seconds += seconds
        rows = [
            each.to_journal()
            if isinstance(each, Result)
            else {key: getattr(each, key) for key in ("name", "level", "op", "dtype", "reason")}
            for each in found
        ]
        self._write({"unit": number, "name": name, "seconds": round(seconds, 3), "found": rows})

    def explained(self, number: int, name: str, document: Mapping[str, Any]) -> None:
        """A failure of a unit was looked into."""
        if number in self.units:
            self._write({"explained": [number, name], "document": document})

    def _write(self, data: Mapping[str, Any]) -> None:
        self.last = _hash(self.last, data)
        line = json.dumps({**data, "hash": self.last}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _hash(before: str, data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def header(job: Job, environment: Mapping[str, Any], units: int, of: int) -> dict[str, Any]:
    """The first line.  units: of this run.  of: of the whole level."""
    return {
        "format": FORMAT,
        "level": job.level,
        "seed": job.seed,
        "only": job.only,
        "fraction": None if job.fraction is None else list(job.fraction),
        "few_kernels": job.few,
        "units": units,
        "of": of,
        "sources": certificate.sources_hash(),
        # As it is read back.
        "environment": json.loads(json.dumps(environment)),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *apart: str) -> list[str]:
    """In what two runs are not parts of one, a sentence each.  apart: names that may differ."""
    found = [
        f"{name} is {now[name]!r}, and was {before[name]!r}"
        for name in ("level", "seed", "only", "fraction", "few_kernels", "of")
        if name not in apart and before[name] != now[name]
    ]
    if before["sources"] != now["sources"]:
        found.append("the sources of the suite or of the SDK have changed")
    old, new = before["environment"], now["environment"]
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            known = name in old and name in new and not isinstance(old[name], dict)
            more = f": {new[name]!r}, and was {old[name]!r}" if known else ""
            found.append(f"the {_NAMES.get(name, name)} is another{more}")
    return found


_NAMES = {"details": "device's details", "capabilities": "device's declaration", "python": "Python"}


def job_of(header: Mapping[str, Any], timeout: float) -> Job:
    """What the run of a journal runs."""
    part = header["fraction"]
    return Job(
        header["level"],
        header["seed"],
        header["only"],
        None if part is None else (part[0], part[1]),
        timeout,
        header["few_kernels"],
    )
