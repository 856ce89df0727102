"""Kernels in the form fusion makes: elementwise, reductions, rows kept in scratchpad, gathers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bringup_simulator import (
    DTYPES,
    Accelerator,
    Binding,
    CommandFailedError,
    CommandTimeoutError,
    GuardError,
    LimitError,
    Limits,
    OutOfBoundsError,
)


def launch(chip: Accelerator, text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Upload all arrays, run, download all."""
    buffers = [chip.alloc(array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        chip.upload(buffer, array)
    chip.launch(chip.load(text, "k"), [Binding(buffer) for buffer in buffers])
    results = [np.empty_like(array) for array in arrays]
    for buffer, result in zip(buffers, results, strict=True):
        chip.download(buffer, result)
    chip.synchronize()
    for buffer in buffers:
        chip.free(buffer)
    return results


def saxpy(n: int, dtype: str = "f32") -> str:
    return (
        f"x = input({dtype}, {n})\n"
        f"y = input({dtype}, {n})\n"
        f"out = output({dtype}, {n})\n"
        f"i = grid(lanes({n}))\n"
        "a = load(x, i)\n"
        "b = load(y, i)\n"
        f"product = mul(a, const(2, {dtype}))\n"
        "store(out, i, add(product, b))\n"
    )


@pytest.mark.parametrize("n", [0, 1, 2, 127, 128, 129, 1025, 70_000])
def test_elementwise_with_a_masked_tail(n: int) -> None:
    chip = Accelerator()
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    out = launch(chip, saxpy(n), x, y, np.zeros_like(x))[2]
    np.testing.assert_array_equal(out, 2 * x + y)
    counters = chip.counters
    assert (counters.kernel_read, counters.kernel_written) == (8 * n, 4 * n)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool" and not d.startswith("f8")])
def test_every_arithmetic_dtype_goes_through_memory(dtype: str) -> None:
    x = np.arange(40).astype(DTYPES[dtype])
    out = launch(Accelerator(), saxpy(40, dtype), x, x, np.zeros_like(x))[2]
    np.testing.assert_array_equal(out, x + x + x)


def test_70_000_elements_take_milliseconds() -> None:
    chip = Accelerator()
    n = 70_000
    buffers = [Binding(chip.alloc(4 * n)) for _ in range(3)]
    kernel = chip.load(saxpy(n), "saxpy")
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        chip.launch(kernel, buffers)
        chip.synchronize()
        best = min(best, time.perf_counter() - start)
    assert best < 0.1


def test_the_whole_grid_runs_in_row_major_coordinates() -> None:
    text = (
        "out = output(i64, 4500)\n"
        "a = grid(5)\n"
        "b = grid(300)\n"
        "c = grid(3)\n"
        "store(out, a*900 + b*3 + c, index(1000000*a + 1000*b + c))\n"
    )
    got = launch(Accelerator(), text, np.zeros((5, 300, 3), np.int64))[0]
    i, j, k = np.indices(got.shape)
    np.testing.assert_array_equal(got, i * 1_000_000 + j * 1000 + k)


def test_a_transpose_is_an_index_map() -> None:
    rows, columns = 37, 53
    text = (
        f"x = input(u16, {rows * columns})\n"
        f"out = output(u16, {rows * columns})\n"
        f"j = grid({columns})\n"
        f"for i in lanes({rows}):\n"
        f"    store(out, {rows}*j + i, load(x, i*{columns} + j))\n"
    )
    data = np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)
    got = launch(Accelerator(), text, data, np.zeros((columns, rows), np.uint16))[1]
    np.testing.assert_array_equal(got, data.T)


def test_a_pad_is_a_condition_and_a_reverse_a_negative_stride() -> None:
    text = (
        "x = input(i8, 5)\n"
        "out = output(i8, 10)\n"
        "i = grid(lanes(10))\n"
        "held = inside(i, 2, 7)\n"
        "v = load(x, 6 + -1*i, held)\n"
        "store(out, i, select(held, v, const(-9, i8)))\n"
    )
    data = np.arange(1, 6, dtype=np.int8)
    got = launch(Accelerator(), text, data, np.zeros(10, np.int8))[1]
    assert got.tolist() == [-9, -9, 5, 4, 3, 2, 1, -9, -9, -9]


def test_a_masked_load_gives_zero() -> None:
    text = (
        "x = input(f32, 4)\n"
        "out = output(f32, 8)\n"
        "i = grid(lanes(8))\n"
        "store(out, i, load(x, i - 2, inside(i, 2, 6), inside(i, 0, 5)))\n"
    )
    data = np.float32([1, 2, 3, 4])
    got = launch(Accelerator(), text, data, np.full(8, 9, np.float32))[1]
    assert got.tolist() == [0, 0, 1, 2, 3, 0, 0, 0]


def test_quotients_and_remainders_in_indices() -> None:
    text = (
        "out = output(i64, 9)\n"
        "i = grid(lanes(9))\n"
        "store(out, i, index((i - 4) // 2 * 10 + (i - 4) % 2))\n"
    )
    got = launch(Accelerator(), text, np.zeros(9, np.int64))[0]
    assert got.tolist() == [(n - 4) // 2 * 10 + (n - 4) % 2 for n in range(9)]


def test_a_gather_has_a_value_in_its_index() -> None:
    text = (
        "table = input(f32, 20)\n"
        "indices = input(i32, 6)\n"
        "out = output(f32, 6)\n"
        "i = grid(lanes(6))\n"
        "n = load(indices, i)\n"
        "held = ge(n, const(0, i32))\n"
        "twice = mul(n, const(2, i32))\n"
        "store(out, i, load(table, 1 + 0*i + twice, held))\n"
    )
    where = np.array([9, 0, -1, 3, 3, -5], np.int32)
    data = np.arange(20, dtype=np.float32)
    got = launch(Accelerator(), text, data, where, np.zeros(6, np.float32))[2]
    np.testing.assert_array_equal(got, [19, 1, 0, 7, 7, 0])


@pytest.mark.parametrize("n", [0, 1, 127, 129, 1000])
def test_two_reductions_share_one_read(n: int) -> None:
    text = (
        f"x = input(f32, {7 * n})\n"
        "out = output(f32, 14)\n"
        "row = grid(7)\n"
        "total = const(0.0, f32)\n"
        "top = const(-inf, f32)\n"
        f"for i in lanes({n}):\n"
        f"    v = load(x, {n}*row + i)\n"
        "    total = accumulate(add, total, v)\n"
        "    top = accumulate(max, top, v)\n"
        "store(out, 2*row, reduce_lanes(add, total))\n"
        "store(out, 2*row + 1, reduce_lanes(max, top))\n"
    )
    data = -np.arange(1, 7 * n + 1, dtype=np.float32).reshape(7, n)
    chip = Accelerator()
    got = launch(chip, text, data, np.zeros((7, 2), np.float32))[1]
    np.testing.assert_array_equal(got[:, 0], data.sum(1))
    np.testing.assert_array_equal(got[:, 1], data.max(1, initial=-np.inf))
    assert chip.counters.kernel_read == data.nbytes
    assert chip.counters.kernel_written == got.nbytes


def softmax(rows: int, n: int) -> str:
    """Reduce, map into a tile, reduce, map: the row is read from memory once."""
    return (
        f"x = input(f32, {rows * n})\n"
        f"out = output(f32, {rows * n})\n"
        f"row = tile(f32, {n})\n"
        f"r = grid({rows})\n"
        "top = const(-inf, f32)\n"
        f"for i in lanes({n}):\n"
        f"    v = load(x, {n}*r + i)\n"
        "    store(row, i, v)\n"
        "    top = accumulate(max, top, v)\n"
        "top = reduce_lanes(max, top)\n"
        "total = const(0.0, f32)\n"
        f"for i in lanes({n}):\n"
        "    v = exp(sub(load(row, i), top))\n"
        "    store(row, i, v)\n"
        "    total = accumulate(add, total, v)\n"
        "total = reduce_lanes(add, total)\n"
        f"for i in lanes({n}):\n"
        f"    store(out, {n}*r + i, div(load(row, i), total))\n"
    )


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 128), (600, 300)])
def test_softmax_keeps_its_row_in_scratchpad(rows: int, n: int) -> None:
    chip = Accelerator()
    data = np.random.default_rng(0).standard_normal((rows, n)).astype(np.float32)
    got = launch(chip, softmax(rows, n), data, np.zeros_like(data))[1]
    exact = np.exp(data.astype(np.float64))
    np.testing.assert_allclose(got, exact / exact.sum(1, keepdims=True), rtol=1e-5)
    assert chip.counters.kernel_read == chip.counters.kernel_written == data.nbytes


