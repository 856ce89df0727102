"""``bringup ops --coverage``: what is there for each op and dtype, and why where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from bringup.cli.output import document, heading, line, table
from bringup.dtypes import STORED
from bringup.errors import BringupError
from bringup.ops.table import all_ops

#: The entry points of suites: ``coverage(backend) -> facts``, one for each op and dtype it takes,
#: with a reason for each of `FACTS` that is not so, else an empty text.
GROUP = "bringup.suites"
Facts = dict[str, str]
Suite = Callable[[str], list[Facts]]

#: The facts, and the letter of each in the table.
FACTS = {
    "reference": "R",
    "device": "D",
    "gradient": "G",
    "conformance": "C",
}
_NONE, _GAP = "-", "."
#: How the reason of a fact begins that is so for some of an op's other dtypes or attributes.
IN_PART = "in part: "


def show(backend: str, name: str, *, as_json: bool) -> None:
    """Print the facts of all ops, or of one.

    Raises BringupError if no suite is installed, or for a device that is not there.
    """
    facts = [each for each in _suite()(backend) if name in ("", each["op"])]
    if as_json:
        document({"coverage": facts})
        return
    legend = ", ".join(f"{letter} {fact}" for fact, letter in FACTS.items())
    line(f"{legend}; a small letter: in part; {_GAP} a gap; both are explained below")
    line(f"{_NONE} a dtype that the op does not take")
    line()
    _marks(facts)
    line()
    _gaps(facts)


def _suite() -> Suite:
    plugins = list(entry_points(group=GROUP))
    if not plugins:
        raise BringupError(
            "no suite is installed that knows what is covered",
            fix="install bringup with its suite: pip install bringup",
        )
    suite: Suite = plugins[0].load()
    return suite


def _marks(facts: Sequence[Facts]) -> None:
    cells = {(each["op"], each["dtype"]): _mark(each) for each in facts}
    names = dict.fromkeys(each["op"] for each in facts)
    rows = [(n, *(cells.get((n, d.name), _NONE) for d in STORED)) for n in names]
    table(("op", *(d.name for d in STORED)), rows)


def _mark(facts: Facts) -> str:
    def mark(reason: str, letter: str) -> str:
        return letter.lower() if reason.startswith(IN_PART) else _GAP if reason else letter

    return "".join(mark(facts[fact], letter) for fact, letter in FACTS.items())


def _gaps(facts: Sequence[Facts]) -> None:
    """One line for each reason, with the ops it holds for."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for each in facts:
        for fact in FACTS:
            if each[fact]:
                held = reasons.setdefault((fact, each[fact]), {})
                held.setdefault(each["op"], []).append(each["dtype"])
    heading("Gaps")
    dtypes = {op.name: len(op.dtypes) for op in all_ops()}
    rows = [
        (fact, reason, _named(held, dtypes))
        for (fact, reason), held in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    table(("fact", "reason", "ops"), rows)


def _named(held: dict[str, list[str]], dtypes: dict[str, int]) -> str:
    """The ops; with their dtypes where those are few ops and not all of their dtypes."""
    if len(held) > 12:
        return f"{len(held)} ops"
    return ", ".join(
        op if len(names) == dtypes[op] else f"{op} ({' '.join(names)})"
        for op, names in held.items()
    )
