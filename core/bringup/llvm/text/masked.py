"""Lanes of vectors: folds, masks, masked memory accesses, gathers, prefetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm.text import (
    Builder,
    Type,
    Val,
    const,
    const_vector,
    i1,
    i32,
    known_lanes,
    poison,
    vec,
    void,
)


def fold_lanes(b: Builder, vector: Val, combine: Callable[[Val, Val], Val]) -> Val:
    """Combine the lanes of a vector, a power of two of them, by halves."""
    while (half := vector.type.lanes // 2) > 0:
        low = b.shufflevector(vector, None, range(half))
        high = b.shufflevector(vector, None, range(half, 2 * half))
        vector = combine(low, high)
    return vector


def pairwise(parts: Sequence[Val], combine: Callable[[Val, Val], Val]) -> Val:
    """Combine values by halves, so that few combinations wait for one another."""
    live = list(parts)
    while len(live) > 1:
        half = (len(live) + 1) // 2
        pairs = [combine(x, y) for x, y in zip(live[:half], live[half:], strict=False)]
        live = pairs + live[len(pairs) : half]
    return live[0]


def lanes_below(b: Builder, count: Val, lanes: int) -> Val:
    """The mask of the lanes below a count, as a comparison of i32 lane numbers."""
    numbers = const_vector(i32, range(lanes))
    return b.icmp("slt", numbers, b.splat(b.trunc(count, i32), lanes))


def clamp(b: Builder, count: Val, most: int) -> Val:
    """An integer between 0 and ``most``."""
    return b.smax(b.smin(count, const(count.type, most)), const(count.type, 0))


def masked_load(
    b: Builder,
    type: Type,
    address: Val,
    mask: Val,
    passthru: Val | None = None,
    align: int = 1,
) -> Val:
    """Load the lanes where ``mask`` holds; the others are ``passthru``, or anything."""
    other = poison(type) if passthru is None else passthru
    if type.lanes == 1:
        return b.cond(mask, lambda: b.load(type, address, align), lambda: other)[0]
    return b.intrinsic(
        "llvm.masked.load",
        type,
        (address, mask, other),
        (type, address.type),
        arg_attrs=(f"align {align}", "", ""),
    )


def strided_load(b: Builder, type: Type, address: Val, stride: int, count: int) -> Val | None:
    """Load lanes ``stride`` elements apart from vectors without gaps, which are shuffled.

    count: how many lanes there are, the first ones; others are as the last of them.  Nothing behind
    its element is read.  None for so few lanes that they are not a vector.
    """
    lanes, span = type.lanes, stride * (count - 1) + 1
    width = lanes
    while width > span:
        width //= 2
    if width < 2:
        return None
    starts = [*range(0, span - width, width), span - width]
    part = vec(type.scalar, width)
    value, *others = (
        b.load(part, b.gep(address, start, type.scalar), type.scalar.bits // 8) for start in starts
    )
    elements = [stride * min(n, count - 1) for n in range(lanes)]
    place = [min(element // width, len(others)) for element in elements]
    order = [e - starts[p] for e, p in zip(elements, place, strict=True)]
    for number, other in enumerate(others, 1):
        before = order if number == 1 else range(lanes)
        chosen = [
            width + at if p == number else old
            for at, p, old in zip(order, place, before, strict=True)
        ]
        value = b.shufflevector(value, other, chosen)
    return value if others else b.shufflevector(value, None, order)


def masked_store(b: Builder, value: Val, address: Val, mask: Val, align: int = 1) -> None:
    """Store the lanes where ``mask`` holds."""
    if value.type.lanes == 1:
        b.cond(mask, lambda: b.store(value, address, align), lambda: None)
        return
    lanes = known_lanes(mask)
    if lanes is not None and sum(lanes) == 1:
        # LLVM 22 for AVX-512 stores one lane of a narrowed vector at its width before.
        lane = lanes.index(True)
        element = value.type.scalar
        one = b.emit(element, f"extractelement {value}, i32 {lane}")
        b.store(one, b.gep(address, lane, element), align)
        return
    b.intrinsic(
        "llvm.masked.store",
        void,
        (value, address, mask),
        (value.type, address.type),
        arg_attrs=("", f"align {align}", ""),
    )


def masked_gather(
    b: Builder,
    type: Type,
    addresses: Val,
    mask: Val | None = None,
    passthru: Val | None = None,
    align: int = 1,
) -> Val:
    """Load each lane from its own address; no mask means all lanes."""
    keep = const(vec(i1, type.lanes), 1) if mask is None else mask
    other = poison(type) if passthru is None else passthru
    if type.bits == 8 and type.lanes > b.module.gathered_bytes:
        count = type.lanes // 2
        half, parts = vec(type.scalar, count), []
        for lanes in (range(count), range(count, type.lanes)):
            those, kept, rest = (b.shufflevector(v, None, lanes) for v in (addresses, keep, other))
            parts.append(masked_gather(b, half, those, kept, rest, align))
        return b.shufflevector(parts[0], parts[1], range(type.lanes))
    return b.intrinsic(
        "llvm.masked.gather",
        type,
        (addresses, keep, other),
        (type, addresses.type),
        arg_attrs=(f"align {align}", "", ""),
    )


def masked_scatter(
    b: Builder,
    value: Val,
    addresses: Val,
    mask: Val | None = None,
    align: int = 1,
) -> None:
    """Store each lane to its own address, in lane order; no mask means all lanes."""
    keep = const(vec(i1, value.type.lanes), 1) if mask is None else mask
    b.intrinsic(
        "llvm.masked.scatter",
        void,
        (value, addresses, keep),
        (value.type, addresses.type),
        arg_attrs=("", f"align {align}", ""),
    )


def prefetch(b: Builder, address: Val, *, write: bool = False, locality: int = 3) -> None:
    """Ask for the data's cache line.  locality: 0 (streaming) to 3 (keep close)."""
    b.intrinsic(
        "llvm.prefetch",
        void,
        (address, const(i32, write), const(i32, locality), const(i32, 1)),
        (address.type,),
    )
