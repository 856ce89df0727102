"""Ops that dissolve into index maps: which elements of operands an element of a result is."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph import Instr, Value
from bringup.graph.index import Index, Mask, Source, elements_of
from bringup.ops.table import Kind, opdef


def is_movement(instr: Instr) -> bool:
    """Whether the instruction dissolves into an index map, of indices known or loaded."""
    return opdef(instr).index_map is not None


def is_indexed(instr: Instr) -> bool:
    """Whether the instruction dissolves into an index map whose indices are data."""
    return is_movement(instr) and opdef(instr).kind is Kind.INDEXED


def source_of(instr: Instr, index: Index, mask: Mask = ()) -> Sequence[Source]:
    """The alternatives for result element ``index``, in order; exactly one applies, the first whose
    bounds hold.

    mask: where the element is wanted.
    """
    index_map = opdef(instr).index_map
    assert index_map is not None
    return index_map(index, mask, *instr.operands, **instr.attrs)


def needs_of(instr: Instr, index: Index, mask: Mask = ()) -> list[tuple[Value, Index, Mask]]:
    """Which elements of other values result element ``index`` is made of, those that are indices
    last; with where each is wanted.
    """
    sources = source_of(instr, index, mask)
    elements = [(instr.operands[s.operand], s.index, joined(mask, s.bounds)) for s in sources]
    if is_indexed(instr):
        elements += [(e.value, e.index, e.mask) for s in sources for e in elements_of(s)]
    return elements


def joined(mask: Mask, more: Mask) -> Mask:
    """Both masks' bounds, each once."""
    return mask + tuple(b for b in more if b not in mask)
