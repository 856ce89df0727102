"""The scalar library: what ops on scalars need beyond the operators of C, one function each.

A function is named by its family and its dtypes, ``bu_max_f32`` or ``bu_f16_of_f32``, and written
when a source first calls it, after those that it calls itself.  The text of every function has
defined behaviour for every operand: signed integers are computed as unsigned ones, shifts and
divisions test their operands first, conversions never leave the range, and bits are moved by
copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from bringup.c.dialect import WIDE, Dialect
from bringup.c.squares import orders
from bringup.dtypes import BY_NAME, DType, f32, f64, i64, u32, u64
from bringup.errors import UnsupportedError
from bringup.records import record

PREFIX = "bu_"


@record
class Layout:
    """The bits of a float narrower than f32.

    stored: bits of the significand.  bias: of the exponent.  top: the largest f32 that rounds to a
    finite number.  beyond: the pattern of what is larger.  quiet: the pattern of NaN.
    """

    stored: int
    bias: int
    top: float
    beyond: int
    quiet: int


#: bf16 has the exponent of f32 and is converted by moving bits.
LAYOUTS = {
    "f16": Layout(10, 15, 65519.99609375, 0x7C00, 0x7E00),
    "f8e4m3fn": Layout(3, 7, 464.0, 0x7F, 0x7F),
    "f8e5m2": Layout(2, 15, 61439.99609375, 0x7C, 0x7E),
}


class Library:
    """The functions that one source uses, in an order in which each comes after those it calls.

    families: what defines functions besides those of this module, by family.
    """

    def __init__(self, dialect: Dialect, families: Mapping[str, Family]) -> None:
        self.dialect = dialect
        self.families = {**FAMILIES, **families}
        self.texts: dict[str, str] = {}
        self.has_f64 = False

    def call(self, name: str, *operands: str) -> str:
        """A call of a function of the library, by its name without the prefix."""
        if name not in self.texts:
            text = self._define(name)  # which comes after those that it calls
            self.texts[name] = text
        return f"{PREFIX}{name}({', '.join(operands)})"

    def type(self, dtype: DType) -> str:
        """What a register of this dtype is declared as."""
        if dtype.name in self.dialect.missing:
            raise UnsupportedError(
                f"{self.dialect.name} has no {dtype}",
                fix="leave the dtype out of the device's claims",
            )
        self.has_f64 = self.has_f64 or dtype is f64
        return self.dialect.types[dtype.name]

    def memory_type(self, dtype: DType) -> str:
        """What an element of a buffer is declared as."""
        return self.type(BY_NAME["u8"] if dtype.name == "bool" else dtype)

    def vector_type(self, dtype: DType, lanes: int) -> str:
        """The type of a vector of registers, declared when it is first asked for."""
        name = f"{PREFIX}{dtype.name}x{lanes}"
        if name not in self.texts:
            bytes_ = lanes * dtype.itemsize
            type_ = self.memory_type(dtype)
            text = self.dialect.vector.format(type=type_, name=name, lanes=lanes, bytes=bytes_)
            self.texts[name] = text
        return name

    def exchange(self, dtype: DType, lanes: int, distance: int) -> str:
        """The function that makes one step of rows to columns (`bringup.c.squares`) of two vectors,
        defined when it is first asked for.
        """
        type_, element = self.vector_type(dtype, lanes), self.memory_type(dtype)
        name = f"exchange{distance}_{dtype.name}x{lanes}"
        if name not in self.texts:
            body = [f"const {type_} first = *x, second = *y;"]
            for row, order in zip("xy", orders(lanes, distance), strict=True):
                ends = [("first", n) if n < lanes else ("second", n - lanes) for n in order]
                each = (self.dialect.lane.format(name=v, index=n, type=element) for v, n in ends)
                text = self.dialect.vector_order.format(
                    x="first",
                    y="second",
                    type=type_,
                    order=", ".join(map(str, order)),
                    lanes=", ".join(each),
                )
                body.append(f"*{row} = {text};")
            self.texts[name] = self.function(name, "void", [f"{type_} *x", f"{type_} *y"], body)
        return f"{PREFIX}{name}"

    def unsigned(self, dtype: DType) -> str:
        """The unsigned type as wide as a dtype."""
        return self.type(BY_NAME[f"u{dtype.bits}"])

    def word(self, dtype: DType) -> str:
        """The unsigned type in which integers of a dtype are computed, not narrower than int."""
        return self.type(u64 if dtype.bits == 64 else u32)

    def integer(self, value: int, dtype: DType) -> str:
        """An integer constant of a dtype."""
        if dtype.kind == "int" and value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
            return f"({self.integer(value + 1, dtype)} - 1)"
        return f"{value}{self.dialect.suffixes.get(dtype.name, '')}"

    def real(self, value: float, dtype: DType) -> str:
        """A constant of f32 or f64, by the shortest text that reads back as the same number."""
        scalar = dtype.numpy.type(value)
        if value - value != 0:  # infinite or NaN
            word = BY_NAME[f"u{dtype.bits}"]
            pattern = int.from_bytes(scalar.tobytes(), "little")
            return self.from_bits(f"{pattern:#x}{self.dialect.suffixes[word.name]}", dtype)
        text = repr(scalar.item()) if dtype is f64 else str(scalar)
        text = text if any(c in text for c in ".e") else f"{text}.0"
        return f"{text}f" if dtype is f32 else text

    def bits(self, x: str, dtype: DType) -> str:
        """The pattern of an f32 or f64 as an unsigned integer."""
        if self.dialect.bits is not None:
            return self.dialect.bits[dtype.name].format(x)
        return self.call(f"bits_of_{dtype.name}", x)

    def from_bits(self, x: str, dtype: DType) -> str:
        """The f32 or f64 of a pattern."""
        if self.dialect.from_bits is not None:
            return self.dialect.from_bits[dtype.name].format(x)
        return self.call(f"{dtype.name}_of_bits", x)

    def native(self, op: str, dtype: DType) -> str | None:
        """The dialect's own function for an op on f32 or f64, if that is good enough."""
        names = self.dialect.functions.get(op)
        return names[WIDE.index(dtype.name)] if names else None

    def widen(self, x: str, dtype: DType) -> str:
        """Floats narrower than f32 as f32; others unchanged."""
        return self.call(f"f32_of_{dtype.name}", x) if is_narrow(dtype) else x

    def narrow(self, x: str, dtype: DType) -> str:
        """An f32 rounded to a narrower float; others unchanged."""
        return self.call(f"{dtype.name}_of_f32", x) if is_narrow(dtype) else x

    def function(self, name: str, result: str, params: Sequence[str], body: Sequence[str]) -> str:
        """The text of a function; ``body`` without indentation."""
        head = f"{self.dialect.function}{result} {PREFIX}{name}({', '.join(params)}) {{"
        lines = [line if line.startswith("#") else f"  {line}" for line in body]
        return "\n".join([head, *lines, "}"])

    def _define(self, name: str) -> str:
        result, _, source = name.partition("_of_")
        if source:
            return define_conversion(self, name, result, source)
        family, _, dtype = name.rpartition("_")
        return self.families[family](self, name, BY_NAME[dtype])


