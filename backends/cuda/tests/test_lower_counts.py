"""What kernels of the sizes that matter do with memory and registers, counted in PTX and by the
assembler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from emulated import translated
from suite_programs import Assembled, assembled, find_ptxas
from test_lower import cross_entropy, norm

import bringup as bu
from bringup import bfloat16, float16, float32, int32
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Translated
from bringup_cuda.codegen.lower import to_ptx

Fn = Callable[..., Any]
f32 = float32
ROWS = f32[8192, 4096]
GAIN = f32[4096]
FLAT = 100_000_000


def layer_norm_gradient(x: Any, gain: Any, bias: Any) -> Any:
    return bu.grad(lambda *each: bu.sum(norm(*each) ** 2), argnums=(0, 1, 2))(x, gain, bias)


PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "add": (lambda x, y: x + y, (f32[FLAT], f32[FLAT])),
    "add, odd": (lambda x, y: x + y, (f32[FLAT + 1], f32[FLAT + 1])),
    "add of f16": (lambda x, y: x + y, (float16[FLAT], float16[FLAT])),
    "gelu": (bu.nn.gelu, (f32[FLAT],)),
    "bias": (lambda x, b: bu.nn.relu(x + b), (ROWS, GAIN)),
    "sum": (bu.sum, (f32[FLAT],)),
    "sum, odd": (bu.sum, (f32[FLAT + 1],)),
    "sums of rows": (lambda x: bu.sum(x, axis=1), (ROWS,)),
    "sums of columns": (lambda x: bu.sum(x, axis=0), (ROWS,)),
    "softmax": (lambda x: bu.nn.softmax(x, axis=1), (ROWS,)),
    "softmax of bf16": (lambda x: bu.nn.softmax(x, axis=1), (bfloat16[8192, 4096],)),
    "softmax of short rows": (lambda x: bu.nn.softmax(x, axis=1), (f32[100_000, 64],)),
    "softmax of long rows": (lambda x: bu.nn.softmax(x, axis=1), (f32[512, 50257],)),
    "softmax of columns": (lambda x: bu.nn.softmax(x, axis=0), (f32[300, 7000],)),
    "log-softmax": (lambda x: bu.nn.log_softmax(x, axis=1), (ROWS,)),
    "layer norm": (norm, (ROWS, GAIN, GAIN)),
    "layer norm, gradient": (layer_norm_gradient, (ROWS, GAIN, GAIN)),
    "cross-entropy and gradient": (bu.value_and_grad(cross_entropy), (ROWS, int32[8192])),
    "transposition": (lambda x: x.T + 1, (f32[4096, 4096],)),
    "transposition of bytes": (lambda x: ~x.T, (bu.uint8[4096, 4096],)),
}
#: Programs that keep rows, or columns, in registers.
RESIDENT = [name for name in PROGRAMS if "soft" in name or "norm" in name or "entropy" in name]


@cache
def lowered(name: str) -> tuple[Translated, str]:
    fn, types = PROGRAMS[name]
    _, made = translated(fn, types)
    return made, to_ptx(made.text, "sm_90")


def body(name: str, number: int = 0) -> str:
    """PTX of a kernel."""
    return re.split(r"\.visible \.entry ", lowered(name)[1])[1:][number]


def loads(text: str) -> list[str]:
    """Shapes of reads of memory, in order."""
    return re.findall(r"\bld\.global(?:\.nc)?\.(v\d)?", text)


@cache
def reports(name: str) -> list[Assembled]:
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    return assembled(ptxas, lowered(name)[1], "sm_90")


@pytest.mark.parametrize(
    ("name", "times"), [("add", 4), ("add of f16", 4), ("gelu", 2), ("bias", 4)]
)
def test_threads_move_16_bytes_several_times_over(name: str, times: int) -> None:
    """Fewer times for long functions, whose registers other threads had better have."""
    text = body(name)
    assert set(loads(text)) == {"v4"}
    assert text.count("st.global.v4") >= times
    first = text.index("st.global")
    assert len(loads(text[:first])) >= times


def test_elements_that_fill_no_vector_are_the_last_block_s() -> None:
    """Each operand is read once more, an element at a time."""
    assert sorted(loads(body("add, odd"))) == sorted([*loads(body("add")), "", ""])


@pytest.mark.parametrize("name", ["sum", "sums of rows", "sums of columns", "softmax"])
def test_sums_read_16_bytes_at_a_time(name: str) -> None:
    assert set(loads(body(name))) == {"v4"}


def test_inputs_are_read_as_constant() -> None:
    text = body("softmax")
    assert text.count("ld.global.nc.v4") == len(loads(text))


def test_what_a_launch_overwrites_is_not_read_as_constant() -> None:
    made = bu.jit(lambda x: x * 2, donate_argnums=0).lower(f32[4096], target="cuda:sm_90")
    assert made.program.aliases
    assert ".nc" not in made.asm
    assert len(loads(made.asm)) > 0


@pytest.mark.parametrize(
    ("name", "reads", "writes"),
    [("softmax", 4, 4), ("softmax of bf16", 2, 2), ("log-softmax", 4, 4), ("layer norm", 12, 4)],
)
def test_a_row_is_read_once_and_written_once(name: str, reads: int, writes: int) -> None:
    """By 256 threads, 16 bytes at a time; a layer norm also reads gain and bias."""
    made, text = lowered(name)
    (kernel,) = made.kernels
    assert (kernel.threads, kernel.blocks, kernel.shared_bytes) == (256, 8192, 0)
    assert loads(text) == ["v4"] * reads
    assert text.count("st.global.v4") == writes
    assert text.count("bar.sync") == 2


def test_a_row_is_divided_by_one_reciprocal() -> None:
    """What divides stands beside it, for elements too large or small, in branches of their own:
    four elements take one for their exponentials and one for their quotients.
    """
    text = body("softmax")
    assert text.count("rcp.rn.f32") == 1
    blocks = re.split(r"(?m)^\$L\w+:|\bbra\b.*;", text)
    divided = [block.count("div.rn.f32") for block in blocks if "div.rn.f32" in block]
    assert divided == [4] * 4
    assert not any("div.rn.f32" in block and "fma.rn.f32" in block for block in blocks)
    assert text.count("bra") >= 2 * 4


def test_several_short_rows_share_a_block() -> None:
    """Eight threads to a row, of two loads each: no shared memory, no barrier, three shuffles for
    each of two folds.
    """
    made, text = lowered("softmax of short rows")
    assert [(k.threads, k.blocks) for k in made.kernels] == [(256, 100_000 // 32)]
    assert loads(text) == ["v4"] * 2
    assert text.count("shfl.sync") == 6
    assert ".shared" not in text
    assert "bar.sync" not in text


def test_long_rows_keep_their_tile_in_shared_memory() -> None:
    made, _ = lowered("softmax of long rows")
    (kernel,) = made.kernels
    assert kernel.threads == 1024
    assert 4 * 50257 <= kernel.shared_bytes <= 227 * 1024


@pytest.mark.parametrize("height", [3000, 8192, 30_000, 57_000])
def test_tall_columns_fit_shared_memory(height: int) -> None:
    """Tiles and partial results together, of 227 KiB."""
    _, made = translated(lambda x: bu.nn.softmax(x, axis=0), [f32[height, 500]])
    (kernel,) = made.kernels
    found = re.findall(r"addrspace\(3\) global \[(\d+) x i8\]", made.text)
    taken = kernel.shared_bytes + sum(map(int, found))
    assert 4 * height < taken <= 227 * 1024


@pytest.mark.parametrize("name", ["sum", "sum, odd", "sums of columns"])
def test_long_sums_have_work_for_every_multiprocessor(name: str) -> None:
    made, _ = lowered(name)
    partial, final = made.kernels
    assert partial.blocks >= 3 * 132
    assert final.blocks <= 32
    assert made.scratch_bytes <= 4 * FLAT // 100


def test_columns_are_coalesced() -> None:
    """A warp reads 128 columns of a row, whose partial sums meet in shared memory."""
    text = body("sums of columns")
    assert "shfl" not in text
    assert "ld.shared.v4" in text


def test_transpositions_read_and_write_along_memory() -> None:
    text = body("transposition")
    # Twice 32 lines of 33 words: the next tile is filled while this one is read.
    assert re.search(r"\.shared .*v\d+\[8448\]", text) is not None
    assert len(loads(text)) == 8
    assert text.count("bar.sync") == 1


def test_narrow_elements_are_turned_in_words() -> None:
    text = body("transposition of bytes")
    assert len(re.findall(r"ld\.global\.nc\.b32", text)) == len(loads(text)) == 8
    assert text.count("st.global.b32") == 8
    assert reports("transposition of bytes")[0].spilled == 0


@pytest.mark.parametrize("name", RESIDENT)
def test_rows_spill_nothing(name: str) -> None:
    for report in reports(name):
        assert report.spilled == 0, report


@pytest.mark.parametrize("operands", [4, 8, 16])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_many_operands_spill_nothing(operands: int, axis: int | None) -> None:
    """Fewer places at once for more loads at each."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    _, made = translated(lambda *arrays: bu.sum(sum(arrays), axis=axis), [ROWS] * operands)
    for report in assembled(ptxas, to_ptx(made.text, "sm_90"), "sm_90"):
        assert report.spilled == 0, report


