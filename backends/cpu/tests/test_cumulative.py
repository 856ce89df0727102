"""Running folds as native code: all directions, dimensions and dtypes, at the sizes of vectors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import NUMERIC, DType, bf16, f16, f32, f64, i8, i64
from bringup.llvm.loops.library import emit_step
from bringup.llvm.text import Module
from bringup.ops.table import lookup
from bringup.program.program import OpStep, Slot
from bringup.target import Target
from bringup.types import TensorType

KINDS = ("add", "mul", "max", "min")
WAYS = list(itertools.product((False, True), repeat=2))


def running(kind: str, dim: int, reverse: bool, exclusive: bool) -> Any:
    return lambda x: ops.cumulative(x, kind=kind, dim=dim, reverse=reverse, exclusive=exclusive)


def values(kit: Any, kind: str, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Numbers whose folds are exact; products are of ones and minus ones."""
    x = kit.values(dtype, shape, 3)
    if kind != "mul":
        return x
    return np.where(x.astype(np.float32) < 0, -1, 1).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_small_whole_numbers_are_exact_in_every_dtype(kit: Any, kind: str, dtype: DType) -> None:
    shapes = (((37,), 0), ((3, 40), 1), ((21, 18), 0), ((2, 5, 70), 1), ((0, 3), 0))

    def build(*arrays: Any) -> list[Any]:
        made = []
        for x, (shape, dim) in zip(arrays, shapes, strict=True):
            reverse, exclusive = WAYS[len(shape) % 4]
            made.append(running(kind, dim, reverse, exclusive)(x))
            made.append(running(kind, dim, not reverse, not exclusive)(x))
        return made

    kit.equal(build, *(values(kit, kind, dtype, shape) for shape, _ in shapes))


@pytest.mark.parametrize(("reverse", "exclusive"), WAYS)
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 32, 33, 64, 100])
def test_every_length_round_a_vector(kit: Any, size: int, reverse: bool, exclusive: bool) -> None:
    forms = ((f32, (size,), 0), (i8, (3, size), 1), (f64, (4, size), 0))
    # Each kind sees two of the three forms, others at the next size.
    each = [
        (kind, *form)
        for k, kind in enumerate(KINDS)
        for n, form in enumerate(forms)
        if (size + k + n) % 3
    ]

    def build(*arrays: Any) -> list[Any]:
        pairs = zip(each, arrays, strict=True)
        return [running(kind, dim, reverse, exclusive)(x) for (kind, _, _, dim), x in pairs]

    kit.equal(build, *(values(kit, kind, dtype, shape) for kind, dtype, shape, _ in each))


@pytest.mark.parametrize(("reverse", "exclusive"), WAYS)
@pytest.mark.parametrize("shape", [(100_001,), (2, 70_000)], ids=str)
def test_long_lines_are_scanned_in_chunks(
    kit: Any, shape: tuple[int, ...], reverse: bool, exclusive: bool
) -> None:
    for kind, dtype in (("add", i64), ("max", f32), ("add", bf16)):
        x = values(kit, kind, dtype, shape) if dtype is not bf16 else np.zeros(shape, bf16.numpy)
        if dtype is bf16:
            x[..., ::1000] = 1  # the sums stay below 2^8, where bf16 holds them
        kit.equal(running(kind, len(shape) - 1, reverse, exclusive), x)


def test_half_floats_accumulate_in_f32(kit: Any) -> None:
    x = np.full(6000, 0.125, np.float16)
    (actual,), _ = kit.both(running("add", 0, False, False), x)
    assert actual[-1] == 750  # in f16 the sum would stop at 256
    assert kit.both(running("add", 0, False, False), x.astype(bf16.numpy))[0][0][-1] == 752


def test_special_values_on_the_way(kit: Any) -> None:
    x = np.array([1, -0.0, np.inf, 2, np.nan, -np.inf, 0] * 9, np.float32)
    arrays = [x.astype(t.numpy).reshape(s) for s in ((63,), (9, 7), (7, 9)) for t in (f32, f16)]
    for kind in KINDS:
        kit.equal(
            lambda *given, k=kind: [
                running(k, dim, *way)(y)
                for y, dim in zip(given, (0, 0, 0, 0, 1, 1), strict=True)
                for way in WAYS
            ],
            *arrays,
        )


def test_a_long_line_is_many_units() -> None:
    slot = Slot("input", 0, 0, TensorType((1 << 20,), f32))
    attrs = {"kind": "add", "dim": 0, "reverse": False, "exclusive": False}
    step = OpStep(lookup("cumulative"), attrs, (slot,), (slot,))
    totals, rows = emit_step(Module(), step, "long", Target(vector_bits=512, registers=32)).phases
    assert totals.units == rows.units == 32


def test_no_accumulator_sees_more_additions_than_are_declared() -> None:
    """Many lines keep the threads busy, but long ones are cut all the same."""
    attrs = {"kind": "add", "dim": 1, "reverse": False, "exclusive": False}
    for length, phases in ((1 << 17, 1), ((1 << 17) + 1, 2)):
        slot = Slot("input", 0, 0, TensorType((16, length), f32))
        step = OpStep(lookup("cumulative"), attrs, (slot,), (slot,))
        made = emit_step(Module(), step, "many", Target(vector_bits=512, registers=32))
        assert len(made.phases) == phases


def test_a_scan_stands_between_kernels(kit: Any) -> None:
    def build(x: Any) -> Any:
        made = ops.cumulative(ops.mul(x, x), kind="add", dim=1)
        return ops.reduce(ops.neg(made), kind="max", dims=(0,))

    kit.exact(build, kit.values(f32, (20, 100), 1))
