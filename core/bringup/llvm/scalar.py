"""Elementwise ops as LLVM instructions, for any number of lanes.

Every op of a kernel body has one renderer here, keyed by the op's name.  Results follow the op
table to the bit where the row says exact: integers wrap, division is total, shifts saturate, min
and max propagate NaN, casts of floats saturate.  f16 and bf16 are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.graph import Instr
from bringup.llvm import text as ir
from bringup.llvm.math import (
    MATH,
    bf16_to_f32,
    f8e4m3fn_to_f32,
    f8e5m2_to_f32,
    f32_to_bf16,
    f32_to_f8e4m3fn,
    f32_to_f8e5m2,
    f64_to_bf16,
    f64_to_f16,
    f64_to_f32_odd,
)
from bringup.llvm.text import Builder, Function, Type, Val, const, vec
from bringup.loops.form import Let
from bringup.maths import ELEMENTARY
from bringup.ops.monoids import MONOIDS

Attrs = Mapping[str, Any]
Render = Callable[[Builder, tuple[Val, ...], Attrs, DType, DType], Val]

# Registers hold bf16 as its bits, in a type of its own: no instruction here computes in bfloat, and
# LLVM's x86 code generator aborts on chains of selects of it.
_BF16 = Type("i16", "i16", 16, is_int=True)
_E4M3FN = Type("i8", "i8", 8, is_int=True)
_E5M2 = Type("i8", "i8", 8, is_int=True)

_TYPES: dict[str, Type] = {
    "bool": ir.i1, "i8": ir.i8, "i16": ir.i16, "i32": ir.i32, "i64": ir.i64,
    "u8": ir.i8, "u16": ir.i16, "u32": ir.i32, "u64": ir.i64,
    "f8e4m3fn": _E4M3FN, "f8e5m2": _E5M2,
    "f16": ir.f16, "bf16": _BF16, "f32": ir.f32, "f64": ir.f64,
}  # fmt: skip


def register_type(dtype: DType) -> Type:
    """The LLVM type a scalar of ``dtype`` has in a register (bool is i1)."""
    return _TYPES[dtype.name]


def memory_type(dtype: DType) -> Type:
    """The LLVM type a scalar of ``dtype`` has in memory (bool is i8)."""
    return ir.i8 if dtype.name == "bool" else _TYPES[dtype.name]


def render(b: Builder, instr: Instr | Let, operands: tuple[Val, ...]) -> Val:
    """Emit one elementwise instruction on registers of equal lane count."""
    renderer = RENDER.get(instr.op.name)
    dtype = instr.operands[0].dtype if instr.operands else instr.result.dtype
    if renderer is None:  # pragma: no cover - only wrong claims
        raise UnsupportedError(
            f"{instr.op.name} has no LLVM rendering",
            location=instr.location if isinstance(instr, Instr) else None,
            fix="leave the op out of the device's kernel claims, so that it is decomposed",
        )
    share = b.module.shared_math
    shared = None if share is None else share(b, instr, operands)
    return shared or renderer(b, operands, instr.attrs, dtype, instr.result.dtype)


def literal(value: Any, dtype: DType) -> Val:
    """The constant of a numpy scalar, bit for bit."""
    if not dtype.is_float:
        return const(register_type(dtype), int(value))
    bits = int.from_bytes(value.tobytes(), "little")
    if dtype.name in ("f32", "f64"):
        return ir.const_bits(register_type(dtype), bits)
    if register_type(dtype).is_int:
        return const(register_type(dtype), bits)
    return Val(f"0xH{bits:04X}", ir.f16)


def is_half(dtype: DType) -> bool:
    """Whether a float dtype is narrower than f32, so that it is computed in f32 and rounded."""
    return dtype.is_float and dtype.bits <= 16


def widen(b: Builder, x: Val) -> Val:
    """Floats narrower than f32 as f32; others unchanged."""
    scalar = x.type.scalar
    if scalar is ir.f32 or scalar is ir.f64:
        return x
    if scalar is ir.f16:
        return b.fpext(x, ir.f32)
    if scalar is _BF16:
        return bf16_to_f32(b, x)
    if scalar is _E4M3FN:
        return f8e4m3fn_to_f32(b, x)
    return f8e5m2_to_f32(b, x) if scalar is _E5M2 else x


def narrow(b: Builder, x: Val, dtype: DType) -> Val:
    """f32 rounded to a narrower float; others unchanged."""
    if dtype.name == "f16":
        return b.fptrunc(x, ir.f16)
    rounding = _ROUNDINGS.get(dtype.name)
    return _as_register(b, rounding(b, x), dtype) if rounding is not None else x


_ROUNDINGS: dict[str, Callable[[Builder, Val], Val]] = {
    "bf16": f32_to_bf16,
    "f8e4m3fn": f32_to_f8e4m3fn,
    "f8e5m2": f32_to_f8e5m2,
}


def _as_register(b: Builder, x: Val, dtype: DType) -> Val:
    return b.cast("bitcast", x, vec(register_type(dtype), x.type.lanes))


def _float(op: str) -> Render:
    """A float instruction, through f32 for half types."""

    def emit(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
        return narrow(b, b.binary(op, widen(b, xs[0]), widen(b, xs[1])), dtype)

    return emit


def _math(name: str) -> Render:
    def emit(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
        render = b.module.native.get(name) or MATH[name]
        return narrow(b, render(b, *(widen(b, x) for x in xs)), dtype)

    return emit


def _arith(integer: str, floating: str) -> Render:
    on_floats = _float(floating)

    def emit(b: Builder, xs: tuple[Val, ...], attrs: Attrs, dtype: DType, to: DType) -> Val:
        if dtype.is_float:
            return on_floats(b, xs, attrs, dtype, to)
        return b.binary(integer, xs[0], xs[1])

    return emit


def _sign_mask(dtype: DType) -> int:
    return 1 << (dtype.bits - 1)


def as_bits(b: Builder, x: Val) -> Val:
    """A float's bit pattern as an integer of the same width."""
    t = x.type
    return b.cast("bitcast", x, vec(ir.integer(t.bits), t.lanes))