def is_narrow(dtype: DType) -> bool:
    """Whether a float dtype is narrower than f32, so that it is computed in f32 and rounded."""
    return dtype.is_float and dtype.bits <= 16


# -- integers --------------------------------------------------------------------------------------


def _divide(lib: Library, name: str, dtype: DType) -> str:
    """The quotient rounded to 0: all bits set by 0, and INT_MIN / -1 = INT_MIN."""
    t, word = lib.type(dtype), lib.word(dtype)
    signed = dtype.kind == "int"
    every = "-1" if signed else lib.integer((1 << dtype.bits) - 1, dtype)
    body = [f"if (y == 0) return {every};"]
    body += [f"if (y == -1) return ({t})(0 - ({word})x);"] if signed else []
    return lib.function(name, t, (f"{t} x", f"{t} y"), [*body, f"return ({t})(x / y);"])


def _remainder(lib: Library, name: str, dtype: DType) -> str:
    if dtype.is_float:
        return _float_remainder(lib, name, dtype)
    t = lib.type(dtype)
    body = ["if (y == 0) return x;"]
    body += ["if (y == -1) return 0;"] if dtype.kind == "int" else []
    return lib.function(name, t, (f"{t} x", f"{t} y"), [*body, f"return ({t})(x % y);"])


def _shift_left(lib: Library, name: str, dtype: DType) -> str:
    t, u, word = lib.type(dtype), lib.unsigned(dtype), lib.word(dtype)
    shifted = f"({t})(({word})x << (({u})n & {dtype.bits - 1}))"
    body = [f"return ({u})n < {dtype.bits} ? {shifted} : 0;"]
    return lib.function(name, t, (f"{t} x", f"{t} n"), body)


