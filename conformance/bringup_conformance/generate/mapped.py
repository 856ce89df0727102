"""Programs batched by `vmap`, beside the same programs run on one example after the other: both
must give the results of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bringup.dtypes import DType
from bringup.graph import Builder, Graph, Value, replay
from bringup.ops.build import reshape, rows, slice_dim
from bringup.ops.table import OpDef
from bringup.tracing.batching import batch_graph
from bringup_conformance.cases import Case, Instance, Unsupported, keeps_bits
from bringup_conformance.execution.support import Support, single
from bringup_conformance.generate.choices import Stream
from bringup_conformance.generate.program_builder import GenConfig
from bringup_conformance.generate.programs import draw_program, program_case
from bringup_conformance.generate.recipes import Recipe

#: Examples of a program.
EXAMPLES = 3
#: Dimensions that every device takes.
RANK = 8
#: Elements of the largest operand of one example.
MOST = 700


def mapped_program(config: GenConfig, level: str, seed: int, number: int) -> Case | Unsupported:
    """A random program, each of whose inputs has examples or is shared."""
    choices = Stream(seed, "mapped", number)
    program = draw_program(choices, replace(config, limit=min(config.limit, MOST)))
    graph = side_by_side([(program.graph, _flags(len(program.graph.inputs), number))])
    dtype, slug = program.graph.outputs[0].dtype.name, f"mapped-{number}"
    return program_case(
        config.support, graph, slug, program.data[:2], level=level, dtype=dtype, tags=("mapped",)
    )


def row_cases(
    support: Support, row: OpDef, dtype: DType, level: str, usable: Sequence[Instance], seed: int
) -> Iterator[Case | Unsupported]:
    """A row with examples of some operands; with as many dimensions as arrays may have; and with no
    example at all.
    """
    small = [i for i in usable if i.operands and all(t.size <= MOST for t in i.operands)]
    if not small:
        return
    chosen = [small[n] for n in sorted({seed % len(small), 0})]
    graphs = [single(row, i.operands, dict(i.attrs)) for i in chosen]
    pairs = [(g, _flags(len(g.inputs), seed + n)) for n, g in enumerate(graphs)]
    least = min(small, key=lambda i: sum(t.size for t in i.operands))
    alone = single(row, least.operands, dict(least.attrs))
    empty, _ = batch_graph(alone, [True] * len(alone.inputs), 0)
    programs = {
        "mapped": (side_by_side(pairs), chosen),
        "deep": (_joined([lifted(alone, RANK), empty]), [least, least]),
    }
    for tag, (graph, used) in programs.items():
        name = f"{level}/{row.name}/{dtype.name}/{tag}"
        reason = support.reason_of(graph)
        if reason is not None:
            yield Unsupported(name, level, row.name, dtype.name, reason)
            continue
        yield Case(
            name,
            level,
            row.name,
            dtype.name,
            graph,
            (tuple(r for i in used for r in _recipes(row, i, seed)),),
            bitwise=keeps_bits(row),
            tags=(row.kind.value, tag),
        )


def _joined(graphs: Sequence[Graph]) -> Graph:
    """Programs next to each other."""
    with Builder() as builder:
        outputs = [v for graph in graphs for v in replay(graph)]
    return builder.build(outputs, f"deep_{graphs[0].name}")


def lifted(graph: Graph, rank: int) -> Graph:
    """A graph for examples of examples, until some array has that many dimensions."""
    while _rank(graph) < rank:
        graph, _ = batch_graph(graph, [True] * len(graph.inputs), 1 + _rank(graph) % 2)
    return graph


def _rank(graph: Graph) -> int:
    values = [v for instr in graph.instrs for v in instr.results]
    return max(len(v.shape) for v in (*graph.inputs, *values))


def side_by_side(parts: Sequence[tuple[Graph, Sequence[bool]]]) -> Graph:
    """The batched form of each graph, and the graph applied to each example.

    The flags say which inputs have examples.  Outputs that have are given twice, one after the
    other.
    """
    outputs: list[Value] = []
    with Builder() as builder:
        for graph, flags in parts:
            batched, batched_outputs = batch_graph(graph, flags, EXAMPLES)
            inputs = [builder.input(v.type) for v in batched.inputs]
            together = replay(batched, arguments=inputs)
            each = [replay(graph, arguments=_example(inputs, flags, n)) for n in range(EXAMPLES)]
            for k, (value, flag) in enumerate(zip(together, batched_outputs, strict=True)):
                outputs += [value, _stacked([e[k] for e in each])] if flag else [value]
    return builder.build(outputs, f"mapped_{parts[0][0].name}")


def _flags(count: int, number: int) -> list[bool]:
    """One of the combinations of inputs with examples and without, never without any."""
    bits = number % max((1 << count) - 1, 1) + 1
    return [bool(bits >> i & 1) for i in range(count)]


def _example(inputs: Sequence[Value], flags: Sequence[bool], number: int) -> list[Value]:
    """The inputs for one example."""
    return [_row(x, number) if flag else x for x, flag in zip(inputs, flags, strict=True)]


def _row(x: Value, number: int) -> Value:
    return reshape(slice_dim(x, 0, number, number + 1), x.shape[1:])


def _stacked(values: Sequence[Value]) -> Value:
    stack: Value = rows.concatenate(*(reshape(v, (1, *v.shape)) for v in values), dim=0)
    return stack


def _recipes(row: OpDef, instance: Instance, seed: int) -> Iterator[Recipe]:
    """The first kinds of an instance."""
    kinds = instance.kinds or ("ramp",)
    for position in range(len(instance.operands)):
        yield Recipe.for_operand(row, position, kinds[position % len(kinds)], seed)
