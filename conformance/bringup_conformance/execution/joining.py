"""Parts of a run, joined: the reports of ``--fraction 1/N`` to ``N/N`` as that of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bringup.errors import BringupError
from bringup_conformance.execution.journal import Journal, differences
from bringup_conformance.execution.merging import Merge
from bringup_conformance.execution.protocol import Done, Finished
from bringup_conformance.reporting.reports import Report


def refusals(parts: Sequence[Journal]) -> list[str]:
    """Why parts are no whole run together, a sentence each."""
    first, found = parts[0], list[str]()
    for part in parts[1:]:
        why = differences(first.header, part.header, "fraction")
        found += [
            f"{part.path.parent} is of another run than {first.path.parent}: {w}" for w in why
        ]
    if found:
        return found
    names = {number: name for part in parts for number, name in part.names.items()}
    times = Counter(number for part in parts for number in part.units)
    twice = [number for number, many in times.items() if many > 1]
    if twice:
        found.append(f"units are in several parts: {len(twice)}, such as {names[min(twice)]}")
    missing = first.header["of"] - len(times)
    if missing > 0 and not first.header["only"]:
        short = [p for p in parts if len(p.units) < p.header["units"]]
        more = "".join(
            f"; {p.path.parent} lacks {p.header['units'] - len(p.units)} of its"
            f" {p.header['units']}: go on with --resume"
            for p in short
        )
        found.append(f"units are in no part: {missing} of {first.header['of']}{more}")
    if first.header["only"]:
        found.append(f"the parts are of a selection: only {first.header['only']!r} was asked for")
    return found


def whole(folders: Sequence[Path]) -> list[Journal]:
    """The parts of a run.

    Raises BringupError, with a note for each further reason, if they are no whole run; OSError.
    """
    parts = [Journal.read(folder) for folder in folders]
    why = refusals(parts)
    if why:
        raise BringupError(f"the parts are no whole run: {why[0]}", notes=tuple(why[1:]))
    return parts


def joined(parts: Sequence[Journal], into: Path | None = None) -> Report:
    """The report of the parts of a run.

    into: a folder that receives files of its failures and a journal of its own.  Raises OSError.
    """
    head = parts[0].header
    environment = head["environment"]
    report = Report(environment["device"], head["level"], head["seed"])
    report.environment = environment
    report.few_kernels = head["few_kernels"]
    report.seconds = sum(part.seconds for part in parts)
    report.notes.append(f"joined of {', '.join(str(part.path.parent) for part in parts)}")
    made = None
    if into is not None:
        made = Journal.begin(into, {**head, "fraction": None, "units": head["of"]})
    merge = Merge(report, into)
    units = {number: (part, part.units[number]) for part in parts for number in part.units}
    for number in sorted(units):
        part, found = units[number]
        if made is not None:
            made.add(number, part.names[number], found, 0.0)
        for item, each in enumerate(found):
            merge.add(Done(number, item, each))
        merge.finish(Finished(number), part.names[number])
    merge.close()
    return report
