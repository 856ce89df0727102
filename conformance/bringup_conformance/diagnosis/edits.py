"""Edits of a program: instructions replaced, other outputs, and then nothing that no output needs.

Everything that the shrinker tries is such an edit, of a program or of a body inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bringup.graph import Builder, Graph, Instr, Value, current_builder, replay
from bringup.graph.verify import subgraphs
from bringup.ops.build import like
from bringup.ops.subgraphs import carried, is_branch, is_control, reached
from bringup.types import TensorType
from bringup_conformance.generate.program_builder import pruned
from bringup_conformance.generate.recipes import Recipe

#: A program to shrink: a graph and a recipe for each input.
Candidate = tuple[Graph, tuple[Recipe, ...]]


@dataclass(slots=True)
class Edit:
    """An edit under way, in the builder that makes the new program.

    recipes: of all inputs, new ones among them.
    outputs: values to return instead of what an old output has become.
    extra_outputs: values to return besides.
    """

    builder: Builder
    recipes: list[Recipe]
    outputs: dict[Value, Value] = field(default_factory=dict)
    extra_outputs: list[Value] = field(default_factory=list)

    def input(self, type_: TensorType, recipe: Recipe) -> Value:
        """A new input of the program."""
        self.recipes.append(recipe)
        return self.builder.input(type_)


#: Makes what stands for the results of an instruction, from its operands.
Replacement = Callable[[Sequence[Value], Edit], Sequence[Value]]


def edited(
    candidate: Candidate,
    replacements: Mapping[Instr, Replacement],
    outputs: Sequence[Value] | None = None,
) -> Candidate:
    """A program with some instructions replaced, without what no output needs then.

    outputs: values of the old graph to return; those that it returned unless given.  Raises
    BringupError if an instruction does not take what its operands have become.
    """
    graph, recipes = candidate
    edit = Edit(Builder(), list(recipes))
    old = graph.outputs if outputs is None else tuple(outputs)
    new = replay(
        Graph(graph.inputs, graph.instrs, old, graph.name),
        lambda instr, operands: (
            replacements[instr](operands, edit) if instr in replacements else None
        ),
        builder=edit.builder,
    )
    shown = [edit.outputs.get(before, after) for before, after in zip(old, new, strict=True)]
    if edit.extra_outputs:
        shown = list(dict.fromkeys((*shown, *edit.extra_outputs)))
    return pruned(edit.builder.build(shown, graph.name), tuple(edit.recipes))


def as_operands(positions: Sequence[int]) -> Replacement:
    """An instruction's results replaced by its operands at these positions."""
    return lambda operands, _edit: [operands[n] for n in positions]


def as_constants(instr: Instr) -> Replacement:
    """An instruction's results replaced by ones."""
    return lambda _operands, _edit: [like(v, 1) for v in instr.results]


def as_inputs(instr: Instr, recipe: Recipe, *, small: bool) -> Replacement:
    """An instruction's results replaced by new inputs.

    small: whether integers have to be small ones, whatever the recipe says, because a loop may
    count from them on a device that is wrong.
    """

    def make(_operands: Sequence[Value], edit: Edit) -> Sequence[Value]:
        return [
            edit.input(v.type, Recipe() if small and v.dtype.is_integer else recipe)
            for v in instr.results
        ]

    return make


def with_operands(instr: Instr, positions: Sequence[int]) -> Replacement:
    """The instruction again, with some of its operands."""
    return lambda operands, _edit: current_builder().emit(
        instr.op, [operands[n] for n in positions], instr.attrs
    )


def pass_through(instr: Instr) -> Iterator[tuple[int, ...]]:
    """Positions of operands that have the types of an instruction's results, so that they may stand
    for them: of a loop, the state that it begins with.
    """
    wanted = [v.type for v in instr.results]
    count = len(wanted)
    if count > 1:
        starts = dict.fromkeys((len(instr.operands) - count, 0))
        tries = [tuple(range(start, start + count)) for start in starts]
    else:
        tries = [(instr.operands.index(v),) for v in dict.fromkeys(instr.operands)]
    for positions in tries:
        if [instr.operands[n].type for n in positions if 0 <= n < len(instr.operands)] == wanted:
            yield positions


def has_while(graph: Graph) -> bool:
    """Whether a graph holds a loop with a condition, at any depth."""
    return any(map(is_conditional, graph.instrs)) or any(map(has_while, subgraphs(graph)))


def is_conditional(instr: Instr) -> bool:
    """Whether an instruction is a loop that runs for as long as a condition holds."""
    return "cond" in instr.attrs


# -- what decides how often a loop runs ------------------------------------------------------------


def loop_controls(graph: Graph) -> frozenset[Value]:
    """The values that decide how often a loop runs: other ones might have it run for ever."""
    controls: set[Value] = set()
    for instr in reversed(graph.instrs):
        controls.update(instr.operands[n] for n in control_operands(instr))
        if not controls.isdisjoint(instr.results):
            controls.update(instr.operands)
    return frozenset(controls)


def control_operands(instr: Instr) -> frozenset[int]:
    """Positions of the operands that decide how often a loop runs: the instruction itself or a loop
    inside it.
    """
    attrs = instr.attrs
    if not is_control(instr):
        return frozenset()
    if is_branch(instr):
        return frozenset(n + 1 for inner in attrs["branches"] for n in _control_inputs(inner))
    body: Graph = attrs["body"]
    needed = _control_inputs(body)
    if is_conditional(instr):
        needed |= reached(attrs["cond"], [0]) | _control_inputs(attrs["cond"])
    # An input that is carried is this output in the next trip.
    after = dict(carried(instr))
    while (more := needed | reached(body, [after[n] for n in needed if n in after])) != needed:
        needed = more
    return needed


def _control_inputs(graph: Graph) -> frozenset[int]:
    controls = loop_controls(graph)
    return frozenset(n for n, value in enumerate(graph.inputs) if value in controls)
