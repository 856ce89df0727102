"""The items of a run as tests, each of an op, a dtype and a feature: what test frameworks show."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bringup_conformance.cases import PROGRAMS
from bringup_conformance.execution.levels import SPECIAL
from bringup_conformance.execution.plan import Item, Unit
from bringup_conformance.execution.protocol import Work
from bringup_conformance.execution.schedule import Schedule

#: Random programs in one test.
CHUNK = 25
_NUMBERED = re.compile(r"(?:(.+)-)?(\d+)")


@dataclass(frozen=True, slots=True)
class Part:
    """Some items of a run.

    name: unique in a run and the same in every process, such as ``ops/add/f32/special``.  works:
    what a worker does for it: whole units, or items of one.
    """

    name: str
    works: tuple[Work, ...]


def parts_of(schedule: Schedule) -> list[Part]:
    """The tests of a run, in its order: of rows one for each feature (values, special, mapped, …),
    of what has a name of its own one each, of random programs one for some of them.
    """
    found: dict[str, list[Work]] = {}
    for number, unit in enumerate(schedule.units):
        place = "/".join(filter(None, (unit.level, unit.op, unit.dtype)))
        numbered = _NUMBERED.fullmatch(unit.number)
        if unit.op == PROGRAMS and numbered:
            first = int(numbered[2]) // CHUNK * CHUNK
            name = f"{place}/{numbered[1] or 'random'}/{first:04}"
            found.setdefault(name, []).append(Work(number))
        elif unit.number and unit.number != SPECIAL:  # of which a device may ask for none
            found.setdefault(f"{place}/{unit.number}", []).append(Work(number))
        else:
            for which, item in enumerate(schedule.items(number)):
                name = f"{place}/{feature_of(unit, item)}"
                found.setdefault(name, []).append(Work(number, which, last=True))
    return [Part(name, tuple(works)) for name, works in found.items()]


def feature_of(unit: Unit, item: Item) -> str:
    """What an item is about, besides level, op and dtype: the word after them, or ``values``."""
    place = "/".join(filter(None, (unit.level, unit.op, unit.dtype)))
    word = item.name.removeprefix(place).strip("/").partition("/")[0]
    return word if word and not word.isdigit() else "values"
