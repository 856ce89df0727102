"""Functions with what is hard to render, as plain C, against the loop level's interpreter."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import samples
from functions import MEETING, TEXTS
from toolchain import Array, Compiled

from bringup.c import C11, METAL, OPENCL, geometry, render_all, render_c, scratch_bytes, units
from bringup.errors import UnsupportedError
from bringup.loops import Func, parse_func
from bringup.loops.evaluate import evaluate_func
from bringup.loops.verify import verify_func

#: Of the softmax: two ULP of each exponential, and a rounding for each of 600 sums, on both sides.
SOFTMAX_ERROR = 2 * (2 * 2 + 600) * 2.0**-24


#: Sums of products: of small whole numbers, whose order and roundings do not matter.
EXACT = ("unrolled", "vectors", "folded", *MEETING)


def arrays_of(func: Func, seed: int) -> list[Array]:
    """Arguments of every kind of value; outputs hold what no result is."""
    inputs = [samples.values(b.dtype, (b.size,), seed + n) for n, b in enumerate(func.inputs)]
    if func.name in EXACT:
        rng = np.random.default_rng(seed)
        inputs = [rng.integers(-9, 9, b.size).astype(b.dtype.numpy) for b in func.inputs]
    if func.name == "softmax":
        inputs = [np.linspace(-9, 9, 3600, dtype=np.float32)]
    outputs = [np.full(b.size * b.dtype.itemsize, 0xAA, np.uint8) for b in func.outputs]
    return [*inputs, *(o.view(b.dtype.numpy) for o, b in zip(outputs, func.outputs, strict=True))]


def check(func: Func, arrays: list[Array], seed: int) -> None:
    """The outputs among the arrays are those of the interpreter."""
    wanted = arrays_of(func, seed)
    evaluate_func(func, wanted)
    for got, want in zip(arrays, wanted, strict=True):
        if func.name == "softmax":
            np.testing.assert_allclose(got, want, rtol=SOFTMAX_ERROR)
        else:
            assert samples.same(got, want).all(), (func.name, got, want)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled([parse_func(text) for name, text in TEXTS.items() if name not in MEETING])


@pytest.mark.parametrize("name", TEXTS)
def test_functions_are_what_the_verifier_takes(name: str) -> None:
    verify_func(parse_func(TEXTS[name]))


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {*MEETING}))
def test_values(compiled: Compiled, name: str, parts: int) -> None:
    func = parse_func(TEXTS[name])
    arrays = arrays_of(func, parts)
    compiled.run(name, arrays, parts)
    check(func, arrays, parts)


def test_a_loop_that_is_one_condition_ends_where_it_is_false() -> None:
    assert re.search(r"k < k_end && more != 0; k\+\+", render_c(parse_func(TEXTS["powers"]), C11))


def test_a_call_of_no_units_writes_nothing(compiled: Compiled) -> None:
    arrays = arrays_of(parse_func(TEXTS["unrolled"]), 0)
    before = [a.copy() for a in arrays]
    compiled.call("unrolled", arrays, 7, 7)
    for a, b in zip(arrays, before, strict=True):
        assert samples.same(a, b).all()


def test_an_output_may_be_an_input() -> None:
    """Same memory, other dtype: nothing is assumed about aliases of equal size."""
    func = parse_func("""
func in_place(x: in f32[100], y: out i32[100], z: out f32[100]) {
  for i in 100 parallel {
    %0: f32 = x[i]
    %1: i32 = convert(%0) {dtype=i32}
    y[i] = %1
    %2: f32 = x[i]
    z[i] = %0
  }
}""")
    x = np.linspace(-50, 50, 100, dtype=np.float32)
    before, z = x.copy(), np.empty_like(x)
    assert "restrict" not in render_c(func, C11).partition("void in_place")[2]
    Compiled([func]).run("in_place", [x, x, z], parts=3)
    np.testing.assert_array_equal(x.view(np.int32), before.astype(np.int32))
    np.testing.assert_array_equal(z, before)


def test_vector_loops_mean_what_serial_ones_mean() -> None:
    """An iteration reads what the one before it wrote."""
    func = parse_func("""
