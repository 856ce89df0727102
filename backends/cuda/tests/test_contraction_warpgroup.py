"""Contractions by warpgroups on the emulator, exact in small integers or within the suite's bounds;
no part of what orders them can be left out; and what the assembler makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assembling import find_ptxas, run_ptxas
from emulated import optimised, run_program, translated
from test_contraction import check, integers, turned

import bringup as bu
from bringup import bfloat16, float16, float32
from bringup.dtypes import DType
from bringup.errors import ScheduleError, UnsupportedError
from bringup.llvm.simt.matrix import emit_tiles
from bringup.llvm.text import Module
from bringup.loops import evaluate_func, parse_func, verify_func
from bringup.loops.schedule import Schedule
from bringup.ops.evaluate import evaluate
from bringup.program.program import KernelStep
from bringup.types import TensorType
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.verdict import judge
from bringup_cuda.backend import CudaBackend
from bringup_cuda.codegen.contraction import planning
from bringup_cuda.codegen.contraction.schedule import scheduled_contraction
from bringup_cuda.codegen.contraction.tiles import TENSOR, WARPGROUP, Tile
from bringup_cuda.codegen.lower import to_ptx, translate
from bringup_cuda.codegen.nvvm import SIMT, TRIPLE
from bringup_cuda.driver.discovery import nearest
from bringup_cuda.targets import TARGETS, capabilities_of
from bringup_cuda_emulator import EmulatorError
from bringup_cuda_emulator.backend import EMULATED

Fn = Callable[..., Any]
TARGET = "sm_90a"
HALVES = (float16, bfloat16)
TABLE = Path(__file__).parents[1] / "docs" / "contractions.md"
PRODUCT = r"wgmma\.mma_async\.sync\.aligned\.m64n{}k16\.f32\.{}\.{} "


def name_of(tile: Tile) -> str:
    return f"{tile.rows}x{tile.columns}"


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tile], None]:
    """Makes planning know no tile but one."""

    def choose(tile: Tile) -> None:
        monkeypatch.setattr(planning, "WARPGROUP", (tile,))
        monkeypatch.setattr(planning, "TENSOR", ())

    return choose


def by_warpgroups(fn: Fn, *types: TensorType, **more: Any) -> None:
    """Run and compare, all of it by warpgroups."""
    made = check(fn, *types, architecture=TARGET, **more)
    assert "wgmma.mma_async" in made.text
    assert "llvm.nvvm.mma" not in made.text


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", WARPGROUP, ids=name_of)
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, HALVES[n % 2]) for n, layout in enumerate(("nn", "nt", "tn", "tt"))],
    ids=str,
)
def test_every_layout(tile: Tile, dtype: DType, layout: str, only: Callable[[Tile], None]) -> None:
    """More tiles than one either way, the last of them short, and a short last step."""
    only(tile)
    m, k, n = tile.rows + 8, 3 * 64 + 24, tile.columns + 16
    left, right = (side == "t" for side in layout)

    def fn(x: Any, w: Any) -> Any:
        return (turned(x) if left else x) @ (turned(w) if right else w)

    by_warpgroups(fn, dtype[(k, m) if left else (m, k)], dtype[(n, k) if right else (k, n)])


@pytest.mark.parametrize("trips", [1, 2, 3, 7])
def test_steps(trips: int, only: Callable[[Tile], None]) -> None:
    """Fewer than there are stages, and more."""
    for tile in WARPGROUP:
        only(tile)
        by_warpgroups(lambda x, w: x @ w, float16[64, 64 * trips], float16[64 * trips, 64])


@pytest.mark.parametrize("sizes", [(6, 18, 10), (70, 66, 38), (65, 130, 129)], ids=str)
def test_odd_sizes(sizes: tuple[int, int, int], only: Callable[[Tile], None]) -> None:
    """Copies of 4 bytes; elements that none of them moves come by registers."""
    m, k, n = sizes
    only(WARPGROUP[1])
    by_warpgroups(lambda x, w: x @ w, bfloat16[m, k], bfloat16[k, n])


def test_what_would_take_too_many_registers_on_its_way_is_left_to_warps() -> None:
    made = check(lambda x, w: x @ w, float16[65, 67], float16[67, 69], architecture=TARGET)
    assert "llvm.nvvm.mma" in made.text


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_threads_and_blocks_does_not_matter(
    seed: int, only: Callable[[Tile], None]
) -> None:
    only(WARPGROUP[1])
    by_warpgroups(lambda x, w: x @ w, float16[150, 200], float16[200, 200], seed=seed)


def test_batches(only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[2])
    by_warpgroups(lambda x, w: x @ w, float16[2, 3, 20, 72], float16[2, 3, 72, 40])
    by_warpgroups(lambda x, w: x @ w, bfloat16[3, 20, 72], bfloat16[72, 40])


@pytest.mark.parametrize("inner", [2048, 2050])
def test_long_sums_in_parts(inner: int, only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[2])

    def fn(x: Any, w: Any, b: Any) -> Any:
        return bu.nn.relu(x @ w + b)

    types = float16[16, inner], float16[inner, 24], float16[24]
    by_warpgroups(fn, *types)
    assert len(translated(fn, types, TARGET)[1].launches) == 2


def test_epilogues(only: Callable[[Tile], None]) -> None:
    def fn(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
        y = bu.nn.relu(x @ w + b) * 2 + r - s
        return y, bu.astype(y, float32), y > 1

    for tile in WARPGROUP:
        only(tile)
        types = bfloat16[40, 72], bfloat16[72, 56], bfloat16[56], bfloat16[40, 56], bfloat16[40, 1]
        by_warpgroups(fn, *types)


def test_prologues_and_moved_operands(only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[1])
    by_warpgroups(lambda x, w: (x * 2) @ (w + 1), float16[40, 72], float16[72, 56])

    def moved(x: Any, w: Any) -> Any:
        return bu.flip(x, axis=1)[1:, ::2] @ bu.concat([w, w * 2], axis=0)

    by_warpgroups(moved, float16[41, 144], float16[36, 56])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolutions(layout: str, only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[1])
    x, w = (2, 9, 9, 8), (3, 3, 8, 16)
    if layout == "NCHW":
        x, w = (2, 8, 9, 9), (16, 8, 3, 3)
    by_warpgroups(
        lambda x, w: bu.nn.relu(bu.nn.conv(x, w, padding=1, layout=layout)), float16[x], float16[w]
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bounds(dtype: DType, only: Callable[[Tile], None]) -> None:
    """Normal numbers and GELU, against the suite's own bounds."""
    only(WARPGROUP[0])

    def fn(x: Any, w: Any, b: Any) -> Any:
        return bu.nn.gelu(x @ w + b)

    types = dtype[70, 136], dtype[136, 72], dtype[72]
    random = np.random.default_rng(9)
    given = [random.standard_normal(t.shape).astype(t.dtype.numpy) for t in types]
    program, made = translated(fn, types, TARGET)
    (result,) = run_program(program, made, given)
    numerics = capabilities_of(TARGET).numerics
    verdict = judge(result, analyse(bu.trace(fn, *types), given, numerics)[0])
    assert verdict.ok, verdict
    assert not verdict.open


