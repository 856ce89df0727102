"""Multiply-adds of f32 with one rounding, for processors without the instruction.

A product of two f32 is exact in f64.  Its sum with a third one is rounded to f64, then to f32: that
is one rounding unless the first one ended halfway between two f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm.text import Builder, Function, Param, Type, Val, const, f32, f64, i32, i64, vec

#: Lanes of the function: a register of 128 bits, which processors without the instruction have.
_LANES = 4
#: What f64 has beyond f32, and half of the last place of f32 in it.
_BEYOND, _HALF = (1 << 29) - 1, 1 << 28
_SIGN, _LEAST_NORMAL = 1 << 31, 1 << 23


def multiply_add(b: Builder, x: Val, y: Val, z: Val) -> Val:
    """``x * y + z``, rounded once; vectors of f32 by calls of a function of the module."""
    lanes = x.type.lanes
    if x.type.scalar is not f32 or lanes == 1:
        return b.intrinsic("llvm.fma", x.type, (x, y, z))
    name = f"bringup.muladd.v{_LANES}f32"
    function = b.module.functions.get(name) or _define(b, name)
    if lanes == _LANES:
        return b.call(function, (x, y, z))
    parts = []
    for start in range(0, lanes, _LANES):
        order = [min(start + n, lanes - 1) for n in range(_LANES)]
        parts.append(b.call(function, [b.shufflevector(v, None, order) for v in (x, y, z)]))
    return _joined(b, parts, lanes)


def _joined(b: Builder, parts: Sequence[Val], lanes: int) -> Val:
    """The first lanes of vectors one after the other."""
    while len(parts) > 1:
        count = 2 * parts[0].type.lanes
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shufflevector(low, high, range(count)) for low, high in pairs]
    return parts[0] if lanes >= _LANES else b.shufflevector(parts[0], None, range(lanes))


def _define(outer: Builder, name: str) -> Function:
    """The function: all lanes the fast way, and again if one of them may be wrong."""
    wide, words = vec(f32, _LANES), vec(i32, _LANES)
    params: list[Param] = [(n, wide) for n in ("x", "y", "z")]
    function = outer.module.function(
        name, wide, params, attrs="noinline nounwind", linkage="internal"
    )
    b = Builder(function.block("entry"))
    half = _LANES // 2
    products, addends, sums = [], [], []
    for start in (0, half):
        order = range(start, start + half)
        x, y, z = (b.fpext(b.shufflevector(v, None, order), vec(f64, half)) for v in function.args)
        products.append(b.fmul(x, y))
        addends.append(z)
        sums.append(b.fadd(products[-1], z))
    result = _narrowed(b, sums)
    # A subnormal result has fewer places, so its halves are others.
    left, right = (b.bitcast(s, words) for s in sums)
    low = b.shufflevector(left, right, range(0, 2 * _LANES, 2))
    doubtful = b.icmp("eq", b.and_(low, const(words, _BEYOND)), const(words, _HALF))
    size = b.and_(b.bitcast(result, words), const(words, _SIGN - 1))
    small = b.icmp("ult", b.sub(size, const(words, 1)), const(words, _LEAST_NORMAL))
    some = b.reduce("or", b.or_(doubtful, small))

    def again() -> Val:
        odd = [odd_sum(b, p, z) for p, z in zip(products, addends, strict=True)]
        return _narrowed(b, odd)

    b.ret(b.cond(some, again, lambda: result)[0])
    return function


def _narrowed(b: Builder, parts: Sequence[Val]) -> Val:
    low, high = (b.fptrunc(part, vec(f32, part.type.lanes)) for part in parts)
    return b.shufflevector(low, high, range(2 * low.type.lanes))


def two_sum(b: Builder, x: Val, y: Val) -> tuple[Val, Val]:
    """A sum and its rounding error; D. E. Knuth, "Seminumerical Algorithms", 4.2.2."""
    total = b.fadd(x, y)
    part = b.fsub(total, x)
    return total, b.fadd(b.fsub(x, b.fsub(total, part)), b.fsub(y, part))


def odd_sum(b: Builder, x: Val, y: Val) -> Val:
    """A sum of f64 whose last bit is set where it is not exact; S. Boldo and G. Melquiond,
    "Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 57, 2008.
    """
    word: Type = vec(i64, x.type.lanes)
    total, error = two_sum(b, x, y)
    bits = b.bitcast(total, word)
    even = b.icmp("eq", b.and_(bits, const(word, 1)), const(word, 0))
    inexact = b.fcmp("one", error, const(x.type, 0.0))
    # Towards the error: away from zero where both have one sign.
    differ = b.icmp("slt", b.xor(bits, b.bitcast(error, word)), const(word, 0))
    step = b.select(differ, const(word, -1), const(word, 1))
    moved = b.bitcast(b.add(bits, step), x.type)
    return b.select(b.and_(even, inexact), moved, total)


__all__ = ["multiply_add", "odd_sum", "two_sum"]
