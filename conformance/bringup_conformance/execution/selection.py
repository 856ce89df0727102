"""Which cases of a run are wanted: ``add/f32``, ``reduction``, ``exp/special``, ``f16,bf16``."""

from __future__ import annotations

from difflib import get_close_matches

from bringup.dtypes import BY_NAME
from bringup.ops.table import all_ops
from bringup_conformance.cases import PROGRAMS, Unsupported
from bringup_conformance.execution.levels import APART, LEVELS
from bringup_conformance.execution.plan import Item, Unit

# Words that a unit does not know before it is made: those of rows, and those of programs.
_OF_ROWS = ("special", "mapped", "deep", "derivatives")
# Levels whose names and tags a unit does not know.
_OF_CHECKS = ("runtime", "exhaustive")
_OF_PROGRAMS = ("exact", "bounded", "pair", "hazard", "ladder")


class Selection:
    """Terms separated by commas, each of words separated by slashes; empty for everything.

    A case is wanted if all the words of some term are its level, op, kind of op, dtype, number, a
    tag or a rule.

    >>> from bringup_conformance.cases import Unsupported
    >>> case = Unsupported("ops/exp/f32", "ops", "exp", "f32", "no exp")
    >>> Selection("exp/f32").admits(case), Selection("f16,exp").admits(case)
    (True, True)
    >>> Selection("exp/f16").admits(case)
    False
    """

    def __init__(self, text: str = "") -> None:
        terms = (frozenset(filter(None, t.strip().split("/"))) for t in text.split(","))
        self.terms = tuple(term for term in terms if term)

    def admits(self, item: Item) -> bool:
        """Whether a case is wanted."""
        more = () if isinstance(item, Unsupported) else (*item.tags, *item.rules)
        given = {*item.name.split("/"), *more}
        return not self.terms or any(term <= given for term in self.terms)

    def reaches(self, unit: Unit) -> bool:
        """Whether a case of a unit may be wanted, as far as is known before it is made."""
        return not self.terms or any(all(_may_be(w, unit) for w in t) for t in self.terms)


def resembling(text: str) -> list[str]:
    """Words that a selection of nothing may have meant.

    >>> resembling("sinn/f32")
    ['sin', 'sinh', 'sign']
    """
    kinds = {row.kind.value for row in all_ops()}
    known = [*LEVELS, *APART, PROGRAMS, *(row.name for row in all_ops()), *kinds, *BY_NAME]
    words = [w.strip() for term in text.split(",") for w in term.split("/")]
    odd = [word for word in words if word not in known]
    return [name for word in odd for name in get_close_matches(word, known)]


def _may_be(word: str, unit: Unit) -> bool:
    if word in (unit.level, unit.op, unit.dtype, unit.number, unit.kind):
        return True
    if "." in word:  # a rule: any case may show one to hold
        return True
    if unit.level in _OF_CHECKS:
        return word not in (*LEVELS, *APART) and (word not in BY_NAME or not unit.dtype)
    if unit.op == PROGRAMS and not unit.number:  # a few cases with names of their own
        return word not in (*LEVELS, *APART) and word not in BY_NAME
    if word in BY_NAME:
        return not unit.dtype
    later = _OF_PROGRAMS if unit.op == PROGRAMS else _OF_ROWS
    return word in (*later, *unit.number.split("-")) or (word.isdigit() and not unit.number)
