"""Programs whose every decision Hypothesis draws, so that it can search among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from bringup_conformance.generate.program_builder import GenConfig
from bringup_conformance.generate.programs import Program, draw_program

#: The settings of programs on data of known results, and of the others.
Settings = tuple[GenConfig, GenConfig]
# Shares of programs on exact data, and of those on large arrays, as in level fusion.
_EXACT, _LARGE = (2, 5), 16


class Drawn:
    """Decisions drawn by Hypothesis; see `Choices`."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``."""
        return low if low == high else self._draw(_integers(low, high))


@lru_cache(None)
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def programs(settings: Settings, *, large: bool) -> st.SearchStrategy[tuple[Program, bool]]:
    """Programs by the generator of level fusion, and whether their data are exact.

    large: whether some have larger arrays than any block.
    """

    @st.composite
    def drawn(draw: Any) -> tuple[Program, bool]:
        choices = Drawn(draw)
        exact = choices.integer(0, _EXACT[1] - 1) >= _EXACT[1] - _EXACT[0]
        big = large and choices.integer(0, _LARGE - 1) == _LARGE - 1
        return draw_program(choices, settings[not exact], large=big), exact

    return drawn()
