"""The op library: what its functions compute, by the interpreter of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from library_cases import EXACT, Array, few_values, judge, judged, loops_of, reference, run_loops

from bringup.dtypes import as_dtype
from bringup.loops import Func, evaluate_func, verify_func
from bringup.loops.library import LIBRARY


def interpret(func: Func, arrays: Sequence[Array]) -> None:
    verify_func(func)
    evaluate_func(func, arrays)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which long lines and long runs are cut, so that small ones are, too."""
    monkeypatch.setattr("bringup.loops.library.scans._LEAST_CHUNK", 3)
    monkeypatch.setattr("bringup.loops.library.attention._BLOCK", 12)
    monkeypatch.setattr("bringup.loops.library.attention._FEW_BLOCK", 8)
    monkeypatch.setattr("bringup.loops.library.block_sparse._LONGEST", 8)
    monkeypatch.setattr("bringup.loops.library.block_sparse._RUN", 4)
    monkeypatch.setattr("bringup.loops.library.updates._RUN", 4)
    monkeypatch.setattr("bringup.loops.library.updates._SHARED_RUN", 2)
    monkeypatch.setattr("bringup.loops.library.side_by_side._TABLE_UPDATES", 8)
    monkeypatch.setattr("bringup.loops.library.side_by_side._TABLE_UPDATES_EACH", 1)
    monkeypatch.setattr("bringup.loops.library.side_by_side._CHUNK", 2)
    monkeypatch.setattr("bringup.loops.library.radix_sorts._ITEMS", 2)
    monkeypatch.setattr("bringup.loops.library.panels._COLUMNS", 2)
    monkeypatch.setattr("bringup.loops.library.tiles._ROWS", 2)
    monkeypatch.setattr("bringup.loops.library.tiles._USUAL_BITS", 64)


#: Blocks of few threads.
THREADS: dict[str, Any] = {"block": 4, "warp": 2, "instructions": ("atomic",)}
#: Vectors whose lanes change places.
PERMUTES: dict[str, Any] = {"instructions": ("permute",)}
#: Units, and what else machines say.
MACHINES: list[tuple[str, int, dict[str, Any]]] = [
    *((name, units, {}) for name in EXACT for units in (1, 64)),
    ("block_sparse_dot", 4, {"vector_bits": 128}),
    ("cumulative", 1, {"vector_bits": 128}),
    ("sort", 1, {"vector_bits": 128, **PERMUTES}),
    ("cumulative", 64, {"vector_bits": 256}),
    *((name, 64, THREADS) for name in EXACT),
]


@pytest.mark.parametrize(("name", "units", "machine"), MACHINES, ids=str)
def test_every_bit(name: str, units: int, machine: dict[str, Any]) -> None:
    for arrays, attrs in EXACT[name](np.random.default_rng(7)):
        loops = loops_of(name, arrays, units, machine, **attrs)
        results = run_loops(loops, arrays, interpret)
        for got, want in zip(results, reference(name, arrays, **attrs), strict=True):
            assert got.tobytes() == want.tobytes(), (attrs, arrays, got, want)


#: Blocks that share enough memory for a matrix, and blocks that do not.
OF_MATRICES = {"shared": {**THREADS, "shared_bytes": 1 << 16}, "temporary": THREADS}
#: Ops that blocks of threads do together.
TOGETHER = ("cholesky", "lu", "qr", "triangular_solve")
#: Blocks of few threads, of some that share rows, and warps that multiply tiles.
WARPS: dict[str, Any] = {"block": 256, "warp": 32, "shared_bytes": 1 << 16}
OF_ATTENTION: tuple[dict[str, Any], ...] = (
    {**THREADS, "block": 16, "warp": 4},
    {**WARPS, "instructions": ("atomic", "later")},
    {**WARPS, "instructions": ("atomic", "later", "matrices")},
)
INEXACT: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted(LIBRARY.keys() - EXACT.keys())),
    *((name, OF_MATRICES[machine]) for name in TOGETHER for machine in ("shared", "temporary")),
    ("attention", {"vector_bits": 128}),
    *(("attention", machine) for machine in OF_ATTENTION),
]


