"""Tables and JSON: coloured on a terminal, aligned plain text everywhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import filesize
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {
    "ready": "green",
    "installed": "green",
    "no hardware": "yellow",
    "incompatible": "red",
    "broken": "red",
    "duplicate": "red",
}


def line(text: str = "", console: Console | None = None) -> None:
    """One line of text, as it is."""
    out = console or Console()
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def heading(text: str) -> None:
    """The title of a section."""
    Console().print(Text(text, style="bold"), soft_wrap=True)


def is_terminal() -> bool:
    """Whether a person reads the output, of the width of a window."""
    return Console().is_terminal


def size_text(nbytes: int) -> str:
    """A number of bytes for people."""
    return filesize.decimal(nbytes)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Rows under a head; columns without any content are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    head = [columns[i] for i in kept]
    body = [[row[i] for i in kept] for row in rows]
    console = console or Console()
    if not console.is_terminal:
        _plain(head, body, console)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        grid.add_column(name, overflow="fold")
    for row in body:
        grid.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(grid)


def _plain(head: Sequence[str], body: Sequence[Sequence[str]], console: Console) -> None:
    rows = [[name.upper() for name in head], *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(padded).rstrip(), console)


def document(value: Any) -> None:
    """A value as JSON, and nothing else, on standard output."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def problem(text: str) -> None:
    """A message on standard error."""
    Console(stderr=True).print(Text(f"error: {text}", style="red"), soft_wrap=True)