@pytest.mark.parametrize(
    ("name", "registers"),
    [("add", 48), ("gelu", 48), ("sums of rows", 48), ("softmax", 56), ("layer norm", 64)],
)
def test_registers_leave_room_for_a_thousand_threads(name: str, registers: int) -> None:
    """On a multiprocessor with 65,536 of them, which threads get by eights."""
    assert max(report.registers for report in reports(name)) <= registers


FEW_ROWS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "softmax": (lambda x: bu.nn.softmax(x, axis=1), (f32[8, 1_000_000],)),
    "layer norm": (norm, (f32[16, 1 << 18], f32[1 << 18], f32[1 << 18])),
    "a row": (lambda x: bu.nn.softmax(x, axis=1), (f32[1, 5_000_000],)),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_few_long_rows_are_work_for_every_multiprocessor(name: str) -> None:
    """Each pass over them is cut into chunks, by sizes alone; only their results meet in few
    blocks.
    """
    fn, types = FEW_ROWS[name]
    _, made = translated(fn, types)
    for launch in made.launches:
        kernel = launch.kernel
        final = "_final_" in kernel.name
        assert kernel.blocks <= 8 if final else kernel.blocks >= 3 * 132, kernel
        assert not kernel.fixed


def test_narrow_columns_are_read_16_bytes_at_a_time() -> None:
    """Though their sums are wider and take two stores."""
    _, made = translated(lambda x: bu.sum(x, axis=0), [bfloat16[8192, 4096]])
    partial = re.split(r"\.visible \.entry ", to_ptx(made.text, "sm_90"))[1]
    assert loads(partial) == ["v4"] * 4


@pytest.mark.parametrize("dtype", [float16, f32], ids=str)
def test_rows_that_begin_anywhere_have_as_many_bytes_on_their_way(dtype: Any) -> None:
    """One element at a time, more of them: a thousand threads ask for some 32 KiB."""
    programs: tuple[Fn, ...] = (
        lambda x: bu.sum(x, axis=1),
        lambda x: bu.nn.softmax(x, axis=1),
        lambda x: x[:, 1:] * 2,
    )
    for fn in programs:
        _, made = translated(fn, [dtype[8192, 4095]])
        text = to_ptx(made.text, "sm_90")
        first = text[: text.index("st.global")]
        assert len(loads(first)) * dtype.bits // 8 >= 16
