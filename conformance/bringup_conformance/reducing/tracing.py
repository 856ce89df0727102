"""From the element that first went wrong to the element of the program that shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.graph import Graph, Value
from bringup.graph.printer import Numbering
from bringup_conformance.cases import Case
from bringup_conformance.execution.targets import Target
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.verdict import Mismatch, Verdict
from bringup_conformance.reducing.trials import Values, finished, verdict


def trace(
    target: Target, case: Case, graph: Graph, inputs: list[Array], right: Values,
    made: Sequence[Value], results: Sequence[Array], found: Verdict,
) -> tuple[str, ...]:  # fmt: skip
    """One line for the wrong element of a step, one for the element of the program that it spoils.

    graph: what the steps were made of.  right: the right array of each of its values.  made,
    results: what the step writes, and what the device wrote.  found: the verdict on that.
    """
    names = Numbering(graph.inputs, graph.instrs)
    for mismatch in found.mismatches:
        value = made[mismatch.output]
        wrong = results[mismatch.output][mismatch.index]
        if value in graph.outputs:
            continue
        spoilt = _spoilt(target, case, graph, inputs, right, value, mismatch.index, wrong)
        if spoilt is not None:
            return (_line(names[value], mismatch), f"→ {spoilt}")
    return tuple(_line(names[made[m.output]], m) for m in found.mismatches[:1])


def _line(name: str, mismatch: Mismatch) -> str:
    place = ", ".join(map(str, mismatch.index))
    return f"{name}[{place}] is {mismatch.actual}, not {mismatch.expected}"


def _spoilt(
    target: Target, case: Case, graph: Graph, inputs: list[Array], right: Values,
    value: Value, index: tuple[int, ...], wrong: object,
) -> Mismatch | None:  # fmt: skip
    """The element of an output that one wrong element makes wrong, all else being right."""
    array = np.array(right[value])
    array[index] = wrong
    given = {**{v: right[v] for v in graph.inputs}, value: array}
    values = finished(graph, given)
    found = verdict(target, case, [values[v] for v in graph.outputs], inputs)
    return None if found.ok else found.mismatches[0]
