"""Small programs, each with one hazard that a careless compiler gets wrong: a rewrite that holds
for real numbers alone, a merge that ignores a difference, a loop shared by two outputs, memory that
is reused too early.

Random programs meet every hazard in the long run; these meet each of them in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType, bf16, f16, f32, f64, i8, i32, i64, u8, u32, u64
from bringup.graph import Builder, Value
from bringup.types import TensorType
from bringup_conformance.cases import Case, Unsupported
from bringup_conformance.execution.support import Support
from bringup_conformance.generate import (
    hazards_control,
    hazards_numbers,
    hazards_products,
    hazards_shapes,
)
from bringup_conformance.generate.choices import Choices, Stream
from bringup_conformance.generate.contractions import Sizes, far
from bringup_conformance.generate.programs import data_sets, program_case

Build = Callable[[Any], Sequence[Value]]
FLOATS = (f32, f16, f64, bf16)
NUMBERS = (f32, i32, f16)
#: What each table of programs is tried with, unless a row says otherwise.
TABLES: Sequence[tuple[Mapping[str, Build], Sequence[DType]]] = (
    (hazards_numbers.FLOATING, FLOATS),
    (hazards_numbers.NARROW, (f16, bf16, f32)),
    (hazards_numbers.INTEGER, (i32, i8, i64)),
    (hazards_numbers.SIGNED, (i32, u64, u32, u8)),
    (hazards_numbers.UNSIGNED, (u32, i64, i32, i8)),
    (hazards_numbers.WORDS, (u32,)),
    (hazards_shapes.PROGRAMS, NUMBERS),
    (hazards_control.PROGRAMS, NUMBERS),
    (hazards_products.PROGRAMS, (f32, bf16, i32, f64)),
    (hazards_numbers.SINGLE, (f32,)),
)
#: Names of all of them.
NAMES = tuple(name for table, _ in TABLES for name in table)
_KINDS = ("small", "signed", "special", "ramp")
#: More kinds for programs that hold an instruction of some op.
_SENSITIVE = {
    "near": {"compare", "max", "min", "clamp", "sort", "select"},
    "halfway": {"convert"},
    "tiny": {"div"},
}


@dataclass(slots=True)
class PatternInputs:
    """What a program is made of.

    w: the device's vector.  block: its block.  far: rows, columns and contracted indices of a
    product past its tiles, of a smaller one where few elements are wanted.
    choices: of constants.
    """

    builder: Builder
    dtype: DType
    w: int
    block: int
    far: Sizes
    choices: Choices

    def new(self, *shape: int, dtype: DType | None = None) -> Value:
        """A new input."""
        return self.builder.input(TensorType(shape, dtype or self.dtype))

    def row(self) -> Value:
        """A new input of one dimension, with a tail for any vector."""
        return self.new(2 * self.w + 3)

    def square(self) -> Value:
        """A new input whose transpose has its shape."""
        return self.new(self.w + 1, self.w + 1)

    def table(self) -> Value:
        """A new input of a few rows."""
        return self.new(5, 2 * self.w + 3)


def cases(
    support: Support, shapes: Shapes, name: str, seed: int, *, few: bool = False
) -> Iterator[Case | Unsupported]:
    """A program in the first of its dtypes and, unless few are wanted, in another, which the seed
    chooses.
    """
    build, dtypes = next((table[name], dtypes) for table, dtypes in TABLES if name in table)
    others = () if few else dtypes[1:]
    offset = seed + NAMES.index(name)
    for dtype in dict.fromkeys((dtypes[0], others[offset % len(others)] if others else dtypes[0])):
        w, block = max(shapes.vector, 4), min(shapes.block, 1024)
        sizes, choices = (w + 1, 7, 9) if few else far(shapes), Stream(seed, name, dtype.name)
        inputs = PatternInputs(Builder(), dtype, w, block, sizes, choices)
        yield _case(support, name, build, inputs, seed)


def _case(
    support: Support, name: str, build: Build, inputs: PatternInputs, seed: int
) -> Case | Unsupported:
    with inputs.builder as builder:
        outputs = build(inputs)
    graph = builder.build(outputs, name.replace("-", "_"))
    ops = {instr.op.name for instr in graph.instrs}
    kinds = (*_KINDS, *(kind for kind, those in _SENSITIVE.items() if ops & those))
    data, dtype = data_sets(graph, kinds, 16 * seed), inputs.dtype.name
    return program_case(support, graph, name, data, dtype=dtype, split=True, tags=("hazard",))