def test_passes_change_no_bit(only: Callable[[Tile], None]) -> None:
    """What the code generator is given, after LLVM's passes, is what was run."""
    only(WARPGROUP[1])
    types = float16[136, 136], float16[136, 72]
    program, made = translated(lambda x, w: x @ w, types, TARGET)
    given = integers(types)
    results = [run_program(program, m, given)[0] for m in (made, optimised(made, TARGET))]
    np.testing.assert_array_equal(*results)


# -- what orders them ------------------------------------------------------------------------------

SHOW = r"  call void @llvm\.nvvm\.fence\.proxy\.async\.shared_cta\(\)\n"
BARRIER = r"  call void @llvm\.nvvm\.barrier0\(\)\n"
NEEDED = {
    "fence of proxies": (SHOW, ("not-visible",)),
    "barrier": (BARRIER, ("race", "not-visible", "in-flight", "uninitialised", "overtaken")),
    "commit": (
        r"  call void @llvm\.nvvm\.wgmma\.commit_group\.sync\.aligned\(\)\n",
        ("overtaken", "race", "too-many-products", "sums-in-flight"),
    ),
    "wait for all but one": (
        r"  call void @llvm\.nvvm\.wgmma\.wait_group\.sync\.aligned\(i64 1\)\n",
        ("overtaken", "race", "in-flight"),
    ),
    "wait for copies": (
        r"  call void @llvm\.nvvm\.cp\.async\.wait\.group\(i32 [1-9]\)\n",
        ("in-flight",),
    ),
}


