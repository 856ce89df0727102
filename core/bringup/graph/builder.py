"""The one place that makes instructions, and the replay every transformation is written as."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from bringup.errors import GraphError, Location, OpTypeError
from bringup.graph.ir import Graph, Instr, Operation, Value, attrs_key
from bringup.types import TensorType

#: Folders of what calls us on the user's behalf: this package, and numpy.
_NOT_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
)
_active = threading.local()


def user_location() -> Location | None:
    """The innermost frame of neither the SDK nor numpy: the line an error should point at."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    if frame is None:
        return None
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def current_builder() -> Builder:
    """The innermost active builder.  Raises GraphError when none is active."""
    stack: list[Builder] = getattr(_active, "stack", [])
    if not stack:
        raise GraphError(
            "an op was applied to IR values outside any builder",
            fix="enter one with `with Builder():`",
        )
    return stack[-1]


class Builder:
    """Appends instructions, inferring and checking every one.

    dedupe: return the results of an equal earlier instruction instead of a new one (this is CSE).
    located: look up the user's line for each instruction; replays copy it from the original
    instead.

    >>> with Builder() as b:                                # doctest: +SKIP
    ...     x = b.input(f32[4])
    ...     g = b.build([ops.exp(x)])
    """

    def __init__(self, *, dedupe: bool = False, located: bool = False) -> None:
        self._inputs: list[Value] = []
        self._instrs: list[Instr] = []
        self._seen: dict[Any, Instr] | None = {} if dedupe else None
        self._located = located
        self.location: Location | None = None

    def __enter__(self) -> Builder:
        if not hasattr(_active, "stack"):
            _active.stack = []
        _active.stack.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _active.stack.pop()

    def input(self, type_: TensorType) -> Value:
        """A new graph input."""
        value = Value(type_, None, len(self._inputs))
        self._inputs.append(value)
        return value

    def emit(
        self, op: Operation, operands: Sequence[Value], attrs: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """Append one instruction and return its results.

        Raises OpTypeError when the op does not take these operands or attributes; the error gains
        the user's line and the instruction's text.
        """
        operands = tuple(operands)
        location = user_location() if self._located else self.location
        try:
            bound = op.bind(attrs)
            types = op.result_types(tuple(v.type for v in operands), bound)
        except OpTypeError as error:
            raise self._explain(error, op, operands, attrs, location) from None
        if self._seen is not None:
            key = (op.name, operands, attrs_key(bound))
            found = self._seen.get(key)
            if found is not None:
                return found.results
        instr = Instr(op, operands, bound, types, location)
        self._instrs.append(instr)
        if self._seen is not None:
            self._seen[key] = instr
        return instr.results

    def build(self, outputs: Iterable[Value], name: str = "main") -> Graph:
        """The finished graph.  The builder may go on: graphs share nothing that changes."""
        return Graph(self._inputs, self._instrs, tuple(outputs), name)

    def _explain(
        self,
        error: OpTypeError,
        op: Operation,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        location: Location | None,
    ) -> OpTypeError:
        from bringup.graph.printer import Numbering, format_call  # only needed on the way out

        numbering = Numbering(self._inputs, self._instrs)
        notes = list(error.notes)
        for i, operand in enumerate(operands):
            made = operand.producer
            if made is not None and made.location is not None:
                notes.append(f"operand {i} was made at {made.location} by {made.op.name}")
        return OpTypeError(
            error.what,
            location=error.location or location,
            instruction=error.instruction or format_call(op.name, operands, attrs, numbering),
            fix=error.fix,
            notes=tuple(notes),
        )


Rewrite = Callable[[Instr, tuple[Value, ...]], "Sequence[Value] | None"]


def replay(
    graph: Graph,
    rewrite: Rewrite | None = None,
    *,
    builder: Builder | None = None,
    arguments: Sequence[Value] | None = None,
) -> tuple[Value, ...]:
    """Run `graph` through a builder and return the values of its outputs.

    rewrite(instr, operands): the new results, made by emitting into the active builder, or None to
    keep the instruction.
    builder: the target (default: the active one).
    arguments: what stands for the graph's inputs (default: new inputs of the builder).
    """
    target = builder if builder is not None else current_builder()
    values = arguments if arguments is not None else [target.input(v.type) for v in graph.inputs]
    table: dict[Value, Value] = dict(zip(graph.inputs, values, strict=True))
    outer = target.location
    with target:
        for instr in graph.instrs:
            operands = tuple(table[v] for v in instr.operands)
            target.location = instr.location or outer
            results = rewrite(instr, operands) if rewrite is not None else None
            if results is None:
                results = target.emit(instr.op, operands, instr.attrs)
            table.update(zip(instr.results, results, strict=True))
        target.location = outer
    return tuple(table[v] for v in graph.outputs)


def rebuild(graph: Graph, rewrite: Rewrite | None = None, *, dedupe: bool = False) -> Graph:
    """`replay` into a fresh builder: the form of nearly every pass."""
    builder = Builder(dedupe=dedupe)
    outputs = replay(graph, rewrite, builder=builder)
    return builder.build(outputs, graph.name)
