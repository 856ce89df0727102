"""Value checks of the two steps after the passes: what fusion made of a graph, and what planning
made of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import GraphError
from bringup.graph import Graph
from bringup.kernel.fuse import Launch
from bringup.passes.check import Array, Run, disagreement, is_strict, shown_inputs
from bringup.program.evaluate import evaluate_launches, evaluate_program
from bringup.program.program import Program


def check_program(graph: Graph, launches: Sequence[Launch], program: Program) -> None:
    """Run the fused graph and the program in numpy and compare both with the graph's own
    evaluation.

    graph: the one that was fused, with generated inputs that every loop in it survives.
    Raises GraphError that says whether fusion or planning changed a value, with the graph, the
    program and the inputs.
    """
    _compare("fusion", graph, lambda inputs: evaluate_launches(graph, launches, inputs), program)
    _compare("planning", graph, lambda inputs: evaluate_program(program, inputs), program)


def _compare(step: str, graph: Graph, run: Run, program: Program) -> None:
    inputs: Sequence[Array] | None = None
    try:
        found = disagreement(graph, run, strict=is_strict(graph))
        if found is None:
            return
        complaint, inputs = found
    except GraphError as error:
        complaint = error.what
    raise GraphError(
        f"{step} changed the value of graph {graph.name}: {complaint}",
        notes=(
            *str(graph).splitlines(),
            *str(program).splitlines(),
            *(line for kernel in program.kernels for line in str(kernel).splitlines()),
            *(shown_inputs(graph, inputs) if inputs is not None else ()),
        ),
        fix="the passes are right: their result, below, is what the run is compared with",
    )
