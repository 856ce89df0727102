"""Identifiers: names of buffers, loops and scalars as C can have them, each different."""

from __future__ import annotations

import re
from collections.abc import Hashable

from bringup.c.dialect import Dialect

#: Keywords of C, C++ and the dialects, macros of headers, and parameters of rendered functions.
KEYWORDS = frozenset(
    """
    alignas alignof auto bool break case catch char class const constant constexpr continue
    default delete device do double else enum extern false float for friend global goto half if
    inline int kernel linux local long mutable namespace new operator private protected public
    register restrict return shared short signed sizeof static struct switch template this
    thread threadgroup throw true try typedef typename uint ulong uchar ushort union unix
    unsigned using virtual void volatile vec while INFINITY NAN I unit buffers begin end scratch
    """.split()  # noqa: SIM905 - a table of words
)
#: Scalars and locals of the renderer, and functions of the library.
_RESERVED = re.compile(r"v\d.*|bu_.*|_.*|.*__.*")


class Names:
    """One identifier for each object that is named."""

    def __init__(self, dialect: Dialect) -> None:
        self._taken = set(KEYWORDS | dialect.words)
        self._names: dict[Hashable, str] = {}

    def of(self, key: Hashable, name: str) -> str:
        """The identifier of ``key``, made from ``name`` when it is first asked for."""
        if key not in self._names:
            self._names[key] = self.fresh(name)
        return self._names[key]

    def fresh(self, name: str) -> str:
        """An identifier that nothing else has."""
        plain = re.sub(r"\W", "_", name)
        identifier = f"x{plain}" if _RESERVED.fullmatch(plain) else plain
        while identifier in self._taken:
            identifier += "_"
        self._taken.add(identifier)
        return identifier


__all__ = ["KEYWORDS", "Names"]
