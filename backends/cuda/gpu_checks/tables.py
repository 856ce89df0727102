"""Results as Markdown.  Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Found = dict[str, Any]
_MET = {True: "yes", False: "**no**", None: "not judged"}
_SIDES = ("bringup", "bringup, mma.sync", "torch", "torch, compiled", "jax", "copy")


def table(found: Found) -> str:
    """The whole page."""
    return "\n".join([*_head(found), bars_table(found), "", *_parts(found), *_benches(found), ""])


def bars_table(found: Found) -> str:
    """What had to be reached, and was found."""
    rows = [(bar["what"], bar["needed"], bar["found"], _MET[bar["met"]]) for bar in found["bars"]]
    return "\n".join(_table(("bar", "needed", "found", "met"), rows))


def _head(found: Found) -> Iterator[str]:
    yield f"# {found['product']}"
    yield ""
    facts = [f"`gpu_check.py run --device {found['device']}`", found["date"]]
    facts += [f"commit {found['commit']}"] if found["commit"] else []
    facts += [f"{k} {v}" for k, v in found["environment"].items() if k != "gpu"]
    yield ", ".join(facts) + "."
    if found["emulated"]:
        yield "Emulated: times mean nothing, and bars of time are not judged."
    elif found["quick"]:
        yield "Small sizes: bars of time are not judged."
    yield ""


def _parts(found: Found) -> Iterator[str]:
    rows = []
    for name, part in found["parts"].items():
        rows.append((name, part["title"], part["status"], f"{part['seconds']:.0f} s", _said(part)))
    yield from _table(("part", "what", "status", "took", "found"), rows)
    yield ""


def _said(part: dict[str, Any]) -> str:
    """The sum of a part in a few words."""
    words = []
    rows = part.get("rows", [])
    for key, text in (("passed", "passed"), ("failed", "failed"), ("unsupported", "unsupported")):
        if any(key in row for row in rows):
            words.append(f"{sum(row.get(key, 0) for row in rows)} {text}")
    compared = [row for row in rows if "compared" in row]
    if compared:
        elements = sum(row["compared"] for row in compared)
        wrong = sum(row["wrong"] for row in compared)
        open_ = sum(row["open"] for row in compared)
        words.append(f"{len(compared)} rows, {elements} elements, {wrong} wrong, {open_} open")
    skipped = sum("skipped" in row for row in rows)
    words += [f"{skipped} left out for time"] if skipped else []
    words += [row["said"] for row in rows if "said" in row]
    words += [reason for row in rows for reason in row.get("reduced", [])]
    words += [part["summary"]] if "summary" in part else []
    if part.get("why"):
        words.append(str(part["why"]).strip().rpartition("\n")[2][:200])
    return "; ".join(words).replace("|", "\\|")


def _benches(found: Found) -> Iterator[str]:
    rows = [row for part in found["parts"].values() for row in part.get("rows", [])]
    timed = [row for row in rows if row.get("seconds") and isinstance(row["seconds"], dict)]
    if not timed:
        return
    sides = [side for side in _SIDES if any(side in row["seconds"] for row in timed)]
    head = ("program", *(f"{side}, µs" for side in sides), "rate")
    lines = []
    for row in timed:
        cells = [row["seconds"].get(side) for side in sides]
        shown = ["–" if cell is None else _number(cell * 1e6) for cell in cells]
        lines.append((row["name"].replace("|", "\\|"), *shown, _rate(row)))
    yield from _table(head, lines)
    versions = {k: v for row in rows for k, v in row.get("versions", {}).items()}
    if versions:
        yield ""
        yield "; ".join(f"{name} {version}" for name, version in versions.items())


def _rate(row: dict[str, Any]) -> str:
    seconds = row["seconds"]["bringup"]
    if "flops" in row:
        return f"{row['flops'] / seconds / 1e12:.1f} TFLOP/s"
    rate = f"{row['bytes'] / seconds / 1e9:.0f} GB/s"
    copy = row["seconds"].get("copy")
    return rate if copy is None else f"{rate}, {copy / seconds:.0%} of the copy's"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
