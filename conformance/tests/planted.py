"""Programs at hand, and right devices, some with a fault, as targets in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bringup.backend import Backend, Capabilities
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup_conformance.cases import Case, Outcome
from bringup_conformance.execution.running import attempt
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reporting import failures
from bringup_selftest.corpus import OpEdit, faults, with_declared, with_ops
from bringup_selftest.device import Reference


def opened(backend: Backend) -> DeviceTarget:
    """The backend's first device."""
    return DeviceTarget.of(backend)


def right(name: str = "reference", depth: int = 1) -> DeviceTarget:
    """A device of numpy, of which little is run."""
    return opened(Reference(depth, simulated=True, name=name))


def spoilt(edits: Mapping[str, OpEdit], name: str = "reference") -> DeviceTarget:
    """The same with functions of ops edited."""
    return opened(with_ops(edits)(Reference(simulated=True, name=name)))


def declaring(
    declared: Callable[[Capabilities], Capabilities],
    edits: Mapping[str, OpEdit] | None = None,
    name: str = "reference",
) -> DeviceTarget:
    """The same with another declaration."""
    spoilt = with_ops(edits or {})(Reference(simulated=True, name=name))
    return opened(with_declared(declared)(spoilt))


def faulty(id: str, name: str = "reference") -> DeviceTarget:
    """The same, as deep as it takes, with a fault of the corpus."""
    (fault,) = (each for each in faults() if each.id == id)
    how = Reference(fault.depth, fault.asynchronous, fault.at_once, simulated=True, name=name)
    return opened(fault.inject(how))


class AtHand:
    """A target that is no opened device: another one behind the protocol alone."""

    def __init__(self, inner: Target) -> None:
        self.name = inner.name
        self.capabilities = inner.capabilities
        self.passes = inner.passes
        self.missing = inner.missing
        self.compile = inner.compile


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
