"""Faults of integers: overflow, division, shifts."""

from __future__ import annotations

import numpy as np

from bringup.graph import Instr, Value
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault, with_passes
from bringup_selftest.editing import call, is_made_by, number
from bringup_selftest.faults.passes import Rule, Values, ruled, splat_of

GROUP = "Integer overflow, division, shifts"


def _is_integer(array: Array) -> bool:
    return array.dtype.kind in "iu"


def sign_of_dividend(call: OpCall) -> Array | None:
    """The remainder has the other sign convention than declared."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    safe = np.where(b == 0, np.ones_like(b), b)
    other = np.fmod(a, safe)
    if np.array_equal(other[b != 0], call.right[b != 0]):
        other = np.remainder(a, safe)
    return np.where(b == 0, call.right, other)


def odd_quotient(call: OpCall) -> Array | None:
    """X / 0 is 65,536, or what is left of it."""
    if not _is_integer(call.right):
        return None
    odd = np.array(65536).astype(call.dtype)
    return np.where(call.operands[1] == 0, odd, call.right)


def signed_conversion(call: OpCall) -> Array | None:
    """The top bit of u64 is read as a sign."""
    (x,) = call.operands
    if x.dtype != np.uint64 or call.dtype.kind in "biu":
        return None
    return call.reference(x.view(np.int64))


def overflowing_quotient(call: OpCall) -> Array | None:
    """INT_MIN / -1 is 0."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    lowest = np.iinfo(call.dtype).min
    return np.where((a == lowest) & (b == -1), np.zeros_like(a), call.right)


def masked_shift(call: OpCall) -> Array | None:
    """The distance of a shift is taken modulo the width."""
    a, b = call.operands
    width = 8 * call.dtype.itemsize
    return call.reference(a, (b.astype(np.int64) % width).astype(b.dtype))


def logical_shift(call: OpCall) -> Array | None:
    """An arithmetic shift to the right brings in zeros."""
    if call.attrs["kind"] != "arithmetic":
        return None
    return call.reference(*call.operands, kind="logical")


def saturated_abs(call: OpCall) -> Array | None:
    """abs(INT_MIN) is INT_MAX."""
    if call.dtype.kind != "i":
        return None
    limits = np.iinfo(call.dtype)
    return np.where(call.operands[0] == limits.min, call.dtype.type(limits.max), call.right)


def low_population(call: OpCall) -> Array | None:
    """Bits of the low half of 64 are counted alone."""
    (x,) = call.operands
    return call.reference(x & x.dtype.type(0xFFFFFFFF)) if x.dtype.itemsize == 8 else None


def zeros_of_zero(call: OpCall) -> Array | None:
    """clz(0) is one less than the width."""
    (x,) = call.operands
    return np.where(x == 0, call.right - call.dtype.type(1), call.right)


