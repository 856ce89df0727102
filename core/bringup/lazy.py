"""Tables of functions whose modules are imported when an entry is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class LazyTable(Mapping[str, F]):
    """Functions by name.  A program uses few of them, so the others are not imported.

    sources: for each name the module and the name of the function there.

    >>> from math import floor
    >>> LazyTable({"down": ("math", "floor")})["down"] is floor
    True
    """

    def __init__(self, sources: Mapping[str, tuple[str, str]]) -> None:
        self._sources = sources
        self._functions: dict[str, F] = {}

    def __getitem__(self, name: str) -> F:
        function = self._functions.get(name)
        if function is None:
            module, attribute = self._sources[name]
            function = getattr(importlib.import_module(module), attribute)
            self._functions[name] = function
        return function

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
