"""What the assembler makes of contractions: registers without spills, and the instructions that a
step of the pipeline has; no GPU is needed for either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from assembling import find_ptxas, run_ptxas
from emulated import translated

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8, int32
from bringup.api.apply import apply
from bringup.records import record
from bringup.types import TensorType
from bringup_cuda.codegen.contraction import planning
from bringup_cuda.codegen.contraction.tiles import SCALAR, TENSOR
from bringup_cuda.codegen.lower import to_ptx

#: What is assembled for architectures beside sm_90.
ELSEWHERE = ("f32", "bf16", "i8", "f16 attention")


def relu(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


def right_turned(x: Any, w: Any) -> Any:
    return x @ bu.permute_dims(w, (1, 0))


def bytes_(x: Any, w: Any) -> Any:
    attrs = {"batch": ((), ()), "contract": ((1,), (0,)), "accumulate": int32, "result": int32}
    return apply("dot_general", (x, w), attrs)


def attend(q: Any, k: Any, v: Any) -> Any:
    return bu.nn.attention(q, k, v, causal=True)


def layer(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.gelu(x @ w + b)


N = 4096
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[TensorType, ...]]] = {
    "f32": (relu, (float32[N, N], float32[N, N], float32[N])),
    "f32, turned": (right_turned, (float32[N, N], float32[N, N])),
    "f64": (relu, (float64[N, N], float64[N, N], float64[N])),
    "f16, gelu": (layer, (float16[N, N], float16[N, N], float16[N])),
    "bf16": (relu, (bfloat16[N, N], bfloat16[N, N], bfloat16[N])),
    "bf16, turned": (right_turned, (bfloat16[N, N], bfloat16[N, N])),
    "bf16, odd": (lambda x, w: x @ w, (bfloat16[N - 1, N - 1], bfloat16[N - 1, N - 1])),
    "bf16, few rows": (relu, (bfloat16[16, N], bfloat16[N, N], bfloat16[N])),
    "i8": (bytes_, (int8[N, N], int8[N, N])),
    "i8, turned": (
        lambda x, w: bytes_(x, bu.permute_dims(w, (1, 0))),
        (int8[N, N], int8[N, N]),
    ),
    "f16 convolution": (
        lambda x, w: bu.nn.conv(x, w, padding=1, layout="NHWC"),
        (float16[8, 56, 56, 64], float16[3, 3, 64, 64]),
    ),
    "f32 convolution": (
        lambda x, w: bu.nn.relu(bu.nn.conv(x, w, padding=1)),
        (float32[8, 64, 56, 56], float32[64, 64, 3, 3]),
    ),
    "f16 attention": (attend, (float16[16, 2048, 64],) * 3),
    "bf16 attention": (attend, (bfloat16[16, 2048, 128],) * 3),
    "f32 attention": (attend, (float32[16, 512, 64],) * 3),
}


@record
class Assembled:
    """PTX, and what the assembler says of each of its kernels."""

    text: str
    registers: tuple[int, ...]
    spilled: tuple[int, ...]

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"^\s+(?:@\S+ )?{instruction}", self.text, re.MULTILINE))


@cache
def assembled(name: str, architecture: str) -> Assembled:
    fn, types = PROGRAMS[name]
    _, made = translated(fn, types, architecture)
    return measure(to_ptx(made.text, architecture), architecture)


def measure(text: str, architecture: str) -> Assembled:
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    said = run_ptxas(ptxas, text, architecture, "-v")
    assert said.returncode == 0, said.stderr
    registers = tuple(map(int, re.findall(r"Used (\d+) registers", said.stderr)))
    spilled = tuple(map(int, re.findall(r"(\d+) bytes spill stores", said.stderr)))
    return Assembled(text, registers, spilled)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, "sm_90") for name in PROGRAMS),
        *((name, ("sm_80", "sm_100")[number % 2]) for number, name in enumerate(ELSEWHERE)),
    ],
)
def test_nothing_spills(name: str, architecture: str) -> None:
    made = assembled(name, architecture)
    assert not any(made.spilled)
    assert max(made.registers) <= 255


def test_tensor_cores_take_halves_and_bytes() -> None:
    """128 products for 32 loads of matrices in four steps of 32 bytes: a warp has 64 x 64 sums."""
    kinds = {
        "f16, gelu": "m16n8k16.row.col.f32.f16.f16.f32",
        "bf16": "m16n8k16.row.col.f32.bf16.bf16.f32",
        "bf16, turned": "m16n8k16.row.col.f32.bf16.bf16.f32",
        "i8": "m16n8k32.row.col.s32.s8.s8.s32",
    }
    for name, kind in kinds.items():
        made = assembled(name, "sm_90")
        assert made.count(rf"mma\.sync\.aligned\.{re.escape(kind)}") == 128
        assert made.count(r"ldmatrix\.sync\.aligned\.m8n8\.x4") == 32


def test_f32_and_f64_are_summed_exactly() -> None:
    """No tensor core rounds what is f32, and nothing fuses but the products."""
    for name, kind in (("f32", "f32"), ("f32, turned", "f32"), ("f64", "f64")):
        made = assembled(name, "sm_90")
        assert made.count("mma") == 0
        assert made.count(rf"fma\.rn\.{kind}") == 64 * 8
        # Sixteen numbers for 64 products, in accesses of 16 bytes, and one of the epilogue.
        wide = 64 * 8 * 16 // 64 // (4 if kind == "f32" else 2)
        assert made.count(r"ld\.shared\.v[24]") == wide + 1


@pytest.mark.parametrize("name", ["f32", "f16, gelu", "bf16", "bf16, turned", "f16 attention"])
def test_tiles_are_copied_in_sixteen_bytes(name: str) -> None:
    made = assembled(name, "sm_90")
    assert made.count(r"cp\.async\.cg\.shared\.global \[.*\], 16") > 0
    assert made.count(r"cp\.async\.ca") == 0


def test_patches_are_copied_without_registers() -> None:
    """What is not side by side goes element by element, yet asynchronously."""
    made = assembled("f32 convolution", "sm_90")
    assert made.count(r"cp\.async\.ca\.shared\.global \[.*\], 4") > 0
    nhwc = assembled("f16 convolution", "sm_90")
    assert nhwc.count(r"cp\.async\.cg\.shared\.global \[.*\], 16") > 0
    # Features lie side by side, and stay so where the image is padded.
    assert nhwc.count(r"ld\.global\S*\.b16") == 0


def test_epilogues_write_sixteen_bytes() -> None:
    for name in ("f32", "f64", "f16, gelu", "bf16"):
        assert assembled(name, "sm_90").count(r"st\.global\.v[24]\.b(32|64)") > 0


def test_one_barrier_to_a_tile() -> None:
    """One in the loop, one before and one after the sums pass through shared memory."""
    for name in ("f32", "bf16", "i8"):
        assert assembled(name, "sm_90").count(r"bar\.sync") == 3


TABLE = Path(__file__).parents[1] / "docs" / "contractions.md"


def described() -> list[tuple[str, ...]]:
    """The rows of the table of tiles."""
    rows = re.findall(r"^\| ((?:bf16|f32) \d+ .*) \|$", TABLE.read_text(), re.MULTILINE)
    return [tuple(row.split(" | ")) for row in rows]


def test_every_tile_is_described() -> None:
    stated = [row[:4] for row in described()]
    for name, tiles, inner in (("bf16", TENSOR, 16), ("f32", SCALAR, 1)):
        for tile in tiles:
            title = f"{name} {tile.rows} × {tile.columns}"
            row = title, str(tile.depth * inner), str(tile.stages), str(tile.threads)
            assert row in stated
            stated.remove(row)
    assert not stated


@pytest.mark.parametrize("row", described(), ids=lambda row: f"{row[0]}, {row[1]} x {row[2]}")
def test_the_mix_of_instructions_is_as_described(
    row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers may move a little from one assembler to the next; nothing else may."""
    number = described().index(row)
    tile = (*TENSOR, *SCALAR)[number]
    tensor = number < len(TENSOR)
    monkeypatch.setattr(planning, "TENSOR" if tensor else "SCALAR", (tile,))
    dtype = bfloat16 if tensor else float32
    _, made = translated(lambda x, w: x @ w, (dtype[N, N], dtype[N, N]))
    (launch,) = made.launches
    found = measure(to_ptx(made.text, "sm_90"), "sm_90")
    static = re.search(r"\[(\d+) x i8\] undef", made.text)
    shared = launch.kernel.shared_bytes or int(static[1] if static else 0)
    products = found.count("mma" if tensor else r"fma\.rn\.f32")
    # The epilogue's own read is none of the products'.
    reads = found.count("ldmatrix") if tensor else found.count(r"ld\.shared\.v4") - 1
    traffic = (tile.rows + tile.columns) * dtype.itemsize / (2 * tile.rows * tile.columns)
    assert tuple(map(int, row[5:8])) == (shared, products, reads)
    assert float(row[8]) == pytest.approx(traffic, abs=1e-4)
    assert found.spilled == (0,)
    assert abs(found.registers[0] - int(row[4])) <= 16
