"""What a rule is."""

from __future__ import annotations

import re

from bringup.records import record

#: What every id looks like: words in small letters joined by hyphens, parts joined by dots.
ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+(-[a-z0-9_]+)*){1,2}")


@record
class Rule:
    """One sentence that a device must satisfy.

    id: ``area.slug``, or ``row.dtype.slug`` for special values; it never changes its meaning.
    says: the sentence.  needs: what only some devices declare and the rule is about, as a field of
    `Capabilities`; empty if it is for all.
    """

    id: str
    says: str
    needs: str = ""

    @property
    def area(self) -> str:
        """What it is about: the part before the first dot."""
        return self.id.partition(".")[0]

    @property
    def slug(self) -> str:
        """The part after the last dot."""
        return self.id.rpartition(".")[2]