func running(x: in f32[32], y: out f32[33]) {
  for i in 1 parallel {
    %0: f32 = 0.0
    y[0] = %0
    for j in 4 {
      for l in 8 vector {
        %1: f32 = x[8*j + l]
        %2: f32 = y[8*j + l]
        %3: f32 = add(%1, %2)
        y[8*j + l + 1] = %3
      }
    }
  }
}""")
    x, y = np.arange(32, dtype=np.float32), np.empty(33, np.float32)
    Compiled([func]).run("running", [x, y])
    np.testing.assert_array_equal(y[1:], np.cumsum(x))


def test_vector_loops_read_an_input_before_an_output_replaces_it() -> None:
    func = parse_func("""
func shifted(x: in f32[64], y: out f32[64], z: out f32[8]) {
  for i in 1 parallel {
    for j in 7 {
      for l in 8 vector {
        %0: f32 = x[8*j + l]
        %4: f32 = sub(%0, %0)
        y[8*j + l] = %4
        %1: f32 = x[8*j + l + 1]
        %2: f32 = add(%1, %1)
        z[l] = %2
        y[8*j + l] = %2
      }
    }
    for l in 8 vector {
      %3: f32 = x[l + 56]
      y[l + 56] = %3
    }
  }
}""")
    x, z = np.arange(64, dtype=np.float32), np.empty(8, np.float32)
    Compiled([func]).run("shifted", [x, x, z])
    np.testing.assert_array_equal(x[:56], 2 * np.arange(1, 57))


def transposed(down: int, across: int) -> Func:
    """``y = x.T``, of so many squares of four in each direction, a unit for each."""
    size, rows, columns = 16 * across * down, 4 * down, 4 * across
    units = {"i": (down, 4 * columns, 4), "j": (across, 4, 4 * rows)}
    loops = {name: each for name, each in units.items() if each[0] > 1}
    head = "".join(f"for {name} in {count} parallel {{\n" for name, (count, _, _) in loops.items())
    tail = "}\n" * len(loops)
    x, y = ("".join(f"{each[n]}*{name} + " for name, each in loops.items()) for n in (1, 2))
    return parse_func(f"""
func transposed(x: in f32[{size}], y: out f32[{size}]) {{
  {head}
  for u in 4 unroll {{
    for v in 4 vector {{
      %0: f32 = x[{x}u + {columns}*v]
      %1: f32 = add(%0, %0)
      y[{y}{rows}*u + v] = %1
    }}
  }}
  {tail}
}}""")


@pytest.mark.parametrize(("down", "across"), [(2, 2), (3, 1), (1, 3), (2, 3)])
def test_an_input_that_a_unit_reads_where_others_write_is_no_output(down: int, across: int) -> None:
    func = transposed(down, across)
    source = render_c(func, C11)
    assert "const float *restrict x" in source
    assert "bu_exchange2_f32x4(&square0_1, &square0_3);" in source
    arrays = arrays_of(func, 1)
    Compiled([func]).run("transposed", arrays, 2)
    check(func, arrays, 1)


def test_a_square_that_an_output_replaces_is_read_element_by_element() -> None:
    func = transposed(1, 1)
    assert "restrict" not in render_c(func, C11)
    x = np.arange(16, dtype=np.float32)
    wanted = x.copy()
    for u, v in np.ndindex(4, 4):
        wanted[4 * u + v] = 2 * wanted[u + 4 * v]
    Compiled([func]).run("transposed", [x, x])
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("x[i + 4]", "i + 2*j + 3*k"),  # steps that overlap
        ("x[i + 8]", "(4*i + j)//2 + 8*i"),  # not linear
        ("x[i + 9] if 0 <= i < 3", "4*i + j"),  # nothing where others write
        ("x[4*i + j + 16]", "4*i + j + 16"),
    ],
)
def test_an_input_that_may_be_an_output_is_not_said_to_be_none(read: str, written: str) -> None:
    func = parse_func(f"""
