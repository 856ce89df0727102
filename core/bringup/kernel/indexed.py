"""Index maps of the ops whose indices are data: gather and the dynamic slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bringup.graph import Instr, Value
from bringup.kernel.index import ZERO, Bound, Element, Expr
from bringup.records import record

Index = tuple[Expr, ...]
Mask = tuple[Bound, ...]


@record
class Source:
    """Read operand number ``operand`` at ``index`` where every bound holds.

    inside: elements that must lie where they may; otherwise 0 is read.
    """

    operand: int
    index: Index
    bounds: Mask = ()
    inside: tuple[Element, ...] = ()


Rule = Callable[[Instr, Index, Mask], list[Source]]


def elements_in(exprs: Iterable[Expr]) -> Iterator[Element]:
    """Every element of a value that the expressions name."""
    return (atom for e in exprs for atom in e.atoms() if isinstance(atom, Element))


def elements_of(source: Source) -> Iterator[Element]:
    """Every element of a value that a source needs before it can be read."""
    yield from source.inside
    yield from elements_in((*source.index, *(b.expr for b in source.bounds)))


def _element(value: Value, index: Index, mask: Mask, last: int) -> Element:
    fits = all(e.first >= 0 and e.last < n for e, n in zip(index, value.shape, strict=True))
    return Element(value, index, () if fits else mask, last)


def _gather(instr: Instr, index: Index, mask: Mask) -> list[Source]:
    from bringup.ops.gathering import gather_windows  # rows are not loaded before they are met

    x, indices = instr.operands
    windows = gather_windows(x.type, indices.type, instr.attrs)
    positions = [index[d] for d in windows.between]
    source_index = [ZERO] * len(windows.shape)
    for d, at in zip(windows.kept, windows.offset, strict=True):
        source_index[d] = index[at]
    for d, at in zip(windows.batch[0], windows.batched, strict=True):
        source_index[d] = positions[at]
    elements: list[Element] = []
    for c, (d, last) in enumerate(zip(windows.index_map, windows.lasts, strict=True)):
        where = list(positions)
        if windows.index_dim < indices.type.rank:
            where.insert(windows.index_dim, Expr(c))
        elements.append(_element(indices, tuple(where), mask, last))
        if last:
            source_index[d] = source_index[d] + elements[-1]
    inside = tuple(elements) if instr.attrs["mode"] == "fill" else ()
    return [Source(0, tuple(source_index), inside=inside)]


def _dynamic_slice(instr: Instr, index: Index, _mask: Mask) -> list[Source]:
    x, *starts = instr.operands
    sizes = instr.attrs["sizes"]
    firsts = [
        Expr.of(Element(start, (), (), n - size)) if size < n else ZERO
        for start, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return [Source(0, tuple(e + first for e, first in zip(index, firsts, strict=True)))]


def _dynamic_update_slice(instr: Instr, index: Index, _mask: Mask) -> list[Source]:
    x, update, *starts = instr.operands
    if not update.type.size:
        return [Source(0, index)]
    bounds: list[Bound] = []
    shifted: list[Expr] = []
    for e, start, n, size in zip(index, starts, x.shape, update.shape, strict=True):
        if size == n:
            shifted.append(e)
            continue
        shifted.append(e + Expr.of(Element(start, (), (), n - size)) * -1)
        bounds.append(Bound(shifted[-1], 0, size))
    inner = Source(1, tuple(shifted), tuple(bounds))
    return [inner, Source(0, index)] if bounds else [inner]


INDEXED: dict[str, Rule] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}

__all__ = ["INDEXED", "Source", "elements_in", "elements_of"]
