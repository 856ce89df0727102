"""What drivers get wrong, as a table: each fault with the shortest program that shows it.

A row takes a function of OpenCL C away from the dialect, so that core computes the op in another
way.  The tests run every program on the drivers that they find: a row without its fault, and a
fault without a row, both fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bringup.c import OPENCL, Dialect
from bringup.records import record


@record
class Quirk:
    """One fault of one driver.

    platform, version: regular expressions that match what the driver says of itself.
    op: whose function is not called.
    expression: of OpenCL C, of a float ``x``, and what it is for the argument.
    """

    platform: str
    version: str
    op: str
    expression: str
    argument: float
    right: float


QUIRKS: tuple[Quirk, ...] = ()


def quirks_of(platform: str, version: str) -> Iterator[Quirk]:
    """The rows of a driver, by the name of its platform and the version of its device."""
    for quirk in QUIRKS:
        if re.search(quirk.platform, platform) and re.search(quirk.version, version):
            yield quirk


def without_faults(dialect: Dialect, quirks: Iterator[Quirk]) -> Dialect:
    """The dialect without the functions that the rows name."""
    wrong = {quirk.op for quirk in quirks}
    functions = {op: names for op, names in dialect.functions.items() if op not in wrong}
    return replace(dialect, functions=functions)


__all__ = ["OPENCL", "QUIRKS", "Quirk", "quirks_of", "without_faults"]
