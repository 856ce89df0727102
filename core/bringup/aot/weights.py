"""The arrays that a library holds: part of its code, or a file beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from bringup.backend.link import Weights
from bringup.integers import round_up
from bringup.records import record
from bringup.types import TensorType

#: Arrays that are part of the code begin at multiples of so many bytes, as does the data of a file.
ALIGNMENT = 64
#: The names of dtypes in safetensors files, where they are not those of the IR in capitals.
_NAMES = {"f8e4m3fn": "F8_E4M3", "f8e5m2": "F8_E5M2"}


@record
class HeldArray:
    """An array that a function holds.  elements: in order of indices, little-endian."""

    name: str
    type: TensorType
    elements: bytes


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
    its own weights by the first bytes of the file.  The format wants arrays without gaps; those of
    the widest elements come first, so that each is aligned.
    """
    offsets: Offsets = {}
    entries: dict[str, object] = {}
    data = bytearray()
    for array in sorted(arrays, key=lambda a: -a.type.dtype.itemsize):
        if array.elements in offsets:
            continue
        start = offsets[array.elements] = len(data)
        data += array.elements
        name = array.type.dtype.name
        entries[array.name] = {
            "dtype": _NAMES.get(name, name.upper()),
            "shape": array.type.shape,
            "data_offsets": [start, len(data)],
        }
    digest = hashlib.sha256(data).hexdigest()
    header = {"__metadata__": {"sha256": digest}, **entries}
    text = json.dumps(header, separators=(",", ":")).encode()
    begin = round_up(8 + len(text), ALIGNMENT)
    file = (begin - 8).to_bytes(8, "little") + text.ljust(begin - 8) + data
    known = file.index(digest.encode()) + len(digest)
    return Weights(bytes(data), file[:known], begin), offsets, file


__all__ = ["ALIGNMENT", "HeldArray", "Offsets", "embedded", "external"]
