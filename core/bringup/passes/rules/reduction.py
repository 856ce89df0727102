"""Rules on reductions and contractions."""

from __future__ import annotations

from typing import Any

from bringup.graph import Value
from bringup.ops.build import broadcast_to, reshape, rows
from bringup.ops.monoids import MONOIDS
from bringup.passes.rewrite import Rule, made_by, rule

Ints = tuple[int, ...]
Pair = tuple[Ints, Ints]


@rule("reduce")
def reduce_units(x: Value, *, dims: Ints, **_kind: str) -> Value | None:
    """reduce(x, kind="add", dims=(1,)) -> reshape(x, shape=(4,)) where x: f32[4,1]"""
    if any(x.shape[d] != 1 for d in dims):
        return None
    return reshape(x, tuple(n for d, n in enumerate(x.shape) if d not in dims))


@rule("reduce")
def reduce_twice(x: Value, *, kind: str, dims: Ints) -> Value | None:
    """reduce(reduce(x, kind="max", dims=(1,)), kind="max", dims=(1,))
        -> reduce(x, kind="max", dims=(1, 2)) where x: f32[2,3,4]

    Not sums and products of floats: those would round elsewhere.
    """
    made = made_by(x, "reduce")
    if made is None or made.attrs["kind"] != kind or not MONOIDS[kind].is_exact(x.dtype):
        return None
    source, inner = made.operands[0], made.attrs["dims"]
    kept = [d for d in range(len(source.shape)) if d not in inner]
    merged = sorted((*inner, *(kept[d] for d in dims)))
    return rows.reduce(source, kind=kind, dims=tuple(merged))


@rule("reduce")
def reduce_broadcast(x: Value, *, kind: str, dims: Ints) -> Value | None:
    """reduce(broadcast_in_dim(x, shape=(3, 4), dims=(1,)), kind="max", dims=(0,)) -> x

    Folding copies of a value with itself; not for sums and products.
    """
    made = made_by(x, "broadcast_in_dim")
    if made is None or not MONOIDS[kind].is_idempotent:
        return None
    mapped: Ints = made.attrs["dims"]
    copies = [d for d in dims if d not in mapped and x.shape[d]]
    if not copies:
        return None
    left = [d for d in range(len(x.shape)) if d not in copies]
    smaller = broadcast_to(
        made.operands[0], [x.shape[d] for d in left], [left.index(d) for d in mapped]
    )
    rest = tuple(left.index(d) for d in dims if d not in copies)
    return rows.reduce(smaller, kind=kind, dims=rest) if rest else smaller


@rule("reduce")
def reduce_transposed(x: Value, *, kind: str, dims: Ints) -> Value | None:
    """reduce(transpose(x, permutation=(1, 0)), kind="add", dims=(0,))
        -> reduce(x, kind="add", dims=(1,)) where x: f32[2,3]

    Only where the remaining dimensions stay in order.  The order of a sum is unspecified.
    """
    made = made_by(x, "transpose")
    if made is None:
        return None
    order: Ints = made.attrs["permutation"]
    left = [d for i, d in enumerate(order) if i not in dims]
    if left != sorted(left):
        return None
    return rows.reduce(made.operands[0], kind=kind, dims=tuple(sorted(order[d] for d in dims)))


@rule("dot_general")
def dot_transposed(x: Value, y: Value, *, batch: Pair, contract: Pair, **kept: Any) -> Value | None:
    """dot_general(transpose(x, permutation=(1, 0)), y, batch=((), ()), contract=((1,), (0,)))
        -> dot_general(x, y, batch=((), ()), contract=((0,), (0,)))
        where x: f32[3,2], y: f32[3,4]
    dot_general(x, transpose(y, permutation=(1, 0)), batch=((), ()), contract=((1,), (0,)))
        -> dot_general(x, y, batch=((), ()), contract=((1,), (1,)))
        where x: f32[2,3], y: f32[4,3]

    Only where the free dimensions stay in order.
    """
    operands, batches, contracts = [x, y], list(batch), list(contract)
    for side in (0, 1):
        made = made_by(operands[side], "transpose")
        if made is None:
            continue
        order: Ints = made.attrs["permutation"]
        named = {*batches[side], *contracts[side]}
        free = [d for i, d in enumerate(order) if i not in named]
        if free == sorted(free):
            operands[side] = made.operands[0]
            batches[side] = tuple(order[d] for d in batches[side])
            contracts[side] = tuple(order[d] for d in contracts[side])
    if operands == [x, y]:
        return None
    return rows.dot_general(
        *operands,
        batch=tuple(batches),
        contract=tuple(contracts),
        **kept,
    )


RULES: tuple[Rule, ...] = (
    reduce_units,
    reduce_twice,
    reduce_broadcast,
    reduce_transposed,
    dot_transposed,
)