def floored_quotient(call: OpCall) -> Array | None:
    """Integer division rounds the other way."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = a // safe
    if np.array_equal(floor[b != 0], call.right[b != 0]):
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, call.right, floor).astype(call.dtype)


def low_product(call: OpCall) -> Array | None:
    """Only the low halves of u64 are multiplied."""
    if call.dtype != np.uint64:
        return None
    a, b = (x & np.uint64(0xFFFFFFFF) for x in call.operands)
    return a * b


def short_magic(call: OpCall) -> Array | None:
    """Unsigned numbers are divided by a constant with a factor of as many bits as theirs, where one
    more is needed.
    """
    a, b = call.operands
    if call.dtype.kind != "u" or not 0 < b.size < 1 << 12 or b.min() != b.max():
        return None
    c, bits = int(b.flat[0]), 8 * call.dtype.itemsize
    if c & (c - 1) == 0:
        return None
    shift = bits - 1 + (c - 1).bit_length()
    return np.asarray((a.astype(object) * ((1 << shift) // c + 1)) >> shift).astype(call.dtype)


def _made_by(
    instr: Instr, operands: Values, second: str, first: str
) -> tuple[Value, int, int] | None:
    """x, c1 and c2 of ``second(first(x, c1), c2)`` on integers."""
    if instr.op.name != second or not operands[0].dtype.is_integer:
        return None
    if not is_made_by(operands[0], first):
        return None
    made = operands[0].producer
    assert made is not None
    inner, outer = splat_of(made.operands[1]), splat_of(operands[1])
    return None if inner is None or outer is None else (made.operands[0], int(inner), int(outer))


def quotient_times(instr: Instr, operands: Values) -> Value | None:
    """``(x / c) * c -> x``."""
    found = _made_by(instr, operands, "mul", "div")
    return found[0] if found and found[1] == found[2] else None


def shifted_back(instr: Instr, operands: Values) -> Value | None:
    """``(x >> k) << k -> x``."""
    found = _made_by(instr, operands, "shl", "shr")
    return found[0] if found and found[1] == found[2] else None


def last_remainder(instr: Instr, operands: Values) -> Value | None:
    """``(x % c1) % c2 -> x % c2``."""
    found = _made_by(instr, operands, "rem", "rem")
    return call("rem", found[0], operands[1]) if found else None


def multiple(instr: Instr, operands: Values) -> Value | None:
    """``(x * c1) % c2 -> 0`` where c2 divides c1."""
    found = _made_by(instr, operands, "rem", "mul")
    divides = found is not None and found[2] > 0 and found[1] % found[2] == 0
    return number(0, operands[0]) if divides else None


def cancelled(instr: Instr, operands: Values) -> Value | None:
    """``(x * c1) / c2 -> x * (c1 / c2)`` where c2 divides c1 and is not c1."""
    found = _made_by(instr, operands, "div", "mul")
    if found is None or found[2] < 2 or found[1] == found[2] or found[1] % found[2]:
        return None
    return call("mul", found[0], number(found[1] // found[2], operands[1]))


def shift_undone(instr: Instr, operands: Values) -> Value | None:
    """``(x << k) / 2**k -> x``."""
    found = _made_by(instr, operands, "div", "shl")
    return found[0] if found and found[2] == 1 << found[1] else None


def masked_quotient(instr: Instr, operands: Values) -> Value | None:
    """``(x & c) / c -> x & 1``."""
    found = _made_by(instr, operands, "div", "and")
    same = found is not None and found[1] == found[2]
    return call("and", found[0], number(1, operands[1])) if found and same else None


def _rule(id: str, title: str, rule: Rule) -> Fault:
    return Fault(id, GROUP, "pass", title, with_passes(ruled(rule.__name__, rule)), depth=3)


FAULTS: tuple[Fault, ...] = (
    op_fault("IN03", GROUP, "the remainder has the other sign", "rem", sign_of_dividend),
    op_fault("IN05", GROUP, "x / 0 is 65,536", ("div", "rem"), odd_quotient),
    op_fault("IN09", GROUP, "u64 converts to floats as i64", "convert", signed_conversion),
    op_fault("IN20a", GROUP, "INT_MIN / -1 = 0", "div", overflowing_quotient),
    op_fault("IN21a", GROUP, "shifts by the width shift by 0", ("shl", "shr"), masked_shift),
    op_fault("IN22a", GROUP, "arithmetic shifts are logical", "shr", logical_shift),
    op_fault("IN23a", GROUP, "abs(INT_MIN) = INT_MAX", "abs", saturated_abs),
    op_fault("IN24a", GROUP, "popcount of 64 bits counts 32", "popcount", low_population),
    op_fault("IN25a", GROUP, "clz(0) is one less", "clz", zeros_of_zero),
    op_fault("IN26a", GROUP, "quotients round the other way", "div", floored_quotient),
    op_fault("IN28a", GROUP, "x / c by a factor that is too short", "div", short_magic),
    _rule("IN29a", "(x / c) * c -> x", quotient_times),
    _rule("IN30a", "(x >> k) << k -> x", shifted_back),
    _rule("IN31a", "(x % c1) % c2 -> x % c2", last_remainder),
    _rule("IN32a", "(x * c1) % c2 -> 0", multiple),
    _rule("IN33a", "(x * c1) / c2 -> x * (c1 / c2)", cancelled),
    _rule("IN34a", "(x << k) / 2**k -> x", shift_undone),
    _rule("IN35a", "(x & c) / c -> x & 1", masked_quotient),
    op_fault("IN27a", GROUP, "u64 products are of low halves", "mul", low_product),
)