@pytest.mark.parametrize("part", NEEDED)
def test_nothing_can_be_left_out(part: str, only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[0])
    pattern, kinds = NEEDED[part]
    types = float16[128, 64 * 9], float16[64 * 9, 256]
    program, made = translated(lambda x, w: x @ w, types, TARGET)
    given = integers(types)
    found = list(re.finditer(pattern, made.text))
    assert found
    for each in found:
        text = made.text[: each.start()] + made.text[each.end() :]
        with pytest.raises(EmulatorError) as caught:
            run_program(program, replace(made, text=text), given)
        assert caught.value.finding.kind in kinds, caught.value


@pytest.mark.parametrize(
    ("part", "instead", "kind"),
    [
        ("wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;", "sums-in-flight"),
        ("fence.sync.aligned;", "wait_group.sync.aligned 7;", "not-fenced"),
    ],
)
def test_registers_are_fenced_and_waited_for(
    part: str, instead: str, kind: str, only: Callable[[Tile], None]
) -> None:
    only(WARPGROUP[0])
    types = float16[128, 128], float16[128, 256]
    program, made = translated(lambda x, w: x @ w, types, TARGET)
    assert made.text.count(part) == 1
    with pytest.raises(EmulatorError) as caught:
        run_program(program, replace(made, text=made.text.replace(part, instead)), integers(types))
    assert caught.value.finding.kind == kind


# -- as loops --------------------------------------------------------------------------------------


def tile_plan(fn: Fn, types: Sequence[TensorType], tile: Tile) -> planning.ContractionPlan:
    """The plan of a function's kernel, by one tile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "WARPGROUP", (tile,))
        patch.setattr(planning, "TENSOR", ())
        program, _ = translated(fn, types, TARGET)
        plan = planning.plan_contraction(program.kernels[0], TARGET)
    assert plan is not None
    return plan


def test_their_steps() -> None:
    """The factor whose lines run along the columns lies in two pieces of 64."""
    types = float16[136, 136], float16[136, 72]
    steps = str(scheduled_contraction(tile_plan(lambda x, w: x @ w, types, WARPGROUP[1])).steps)
    assert (
        """\
