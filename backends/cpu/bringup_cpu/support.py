"""What LLVM calls for instructions that a processor lacks, for libraries that stand alone.

A program of C is not sure to have C's library of mathematics, so these functions are part of the
code.  What every compiler brings for itself, such as arithmetic of f64 in software, is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bringup.llvm.host.emit import Emit, define
from bringup.llvm.host.halves import HALVES, define_extend, define_truncate
from bringup.llvm.math.fused import odd_sum, two_sum
from bringup.llvm.text import Module, Type, Val, const, f32, f64, i64
from bringup_cpu.integer_fma import define_fma

#: 2**27 + 1 splits an f64 into halves whose products are exact; T. J. Dekker, "A floating-point
#: technique for extending the available precision", Numerische Mathematik 18, 1971.
_SPLITTER = 134217729.0
#: Numbers above this are split without overflow only when they are scaled.
_LARGE = 2.0**990


def support_module(names: Collection[str], triple: str, wide: bool = True) -> Module:
    """A module of the functions of these names.  wide: whether the processor computes in f64."""
    module = Module(triple)
    definitions = _DEFINITIONS if wide else {**_DEFINITIONS, "fma": define_fma}
    for name in names:
        definitions[name](module, name)
    return module


def needed_support(code: bytes) -> frozenset[str]:
    """The functions whose names stand in an object file."""
    return frozenset(name for name in _DEFINITIONS if name.encode() in code)


def _round(module: Module, name: str) -> None:
    """To an integer: the nearest one, ties to even, then one step back if that went too far.

    Sums with ``whole``, above which every float is an integer, are rounded to integers.
    """
    type_, whole = (f32, 2.0**23) if name.endswith("f") else (f64, 2.0**52)
    way = name.removesuffix("f")
    b, (x,) = define(module, name, type_, [("x", type_)], internal=False)
    size, limit, one = b.fabs(x), const(type_, whole), const(type_, 1.0)
    with b.if_then(b.not_(b.fcmp("olt", size, limit)), likely=False):
        b.ret(x)
    nearest = b.fsub(b.fadd(size, limit), limit)
    if way == "trunc":
        nearest = b.select(b.fcmp("ogt", nearest, size), b.fsub(nearest, one), nearest)
    nearest = _copysign(b, nearest, x)
    if way in ("floor", "ceil"):
        is_far = b.fcmp("ogt" if way == "floor" else "olt", nearest, x)
        moved = b.fsub(nearest, one) if way == "floor" else b.fadd(nearest, one)
        nearest = b.select(is_far, _copysign(b, moved, x), nearest)
    b.ret(nearest)


def _copysign(b: Emit, size: Val, sign: Val) -> Val:
    return b.intrinsic("llvm.copysign", size.type, (size, sign))


def _square_root(module: Module, name: str) -> None:
    """``sqrt`` of f64, bit by bit, as in FreeBSD's e_sqrt.c: correctly rounded."""
    b, (x,) = define(module, name, f64, [("x", f64)], internal=False)
    bits, zero, one = b.bitcast(x, i64), const(i64, 0), const(i64, 1)
    infinity = const(i64, 0x7FF << 52)
    special = b.or_(b.fcmp("oeq", x, const(f64, 0.0)), b.icmp("eq", bits, infinity))
    with b.rarely(special):
        b.ret(x)
    with b.rarely(b.not_(b.fcmp("ogt", x, const(f64, 0.0)))):
        b.ret(b.fdiv(b.fsub(x, x), b.fsub(x, x)))
    tiny = b.icmp("ult", bits, const(i64, 1 << 52))
    scaled = b.bitcast(b.fmul(x, const(f64, 2.0**54)), i64)
    word = b.select(tiny, scaled, bits)
    power = b.sub(b.lshr(word, const(i64, 52)), const(i64, 1023))
    power = b.select(tiny, b.sub(power, const(i64, 54)), power)
    whole = b.or_(b.and_(word, const(i64, (1 << 52) - 1)), const(i64, 1 << 52))
    odd = b.and_(power, one)
    start = b.shl(b.shl(whole, odd), one)
    carried = [const(i64, 1 << 53), start, zero, zero]
    with b.while_loop(carried, lambda now: b.icmp("ne", now[0], zero)) as loop:
        bit, rest, double, root = loop.carried
        test = b.add(double, bit)
        fits = b.icmp("ule", test, rest)
        left = b.select(fits, b.sub(rest, test), rest)
        loop.next(
            b.lshr(bit, one),
            b.shl(left, one),
            b.select(fits, b.add(test, bit), double),
            b.select(fits, b.add(root, bit), root),
        )
    _, rest, _, root = loop.carried
    inexact = b.icmp("ne", rest, zero)
    rounded = b.select(inexact, b.add(root, b.and_(root, one)), root)
    half = b.ashr(b.sub(power, odd), one)
    exponent = b.shl(b.add(half, const(i64, 0x3FE)), const(i64, 52))
    b.ret(b.bitcast(b.add(b.lshr(rounded, one), exponent), f64))


