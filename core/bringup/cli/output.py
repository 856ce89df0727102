"""Tables and JSON: coloured on a terminal, aligned plain text everywhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich import filesize
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: The number of the format of what `document` prints; a change that breaks readers raises it.
FORMAT = 1
#: Spaces between the columns of a table.
_GAP = 2
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
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console | None = None,
    *,
    apart: bool = False,
) -> None:
    """Rows under a head; columns without any content are left out.

    apart: in a window that is too narrow for its words, each row is a paragraph with a line for
    each cell; by default cells are folded.
    """
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    head = [columns[i] for i in kept]
    body = [[_printable(row[i]) for i in kept] for row in rows]
    console = console or Console()
    if not console.is_terminal:
        _plain(head, body, console)
        return
    cells = [[name, *(row[i] for row in body)] for i, name in enumerate(head)]
    room = sum(map(_least, cells)) + _GAP * (len(head) - 1)
    if apart and room > console.width:
        _paragraphs(head, body, console)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in cells:
        # Names are copied into the next command, so a narrow window folds the other columns.
        whole = column[0] == "name" or (room <= console.width and _is_whole(column))
        grid.add_column(column[0], overflow="fold", no_wrap=whole)
    for row in body:
        grid.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(grid)


def _is_whole(column: Sequence[str]) -> bool:
    """Whether its cells, of which the first is the head, are short and better left on one line."""
    return column[0] in ("name", "state") or not any(" " in cell for cell in column)


def _least(column: Sequence[str]) -> int:
    """The width in which no word of a column is broken."""
    if _is_whole(column):
        return max(map(len, column))
    return max(len(word) for cell in column for word in cell.split(" "))


def _paragraphs(head: Sequence[str], body: Sequence[Sequence[str]], console: Console) -> None:
    for number, row in enumerate(body):
        if number:
            console.print()
        console.print(Text(row[0], style="bold"), soft_wrap=True)
        grid = Table.grid(padding=(0, _GAP))
        for name, cell in zip(head[1:], row[1:], strict=True):
            if cell:
                grid.add_row(f"  {name}", Text(cell, style=_STYLES.get(cell, ""), overflow="fold"))
        console.print(grid)


def _printable(text: str) -> str:
    """A cell on one line, in which characters that control a terminal are written out: some texts
    are those of plugins.
    """
    joined = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in joined)


def _plain(head: Sequence[str], body: Sequence[Sequence[str]], console: Console) -> None:
    rows = [[name.upper() for name in head], *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(padded).rstrip(), console)


def document(content: Mapping[str, Any]) -> None:
    """What was found as one JSON object, and nothing else, on standard output."""
    line(json.dumps({"format": FORMAT, **content}, indent=2, ensure_ascii=False))


def problem(text: str) -> None:
    """A message on standard error."""
    Console(stderr=True).print(Text(f"error: {text}", style="red"), soft_wrap=True)
