"""Running graphs: deferred expressions as one fused program each, compiled once per structure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bringup.api.place import OpenDevice
from bringup.backend.adapters_run import running_at
from bringup.errors import DeletedBufferError, DeviceError, Location
from bringup.graph import Graph, user_location
from bringup.locks import ProcessLock
from bringup.runtime import transfer
from bringup.runtime.compiler import Compiled, compile_graph, forget
from bringup.tracing.lazy import Batch, Node, collect

#: After so many different values of its Python scalars an expression is compiled with the scalars
#: as inputs.
VARIANTS = 4
_ENTRIES = 4096
# What a batch's graph holds besides one instruction per node.
_SPREAD = ("constant", "broadcast_in_dim")

# Recording takes no lock; one thread at a time turns records into results, so that none is computed
# twice.
_lock = ProcessLock()


class _Entry:
    """The executables of one structure: by scalar values, and one that takes these as inputs."""

    __slots__ = ("general", "special")

    def __init__(self) -> None:
        self.special: dict[Any, Compiled] = {}
        self.general: Compiled | None = None


_entries: dict[tuple[OpenDevice, Any], _Entry] = {}


def evaluate(roots: Iterable[Node], device: OpenDevice) -> None:
    """Compute the buffers of the roots, and of every array still alive on the way to them.

    An error of the device points at the line that recorded the operation, as far as the device
    names it.
    """
    with _lock:
        batch = collect([root for root in roots if root.buffer is None])
        if not batch.nodes:
            return
        compiled, scalars = _compiled(batch, device)
        inputs = [leaf.buffer for leaf in batch.inputs]
        if scalars:
            inputs += [transfer.upload(device.device, s.literal.elements[0]) for s in batch.scalars]
        try:
            with running_at(lambda line: _recorded_at(line, compiled.graph, batch)):
                buffers = execute(compiled, inputs, device)
        except DeviceError as error:
            error.location = _recorded_at(error.location, compiled.graph, batch)
            raise
        for node, buffer in zip(batch.outputs, buffers, strict=True):
            _store(node, buffer)


def clear_caches() -> None:
    """Let go of every compiled program that no `jit` function holds, on all devices.

    A process that has met thousands of different programs gets their memory back; what it meets
    again is compiled again.  Results, arrays and objects on disk stay.

    >>> x = bu.ones(3) + 1
    >>> bu.clear_caches()
    >>> x.tolist()
    [2.0, 2.0, 2.0]
    """
    with _lock:
        _entries.clear()
    forget()


def run_graph(graph: Graph, inputs: Sequence[Any], device: OpenDevice) -> list[Any]:
    """Run a graph on buffers."""
    return execute(compile_graph(graph, device), inputs, device)


def execute(compiled: Compiled, inputs: Sequence[Any], device: OpenDevice) -> list[Any]:
    """Run a compiled graph on buffers and return new buffers."""
    assert compiled.executable is not None
    return transfer.execute(device.device, compiled.executable, inputs, len(compiled.graph.outputs))


def _compiled(batch: Batch, device: OpenDevice) -> tuple[Compiled, bool]:
    """What runs a batch, and whether it takes the scalars as inputs."""
    key = (device, batch.structure)
    entry = _entries.get(key)
    if entry is None:
        if len(_entries) >= _ENTRIES:
            del _entries[next(iter(_entries))]
        entry = _entries[key] = _Entry()
    values = batch.values
    found = entry.special.get(values)
    if found is not None:
        return found, False
    if entry.general is not None:
        return entry.general, True
    if len(entry.special) < VARIANTS:
        compiled = entry.special[values] = compile_graph(batch.graph(), device)
        return compiled, False
    entry.general = compile_graph(batch.graph(scalars_as_inputs=True), device)
    return entry.general, True


def _store(node: Node, buffer: Any) -> None:
    node.resolve(buffer)
    array = node.array() if node.array is not None else None
    if array is not None:
        array._buffer = buffer


def _recorded_at(reported: Location | None, graph: Graph, batch: Batch) -> Location | None:
    """The line of this batch's operation: the program may stem from equal code elsewhere.

    A line of neither is that of earlier work, whose error came out only now.
    """
    if reported is not None:
        lines = [i.location for i in graph.instrs if i.op.name not in _SPREAD]
        nodes = [n.location for n in batch.nodes if n.call.op.name not in _SPREAD]
        for line, own in zip(lines, nodes, strict=True):
            if line == reported:
                return own
    return reported or batch.outputs[0].location


def deleted(what: str) -> DeletedBufferError:
    """The error for an array that was donated."""
    return DeletedBufferError(
        f"{what} was donated to a call, which reused its memory",
        location=user_location(),
        fix="use the result of that call instead, or leave the argument out of donate_argnums",
    )
