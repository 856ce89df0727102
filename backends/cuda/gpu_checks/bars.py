"""What a run has to reach, and whether it did.  Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Found = dict[str, Any]


def judge(found: Found) -> list[dict[str, Any]]:
    """The bars: what is needed, what was found, and whether it is met.

    met: None where nothing was found, and where times mean nothing: on small sizes or emulated.
    """
    return [*_speed(found), *_right(found)]


def _speed(found: Found) -> Iterator[dict[str, Any]]:
    timed = not (found["emulated"] or found["quick"])
    shares = (
        ("elementwise", "elementwise, 10⁸ elements", "copy", 0.90),
        ("reduction", "reductions of 10⁸ elements", "copy", 0.90),
        ("rows", "softmax and layer norm (8192, 4096)", "copy", 0.85),
        ("matmul", "bf16 product 8192³", "torch", 0.70),
    )
    for kind, what, against, least in shares:
        rows = _rows(found, kind)
        share = _least([_share(row, against) for row in rows])
        name = "the copy's speed" if against == "copy" else "torch.matmul's speed"
        yield _bar(what, f"≥ {least:.0%} of {name}", share, "{:.0%}", timed, least=least)
    fused = _rows(found, "fused")
    extra = _most([_fused_cost(row) for row in fused])
    noise = max((row["noise"] for row in fused), default=0.0)
    yield _bar(
        "bias and GELU in that product",
        f"cost no more than the plain one varies ({noise:.1%})",
        extra, "{:+.1%}", timed, most=noise,
    )  # fmt: skip
    call = _most([_time(row, "bringup") * 1e6 or None for row in _rows(found, "call")])
    yield _bar("a call of a 10-op program", "≤ 10 µs", call, "{:.1f} µs", timed, most=10.0)


def _right(found: Found) -> Iterator[dict[str, Any]]:
    for names, what in (
        (("smoke", "ops", "fusion", "runtime"), "conformance"),
        (("programs",), "a program of each kind, within its bounds"),
        (("memcheck", "racecheck"), "compute-sanitizer"),
        (("digits",), "digits, each step within the bounds of the CPU's"),
        (("transformer",), "transformer, each step within the bounds of the CPU's"),
    ):
        parts = [found["parts"].get(name, {"status": "not run"}) for name in names]
        states = list(dict.fromkeys(part["status"] for part in parts))
        known = all(state in ("done", "failed") for state in states)
        met = states == ["done"] if known or "failed" in states else None
        yield {
            "what": what,
            "needed": "nothing wrong",
            "found": ", ".join([*_counts(parts), *states]),
            "met": met,
        }


def _counts(parts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How many cases passed or elements were compared, and whether that is all there are."""
    rows = [row for part in parts for row in part.get("rows", [])]
    passed, failed = (sum(row.get(key, 0) for row in rows) for key in ("passed", "failed"))
    if passed or failed:
        yield f"{passed} cases passed, {failed} failed"
    compared, wrong = (sum(row.get(key, 0) for row in rows) for key in ("compared", "wrong"))
    if compared:
        yield f"{compared} elements compared, {wrong} wrong"
    # A level that was asked for alone is whole.
    reasons = [reason for row in rows for reason in row.get("reduced", [])]
    if any(not reason.startswith("only ") for reason in reasons):
        yield "a part of all cases"


def _bar(
    what: str,
    needed: str,
    value: float | None,
    form: str,
    judged: bool,
    least: float | None = None,
    most: float | None = None,
) -> dict[str, Any]:
    met = None
    if value is not None and judged:
        met = (least is None or value >= least) and (most is None or value <= most)
    shown = "–" if value is None else form.format(value)
    return {"what": what, "needed": needed, "found": shown, "met": met}


def _rows(found: Found, kind: str) -> list[dict[str, Any]]:
    parts = found["parts"].values()
    return [row for part in parts for row in part.get("rows", []) if row.get("kind") == kind]


def _share(row: dict[str, Any], against: str) -> float | None:
    mine, other = _time(row, "bringup"), _time(row, against)
    return other / mine if mine and other else None


def _fused_cost(row: dict[str, Any]) -> float | None:
    plain, fused = _time(row, "bringup, plain"), _time(row, "bringup")
    return fused / plain - 1 if plain and fused else None


def _time(row: dict[str, Any], side: str) -> float:
    return float(row.get("seconds", {}).get(side, 0.0))


def _least(values: Sequence[float | None]) -> float | None:
    """The worst, or None if one is missing."""
    if not values or any(value is None for value in values):
        return None
    return min(value for value in values if value is not None)


def _most(values: Sequence[float | None]) -> float | None:
    worst = _least([None if value is None else -value for value in values])
    return None if worst is None else -worst
