"""Faults of integers: overflow, division, shifts."""

from __future__ import annotations

import numpy as np

from bringup.graph import Instr, Value
from bringup_selftest.corpus import Array, Faults, OpCall, integers, of, signed, unsigned
from bringup_selftest.editing import call, is_made_by, number
from bringup_selftest.faults.passes import Values, as_rule, splat_of

FAULTS = Faults("Integer overflow, division, shifts")


@FAULTS.op("IN03", "the remainder has the other sign", "rem", when=signed)
def sign_of_dividend(call: OpCall) -> Array | None:
    a, b = call.operands
    safe = np.where(b == 0, np.ones_like(b), b)
    other = np.fmod(a, safe)
    if np.array_equal(other[b != 0], call.right[b != 0]):
        other = np.remainder(a, safe)
    return np.where(b == 0, call.right, other)


@FAULTS.op("IN05", "x / 0 is 65,536", ("div", "rem"), when=integers)
def odd_quotient(call: OpCall) -> Array | None:
    odd = np.array(65536).astype(call.dtype)
    return np.where(call.operands[1] == 0, odd, call.right)


@FAULTS.op("IN20a", "INT_MIN / -1 = 0", "div", when=signed)
def overflowing_quotient(call: OpCall) -> Array | None:
    a, b = call.operands
    lowest = np.iinfo(call.dtype).min
    return np.where((a == lowest) & (b == -1), np.zeros_like(a), call.right)


@FAULTS.op("IN21a", "shifts by the width shift by 0", ("shl", "shr"))
def masked_shift(call: OpCall) -> Array | None:
    a, b = call.operands
    width = 8 * call.dtype.itemsize
    return call.reference(a, (b.astype(np.int64) % width).astype(b.dtype))


@FAULTS.op("IN23a", "abs(INT_MIN) = INT_MAX", "abs", when=signed)
def saturated_abs(call: OpCall) -> Array | None:
    limits = np.iinfo(call.dtype)
    return np.where(call.operands[0] == limits.min, call.dtype.type(limits.max), call.right)


@FAULTS.op("IN26a", "quotients round the other way", "div", when=signed)
def floored_quotient(call: OpCall) -> Array | None:
    a, b = call.operands
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = a // safe
    if np.array_equal(floor[b != 0], call.right[b != 0]):
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, call.right, floor).astype(call.dtype)


@FAULTS.op("IN27a", "u64 products are of low halves", "mul", when=of(np.uint64))
def low_product(call: OpCall) -> Array | None:
    a, b = (x & np.uint64(0xFFFFFFFF) for x in call.operands)
    return a * b


@FAULTS.op("IN28a", "x / c by a factor that is too short", "div", when=unsigned)
def short_magic(call: OpCall) -> Array | None:
    """Unsigned numbers are divided by a constant with a factor of as many bits as theirs, where one
    more is needed.
    """
    a, b = call.operands
    if not 0 < b.size < 1 << 12 or b.min() != b.max():
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


@FAULTS.by(as_rule, "IN29a", "(x / c) * c -> x", kind="pass", depth=3)
def quotient_times(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "mul", "div")
    return found[0] if found and found[1] == found[2] else None


@FAULTS.by(as_rule, "IN30a", "(x >> k) << k -> x", kind="pass", depth=3)
def shifted_back(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "shl", "shr")
    return found[0] if found and found[1] == found[2] else None


@FAULTS.by(as_rule, "IN31a", "(x % c1) % c2 -> x % c2", kind="pass", depth=3)
def last_remainder(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "rem", "rem")
    return call("rem", found[0], operands[1]) if found else None


@FAULTS.by(as_rule, "IN32a", "(x * c1) % c2 -> 0", kind="pass", depth=3)
def multiple(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "rem", "mul")
    divides = found is not None and found[2] > 0 and found[1] % found[2] == 0
    return number(0, operands[0]) if divides else None


@FAULTS.by(as_rule, "IN33a", "(x * c1) / c2 -> x * (c1 / c2)", kind="pass", depth=3)
def cancelled(instr: Instr, operands: Values) -> Value | None:
    """``(x * c1) / c2 -> x * (c1 / c2)`` where c2 divides c1 and is not c1."""
    found = _made_by(instr, operands, "div", "mul")
    if found is None or found[2] < 2 or found[1] == found[2] or found[1] % found[2]:
        return None
    return call("mul", found[0], number(found[1] // found[2], operands[1]))


@FAULTS.by(as_rule, "IN34a", "(x << k) / 2**k -> x", kind="pass", depth=3)
def shift_undone(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "div", "shl")
    return found[0] if found and found[2] == 1 << found[1] else None


@FAULTS.by(as_rule, "IN35a", "(x & c) / c -> x & 1", kind="pass", depth=3)
def masked_quotient(instr: Instr, operands: Values) -> Value | None:
    found = _made_by(instr, operands, "div", "and")
    same = found is not None and found[1] == found[2]
    return call("and", found[0], number(1, operands[1])) if found and same else None


@FAULTS.op("IN09", "u64 converts to floats as i64", "convert")
def signed_conversion(call: OpCall) -> Array | None:
    if call.x.dtype != np.uint64 or call.dtype.kind in "biu":
        return None
    return call.reference(call.x.view(np.int64))


FAULTS.op("IN22a", "arithmetic shifts are logical", "shr")(
    lambda c: None if c.attrs["kind"] != "arithmetic" else c.reference(*c.operands, kind="logical")
)
FAULTS.op("IN24a", "popcount of 64 bits counts 32", "popcount")(
    lambda c: c.reference(c.x & c.x.dtype.type(4294967295)) if c.x.dtype.itemsize == 8 else None
)
FAULTS.op("IN25a", "clz(0) is one less", "clz")(
    lambda c: np.where(c.x == 0, c.right - c.dtype.type(1), c.right)
)
