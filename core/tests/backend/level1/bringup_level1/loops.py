"""The plugin of ``level1-loops``."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import (
    Backend,
    BufferView,
    Capabilities,
    Handshake,
    LibraryClaims,
    LoopsDevice,
    SimpleBackend,
    Target,
    hookimpl,
)
from bringup.c import C11, c_claims, render_c, scratch_bytes, units
from bringup.loops import Func, evaluate_func, parse_func, print_func
from bringup.loops.schedule import Schedule
from bringup_level1.memory import HANDSHAKE, Memory, array

KERNELS = c_claims(C11)
CAPABILITIES = Capabilities(kernels=KERNELS, ops=LibraryClaims(KERNELS), simulated=True)
TARGET = Target("level1", threads=2)


def render(func: Func) -> str:
    """C, and the loops themselves, which are what runs."""
    return f"{render_c(func, C11)}\n{print_func(func)}"


def schedule(func: Func) -> Schedule:
    """No steps."""
    return Schedule()


class LoopsOfLevel1(Memory, LoopsDevice):
    """Loops, by core's interpreter."""

    capabilities = CAPABILITIES
    target = TARGET

    def schedule(self, func: Func) -> Schedule:
        """No steps."""
        return schedule(func)

    def render(self, func: Func) -> str:
        """C and loops."""
        return render(func)

    def load(self, source: str | bytes, name: str) -> Func:
        """What stands behind the C."""
        return parse_func(f"func {str(source).rpartition(chr(10) + 'func ')[2]}")

    def build(self, codes: Sequence[Func]) -> list[tuple[str | bytes, object]]:
        """All at once."""
        return [(render(func), self.load(render(func), func.name)) for func in codes]

    def scratch_bytes(self, func: Func) -> int:
        """As the C would have it."""
        return scratch_bytes(func, C11)

    def launch(self, loaded: Func, func: Func, views: list[BufferView]) -> None:
        """At once."""
        assert units(func) >= 0
        evaluate_func(loaded, [array(view) for view in views[: len(func.params)]])


@hookimpl
def bringup_handshake() -> Handshake:
    """Level 1."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """One device, called as the backend."""
    return SimpleBackend(
        "level1-loops",
        lambda _index: LoopsOfLevel1(),
        lambda: CAPABILITIES,
        render=render,
        schedule=schedule,
        target=TARGET,
    )
