"""ELF objects, checked before they are loaded: LLVM's loader trusts every offset it reads.

The layout is that of the System V ABI, chapter 4, "Object Files", for 64-bit little-endian files.
"""

from __future__ import annotations

import platform
import struct

from bringup.records import record

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_SYMBOLS, _STRINGS, _RELOCATIONS, _WITHOUT_BYTES = 2, 3, 4, 8
_UNDEFINED, _RESERVED, _ABSOLUTE = 0, 0xFF00, 0xFFF1
_SECTION_SYMBOL, _FILE_SYMBOL = 3, 4
#: None, data, function, section, file; there is no thread-local data in this code.
_SYMBOL_KINDS = {0, 1, 2, _SECTION_SYMBOL, _FILE_SYMBOL}
_THREAD_LOCAL = 1 << 10
_SECTION_LIMIT = 1 << 30

#: ``e_machine`` by the name that Python gives the machine.
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "riscv64": 243}
#: Bytes that a relocation changes, by its kind, for the kinds that LLVM emits with the code model
#: of `jit`: R_X86_64_64, PC32, PLT32 and PC64.  The loader ends the process over unknown ones.
_WIDTHS = {"x86_64": {1: 8, 2: 4, 4: 4, 24: 8}}
#: The loader makes it.
_GLOBAL_OFFSET_TABLE = "_GLOBAL_OFFSET_TABLE_"


@record
class Section:
    """One row of the section table; offset and size in bytes of the file."""

    kind: int
    offset: int
    size: int
    link: int
    info: int

    def bytes_of(self, data: bytes) -> bytes:
        """Its part of the file."""
        return data[self.offset : self.offset + self.size]


@record
class ElfSymbols:
    """The names of an object, without those of its own sections.

    defined: what it brings.  undefined: what it needs from outside.
    """

    defined: frozenset[str]
    undefined: frozenset[str]


def symbols_of(data: bytes) -> ElfSymbols:
    """Check the tables of an ELF object for this machine and read its names.

    Raises ValueError, with what is wrong, where an offset, a size, an index or a kind lies outside
    of what the file has: the loader would read or write there and end the process.
    """
    sections = _sections(data)
    defined: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section.kind == _SYMBOLS:
            for name, place in _names(data, sections, section):
                (defined if place != _UNDEFINED else undefined).add(name)
        elif section.kind == _RELOCATIONS:
            _check_relocations(data, sections, section)
    return ElfSymbols(frozenset(defined), frozenset(undefined - {_GLOBAL_OFFSET_TABLE}))


def _require(holds: bool, what: str) -> None:
    if not holds:  # pragma: no cover - only objects that LLVM made wrong
        raise ValueError(f"a damaged object: {what}")


def _sections(data: bytes) -> list[Section]:
    """The section table, every row within the file."""
    _require(len(data) >= _HEADER.size, "the header is cut off")
    magic, bits, order, kind, machine, _, _, _, table, _, size, _, count, row, rows, names = (
        _HEADER.unpack_from(data)
    )
    _require((magic, bits, order) == (b"\x7fELF", 2, 1), "no 64-bit little-endian ELF file")
    _require(kind == 1 and size == _HEADER.size and not count, "no relocatable file")
    expected = _MACHINES.get(platform.machine(), machine)
    _require(machine == expected, f"it is of machine {machine}, not {expected}")
    _require(row == _SECTION.size and 0 < rows < _RESERVED, "the section table")
    _require(table + rows * row <= len(data), "the section table is cut off")
    sections = []
    for _, kind, flags, _, offset, size, link, info, alignment, entry in _SECTION.iter_unpack(
        data[table : table + rows * row]
    ):
        in_file = 0 if kind == _WITHOUT_BYTES else size
        _require(offset + in_file <= len(data) and size < _SECTION_LIMIT, "a section is cut off")
        _require(alignment.bit_count() <= 1 and alignment <= 4096, "the alignment of a section")
        _require(not flags & _THREAD_LOCAL, "thread-local data")
        _require(link < rows, "the link of a section")
        stride = {_SYMBOLS: _SYMBOL.size, _RELOCATIONS: _RELOCATION.size}.get(kind)
        _require(stride is None or (entry == stride and size % stride == 0), "the rows of a table")
        _require(kind != _STRINGS or data[offset + size - 1 : offset + size] in {b"", b"\0"},
                 "an open string")  # fmt: skip
        sections.append(Section(kind, offset, size, link, info))
    _require(names < rows and sections[names].kind == _STRINGS, "the names of sections")
    for name, *_ in _SECTION.iter_unpack(data[table : table + rows * row]):
        _require(name < sections[names].size, "the name of a section")
    return sections


def _names(data: bytes, sections: list[Section], table: Section) -> list[tuple[str, int]]:
    """(name, section) of every symbol that has a name."""
    strings = sections[table.link]
    _require(strings.kind == _STRINGS, "the names of symbols")
    _require(table.info <= table.size // _SYMBOL.size, "the number of local symbols")
    text = strings.bytes_of(data)
    names = []
    rows = list(_SYMBOL.iter_unpack(table.bytes_of(data)))
    _require(rows[:1] == [(0,) * 6], "the first symbol")
    for name, kind, _, place, value, size in rows[1:]:
        of_section = kind & 0xF == _SECTION_SYMBOL
        _require(kind & 0xF in _SYMBOL_KINDS, "the kind of a symbol")
        _require(bool(name) != of_section and name < strings.size, "the name of a symbol")
        _require(not of_section or place != _UNDEFINED, "the symbol of a section")
        if _UNDEFINED < place < _RESERVED:
            _require(place < len(sections), "the section of a symbol")
            _require(value + size <= sections[place].size, "a symbol outside of its section")
        else:
            _require(place in {_UNDEFINED, _ABSOLUTE}, "the place of a symbol")
        if name:
            decoded = text[name : text.index(b"\0", name)].decode("utf-8")
            _require(bool(decoded), "the name of a symbol")
            names.append((decoded, place))
    return names


def _check_relocations(data: bytes, sections: list[Section], table: Section) -> None:
    """Every place that the loader will write lies in a section, every symbol in the table."""
    _require(table.info < len(sections), "the section of relocations")
    target, symbols = sections[table.info], sections[table.link]
    _require(symbols.kind == _SYMBOLS, "the symbols of relocations")
    kinds = [row[1] & 0xF for row in _SYMBOL.iter_unpack(symbols.bytes_of(data))]
    widths = _WIDTHS.get(platform.machine())
    for offset, info, _ in _RELOCATION.iter_unpack(table.bytes_of(data)):
        kind = info & 0xFFFFFFFF
        _require(widths is None or kind in widths, f"a relocation of kind {kind}")
        symbol = info >> 32
        _require(0 < symbol < len(kinds), "the symbol of a relocation")
        _require(kinds[symbol] != _FILE_SYMBOL, "the symbol of a relocation")
        width = 4 if widths is None else widths[kind]
        _require(offset + width <= target.size, "a relocation outside of its section")
