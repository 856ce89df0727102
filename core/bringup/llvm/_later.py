"""Tables of emitters whose modules are read when an entry is first used: a program has a few."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Later(Mapping[str, F]):
    """Functions by name.

    places: for each name the module and the function's name there.

    >>> from math import floor
    >>> Later({"down": ("math", "floor")})["down"] is floor
    True
    """

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._places = places
        self._found: dict[str, F] = {}

    def __getitem__(self, name: str) -> F:
        found = self._found.get(name)
        if found is None:
            module, function = self._places[name]
            found = self._found[name] = getattr(importlib.import_module(module), function)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
