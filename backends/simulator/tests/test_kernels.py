"""Kernels in the form fusion makes: elementwise, reductions, rows kept in scratchpad, gathers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bringup_simulator import (
    DTYPES,
    LANE,
    Accelerator,
    Assembler,
    Binding,
    CommandFailedError,
    CommandTimeoutError,
    GuardError,
    LimitError,
    Limits,
    OutOfBoundsError,
    Range,
    decode,
    encode,
    grid_axis,
)
from bringup_simulator.assembler import Place, Reg

W = 128
G0, G1 = grid_axis(0), grid_axis(1)


def launch(
    chip: Accelerator, asm: Assembler, grid: Sequence[int], *arrays: np.ndarray
) -> list[np.ndarray]:
    """Upload all arrays, run, download all."""
    buffers = [chip.alloc(array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        chip.upload(buffer, array)
    kernel = chip.load(encode(asm.finish()))
    chip.launch(kernel, [Binding(buffer) for buffer in buffers], grid)
    results = [np.empty_like(array) for array in arrays]
    for buffer, result in zip(buffers, results, strict=True):
        chip.download(buffer, result)
    chip.synchronize()
    for buffer in buffers:
        chip.free(buffer)
    return results


def saxpy(n: int, dtype: str = "f32") -> Assembler:
    asm = Assembler("saxpy")
    x, y = asm.param(dtype, n), asm.param(dtype, n)
    out = asm.param(dtype, n, writable=True)
    at = G0 * W + LANE
    tail = [Range(at, 0, n)]
    a, b = asm.load(x, at, ranges=tail), asm.load(y, at, ranges=tail)
    product = asm.alu("mul", a, asm.const(2, dtype))
    asm.store(out, at, asm.alu("add", product, b), ranges=tail)
    return asm


@pytest.mark.parametrize("n", [0, 1, 2, 127, 128, 129, 1025, 70_000])
def test_elementwise_with_a_masked_tail(n: int) -> None:
    chip = Accelerator()
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    out = launch(chip, saxpy(n), (-(-n // W),), x, y, np.zeros_like(x))[2]
    np.testing.assert_array_equal(out, 2 * x + y)
    counters = chip.counters
    assert (counters.kernel_read, counters.kernel_written) == (8 * n, 4 * n)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool" and not d.startswith("f8")])
def test_every_arithmetic_dtype_goes_through_memory(dtype: str) -> None:
    x = np.arange(40).astype(DTYPES[dtype])
    out = launch(Accelerator(), saxpy(40, dtype), (1,), x, x, np.zeros_like(x))[2]
    np.testing.assert_array_equal(out, x + x + x)


def test_70_000_elements_take_milliseconds() -> None:
    chip = Accelerator()
    n = 70_000
    buffers = [Binding(chip.alloc(4 * n)) for _ in range(3)]
    kernel = chip.load(encode(saxpy(n).finish()))
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        chip.launch(kernel, buffers, (-(-n // W),))
        chip.synchronize()
        best = min(best, time.perf_counter() - start)
    assert best < 0.1


def test_the_whole_grid_runs_in_row_major_coordinates() -> None:
    asm = Assembler("coordinates")
    out = asm.param("i64", 5 * 300 * 3, writable=True)
    g2 = grid_axis(2)
    at = G0 * 900 + G1 * 3 + g2
    value = asm.index(G0 * 1_000_000 + G1 * 1000 + g2)
    asm.store(out, at, value)
    got = launch(Accelerator(), asm, (5, 300, 3), np.zeros((5, 300, 3), np.int64))[0]
    i, j, k = np.indices(got.shape)
    np.testing.assert_array_equal(got, i * 1_000_000 + j * 1000 + k)


def test_a_transpose_is_an_index_map() -> None:
    rows, columns = 37, 53
    asm = Assembler("transpose")
    x = asm.param("u16", rows * columns)
    out = asm.param("u16", rows * columns, writable=True)
    tail = [Range(LANE, 0, rows)]
    asm.store(out, G0 * rows + LANE, asm.load(x, LANE * columns + G0, ranges=tail), ranges=tail)
    data = np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)
    got = launch(Accelerator(), asm, (columns,), data, np.zeros((columns, rows), np.uint16))[1]
    np.testing.assert_array_equal(got, data.T)


def test_a_pad_is_a_mask_and_a_reverse_a_negative_stride() -> None:
    asm = Assembler("padded reverse")
    x, out = asm.param("i8", 5), asm.param("i8", 10, writable=True)
    value = asm.load(x, LANE * -1 + 6, ranges=[Range(LANE, 2, 7)], fill=-9)
    asm.store(out, LANE, value, ranges=[Range(LANE, 0, 10)])
    data = np.arange(1, 6, dtype=np.int8)
    got = launch(Accelerator(), asm, (), data, np.zeros(10, np.int8))[1]
    assert got.tolist() == [-9, -9, 5, 4, 3, 2, 1, -9, -9, -9]


def test_a_gather_adds_a_register_to_its_address() -> None:
    asm = Assembler("gather")
    table, indices = asm.param("f32", 10), asm.param("i32", 6)
    out = asm.param("f32", 6, writable=True)
    tail = [Range(LANE, 0, 6)]
    index = asm.cast("convert", asm.load(indices, LANE, ranges=tail), "i64")
    valid = asm.alu("ge", index, asm.const(0, "i64"))
    value = asm.load(table, LANE * 0, index=index, mask=valid, fill=np.nan)
    asm.store(out, LANE, value, ranges=tail)
    where = np.array([9, 0, -1, 3, 3, -5], np.int32)
    data = np.arange(10, dtype=np.float32)
    got = launch(Accelerator(), asm, (), data, where, np.zeros(6, np.float32))[2]
    np.testing.assert_array_equal(got, [9, 0, np.nan, 3, 3, np.nan])


def rows_of(asm: Assembler, place: Place, n: int, fill: Any, base: Any) -> Any:
    """A loader of vector ``i`` of a row, masked beyond its end."""

    def load(i: Any) -> tuple[Reg, list[Range]]:
        tail = [Range(i * W + LANE, 0, n)]
        return asm.load(place, base + i * W + LANE, ranges=tail, fill=fill), tail

    return load


@pytest.mark.parametrize("n", [0, 1, 127, 129, 1000])
def test_two_reductions_share_one_read(n: int) -> None:
    asm = Assembler("sum and max")
    x = asm.param("f32", 7 * n)
    out = asm.param("f32", 14, writable=True)
    total, top = asm.const(0, "f32"), asm.const(-np.inf, "f32")
    with asm.loop(-(-n // W)) as i:
        tail = [Range(i * W + LANE, 0, n)]
        value = asm.load(x, G0 * n + i * W + LANE, ranges=tail)
        asm.alu("add", total, value, into=total)
        shown = asm.alu("select", asm.inside(tail), value, asm.const(-np.inf, "f32"))
        asm.alu("max", top, shown, into=top)
    asm.store(out, G0 * 2, asm.lanes("add", total))
    asm.store(out, G0 * 2 + 1, asm.lanes("max", top))
    data = -np.arange(1, 7 * n + 1, dtype=np.float32).reshape(7, n)
    chip = Accelerator()
    got = launch(chip, asm, (7,), data, np.zeros((7, 2), np.float32))[1]
    np.testing.assert_array_equal(got[:, 0], data.sum(1))
    np.testing.assert_array_equal(got[:, 1], data.max(1, initial=-np.inf))
    assert chip.counters.kernel_read == data.nbytes
    assert chip.counters.kernel_written == got.nbytes


def softmax(rows: int, n: int) -> Assembler:
    """Reduce, map into a tile, reduce, map: the row is read from memory once."""
    asm = Assembler("softmax")
    x, out = asm.param("f32", rows * n), asm.param("f32", rows * n, writable=True)
    row = asm.tile("f32", n)
    top, total = asm.const(-np.inf, "f32"), asm.const(0, "f32")
    trips = -(-n // W)
    with asm.loop(trips) as i:
        value, tail = rows_of(asm, x, n, -np.inf, G0 * n)(i)
        asm.store(row, i * W + LANE, value, ranges=tail)
        asm.alu("max", top, value, into=top)
    top = asm.lanes("max", top)
    with asm.loop(trips) as i:
        value, tail = rows_of(asm, row, n, -np.inf, LANE * 0)(i)
        value = asm.alu("exp", asm.alu("sub", value, top))
        asm.store(row, i * W + LANE, value, ranges=tail)
        asm.alu("add", total, value, into=total)
    total = asm.lanes("add", total)
    with asm.loop(trips) as i:
        value, tail = rows_of(asm, row, n, 0, LANE * 0)(i)
        asm.store(out, G0 * n + i * W + LANE, asm.alu("div", value, total), ranges=tail)
    return asm


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 128), (600, 300)])
def test_softmax_keeps_its_row_in_scratchpad(rows: int, n: int) -> None:
    chip = Accelerator()
    data = np.random.default_rng(0).standard_normal((rows, n)).astype(np.float32)
    got = launch(chip, softmax(rows, n), (rows,), data, np.zeros_like(data))[1]
    exact = np.exp(data.astype(np.float64))
    np.testing.assert_allclose(got, exact / exact.sum(1, keepdims=True), rtol=1e-5)
    assert chip.counters.kernel_read == chip.counters.kernel_written == data.nbytes


def test_a_contraction_with_bias_and_activation() -> None:
    m, n, k = 20, 150, 33
    asm = Assembler("relu(a@b+c)")
    a, b, c = asm.param("f32", m * k), asm.param("f32", k * n), asm.param("f32", n)
    out = asm.param("f32", m * n, writable=True)
    column = G1 * W + LANE
    tail = [Range(column, 0, n)]
    total = asm.load(c, column, ranges=tail)
    with asm.loop(k) as i:
        product = asm.alu("mul", asm.load(a, G0 * k + i), asm.load(b, i * n + column, ranges=tail))
        asm.alu("add", total, product, into=total)
    asm.store(out, G0 * n + column, asm.alu("max", total, asm.const(0, "f32")), ranges=tail)
    rng = np.random.default_rng(1)
    A, B, C = (rng.integers(-8, 8, s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
    got = launch(Accelerator(), asm, (m, 2), A, B, C, np.zeros((m, n), np.float32))[3]
    np.testing.assert_array_equal(got, np.maximum(A @ B + C, 0))


def test_bool_buffers_hold_bytes() -> None:
    asm = Assembler("not")
    x, out = asm.param("bool", 4), asm.param("bool", 4, writable=True)
    tail = [Range(LANE, 0, 4)]
    asm.store(out, LANE, asm.alu("not", asm.load(x, LANE, ranges=tail)), ranges=tail)
    data = np.array([True, False, False, True])
    got = launch(Accelerator(), asm, (), data, np.zeros(4, np.bool_))[1]
    assert got.view(np.uint8).tolist() == [0, 1, 1, 0]


def test_nested_loops_reuse_registers_without_mixing_values() -> None:
    asm = Assembler("nest")
    out = asm.param("i64", 1, writable=True)
    total, weight = asm.const(0, "i64"), asm.const(10, "i64")
    with asm.loop(3) as i:
        scaled = asm.alu("mul", asm.index(i), weight)
        with asm.loop(4) as j:
            asm.alu("add", total, asm.alu("add", scaled, asm.index(j)), into=total)
        asm.alu("add", total, asm.const(100, "i64"), into=total)
    asm.store(out, LANE * 0, total)
    assert asm.finish().registers <= 4
    got = launch(Accelerator(), asm, (), np.zeros(1, np.int64))[0]
    assert got[0] == sum(10 * i + j for i in range(3) for j in range(4)) + 300


def test_memory_a_kernel_did_not_write_is_poison() -> None:
    chip = Accelerator()
    x = chip.alloc(4 * 200)
    kernel = chip.load(encode(saxpy(100).finish()))
    chip.upload(x, bytes(800))
    out = chip.alloc(4 * 200)
    chip.launch(kernel, [Binding(x), Binding(x), Binding(out, 400)], (1,))
    got = np.empty(200, np.float32)
    chip.download(out, got)
    assert np.isnan(got[:100]).all()
    assert (got[100:] == 0).all()


def test_tiles_start_poisoned() -> None:
    asm = Assembler("uninitialised")
    out = asm.param("f32", 1, writable=True)
    asm.store(out, LANE * 0, asm.load(asm.tile("f32", 1), LANE * 0))
    assert np.isnan(launch(Accelerator(), asm, (), np.zeros(1, np.float32))[0][0])


def unmasked(n: int, shift: int = 0) -> Assembler:
    asm = Assembler("unmasked")
    out = asm.param("f32", n, writable=True)
    asm.store(out, G0 * W + LANE + shift, asm.const(1, "f32"))
    return asm


@pytest.mark.parametrize(("shift", "at"), [(0, "address 127"), (-1, "address -1")])
def test_stores_out_of_bounds_surface_at_the_wait(shift: int, at: str) -> None:
    with pytest.raises(CommandFailedError, match=f"unmasked: OutOfBoundsError: .*{at}") as caught:
        launch(Accelerator(), unmasked(127, shift), (1,), np.zeros(127, np.float32))
    assert isinstance(caught.value.__cause__, OutOfBoundsError)


def test_a_binding_ends_where_its_parameter_ends() -> None:
    chip = Accelerator()
    arena = chip.alloc(4096)
    chip.launch(chip.load(encode(unmasked(100).finish())), [Binding(arena)], (1,))
    with pytest.raises(CommandFailedError, match=r"allows \[0, 100\)"):
        chip.synchronize()


def test_loads_and_gathers_out_of_bounds_raise() -> None:
    for shift, index in ((5, None), (0, 5)):
        asm = Assembler("reach")
        x, out = asm.param("i8", 5), asm.param("i8", 1, writable=True)
        register = None if index is None else asm.const(index, "i64")
        asm.store(out, LANE * 0, asm.load(x, LANE * 0 + shift, index=register))
        with pytest.raises(CommandFailedError, match=r"reaches address 5 of p0"):
            launch(Accelerator(), asm, (), np.zeros(5, np.int8), np.zeros(1, np.int8))


def test_tiles_are_fenced() -> None:
    asm = Assembler("tile")
    tile = asm.tile("f32", 4)
    asm.store(tile, LANE, asm.const(1, "f32"))
    with pytest.raises(CommandFailedError, match=r"of t0, which allows \[0, 4\)"):
        launch(Accelerator(), asm, ())


def test_without_protection_the_guard_tells() -> None:
    chip = Accelerator(protect=False)
    with pytest.raises(CommandFailedError, match="4 bytes past the end, the nearest 1 away") as e:
        launch(chip, unmasked(127), (1,), np.zeros(127, np.float32))
    assert isinstance(e.value.__cause__, GuardError)
    # Far beyond the guard there is no memory to damage.
    with pytest.raises(CommandFailedError, match="OutOfBoundsError"):
        launch(chip, unmasked(127), (9,), np.zeros(127, np.float32))


def test_without_protection_a_neighbour_in_the_arena_is_hit() -> None:
    chip = Accelerator(protect=False)
    arena = chip.alloc(1024)
    chip.upload(arena, bytes(1024))
    chip.launch(chip.load(encode(unmasked(100).finish())), [Binding(arena)], (1,))
    got = np.empty(256, np.float32)
    chip.download(arena, got)
    assert got.tolist() == [1] * 128 + [0] * 128


def test_what_does_not_fit_is_refused_at_load() -> None:
    chip = Accelerator(limits=Limits(scratchpad=1024, buffers=2, registers=2, instructions=6))
    with pytest.raises(LimitError, match="needs 1200 bytes of scratchpad, the chip takes 1024"):
        chip.load(encode(softmax(1, 300).finish()))
    with pytest.raises(LimitError, match="3 buffers"):
        chip.load(encode(saxpy(1).finish()))
    crowded = Assembler("crowded")
    out = crowded.param("f32", 1, writable=True)
    values = [crowded.const(n, "f32") for n in range(3)]
    for value in values:
        crowded.store(out, LANE * 0, value)
    with pytest.raises(LimitError, match="3 registers"):
        chip.load(encode(crowded.finish()))
    long = Assembler("long")
    for n in range(7):
        long.const(n, "f32")
    with pytest.raises(LimitError, match="7 instructions"):
        chip.load(encode(long.finish()))


def test_launches_beyond_the_chip_are_refused_when_submitted(double: bytes) -> None:
    chip = Accelerator(limits=Limits(rank=2, elements=1000))
    kernel = chip.load(double)
    buffer = Binding(chip.alloc(1024))
    for bindings, grid, what in (
        ([buffer, buffer], (1, 1, 1), "3 grid axes"),
        ([buffer, buffer], (1001,), "1001 grid points"),
        ([buffer, buffer], (-1,), "does not suit"),
        ([buffer], (1,), "takes 2 buffers"),
        ([buffer, Binding(buffer.handle, 8)], (1,), "multiple of 16"),
    ):
        with pytest.raises(LimitError, match=what):
            chip.launch(kernel, bindings, grid)
    with pytest.raises(LimitError, match="does not suit a kernel of 1 axes"):
        chip.launch(chip.load(encode(unmasked(1).finish())), [buffer], ())


def test_the_watchdog_stops_a_runaway_kernel() -> None:
    chip = Accelerator(limits=Limits(watchdog=1000))
    asm = Assembler("runaway")
    with asm.loop(10**9), asm.loop(10**9):
        asm.const(1, "f32")
    chip.launch(chip.load(encode(asm.finish())), [], ())
    with pytest.raises(CommandFailedError, match="runaway") as caught:
        chip.synchronize()
    assert isinstance(caught.value.__cause__, CommandTimeoutError)


def test_other_widths_give_the_same_sums() -> None:
    data = np.arange(1000, dtype=np.float32)
    for width in (1, 4, 256):
        asm = Assembler("sum")
        x, out = asm.param("f32", 1000), asm.param("f32", 1, writable=True)
        total = asm.const(0, "f32")
        with asm.loop(-(-1000 // width)) as i:
            at = i * width + LANE
            asm.alu("add", total, asm.load(x, at, ranges=[Range(at, 0, 1000)]), into=total)
        asm.store(out, LANE * 0, asm.lanes("add", total))
        chip = Accelerator(limits=Limits(vector_width=width))
        assert launch(chip, asm, (), data, np.zeros(1, np.float32))[1][0] == 499_500
    with pytest.raises(ValueError, match="power of two"):
        Limits(vector_width=3)


def test_images_survive_the_binary_form() -> None:
    image = softmax(3, 200).finish()
    assert decode(encode(image)) == image
    assert encode(image) == encode(softmax(3, 200).finish())
