"""Rules on bits, comparisons and choices."""

from __future__ import annotations

from bringup.dtypes import bool_
from bringup.graph import Value
from bringup.ops.build import all_ones, compare, not_, rows, splat, zeros_like
from bringup.passes.rewrite import Rule, in_order, is_splat, made_by, rule

_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _is_ones(value: Value) -> bool:
    return not value.dtype.is_float and is_splat(value, all_ones(value.dtype))


def _negated(value: Value) -> Value | None:
    """The operand of a boolean negation."""
    producer = made_by(value, "xor")
    if producer is None or value.dtype is not bool_ or not _is_ones(producer.operands[1]):
        return None
    return producer.operands[0]


@rule("and")
def and_constant(x: Value, y: Value) -> Value | None:
    """and_(x, -1) -> x where x: i32[4]
    and_(x, 0) -> 0 where x: i32[4]
    and_(x, True) -> x where x: bool[4]
    """
    if _is_ones(y):
        return x
    return y if is_splat(y, 0) else None


@rule("or")
def or_constant(x: Value, y: Value) -> Value | None:
    """or_(x, 0) -> x where x: i32[4]
    or_(x, -1) -> -1 where x: i32[4]
    or_(x, True) -> True where x: bool[4]
    """
    if is_splat(y, 0):
        return x
    return y if _is_ones(y) else None


@rule("xor")
def xor_nothing(x: Value, y: Value) -> Value | None:
    """xor(x, 0) -> x where x: i32[4]
    xor(x, x) -> 0 where x: i32[4]
    """
    if is_splat(y, 0):
        return x
    return zeros_like(x) if x is y else None


@rule("shl", "shr")
def shift_nothing(x: Value, y: Value, **_: str) -> Value | None:
    """shl(x, 0) -> x where x: i32[4]
    shr(x, 0, kind="arithmetic") -> x where x: i32[4]
    """
    return x if is_splat(y, 0) else None


@rule("compare")
def compare_direction(x: Value, y: Value, *, direction: str) -> Value | None:
    """compare(x, y, direction="gt") -> compare(y, x, direction="lt")
    compare(x, y, direction="ge") -> compare(y, x, direction="le")
    """
    turned = {"gt": "lt", "ge": "le"}.get(direction)
    return compare(turned, y, x) if turned is not None else None


@rule("compare")
def compare_commuted(x: Value, y: Value, *, direction: str) -> Value | None:
    """compare(y, x, direction="eq") -> compare(x, y, direction="eq")
    compare(1, x, direction="ne") -> compare(x, 1, direction="ne")
    """
    if direction not in ("eq", "ne") or in_order(x, y):
        return None
    return compare(direction, y, x)


@rule("compare")
def compare_itself(x: Value, y: Value, *, direction: str) -> Value | None:
    """compare(x, x, direction="lt") -> False
    compare(x, x, direction="le") -> True where x: i32[4]
    compare(x, x, direction="ne") -> False where x: i32[4]

    On floats, NaN decides all but lt and gt.
    """
    if x is not y or (x.dtype.is_float and direction not in ("lt", "gt")):
        return None
    return splat(direction in ("eq", "le", "ge"), x.type.with_dtype(bool_))


@rule("compare")
def compare_bool(x: Value, y: Value, *, direction: str) -> Value | None:
    """compare(convert(x, dtype=i32), 0, direction="ne") -> x where x: bool[4]"""
    producer = made_by(x, "convert")
    if producer is None or producer.operands[0].dtype is not bool_ or direction != "ne":
        return None
    return producer.operands[0] if is_splat(y, 0) else None


@rule("xor")
def not_compare(x: Value, y: Value) -> Value | None:
    """xor(compare(x, y, direction="eq"), True) -> compare(x, y, direction="ne")
    xor(compare(x, y, direction="lt"), True)
        -> compare(x, y, direction="ge") where x: i32[4], y: i32[4]
    """
    producer = made_by(x, "compare")
    if producer is None or not _is_ones(y):
        return None
    direction: str = producer.attrs["direction"]
    if producer.operands[0].dtype.is_float and direction not in ("eq", "ne"):
        return None
    return compare(_OPPOSITE[direction], *producer.operands)


@rule("select")
def select_known(c: Value, x: Value, y: Value) -> Value | None:
    """select(True, x, y) -> x
    select(False, x, y) -> y
    select(c, x, x) -> x where c: bool[4]
    """
    if x is y or is_splat(c, True):
        return x
    return y if is_splat(c, False) else None


@rule("select")
def select_negated(c: Value, x: Value, y: Value) -> Value | None:
    """select(xor(c, True), x, y) -> select(c, y, x) where c: bool[4]"""
    plain = _negated(c)
    return rows.select(plain, y, x) if plain is not None else None


@rule("select")
def select_bool(c: Value, x: Value, y: Value) -> Value | None:
    """select(c, True, False) -> c where c: bool[4]
    select(c, False, True) -> xor(c, True) where c: bool[4]
    """
    if x.dtype is not bool_ or c.type is not x.type:
        return None
    if is_splat(x, True) and is_splat(y, False):
        return c
    return not_(c) if is_splat(x, False) and is_splat(y, True) else None


@rule("select")
def select_twice(c: Value, x: Value, y: Value) -> Value | None:
    """select(c, select(c, x, y), z) -> select(c, x, z) where c: bool[4]
    select(c, x, select(c, y, z)) -> select(c, x, z) where c: bool[4]
    """
    first, second = made_by(x, "select"), made_by(y, "select")
    if first is not None and first.operands[0] is c:
        return rows.select(c, first.operands[1], y)
    if second is not None and second.operands[0] is c:
        return rows.select(c, x, second.operands[2])
    return None


CANONICAL: tuple[Rule, ...] = (compare_direction, compare_commuted)
RULES: tuple[Rule, ...] = (
    and_constant,
    or_constant,
    xor_nothing,
    shift_nothing,
    compare_itself,
    compare_bool,
    not_compare,
    select_known,
    select_negated,
    select_bool,
    select_twice,
)
