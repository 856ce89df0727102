"""The undefined symbols of an ELF object: what a loader must find before it may link."""

from __future__ import annotations

import struct

_SYMTAB = 2
_UNDEFINED = 0
#: Made by the loader itself.
_TABLE = "_GLOBAL_OFFSET_TABLE_"


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Names an ELF object needs from outside; empty for other formats.

    LLVM's loader ends the process over a missing symbol, so they are looked up first.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return frozenset()
    sections = _sections(data)
    names: set[str] = set()
    for kind, offset, size, link in sections:
        if kind == _SYMTAB:
            strings = sections[link][1]
            names |= _undefined(data[offset : offset + size], data, strings)
    return frozenset(names - {_TABLE})


def _sections(data: bytes) -> list[tuple[int, int, int, int]]:
    """(type, offset, size, link) of every section."""
    (table,) = struct.unpack_from("<Q", data, 40)
    stride, count = struct.unpack_from("<HH", data, 58)
    found = []
    for k in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, table + k * stride)
        found.append((kind, offset, size, link))
    return found


def _undefined(symbols: bytes, data: bytes, strings: int) -> set[str]:
    names = set()
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", symbols):
        if section == _UNDEFINED and name:
            end = data.index(b"\0", strings + name)
            names.add(data[strings + name : end].decode())
    return names
