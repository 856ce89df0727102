"""Random typed programs in the shapes that fuse: valid by construction, and smaller for smaller
choices, so that they shrink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from bringup.dtypes import BY_NAME, DType, f32
from bringup.graph import Graph, Value
from bringup.records import record
from bringup_conformance.cases import PROGRAMS, Case, Unsupported
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.choices import Choices, chance, pick, weighted
from bringup_conformance.generate.program_builder import GenConfig, ProgramBuilder
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.generate.sizes import LARGE, draw_shape
from bringup_conformance.generate.steps import STEPS

#: Outputs of a program.
MOST_OUTPUTS = 4
_WEIGHTS = {
    "f32": 9, "f16": 3, "bf16": 3, "f64": 2, "i32": 3, "i64": 1, "u8": 1, "i8": 1, "u32": 1,
    "i16": 1, "u16": 1, "u64": 1, "bool": 1,
}  # fmt: skip
_LENGTHS = ((6, (1, 4)), (6, (3, 8)), (4, (6, 16)), (2, (12, 40)))


@record
class Program:
    """A graph and its data: sets of one recipe for each input."""

    graph: Graph
    data: tuple[tuple[Recipe, ...], ...]

    def case(self, level: str, exact: bool, number: int) -> Case:
        """The program as a case of a level.  exact: whether its results are known bit for bit."""
        dtype = self.graph.outputs[0].dtype.name
        return Case(
            name=f"{level}/{PROGRAMS}/{dtype}/{number}",
            level=level,
            op=PROGRAMS,
            dtype=dtype,
            graph=self.graph,
            data=self.data,
            split=True,
            tags=("exact" if exact else "bounded",),
        )


def data_sets(
    graph: Graph, kinds: Sequence[str], seed: int, *, step: int = 0
) -> tuple[tuple[Recipe, ...], ...]:
    """A set of data of each kind.  step: how far the seeds of one set lie from those before."""
    return tuple(
        tuple(Recipe(kind, seed + step * number + i) for i in range(len(graph.inputs)))
        for number, kind in enumerate(kinds)
    )


def program_case(
    support: Support,
    graph: Graph,
    slug: str,
    data: tuple[tuple[Recipe, ...], ...],
    *,
    level: str = "fusion",
    dtype: str = "f32",
    split: bool = False,
    tags: tuple[str, ...] = (),
) -> Case | Unsupported:
    """A case of a program, if it can run.  slug: the last part of its name."""
    name = f"{level}/{PROGRAMS}/{dtype}/{slug}"
    reason = support.reason_of(graph)
    if reason is not None:
        return Unsupported(name, level, PROGRAMS, dtype, reason)
    return Case(name, level, PROGRAMS, dtype, graph, data, split=split, tags=tags)


def usable_dtypes(support: Support) -> tuple[tuple[int, DType], ...]:
    """The dtypes a target can at least move and choose between, by weight."""
    from bringup.ops.table import lookup

    reshape = lookup("reshape")
    return tuple(
        (weight, BY_NAME[name])
        for name, weight in _WEIGHTS.items()
        if support.has(reshape, (BY_NAME[name][2],), {"shape": (2, 1)})
    )


def draw_program(choices: Choices, config: GenConfig, *, large: bool = False) -> Program:
    """A program and its data.  large: few instructions on arrays of more elements than any block or
    16-bit counter.
    """
    low, high = (1, 5) if large else weighted(choices, _LENGTHS)
    length = choices.integer(low, high)
    if large:
        config = replace(config, limit=max(config.limit, LARGE[-1]))
    program = ProgramBuilder(choices, config)
    _start(program, large)
    for _ in range(4 * length + 6):
        if sum(_computes(v) for v in program.values) >= length:
            break
        wanted, step = weighted(choices, STEPS)
        start = program.find(wanted)
        if start is not None:
            step(program, start)
    graph, recipes = program.finished(_outputs(program))
    return Program(graph, tuple(_data_sets(choices, config, recipes)))


def _start(program: ProgramBuilder, large: bool) -> None:
    """The first input, and sometimes a second of the same type or of its transpose."""
    choices, config = program.choices, program.config
    dtype = weighted(choices, config.dtypes) if config.dtypes else f32
    if large:
        size = pick(choices, LARGE[1:])
        shape: tuple[int, ...] = pick(choices, ((size,), (2, size // 2), (size // 8, 8)))
    else:
        rank = weighted(choices, ((5, 2), (4, 1), (2, 3), (1, 0)))
        shape = draw_shape(choices, config.shapes, rank=rank, limit=config.limit)
        if rank == 2 and chance(choices, 1, 4):
            # Squares hide nothing but sizes: swapped dimensions show in their contents.
            n = min(shape[1], math.isqrt(config.limit))
            shape = (n, n)
    first = program.input(dtype[shape])
    if first is not None and chance(choices, 1, 2):
        program.input(first.type.with_shape(pick(choices, (shape, shape[::-1]))))


def _outputs(program: ProgramBuilder) -> list[Value]:
    """The last value, other ends of chains, and now and then a value that is read inside too."""
    computed = [v for v in program.values if _computes(v)]
    if not computed:
        return program.values[:1]
    read = {v for value in computed if value.producer for v in value.producer.operands}
    outputs = computed[-1:]
    if chance(program.choices, 1, 2):
        outputs += [v for v in reversed(computed[:-1]) if v not in read][: MOST_OUTPUTS - 2]
    if chance(program.choices, 1, 3):
        inner = [v for v in computed if v in read and v not in outputs]
        outputs += inner[-1:]
    return outputs


def _computes(value: Value) -> bool:
    return value.producer is not None and value.literal is None


def _data_sets(
    choices: Choices, config: GenConfig, recipes: tuple[Recipe, ...]
) -> list[tuple[Recipe, ...]]:
    """The data the program was grown on, the same kinds drawn again, each input's kind for the
    next, and now and then special values.
    """
    again = tuple(replace(r, seed=r.seed + 16) for r in recipes)
    sets = [recipes, again]
    if len(recipes) > 1:
        kinds = (*(r.kind for r in recipes[1:]), recipes[0].kind)
        pairs = zip(recipes, kinds, strict=True)
        sets.append(tuple(replace(r, kind=kind, seed=r.seed + 32) for r, kind in pairs))
    if not config.exact and chance(choices, 1, 2):
        sets.append(tuple(replace(r, kind="special") for r in recipes))
    return sets
