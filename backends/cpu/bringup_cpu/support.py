"""What LLVM calls for instructions that a processor lacks, for libraries that stand alone.

A program of C is not sure to have C's library of mathematics; multiply-adds, and conversions of f16,
are part of the code where the processor has no instructions for them.
"""

from __future__ import annotations

from bringup.llvm.host.emit import Emit, define
from bringup.llvm.host.halves import HALVES, define_halves
from bringup.llvm.text import Module, Type, Val, const, f32, f64, i64

#: 2**27 + 1 splits an f64 into halves whose products are exact; T. J. Dekker, "A floating-point
#: technique for extending the available precision", Numerische Mathematik 18, 1971.
_SPLITTER = 134217729.0
#: Numbers above this are split without overflow only when they are scaled.
_LARGE = 2.0**990


def define_support(module: Module) -> None:
    """Define the functions in a module of their own; a library keeps those that it calls."""
    define_halves(module, *HALVES.values())
    _narrow_fma(module)
    _wide_fma(module)


def _narrow_fma(module: Module) -> None:
    """``fmaf``: the product is exact in f64; the sum is rounded to odd there, then to f32."""
    b, (x, y, z) = define(module, "fmaf", f32, _named(f32), internal=False)
    product = b.fmul(b.fpext(x, f64), b.fpext(y, f64))
    b.ret(b.fptrunc(_odd_sum(b, product, b.fpext(z, f64)), f32))


def _wide_fma(module: Module) -> None:
    """``fma`` by exact parts; S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded
    sums", IEEE Transactions on Computers 57, 2008.  Factors beyond 2**990 are rounded twice.
    """
    b, (x, y, z) = define(module, "fma", f64, _named(f64), internal=False)
    product = b.fmul(x, y)
    plain = b.fadd(product, z)
    small = [b.fcmp("olt", b.fabs(v), const(f64, _LARGE)) for v in (x, y, product, z)]
    is_small = b.and_(b.and_(small[0], small[1]), b.and_(small[2], small[3]))
    with b.if_then(b.not_(is_small), likely=False):
        b.ret(plain)
    low = _product_error(b, x, y, product)
    first, rest = _two_sum(b, z, low)
    high, error = _two_sum(b, product, first)
    b.ret(b.fadd(high, _odd_sum(b, rest, error)))


def _named(type_: Type) -> list[tuple[str, Type]]:
    return [(name, type_) for name in ("x", "y", "z")]


def _two_sum(b: Emit, x: Val, y: Val) -> tuple[Val, Val]:
    """A sum and its rounding error; D. E. Knuth, "Seminumerical Algorithms", 4.2.2."""
    total = b.fadd(x, y)
    part = b.fsub(total, x)
    return total, b.fadd(b.fsub(x, b.fsub(total, part)), b.fsub(y, part))


def _odd_sum(b: Emit, x: Val, y: Val) -> Val:
    """A sum whose last bit is set where it is not exact."""
    total, error = _two_sum(b, x, y)
    bits = b.bitcast(total, i64)
    even = b.icmp("eq", b.and_(bits, const(i64, 1)), const(i64, 0))
    inexact = b.fcmp("one", error, const(f64, 0.0))
    # Towards the error: away from zero where both have one sign.
    differ = b.icmp("slt", b.xor(bits, b.bitcast(error, i64)), const(i64, 0))
    step = b.select(differ, const(i64, -1), const(i64, 1))
    moved = b.bitcast(b.add(bits, step), f64)
    return b.select(b.and_(even, inexact), moved, total)


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
