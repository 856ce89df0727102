"""Program files: functions as graphs, with their arrays and signatures, for any device.

A program file is a file of the format safetensors, so that its arrays can be mapped into memory and
other tools read them.  The texts of its header are, in this order::

    bringup.program  the number of this form, 1
    sha256           of all before the data, with zeros for these digits
    program          JSON: the version that wrote the file, the opset that it needs, the entries
                     with their signatures, the user's metadata, and the SHA-256 of each array
    graph.NAME       the graph of an entry as text, before any pass that a device chooses

The hash covers those of the arrays, and so every byte.  The header is checked when a file is read,
an array when it is first used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from bringup.aot.safetensors import MAX_HEADER, header_of, offsets_of
from bringup.aot.trees import tree_to_json
from bringup.errors import BringupError, ConversionError, Location
from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.graph.printer import print_graph
from bringup.graph.verify import subgraphs
from bringup.ops.table import opdef
from bringup.passes.base import deep
from bringup.records import record
from bringup.tracing.pytree import TreeDef
from bringup.types import TensorType
from bringup.version import VERSION

#: The number of the form that is written, and the greatest that is read.
FORMAT = 1
#: What a program file begins with, behind the length of its header: its form and its hash.
BEGIN = re.compile(
    rb'\{"__metadata__":\{"bringup\.program":"([0-9]{1,9})","sha256":"([0-9a-f]{64})"'
)
#: Where the digits of the hash stand in a file of this form.
DIGEST_AT = 8 + len(f'{{"__metadata__":{{"bringup.program":"{FORMAT}","sha256":"')
#: How files name the kinds of parameters.
KINDS: dict[str, inspect._ParameterKind] = {
    "position": inspect.Parameter.POSITIONAL_ONLY,
    "either": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "name": inspect.Parameter.KEYWORD_ONLY,
}
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}
#: What a leaf is called that is a number of Python.
NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@record
class StoredArray:
    """An array in a program file.

    elements: in order of indices, little-endian.  digest: their SHA-256, in hexadecimal digits.
    """

    type: TensorType
    elements: bytes | memoryview
    digest: str


@record(eq=False)
class StoredEntry:
    """A function in a program file.

    graph: as it was traced.  Its inputs are the leaves of the arguments, then the weights.
    parameters: names and kinds; those that are given by position come first.
    arguments: the containers of ``(positional, named)``.  result: that of what it returns.
    leaves: of the arguments: types, or what numbers of Python are called.
    weights: names of arrays.
    donated: positions of leaves whose memory a call may take.
    static: arguments that are compiled in, and the text of each.
    frozen: whether a device computes what follows from the weights when it compiles.
    """

    graph: Graph
    parameters: tuple[inspect.Parameter, ...]
    arguments: TreeDef
    leaves: tuple[str, ...]
    result: TreeDef
    weights: tuple[str, ...] = ()
    donated: frozenset[int] = frozenset()
    static: Mapping[str, str] = field(default_factory=dict)
    frozen: bool = False

    @property
    def arguments_by_parameter(self) -> tuple[TreeDef, ...]:
        """The container that each parameter takes."""
        return tuple(tree for part in self.arguments.children for tree in part.children)

    @property
    def ops(self) -> tuple[str, ...]:
        """What a device has to run, by the names under which it claims ops."""
        return tuple(sorted({opdef(i).claim(i.attrs) for i in _instrs(self.graph)}))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of all values."""
        values = [*self.graph.inputs, *(v for i in _instrs(self.graph) for v in i.results)]
        return tuple(sorted({v.dtype.name for v in values}))

    @property
    def opset(self) -> int:
        """The least that has these ops."""
        return max((opdef(i).since for i in _instrs(self.graph)), default=1)


def _instrs(graph: Graph) -> Iterator[Instr]:
    """The instructions of a graph and of those inside it."""
    yield from graph.instrs
    for inner in subgraphs(graph):
        yield from _instrs(inner)


