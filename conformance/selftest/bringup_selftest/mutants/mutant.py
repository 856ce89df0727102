"""What a mutant is: one small mistake at one line of a backend's code."""

from __future__ import annotations

from typing import Any, Literal

from bringup.records import record

#: Whether the mistake is in the code itself, or in what the code emits.
Kind = Literal["source", "emitted"]


@record
class Mutant:
    """One mistake.

    kind: where the mistake is.  rule: what sort of mistake it is.  module, line: of the source.
    change: what it makes of what, as text.  where: what `planted` needs to know besides.
    """

    kind: Kind
    rule: str
    module: str
    line: int
    change: str
    where: tuple[Any, ...] = ()
