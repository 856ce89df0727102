"""The one place that makes instructions, and the replay every transformation is written as."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from bringup.errors import GraphError, Location, OpTypeError
from bringup.graph.ir import Graph, Instr, Operation, Value, attrs_key, has_effects
from bringup.types import TensorType

#: Folders of what calls us on the user's behalf: this package, and numpy.
NOT_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
)
_active = threading.local()


def user_location() -> Location | None:
    """The innermost frame of neither the SDK nor numpy: the line an error should point at."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_USERS):
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
        try:
            bound = op.bind(attrs)
            types = op.result_types(tuple(v.type for v in operands), bound)
        except OpTypeError as error:
            raise self._explain(error, op, operands, attrs, self._here()) from None
        return self.emit_bound(op, operands, bound, types)

    def emit_bound(
        self,
        op: Operation,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...]:
        """`emit` with attributes that the op has bound and the types that it infers of them."""
        if self._seen is not None:
            key: object = (op.name, operands, attrs_key(attrs))
            if has_effects(op, attrs):
                key = object()
            earlier = self._seen.get(key)
            if earlier is not None:
                return earlier.results
        instr = Instr(op, operands, attrs, types, self._here())
        self._instrs.append(instr)
        if self._seen is not None:
            self._seen[key] = instr
        return instr.results

    def emit_again(self, instr: Instr, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """`emit` for an instruction of another graph, with what stands for its operands here."""
        if any(a.type is not b.type for a, b in zip(operands, instr.operands, strict=True)):
            return self.emit(instr.op, operands, instr.attrs)
        types = tuple(v.type for v in instr.results)
        return self.emit_bound(instr.op, operands, instr.attrs, types)

    def _here(self) -> Location | None:
        return user_location() if self._located else self.location

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
        notes += origins(operands, lambda value: value.producer, error.location or location)
        return OpTypeError(
            error.what,
            location=error.location or location,
            instruction=error.instruction or format_call(op.name, operands, attrs, numbering),
            fix=error.fix,
            notes=tuple(notes),
        )


def origins(
    operands: Iterable[Any], producer: Callable[[Any], Any], line: Location | None
) -> Iterator[str]:
    """Where operands of a wrong instruction were made, a note each.

    producer: what made a value, with ``op``, ``operands`` and ``location``, or None.
    place: the line of the instruction; what made an operand fit on that line is looked through.
    """
    for i, operand in enumerate(operands):
        source, instr = operand, producer(operand)
        while instr is not None and instr.location == line is not None:
            if not getattr(instr.op, "adapts", False):
                break
            source = instr.operands[0]
            instr = producer(source)
        same = source.type is operand.type
        before = "" if same else f", {source.type} before it was made to fit,"
        if instr is not None and instr.location is not None:
            yield f"operand {i}{before} was made at {instr.location} by {instr.op.name}"
        elif before:
            yield f"operand {i} was {source.type} before it was made to fit"


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
                results = target.emit_again(instr, operands)
            table.update(zip(instr.results, results, strict=True))
        target.location = outer
    return tuple(table[v] for v in graph.outputs)


def rebuild(graph: Graph, rewrite: Rewrite | None = None, *, dedupe: bool = False) -> Graph:
    """`replay` into a fresh builder: the form of nearly every pass."""
    builder = Builder(dedupe=dedupe)
    outputs = replay(graph, rewrite, builder=builder)
    return builder.build(outputs, graph.name)