def test_tiles_belong_to_their_point() -> None:
    text = (
        "out = output(i64, 1200)\n"
        "t = tile(i64, 4)\n"
        "p = grid(300)\n"
        "for i in range(4):\n"
        "    store(t, (i + p) % 4, index(p*10 + i))\n"
        "for i in range(4):\n"
        "    store(out, 4*p + i, load(t, i))\n"
    )
    got = launch(Accelerator(), text, np.zeros((300, 4), np.int64))[0]
    expected = [[10 * p + (i - p) % 4 for i in range(4)] for p in range(300)]
    assert got.tolist() == expected


def test_a_contraction_with_bias_and_activation() -> None:
    m, n, k = 20, 150, 33
    text = (
        f"a = input(f32, {m * k})\n"
        f"b = input(f32, {k * n})\n"
        f"c = input(f32, {n})\n"
        f"out = output(f32, {m * n})\n"
        f"row = grid({m})\n"
        f"column = grid(lanes({n}))\n"
        "total = load(c, column)\n"
        f"for i in range({k}):\n"
        f"    product = mul(load(a, row*{k} + i), load(b, i*{n} + column))\n"
        "    total = accumulate(add, total, product)\n"
        f"store(out, row*{n} + column, max(total, const(0.0, f32)))\n"
    )
    rng = np.random.default_rng(1)
    A, B, C = (rng.integers(-8, 8, s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
    got = launch(Accelerator(), text, A, B, C, np.zeros((m, n), np.float32))[3]
    np.testing.assert_array_equal(got, np.maximum(A @ B + C, 0))


def test_bool_buffers_hold_bytes() -> None:
    text = (
        "x = input(bool, 4)\n"
        "out = output(bool, 4)\n"
        "i = grid(lanes(4))\n"
        "store(out, i, xor(load(x, i), const(True, bool)))\n"
    )
    data = np.array([True, False, False, True])
    got = launch(Accelerator(), text, data, np.zeros(4, np.bool_))[1]
    assert got.view(np.uint8).tolist() == [0, 1, 1, 0]


def test_nested_loops_do_not_mix_values() -> None:
    text = (
        "out = output(i64, 1)\n"
        "total = const(0, i64)\n"
        "weight = const(10, i64)\n"
        "for i in range(3):\n"
        "    scaled = mul(index(i), weight)\n"
        "    for j in range(4):\n"
        "        total = add(total, add(scaled, index(j)))\n"
        "    total = add(total, const(100, i64))\n"
        "store(out, 0, total)\n"
    )
    got = launch(Accelerator(), text, np.zeros(1, np.int64))[0]
    assert got[0] == sum(10 * i + j for i in range(3) for j in range(4)) + 300


def test_memory_a_kernel_did_not_write_is_poison() -> None:
    chip = Accelerator()
    x = chip.alloc(4 * 200)
    chip.upload(x, bytes(800))
    out = chip.alloc(4 * 200)
    chip.launch(chip.load(saxpy(100), "k"), [Binding(x), Binding(x), Binding(out, 400)])
    got = np.empty(200, np.float32)
    chip.download(out, got)
    assert np.isnan(got[:100]).all()
    assert (got[100:] == 0).all()


def test_tiles_start_poisoned() -> None:
    text = "out = output(f32, 1)\nt = tile(f32, 1)\nstore(out, 0, load(t, 0))\n"
    assert np.isnan(launch(Accelerator(), text, np.zeros(1, np.float32))[0][0])


def overrun(n: int, shift: int = 0, vectors: int = 1) -> str:
    """Full vectors of ones, whatever the size of the parameter."""
    return (
        f"out = output(f32, {n})\n"
        f"i = grid(lanes({128 * vectors}))\n"
        f"store(out, i + {shift}, const(1.0, f32))\n"
    )


@pytest.mark.parametrize(("shift", "at"), [(0, "element 127"), (-1, "element -1")])
def test_stores_out_of_bounds_surface_at_the_wait(shift: int, at: str) -> None:
    with pytest.raises(CommandFailedError, match=f"k: OutOfBoundsError: store reaches {at}") as e:
        launch(Accelerator(), overrun(127, shift), np.zeros(127, np.float32))
    assert isinstance(e.value.__cause__, OutOfBoundsError)


def test_a_binding_ends_where_its_parameter_ends() -> None:
    chip = Accelerator()
    arena = chip.alloc(4096)
    chip.launch(chip.load(overrun(100), "k"), [Binding(arena)])
    with pytest.raises(CommandFailedError, match=r"parameter 0, which allows \[0, 100\)"):
        chip.synchronize()


def test_loads_and_gathers_out_of_bounds_raise() -> None:
    for index in ("5", "const(5, i64)", "5 * (1 + grid(1))"):
        text = f"x = input(i8, 5)\nout = output(i8, 1)\nstore(out, 0, load(x, {index}))\n"
        with pytest.raises(CommandFailedError, match="load reaches element 5 of parameter 0"):
            launch(Accelerator(), text, np.zeros(5, np.int8), np.zeros(1, np.int8))


def test_lanes_that_are_masked_off_may_be_out_of_bounds() -> None:
    text = (
        "x = input(f32, 5)\n"
        "out = output(f32, 5)\n"
        "i = grid(lanes(300))\n"
        "store(out, i, load(x, i, inside(i, 0, 5)), inside(i, 0, 5))\n"
    )
    data = np.arange(5, dtype=np.float32)
    assert launch(Accelerator(), text, data, np.zeros_like(data))[1].tolist() == data.tolist()


def test_tiles_are_fenced() -> None:
    text = "t = tile(f32, 4)\nfor i in lanes(5):\n    store(t, i, const(1.0, f32))\n"
    with pytest.raises(CommandFailedError, match=r"element 4 of tile 1, which allows \[0, 4\)"):
        launch(Accelerator(), text)


def test_without_protection_the_guard_tells() -> None:
    chip = Accelerator(protect=False)
    with pytest.raises(CommandFailedError, match="4 bytes past the end, the nearest 1 away") as e:
        launch(chip, overrun(127), np.zeros(127, np.float32))
    assert isinstance(e.value.__cause__, GuardError)
    # Far beyond the guard there is no memory to damage.
    with pytest.raises(CommandFailedError, match="OutOfBoundsError"):
        launch(chip, overrun(127, vectors=9), np.zeros(127, np.float32))


def test_without_protection_a_neighbour_in_the_arena_is_hit() -> None:
    chip = Accelerator(protect=False)
    arena = chip.alloc(1024)
    chip.upload(arena, bytes(1024))
    chip.launch(chip.load(overrun(100), "k"), [Binding(arena)])
    got = np.empty(256, np.float32)
    chip.download(arena, got)
    assert got.tolist() == [1] * 128 + [0] * 128


def test_launches_beyond_the_chip_are_refused_when_submitted(double: str) -> None:
    chip = Accelerator()
    kernel = chip.load(double, "double")
    buffer = Binding(chip.alloc(1024))
    for bindings, what in (
        ([buffer], "takes 2 buffers, not 1"),
        ([buffer, Binding(buffer.handle, 8)], "multiple of 16"),
    ):
        with pytest.raises(LimitError, match=what):
            chip.launch(kernel, bindings)


def test_the_watchdog_stops_a_runaway_kernel() -> None:
    chip = Accelerator(limits=Limits(watchdog=1000))
    text = "for i in range(1000000000):\n    for j in range(1000000000):\n        index(j)\n"
    chip.launch(chip.load(text, "runaway"), [])
    with pytest.raises(CommandFailedError, match="runaway") as caught:
        chip.synchronize()
    assert isinstance(caught.value.__cause__, CommandTimeoutError)


@pytest.mark.parametrize("width", [1, 4, 256])
def test_other_widths_give_the_same_sums(width: int) -> None:
    data = np.arange(1000, dtype=np.float32)
    text = (
        "x = input(f32, 1000)\n"
        "out = output(f32, 1)\n"
        "total = const(0.0, f32)\n"
        "for i in lanes(1000):\n"
        "    total = accumulate(add, total, load(x, i))\n"
        "store(out, 0, reduce_lanes(add, total))\n"
    )
    chip = Accelerator(limits=Limits(vector_width=width))
    assert launch(chip, text, data, np.zeros(1, np.float32))[1][0] == 499_500


def test_a_value_is_the_same_in_every_lane_until_it_is_reduced() -> None:
    text = (
        "out = output(i64, 2)\n"
        "total = const(0, i64)\n"
        "one = const(1, i64)\n"
        "for i in lanes(300):\n"
        "    total = accumulate(add, total, one)\n"
        "store(out, 0, reduce_lanes(add, total))\n"
        "for i in lanes(256):\n"
        "    one = accumulate(mul, one, one)\n"
        "store(out, 1, reduce_lanes(add, one))\n"
    )
    assert launch(Accelerator(), text, np.zeros(2, np.int64))[0].tolist() == [300, 128]


def test_constants_keep_the_sign_of_zero() -> None:
    text = "out = output(f32, 1)\nstore(out, 0, const(-0.0, f32))\n"
    assert np.signbit(launch(Accelerator(), text, np.ones(1, np.float32))[0][0])
