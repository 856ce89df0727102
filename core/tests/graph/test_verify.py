"""The verifier accepts what the builder makes and names what breaks a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bringup.dtypes import f32
from bringup.errors import GraphError, Location
from bringup.graph import Graph, Instr, Operation, Value
from bringup.graph.verify import LevelSpec, problems, verify

Parse = Callable[[str], Graph]
Toys = dict[str, Operation]

CHAIN = """graph main(%0: f32[4]) {
  %1: f32[4] = exp(%0)
  %2: f32[4] = add(%1, %0)
  %3: f32[4], %4: f32[4] = both(%2)
  %5: f32[4] = add(%3, %4)
  return %5
}"""


def _instr(toys: Toys, name: str, *operands: Value, **attrs: object) -> Instr:
    return Instr(toys[name], operands, attrs, [operands[0].type], None)


def test_a_built_graph_is_valid(parse: Parse) -> None:
    verify(parse(CHAIN))


def test_ssa_violations_are_named(toys: Toys) -> None:
    x, stray = Value(f32[4]), Value(f32[4])
    a = _instr(toys, "exp", x)
    b = _instr(toys, "add", a.result, x)
    foreign = _instr(toys, "add", x, stray)
    cases = [
        (Graph([x], [b, a], [b.result]), "operand 0 is used before it is defined"),
        (Graph([x], [foreign], [foreign.result]), "operand 1 is not a value of this graph"),
        (Graph([x], [a, a], [a.result]), "result 0 is defined twice"),
        (Graph([x, x], [], [x]), "input 1 appears twice"),
        (Graph([a.result], [], []), "input 0 is the result of exp"),
        (Graph([x], [a], [b.result]), "output 0 is not a value of this graph"),
    ]
    for graph, message in cases:
        with pytest.raises(GraphError, match=message):
            verify(graph)


def test_a_result_points_back_at_its_instruction(toys: Toys) -> None:
    x = Value(f32[4])
    a, b = _instr(toys, "exp", x), _instr(toys, "exp", x)
    b.results = (Value(f32[4], a),)
    with pytest.raises(GraphError, match="result 0 does not point back"):
        verify(Graph([x], [a, b], [b.results[0]]))


def test_types_and_attributes_are_inferred_again(toys: Toys) -> None:
    x = Value(f32[4])
    wrong_type = Instr(toys["exp"], (x,), {}, [f32[5]], None)
    unbound = _instr(toys, "tag", x, note=1)
    unknown = _instr(toys, "exp", x, axis=1)
    plain = _instr(toys, "tag", x, note=[1], more=())
    refused = Instr(toys["add"], (x, wrong_type.results[0]), {}, [f32[4]], None)
    messages = {
        wrong_type: r"has types f32\[5\], inferred f32\[4\]",
        unbound: r"attributes are not bound; expected note=1, more=\(\)",
        unknown: "exp: no attribute 'axis'",
        plain: "attribute note is not plain: a list",
        refused: r"add: operand types differ: f32\[4\] and f32\[5\]",
    }
    for instr, message in messages.items():
        before = [wrong_type] if instr is refused else []
        found = [what for at, what in problems(Graph([x], [*before, instr], [])) if at is instr]
        assert len(found) == 1, found
        with pytest.raises(GraphError, match=message):
            verify(Graph([x], [instr], []) if not before else _only(Graph([x], [refused], [])))


def _only(graph: Graph) -> Graph:
    """The graph with its stray operand made an input, so that the type is the first problem."""
    (instr,) = graph.instrs
    other = Value(instr.operands[1].type)
    return Graph(
        [*graph.inputs, other],
        [Instr(instr.op, (instr.operands[0], other), instr.attrs, [f32[4]], None)],
        [],
    )


def test_a_level_allows_some_ops(parse: Parse) -> None:
    verify(parse(CHAIN), LevelSpec("toy", ops=frozenset({"exp", "add", "both"})))
    with pytest.raises(GraphError, match="toy main: both is not an op of this level"):
        verify(parse(CHAIN), LevelSpec("toy", ops=frozenset({"exp", "add"})))


def test_a_level_judges_instructions_and_whole_graphs(parse: Parse) -> None:
    def no_exp_of_inputs(instr: Instr) -> str | None:
        bad = instr.op.name == "exp" and instr.operands[0].producer is None
        return "exp of an input" if bad else None

    def short(graph: Graph) -> Iterator[tuple[Instr | None, str]]:
        if len(graph) > 2:
            yield None, f"{len(graph)} instructions"

    with pytest.raises(GraphError, match="exp of an input"):
        verify(parse(CHAIN), LevelSpec("toy", allowed=no_exp_of_inputs))
    with pytest.raises(GraphError, match="4 instructions"):
        verify(parse(CHAIN), LevelSpec("toy", checks=(short,)))


def test_sub_graphs_are_verified(toys: Toys, parse: Parse) -> None:
    x = Value(f32[4])
    inner = Graph([x], [Instr(toys["exp"], (x,), {}, [f32[5]], None)], [x], "inner")
    for note in (inner, (1, (inner,))):
        outer = _instr(toys, "tag", x, note=note, more=())
        with pytest.raises(GraphError, match="graph inner: has types"):
            verify(Graph([x], [outer], []))


def test_the_instruction_is_shown_among_its_neighbours(toys: Toys) -> None:
    x = Value(f32[4])
    instrs = [_instr(toys, "exp", x) for _ in range(9)]
    bad = Instr(toys["exp"], (x,), {}, [f32[5]], Location("model.py", 3, "f"))
    with pytest.raises(GraphError) as caught:
        verify(Graph([x], [*instrs[:5], bad, *instrs[5:]], [], "f"))
    assert str(caught.value).splitlines() == [
        "graph f: has types f32[5], inferred f32[4]",
        "    %3: f32[4] = exp(%0)",
        "    %4: f32[4] = exp(%0)",
        "    %5: f32[4] = exp(%0)",
        "  > %6: f32[5] = exp(%0)",
        "    %7: f32[4] = exp(%0)",
        "    %8: f32[4] = exp(%0)",
        "    %9: f32[4] = exp(%0)",
        "  at model.py:3 (f)",
        "  in instruction: %6: f32[5] = exp(%0)",
    ]
