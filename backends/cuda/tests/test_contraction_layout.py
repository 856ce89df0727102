"""Tiles in shared memory: every element has a place of its own, and what eight lanes read at once
lies in different banks.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulated import Array

from bringup import bfloat16, float32, float64, int8
from bringup.dtypes import DType
from bringup.graph.index import Expr
from bringup.llvm import text as ir
from bringup.llvm.func.registers import Registers
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.tiles import TileIndices, TileMemory
from bringup.llvm.text import Builder, Module, const
from bringup.loops.form import named_axis
from bringup_cuda.codegen.contraction.staging import GAPS, TileLayout
from bringup_cuda.codegen.contraction.tiles import CHUNK, SCALAR, TENSOR
from bringup_cuda.codegen.nvvm import SIMT
from bringup_cuda_emulator import run

#: Bytes of all banks.
BANKS = 128
EIGHT = 8


def places(layout: TileLayout) -> Array:
    """The offset of each element, by row or column and by inner element, as a kernel has it."""
    module = Module("nvptx64-nvidia-cuda")
    function = module.function(
        "places", ir.void, [("out", ir.pointer(1))], calling_convention="ptx_kernel"
    )
    b = Builder(function.block("entry"))
    memory = TileMemory(b, TileIndices(b, ir.i32), Registers(b, ()), SIMT)
    start = memory.pointers["tile"] = function.args[0]
    gap = 0 if layout.swizzled else layout.gap // layout.dtype.itemsize
    if layout.swizzled:
        memory.swizzled["tile"] = layout.length
    element, at = memory_type(layout.dtype), named_axis("at", layout.depth * layout.extent)
    own, inner = Expr.of(at) // layout.depth, Expr.of(at) % layout.depth
    line, within = (own, inner) if layout.inner_minor else (inner, own)
    index = line * (layout.length + gap) + within
    with b.loop(const(ir.i32, 0), const(ir.i32, at.size)) as loop:
        memory.indices.axes[at] = loop.index
        address = memory._address("tile", index, (), element)
        offset = b.sub(b.ptrtoint(address, ir.i64), b.ptrtoint(start, ir.i64))
        address = b.gep(start, b.zext(loop.index, ir.i64), ir.i32)
        b.store(b.trunc(offset, ir.i32), address, 4)
    b.ret()
    found = np.zeros((layout.extent, layout.depth), np.int32)
    run(str(module), "places", 1, 1, [found])
    return found


def layouts() -> list[TileLayout]:
    made: set[TileLayout] = set()
    for tile in TENSOR:
        for extent in (tile.rows, tile.columns):
            made.add(TileLayout(extent, tile.depth * 16, bfloat16, False, True))
            for dtype in (bfloat16, int8, float32):
                made.add(TileLayout(extent, tile.depth * 32 // dtype.itemsize, dtype, True, True))
    for tile in SCALAR:
        for extent in (tile.rows, tile.columns):
            for dtype in (float32, float64):
                made |= {
                    TileLayout(extent, tile.depth, dtype, minor, False) for minor in (True, False)
                }
    for depth in (16, 32, 64, 128):
        made.add(TileLayout(64, depth, bfloat16, True, True))
        made.add(TileLayout(64, depth, float32, True, False))
    return sorted(made, key=str)


@pytest.mark.parametrize("layout", layouts(), ids=str)
def test_places_and_banks(layout: TileLayout) -> None:
    at = places(layout)
    bytes_ = layout.dtype.itemsize
    assert len(np.unique(at)) == at.size
    assert at.min() >= 0
    assert at.max() + bytes_ <= layout.nbytes
    lines = at if layout.inner_minor else at.T
    chunks = lines[:, :: CHUNK // bytes_]
    assert (chunks % CHUNK == 0).all()
    # Eight lines at a time give a matrix, or the elements of eight threads.
    groups = chunks.reshape(-1, EIGHT, chunks.shape[1]) % BANKS // CHUNK
    conflicts = [EIGHT // len(set(column)) for group in groups for column in group.T]
    assert max(conflicts) == 1


@pytest.mark.parametrize("extent", sorted({n for t in TENSOR for n in (t.rows, t.columns)}))
@pytest.mark.parametrize(("gap", "apart"), [(GAPS[1], 1), (GAPS[0], 2)], ids=("next", "second"))
def test_words_that_a_warp_reads_at_once_lie_in_different_banks(
    extent: int, gap: int, apart: int
) -> None:
    """Eight rows or columns of four inner elements, next to each other or every second: a word of
    the fragments of tf32 for each lane.
    """
    layout = TileLayout(extent, 16, float32, False, False, gap=gap)
    at = places(layout)
    for inner in range(0, 16, 4 * apart):
        for own in range(0, extent, 8):
            words = at[own : own + 8, inner : inner + 4 * apart : apart] % BANKS // 4
            assert len(np.unique(words)) == 32
    chunks = at.T[:, ::4]
    assert (chunks % CHUNK == 0).all()
    assert at.max() + 4 <= layout.nbytes


@pytest.mark.parametrize("dtype", [bfloat16, int8], ids=str)
def test_lines_that_are_no_power_of_two_stay_in_their_line(dtype: DType) -> None:
    layout = TileLayout(32, 96 // dtype.itemsize, dtype, True, True)
    at = places(layout)
    assert (at // layout.stride == np.arange(32)[:, None]).all()
