"""Program files are read: checked, refused with a reason, and never run as code.

JSON and the text of graphs are parsed by readers that know what they may find.  Sizes are compared
with that of the file before anything of their length is made.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from bringup.aot.program_file import BEGIN, DIGEST_AT, FORMAT, KINDS, NUMBERS, StoredEntry
from bringup.aot.safetensors import MAX_HEADER, read_header
from bringup.aot.trees import tree_of_json
from bringup.backend.capabilities import OPSET
from bringup.dtypes import bool_
from bringup.errors import BringupError, ParseError, ProgramFileError
from bringup.graph import Graph
from bringup.graph.parser import parse_graph
from bringup.ops import find
from bringup.tracing.pytree import TreeDef
from bringup.types import TensorType
from bringup.version import VERSION

Host = np.ndarray[Any, Any]


class ProgramContents:
    """What a program file holds; its arrays are read when they are used.

    path: where it is.  hash: the SHA-256 of the file, in hexadecimal digits.
    version: of bringup, which wrote it.  opset: the least that has its ops.
    entries: its functions.  metadata: what was said of it.  types: of its arrays, by name.
    nbytes: the size of the file.

    The file is mapped into memory: it may be replaced by another, and must not be changed in place.
    Raises ProgramFileError for what is no program file, is damaged, or too new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = _mapped(path)
            self.nbytes = len(self._data)
            length, self.hash = self._head()
        except OSError as error:
            raise ProgramFileError(f"{path} cannot be read: {error.strerror or error}") from None
        try:
            self._start = 8 + length
            texts, self.types, self._offsets = read_header(
                self._data[8 : self._start], self.nbytes - self._start
            )
            program = json.loads(texts["program"])
            self.version, self.opset = str(program["bringup"]), int(program["opset"])
            self._check_version(program["entries"])
            self.metadata = dict(program["metadata"])
            self._digests = {name: program["arrays"][name] for name in self.types}
            self._intact: set[str] = set()
            self.entries = {
                name: self._entry(entry, texts[f"graph.{name}"])
                for name, entry in program["entries"].items()
            }
        except ProgramFileError:
            raise
        except BringupError as error:
            raise self._damaged(error.what, error.notes) from error
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            # The hash is right, so whoever wrote the file wrote this.
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    def array(self, name: str) -> Host:
        """An array of the file, read-only and where the file is mapped.

        Raises ProgramFileError if it is not what was written.
        """
        type_, start = self.types[name], self._start + self._offsets[name]
        if name not in self._intact:
            with memoryview(self._data)[start : start + type_.nbytes] as elements:
                if hashlib.sha256(elements).hexdigest() != self._digests[name]:
                    raise self._damaged(f"the hash of the array {name!r} is another")
            self._intact.add(name)
        if not type_.size:
            return np.empty(type_.shape, type_.dtype.numpy)
        flat = np.frombuffer(self._data, np.uint8, type_.nbytes, start)
        if type_.dtype is bool_ and flat.max() > 1:
            raise self._damaged(f"the array {name!r} has bytes that are no bools")
        return flat.view(type_.dtype.numpy).reshape(type_.shape)

    def _head(self) -> tuple[int, str]:
        """The length of the header and the hash, which is right."""
        length = int.from_bytes(self._data[:8], "little")
        begin = BEGIN.match(self._data, 8)
        if begin is None:
            raise ProgramFileError(
                f"{self.path} is no program file",
                fix="save a function with bringup.save; arrays alone are for numpy.load",
            )
        if int(begin[1]) > FORMAT:
            raise ProgramFileError(
                f"{self.path} is a program file of form {int(begin[1])}, and bringup {VERSION}"
                f" reads form {FORMAT}",
                fix="install a later version of bringup",
            )
        if length > MAX_HEADER or 8 + length > self.nbytes:
            raise self._damaged(f"its header has {length} bytes, and the file {self.nbytes}")
        head = self._data[: 8 + length]
        zeros = head[:DIGEST_AT] + b"0" * 64 + head[DIGEST_AT + 64 :]
        digest = hashlib.sha256(zeros).hexdigest()
        if digest.encode() != begin[2]:
            raise self._damaged("the hash of its header is another")
        return length, digest

    def _check_version(self, entries: dict[str, Any]) -> None:
        """Refuse what needs a later version."""
        fix = f"install bringup {self.version}, which wrote it, or a later one"
        if self.opset > OPSET:
            raise ProgramFileError(
                f"{self.path} needs opset {self.opset}, and bringup {VERSION} has opset {OPSET}",
                fix=fix,
            )
        for name, entry in entries.items():
            for claim in entry["ops"]:
                if find(claim.partition(".")[0]) is None:
                    raise ProgramFileError(
                        f"entry {name} of {self.path} has the op {claim}, which bringup {VERSION}"
                        " does not have",
                        fix=fix,
                    )

    def _entry(self, entry: dict[str, Any], text: str) -> StoredEntry:
        arguments, leaves = tree_of_json(entry["arguments"])
        result, outputs = tree_of_json(entry["result"])
        stored = StoredEntry(
            graph=parse_graph(text, find),
            parameters=tuple(inspect.Parameter(n, KINDS[kind]) for n, kind in entry["parameters"]),
            arguments=arguments,
            leaves=tuple(leaves),
            result=result,
            weights=tuple(entry["weights"]),
            donated=frozenset(entry["donated"]),
            static={str(name): str(value) for name, value in entry["static"].items()},
            frozen=entry["frozen"] is True,
        )
        inspect.Signature(stored.parameters)  # ValueError for an order that Python does not have
        _check_types(stored.graph, leaves, [self.types[name] for name in stored.weights], outputs)
        _check_arguments(stored.arguments, stored.parameters)
        if not stored.donated <= frozenset(range(len(leaves))):
            raise ParseError("it donates arguments that it does not have")
        return stored

    def _damaged(self, why: str, notes: tuple[str, ...] = ()) -> ProgramFileError:
        return ProgramFileError(
            f"{self.path} is damaged: {why}", notes=notes, fix="copy it again, or save it again"
        )


def _mapped(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, which come into memory as they are read."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""  # nothing cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check_types(
    graph: Graph, leaves: list[str], weights: list[TensorType], outputs: list[str]
) -> None:
    """Raise ParseError unless a graph takes these arguments and weights and gives these results."""
    types = [value.type for value in graph.inputs]
    taken = [
        leaf if leaf in NUMBERS and not type_.shape else str(type_)
        for leaf, type_ in zip(leaves, types, strict=False)
    ]
    if taken != leaves or types[len(leaves) :] != weights:
        raise ParseError(f"the graph takes {types}, and the entry has {leaves} and {weights}")
    given = [str(value.type) for value in graph.outputs]
    if given != outputs:
        raise ParseError(f"the graph gives {given}, and the entry has {outputs}")


def _check_arguments(arguments: TreeDef, parameters: tuple[inspect.Parameter, ...]) -> None:
    """Raise ParseError unless there is an argument for each parameter."""
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if arguments.kind is tuple and len(arguments.children) == 2:
        positional, named = arguments.children
        alike = positional.kind is tuple and named.kind is dict and named.rest == tuple(names)
        if alike and len(positional.children) == len(parameters) - len(names):
            return
    raise ParseError(f"arguments {arguments} do not belong to parameters {[*map(str, parameters)]}")


__all__ = ["ProgramContents"]