func f(x: in f32[40], y: out f32[40]) {{
  for i in 4 parallel {{
    for j in 4 {{
      for k in 2 {{
        %0: f32 = {read}
        y[{written}] = %0
      }}
    }}
  }}
}}""")
    assert "restrict" not in render_c(func, C11).partition("void f(")[2]


def test_indices_are_narrow_only_where_all_of_them_fit() -> None:
    text = "func f(y: out i8[{n}]) {{\n  for i in {n} parallel {{\n    %0: i8 = 1\n"
    text += "    y[i] = %0\n  }}\n}}"
    assert "for (int i = " in render_c(parse_func(text.format(n=1 << 20)), OPENCL)
    assert "for (long i = " in render_c(parse_func(text.format(n=1 << 30)), OPENCL)
    assert "for (int64_t i = " in render_c(parse_func(text.format(n=4)), C11)


def test_units_are_the_outermost_parallel_loops() -> None:
    assert units(parse_func(TEXTS["softmax"])) == 6
    assert units(parse_func("func f(y: out f32[0]) {\n  for i in 0 parallel {\n  }\n}")) == 0
    assert units(parse_func("func f(y: out f32[4]) {\n  for i in 4 {\n  }\n}")) == 1


def test_scratch_is_for_large_buffers() -> None:
    assert scratch_bytes(parse_func(TEXTS["softmax"]), C11) == 2432  # a multiple of 64
    assert scratch_bytes(parse_func(TEXTS["block_sum"]), C11) == 0


def test_geometry_is_that_of_blocks_and_threads() -> None:
    shape = geometry(parse_func(TEXTS["block_sum"]))
    assert (shape.blocks, shape.threads) == (16, 64)


def test_threads_that_do_not_meet_are_a_loop_of_plain_c() -> None:
    func = parse_func("""
