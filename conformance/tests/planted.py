"""Programs at hand, and right devices with one fault, as targets in this process."""

from __future__ import annotations

from pathlib import Path

from bringup.backend import Backend
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup_conformance.cases import Case, Outcome
from bringup_conformance.execution.running import attempt
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reporting import failures


def opened(backend: Backend) -> DeviceTarget:
    """The backend's first device."""
    return DeviceTarget.of(backend)


def case(ir: str, *data: tuple[Recipe, ...]) -> Case:
    """A case of a program as text; without recipes, on ramps."""
    graph = parse_graph(ir, find)
    recipes = data or (tuple(Recipe() for _ in graph.inputs),)
    return Case("fusion/programs/f32/0", "fusion", "programs", "f32", graph, recipes)


def failing_file(target: Target, case: Case, folder: Path) -> Path:
    """The file of the failure of a case, as a run writes it when it meets it."""
    verdict, problem = attempt(target, case)
    assert problem is not None
    outcome = Outcome(case, verdict, problem)
    document = failures.document(outcome, failures.Run(target.name, 0))
    return failures.write(folder, 0, document)