split c.i.in c.p c.i.in 64
precompute %2_1 k.o left r.i.in,k.i space=shared swizzle=1
precompute %1_1 k.o right c.p,k.i,c.i.in space=shared swizzle=1
split r.i.in r.w r.i.in 64
split r.i.in r.v r.i.in 16
split r.i.in r.l r.y 8
split c.i.in c.q c.i.in 8
split c.i.in c.x c.l 2
split k.i k.s k.e 16
reorder r.w r.v r.y c.x c.p c.q r.l c.l
reorder r.w k.s r.v r.y c.x c.p c.q r.l c.l k.e
tensorize r.v 64x128x16
"""
        in steps
    )
    assert steps.endswith("double_buffer k.o 3 left right ahead=1 pending=1")


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_loops_compute_the_same(layout: str) -> None:
    """By the interpreter, which finds what is used on its way; prologue and epilogue included."""

    def fn(x: Any, w: Any) -> Any:
        x, w = (turned(x), turned(w)) if layout == "tt" else (x, w)
        return bu.nn.relu((x * 2) @ w)

    types = float16[16, 136], float16[136, 24]
    if layout == "tt":
        types = float16[136, 16], float16[24, 136]
    plan = tile_plan(fn, types, WARPGROUP[2])
    scheduled = scheduled_contraction(plan)
    verify_func(scheduled.after)
    assert str(parse_func(str(scheduled.after))) == str(scheduled.after)
    given = integers(types)
    (wanted,) = evaluate(bu.trace(fn, *types), given)
    # The kernel may take its inputs in any order.
    inputs = {array.size: array for array in given}
    buffers = [
        inputs[param.buffer.size].ravel() if param.role == "in" else np.zeros(384, np.float16)
        for param in scheduled.after.params
    ]
    evaluate_func(scheduled.after, buffers)
    np.testing.assert_array_equal(buffers[-1], np.asarray(wanted).ravel())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k.i,c.i.in space=shared swizzle=1", "k.i,c.i.in space=shared", "in pieces of 128 bytes"),
        ("k.i,c.i.in space=shared swizzle=1", "c.i.in,k.i space=shared swizzle=1", "are no copy"),
        ("split g0 r.o r.i 128", "split g0 r.o r.i 64", "128 of 256 threads ask for products"),
        ("c.i.in c.p c.i.in 64", "c.i.in c.p c.i.in 32", "in pieces of 128 bytes"),
        ("tensorize r.v 64x128x16\n", "", "more than multiply by instructions"),
        ("c.x c.p c.q", "c.p c.x c.q", "no unit multiplies as loop r.v says"),
        ("c.p c.q r.l", "c.q c.p r.l", "in pieces of 128 bytes"),
    ],
)  # fmt: skip
def test_what_the_unit_does_not_read_is_refused(old: str, new: str, message: str) -> None:
    types = float16[136, 136], float16[136, 72]
    plan = tile_plan(lambda x, w: x @ w, types, WARPGROUP[1])
    text = str(scheduled_contraction(plan).steps)
    assert old in text
    steps = Schedule.parse(text.replace(old, new))
    with pytest.raises((UnsupportedError, ScheduleError), match=message):
        emit_tiles(
            Module(TRIPLE), scheduled_contraction(plan, steps).after, "k", TARGETS[TARGET], SIMT, 64
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unroll k.s c.p", "unroll c.p"),
        ("k.o 3 left right ahead=1 pending=1", "k.o 4 left right ahead=1 pending=2"),
        ("r.l c.l", "c.l r.l"),
        ("split c.i e.x e.v 8", "split c.i e.x e.v 16"),
    ],
)
def test_other_steps_compute_the_same(old: str, new: str, only: Callable[[Tile], None]) -> None:
    only(WARPGROUP[1])
    types = float16[136, 264], float16[264, 72]
    program, made = translated(lambda x, w: x @ w, types, TARGET)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    scheduled = CudaBackend().scheduled(step, TARGET)
    assert scheduled is not None
    text = str(scheduled.steps)
    assert old in text
    other = replace(step, schedule=Schedule.parse(text.replace(old, new)))
    changed = replace(program, steps=(other,))
    given = integers(types)
    results = [
        run_program(p, m, given)[0]
        for p, m in ((program, made), (changed, translate(changed, TARGET)))
    ]
    np.testing.assert_array_equal(*results)


def test_other_architectures_refuse_their_loops() -> None:
    types = float16[136, 136], float16[136, 72]
    func = scheduled_contraction(tile_plan(lambda x, w: x @ w, types, WARPGROUP[1])).after
    with pytest.raises(UnsupportedError, match="sm_90 has no unit that several warps multiply by"):
        emit_tiles(Module(TRIPLE), func, "k", TARGETS["sm_90"], SIMT, 64)


def test_tools_see_their_loops() -> None:
    program, _ = translated(lambda x, w: x @ w, (bfloat16[2048, 2048],) * 2, TARGET)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    scheduled = CudaBackend().scheduled(step, TARGET)
    assert scheduled is not None
    assert "tensorize r.v 64x256x16" in str(scheduled.steps)


# -- plans -----------------------------------------------------------------------------------------


def planned(
    m: int,
    k: int,
    n: int,
    dtype: DType = bfloat16,
    target: str = TARGET,
    tiles: tuple[Tile, ...] = (*WARPGROUP, *TENSOR),
) -> Any:
    program, _ = translated(lambda x, w: x @ w, (dtype[m, k], dtype[k, n]), target)
    with pytest.MonkeyPatch.context() as patch:
        for name, group in (("WARPGROUP", WARPGROUP), ("TENSOR", TENSOR)):
            patch.setattr(planning, name, tuple(tile for tile in group if tile in tiles))
        return planning.plan_contraction(program.kernels[0], target)


def test_large_products_of_halves_are_theirs() -> None:
    assert planned(8192, 8192, 8192).tile is WARPGROUP[0]
    assert planned(8192, 8192, 8192, float16).tile is WARPGROUP[0]
    assert planned(16, 4096, 4096).tile in TENSOR
    assert planned(64, 64, 64).tile in TENSOR
    assert planned(4096, 4096, 4096, float32).tensor is None


def test_only_their_own_architecture_has_them() -> None:
    """PTX for sm_90 runs on every GPU after it too, which have no such products."""
    assert not planned(8192, 8192, 8192, target="sm_90").tile.warpgroups
    assert not planned(8192, 8192, 8192, target="sm_100").tile.warpgroups
    assert nearest("sm_90") == TARGET == EMULATED
    assert nearest("sm_100") == "sm_100"
    assert nearest("sm_95") == "sm_90"


# -- what the assembler makes of them --------------------------------------------------------------


def layer(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.gelu(x @ w + b)


N = 4096
SQUARE, LINE = bfloat16[N, N], bfloat16[N]
PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "nn": (lambda x, w: x @ w, (SQUARE, SQUARE)),
    "nn, gelu": (layer, (SQUARE, SQUARE, LINE)),
    "nt": (lambda x, w: x @ turned(w), (SQUARE, SQUARE)),
    "tn": (lambda x, w: turned(x) @ w, (float16[N, N],) * 2),
    "tt, residual": (lambda x, w, r: turned(x) @ turned(w) + r, (SQUARE,) * 3),
    "short": (lambda x, w: x @ w, (bfloat16[N - 8, N - 8],) * 2),
    "prologue": (lambda x, w: (x * 2) @ w, (SQUARE, SQUARE)),
    "batch": (lambda x, w: x @ w, (float16[8, 512, 512],) * 2),
    "convolution": (
        lambda x, w: bu.nn.conv(x, w, layout="NHWC"),
        (float16[8, 58, 58, 64], float16[3, 3, 64, 256]),
    ),
}


@cache
def ptx(name: str, tile: Tile) -> str:
    fn, types = PROGRAMS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "WARPGROUP", (tile,))
        patch.setattr(planning, "TENSOR", ())
        return to_ptx(translated(fn, types, TARGET)[1].text, TARGET)


def count(instruction: str, text: str) -> int:
    return len(re.findall(rf"^\s+(?:\{{ \.reg [^;]*; setp[^;]*; )?{instruction}", text, re.M))


def registers_of(text: str) -> int:
    """What the assembler gives a thread, if it has nothing to say against the text."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    said = run_ptxas(ptxas, text, TARGET, "-v")
    assert said.returncode == 0, said.stderr
    # It warns where it makes products wait for each other, or for registers.
    assert "C75" not in said.stderr, said.stderr
    assert "serialized" not in said.stderr
    assert re.findall(r"(\d+) bytes spill stores", said.stderr) == ["0"]
    (registers,) = map(int, re.findall(r"Used (\d+) registers", said.stderr))
    return registers


