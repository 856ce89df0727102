"""LLVM types, SSA values and constants, spelled as LLVM IR text."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache

from bringup.records import record


@record(eq=False, repr=False)
class Type:
    """An LLVM first-class type; interned, so ``is`` compares types.

    text: the LLVM spelling.
    code: the spelling inside intrinsic names (``v16f32``).
    scalar: the element type (itself for scalars).
    lanes: 1 for scalars.
    bits: of one element.

    >>> str(vec(f32, 16)), vec(f32, 1) is f32
    ('<16 x float>', True)
    """

    text: str
    code: str
    bits: int = 0
    is_float: bool = False
    is_int: bool = False
    is_pointer: bool = False
    lanes: int = 1
    element: Type | None = None
    members: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:  # pragma: no cover - only for those who debug
        return self.code

    @property
    def scalar(self) -> Type:
        """The element type of a vector, the type itself otherwise."""
        return self.element or self

    def with_lanes(self, n: int) -> Type:
        """The vector of ``n`` such elements; the scalar for ``n == 1``."""
        return vec(self.element or self, n)


void = Type("void", "isVoid")
ptr = Type("ptr", "p0", 64, is_pointer=True)
i1 = Type("i1", "i1", 1, is_int=True)
i8 = Type("i8", "i8", 8, is_int=True)
i16 = Type("i16", "i16", 16, is_int=True)
i32 = Type("i32", "i32", 32, is_int=True)
i64 = Type("i64", "i64", 64, is_int=True)
i128 = Type("i128", "i128", 128, is_int=True)
f16 = Type("half", "f16", 16, is_float=True)
bf16 = Type("bfloat", "bf16", 16, is_float=True)
f32 = Type("float", "f32", 32, is_float=True)
f64 = Type("double", "f64", 64, is_float=True)

_derived: dict[object, Type] = {}


def vec(element: Type, n: int) -> Type:
    """The vector of ``n`` elements; ``n == 1`` gives the element itself."""
    if n == 1:
        return element
    key = (element, n)
    type_ = _derived.get(key)
    if type_ is None:
        assert n > 1, f"a vector of {n}"
        assert element.lanes == 1, f"no vector of {n} x {element}"
        type_ = _derived[key] = Type(
            f"<{n} x {element.text}>",
            f"v{n}{element.code}",
            element.bits,
            element.is_float,
            element.is_int,
            element.is_pointer,
            n,
            element,
        )
    return type_


def integer(bits: int) -> Type:
    """The integer type of any width, such as ``i256``."""
    common = _INTEGERS.get(bits)
    if common is None:
        common = _INTEGERS[bits] = Type(f"i{bits}", f"i{bits}", bits, is_int=True)
    return common


_INTEGERS = {t.bits: t for t in (i1, i8, i16, i32, i64, i128)}


def pointer(address_space: int = 0) -> Type:
    """The opaque pointer type of an address space; ``ptr`` for space 0."""
    if address_space == 0:
        return ptr
    key = ("ptr", address_space)
    if key not in _derived:
        text = f"ptr addrspace({address_space})"
        _derived[key] = Type(text, f"p{address_space}", 64, is_pointer=True)
    return _derived[key]


def array(element: Type, n: int) -> Type:
    """The array type ``[n x element]``, for globals and stack slots."""
    key = ("array", element, n)
    if key not in _derived:
        _derived[key] = Type(f"[{n} x {element.text}]", f"a{n}{element.code}", members=(element,))
    return _derived[key]


def struct_type(*members: Type) -> Type:
    """The literal struct type ``{a, b}``."""
    key = ("struct", members)
    if key not in _derived:
        inner = ", ".join(m.text for m in members)
        code = "sl_" + "".join(m.code for m in members) + "s"
        _derived[key] = Type("{ " + inner + " }", code, members=members)
    return _derived[key]


class Val:
    """An operand: SSA name or constant text, and its type.  Immutable by convention.

    integer: the value of a scalar integer constant, None for any other operand.
    """

    __slots__ = ("integer", "text", "type")

    def __init__(self, text: str, type: Type, integer: int | None = None) -> None:
        self.text = text
        self.type = type
        self.integer = integer

    def __repr__(self) -> str:
        return f"{self.type.text} {self.text}"

    __str__ = __repr__

    @property
    def is_constant(self) -> bool:
        """Whether this is a literal (not an SSA name)."""
        return self.text[0] != "%"


def _round_bits(value: float, mantissa: int, low_exponent: int, high_exponent: int) -> float:
    """``value`` rounded once (to nearest even) to a narrow binary format, as a Python float."""
    if value == 0.0 or not math.isfinite(value):
        return value
    quantum = max(math.frexp(value)[1] - mantissa, low_exponent)
    rounded = math.ldexp(round(math.ldexp(value, -quantum)), quantum)
    return math.copysign(rounded if abs(rounded) < 2.0**high_exponent else math.inf, value)


def _float_text(type: Type, value: float) -> str:
    # LLVM spells a float constant as the bits of the double of equal value.
    if type is f64 or type is f32:
        narrowed = value if type is f64 else _round_bits(value, 24, -149, 128)
        return "0x" + struct.pack(">d", narrowed).hex().upper()
    if type is f16:
        return "0xH" + struct.pack(">e", _round_bits(value, 11, -24, 16)).hex().upper()
    assert type is bf16, f"no constant of {type}"
    return "0xR" + struct.pack(">f", _round_bits(value, 8, -133, 128)).hex()[:4].upper()


def scalar_text(type: Type, value: float) -> str:
    """The spelling of a scalar constant, without its type."""
    if type.is_float:
        return _float_text(type, float(value))
    if type is i1:
        return "true" if value else "false"
    if type.is_pointer:
        assert value == 0, "the only pointer constant is null"
        return "null"
    assert type.is_int, f"no constant of {type}"
    number = int(value) & ((1 << type.bits) - 1)
    return str(number - (1 << type.bits) if number >> (type.bits - 1) else number)


_constants: dict[tuple[Type, float | str], Val] = {}


def const(type: Type, value: float) -> Val:
    """The constant of ``type``; a vector type gets ``value`` in every lane.

    Integers wrap into the type; floats round to nearest even once (overflow gives infinity).

    >>> const(f32, 0.5), const(vec(i32, 4), 7)
    (float 0x3FE0000000000000, <4 x i32> splat (i32 7))
    """
    # repr keeps 0.0 and -0.0 apart, which == does not.
    key = (type, value if value.__class__ is int else repr(value))
    constant = _constants.get(key)
    if constant is None:
        text, number = scalar_text(type.scalar, value), None
        if type.lanes > 1:
            text = f"splat ({type.scalar.text} {text})"
        elif type.is_int and type is not i1:
            number = int(text)
        constant = _constants[key] = Val(text, type, number)
    return constant


@cache
def i64_const(value: int) -> Val:
    """The constant of type i64, such as an index, a size or an offset."""
    return const(i64, value)


def const_bits(type: Type, bits: int) -> Val:
    """The f32 or f64 constant with exactly these bits: for NaNs with a payload."""
    scalar = type.scalar
    if scalar is f64:
        text = f"0x{bits:016X}"
    else:
        assert scalar is f32, f"no bit constant of {type}"
        sign, exponent, fraction = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
        if exponent != 0xFF:
            return const(type, struct.unpack(">f", bits.to_bytes(4, "big"))[0])
        text = f"0x{sign << 63 | 0x7FF << 52 | fraction << 29:016X}"
    return Val(text if type.lanes == 1 else f"splat ({scalar.text} {text})", type)


def const_vector(element: Type, values: Sequence[float]) -> Val:
    """The constant vector of the given elements; a scalar constant for one value."""
    if len(values) == 1:
        return const(element, values[0])
    inner = ", ".join(f"{element.text} {scalar_text(element, v)}" for v in values)
    return Val(f"<{inner}>", vec(element, len(values)))


def known_lanes(mask: Val) -> list[bool] | None:
    """The lanes of a mask that is written out; None for any other."""
    if mask.type.scalar is not i1 or not mask.text.startswith("<"):
        return None
    return [lane == "i1 true" for lane in mask.text.strip("<>").split(", ")]


def zero(type: Type) -> Val:
    """The all-zero-bits constant of any type."""
    if type.lanes > 1 or type.members:
        return Val("zeroinitializer", type)
    return const(type, 0)


def undef(type: Type) -> Val:
    """The undefined value of a type."""
    return Val("undef", type)


def poison(type: Type) -> Val:
    """The poison value of a type."""
    return Val("poison", type)
