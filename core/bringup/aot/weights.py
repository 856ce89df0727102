"""The arrays that a library holds: part of its code, or a file beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.aot.safetensors import ALIGNMENT, header_of, offsets_of
from bringup.backend.link import Weights
from bringup.integers import round_up
from bringup.program.program import Program
from bringup.records import record
from bringup.types import TensorType


@record
class HeldArray:
    """An array that a function holds.  elements: in order of indices, little-endian."""

    name: str
    type: TensorType
    elements: bytes


def elements_of(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of an array, in order of its indices, little-endian."""
    ordered = np.ascontiguousarray(array)
    if ordered.dtype.byteorder == ">":  # pragma: no cover - only big-endian machines
        ordered = ordered.astype(ordered.dtype.newbyteorder("<"))
    return ordered.tobytes()


def constants_of(program: Program, prefix: str) -> list[HeldArray]:
    """The constants of a program and of those that its steps run, in order."""
    literals = [literal for each in program.programs for literal in each.constants]
    return [
        HeldArray(f"{prefix}.constant{n}", literal.type, elements_of(literal.array()))
        for n, literal in enumerate(literals)
    ]


#: The offset of each array's elements in the weights.
Offsets = dict[bytes, int]


def embedded(arrays: Sequence[HeldArray]) -> tuple[Weights, Offsets]:
    """Weights that are part of the code, equal arrays once."""
    offsets: Offsets = {}
    data = bytearray()
    for array in arrays:
        if array.elements not in offsets:
            offsets[array.elements] = len(data)
            data += array.elements.ljust(round_up(len(array.elements), ALIGNMENT), b"\0")
    return Weights(bytes(data)), offsets


def external(arrays: Sequence[HeldArray]) -> tuple[Weights, Offsets, bytes]:
    """Weights that stand in a file of the format safetensors, and that file.

    It may be mapped into memory as it is.  Its header has the hash of its data, so a library knows
    its own weights by the first bytes of the file.
    """
    # Of equal elements, the array with the widest ones says how they are aligned.
    unique: dict[bytes, HeldArray] = {}
    for array in sorted(arrays, key=lambda a: -a.type.dtype.itemsize):
        unique.setdefault(array.elements, array)
    types = {array.name: array.type for array in unique.values()}
    starts = offsets_of(types)
    offsets: Offsets = {array.elements: starts[array.name] for array in unique.values()}
    data = b"".join(a.elements for a in sorted(unique.values(), key=lambda a: starts[a.name]))
    digest = hashlib.sha256(data).hexdigest()
    file = header_of(types, {"sha256": digest}) + data
    known = file.index(digest.encode()) + len(digest)
    return Weights(data, file[:known], len(file) - len(data)), offsets, file


__all__ = [
    "ALIGNMENT",
    "HeldArray",
    "Offsets",
    "constants_of",
    "elements_of",
    "embedded",
    "external",
]
