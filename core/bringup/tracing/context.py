"""Traces: functions being turned into graphs, one stack of them per thread.

While a trace is open in a thread, every operation of that thread goes into it.  Arrays from outside
become further inputs when they are first used.  The arrays themselves are a matter of the layer
above: here they are plain objects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from bringup.errors import Location, TraceError, UnsupportedError
from bringup.graph import Builder, Graph, Instr, Value, user_location
from bringup.types import TensorType


class _Stack(threading.local):
    """The open traces, and the most of them since the outermost was opened."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.deepest = 0


_open = _Stack()
#: A function that recurses too deeply inside fewer traces is at fault itself.
_NESTED = 8


def current() -> Trace | None:
    """The innermost open trace of this thread, or None."""
    traces = _open.traces
    return traces[-1] if traces else None


class Trace:
    """One function being traced.  A context manager: open inside, closed for good afterwards.

    name: of the graph.
    device: where the result will run, or None if that is not known; not looked at here.
    known: by input, the object that is known to be its value while tracing, or None.
    captured: the outer objects that became inputs, in order, after the arguments.
    """

    __slots__ = ("_inputs", "builder", "captured", "closed", "device", "known", "name")

    def __init__(self, name: str = "main", device: Any = None) -> None:
        self.name = name
        self.device = device
        self.builder = Builder(located=True)
        self.known: list[Any] = []
        self.captured: list[Any] = []
        self._inputs: dict[int, Value] = {}
        self.closed = False

    def __enter__(self) -> Trace:
        _open.traces.append(self)
        _open.deepest = max(_open.deepest, len(_open.traces))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        closed = _open.traces.pop()
        assert closed is self
        self.closed = True
        if not _open.traces:
            deepest, _open.deepest = _open.deepest, 0
            if isinstance(error, RecursionError) and deepest > _NESTED:
                raise nested(self.name) from None

    @property
    def is_open(self) -> bool:
        """Whether operations of this thread may still go into this trace."""
        return self in _open.traces

    def argument(self, type_: TensorType, known: object = None) -> Value:
        """A new input for an argument of the function."""
        assert not self.captured, "arguments come before captured values"
        self.known.append(known)
        return self.builder.input(type_)

    def capture(self, outer: object, type_: TensorType) -> Value:
        """The input that stands for an outer object: a new one at its first use."""
        value = self._inputs.get(id(outer))
        if value is None:
            value = self._inputs[id(outer)] = self.builder.input(type_)
            self.known.append(outer)
            self.captured.append(outer)  # keeps the object, hence its id, alive
        return value

    def graph(self, outputs: Iterable[Value]) -> Graph:
        """What has been traced so far."""
        return self.builder.build(outputs, self.name)

    def prefix(self, value: Value) -> tuple[Graph, list[Any]] | None:
        """The graph of one value and what its inputs are; None if one of them is not known."""
        whole = self.graph([value])
        needed = _ancestors(value)
        used = [(v, k) for v, k in zip(whole.inputs, self.known, strict=True) if v in needed]
        if any(known is None for _, known in used):
            return None
        instrs = [instr for instr in whole.instrs if not needed.isdisjoint(instr.results)]
        return Graph([v for v, _ in used], instrs, [value], self.name), [known for _, known in used]


def nested(name: str) -> UnsupportedError:
    """The error for loops and branches whose nesting exhausts Python's stack."""
    return UnsupportedError(
        f"{name}: loops and branches hold one another too many levels deep",
        location=user_location(),
        fix="write the levels as one loop or one switch, or raise sys.setrecursionlimit",
    )


class Traced:
    """What an array of an open trace stands for.

    weak: made of Python scalars alone, so that it yields to the dtype of what it meets.
    """

    __slots__ = ("__weakref__", "trace", "value", "weak")

    def __init__(self, trace: Trace, value: Value, weak: bool = False) -> None:
        self.trace = trace
        self.value = value
        self.weak = weak

    def check_open(self) -> None:
        """Raise TraceError if the trace is over: the array was kept beyond its function."""
        if self.trace.closed or not self.trace.is_open:
            raise TraceError(
                f"an array of type {self.value.type} was used outside the traced function it is of",
                location=user_location(),
                notes=(f"it was {made_at(self.value)} while {self.trace.name!r} was traced",),
                fix="return it from the function instead of keeping it in a variable outside",
            )


def made_at(value: Value) -> str:
    """Where a value came from: ``made at file:line (function)`` or ``input 0``.

    An op is named only where no line is known: users know their line, not the names of the IR.
    """
    if value.producer is None:
        return f"input {value.index}"
    location: Location | None = value.producer.location
    return f"made by {value.producer.op.name}" if location is None else f"made at {location}"


def _ancestors(value: Value) -> set[Value]:
    """All values a value is computed from, itself included, results of one instruction together."""
    seen: set[Value] = {value}
    stack: list[Instr | None] = [value.producer]
    while stack:
        instr = stack.pop()
        for operand in instr.operands if instr is not None else ():
            if operand not in seen:
                seen.add(operand)
                stack.append(operand.producer)
    return seen