def _neg(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
    if dtype.name == "bf16":
        return b.xor(xs[0], const(xs[0].type, _sign_mask(dtype)))
    if dtype.is_float:
        return b.fneg(xs[0])
    return b.sub(const(xs[0].type, 0), xs[0])


def _abs(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
    x = xs[0]
    if dtype.name == "bf16":
        return b.and_(x, const(x.type, _sign_mask(dtype) - 1))
    if dtype.is_float:
        return b.fabs(x)
    if dtype.kind == "uint":
        return x
    negative = b.icmp("slt", x, const(x.type, 0))
    return b.select(negative, b.sub(const(x.type, 0), x), x)


def _divisor(b: Builder, x: Val, y: Val, dtype: DType) -> tuple[Val, Val, Val]:
    """A divisor that cannot trap, and the lanes where it was changed: (safe, by zero, overflow)."""
    no_lane = const(vec(ir.i1, x.type.lanes), 0)
    by_zero = b.icmp("eq", y, const(y.type, 0))
    overflow = no_lane
    if dtype.kind == "int":
        least = b.icmp("eq", x, const(x.type, 1 << (dtype.bits - 1)))
        overflow = b.and_(least, b.icmp("eq", y, const(y.type, -1)))
    safe = b.select(b.or_(by_zero, overflow), const(y.type, 1), y)
    return safe, by_zero, overflow


def _div(b: Builder, xs: tuple[Val, ...], attrs: Attrs, dtype: DType, to: DType) -> Val:
    if dtype.is_float:
        return _float("fdiv")(b, xs, attrs, dtype, to)
    x, y = xs
    safe, by_zero, _ = _divisor(b, x, y, dtype)
    quotient = b.binary("sdiv" if dtype.kind == "int" else "udiv", x, safe)
    return b.select(by_zero, const(x.type, -1), quotient)


def _rem(b: Builder, xs: tuple[Val, ...], attrs: Attrs, dtype: DType, to: DType) -> Val:
    x, y = xs
    if dtype.is_float:
        native = b.module.native.get("rem")
        if native is not None:
            return narrow(b, native(b, widen(b, x), widen(b, y)), dtype)
        return _float("frem")(b, xs, attrs, dtype, to)
    safe, by_zero, _ = _divisor(b, x, y, dtype)
    rest = b.binary("srem" if dtype.kind == "int" else "urem", x, safe)
    return b.select(by_zero, x, rest)


def _extremum(largest: bool) -> Render:
    name = "max" if largest else "min"

    def emit(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
        x, y = xs
        if is_half(dtype):
            return narrow(b, _float_extremum(b, widen(b, x), widen(b, y), largest), dtype)
        if dtype.is_float:
            return _float_extremum(b, x, y, largest)
        prefix = "s" if dtype.kind == "int" else "u"
        return b.intrinsic(f"llvm.{prefix}{name}", x.type, (x, y))

    return emit


def _float_extremum(b: Builder, x: Val, y: Val, largest: bool) -> Val:
    """IEEE 754-2019 maximum or minimum: NaN wins, -0 < +0.  The first select keeps a NaN in y."""
    native = b.module.native.get("maximum" if largest else "minimum")
    if native is not None and x.type.scalar is ir.f32:
        return native(b, x, y)
    ordered = b.fcmp("ogt" if largest else "olt", x, y)
    chosen = b.select(ordered, x, y)
    ix, iy = as_bits(b, x), as_bits(b, y)
    both = b.and_(ix, iy) if largest else b.or_(ix, iy)
    equal = b.select(b.fcmp("oeq", x, y), b.cast("bitcast", both, x.type), chosen)
    return b.select(b.fcmp("uno", x, x), x, equal)


def _shift_left(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
    x, n = xs
    inside = b.icmp("ult", n, const(n.type, dtype.bits))
    safe = b.select(inside, n, const(n.type, 0))
    return b.select(inside, b.shl(x, safe), const(x.type, 0))


def _shift_right(b: Builder, xs: tuple[Val, ...], attrs: Attrs, dtype: DType, _to: DType) -> Val:
    x, n = xs
    inside = b.icmp("ult", n, const(n.type, dtype.bits))
    if attrs["kind"] == "arithmetic":
        return b.ashr(x, b.select(inside, n, const(n.type, dtype.bits - 1)))
    safe = b.select(inside, n, const(n.type, 0))
    return b.select(inside, b.lshr(x, safe), const(x.type, 0))


_FLOAT_PREDICATE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def _compare(b: Builder, xs: tuple[Val, ...], attrs: Attrs, dtype: DType, _to: DType) -> Val:
    x, y = xs
    direction = attrs["direction"]
    if dtype.is_float:
        return b.fcmp(_FLOAT_PREDICATE[direction], widen(b, x), widen(b, y))
    if direction in ("eq", "ne"):
        return b.icmp(direction, x, y)
    return b.icmp(("s" if dtype.kind == "int" else "u") + direction, x, y)


def _bitcast(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, _dtype: DType, to: DType) -> Val:
    x = xs[0]
    return b.cast("bitcast", x, vec(register_type(to), x.type.lanes))


def _unary(intrinsic: str) -> Render:
    def emit(b: Builder, xs: tuple[Val, ...], _attrs: Attrs, dtype: DType, _to: DType) -> Val:
        x = widen(b, xs[0])
        return narrow(b, b.intrinsic(intrinsic, x.type, (x,)), dtype)

    return emit


def convert(b: Builder, x: Val, source: DType, to: DType) -> Val:
    """Value conversion: floats saturate and NaN gives 0, integers wrap, bool compares with 0."""
    if source is to:
        return x
    if to.kind == "bool":
        zero = ir.zero(widen(b, x).type)
        return b.fcmp("une", widen(b, x), zero) if source.is_float else b.icmp("ne", x, zero)
    if source.kind == "bool":
        return _from_integer(b, b.zext(x, ir.i8), False, to)
    if source.is_float:
        return _from_float(b, x, source, to)
    return _from_integer(b, x, source.kind == "int", to)


def _from_integer(b: Builder, x: Val, signed: bool, to: DType) -> Val:
    bits, target = x.type.bits, register_type(to)
    if not to.is_float:
        if to.bits < bits:
            return b.trunc(x, target)
        return b.sext(x, target) if signed else b.zext(x, target)
    if not is_half(to):
        return b.cast("sitofp" if signed else "uitofp", x, target)
    # Integers below 2**53 are exact in f64; wider ones get a sticky bit first.
    wide = b.cast("sitofp" if signed else "uitofp", _sticky(b, x, signed), ir.f64)
    return _narrow_f64(b, wide, to)


def _sticky(b: Builder, x: Val, signed: bool) -> Val:
    """A 64-bit integer whose low 11 bits are merged into one, so that f64 can be rounded again."""
    if x.type.bits < 64:
        return x
    low = b.and_(x, const(x.type, 0x7FF))
    some = b.select(b.icmp("ne", low, const(x.type, 0)), const(x.type, 0x400), const(x.type, 0))
    merged = b.or_(b.and_(x, const(x.type, ~0x7FF)), some)
    if signed:
        small = b.icmp("ult", b.add(x, const(x.type, 1 << 52)), const(x.type, 1 << 53))
    else:
        small = b.icmp("ult", x, const(x.type, 1 << 53))
    return b.select(small, x, merged)


def _narrow_f64(b: Builder, x: Val, to: DType) -> Val:
    """f64 rounded once to a float narrower than f32."""
    if to.is_storage:
        return narrow(b, f64_to_f32_odd(b, x), to)
    return f64_to_f16(b, x) if to.name == "f16" else _as_register(b, f64_to_bf16(b, x), to)


def _from_float(b: Builder, x: Val, source: DType, to: DType) -> Val:
    if to.is_float:
        if is_half(to):
            return _narrow_f64(b, x, to) if source.name == "f64" else narrow(b, widen(b, x), to)
        wide = widen(b, x)
        return (
            b.fptrunc(wide, ir.f32)
            if source.name == "f64"
            else b.cast("fpext", wide, register_type(to))
        )
    wide, target = widen(b, x), register_type(to)
    return b.fptosi_sat(wide, target) if to.kind == "int" else b.fptoui_sat(wide, target)


RENDER: dict[str, Render] = {
    "neg": _neg,
    "abs": _abs,
    "floor": _unary("llvm.floor"),
    "round": _unary("llvm.roundeven"),
    "sqrt": _unary("llvm.sqrt"),
    "add": _arith("add", "fadd"),
    "sub": _arith("sub", "fsub"),
    "mul": _arith("mul", "fmul"),
    "div": _div,
    "rem": _rem,
    "max": _extremum(True),
    "min": _extremum(False),
    "and": lambda b, xs, *_: b.and_(*xs),
    "or": lambda b, xs, *_: b.or_(*xs),
    "xor": lambda b, xs, *_: b.xor(*xs),
    "shl": _shift_left,
    "shr": _shift_right,
    "compare": _compare,
    "select": lambda b, xs, *_: b.select(*xs),
    "convert": lambda b, xs, _, dtype, to: convert(b, xs[0], dtype, to),
    "bitcast": _bitcast,
    "popcount": lambda b, xs, *_: b.intrinsic("llvm.ctpop", xs[0].type, xs),
    "clz": lambda b, xs, *_: b.intrinsic(
        "llvm.ctlz", xs[0].type, (xs[0], const(ir.i1, 0)), (xs[0].type,)
    ),
    **{name: _math(name) for name in ELEMENTARY},
}


def neutral(kind: str, dtype: DType, lanes: int = 1) -> Val:
    """What a fold starts with: the neutral element of its monoid in every lane."""
    return _in_lanes(MONOIDS[kind].neutral(dtype.numpy), dtype, lanes)


def empty(kind: str, dtype: DType, lanes: int = 1) -> Val:
    """What a fold of nothing gives, in every lane."""
    return _in_lanes(MONOIDS[kind].empty(dtype.numpy), dtype, lanes)


def _in_lanes(scalar: Any, dtype: DType, lanes: int) -> Val:
    bits = int.from_bytes(scalar.tobytes(), "little")
    value = bits if dtype.name == "bf16" else scalar.item()
    return const(vec(register_type(dtype), lanes), value)


def combine(b: Builder, kind: str, dtype: DType, x: Val, y: Val) -> Val:
    """One step of a fold."""
    return RENDER[kind](b, (x, y), {}, dtype, dtype)


#: So many instructions of one op are emitted inline in a function.  Further ones call a shared
#: function, or LLVM would take seconds for a long kernel.  Ops with a branch for large arguments
#: are as fast by a call, or faster; the others lose up to a fifth.
_MOST_INLINE = {"sin": 4, "cos": 4, "tan": 4}
_MOST_INLINE_ELSE = 32


class SharedMath:
    """`bringup.llvm.text.Module.shared_math` of one module."""

    def __init__(self) -> None:
        #: Instructions by function, op and type, in order.
        self._seen: dict[tuple[str, str, Type], dict[int, int]] = {}
        #: Functions by op, type and the texts of constant operands.
        self._functions: dict[tuple[str, Type, tuple[str, ...]], Function] = {}

    def __call__(self, b: Builder, instr: Instr | Let, operands: tuple[Val, ...]) -> Val | None:
        """The result of a call, if the function has many instructions of this op and type already.

        None for others, and for ops of few instructions.
        """
        name = instr.op.name
        if name not in MATH:
            return None
        seen = self._seen.setdefault((b.function.name, name, operands[0].type), {})
        # Copies of a statement share its attributes, and count as one.
        key = id(instr.attrs if isinstance(instr, Let) else instr)
        if seen.setdefault(key, len(seen)) < _MOST_INLINE.get(name, _MOST_INLINE_ELSE):
            return None
        result = self._called(b, name, [widen(b, x) for x in operands])
        return narrow(b, result, instr.operands[0].dtype)

    def _called(self, b: Builder, name: str, operands: list[Val]) -> Val:
        """Call the function of an op on f32 or f64.

        Constant operands are part of the function, because emitters depend on their values.
        """
        module, type_ = b.module, operands[0].type
        arguments = [x for x in operands if not x.is_constant]
        key = (name, type_, tuple(x.text if x.is_constant else "" for x in operands))
        function = self._functions.get(key)
        if function is None:
            params = [(f"x{n}", type_) for n in range(len(arguments))]
            symbol = f"bringup.{name}.{type_.code}.{len(self._functions)}"
            attrs = "noinline nounwind"
            function = module.function(symbol, type_, params, attrs, linkage="internal")
            self._functions[key] = function
            params_left = iter(function.args)
            inner = Builder(function.block("entry"))
            emit = module.native.get(name) or MATH[name]
            inner.ret(emit(inner, *(x if x.is_constant else next(params_left) for x in operands)))
        return b.call(function, arguments)