#: Shapes and dimensions that are sorted in lanes, in blocks and by merges of blocks.
LINES: list[tuple[tuple[int, ...], int]] = [
    ((3, 9, 3), 1), ((7, 5), 1), ((1, 5), 1), ((13,), 0), ((2, 40), 1), ((150,), 0), ((2, 140), 1),
]  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda number: str(LINES[number][0]))
def test_sorts_by_vectors(number: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers alone, whose NaN all become one, and keys with payloads."""
    monkeypatch.setattr("bringup.loops.library.sorting._BLOCK_BYTES", 1 << 9)
    monkeypatch.setattr("bringup.loops.library.sorting._SHORT", 8)
    monkeypatch.setattr("bringup.loops.library.run_merges._PART", 32)
    rng, (shape, dim) = np.random.default_rng(number), LINES[number]
    machine = {"vector_bits": 32 * lanes, "registers": (16, 32)[number % 2], **PERMUTES}
    for n, dtype in enumerate(("f32", "u8", "f64", "bf16", "u64", "bool", "f16")):
        if (n + number + lanes) % 3:
            continue
        x = few_values(rng, shape, as_dtype(dtype))
        more = [np.arange(x.size, dtype=np.int32).reshape(shape)] if n % 2 else []
        attrs = {"dim": dim, "num_keys": 1, "descending": bool((n + number) % 2)}
        loops = loops_of("sort", [x, *more], 4, machine, **attrs)
        results = run_loops(loops, [x, *more], interpret)
        for got, want in zip(results, reference("sort", [x, *more], **attrs), strict=True):
            is_nan = want != want
            assert (got[~is_nan]).tobytes() == (want[~is_nan]).tobytes(), (attrs, x, got, want)
            assert np.array_equal(got != got, is_nan)


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i32", "u8"])
def test_long_sorts_by_blocks_of_threads(dtype: str, descending: bool) -> None:
    """The last tile of a line is not whole: what fills it comes behind all elements."""
    rng = np.random.default_rng(3)
    for length in (9, 16, 17):
        x = few_values(rng, (length,), as_dtype(dtype))
        attrs = {"dim": 0, "num_keys": 1, "descending": descending}
        results = run_loops(loops_of("sort", [x], 1, THREADS, **attrs), [x], interpret)
        assert results[0].tobytes() == reference("sort", [x], **attrs)[0].tobytes(), x


@pytest.mark.parametrize(("name", "machine"), INEXACT, ids=str)
def test_within_bounds(name: str, machine: dict[str, Any]) -> None:
    calls = list(judged(name))
    if name == "attention" and machine in OF_ATTENTION:
        calls = calls[OF_ATTENTION.index(machine) :: len(OF_ATTENTION)]  # each takes long
    for arrays, attrs in calls:
        loops = loops_of(name, arrays, 2, machine, **attrs)
        results = run_loops(loops, arrays, interpret)
        assert not judge(name, arrays, results, attrs), (attrs, arrays, results)


def test_blocks_without_a_place_are_not_multiplied() -> None:
    """With rows of no elements: C's compilers warned of a buffer that nothing is written to."""
    places = np.zeros(3, np.int32)
    arrays = [np.zeros((3, 0), np.float32), np.ones((3, 2, 2), np.float32), places, places]
    attrs = {"features": 4, "per_row": 3, "per_column": 3, "precision": "highest"}
    loops = loops_of("block_sparse_dot", arrays, 1, {}, **attrs)
    (found,) = run_loops(loops, arrays, interpret)
    assert found.tolist() == np.zeros((3, 4)).tolist()
    assert " = panels[" not in "".join(map(str, loops.funcs))
