"""Index maps of the movement ops: which operand element a result element is.

`source_of` answers for one instruction and one result index: a list of `Source` alternatives.
Exactly one alternative applies at any index: the first whose bounds hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.graph import Instr, Value
from bringup.kernel.index import ZERO, Bound, Expr, flatten, unflatten
from bringup.kernel.indexed import INDEXED, Index, Mask, Source, elements_of
from bringup.types import TensorType

Rule = Callable[[tuple[TensorType, ...], Mapping[str, Any], Index], list[Source]]


def _reshape(types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index) -> list[Source]:
    source, target = types[0].shape, attrs["shape"]
    target_dims = [i for i, n in enumerate(target) if n != 1]
    source_dims = [i for i, n in enumerate(source) if n != 1]
    if [target[i] for i in target_dims] == [source[i] for i in source_dims]:
        mapped = dict(zip(source_dims, (index[i] for i in target_dims), strict=True))
        return [Source(0, tuple(mapped.get(i, ZERO) for i in range(len(source))))]
    return [Source(0, unflatten(flatten(index, target), source))]


def _transpose(
    types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index
) -> list[Source]:
    table = dict(zip(attrs["permutation"], index, strict=True))
    return [Source(0, tuple(table[i] for i in range(types[0].rank)))]


def _broadcast(
    types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index
) -> list[Source]:
    shape, dims = types[0].shape, attrs["dims"]
    return [
        Source(0, tuple(ZERO if n == 1 else index[d] for n, d in zip(shape, dims, strict=True)))
    ]


def _slice(_types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index) -> list[Source]:
    steps = zip(index, attrs["start"], attrs["stride"], strict=True)
    return [Source(0, tuple(e * stride + start for e, start, stride in steps))]


def _pad(types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index) -> list[Source]:
    bounds: list[Bound] = []
    inner: list[Expr] = []
    for e, n, lo, gap in zip(index, types[0].shape, attrs["lo"], attrs["interior"], strict=True):
        step, shifted = gap + 1, e + -lo
        bounds.append(Bound(shifted, 0, (n - 1) * step + 1 if n else 0))
        if step > 1:
            bounds.append(Bound(shifted % step, 0, 1))
        inner.append(shifted // step)
    needed = tuple(b for b in bounds if not b.always)
    value = Source(1, ())
    if any(b.never for b in needed):
        return [value]
    return [Source(0, tuple(inner), needed), value] if needed else [Source(0, tuple(inner))]


def _concatenate(
    types: tuple[TensorType, ...], attrs: Mapping[str, Any], index: Index
) -> list[Source]:
    dim, offset = attrs["dim"], 0
    sources: list[Source] = []
    for i, operand in enumerate(types):
        n = operand.shape[dim]
        bound = Bound(index[dim], offset, offset + n)
        if n and not bound.never:
            shifted = tuple(e + -offset if d == dim else e for d, e in enumerate(index))
            sources.append(Source(i, shifted, () if bound.always else (bound,)))
            if bound.always:
                break
        offset += n
    # Of empty operands no element exists, and none is asked for.
    return sources or [Source(0, index)]


RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
}


def is_movement(instr: Instr) -> bool:
    """Whether the instruction dissolves into an index map, of indices known or loaded."""
    return instr.op.name in RULES or instr.op.name in INDEXED


def source_of(instr: Instr, index: Index, mask: Mask = ()) -> list[Source]:
    """The alternatives for result element ``index``, in order; see `Source`.

    mask: where the element is wanted.
    """
    rule = RULES.get(instr.op.name)
    if rule is None:
        return INDEXED[instr.op.name](instr, index, mask)
    return rule(tuple(v.type for v in instr.operands), instr.attrs, index)


def needs_of(instr: Instr, index: Index, mask: Mask = ()) -> list[tuple[Value, Index, Mask]]:
    """Which elements of other values result element ``index`` is made of, those that are indices
    last; with where each is wanted.
    """
    sources = source_of(instr, index, mask)
    elements = [(instr.operands[s.operand], s.index, joined(mask, s.bounds)) for s in sources]
    if instr.op.name in INDEXED:
        elements += [(e.value, e.index, e.mask) for s in sources for e in elements_of(s)]
    return elements


def joined(mask: Mask, more: Mask) -> Mask:
    """Both masks' bounds, each once."""
    return mask + tuple(b for b in more if b not in mask)