@pytest.mark.parametrize(
    ("name", "tile"),
    [(name, WARPGROUP[n % len(WARPGROUP)]) for n, name in enumerate(PROGRAMS)],
    ids=lambda given: given if isinstance(given, str) else name_of(given),
)
def test_they_assemble_without_spills_or_complaints(name: str, tile: Tile) -> None:
    text = ptx(name, tile)
    (blocks,) = map(int, re.findall(r"\.minnctapersm (\d+)", text))
    assert registers_of(text) * tile.threads * blocks <= 1 << 16


@pytest.mark.parametrize("tile", WARPGROUP, ids=name_of)
def test_the_assembler_unrolls_no_loop_of_products(tile: Tile) -> None:
    """That of CUDA 12.9 crashes on some that it unrolls, where these have 6 to 16 iterations."""
    text = ptx("batch", tile)
    loops = text.partition("wgmma.mma_async")[0]
    assert count(r'\.pragma "nounroll";', loops) == 1


def test_every_tile_is_described() -> None:
    """Registers may move a little from one assembler to the next; nothing else may."""
    rows = re.findall(r"^\| warpgroups (.*) \|$", TABLE.read_text(), re.MULTILINE)
    stated = [tuple(row.split(" | ")) for row in rows]
    assert len(stated) == len(WARPGROUP)
    for row, tile in zip(stated, WARPGROUP, strict=True):
        text = ptx("nn", tile)
        shared = planned(8192, 8192, 8192, tiles=(tile,)).shared_bytes
        copies = (tile.rows + tile.columns) * 64 * 2 // 16 // tile.threads
        counts = (
            tile.depth * 16,
            tile.stages,
            tile.threads,
            shared,
            count("wgmma.mma", text),
            copies,
        )
        assert row[0] == f"{tile.rows} × {tile.columns}"
        assert tuple(map(int, row[1:4] + row[5:8])) == counts
        traffic = (tile.rows + tile.columns) / (tile.rows * tile.columns)
        assert float(row[8]) == pytest.approx(traffic, abs=1e-4)
        assert abs(registers_of(text) - int(row[4])) <= 16


