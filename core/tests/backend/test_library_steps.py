"""Steps that the op library has, on devices of loops: launches, memory between them, claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from test_adapters import HERE, LoopsChip, op, program, slot

from bringup.backend import BufferView, Capabilities, LibraryClaims, SimpleBackend, claims
from bringup.c import C11, METAL, c_claims
from bringup.dtypes import f16, f32, i32, i64
from bringup.errors import UnsupportedError
from bringup.loops import For, Func
from bringup.loops.library import INDEX_OPS
from bringup.loops.schedule import Schedule
from bringup.target import Target

LONG, AT = f32[100], i32[3, 1]
X, Z = slot("input", LONG), slot("output", LONG)


class Chip(LoopsChip):
    target = Target(threads=3)

    def scratch_bytes(self, func: Func) -> int:
        return 40 if "sort_" in func.name else 0

    def launch(self, loaded: Any, func: Func, views: list[BufferView]) -> None:
        if self.scratch_bytes(func):
            *views, scratch = views
            self.array(scratch)[...] = 0x55
        super().launch(loaded, func, views)


def test_a_step_is_several_launches_with_memory_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lasts from launch to launch stands before the scratch of a launch."""
    monkeypatch.setattr("bringup.loops.library.sorting._BLOCK_BYTES", 1 << 7)
    chip = Chip()
    run = chip.compile(program([op("sort", [X], Z, dim=0, descending=True)]))
    x = np.random.default_rng(5).permutation(100).astype(np.float32)
    [z] = run([chip.put(x)])
    names = [f"o0_sort_{name}" for name in ("runs", "blocks", "merge", "write")]
    assert chip.events == [
        *(f"{what} {name}" for name in names for what in ("render", "load")),
        *(f"launch {name}" for name in (*names[:3], *names[2:])),
    ]
    assert chip.take(z, LONG).tolist() == sorted(x.tolist(), reverse=True)
    assert run.source.startswith("func o0_sort_runs(run0: out i64[1], run1: out i64[1]) {")


def test_the_source_without_a_device_is_cut_for_the_row_of_the_backend() -> None:
    chip = Chip()
    backend = SimpleBackend(
        "chip", lambda index: chip, Capabilities(), render=chip.render, target=chip.target
    )
    shown = program([op("sort", [X], Z, dim=0, descending=True)])
    assert backend.target() == backend.target("any") == Target(threads=3)
    assert backend.lower(shown).source == chip.compile(shown).source


def test_functions_of_the_library_are_scheduled_as_kernels_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_pairs(func: Func) -> Schedule:
        (outer, *_) = (s for s in func.body if isinstance(s, For))
        return Schedule.parse(f"split {outer.name} pairs pair 2")

    class Paired(Chip):
        def schedule(self, func: Func) -> Schedule:
            return in_pairs(func)

    monkeypatch.setenv("BRINGUP_CHECK", "1")
    chip = Paired()
    steps = program([op("cumulative", [X], Z, kind="add", dim=0, reverse=False, exclusive=False)])
    run = chip.compile(steps)
    [z] = run([chip.put(x := np.arange(100, dtype=np.float32))])
    assert chip.take(z, LONG).tolist() == np.cumsum(x).tolist()
    assert "for pair in 2" in run.source
    backend = SimpleBackend(
        "chip", lambda index: chip, Capabilities(), render=chip.render, schedule=in_pairs,
        target=chip.target,
    )  # fmt: skip
    assert backend.lower(steps).source == run.source


NUMBERS = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}


@pytest.mark.parametrize("in_place", ["arena", "donated", ""])
def test_what_changes_where_it_stands_is_not_copied(in_place: str) -> None:
    chip = LoopsChip()
    new, at = slot("input", f32[3], 1), slot("input", AT, 2)
    held = slot("arena", LONG, offset=64)
    target = held if in_place == "arena" else Z
    steps = [op("scatter", [X, at, new], target, kind="add", **NUMBERS)]
    rest: dict[str, Any] = {"arena_bytes": 512}
    if in_place == "arena":
        steps.append(op("scatter", [held, at, new], held, kind="add", **NUMBERS))
        steps.append(op("sort", [held], Z, dim=0))
    if in_place == "donated":
        rest = {"donated": frozenset({0}), "aliases": ((0, 0),)}
    run = chip.compile(program(steps, **rest))
    handles = [chip.put(np.zeros(100, np.float32)), chip.put(np.float32([1, 2, 3]))]
    [z] = run([*handles, chip.put(np.int32([[7], [-1], [7]]))])
    launches = [event.partition(" ")[2] for event in chip.events if event.startswith("launch")]
    first = ["o0_scatter"] if in_place == "donated" else ["o0_scatter_copy", "o0_scatter"]
    assert launches == [*first, *(["o1_scatter", "o2_sort"] if in_place == "arena" else [])]
    result = chip.take(z, LONG)
    assert result.max() == result.sum() == (8 if in_place == "arena" else 4)
    assert (z == handles[0]) == (in_place == "donated")


def test_a_function_of_the_device_comes_first() -> None:
    class Own(LoopsChip):
        def __init__(self) -> None:
            super().__init__()
            self.ops = {"sort": self.sort}

        def sort(self, x: BufferView, out: BufferView, **attrs: Any) -> None:
            self.events.append(f"sort {attrs['dim']}")
            self.array(out)[...] = np.sort(self.array(x))

    chip = Own()
    [z] = chip.compile(program([op("sort", [X], Z, dim=0)]))([chip.put(np.zeros(100, np.float32))])
    assert chip.events == ["sort 0"]
    assert not chip.take(z, LONG).any()


def test_what_neither_has_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="tan: LoopsChip has no function") as caught:
        LoopsChip().compile(program([op("tan", [X], Z)]))
    assert caught.value.location is HERE


def test_claims_follow_from_those_of_kernels() -> None:
    every = LibraryClaims(c_claims(C11))
    assert {f16, f32, i64} <= every["sort"]
    assert {"cumulative.max", "scatter.set", "dynamic_update_slice", "eigh", "lu"} <= set(every)
    assert len(every) == len(list(every))
    assert "cumulative" not in every
    assert "tan" not in every
    without = LibraryClaims(c_claims(METAL))  # no f64
    assert {"qr", "lu"} <= set(without)
    assert without.keys().isdisjoint({"eigh", "svd"})
    parts = list(INDEX_OPS)
    few = LibraryClaims(claims(parts, [f32, i32]))
    assert set(few) == {
        "cumulative.add", "cumulative.max", "cumulative.min", "dynamic_update_slice",
        "scatter.add", "scatter.max", "scatter.min", "scatter.set",
    }  # fmt: skip
    assert LibraryClaims(claims(parts, [f32, i32, i64]))["sort"] == {f32, i32, i64}
    assert not set(LibraryClaims(claims(parts, [f32])))
    assert not set(LibraryClaims(claims(parts[:-2], [f32, i32])))
