"""Elementwise ops as expressions of C.

Every op of a kernel body has one renderer here, keyed by the op's name.  Results follow the op
table to the bit where the row says exact.  Registers hold f16, bf16 and floats to store as their
bits; they are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from bringup.c.library import Library, is_narrow
from bringup.dtypes import DType, f32, f64, i64, u32, u64
from bringup.errors import UnsupportedError
from bringup.maths import ELEMENTARY

Attrs = Mapping[str, Any]
#: ``render(lib, operands, attrs, dtype of the leading operand, dtype of the result)``.
Render = Callable[[Library, tuple[str, ...], Attrs, DType, DType], str]


def render(
    lib: Library, op: str, xs: tuple[str, ...], attrs: Attrs, dtype: DType, to: DType
) -> str:
    """The expression of one elementwise instruction.

    xs: operands, names or constants.  dtype, to: of the leading operand and of the result.
    Raises UnsupportedError for an op that has no renderer here.
    """
    renderer = RENDER.get(op)
    if renderer is None:
        raise UnsupportedError(
            f"{op} has no rendering in {lib.dialect.name}",
            fix="leave the op out of the device's kernel claims, so that it is decomposed",
        )
    return renderer(lib, xs, attrs, dtype, to)


def exchanged(lib: Library, dtype: DType, value: str, mask: int) -> str | None:
    """The value of the thread whose number differs in the bits of ``mask``; None without a function
    for it.  What has fewer than 32 bits, an integer in registers, goes through one of 32.
    """
    functions = lib.dialect.shuffle
    if dtype.name in functions:
        return functions[dtype.name].format(value=value, mask=mask)
    if "u32" not in functions or dtype.itemsize >= 4:
        return None
    text = functions["u32"].format(value=f"({lib.type(u32)}){value}", mask=mask)
    return f"({lib.type(dtype)}){text}"


def literal(lib: Library, value: Any, dtype: DType) -> str:
    """The constant of a numpy scalar, bit for bit."""
    if dtype.name == "bool":
        return "true" if value else "false"
    if not dtype.is_float:
        return lib.integer(int(value), dtype)
    value = dtype.numpy.type(value)
    pattern = int.from_bytes(value.tobytes(), "little")
    if is_narrow(dtype):
        return f"{pattern:#x}"
    if math.isnan(value):  # its payload stays
        return lib.from_bits(f"{pattern:#x}{_suffix(lib, dtype)}", dtype)
    return lib.real(float(value), dtype)


def _suffix(lib: Library, dtype: DType) -> str:
    return lib.dialect.suffixes[f"u{dtype.bits}"]


def zero(dtype: DType) -> str:
    """The constant 0 of a register."""
    return {"bool": "false", "f32": "0.0f", "f64": "0.0"}.get(dtype.name, "0")


def combine(lib: Library, kind: str, x: str, y: str, dtype: DType) -> str:
    """One step of a fold."""
    return RENDER[kind](lib, (x, y), {}, dtype, dtype)


def muladd(lib: Library, x: str, y: str, z: str, dtype: DType) -> str:
    """``x * y + z``, rounded once or twice."""
    if is_narrow(dtype):
        xs = (lib.widen(v, dtype) for v in (x, y, z))
        return lib.narrow(lib.call("muladd_f32", *xs), dtype)
    if dtype.is_float:
        return lib.call(f"muladd_{dtype.name}", x, y, z)
    product = _arithmetic("*")(lib, (x, y), {}, dtype, dtype)
    return _arithmetic("+")(lib, (product, z), {}, dtype, dtype)


def _arithmetic(sign: str) -> Render:
    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        if dtype.is_float:
            x, y = (lib.widen(v, dtype) for v in xs)
            return lib.narrow(f"{x} {sign} {y}", dtype)
        word = lib.word(dtype)
        x, y = (v if dtype.name in ("u32", "u64") else f"({word}){v}" for v in xs)
        total = f"{x} {sign} {y}"
        return total if dtype.name in ("u32", "u64") else f"({lib.type(dtype)})({total})"

    return emit


def _by_family(family: str) -> Render:
    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        return lib.call(f"{family}_{dtype.name}", *xs)

    return emit


def _div(lib: Library, xs: tuple[str, ...], attrs: Attrs, dtype: DType, to: DType) -> str:
    return (_arithmetic("/") if dtype.is_float else _by_family("div"))(lib, xs, attrs, dtype, to)


def _rem(lib: Library, xs: tuple[str, ...], attrs: Attrs, dtype: DType, to: DType) -> str:
    return (_function("rem") if dtype.is_float else _by_family("rem"))(lib, xs, attrs, dtype, to)


def _function(op: str) -> Render:
    """A function of floats: the dialect's own, or the library's."""

    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        wide = f32 if is_narrow(dtype) else dtype
        operands = [lib.widen(x, dtype) for x in xs]
        native = lib.native(op, wide)
        if native is None and op not in lib.families:
            raise UnsupportedError(
                f"{op} has no rendering in {lib.dialect.name}",
                fix="claim what `bringup.c.c_claims` of the dialect names, and no more",
            )
        call = f"{native}({', '.join(operands)})" if native else ""
        return lib.narrow(call or lib.call(f"{op}_{wide.name}", *operands), dtype)

    return emit


def _neg(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
    (x,) = xs
    if is_narrow(dtype):
        return f"({lib.type(dtype)})({x} ^ {1 << (dtype.bits - 1):#x})"
    if dtype.is_float:
        return f"-{x}"
    return f"({lib.type(dtype)})(0 - ({lib.word(dtype)}){x})"


def _abs(lib: Library, xs: tuple[str, ...], attrs: Attrs, dtype: DType, to: DType) -> str:
    (x,) = xs
    if is_narrow(dtype):
        return f"({lib.type(dtype)})({x} & {(1 << (dtype.bits - 1)) - 1:#x})"
    if dtype.is_float:
        return f"{lib.native('abs', dtype)}({x})"
    return x if dtype.kind == "uint" else f"{x} < 0 ? {_neg(lib, xs, attrs, dtype, to)} : {x}"


def _extremum(op: str) -> Render:
    sign = ">" if op == "max" else "<"

    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        x, y = (lib.widen(v, dtype) for v in xs)
        if dtype.is_float:
            wide = f32 if is_narrow(dtype) else dtype
            return lib.narrow(lib.call(f"{op}_{wide.name}", x, y), dtype)
        return f"{x} {sign} {y} ? {x} : {y}"

    return emit


def _bitwise(sign: str) -> Render:
    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        return f"({lib.type(dtype)})({xs[0]} {sign} {xs[1]})"

    return emit


def _shift_right(lib: Library, xs: tuple[str, ...], attrs: Attrs, dtype: DType, to: DType) -> str:
    family = "sar" if attrs["kind"] == "arithmetic" else "shr"
    return _by_family(family)(lib, xs, attrs, dtype, to)


_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _compare(lib: Library, xs: tuple[str, ...], attrs: Attrs, dtype: DType, _to: DType) -> str:
    x, y = (lib.widen(v, dtype) for v in xs)
    return f"{x} {_RELATIONS[attrs['direction']]} {y}"


def _select(_lib: Library, xs: tuple[str, ...], _attrs: Attrs, _dtype: DType, _to: DType) -> str:
    return f"{xs[0]} ? {xs[1]} : {xs[2]}"


def _count_bits(op: str) -> Render:
    """Of the operand as an unsigned number."""

    def emit(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, _to: DType) -> str:
        call = lib.call(f"{op}_u{dtype.bits}", f"({lib.unsigned(dtype)}){xs[0]}")
        return f"({lib.type(dtype)}){call}"

    return emit


def _bitcast(lib: Library, xs: tuple[str, ...], _attrs: Attrs, dtype: DType, to: DType) -> str:
    (x,) = xs
    if dtype.name in ("f32", "f64"):
        bits = lib.bits(x, dtype)
        return x if dtype is to else f"({lib.type(to)}){bits}"
    if to.name in ("f32", "f64"):
        return lib.from_bits(f"({lib.unsigned(dtype)}){x}", to)
    return f"({lib.type(to)}){x}"


def convert(lib: Library, x: str, source: DType, to: DType) -> str:
    """Value conversion: floats saturate and NaN gives 0, integers wrap, bool compares with 0."""
    if source is to:
        return x
    if to.name == "bool":
        return f"{lib.widen(x, source)} != {zero(f32 if is_narrow(source) else source)}"
    if source.is_float and to.is_float:
        return _between_floats(lib, x, source, to)
    if source.is_float:
        wide = f32 if is_narrow(source) else source
        return lib.call(f"{to.name}_of_{wide.name}", lib.widen(x, source))
    if not is_narrow(to):
        return f"({lib.type(to)}){x}"
    if source.bits <= 16:
        return lib.narrow(f"({lib.type(f32)}){x}", to)
    wide = i64 if source.kind == "int" else u64
    x = x if source is wide else f"({lib.type(wide)}){x}"
    return lib.narrow(lib.call(f"odd_of_{wide.name}", x), to)


def _between_floats(lib: Library, x: str, source: DType, to: DType) -> str:
    wide = lib.widen(x, source)
    if not is_narrow(to):
        return wide if to is f32 and source is not f64 else f"({lib.type(to)}){wide}"
    return lib.narrow(lib.call("odd_of_f64", x) if source is f64 else wide, to)


RENDER: dict[str, Render] = {
    "neg": _neg,
    "abs": _abs,
    "floor": _function("floor"),
    "round": _function("round"),
    "sqrt": _function("sqrt"),
    "add": _arithmetic("+"),
    "sub": _arithmetic("-"),
    "mul": _arithmetic("*"),
    "div": _div,
    "rem": _rem,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "and": _bitwise("&"),
    "or": _bitwise("|"),
    "xor": _bitwise("^"),
    "shl": _by_family("shl"),
    "shr": _shift_right,
    "compare": _compare,
    "select": _select,
    "convert": lambda lib, xs, _, dtype, to: convert(lib, xs[0], dtype, to),
    "bitcast": _bitcast,
    "popcount": _count_bits("popcount"),
    "clz": _count_bits("clz"),
    **{name: _function(name) for name in ELEMENTARY},
}

__all__ = [
    "RENDER",
    "combine",
    "convert",
    "exchanged",
    "literal",
    "muladd",
    "render",
    "zero",
]
