"""What drivers get wrong or do slowly, as a table: each fault with the shortest program of it.

A row gives the name of another function to call for an op, or takes the op's function away from the
dialect, so that core computes the op in another way.  The tests run the program of every fault on
the drivers that they find, so a row that is not needed any more fails.  The faults of a driver are
among the details of its devices, which reports and certificates show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from bringup.c import Dialect
from bringup.records import record


@record
class Quirk:
    """One row.

    platform, version: regular expressions for what the driver says of its platform, and of its
    device and itself.
    op: whose function is not called, be it that the dialect calls it for no driver; or what is not
    written, on any driver.
    instead: what is called, for f32 and f64; nothing if there is none.
    why: in a sentence.
    expression, argument, right: what shows the fault: OpenCL C of a float ``x``, its value, and
    what is right; nothing where the function is only slow.
    """

    platform: str
    version: str
    op: str
    instead: tuple[str, str] | None
    why: str
    expression: str = ""
    argument: float = 0.0
    right: float = 0.0


QUIRKS = (
    Quirk(
        "Portable Computing Language",
        "PoCL HSTR: pthread-x86_64.*(haswell|broadwell|skylake|cascadelake|icelake|znver)",
        "floor",
        ("__builtin_floorf", "__builtin_floor"),
        "its floor is a dozen instructions, where these processors have one",
    ),
    Quirk(
        "Portable Computing Language",
        "",
        "log1p",
        None,
        "it gives 0 for the numbers next to 0",
        "log1p(x)",
        -1e-45,
        -1e-45,
    ),
    Quirk(
        "Portable Computing Language",
        "",
        "tanh",
        None,
        "it never gives 1, not even for infinity",
        "tanh(x)",
        inf,
        1.0,
    ),
    Quirk(
        "Portable Computing Language",
        r" 3\.1\+",
        "copies in the first lane alone",
        None,
        "it stores nothing where integers are copied under a mask that holds in the first of four "
        "or more iterations alone",
        "({ int t[4], s[4]; t[0] = x; for (int i = 0; i < 4; i++) if (i < 1) s[i] = t[i]; s[0]; })",
        1.0,
        1.0,
    ),
)


#: Drivers that compile for no device: platform, version, and why.
BROKEN = (
    (
        "Portable Computing Language",
        "pthread-x86_64.*-generic",
        "the compiler of this PoCL does not know the processor, and then refuses every kernel",
    ),
)
#: Drivers whose programs are compiled by each process: platform, version, and why.
UNKEPT = (
    (
        "Portable Computing Language",
        "",
        "it compiles a kernel anew for binaries, with groups of any size, and once more where a "
        "program made of binaries first runs it, with groups of the launch's",
    ),
)


def why(table: Iterable[tuple[str, str, str]], platform: str, version: str) -> str:
    """What a table says of a driver; nothing if it is not there."""
    for platforms, versions, text in table:
        if re.search(platforms, platform) and re.search(versions, version):
            return text
    return ""


def quirks_of(platform: str, version: str) -> Iterator[Quirk]:
    """The rows of a driver."""
    for quirk in QUIRKS:
        if re.search(quirk.platform, platform) and re.search(quirk.version, version):
            yield quirk


def without_quirks(dialect: Dialect, quirks: Iterable[Quirk]) -> Dialect:
    """The dialect with the functions of the rows in place of its own."""
    functions = dict(dialect.functions)
    for quirk in quirks:
        if quirk.instead is None:
            functions.pop(quirk.op, None)
        else:
            functions[quirk.op] = quirk.instead
    return replace(dialect, functions=functions)


__all__ = ["BROKEN", "QUIRKS", "UNKEPT", "Quirk", "quirks_of", "why", "without_quirks"]
