"""What a soak found worth keeping, in memory and in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bringup.errors import BringupError
from bringup_conformance.cases import Case
from bringup_conformance.reporting.failures import case_from_json, case_to_json, suite_version

#: Programs kept for each score.
KEPT = 8
#: Changes when a corpus of an earlier version means something else.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Best:
    """A program and its score."""

    score: float
    case: Case


@dataclass(slots=True)
class Corpus:
    """What was found worth keeping.

    folder: where it is kept, if anywhere.  programs: drawn so far.  best: by score.
    """

    folder: Path | None = None
    programs: int = 0
    best: dict[str, list[Best]] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path | None) -> Corpus:
        """The corpus of a folder, empty if there is none.  Raises BringupError if it holds one of
        another format, OSError.
        """
        path = None if folder is None else folder / "best.json"
        if path is None or not path.exists():
            return cls(folder)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}")
            best = {
                name: [Best(each["score"], case_from_json(each["case"])) for each in found]
                for name, found in data["best"].items()
            }
            return cls(folder, data["programs"], best)
        except (ValueError, KeyError, TypeError, AttributeError, BringupError) as error:
            fix = "name another folder"
            raise BringupError(f"{path} is of no corpus: {error!r}", fix=fix) from error

    def cases(self) -> Iterator[Case]:
        """The programs kept, each once."""
        seen = set()
        for best in [each for found in self.best.values() for each in found]:
            if best.case.name not in seen:
                seen.add(best.case.name)
                yield best.case

    def keep(self, case: Case, scores: Mapping[str, float]) -> None:
        """Keep a program if it is among the best in anything."""
        for name, score in scores.items():
            found = self.best.setdefault(name, [])
            alike = any(each.score == score or each.case.name == case.name for each in found)
            if score > 0 and not alike:
                found.append(Best(score, case))
                found.sort(key=lambda each: -each.score)
                del found[KEPT:]

    def save(self) -> None:
        """Write it to its folder.  Raises OSError."""
        if self.folder is None:
            return
        data = {
            "format": FORMAT,
            "suite": suite_version(),
            "programs": self.programs,
            "best": {
                name: [{"score": b.score, "case": case_to_json(b.case)} for b in found]
                for name, found in self.best.items()
            },
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / "best.json.new"
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.folder / "best.json")