def _narrow_fma(module: Module, name: str) -> None:
    """``fmaf``: the product is exact in f64; the sum is rounded to odd there, then to f32."""
    b, (x, y, z) = define(module, name, f32, _named(f32), internal=False)
    product = b.fmul(b.fpext(x, f64), b.fpext(y, f64))
    b.ret(b.fptrunc(odd_sum(b, product, b.fpext(z, f64)), f32))


def _wide_fma(module: Module, name: str) -> None:
    """``fma`` by exact parts; S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded
    sums", IEEE Transactions on Computers 57, 2008.  Factors beyond 2**990 are rounded twice.
    """
    b, (x, y, z) = define(module, name, f64, _named(f64), internal=False)
    product = b.fmul(x, y)
    plain = b.fadd(product, z)
    small = [b.fcmp("olt", b.fabs(v), const(f64, _LARGE)) for v in (x, y, product, z)]
    is_small = b.and_(b.and_(small[0], small[1]), b.and_(small[2], small[3]))
    with b.if_then(b.not_(is_small), likely=False):
        b.ret(plain)
    low = _product_error(b, x, y, product)
    first, rest = two_sum(b, z, low)
    high, error = two_sum(b, product, first)
    exact = b.fadd(high, odd_sum(b, rest, error))
    # Its sums lose the sign of a product that is -0.
    b.ret(b.select(b.fcmp("oeq", product, const(f64, 0.0)), plain, exact))


def _named(type_: Type) -> list[tuple[str, Type]]:
    return [(name, type_) for name in ("x", "y", "z")]


def _product_error(b: Emit, x: Val, y: Val, product: Val) -> Val:
    """What rounding a product lost."""
    (xh, xl), (yh, yl) = _halves(b, x), _halves(b, y)
    error = b.fsub(b.fmul(xh, yh), product)
    error = b.fadd(b.fadd(error, b.fmul(xh, yl)), b.fmul(xl, yh))
    return b.fadd(error, b.fmul(xl, yl))


def _halves(b: Emit, x: Val) -> tuple[Val, Val]:
    scaled = b.fmul(x, const(f64, _SPLITTER))
    high = b.fsub(scaled, b.fsub(scaled, x))
    return high, b.fsub(x, high)


_DEFINITIONS: dict[str, Callable[[Module, str], None]] = {
    HALVES["half_extend"]: define_extend,
    HALVES["half_truncate"]: define_truncate,
    "fma": _wide_fma,
    "fmaf": _narrow_fma,
    "sqrt": _square_root,
    **{
        f"{way}{suffix}": _round
        for way in ("ceil", "floor", "roundeven", "trunc")
        for suffix in ("", "f")
    },
}

#: All of them.
NAMES = frozenset(_DEFINITIONS)