@pytest.mark.parametrize("tile", WARPGROUP, ids=name_of)
def test_a_step_of_the_pipeline(tile: Tile) -> None:
    text = ptx("nn, gelu", tile)
    assert f".target {TARGET}" in text
    # 64 inner elements: 4 products of 16, one group.
    kind = PRODUCT.format(tile.columns, "bf16", "bf16")
    assert count(kind, text) == count("wgmma", text) - 4 == 4
    assert count(r"wgmma\.fence\.sync\.aligned", text) == 1
    assert count(r"wgmma\.commit_group\.sync\.aligned", text) == 1
    assert count(r"wgmma\.wait_group\.sync\.aligned\s+1;", text) == 1
    assert count(r"wgmma\.wait_group\.sync\.aligned\s+0;", text) == 1
    assert count(r"fence\.proxy\.async\.shared::cta", text) == 1
    # One barrier a step, one before and one after the sums pass through shared memory.
    assert count(r"bar\.sync", text) == 3
    copies = (tile.rows + tile.columns) * 64 * 2 // 16 // tile.threads
    assert count(r"cp\.async\.cg\.shared\.global \[.*\], 16", text) == copies * (tile.prefetch + 1)
    assert count(r"cp\.async\.ca", text) == 0
    assert count("ldmatrix", text) == count("mma", text) == 0
    # The stage is counted, also where there are three: nothing is divided or multiplied.
    step = text[text.index("cp.async.wait_group") : text.index("wgmma.wait_group.sync.aligned 0;")]
    assert count(r"(rem|div|mul\.hi|mul\.lo)\.", step) == 0


@pytest.mark.parametrize("tile", WARPGROUP, ids=name_of)
def test_no_register_of_sums_is_moved_between_products(tile: Tile) -> None:
    """They would have to be waited for: from the first product of a step to the last wait, and
    back, each sum stays in one register.
    """
    text = ptx("nt", tile)
    named = re.findall(r"wgmma\.mma_async\S+ \{([^}]*)\}", text)
    assert len(set(named)) == 1
    first = text.index("\n", text.index(named[0]))
    last = text.index("wgmma.wait_group.sync.aligned 0;")
    sums = set(named[0].split(", "))
    for line in text[first:last].splitlines():
        if "wgmma" not in line and not line.lstrip().startswith("//"):
            assert sums.isdisjoint(re.findall(r"%\w+", line)), line


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nn, gelu", "0, 1"), ("nt", "0, 0"), ("tn", "1, 1"), ("tt, residual", "1, 0")],
)
def test_lines_that_run_the_other_way(name: str, bits: str) -> None:
    text = ptx(name, WARPGROUP[0])
    assert set(re.findall(r"p, 1, 1, ([01], [01]);", text)) == {bits}
