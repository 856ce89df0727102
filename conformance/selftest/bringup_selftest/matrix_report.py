"""The kill matrix for people: on a terminal, and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bringup_conformance.execution import levels
from bringup_selftest.killing import Kill
from bringup_selftest.matrix import Matrix


def show(console: Console, found: Matrix) -> None:
    """A row for each group, survivors, then the sum of it."""
    ladder = levels.ladder(found.options.level)
    table = Table(box=None, header_style="bold")
    table.add_column("faults of")
    for name in ("killed", "of", "", *ladder, "cases", "ops"):
        table.add_column(name, justify="right")
    for group, (killed, tried) in found.groups.items():
        at = found.by_level(group)
        style = "" if killed == tried else "yellow"
        table.add_row(
            Text(group, style), str(killed), str(tried), f"{killed / tried:.0%}",
            *(str(at[name] or "") for name in ladder), _middle(found.cases(group)),
            _middle(found.sizes(group)),
        )  # fmt: skip
    console.print(table)
    for row in found.survivors:
        console.print(f"  survived: {row.id} {row.title}", style="yellow", highlight=False)
    for run in found.clean:
        for failed in run.failed:
            text = f"  {run.device}, seed {run.seed}: {failed}"
            console.print(text, style="red", highlight=False)
    console.print(summary(found), highlight=False)
    for each in found.problems:
        console.print(f"  {each}", style="bold red", highlight=False)


def summary(found: Matrix) -> str:
    """All of it in one sentence."""
    killed = sum(row.killed for row in found.rows)
    clean, runs = sum(run.items for run in found.clean), len(found.clean)
    parts = [
        f"{killed} of {len(found.rows)} faults killed",
        f"{found.false_positives} false positives in {clean} cases of {runs} clean runs",
    ]
    if found.median_cases is not None:
        parts.append(f"median {found.median_cases:g} cases to a kill")
    if found.median_size is not None:
        parts.append(f"median {found.median_size:g} ops in the program of a fusion fault")
    return "; ".join(parts)


def _middle(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def markdown(found: Matrix) -> str:
    """The whole matrix as a page."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Matrix) -> Iterator[str]:
    ladder = levels.ladder(found.options.level)
    yield "# Kill matrix"
    yield ""
    yield f"{summary(found)}."
    yield ""
    yield f"| group | killed | of | share | {' | '.join(ladder)} | cases | ops |"
    yield "|---" * (6 + len(ladder)) + "|"
    for group, (killed, tried) in found.groups.items():
        at = found.by_level(group)
        counts = " | ".join(str(at[name]) for name in ladder)
        middles = f"{_middle(found.cases(group))} | {_middle(found.sizes(group))}"
        yield f"| {group} | {killed} | {tried} | {killed / tried:.0%} | {counts} | {middles} |"
    yield ""
    yield f"| fault | what is wrong | {' | '.join(ladder)} | cases | ops | found by |"
    yield "|---" * (5 + len(ladder)) + "|"
    for row in found.rows:
        yield _fault(row, ladder)


def _fault(row: Kill, ladder: tuple[str, ...]) -> str:
    marks = " | ".join("killed" if row.level == name else "" for name in ladder)
    by = f"`{row.item}`" if row.killed else "**survived**"
    size = "" if row.size is None else str(row.size)
    return f"| {row.id} | {row.title} | {marks} | {row.cases} | {size} | {by} |"


def write(folder: Path, found: Matrix) -> None:
    """Put ``selftest.json`` and ``selftest.md`` into a folder.  Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found.to_json(), indent=1, ensure_ascii=False)
    (folder / "selftest.json").write_text(text + "\n", encoding="utf-8")
    (folder / "selftest.md").write_text(markdown(found), encoding="utf-8")
