"""A bench as tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from bringup.cli import output
from bringup_conformance.bench.measure import Bench, Row

#: Lines of a schedule that are shown; the page has all.
_LINES = 12
#: Kernels that are shown with their schedules.
_SHOWN = 3


def show(console: Console, found: Bench, other: Bench | None) -> None:
    """Roofs, a table of rows, and the kernels that lose most.

    other: what times are compared with.
    """
    output.line(f"{found.device}: {found.product}", console)
    for name, value in roofs(found):
        output.line(f"  {name}: {value}", console)
    output.line("", console)
    output.table(HEAD, [cells(row, match(other, row)) for row in found.rows], console)
    for name, why in found.unsupported.items():
        output.line(f"unsupported: {name}: {why}", console)
    if found.tuned:
        output.line(f"faster schedules were found for {', '.join(found.tuned)}", console)
    if other is not None:
        output.line(f"\nratio: time of {found.device} by that of {described(other)}", console)
    if found.launches:
        output.line("\nlaunches that lose most against their roof:", console)
        head = ("kernel", "of", "time", "roof")
        rows = [
            (each.kernel, each.workload, seconds(each.seconds), seconds(each.roof))
            for each in found.launches
        ]
        output.table(head, rows, console)
    for each in found.launches[:_SHOWN]:
        if each.schedule:
            lines = each.schedule.split("\n")
            more = [f"… {len(lines) - _LINES} more"] if len(lines) > _LINES else []
            output.line(f"\n{each.kernel} of {each.workload}", console)
            for text in lines[:_LINES] + more:
                output.line(f"  {text}", console)


HEAD = (
    "program", "size", "time", "GB/s", "GFLOP/s", "of roof", "launches", "moved", "ratio",
)  # fmt: skip


def cells(row: Row, other: Row | None) -> Sequence[str]:
    """A row of the table whose head is `HEAD`."""
    return (
        row.name,
        row.size,
        seconds(row.seconds),
        f"{row.bytes / row.seconds / 1e9:.1f}",
        f"{row.flops / row.seconds / 1e9:.1f}",
        f"{row.share:.0%}",
        str(row.launches),
        output.size_text(row.transfers) if row.transfers else "",
        "" if other is None else f"{row.seconds / other.seconds:.2f}",
    )


def match(other: Bench | None, row: Row) -> Row | None:
    """The row of the same workload and size in another bench."""
    rows = [] if other is None else other.rows
    return next((each for each in rows if (each.name, each.size) == (row.name, row.size)), None)


def described(found: Bench) -> str:
    """Which device, and when."""
    return f"{found.device} ({found.product}, {found.date})"


def roofs(found: Bench) -> Sequence[tuple[str, str]]:
    """The roofs, in words."""
    each: Mapping[str, float] = found.roofs.bandwidth
    copies = ", ".join(f"{value / 1e9:.1f} GB/s {size}" for size, value in each.items())
    return (
        ("copy of f32", copies),
        ("multiplications and additions of f32", f"{found.roofs.arithmetic / 1e9:.1f} GFLOP/s"),
    )


def seconds(value: float) -> str:
    """A time for people."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
