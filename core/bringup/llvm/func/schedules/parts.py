"""Steps that the schedules of several families of kernels begin with."""

from __future__ import annotations

from bringup.loops.schedule import Step


def split_whole(loop: str, outer: str, inner: str, size: int) -> Step:
    """Blocks of exactly ``size`` iterations; what is left over is a loop of its own."""
    return Step("split", (loop, outer, inner, size), (("tail", "peel"),))


__all__ = ["split_whole"]
