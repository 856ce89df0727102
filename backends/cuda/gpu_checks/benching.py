"""Rows of programs beside frameworks and a copy, on operands larger than the cache together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from bringup_cuda.driver.discovery import open_library
from gpu_checks.copying import Copier
from gpu_checks.measuring import Side, Times, measure, sets_of
from gpu_checks.peers import Array, Ours, Peer, Warps, find
from gpu_checks.rows import GROUPS, Operand, Row
from gpu_checks.work import Task

#: Kinds of rows that are held against copying.
COPIED = ("elementwise", "reduction", "rows")
#: Of the source of a copy, and of its target.
CAPACITY = 1 << 30
#: Sets of operands that are made; of small ones many fit in a cache line, and calls are the cost.
MOST_SETS = 16
#: Seconds that a row must have for what takes long to compile.
COMPILING = 5.0
#: Elements of a result that are compared.
COMPARED = 1 << 20
AGAIN = "bringup, plain, again"


def work(task: Task) -> bool:
    """The part ``bench:GROUP``."""
    emulated = "emulated" in task.device
    ours, warps = Ours(task.device), Warps(task.device)
    peers, said = find(emulated)
    task.row(name="", versions=said)
    rows = GROUPS[task.argument](task.quick)
    copier = _copier(task, ours, emulated) if any(row.kind in COPIED for row in rows) else None
    good, operands = True, _Operands()
    for number, row in enumerate(rows):
        if task.left < 0:
            task.row(name=row.name, kind=row.kind, skipped="no time was left")
            continue
        # What a row leaves of its share goes to those after it.
        share = task.left / (len(rows) - number)
        asked = [peer for peer in peers if not peer.slow or share > COMPILING]
        found = _row(row, [ours, warps, *asked], operands, copier, share / 3, task.quick)
        if len(asked) < len(peers):
            found["notes"] = {**found.get("notes", {}), "compiled": "no time was left for it"}
        task.row(**found)
        good &= not found.get("wrong")
    return good


def _copier(task: Task, ours: Ours, emulated: bool) -> Copier:
    if emulated:
        from bringup_cuda_emulator.backend import emulated_library

        library = emulated_library()
    else:
        library = open_library()
    copier = Copier(library, ours.device.index, 1 << 20 if task.quick else CAPACITY)
    if not copier.check():
        raise SystemExit("the kernel that copies does not copy")
    return copier


def _row(
    row: Row,
    frameworks: Sequence[Peer],
    operands: _Operands,
    copier: Copier | None,
    seconds: float,
    quick: bool,
) -> dict[str, Any]:
    sets = 2 if quick else min(sets_of(row.bytes), MOST_SETS)
    found: dict[str, Any] = {"name": row.name, "kind": row.kind, "bytes": row.bytes}
    sides, notes, results = _sides(row, frameworks, operands, sets)
    if row.kind in COPIED and copier is not None:
        sides += copier.sides(row.bytes)
    times = measure(sides, seconds, quick)
    found["seconds"] = {name: each.median for name, each in times.items()}
    found["spread"] = {name: round(each.spread, 4) for name, each in times.items()}
    copies = [t for name, t in found["seconds"].items() if name.startswith("copy by")]
    if copies:
        found["seconds"]["copy"] = min(copies)
    if row.plain is not None:
        found["noise"] = round(_noise(times), 4)
    if row.flops:
        found["flops"] = row.flops
    return {**found, **_compared(row, results), **({"notes": notes} if notes else {})}


class _Operands:
    """What rows run on; rows that ask for the same share it, uploaded once to each framework."""

    def __init__(self) -> None:
        self._uploaded: dict[tuple[str, Operand, int], Any] = {}

    def sets(self, row: Row, peer: Peer, count: int) -> list[list[Any]]:
        """So many sets of a row's operands."""
        return [
            [self._get(peer, operand, 8 * n + i) for i, operand in enumerate(row.operands)]
            for n in range(count)
        ]

    def _get(self, peer: Peer, operand: Operand, seed: int) -> Any:
        key = peer.name.partition(",")[0], operand, seed
        if key not in self._uploaded:
            self._uploaded[key] = peer.upload(_numbers(operand, seed))
        return self._uploaded[key]


def _sides(
    row: Row, frameworks: Sequence[Peer], operands: _Operands, sets: int
) -> tuple[list[Side], dict[str, str], dict[str, Array]]:
    """What is timed, why something is not, and some of the first result of each."""
    sides: list[Side] = []
    notes: dict[str, str] = {}
    results: dict[str, Array] = {}
    for peer in frameworks:
        way = peer.way(row)
        if way is None:
            continue
        try:
            uploaded = operands.sets(row, peer, sets)
            call = peer.ready(way)
            results[peer.name] = _some(peer, call(*uploaded[0]))
        except Exception as error:
            if isinstance(peer, Ours):
                raise
            notes[peer.name] = f"{type(error).__name__}: {error}"[:300]
            continue
        sides.append(_side(peer.name, peer, call, uploaded))
        if peer.name == Ours.name and row.plain is not None:
            plain = peer.ready(row.plain)
            sides += [_side(name, peer, plain, uploaded) for name in ("bringup, plain", AGAIN)]
    return sides, notes, results


def _side(name: str, peer: Peer, call: Callable[..., Any], operands: list[list[Any]]) -> Side:
    last: list[Any] = [None]

    def run(number: int) -> None:
        last[0] = call(*operands[number % len(operands)])

    return Side(name, run, lambda: peer.wait(last[0]))


def _some(peer: Peer, result: Any) -> Array:
    return peer.download(result).reshape(-1)[:COMPARED]


def _compared(row: Row, results: dict[str, Array]) -> dict[str, Any]:
    """How far our result lies from those of others, as a share of the largest."""
    mine = results["bringup"]
    apart = {}
    for name, other in results.items():
        if name != "bringup":
            scale = max(float(np.abs(other).max(initial=0)), 1e-30)
            apart[name] = float(np.abs(mine - other).max(initial=0)) / scale
    # One that disagrees with all the others is wrong; another of our own is no witness.
    others = [each for name, each in apart.items() if not name.startswith("bringup")]
    wrong = bool(others) and not min(others) <= row.difference
    return {"apart": apart, "wrong": int(wrong)}


def _noise(times: dict[str, Times]) -> float:
    """How far two measurements of the same program lie apart, and samples of one."""
    plain, again = times["bringup, plain"], times[AGAIN]
    return max(abs(again.median / plain.median - 1), plain.spread, again.spread)


@lru_cache(maxsize=16)
def _numbers(operand: Operand, seed: int) -> Array:
    """The same for every row that asks for them; large ones repeat a few million numbers."""
    generator = np.random.default_rng(seed)
    count = int(np.prod(operand.shape))
    if operand.high:
        return generator.integers(0, operand.high, operand.shape, dtype=np.int32)
    # Whole periods would align with rows of powers of two.
    drawn = generator.standard_normal(min(count, (1 << 22) + 3), np.float32)
    if operand.dtype == "bfloat16":
        drawn = drawn.astype(ml_dtypes.bfloat16)
    return np.resize(drawn, operand.shape)