def _shift_right(lib: Library, name: str, dtype: DType) -> str:
    t, u = lib.type(dtype), lib.unsigned(dtype)
    shifted = f"({t})(({u})x >> (({u})n & {dtype.bits - 1}))"
    body = [f"return ({u})n < {dtype.bits} ? {shifted} : 0;"]
    return lib.function(name, t, (f"{t} x", f"{t} n"), body)


def _shift_right_signed(lib: Library, name: str, dtype: DType) -> str:
    """The complement of a negative number is not negative, and C defines how that is shifted."""
    t, u = lib.type(dtype), lib.unsigned(dtype)
    last = dtype.bits - 1
    body = [
        f"const {u} count = ({u})n < {last} ? ({u})n : {last};",
        f"const {u} negative = ({u})-(({u})x >> {last});",
        f"return ({t})((({u})(({u})x ^ negative) >> count) ^ negative);",
    ]
    return lib.function(name, t, (f"{t} x", f"{t} n"), body)


def _popcount(lib: Library, name: str, dtype: DType) -> str:
    """Sums of neighbouring bits, then of pairs, and so on."""
    u = lib.type(dtype)
    suffix = lib.dialect.suffixes.get(dtype.name, "")
    masks = ["0x" + digits * (dtype.bits // 8) + suffix for digits in ("55", "33", "0f", "01")]
    body = [
        f"x = x - ((x >> 1) & {masks[0]});",
        f"x = (x & {masks[1]}) + ((x >> 2) & {masks[1]});",
        f"x = (x + (x >> 4)) & {masks[2]};",
        f"return ({u})(x * {masks[3]}) >> {dtype.bits - 8};",
    ]
    return lib.function(name, u, (f"{u} x",), body)


def _leading_zeros(lib: Library, name: str, dtype: DType) -> str:
    """The zeros of a word in which every bit below the highest one is set."""
    u = lib.type(dtype)
    body = [f"x |= x >> {1 << step};" for step in range(dtype.bits.bit_length() - 1)]
    body.append(f"return {lib.call(f'popcount_{dtype.name}', '~x')};")
    return lib.function(name, u, (f"{u} x",), body)


def _floor_divide(lib: Library, name: str, dtype: DType) -> str:
    t = lib.type(dtype)
    body = ["return x / y - (x % y < 0);"]
    return lib.function(name, t, (f"{t} x", f"{t} y"), body)


def _floor_remainder(lib: Library, name: str, dtype: DType) -> str:
    t = lib.type(dtype)
    body = [f"const {t} rest = x % y;", "return rest < 0 ? rest + y : rest;"]
    return lib.function(name, t, (f"{t} x", f"{t} y"), body)


# -- floats ----------------------------------------------------------------------------------------


def _extremum(op: str) -> Callable[[Library, str, DType], str]:
    """IEEE 754-2019 maximum or minimum: NaN wins, -0 < +0.  The first choice keeps a NaN in y."""
    sign, bitwise = (">", "&") if op == "max" else ("<", "|")

    def define(lib: Library, name: str, dtype: DType) -> str:
        t = lib.type(dtype)
        both = lib.from_bits(f"{lib.bits('x', dtype)} {bitwise} {lib.bits('y', dtype)}", dtype)
        body = [
            f"const {t} chosen = x {sign} y ? x : y;",
            f"const {t} equal = x == y ? {both} : chosen;",
            "return x != x ? x : equal;",
        ]
        return lib.function(name, t, (f"{t} x", f"{t} y"), body)

    return define


def _float_remainder(lib: Library, name: str, dtype: DType) -> str:
    """Exact, in steps: a number is an integer times a power of two; the integer of the dividend is
    shifted up to the power of the divisor, by as many bits at a time as its remainder has room for.
    """
    t, u = lib.type(dtype), lib.unsigned(dtype)
    stored = 23 if dtype is f32 else 52
    mask, hidden = (1 << stored) - 1, 1 << stored
    suffix = lib.dialect.suffixes[f"u{dtype.bits}"]
    size, copysign = lib.native("abs", dtype), lib.native("copysign", dtype)
    body = [
        f"const {u} left = {lib.bits(f'{size}(x)', dtype)};",
        f"const {u} right = {lib.bits(f'{size}(y)', dtype)};",
        f"if (x - x != 0 || y != y || right == 0) return {lib.real(math.nan, dtype)};",
        "if (left < right) return x;",
        f"const {u} power = left >> {stored}, base = right >> {stored};",
        f"const {u} whole = (left & {mask:#x}{suffix}) | (power ? {hidden:#x}{suffix} : 0);",
        f"const {u} part = (right & {mask:#x}{suffix}) | (base ? {hidden:#x}{suffix} : 0);",
        f"{u} rest = whole % part;",
        f"for ({u} far = (power ? power : 1) - (base ? base : 1); far != 0;) {{",
        f"  const {u} step = far < {dtype.bits - stored - 1} ? far : {dtype.bits - stored - 1};",
        "  rest = (rest << step) % part;",
        "  far -= step;",
        "}",
        f"const {u} lowest = 1{suffix} << (((base ? base : 1) - 1) & {dtype.bits - 1});",
        f"const {u} unit = base > {stored} ? (base - {stored}) << {stored} : lowest;",
        f"return {copysign}(({t})rest * {lib.from_bits('unit', dtype)}, x);",
    ]
    return lib.function(name, t, (f"{t} x", f"{t} y"), body)


def _product_sum(lib: Library, name: str, dtype: DType) -> str:
    """``a * b + c``, rounded once where that is one instruction, else twice."""
    t = lib.type(dtype)
    once = [f"return {lib.native('fma', dtype)}(a, b, c);"]
    macros = lib.dialect.fast_fma
    if macros is not None:
        once = [f"#ifdef {macros[WIDE.index(dtype.name)]}", *once]
        once += ["#else", "return a * b + c;", "#endif"]
    return lib.function(name, t, (f"{t} a", f"{t} b", f"{t} c"), once)


def _fused(lib: Library, name: str, dtype: DType) -> str:
    """``a * b + c`` with an exact product.  The sum of f32 is taken in f64 where an fma is a call:
    it is exact if it cancels the product.
    """
    t = lib.type(dtype)
    once = [f"return {lib.native('fma', dtype)}(a, b, c);"]
    macros = lib.dialect.fast_fma
    if macros is not None and dtype is f32:
        double = lib.type(f64)
        once = [f"#ifdef {macros[0]}", *once, "#else"]
        once += [f"return ({t})(({double})a * b + c);", "#endif"]
    return lib.function(name, t, (f"{t} a", f"{t} b", f"{t} c"), once)


def _whole(lib: Library, name: str, dtype: DType) -> str:
    """An integral number within the range of integers as wide, as one; 0 for NaN."""
    t, f = lib.type(BY_NAME[f"i{dtype.bits}"]), lib.type(dtype)
    body = [f"return ({t})(x == x ? x : {lib.real(0.0, dtype)});"]
    return lib.function(name, t, (f"{f} x",), body)


# -- conversions -----------------------------------------------------------------------------------


def define_conversion(lib: Library, name: str, result: str, source: str) -> str:
    """``bu_RESULT_of_SOURCE``: of dtypes, of ``bits``, or rounded to ``odd``."""
    if result == "bits" or source == "bits":
        return _copy_bits(lib, name, BY_NAME[source if result == "bits" else result])
    if result == "odd":
        from_f64 = source == "f64"
        return _odd_of_f64(lib, name) if from_f64 else _odd_of_integer(lib, name, BY_NAME[source])
    to, of = BY_NAME[result], BY_NAME[source]
    if to.is_integer:
        return _saturate(lib, name, to, of)
    if of is f32:
        return _round_to_bf16(lib, name) if result == "bf16" else _round_to(lib, name, to)
    return _widen_bf16(lib, name) if source == "bf16" else _widen(lib, name, of)


def _copy_bits(lib: Library, name: str, dtype: DType) -> str:
    t, u = lib.type(dtype), lib.unsigned(dtype)
    of, to = (t, u) if name.startswith("bits") else (u, t)
    body = [f"{to} y;", "memcpy(&y, &x, sizeof y);", "return y;"]
    return lib.function(name, to, (f"{of} x",), body)


def _saturate(lib: Library, name: str, to: DType, of: DType) -> str:
    """A float truncated to an integer: the nearest one out of range, 0 for NaN."""
    t, f = lib.type(to), lib.type(of)
    signed = to.kind == "int"
    least = -(1 << (to.bits - 1)) if signed else 0
    most = least + (1 << to.bits) - 1
    body = [
        f"if (x >= {lib.real(float(most + 1), of)}) return {lib.integer(most, to)};",
        f"if (x <= {lib.real(float(least), of)}) return {lib.integer(least, to)};",
        f"return x == x ? ({t})x : 0;",
    ]
    return lib.function(name, t, (f"{f} x",), body)


def _round_to(lib: Library, name: str, to: DType) -> str:
    """To nearest even.  Below the normal range, the sum with a number whose last bit is the last
    one that is stored rounds there.
    """
    layout = LAYOUTS[to.name]
    t, u, f = lib.type(to), lib.type(u32), lib.type(f32)
    lost = 23 - layout.stored
    shifter = 2.0 ** (1 - layout.bias - layout.stored + 23)
    size = lib.from_bits("bits", f32)
    lifted = lib.bits(f"size + {lib.real(shifter, f32)}", f32)
    offset = (127 - layout.bias) << 23
    body = [
        f"const {u} sign = {lib.bits('x', f32)} >> {32 - to.bits} & {1 << (to.bits - 1):#x}u;",
        f"const {u} bits = {lib.bits('x', f32)} & 0x7fffffffu;",
        f"const {f} size = {size};",
        f"const {u} even = bits + {(1 << (lost - 1)) - 1:#x}u + (bits >> {lost} & 1u);",
        f"const {u} normal = (even - {offset:#x}u) >> {lost};",
        f"const {u} tiny = {lifted} - {lib.bits(lib.real(shifter, f32), f32)};",
        f"{u} y = size < {lib.real(2.0 ** (1 - layout.bias), f32)} ? tiny : normal;",
        f"y = size > {lib.real(layout.top, f32)} ? {layout.beyond:#x}u : y;",
        f"y = x != x ? {layout.quiet:#x}u : y;",
        f"return ({t})(y | sign);",
    ]
    return lib.function(name, t, (f"{f} x",), body)


def _round_to_bf16(lib: Library, name: str) -> str:
    t, u, f = lib.type(BY_NAME["bf16"]), lib.type(u32), lib.type(f32)
    body = [
        f"const {u} bits = {lib.bits('x', f32)};",
        f"const {u} even = bits + 0x7fffu + (bits >> 16 & 1u);",
        f"return ({t})((x != x ? bits | 0x400000u : even) >> 16);",
    ]
    return lib.function(name, t, (f"{f} x",), body)


def _widen(lib: Library, name: str, of: DType) -> str:
    """Exactly.  The significand of a subnormal number is converted as an integer."""
    layout = LAYOUTS[of.name]
    t, u, f = lib.type(of), lib.type(u32), lib.type(f32)
    sign_bit, lost = of.bits - 1, 23 - layout.stored
    step = lib.real(2.0 ** (1 - layout.bias - layout.stored), f32)
    offset = (127 - layout.bias) << 23
    special = "size == 0x7fu" if of.name == "f8e4m3fn" else f"size >= {layout.beyond:#x}u"
    body = [
        f"const {u} sign = ({u})(x >> {sign_bit}) << 31;",
        f"const {u} size = x & {(1 << sign_bit) - 1:#x}u;",
        f"const {u} tiny = {lib.bits(f'({f})size * {step}', f32)};",
        f"{u} bits = size < {1 << layout.stored:#x}u ? tiny : (size << {lost}) + {offset:#x}u;",
        f"bits = {special} ? size << {lost} | 0x7f800000u : bits;",
        f"return {lib.from_bits('bits | sign', f32)};",
    ]
    return lib.function(name, f, (f"{t} x",), body)


def _widen_bf16(lib: Library, name: str) -> str:
    t, u, f = lib.type(BY_NAME["bf16"]), lib.type(u32), lib.type(f32)
    body = [f"return {lib.from_bits(f'({u})x << 16', f32)};"]
    return lib.function(name, f, (f"{t} x",), body)


def _odd_of_f64(lib: Library, name: str) -> str:
    """An f64 as f32, an inexact one as the neighbour whose last bit is set: rounded once more, to
    22 bits or fewer, that gives what one rounding would have.
    """
    double, f, u = lib.type(f64), lib.type(f32), lib.type(u32)
    size = lib.native("abs", f64)
    body = [
        f"const {f} nearest = ({f})x;",
        f"const {double} back = nearest;",
        f"const {u} bits = {lib.bits('nearest', f32)};",
        f"const {u} step = {size}(back) > {size}(x) ? 0xffffffffu : 1u;",
        "const bool inexact = x == x && back != x && (bits & 1u) == 0u;",
        f"return {lib.from_bits('inexact ? bits + step : bits', f32)};",
    ]
    return lib.function(name, f, (f"{double} x",), body)


def _odd_of_integer(lib: Library, name: str, of: DType) -> str:
    """A 64-bit integer as f32: its leading 24 bits, the last of them set where others are lost."""
    t, f, u, word = lib.type(of), lib.type(f32), lib.type(u32), lib.type(u64)
    if of is i64:
        size = lib.call("odd_of_u64", f"x < 0 ? 0 - ({word})x : ({word})x")
        return lib.function(
            name, f, (f"{t} x",), [f"const {f} size = {size};", "return x < 0 ? -size : size;"]
        )
    zeros = lib.call("clz_u64", "x")
    scale = lib.from_bits("(127u + lost) << 23", f32)
    body = [
        f"const {u} zeros = ({u}){zeros};",
        f"const {u} lost = zeros < 40u ? 40u - zeros : 0u;",
        f"const {word} top = x >> lost;",
        f"const {u} odd = (top << lost) != x;",
        f"return ({f})(({u})top | odd) * {scale};",
    ]
    return lib.function(name, f, (f"{t} x",), body)


Family = Callable[[Library, str, DType], str]

FAMILIES: dict[str, Family] = {
    "div": _divide,
    "rem": _remainder,
    "shl": _shift_left,
    "shr": _shift_right,
    "sar": _shift_right_signed,
    "popcount": _popcount,
    "clz": _leading_zeros,
    "floor_div": _floor_divide,
    "floor_rem": _floor_remainder,
    "whole": _whole,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "muladd": _product_sum,
    "fma": _fused,
}

__all__ = ["Family", "Library", "is_narrow"]
