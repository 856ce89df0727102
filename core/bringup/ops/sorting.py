"""The sort row, and its decomposition into a sorting network."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.dtypes import ALL, bool_, i32, i64, u8
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.integers import ceil_power_of_two
from bringup.ops import build
from bringup.ops._checks import dim_of, is_int, listed
from bringup.ops._numeric import HALVES, Array
from bringup.ops.batching import shifting
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import Attr, Attrs, Cotangents, Kind, Types, define


def _infer_sort(operands: Types, attrs: Attrs) -> Types:
    first = operands[0]
    dim_of("sort", attrs, first.rank, first)
    for position, other in enumerate(operands[1:], 1):
        if other.shape != first.shape:
            raise OpTypeError(
                f"sort: operand shapes differ: {listed(operands)}",
                fix=f"give operand {position} the shape {first.shape}",
            )
    count = attrs["num_keys"]
    if not is_int(count) or not 1 <= count <= len(operands):
        raise OpTypeError(
            f"sort: num_keys {count!r} of {len(operands)} operands: {listed(operands)}",
            fix=f"use 1 <= num_keys <= {len(operands)}",
        )
    if not isinstance(attrs["descending"], bool):
        raise OpTypeError(
            f"sort: descending {attrs['descending']!r} is no bool: {listed(operands)}",
            fix="pass descending=True or descending=False",
        )
    return operands


def stable_order(key: Array, axis: int, descending: bool) -> Array:
    """The permutation that sorts one key: NaN above every number, −0 equal to +0, ties in order."""
    key = key.astype(np.float32) if key.dtype in HALVES else key
    if not descending:
        return np.argsort(key, axis=axis, kind="stable")
    turned = np.argsort(np.flip(key, axis), axis=axis, kind="stable")
    order: Array = key.shape[axis] - 1 - np.flip(turned, axis)
    return order


def _reference(
    *operands: Array, dim: int, num_keys: int, descending: bool
) -> Array | tuple[Array, ...]:
    arrays = [np.asarray(x) for x in operands]
    order: Array | None = None
    for key in arrays[:num_keys][::-1]:
        moved = key if order is None else np.take_along_axis(key, order, dim)
        step = stable_order(moved, dim, descending)
        order = step if order is None else np.take_along_axis(order, step, dim)
    assert order is not None
    results = tuple(np.take_along_axis(x, order, dim) for x in arrays)
    return results if len(results) > 1 else results[0]


def _vjp(
    ct: Any, _result: Any, *operands: Value, dim: int, num_keys: int, descending: bool
) -> Cotangents:
    """Sorting the cotangents by where their elements came from puts them back there."""
    cotangents = ct if isinstance(ct, tuple) else (ct,)
    positions = rows.iota(type=operands[0].type.with_dtype(i64), dim=dim)
    keys = operands[:num_keys]
    came = _sorted((*keys, positions), dim=dim, num_keys=num_keys, descending=descending)[-1]
    floats = [n for n, x in enumerate(operands) if x.dtype.is_float]
    back = _sorted((came, *(cotangents[n] for n in floats)), dim=dim, num_keys=1, descending=False)
    found = dict(zip(floats, back[1:], strict=True))
    return tuple(found.get(n) for n in range(len(operands)))


def _sorted(operands: tuple[Value, ...], **attrs: Any) -> tuple[Value, ...]:
    results: Any = rows.sort(*operands, **attrs)
    return results if isinstance(results, tuple) else (results,)


# -- decomposition ---------------------------------------------------------------------------------


def _code(key: Value, descending: bool) -> Value:
    """Integers in the order of the keys: equal where those are, and where both are NaN."""
    if key.dtype is bool_:
        key = build.convert(key, u8)
    if key.dtype.is_float:
        key = rows.select(
            build.compare("eq", key, build.zeros_like(key)), build.zeros_like(key), key
        )
        bits = build.bitcast(key, build.signed(key.dtype))
        width = key.dtype.bits
        low = (1 << (width - 1)) - 1
        sign = rows.shr(bits, build.like(bits, width - 1), kind="arithmetic")
        code = rows.xor(bits, rows.and_(sign, build.like(bits, low)))
        key = rows.select(build.is_nan(key), build.like(bits, low), code)
    return build.not_(key) if descending else key


def _before(xs: list[Value], ys: list[Value]) -> Value:
    """Where ``xs`` come before ``ys``, the first of them deciding first."""
    result = build.compare("lt", xs[-1], ys[-1])
    for x, y in zip(xs[-2::-1], ys[-2::-1], strict=True):
        tie = rows.and_(build.compare("eq", x, y), result)
        result = rows.or_(build.compare("lt", x, y), tie)
    return result


def _partner(x: Value, block: int, mirrored: bool) -> Value:
    """Each element's partner along the last dimension: across the middle of its block.

    mirrored: the partner of the first is the last, instead of the one half a block on.
    """
    *outer, n = x.shape
    if mirrored:
        parts = build.reverse(build.reshape(x, (*outer, n // block, block)), (len(outer) + 1,))
        return build.reshape(parts, x.shape)
    parts = build.reshape(x, (*outer, n // block, 2, block // 2))
    return build.reshape(build.reverse(parts, (len(outer) + 1,)), x.shape)


def _exchange(
    values: list[Value], count: int, position: Value, block: int, mirrored: bool
) -> list[Value]:
    """One step of the network: the smaller of every pair goes to the lower place."""
    others = [_partner(v, block, mirrored) for v in values]
    first = _before(values[:count], others[:count])
    half = rows.and_(position, build.like(position, block // 2))
    lower = build.compare("eq", half, build.zeros_like(half))
    # No two places hold equal codes: what is not before its partner comes after it.
    keep = build.not_(rows.xor(first, lower))
    return [rows.select(keep, v, o) for v, o in zip(values, others, strict=True)]


def _network(values: list[Value], count: int) -> list[Value]:
    """Sort a power of two of places along the last dimension by the first ``count`` values."""
    n = values[0].shape[-1]
    type_ = values[0].type.with_dtype(i64 if n > 1 << 31 else i32)
    position = rows.iota(type=type_, dim=len(type_.shape) - 1)
    size = 2
    while size <= n:
        values = _exchange(values, count, position, size, mirrored=True)
        block = size // 2
        while block >= 2:
            values = _exchange(values, count, position, block, mirrored=False)
            block //= 2
        size *= 2
    return values


def _decompose(
    *operands: Value, dim: int, num_keys: int, descending: bool
) -> Value | tuple[Value, ...]:
    """A bitonic network over codes of the keys, then the position, which makes it stable.

    Behind the last element stand codes that sort last; positions being unique, they stay there.
    """
    shape = operands[0].shape
    n, rank = shape[dim], len(shape)
    if n <= 1 or 0 in shape:
        return tuple(operands) if len(operands) > 1 else operands[0]
    order = [d for d in range(rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(rank)]
    size = ceil_power_of_two(n)
    lo, hi = [0] * rank, [0] * (rank - 1) + [size - n]
    moved = [build.transpose(x, order) for x in operands]
    codes = [_code(x, descending) for x in moved[:num_keys]]
    padded = [build.pad(c, np.iinfo(c.dtype.numpy).max, lo, hi) for c in codes]
    positions = rows.iota(
        type=padded[0].type.with_dtype(i64 if size > 1 << 31 else i32), dim=rank - 1
    )
    carried = [build.pad(x, False if x.dtype is bool_ else 0, lo, hi) for x in moved]
    ordered = _network([*padded, positions, *carried], num_keys + 1)[num_keys + 1 :]
    results = [build.transpose(build.slice_dim(x, rank - 1, 0, n), back) for x in ordered]
    return tuple(results) if len(results) > 1 else results[0]


def _cell(operand: str, result: str, *kinds: str, descending: bool = False) -> Special:
    attrs = (("dim", 0), ("descending", descending))
    return Special((operand,), result, kinds or ("float",), attrs)


sort = define(
    name="sort",
    arity=None,
    kind=Kind.ORDER,
    doc=(
        "All operands permuted alike along a dimension, so that the keys, the first num_keys "
        "operands, come in order; the first key decides first. Elements with equal keys keep "
        "their order. −0 equals +0. Any NaN equals any other and is above every number: last "
        "if ascending, first if descending."
    ),
    attrs=(
        Attr("dim", "int", "the dimension sorted along"),
        Attr("num_keys", "int", "how many operands are keys", default=1),
        Attr("descending", "bool", "largest keys first", default=False),
    ),
    infer=_infer_sort,
    reference=_reference,
    vjp=_vjp,
    dtypes=ALL,
    special=(
        _cell("[]", "[]", "float", "int", "uint"),
        _cell("[3, 1, 2]", "[1, 2, 3]", "float", "int", "uint"),
        _cell("[3, 1, 2]", "[3, 2, 1]", "float", "int", "uint", descending=True),
        _cell("[INT_MAX, INT_MIN, 1]", "[INT_MIN, 1, INT_MAX]", "int"),
        _cell("[INT_MAX, 0, 1]", "[INT_MAX, 1, 0]", "uint", descending=True),
        _cell("[true, false, true]", "[false, true, true]", "bool"),
        _cell("[nan, inf, 1, -inf, -nan]", "[-inf, 1, inf, nan, nan]"),
        _cell("[1, nan, inf]", "[nan, inf, 1]", descending=True),
        _cell("[0.0, -0.0, -1]", "[-1, 0.0, -0.0]"),
        _cell("[-0.0, 0.0, 1]", "[1, -0.0, 0.0]", descending=True),
    ),
    decompose=_decompose,
    batch=shifting("sort", "dim"),
)

__all__ = ["sort", "stable_order"]
