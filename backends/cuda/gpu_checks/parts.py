"""The parts of a run, in order, with the seconds that each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One process.

    work: what `gpu_checks.work` is asked for, ``name`` or ``name:argument``.
    tool: of compute-sanitizer, under which the process runs.
    """

    name: str
    title: str
    seconds: int
    work: str
    tool: str = ""


#: In the order of what is lost if the machine goes early.  Together eight minutes.
PARTS: Sequence[Part] = (
    Part("install", "installing what the machine lacks", 100, "install"),
    Part("smoke", "conformance, level smoke", 15, "conformance:smoke"),
    Part("programs", "one program of each kind, against its bounds", 20, "programs"),
    Part("memory", "programs bound by memory", 85, "bench:memory"),
    Part("matrices", "products of matrices", 35, "bench:matrices"),
    Part("calls", "small programs", 20, "bench:calls"),
    Part("digits", "training: digits", 15, "training:digits"),
    Part("transformer", "training: transformer", 40, "training:transformer"),
    Part("ops", "conformance, level ops", 25, "conformance:ops"),
    Part("fusion", "conformance, level fusion", 25, "conformance:fusion"),
    Part("runtime", "conformance, level runtime", 25, "conformance:runtime"),
    Part("memcheck", "compute-sanitizer memcheck", 25, "programs", "memcheck"),
    Part("racecheck", "compute-sanitizer racecheck", 25, "programs", "racecheck"),
    Part("more", "other programs beside torch and jax", 25, "bench:more"),
)


def names() -> list[str]:
    """Of all of them."""
    return [part.name for part in PARTS]


def chosen(only: Sequence[str]) -> list[Part]:
    """Those of these names, or all.  Raises SystemExit for a name that none has."""
    unknown = set(only) - set(names())
    if unknown:
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}: {', '.join(names())}")
    return [part for part in PARTS if not only or part.name in only]
