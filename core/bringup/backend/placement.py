"""Which device runs what, and why: strict unless a fallback is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from bringup.backend.adapters_run import step_text
from bringup.backend.capabilities import Capabilities
from bringup.dtypes import STORED, DType
from bringup.errors import UnsupportedError
from bringup.graph import Graph, Instr, has_effects
from bringup.graph.printer import Numbering, format_instr
from bringup.graph.verify import subgraphs_of
from bringup.ops.table import Kind, opdef
from bringup.program.program import ControlStep, KernelStep, Program, Step
from bringup.records import record


class Target(Protocol):
    """What placement needs to know of a device; an open device is one."""

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...


@record
class Placement:
    """One row of the report: ``node`` runs on ``device`` because of ``reason``.

    node: the instruction or step as text; ``return`` for results that move once more at the end.
    bytes_moved: between devices, to bring the operands there.
    """

    node: str
    device: str
    reason: str
    bytes_moved: int = 0

    def __str__(self) -> str:
        moved = f", {self.bytes_moved} bytes moved" if self.bytes_moved else ""
        return f"{self.node} → {self.device}: {self.reason}{moved}"

    def __repr__(self) -> str:
        return f"<{self}>"


def check_placement(graph: Graph, capabilities: Capabilities, device: str = "the device") -> None:
    """Strict placement: raise UnsupportedError unless ``device`` runs every instruction itself.

    The error names op, types, the missing claim or the limit, and the fix.
    """
    for instr in graph.instrs:
        missing = obstacle(instr, capabilities)
        if missing is not None:
            raise unsupported(graph, instr, device, missing)


def placement(
    what: Graph | Program, device: Target, fallback: Target | None = None
) -> list[Placement]:
    """Node by node: which device runs it, why, and how many bytes move for it.

    what: an optimised graph, or the program made of one.
    Raises UnsupportedError where neither ``device`` nor the ``fallback`` can run a node.
    """
    if isinstance(what, Program):
        return [Placement(step_text(s), device.name, _kind(s)) for s in what.steps]
    if fallback is not None:
        from bringup.backend.partition import partition  # it stands on this module

        return list(partition(what, device, fallback).report)
    check_placement(what, device.capabilities, device.name)
    return list(_rows(what, device, ""))


def _rows(graph: Graph, device: Target, prefix: str) -> Iterator[Placement]:
    """A row per instruction, those inside loops and branches after their own."""
    names = Numbering(graph.inputs, graph.instrs)
    for instr in graph.instrs:
        text = prefix + format_instr(instr, names)
        yield Placement(text, device.name, how(instr, device.capabilities))
        for inner in subgraphs_of(instr):
            yield from _rows(inner, device, f"{prefix}{inner.name}: ")


def runs_on_host(instr: Instr, capabilities: Capabilities) -> bool:
    """Whether the host runs an instruction for the device, whose sub-graphs the device runs."""
    op = opdef(instr)
    effects = has_effects(op, instr.attrs)
    return op.kind is Kind.CONTROL and (effects or not capabilities.runs_op(instr))


def can_run(instr: Instr, capabilities: Capabilities) -> bool:
    """Whether a device runs an instruction as it is; what decomposition asks."""
    return obstacle(instr, capabilities) is None


def obstacle(instr: Instr, capabilities: Capabilities) -> str | None:
    """What keeps a device from running an instruction, in half a sentence; None if nothing does."""
    limits = capabilities.limits
    for value in (*instr.operands, *instr.results):
        if len(value.shape) > limits.rank:
            return f"{value.type} has rank {len(value.shape)}, its limit is rank={limits.rank}"
        if value.type.size > limits.elements:
            return f"{value.type} is beyond its limit elements={limits.elements}"
    if capabilities.available(instr):
        return _obstacle_inside(instr, capabilities)
    op = opdef(instr)
    claim = op.claim(instr.attrs)
    claimed = capabilities.ops.get(claim, frozenset()) | capabilities.kernels.get(
        claim, frozenset()
    )
    if not claimed:
        return f"it does not claim {claim!r}"
    wanted = dict.fromkeys(v.dtype for v in (*instr.operands, *instr.results))
    absent = [d for d in wanted if d not in claimed]
    if not absent:  # claimed for each dtype, but partly as an op and partly in kernels
        return f"it claims {claim!r} for {_names(wanted)} only in part as an op, in part in kernels"
    return f"it claims {claim!r} for {_names(_sorted(claimed))}, not for {_names(absent)}"


def _obstacle_inside(instr: Instr, capabilities: Capabilities) -> str | None:
    for graph in subgraphs_of(instr):
        for inner in graph.instrs:
            missing = obstacle(inner, capabilities)
            if missing is not None:
                return f"inside {graph.name}, {inner.op.name}: {missing}"
    return None


def how(instr: Instr, capabilities: Capabilities) -> str:
    """In what form a device runs an instruction that it can run."""
    if runs_on_host(instr, capabilities):
        return "run by core, its parts on the device"
    if capabilities.runs_op(instr) and not capabilities.fuses(instr):
        return "claimed as an op"
    if not capabilities.fuses(instr):
        return "uploaded"
    op = opdef(instr)
    dissolves = op.kind in (Kind.MOVEMENT, Kind.SOURCE)
    return "part of a kernel" if dissolves else "claimed in kernels"


def _kind(step: Step) -> str:
    if isinstance(step, ControlStep):
        return "control"
    return "kernel" if isinstance(step, KernelStep) else "op"


def unsupported(graph: Graph, instr: Instr, device: str, missing: str) -> UnsupportedError:
    """The error for an instruction that cannot run."""
    types = ", ".join(str(v.type) for v in instr.operands or instr.results)
    return UnsupportedError(
        f"{instr.op.name}({types}) cannot run on {device}: {missing}",
        location=instr.location,
        instruction=format_instr(instr, Numbering(graph.inputs, graph.instrs)),
        fix="use a dtype and shape it takes, or name a device that may take over: "
        'jit(f, fallback="…")',
    )


def _names(dtypes: Iterable[DType]) -> str:
    return ", ".join(d.name for d in dtypes)


def _sorted(dtypes: Iterable[DType]) -> list[DType]:
    return sorted(dtypes, key=STORED.index)
