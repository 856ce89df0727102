"""Products of f32 that ask for tf32 on the emulator and in PTX; those that do not ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from emulated import Array, run_program, translated
from test_contraction import check, is_contraction, turned
from test_contraction_ptx import Assembled, measure

import bringup as bu
from bringup import bfloat16, float16, float32, float64
from bringup.backend import Numerics
from bringup.types import TensorType
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.span import inside
from bringup_cuda.codegen.contraction import planning
from bringup_cuda.codegen.contraction.tiles import TENSOR, Tile
from bringup_cuda.codegen.lower import to_ptx
from bringup_cuda_emulator import run

Fn = Callable[..., Any]
MMA = "llvm.nvvm.mma.m16n8k8.row.col.tf32"
LAYOUTS = [(left, right) for left in (False, True) for right in (False, True)]


def product(x: Any, w: Any) -> Any:
    return bu.matmul(x, w, precision="tf32")


def laid_out(left: bool, right: bool) -> Fn:
    return lambda x, w: product(turned(x) if left else x, turned(w) if right else w)


def types_of(m: int, k: int, n: int, left: bool, right: bool) -> tuple[TensorType, TensorType]:
    return float32[(k, m) if left else (m, k)], float32[(n, k) if right else (k, n)]


def whole(*types: TensorType) -> list[Array]:
    """Numbers of all eleven bits against ones of two, so that sums are exact in any order."""
    random = np.random.default_rng(3)
    tops = [2047, *[3] * (len(types) - 1)]
    pairs = zip(types, tops, strict=True)
    return [random.integers(-top, top + 1, t.shape).astype(np.float32) for t, top in pairs]


def wide(*types: TensorType) -> list[Array]:
    return whole(*types[::-1])[::-1]


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        (sizes, LAYOUTS[(n + turn) % 4])
        for n, sizes in enumerate(((40, 48, 56), (3, 17, 5), (70, 65, 37), (2, 2, 2)))
        for turn in (0, 3)
    ],
    ids=str,
)
def test_numbers_of_eleven_bits_are_multiplied_exactly(
    sizes: tuple[int, int, int], layout: tuple[bool, bool]
) -> None:
    types = types_of(*sizes, *layout)
    for inputs in (whole(*types), wide(*types)):
        made = check(laid_out(*layout), *types, inputs=inputs)
        assert is_contraction(made)
        assert MMA in made.text


@pytest.mark.parametrize(
    ("tile", "layout"),
    [(tile, LAYOUTS[(n + turn) % 4]) for n, tile in enumerate(TENSOR) for turn in (0, 3)],
    ids=lambda given: (
        f"{given.rows}x{given.columns}x{given.depth}" if isinstance(given, Tile) else str(given)
    ),
)
def test_every_tile(tile: Tile, layout: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TENSOR", (tile,))
    small = tile.rows * tile.columns <= 8192
    m, n = (tile.rows + 4, tile.columns + 4) if small else (tile.rows, tile.columns)
    types = types_of(m, 28, n, *layout)
    check(laid_out(*layout), *types, inputs=whole(*types))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (kind, LAYOUTS[(n + turn) % 4])
        for n, kind in enumerate(("signed", "wide", "positive", "special", "ramp"))
        for turn in (0, 3)
    ],
    ids=str,
)
def test_results_are_within_the_bound(kind: str, layout: tuple[bool, bool]) -> None:
    # More special numbers than a few in a sum make all of them NaN.
    types = types_of(37, 3 if kind == "special" else 70, 29, *layout)
    fn = laid_out(*layout)
    inputs = [Recipe(kind, seed).make(t) for seed, t in enumerate(types)]
    program, made = translated(fn, types)
    (got,) = run_program(program, made, inputs)
    (span,) = analyse(bu.trace(fn, *types), inputs, Numerics())
    assert inside(got, span).all()
    assert np.isfinite(got).any()


def test_factors_are_rounded_to_nearest_and_ties_away_from_zero() -> None:
    x, w = np.eye(32, dtype=np.float32), np.zeros((32, 32), np.float32)
    given = [2049, 2050, 2051, -2049, 4099, 1 + 2.0**-11, 1 + 2.0**-12, 3.4e38, 2.0**-137, 1e-39]
    wanted = [2050, 2050, 2052, -2050, 4100, 1 + 2.0**-10, 1, np.float32(3.4e38), 2.0**-136]
    w[:10, 0], wanted = given, np.float32([*wanted, 0])
    bits = np.float32(given).view(np.uint32)
    wanted[7::2] = ((bits[7::2] + 0x1000) & 0xFFFFE000).view(np.float32)
    program, made = translated(product, (float32[32, 32], float32[32, 32]))
    (got,) = run_program(program, made, [x, w])
    assert got[:10, 0].tolist() == wanted.tolist()
    (got,) = run_program(program, made, [w.T.copy(), x])
    assert got[0, :10].tolist() == wanted.tolist()


def test_epilogues_and_prologues() -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return bu.nn.relu(product(bu.nn.relu(x), w * 2) + b)

    types = float32[33, 40], float32[40, 24], float32[24]
    made = check(fn, *types, inputs=whole(*types))
    assert is_contraction(made)
    assert MMA in made.text


def test_stacks() -> None:
    types = float32[3, 20, 24], float32[3, 24, 36]
    assert MMA in check(product, *types, inputs=whole(*types)).text


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolutions(layout: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return bu.nn.conv(x, w, padding="same", layout=layout, precision="tf32")

    plane = float32[2, 6, 9, 11] if layout == "NCHW" else float32[2, 9, 11, 6]
    kernel = float32[12, 6, 3, 3] if layout == "NCHW" else float32[3, 3, 6, 12]
    assert MMA in check(fn, plane, kernel, inputs=wide(plane, kernel)).text


def test_long_sums_are_cut() -> None:
    types = float32[16, 2049], float32[2049, 24]
    made = check(product, *types, inputs=[np.sign(x) for x in whole(*types)])
    first, last = (launch.kernel for launch in made.launches)
    assert first.fixed
    assert not last.fixed
    assert MMA in made.text


def test_a_half_that_is_made_wider_is_multiplied_with_an_f32() -> None:
    def fn(x: Any, w: Any) -> Any:
        return product(bu.astype(x, float32), w)

    types = bfloat16[24, 40], float32[40, 24]
    x, w = wide(float32[24, 40], float32[40, 24])
    made = check(fn, *types, inputs=[x.astype(bfloat16.numpy), w])
    assert MMA in made.text


def test_two_halves_that_are_made_wider_stay_exact() -> None:
    def fn(x: Any, w: Any) -> Any:
        return product(bu.astype(x, float32), bu.astype(w, float32))

    made = check(fn, float16[24, 40], float16[40, 24])
    assert "llvm.nvvm.mma.m16n8k16" in made.text
    assert "tf32" not in made.text


# -- attention -------------------------------------------------------------------------------------


def attend(causal: bool = False, precision: str = "tf32", scale: float | None = None) -> Fn:
    def fn(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        how: dict[str, Any] = {"causal": causal, "precision": precision, "scale": scale}
        return bu.nn.attention(q, k, v, bias=bias[0] if bias else None, **how)

    return fn


#: Queries, keys, depth, values.
ATTENDED = [
    (70, 90, 24, 40), (3, 200, 7, 5), (130, 33, 16, 8), (5, 33, 130, 12), (40, 20, 64, 150),
    (64, 64, 1, 2), (1, 1, 1, 2), (5, 7, 8, 1),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=("all", "causal"))
@pytest.mark.parametrize("sizes", ATTENDED, ids=str)
def test_attention_is_within_the_bound(sizes: tuple[int, int, int, int], causal: bool) -> None:
    queries, keys, depth, values = sizes
    within(attend(causal), (2, queries, depth), (2, keys, depth), (2, keys, values))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86"])
def test_attention_elsewhere(architecture: str) -> None:
    shapes = (2, 70, 100), (2, 90, 100), (2, 90, 100)
    within(attend(causal=True), *shapes, architecture=architecture)


def test_attention_with_a_bias() -> None:
    within(attend(), (2, 3, 40, 16), (2, 3, 50, 16), (2, 3, 50, 16), (2, 1, 40, 1))


def within(fn: Fn, *shapes: tuple[int, ...], architecture: str = "sm_90") -> None:
    types = [float32[shape] for shape in shapes]
    program, made = translated(fn, types, architecture)
    assert len(made.launches) == 1
    assert MMA in made.text
    random = np.random.default_rng(5)
    given = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    (result,) = run_program(program, made, given)
    (span,) = analyse(bu.trace(fn, *types), given, Numerics())
    assert inside(result, span).all()


def test_a_key_that_wins_is_all_there_is() -> None:
    """Powers of 0 and 1 alone: the values of the winner, bit for bit."""
    n = 96
    rows = np.arange(n)
    winner = (rows * 37 + 5) % n
    q = np.zeros((1, n, n), np.float32)
    q[0, rows, winner] = 100
    k = np.eye(n, dtype=np.float32)[None] * 100
    (v,) = whole(float32[1, n, 24])
    program, made = translated(attend(scale=1.0), [float32[a.shape] for a in (q, k, v)])
    (result,) = run_program(program, made, [q, k, v])
    np.testing.assert_array_equal(result, v[:, winner])


def test_attention_that_did_not_ask_is_exact() -> None:
    types = [float32[2, 64, 64]] * 3
    texts = [translated(attend(precision=p), types)[1].text for p in ("highest", "tf32")]
    assert ["tf32" in text for text in texts] == [False, True]


# -- who asks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nothing_is_rounded_that_did_not_ask(layout: tuple[bool, bool], architecture: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (turned(x) if layout[0] else x) @ (turned(w) if layout[1] else w)

    types = types_of(64, 64, 64, *layout)
    for asked, asks in ((fn, False), (laid_out(*layout), True)):
        text = to_ptx(translated(asked, types, architecture)[1].text, architecture)
        assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text) is asks
        assert ("tf32" in text) is asks


def test_one_program_has_both() -> None:
    def fn(x: Any, w: Any) -> Any:
        return x @ w, product(x, w)

    types = float32[24, 40], float32[40, 24]
    x, w = (Recipe("positive", seed).make(t) for seed, t in enumerate(types))
    program, made = translated(fn, types)
    exact, rounded = run_program(program, made, [x, w])
    spans = analyse(bu.trace(fn, *types), [x, w], Numerics())
    assert inside(exact, spans[0]).all()
    assert inside(rounded, spans[1]).all()
    assert not inside(rounded, spans[0]).all()


def test_architectures_without_tf32_compute_exactly() -> None:
    types = float32[24, 40], float32[40, 24]
    made = check(product, *types, architecture="sm_75")
    assert "tf32" not in made.text


def test_f64_is_none_of_it() -> None:
    assert "mma" not in check(lambda x, w: x @ w, float64[24, 40], float64[40, 24]).text


# -- the emulator, by the manual's tables ----------------------------------------------------------

RESULT = "{float, float, float, float}"
FRAGMENTS = f"""
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare {RESULT} @{MMA}({", ".join(["i32"] * 6 + ["float"] * 4)})
declare i32 @llvm.nvvm.f2tf32.rna(float)
"""


def kernel(body: str) -> str:
    head = "define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {\n"
    lane = "  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
    return f"{FRAGMENTS}\n{head}{lane}{body}\n  ret void\n}}\n"


def multiplied(a: Array, b: Array, c: Array) -> Array:
    """The sums of one product, whose factors are 16 × 8 and 8 × 8 in bits, by lanes' registers."""
    lane = np.arange(32)
    group, member = lane // 4, lane % 4
    low, high = member, member + 4
    left = [a[group, low], a[group + 8, low], a[group, high], a[group + 8, high]]
    right = [b[low, group], b[high, group]]
    places = [(group + 8 * (i // 2), 2 * member + i % 2) for i in range(4)]
    sums = [c[place].view(np.uint32) for place in places]
    given = np.stack([*left, *right, *sums], axis=1).astype(np.uint32)
    lines = ["  %first = mul i32 %t, 10", "  %to = mul i32 %t, 4"]
    for n in range(10):
        kind = "i32" if n < 6 else "float"
        lines.append(f"  %i{n} = add i32 %first, {n}")
        lines.append(f"  %p{n} = getelementptr i32, ptr addrspace(1) %in, i32 %i{n}")
        lines.append(f"  %v{n} = load {kind}, ptr addrspace(1) %p{n}, align 4")
    operands = ", ".join(f"{'i32' if n < 6 else 'float'} %v{n}" for n in range(10))
    lines.append(f"  %made = call {RESULT} @{MMA}({operands})")
    for n in range(4):
        lines.append(f"  %r{n} = extractvalue {RESULT} %made, {n}")
        lines.append(f"  %o{n} = add i32 %to, {n}")
        lines.append(f"  %q{n} = getelementptr float, ptr addrspace(1) %out, i32 %o{n}")
        lines.append(f"  store float %r{n}, ptr addrspace(1) %q{n}, align 4")
    out = np.zeros((32, 4), np.float32)
    run(kernel("\n".join(lines)), "k", 1, 32, [given, out])
    found = np.full((16, 8), np.nan, np.float32)
    for n, place in enumerate(places):
        found[place] = out[:, n]
    return found


def test_fragments_lie_as_the_manual_has_them() -> None:
    random = np.random.default_rng(2)
    a, b, c = (
        random.integers(-9, 10, shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8))
    )
    got = multiplied(a.view(np.uint32), b.view(np.uint32), c)
    assert got.tolist() == (a @ b + c).tolist()


def test_the_last_bits_of_a_register_are_not_looked_at() -> None:
    random = np.random.default_rng(2)
    a, b, c = (
        random.integers(-9, 10, shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8))
    )
    noisy = [x.view(np.uint32) | random.integers(0, 1 << 13, x.shape, np.uint32) for x in (a, b)]
    assert multiplied(*noisy, c).tolist() == (a @ b + c).tolist()


def test_conversions_round_as_the_assembler_has_them() -> None:
    named = [0, 0x80000000, 0x3F800FFF, 0x3F801000, 0xBF801000, 0x3F803000, 0x7F7FFFFF, 0xFF7FF000]
    named += [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x00000FFF, 0x00001000]
    random = np.random.default_rng(4).integers(0, 1 << 32, 49, np.uint32)
    bits = np.array([*named, *random], np.uint32)
    body = """
  %p = getelementptr float, ptr addrspace(1) %in, i32 %t
  %v = load float, ptr addrspace(1) %p, align 4
  %r = call i32 @llvm.nvvm.f2tf32.rna(float %v)
  %q = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %r, ptr addrspace(1) %q, align 4"""
    out = np.zeros_like(bits)
    run(kernel(body), "k", 1, bits.size, [bits, out])
    finite = (bits & 0x7FFFFFFF) < 0x7F800000
    assert out.tolist() == (np.where(finite, bits + 0x1000, bits) & 0xFFFFE000).tolist()
    assert out[6] == 0x7F800000, "past the largest number lies infinity"
    assert np.isnan(out[10:12].view(np.float32)).all()


# -- PTX -------------------------------------------------------------------------------------------

N = 4096
PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "rows": (
        lambda x, w, b: bu.nn.relu(product(x, w) + b),
        (float32[N, N], float32[N, N], float32[N]),
    ),
    "columns": (laid_out(False, True), (float32[N, N], float32[N, N])),
    "turned": (laid_out(True, False), (float32[N, N], float32[N, N])),
    "odd": (product, (float32[N - 1, N - 1], float32[N - 1, N - 1])),
    "few rows": (product, (float32[16, N], float32[N, N])),
    "convolution": (
        lambda x, w: bu.nn.conv(x, w, padding=1, precision="tf32"),
        (float32[8, 64, 56, 56], float32[64, 64, 3, 3]),
    ),
    "attention": (attend(causal=True), (float32[16, 2048, 64],) * 3),
    "deep attention": (attend(causal=True), (float32[16, 2048, 128],) * 3),
}


