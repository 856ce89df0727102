"""Rules on index maps: chains merged, identities dropped."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from bringup.graph import Instr, Value
from bringup.ops.build import reshape, rows, transpose
from bringup.passes.rewrite import Rule, made_by, rule

Ints = tuple[int, ...]


def _kept(shape: Ints) -> Ints:
    """The sizes other than 1."""
    return tuple(n for n in shape if n != 1)


def _large(shape: Ints) -> list[int]:
    """The dimensions of sizes other than 1."""
    return [d for d, n in enumerate(shape) if n != 1]


# Canonical forms.


@rule("reshape")
def reshape_nothing(x: Value, *, shape: Ints) -> Value | None:
    """reshape(x, shape=(4,)) -> x"""
    return x if x.shape == shape else None


@rule("reshape")
def reshape_twice(x: Value, *, shape: Ints) -> Value | None:
    """reshape(reshape(x, shape=(2, 2)), shape=(4, 1)) -> reshape(x, shape=(4, 1))"""
    made = made_by(x, "reshape")
    return reshape(made.operands[0], shape) if made is not None else None


@rule("transpose")
def transpose_nothing(x: Value, *, permutation: Ints) -> Value | None:
    """transpose(x, permutation=(0, 1)) -> x where x: f32[2,3]"""
    return x if permutation == tuple(range(len(permutation))) else None


@rule("transpose")
def transpose_twice(x: Value, *, permutation: Ints) -> Value | None:
    """transpose(transpose(x, permutation=(1, 0)), permutation=(1, 0)) -> x where x: f32[2,3]"""
    made = made_by(x, "transpose")
    if made is None:
        return None
    inner: Ints = made.attrs["permutation"]
    return transpose(made.operands[0], tuple(inner[d] for d in permutation))


@rule("transpose")
def transpose_units(x: Value, *, permutation: Ints) -> Value | None:
    """transpose(x, permutation=(1, 0)) -> reshape(x, shape=(4, 1)) where x: f32[1,4]"""
    large = [d for d in permutation if x.shape[d] != 1]
    if large != sorted(large):
        return None
    return reshape(x, tuple(x.shape[d] for d in permutation))


@rule("broadcast_in_dim")
def broadcast_nothing(x: Value, *, shape: Ints, dims: Ints) -> Value | None:
    """broadcast_in_dim(x, shape=(4,), dims=(0,)) -> x
    broadcast_in_dim(x, shape=(1, 4), dims=(1,)) -> reshape(x, shape=(1, 4))
    """
    if _kept(shape) != _kept(x.shape):
        return None
    if [dims[d] for d in _large(x.shape)] != _large(shape):
        return None
    return reshape(x, shape)


@rule("broadcast_in_dim")
def broadcast_twice(x: Value, *, shape: Ints, dims: Ints) -> Value | None:
    """broadcast_in_dim(broadcast_in_dim(x, shape=(2, 4), dims=(1,)), shape=(3, 2, 4), dims=(1, 2))
    -> broadcast_in_dim(x, shape=(3, 2, 4), dims=(2,))
    """
    made = made_by(x, "broadcast_in_dim")
    if made is None:
        return None
    inner: Ints = made.attrs["dims"]
    return rows.broadcast_in_dim(made.operands[0], shape=shape, dims=tuple(dims[d] for d in inner))


@rule("broadcast_in_dim")
def broadcast_reshaped(x: Value, *, shape: Ints, dims: Ints) -> Value | None:
    """broadcast_in_dim(reshape(x, shape=(4, 1)), shape=(4, 8), dims=(0, 1))
        -> broadcast_in_dim(x, shape=(4, 8), dims=(0,))

    Only where the reshape adds sizes of 1.
    """
    made = made_by(x, "reshape")
    if made is None or 1 in made.operands[0].shape or _kept(x.shape) != made.operands[0].shape:
        return None
    kept = tuple(dims[d] for d in _large(x.shape))
    return rows.broadcast_in_dim(made.operands[0], shape=shape, dims=kept)


@rule("reshape")
def reshape_broadcast(x: Value, *, shape: Ints) -> Value | None:
    """reshape(broadcast_in_dim(x, shape=(8, 4), dims=(1,)), shape=(8, 1, 4))
        -> broadcast_in_dim(x, shape=(8, 1, 4), dims=(2,))

    Only where the reshape adds or removes sizes of 1 that are copies.
    """
    made = made_by(x, "broadcast_in_dim")
    if made is None or _kept(shape) != _kept(x.shape):
        return None
    moved = dict(zip(_large(x.shape), _large(shape), strict=True))
    dims: Ints = made.attrs["dims"]
    if any(d not in moved for d in dims):
        return None
    return rows.broadcast_in_dim(made.operands[0], shape=shape, dims=tuple(moved[d] for d in dims))


@rule("transpose")
def transpose_broadcast(x: Value, *, permutation: Ints) -> Value | None:
    """transpose(broadcast_in_dim(x, shape=(8, 4), dims=(1,)), permutation=(1, 0))
    -> broadcast_in_dim(x, shape=(4, 8), dims=(0,))
    """
    made = made_by(x, "broadcast_in_dim")
    if made is None:
        return None
    dims = tuple(permutation.index(d) for d in made.attrs["dims"])
    if list(dims) != sorted(dims):
        return None
    shape = tuple(x.shape[d] for d in permutation)
    return rows.broadcast_in_dim(made.operands[0], shape=shape, dims=dims)


@rule("dynamic_slice")
def dynamic_slice_known(x: Value, *starts: Value, sizes: Ints) -> Value | None:
    """dynamic_slice(x, 2, sizes=(3,)) -> slice(x, start=(1,), limit=(4,))"""
    ranges = []
    for start, n, size in zip(starts, x.shape, sizes, strict=True):
        known = start.literal
        if known is None:
            return None
        first = min(max(int(known.scalar), 0), n - size)
        ranges.append((first, first + size, 1))
    return _slice(x, ranges)


@rule("slice")
def slice_nothing(x: Value, *, start: Ints, limit: Ints, stride: Ints) -> Value | None:
    """slice(x, start=(0,), limit=(4,)) -> x"""
    whole = not any(start) and limit == x.shape and all(k == 1 for k in stride)
    return x if whole else None


@rule("slice")
def slice_twice(x: Value, *, start: Ints, limit: Ints, stride: Ints) -> Value | None:
    """slice(slice(x, start=(1,), limit=(9,)), start=(2,), limit=(6,), stride=(2,))
        -> slice(x, start=(3,), limit=(6,), stride=(2,)) where x: f32[10]
    slice(slice(x, start=(3,), limit=(-1,), stride=(-1,)), start=(3,), limit=(-1,), stride=(-1,))
        -> x
    """
    made = made_by(x, "slice")
    if made is None or x.type.size == 0:
        return None
    inner = zip(made.attrs["start"], made.attrs["stride"], strict=True)
    counts = _counts(start, limit, stride)
    if 0 in counts:
        return None
    merged = [
        _range(first + begin * step, step * each, count)
        for (first, step), begin, each, count in zip(inner, start, stride, counts, strict=True)
    ]
    return _slice(made.operands[0], merged)


def _counts(start: Ints, limit: Ints, stride: Ints) -> list[int]:
    return [len(range(*each)) for each in zip(start, limit, stride, strict=True)]


def _range(start: int, stride: int, count: int) -> tuple[int, int, int]:
    """Start, limit and stride of ``count > 0`` elements, with the nearest limit."""
    if count == 1:
        return start, start + 1, 1
    return start, start + (count - 1) * stride + (1 if stride > 0 else -1), stride


def _slice(x: Value, ranges: Iterable[tuple[int, int, int]]) -> Value:
    """The slice, unless it is all of `x`."""
    ranges = tuple(ranges)
    if all(each == (0, n, 1) for each, n in zip(ranges, x.shape, strict=True)):
        return x
    start, limit, stride = zip(*ranges, strict=True)
    return rows.slice(x, start=start, limit=limit, stride=stride)


@rule("pad")
def pad_nothing(x: Value, _value: Value, *, lo: Ints, hi: Ints, interior: Ints) -> Value | None:
    """pad(x, 0.0, lo=(0,), hi=(0,)) -> x"""
    return None if any((*lo, *hi, *interior)) else x


@rule("concatenate")
def concatenate_one(*operands: Value, dim: int) -> Value | None:
    """concatenate(x, dim=0) -> x
    concatenate(x, y, x, dim=0) -> concatenate(x, x, dim=0) where y: f32[0]
    """
    if len(operands) == 1:
        return operands[0]
    kept = [v for v in operands if v.shape[dim]]
    if not kept or len(kept) == len(operands):
        return None
    return rows.concatenate(*kept, dim=dim)


@rule("concatenate")
def concatenate_nested(*operands: Value, dim: int) -> Value | None:
    """concatenate(concatenate(x, y, dim=0), z, dim=0) -> concatenate(x, y, z, dim=0)"""
    flat: list[Value] = []
    for operand in operands:
        made = made_by(operand, "concatenate")
        same = made is not None and made.attrs["dim"] == dim
        flat.extend(made.operands if made is not None and same else (operand,))
    return rows.concatenate(*flat, dim=dim) if len(flat) > len(operands) else None


CANONICAL: tuple[Rule, ...] = (
    reshape_nothing,
    reshape_twice,
    transpose_nothing,
    transpose_twice,
    transpose_units,
    broadcast_nothing,
    broadcast_twice,
    broadcast_reshaped,
    reshape_broadcast,
    transpose_broadcast,
    slice_nothing,
    dynamic_slice_known,
    slice_twice,
    pad_nothing,
    concatenate_one,
    concatenate_nested,
)


# Simplifications: moves that undo one another.


@rule("slice")
def slice_padded(x: Value, *, start: Ints, limit: Ints, stride: Ints) -> Value | None:
    """slice(pad(x, y, lo=(1,), hi=(2,)), start=(1,), limit=(4,))
        -> slice(x, start=(0,), limit=(3,)) where y: f32[]

    Only where nothing of the padding remains.
    """
    made = made_by(x, "pad")
    counts = _counts(start, limit, stride)
    if made is None or any(made.attrs["interior"]) or 0 in counts:
        return None
    source, lo = made.operands[0], made.attrs["lo"]
    ranges = []
    for n, first, step, count, before in zip(source.shape, start, stride, counts, lo, strict=True):
        begin = first - before
        if not (0 <= begin < n and 0 <= begin + (count - 1) * step < n):
            return None
        ranges.append(_range(begin, step, count))
    return _slice(source, ranges)


@rule("slice")
def slice_concatenated(x: Value, *, start: Ints, limit: Ints, stride: Ints) -> Value | None:
    """slice(concatenate(x, y, dim=0), start=(4,), limit=(6,)) -> slice(y, start=(0,), limit=(2,))

    Only where one operand holds all of it.
    """
    made = made_by(x, "concatenate")
    counts = _counts(start, limit, stride)
    if made is None or 0 in counts:
        return None
    dim: int = made.attrs["dim"]
    ends = (start[dim], start[dim] + (counts[dim] - 1) * stride[dim])
    offset = 0
    for part in made.operands:
        n = part.shape[dim]
        if offset <= min(ends) and max(ends) < offset + n:
            first = (*start[:dim], start[dim] - offset, *start[dim + 1 :])
            return _slice(part, map(_range, first, stride, counts))
        offset += n
    return None


@rule("slice")
def slice_broadcast(x: Value, *, start: Ints, limit: Ints, stride: Ints) -> Value | None:
    """slice(broadcast_in_dim(x, shape=(8, 4), dims=(1,)), start=(2, 0), limit=(5, 4))
    -> broadcast_in_dim(x, shape=(3, 4), dims=(1,))
    """
    made = made_by(x, "broadcast_in_dim")
    counts = _counts(start, limit, stride)
    if made is None or 0 in counts:
        return None
    source, dims = made.operands[0], made.attrs["dims"]
    ranges = [
        (0, 1, 1) if n == 1 else _range(start[d], stride[d], counts[d])
        for n, d in zip(source.shape, dims, strict=True)
    ]
    smaller = _slice(source, ranges)
    return rows.broadcast_in_dim(smaller, shape=tuple(counts), dims=dims)


@rule("pad")
def pad_twice(x: Value, value: Value, *, lo: Ints, hi: Ints, interior: Ints) -> Value | None:
    """pad(pad(x, y, lo=(1,), hi=(0,)), y, lo=(2,), hi=(3,))
        -> pad(x, y, lo=(3,), hi=(3,)) where y: f32[]

    Only with one padding value, and where the outer pad neither crops nor spreads.
    """
    made = made_by(x, "pad")
    if (
        made is None
        or made.operands[1] is not value
        or any(interior)
        or min((*lo, *hi), default=0) < 0
    ):
        return None
    # What the inner pad cropped must not come back.
    if min((*made.attrs["lo"], *made.attrs["hi"]), default=0) < 0:
        return None
    return rows.pad(
        made.operands[0],
        value,
        lo=tuple(map(sum, zip(lo, made.attrs["lo"], strict=True))),
        hi=tuple(map(sum, zip(hi, made.attrs["hi"], strict=True))),
        interior=made.attrs["interior"],
    )


@rule("concatenate")
def concatenate_slices(*operands: Value, dim: int) -> Value | None:
    """concatenate(slice(x, start=(0,), limit=(1,)), slice(x, start=(1,), limit=(3,)), dim=0)
        -> slice(x, start=(0,), limit=(3,))

    Only neighbours of stride 1.
    """
    for i, (left, right) in enumerate(pairwise(operands)):
        joined = _joined(made_by(left, "slice"), made_by(right, "slice"), dim)
        if joined is not None:
            rest = (*operands[:i], joined, *operands[i + 2 :])
            return rows.concatenate(*rest, dim=dim) if len(rest) > 1 else joined
    return None


def _joined(left: Instr | None, right: Instr | None, dim: int) -> Value | None:
    if left is None or right is None or left.operands[0] is not right.operands[0]:
        return None
    a, b = left.attrs, right.attrs
    if a["stride"][dim] != 1 or b["stride"] != a["stride"] or a["limit"][dim] != b["start"][dim]:
        return None
    for d in range(len(a["start"])):
        if d != dim and (a["start"][d], a["limit"][d]) != (b["start"][d], b["limit"][d]):
            return None
    limit = (*a["limit"][:dim], b["limit"][dim], *a["limit"][dim + 1 :])
    return rows.slice(left.operands[0], start=a["start"], limit=limit, stride=a["stride"])


RULES: tuple[Rule, ...] = (
    slice_padded,
    slice_concatenated,
    slice_broadcast,
    pad_twice,
    concatenate_slices,
)
