"""The format safetensors: arrays by name behind a header of JSON, in files that may be mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bringup.dtypes import BY_NAME
from bringup.errors import ParseError
from bringup.integers import round_up
from bringup.types import TensorType

#: The data of a file begins at a multiple of so many bytes.
ALIGNMENT = 64
#: The longest header, as other readers of the format have it.
MAX_HEADER = 100_000_000
#: Where texts stand in the header, beside the arrays.
METADATA = "__metadata__"
#: The names of dtypes in files, where they are not those of the IR in capitals.
_NAMES = {"f8e4m3fn": "F8_E4M3", "f8e5m2": "F8_E5M2"}
_DTYPES = {_NAMES.get(name, name.upper()): dtype for name, dtype in BY_NAME.items()}


def offsets_of(types: Mapping[str, TensorType]) -> dict[str, int]:
    """Where the elements of each array begin in the data, in the order in which they stand there.

    The format wants arrays without gaps.  Those whose bytes are multiples of `ALIGNMENT` come first
    and are so aligned; the others follow by the width of their elements, to which they are aligned.
    """

    def place(name: str) -> tuple[bool, int]:
        return types[name].nbytes % ALIGNMENT != 0, -types[name].dtype.itemsize

    offsets, end = {}, 0
    for name in sorted(types, key=place):
        offsets[name] = end
        end += types[name].nbytes
    return offsets


def header_of(types: Mapping[str, TensorType], metadata: Mapping[str, str]) -> bytes:
    """What stands before the data.  metadata: texts, which come first and in this order."""
    entries: dict[str, object] = {METADATA: dict(metadata)}
    for name, start in offsets_of(types).items():
        type_ = types[name]
        entries[name] = {
            "dtype": _NAMES.get(type_.dtype.name, type_.dtype.name.upper()),
            "shape": type_.shape,
            "data_offsets": [start, start + type_.nbytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = round_up(8 + len(text), ALIGNMENT) - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def read_header(
    text: bytes, size: int
) -> tuple[dict[str, str], dict[str, TensorType], dict[str, int]]:
    """The texts, the types and the offsets of a header.

    text: without its length.  size: of the data behind it, in bytes.
    Raises ParseError for what breaks a rule of the format.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"the header is no JSON: {error}") from None
    if not isinstance(entries, dict):
        raise ParseError("the header is no object of JSON")
    metadata = entries.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ParseError(f"{METADATA} of the header holds something else than texts")
    types, spans = {}, {}
    for name, entry in entries.items():
        types[name], spans[name] = _array(name, entry)
    end = 0
    for name in sorted(spans, key=spans.__getitem__):
        start, stop = spans[name]
        if start != end or stop - start != types[name].nbytes:
            raise ParseError(f"array {name!r} of type {types[name]} has bytes {start} to {stop}")
        end = stop
    if end != size:
        raise ParseError(f"the arrays have {end} bytes, and the file holds {size}")
    return metadata, types, {name: start for name, (start, _) in spans.items()}


def _array(name: str, entry: Any) -> tuple[TensorType, tuple[int, int]]:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
            dtype in _DTYPES and all(type(n) is int and n >= 0 for n in shape)
        ):
            return TensorType(tuple(shape), _DTYPES[dtype]), (start, stop)
    raise ParseError(f"array {name!r} has no dtype, shape and place that are known")


__all__ = ["ALIGNMENT", "MAX_HEADER", "header_of", "offsets_of", "read_header"]