def pieces_of(
    entries: Mapping[str, StoredEntry],
    arrays: Mapping[str, StoredArray],
    metadata: Mapping[str, Any],
) -> list[bytes | memoryview]:
    """A program file in pieces, so that no array is copied, the header first.

    entries: with graphs that have the locations which the file shall tell.
    metadata: what JSON gives back as it was.
    Raises ConversionError for containers that a file does not hold, BringupError for names.
    """
    for name in entries:
        if not _NAME.fullmatch(str(name)):
            raise BringupError(
                f"an entry of a program file cannot be called {name!r}",
                fix="use letters, digits and underscores, such as 'predict'",
            )
    types = {name: array.type for name, array in arrays.items()}
    program = {
        "bringup": VERSION,
        "opset": max((entry.opset for entry in entries.values()), default=1),
        "entries": {name: _entry_json(name, entry) for name, entry in entries.items()},
        "metadata": _checked_metadata(metadata),
        "arrays": {name: array.digest for name, array in arrays.items()},
    }
    texts = {
        "bringup.program": str(FORMAT),
        "sha256": "0" * 64,
        "program": json.dumps(program, separators=(",", ":")),
    }
    for name, entry in entries.items():
        texts[f"graph.{name}"] = print_graph(entry.graph, locations=True)
    head = header_of(types, texts)
    if len(head) > MAX_HEADER:
        raise BringupError(
            f"the graphs have {len(head)} bytes of text, more than a program file holds",
            fix="save fewer entries in one file",
        )
    digest = hashlib.sha256(head).hexdigest().encode()
    head = head[:DIGEST_AT] + digest + head[DIGEST_AT + 64 :]
    return [head, *(arrays[name].elements for name in offsets_of(types))]


def with_locations(graph: Graph, *, kept: bool) -> Graph:
    """A graph that tells of each instruction the name of its file, without folders, and its line.

    So equal programs of two folders are equal files.  kept: False tells nothing.
    """

    def located(graph: Graph) -> Graph:
        builder = Builder()

        def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value]:
            line = instr.location if kept else None
            if line is not None and line.file.isprintable():
                line = Location(os.path.basename(line.file), line.line, line.function)
            else:
                line = None
            builder.location = line
            return builder.emit_again(instr, operands)

        return builder.build(replay(graph, rewrite, builder=builder), graph.name)

    return deep(located)(graph)


def _entry_json(name: str, entry: StoredEntry) -> dict[str, Any]:
    leaves = iter(entry.leaves)
    written = [
        tree_to_json(tree, leaves, f"argument {parameter.name} of {name}")
        for tree, parameter in zip(entry.arguments_by_parameter, entry.parameters, strict=True)
    ]
    count = len(entry.arguments.children[0].children)
    keywords = [[p.name, tree] for p, tree in zip(entry.parameters, written, strict=True)][count:]
    outputs = [str(value.type) for value in entry.graph.outputs]
    return {
        "parameters": [[p.name, _KIND_NAMES[p.kind]] for p in entry.parameters],
        "arguments": {"tuple": [{"tuple": written[:count]}, {"dict": keywords}]},
        "result": tree_to_json(entry.result, outputs, f"the result of {name}"),
        "weights": list(entry.weights),
        "donated": sorted(entry.donated),
        "static": dict(entry.static),
        "frozen": entry.frozen,
        "ops": list(entry.ops),
        "dtypes": list(entry.dtypes),
    }


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise ConversionError(
            f"metadata are no {type(metadata).__name__}", fix="give a dict of texts and numbers"
        )
    held = dict(metadata)
    try:
        same = json.loads(json.dumps(held, allow_nan=False)) == held
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ConversionError(
            f"metadata {metadata!r} is not what JSON gives back",
            fix="use dicts with texts as keys, lists, texts, numbers, bools and None",
        )
    return held


__all__ = [
    "BEGIN", "DIGEST_AT", "FORMAT", "KINDS", "NUMBERS", "StoredArray", "StoredEntry", "pieces_of",
    "with_locations",
]  # fmt: skip
