"""Programs of a single op step, run on the emulator and compared with the table's reference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from emulated import Array, run_program

from bringup.dtypes import STORED
from bringup.ops.table import find
from bringup.program.program import OpStep, Program, Slot
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Translated
from bringup_cuda.codegen.lower import translate

_DTYPES = {dtype.numpy: dtype for dtype in STORED}
# Blocks and threads take another order in each run, the same in each run of the tests.
_seeds = count()


def program_of(name: str, types: Sequence[TensorType], attrs: dict[str, Any]) -> Program:
    """A program of one step of a row, which ``attrs`` say what is no default of."""
    row = find(name)
    assert row is not None
    whole = {a.name: attrs.get(a.name, a.default) for a in row.attrs}
    results = row.result_types(tuple(types), whole)
    operands = tuple(Slot("input", n, 0, t) for n, t in enumerate(types))
    slots = tuple(Slot("output", n, 0, t) for n, t in enumerate(results))
    step = OpStep(row, whole, operands, slots)
    return Program(name, tuple(types), results, (step,))


def lowered(
    name: str, types: Sequence[TensorType], architecture: str = "sm_90", **attrs: Any
) -> Translated:
    return translate(program_of(name, types, attrs), architecture)


def run_step(
    name: str, arrays: Sequence[Array], **attrs: Any
) -> tuple[list[Array], tuple[Array, ...]]:
    """The results of a step, and those of the reference."""
    types = [TensorType(x.shape, _DTYPES[x.dtype]) for x in arrays]
    program = program_of(name, types, attrs)
    step = program.steps[0]
    assert isinstance(step, OpStep)
    made = run_program(program, translate(program, "sm_90"), arrays, seed=next(_seeds) % 4)
    wanted = find(name).reference(*arrays, **step.attrs)  # type: ignore[union-attr]
    return made, wanted if isinstance(wanted, tuple) else (wanted,)


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def assert_same_bits(made: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(made, wanted, strict=True):
        assert one.dtype == np.asarray(other).dtype
        assert np.array_equal(bits(one), bits(other))


def assert_equal(made: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Equal as numbers; any NaN equals any other."""
    for one, other in zip(made, wanted, strict=True):
        if one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_array_equal(one.astype(np.float64), np.float64(other))