#: Beside sm_90, of each size of shared memory one of the newest and of the oldest that has it.
ELSEWHERE = {"rows": ("sm_80", "sm_120"), "deep attention": ("sm_86", "sm_100")}


@cache
def assembled(name: str, architecture: str = "sm_90") -> Assembled:
    fn, types = PROGRAMS[name]
    _, made = translated(fn, types, architecture)
    return measure(to_ptx(made.text, architecture), architecture)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, "sm_90") for name in PROGRAMS),
        *((name, other) for name, others in ELSEWHERE.items() for other in others),
    ],
)
def test_nothing_spills(name: str, architecture: str) -> None:
    made = assembled(name, architecture)
    assert not any(made.spilled)
    assert made.count(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32") > 0
    assert made.count("mma") == made.count(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32")


def test_a_factor_is_rounded_once_for_all_its_products() -> None:
    """128 products in four steps of 32 bytes, and a conversion for each register of both factors:
    those along the inner axis from loads of four matrices, the others word by word.
    """
    counts = {"rows": (16, 64), "columns": (32, 0), "turned": (0, 128)}
    for name, (matrices, words) in counts.items():
        made = assembled(name)
        assert made.count("mma") == made.count(r"cvt\.rna\.tf32\.f32") == 128
        assert made.count(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared") == matrices
        assert made.count(r"ld\.shared\.b32") == words
        assert made.count(r"cp\.async\.cg\.shared\.global \[.*\], 16") > 0
        assert made.count(r"cp\.async\.ca") == 0
