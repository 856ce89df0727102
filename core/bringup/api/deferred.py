"""Running graphs: deferred expressions as one fused program each, compiled once per structure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bringup.backend.adapters_run import running_at
from bringup.bounded import BoundedDict
from bringup.errors import BringupError, DeletedBufferError, DeviceError, Location, NaNError
from bringup.graph import Graph, Literal
from bringup.locks import ProcessLock
from bringup.runtime import nans, transfer
from bringup.runtime.compiler import Compiled, compile_graph, forget
from bringup.runtime.devices import OpenDevice
from bringup.runtime.full_memory import register_cache
from bringup.tracing.lazy import Batch, Node, collect, forget_cuts

#: After so many different values of its Python scalars an expression is compiled with those that
#: change as inputs; one of more operations than `_SMALL` after the first.
VARIANTS = 4
_SMALL = 16
# Ops of a batch's graph beyond one instruction per node: they spread scalars.
_SPREAD = ("constant", "broadcast_in_dim")

# Recording takes no lock; one thread at a time turns records into results, so that none is computed
# twice.
_lock = ProcessLock()


class _Entry:
    """The executables of one structure: by scalar values, and one that takes some as inputs.

    varying: positions of the scalars that the general one takes; fixed: the values of the others.
    """

    __slots__ = ("fixed", "general", "special", "varying")

    def __init__(self) -> None:
        self.special: dict[Any, Compiled] = {}
        self.general: Compiled | None = None
        self.varying: tuple[int, ...] = ()
        self.fixed: tuple[Literal, ...] = ()

    def others(self, values: tuple[Literal, ...]) -> tuple[Literal, ...]:
        """The values of the scalars that the general executable holds as constants."""
        varying = set(self.varying)
        return tuple([v for n, v in enumerate(values) if n not in varying])

    def generalise(self, values: tuple[Literal, ...]) -> None:
        """Turn the scalars that have had other values into inputs; the second time all scalars."""
        seen = list(self.special)
        again = self.general is not None
        self.varying = tuple(
            n for n, v in enumerate(values) if again or any(earlier[n] != v for earlier in seen)
        )
        self.fixed = self.others(values)


_entries: BoundedDict[tuple[OpenDevice, Any], _Entry] = BoundedDict(4096)


def evaluate(roots: Iterable[Node], device: OpenDevice) -> None:
    """Compute the buffers of the roots, of every array still alive on the way to them, and of those
    that wait for the same intermediates.

    An error of the device points at the line that recorded the operation, as far as the device
    names it.
    """
    with _lock:
        waiting = [root for root in roots if root.buffer is None]
        batch = collect(waiting)
        if not batch.nodes:
            return
        try:
            _run(batch, device)
        except BringupError:
            # A result that nobody asked for yet must not raise the error.
            if not batch.joined:
                raise
            _run(collect(waiting, joined=False), device)


def _run(batch: Batch, device: OpenDevice) -> None:
    compiled, varying = _compiled(batch, device)
    inputs = [leaf.buffer for leaf in batch.inputs]
    for n in varying:
        inputs.append(transfer.upload(device.device, batch.scalars[n].literal.elements[0]))
    try:
        with running_at(lambda line: _recorded_at(line, compiled.graph, batch)):
            buffers = execute(compiled, inputs, device)
    except (DeviceError, NaNError) as error:
        error.location = _recorded_at(error.location, compiled.graph, batch)
        raise
    for node, buffer in zip(batch.outputs, buffers, strict=True):
        node.resolve(buffer)
        array = node.array() if node.array is not None else None
        if array is not None:
            array._buffer = buffer


def clear_caches() -> None:
    """Let go of every compiled program that no `jit` function holds, on all devices.

    A process that has met thousands of different programs gets their memory back; what it meets
    again is compiled again.  Results, arrays and objects on disk stay.  It also happens by itself
    where a device's memory is full.

    >>> x = bu.ones(3) + 1
    >>> bu.clear_caches()
    >>> x.tolist()
    [2.0, 2.0, 2.0]
    """
    # Without the lock: a thread whose memory is full may hold one that the lock's holder waits for.
    _entries.clear()
    forget_cuts()
    forget()


register_cache(clear_caches)


def run_graph(graph: Graph, inputs: Sequence[Any], device: OpenDevice) -> list[Any]:
    """Run a graph on buffers."""
    return execute(compile_graph(graph, device), inputs, device)


def execute(compiled: Compiled, inputs: Sequence[Any], device: OpenDevice) -> list[Any]:
    """Run a compiled graph on buffers and return new buffers."""
    assert compiled.executable is not None
    if nans.wanted():
        return nans.execute(compiled, compiled.graph, inputs, device)
    return transfer.execute(device.device, compiled.executable, inputs, len(compiled.graph.outputs))


def _compiled(batch: Batch, device: OpenDevice) -> tuple[Compiled, tuple[int, ...]]:
    """The executable of a batch, and the positions of the scalars that it takes as inputs."""
    key = (device, batch.structure)
    entry = _entries.get(key)
    if entry is None:
        entry = _Entry()
        _entries.add(key, entry)
    values = batch.values
    result = entry.special.get(values)
    if result is not None:
        return result, ()
    if entry.general is not None and entry.others(values) == entry.fixed:
        return entry.general, entry.varying
    small = len(batch.nodes) <= _SMALL
    if entry.general is None and len(entry.special) < (VARIANTS if small else 1):
        compiled = entry.special[values] = compile_graph(batch.graph(), device)
        return compiled, ()
    entry.generalise(values)
    entry.general = compile_graph(batch.graph(entry.varying), device)
    return entry.general, entry.varying


def _recorded_at(reported: Location | None, graph: Graph, batch: Batch) -> Location | None:
    """The line of this batch's operation: the program may stem from equal code elsewhere.

    Any other line is that of earlier work, whose error is reported only now.
    """
    if reported is not None:
        lines = [i.location for i in graph.instrs if i.op.name not in _SPREAD]
        nodes = [n.location for n in batch.nodes if n.call.op.name not in _SPREAD]
        for line, recorded in zip(lines, nodes, strict=True):
            if line == reported:
                return recorded
    return reported or batch.outputs[0].location


def deleted(label: str) -> DeletedBufferError:
    """The error for an array that was donated."""
    return DeletedBufferError(
        f"{label} was donated to a call, which reused its memory",
        fix="use the result of that call instead, or leave the argument out of donate_argnums",
    )