func parted(x: in f32[8], y: out f32[8], z: out f32[2]) {
  for b in 2 block {
    %0: f32 = x[4*b]
    z[b] = %0
    for t in 4 thread {
      %1: f32 = x[4*b + t]
      y[4*b + t] = %1
    }
  }
}""")
    x, y, z = np.arange(8, dtype=np.float32), np.empty(8, np.float32), np.empty(2, np.float32)
    Compiled([func]).run("parted", [x, y, z], parts=2)
    assert (y.tolist(), z.tolist()) == (x.tolist(), [0.0, 4.0])


def test_threads_without_work_meet_the_others() -> None:
    """They write nothing that others see: the barrier stands outside of every condition."""
    source = render_c(parse_func(TEXTS["block_rest"]), OPENCL)
    before, after = source.split("barrier(", 1)
    conditions = "if (i_present) part[5 * t + i] = v0;", "if (i_present) y[5 * b + i] = v3;"
    assert conditions[0] in before
    assert conditions[1] in after
    # The function, the blocks, and a scope for each loop of threads are open.
    assert before.count("{") - before.count("}") == 4


def test_threads_that_meet_need_a_dialect_that_has_them() -> None:
    with pytest.raises(UnsupportedError, match="C11 has no threads"):
        render_c(parse_func(TEXTS["block_sum"]), C11)


def test_a_missing_dtype_is_said() -> None:
    func = parse_func("func f(y: out f64[1]) {\n  %0: f64 = 1.0\n  y[0] = %0\n}")
    with pytest.raises(UnsupportedError, match="METAL has no f64"):
        render_c(func, METAL)


def test_a_missing_op_is_said() -> None:
    func = parse_func(
        "func f(y: out f32[1]) {\n  %0: f32 = 1.0\n  %1: f32 = tanh(%0)\n  y[0] = %1\n}"
    )
    with pytest.raises(UnsupportedError, match="tanh has no rendering in OPENCL"):
        render_c(func, OPENCL)


def test_accumulators_are_vectors_where_there_are_types_of_them() -> None:
    func = parse_func(TEXTS["vectors"])
    source = render_c(func, C11)
    assert "bu_f32x8 acc_3 = {0};" in source
    assert "const bu_f32x8 v3 = v2 * (-1.0f);" in source
    assert "[32]" not in source
    assert "float acc[32];" in render_c(func, replace(C11, vector_bytes=16))
    assert "float acc[32];" in render_c(func, METAL)


def test_vectors_of_opencl_are_its_own() -> None:
    source = render_c(parse_func(TEXTS["vectors"]), OPENCL)
    assert "typedef float8 bu_f32x8;" in source
    assert "bu_f32x8 acc_3 = (bu_f32x8)(0);" in source
    assert "v8 = vload16(0, &h[16 * i]);" in source
    assert "acc_0 = fma(v5, (bu_f32x8)(v1), acc_0);" in source
    assert "memcpy" not in source
    assert "{0}" not in source


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("%0: f32 = x[j]\n%1: f32 = exp(%0)\ny[j] = %1", True),
        ("%0: f32 = x[j]\n%1: f32 = exp(%0)\ny[0] add= %1", False),
        ("alloc t: register f32[100]\n%0: f32 = x[j]\nt[j] = %0\n%1: f32 = t[j]\ny[j] = %1", False),
    ],
    ids=["own element", "common element", "common array"],
)
def test_lanes_touch_nothing_in_common_where_that_is_said(body: str, said: bool) -> None:
    func = parse_func(
        f"func f(x: in f32[100], y: inout f32[100]) {{\n  for j in 100 vector {{\n{body}\n  }}\n}}"
    )
    assert ("vectorize(assume_safety)" in render_c(func, OPENCL)) == said


def test_lanes_that_data_places_have_no_element_in_common() -> None:
    func = parse_func(
        """
func f(x: in f32[9], i: in i32[7], y: out f32[7]) {
  for j in 7 vector {
    %0: i32 = i[j]
    %1: f32 = x[d0[0:8]](%0) if 0 <= j < 5
    y[j] = %1
  }
}"""
    )
    x, i = np.arange(9, dtype=np.float32), np.arange(7, dtype=np.int32)[::-1].copy()
    y = np.zeros(7, np.float32)
    Compiled([func]).run("f", [x, i, y])
    assert y.tolist() == [6, 5, 4, 3, 2, 0, 0]


def test_functions_share_the_library() -> None:
    funcs = [parse_func(TEXTS[name]) for name in ("unrolled", "softmax")]
    source = render_all(funcs, C11)
    assert source.count("static inline float bu_max_f32(") == 1
    assert "bu_log" not in source


def test_what_no_result_depends_on_is_not_written() -> None:
    """Compilers warn of it: scalars, and buffers that are stored and never loaded."""
    func = parse_func(
        """
func f(x: in f32[4], y: out f32[4]) {
  alloc sum: register f32[1]
  alloc unused: register f32[1]
  %0: f32 = 0.0
  sum[0] = %0
  unused[0] = %0
  for i in 4 {
    %1: f32 = x[i]
    %2: f32 = sum[0]
    %3: f32 = mul(%2, %1)
    sum[0] add= %1
    unused[0] add= %3
    %4: f32 = sum[0]
    y[i] = %4
  }
}"""
    )
    source = render_c(func, C11)
    assert "unused" not in source
    assert re.findall(r"v\d", source) == ["v1", "v1", "v4", "v4"]
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    Compiled([func], flags=("-Wextra", "-Wno-unused-parameter")).run("f", [x, y])
    assert y.tolist() == [0, 1, 3, 6]
