"""Graphs as text: the form of dumps, golden tests and error messages; `parse_graph` reads it back.

An attribute of a class this module does not know prints what its ``__ir__()`` returns.  For the
text to be read back, that must be ``prefix<body>`` with every bracket of the body closed, and a
reader registered for the prefix (`bringup.graph.parser.register_attr_reader`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.graph.elements import format_double, format_element
from bringup.graph.ir import Graph, Instr, Literal, Value
from bringup.types import TensorType

MAX_DENSE = 64  # elements of a literal that are printed one by one
MAX_BRIEF = 8  # the same inside an error message
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

_Write = Callable[[Any], str]


class Numbering:
    """Names of values in text: ``%0``, ``%1``, … in order, ``%?`` for a value from elsewhere."""

    __slots__ = ("_names",)

    def __init__(self, inputs: Sequence[Value], instrs: Sequence[Instr]) -> None:
        self._names: dict[Value, str] = {}
        for value in inputs:
            self._names.setdefault(value, f"%{len(self._names)}")
        for instr in instrs:
            for value in instr.results:
                self._names.setdefault(value, f"%{len(self._names)}")

    def __getitem__(self, value: Value) -> str:
        return self._names.get(value, "%?")


def format_attr(value: Any) -> str:
    """The text of an attribute, complete: literals with all elements, graphs with all instructions.

    >>> format_attr((1, True, "add", 0.5))
    '(1, true, "add", 0.5)'
    """
    if isinstance(value, Graph):
        return print_graph(value)
    if isinstance(value, Literal):
        return _literal(value, MAX_DENSE, _hex)
    return _plain(value, format_attr)


def format_call(
    op_name: str, operands: Sequence[Value], attrs: Mapping[str, Any], numbering: Numbering
) -> str:
    """One instruction in one line for messages, ``reduce(%2) {kind="add", dims=(1,)}``.

    Sub-graphs and literals of more than a few elements are abridged.
    """
    return _call(op_name, operands, attrs, numbering, _brief)


def format_instr(instr: Instr, numbering: Numbering) -> str:
    """The short line of `format_call` with the results: ``%3: f32[4] = exp(%2)``."""
    return _results(instr, numbering) + format_call(
        instr.op.name, instr.operands, instr.attrs, numbering
    )


def print_graph(graph: Graph, *, locations: bool = False) -> str:
    """The whole graph, in the form `parse_graph` reads.

    locations: end each instruction's line with the user's line it came from, as a comment.
    """
    numbering = Numbering(graph.inputs, graph.instrs)
    inputs = ", ".join(f"{numbering[v]}: {v.type}" for v in graph.inputs)
    lines = [f"graph {_name(graph.name)}({inputs}) {{"]
    for instr in graph.instrs:
        text = _results(instr, numbering) + _full_call(instr, numbering, locations)
        if locations and instr.location is not None:
            text += f"  # {instr.location.file}:{instr.location.line}"
        lines.append(_indent(text))
    outputs = ", ".join(numbering[v] for v in graph.outputs)
    lines += [f"  return {outputs}".rstrip(), "}"]
    return "\n".join(lines)


def _results(instr: Instr, numbering: Numbering) -> str:
    return ", ".join(f"{numbering[v]}: {v.type}" for v in instr.results) + " = "


def _call(
    op_name: str,
    operands: Sequence[Value],
    attrs: Mapping[str, Any],
    names: Numbering,
    write: _Write,
) -> str:
    call = f"{op_name}({', '.join(names[v] for v in operands)})"
    if not attrs:
        return call
    return f"{call} {{{', '.join(f'{name}={write(value)}' for name, value in attrs.items())}}}"


def _full_call(instr: Instr, numbering: Numbering, locations: bool) -> str:
    def write(value: Any) -> str:
        if isinstance(value, Graph):
            return print_graph(value, locations=locations)
        if isinstance(value, tuple) and any(isinstance(item, Graph) for item in value):
            return "(" + ", ".join(map(write, value)) + ("," if len(value) == 1 else "") + ")"
        return format_attr(value)

    if not any(_holds_graph(value) for value in instr.attrs.values()):
        return _call(instr.op.name, instr.operands, instr.attrs, numbering, write)
    call = _call(instr.op.name, instr.operands, {}, numbering, write)
    attrs = ",\n".join(f"{name}={write(value)}" for name, value in instr.attrs.items())
    return f"{call} {{\n{_indent(attrs)}\n}}"


def _holds_graph(value: Any) -> bool:
    return isinstance(value, Graph) or (isinstance(value, tuple) and any(map(_holds_graph, value)))


def _plain(value: Any, write: _Write) -> str:
    """Attributes of one line; `write` is applied to the items of tuples."""
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "(" + ", ".join(map(write, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, int | DType | TensorType):
        return str(value)
    write_ir = getattr(value, "__ir__", None)
    # Anything else cannot be read back, but a message about a wrong attribute must still show it.
    return str(write_ir()) if write_ir is not None else repr(value)


def _brief(value: Any) -> str:
    if isinstance(value, Graph):
        return f"graph {_name(value.name)} {{…}}"
    if isinstance(value, Literal):
        return _literal(value, MAX_BRIEF, lambda _: "…")
    return _plain(value, _brief)


def _literal(value: Literal, most: int, otherwise: Callable[[Literal], str]) -> str:
    elements = value.elements
    if elements.size > most:
        return f"{value.type}({otherwise(value)})"
    dtype = value.type.dtype
    return f"{value.type}({', '.join(format_element(e, dtype) for e in elements)})"


def _hex(value: Literal) -> str:
    return f'hex "{value.elements.tobytes().hex()}"'


def _name(name: str) -> str:
    return name if NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
