"""The instruction builder: arithmetic, casts, vectors and memory; control flow is inherited."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm._control import ControlBuilder
from bringup.llvm._emitter import Emitter
from bringup.llvm._types import Type, Val, const, i1, i32, i64, poison, ptr, struct_type, vec


def _plain_integer(v: Val) -> int | None:
    """The number a scalar integer constant stands for."""
    text = v.text
    if text[0] in "-0123456789" and v.type.is_int:
        return int(text)
    return None


class ArithmeticBuilder(Emitter):
    """Element-wise arithmetic, comparison and casts: scalars and vectors alike.

    ``flags`` is LLVM text between opcode and type: ``nsw``, ``exact``, ``contract``, ``fast`` …
    """

    __slots__ = ()

    def add(self, a: Val, b: Val, flags: str = "") -> Val:
        """Integer ``a + b``; folds constants and 0."""
        x, y = _plain_integer(a), _plain_integer(b)
        if y == 0:
            return a
        if x is not None:
            if y is not None:
                return const(a.type, x + y)
            if x == 0:
                return b
        return self.binary("add", a, b, flags)

    def sub(self, a: Val, b: Val, flags: str = "") -> Val:
        """Integer ``a - b``; folds constants and 0."""
        x, y = _plain_integer(a), _plain_integer(b)
        if y == 0:
            return a
        if x is not None and y is not None:
            return const(a.type, x - y)
        return self.binary("sub", a, b, flags)

    def mul(self, a: Val, b: Val, flags: str = "") -> Val:
        """Integer ``a * b``; folds constants, 0 and 1."""
        x, y = _plain_integer(a), _plain_integer(b)
        if x is not None and y is not None:
            return const(a.type, x * y)
        if x == 0 or y == 1:
            return a
        if y == 0 or x == 1:
            return b
        return self.binary("mul", a, b, flags)

    def udiv(self, a: Val, b: Val, flags: str = "") -> Val:
        """Unsigned quotient; undefined for ``b == 0``."""
        return a if b.text == "1" else self.binary("udiv", a, b, flags)

    def sdiv(self, a: Val, b: Val, flags: str = "") -> Val:
        """Signed truncated quotient; undefined for ``b == 0`` and on overflow."""
        return a if b.text == "1" else self.binary("sdiv", a, b, flags)

    def urem(self, a: Val, b: Val) -> Val:
        """Unsigned remainder; undefined for ``b == 0``."""
        return self.binary("urem", a, b)

    def srem(self, a: Val, b: Val) -> Val:
        """Remainder with the sign of ``a``; undefined for ``b == 0`` and on overflow."""
        return self.binary("srem", a, b)

    def and_(self, a: Val, b: Val) -> Val:
        """Bitwise and."""
        return self.binary("and", a, b)

    def or_(self, a: Val, b: Val, flags: str = "") -> Val:
        """Bitwise or."""
        return self.binary("or", a, b, flags)

    def xor(self, a: Val, b: Val) -> Val:
        """Bitwise exclusive or."""
        return self.binary("xor", a, b)

    def not_(self, a: Val) -> Val:
        """Bitwise complement."""
        return self.binary("xor", a, const(a.type, 1 if a.type.scalar is i1 else -1))

    def shl(self, a: Val, b: Val, flags: str = "") -> Val:
        """``a << b``; poison where ``b`` >= the width."""
        return self.binary("shl", a, b, flags)

    def lshr(self, a: Val, b: Val, flags: str = "") -> Val:
        """``a >> b`` filling with zeros; poison where ``b`` >= the width."""
        return self.binary("lshr", a, b, flags)

    def ashr(self, a: Val, b: Val, flags: str = "") -> Val:
        """``a >> b`` filling with the sign; poison where ``b`` >= the width."""
        return self.binary("ashr", a, b, flags)

    def fadd(self, a: Val, b: Val, flags: str = "") -> Val:
        """Float ``a + b``."""
        return self.binary("fadd", a, b, flags)

    def fsub(self, a: Val, b: Val, flags: str = "") -> Val:
        """Float ``a - b``."""
        return self.binary("fsub", a, b, flags)

    def fmul(self, a: Val, b: Val, flags: str = "") -> Val:
        """Float ``a * b``."""
        return self.binary("fmul", a, b, flags)

    def fdiv(self, a: Val, b: Val, flags: str = "") -> Val:
        """Float ``a / b``."""
        return self.binary("fdiv", a, b, flags)

    def fneg(self, a: Val, flags: str = "") -> Val:
        """Float ``-a``: flips the sign bit, of NaN too."""
        t = a.type
        words = f"fneg {flags} " if flags else "fneg "
        return self.emit(t, f"{words}{t.text} {a.text}")

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """``a * b + c``, rounded once; a library call on targets without the instruction."""
        return self.intrinsic("llvm.fma", a.type, (a, b, c))

    def fabs(self, a: Val) -> Val:
        """``|a|``: clears the sign bit."""
        return self.intrinsic("llvm.fabs", a.type, (a,))

    def icmp(self, predicate: str, a: Val, b: Val) -> Val:
        """Integer or pointer comparison: eq ne, ult ule ugt uge, slt sle sgt sge."""
        return self._compare("icmp", predicate, a, b)

    def fcmp(self, predicate: str, a: Val, b: Val, flags: str = "") -> Val:
        """Float comparison: oeq one olt ole ogt oge ord, ueq une ult ule ugt uge uno."""
        return self._compare(f"fcmp {flags}" if flags else "fcmp", predicate, a, b)

    def _compare(self, op: str, predicate: str, a: Val, b: Val) -> Val:
        t = a.type
        assert t is b.type, f"{op}: {a} and {b}"
        mask = i1 if t.lanes == 1 else vec(i1, t.lanes)
        return self.emit(mask, f"{op} {predicate} {t.text} {a.text}, {b.text}")

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        """``a`` where ``condition`` holds, else ``b``; the condition may be a scalar."""
        t = a.type
        assert t is b.type, f"select: {a} and {b}"
        c = condition
        return self.emit(t, f"select {c.type.text} {c.text}, {t.text} {a.text}, {t.text} {b.text}")

    def cast(self, op: str, a: Val, to: Type, flags: str = "") -> Val:
        """Any LLVM cast; ``to`` may be the scalar type when ``a`` is a vector."""
        t = a.type
        if t.lanes > 1 and to.lanes == 1 and op != "bitcast":
            to = vec(to, t.lanes)
        if t is to:
            return a
        words = f"{op} {flags}" if flags else op
        return self.emit(to, f"{words} {t.text} {a.text} to {to.text}")

    def zext(self, a: Val, to: Type, flags: str = "") -> Val:
        """Widen an integer with zeros."""
        return self.cast("zext", a, to, flags)

    def sext(self, a: Val, to: Type) -> Val:
        """Widen an integer with its sign."""
        return self.cast("sext", a, to)

    def trunc(self, a: Val, to: Type, flags: str = "") -> Val:
        """Keep the low bits of an integer."""
        return self.cast("trunc", a, to, flags)

    def fptrunc(self, a: Val, to: Type) -> Val:
        """Round a float to a narrower type."""
        return self.cast("fptrunc", a, to)

    def fpext(self, a: Val, to: Type) -> Val:
        """Widen a float."""
        return self.cast("fpext", a, to)

    def fptosi(self, a: Val, to: Type) -> Val:
        """Float to signed integer towards zero; poison out of range."""
        return self.cast("fptosi", a, to)

    def fptoui(self, a: Val, to: Type) -> Val:
        """Float to unsigned integer towards zero; poison out of range."""
        return self.cast("fptoui", a, to)

    def sitofp(self, a: Val, to: Type) -> Val:
        """Signed integer to float, rounded to nearest even."""
        return self.cast("sitofp", a, to)

    def uitofp(self, a: Val, to: Type) -> Val:
        """Unsigned integer to float, rounded to nearest even."""
        return self.cast("uitofp", a, to)

    def bitcast(self, a: Val, to: Type) -> Val:
        """Reinterpret bits.  A scalar ``to`` of the element's width keeps the lanes."""
        if a.type.lanes > 1 and to.lanes == 1 and to.bits == a.type.bits:
            to = vec(to, a.type.lanes)
        return self.cast("bitcast", a, to)

    def ptrtoint(self, a: Val, to: Type) -> Val:
        """Pointer to integer."""
        return self.cast("ptrtoint", a, to)

    def inttoptr(self, a: Val, to: Type) -> Val:
        """Integer to pointer."""
        return self.cast("inttoptr", a, to)

    def fptosi_sat(self, a: Val, to: Type) -> Val:
        """Float to signed integer towards zero; saturates, NaN gives 0."""
        to = to.with_lanes(a.type.lanes)
        return self.intrinsic("llvm.fptosi.sat", to, (a,), (to, a.type))

    def fptoui_sat(self, a: Val, to: Type) -> Val:
        """Float to unsigned integer towards zero; saturates, NaN gives 0."""
        to = to.with_lanes(a.type.lanes)
        return self.intrinsic("llvm.fptoui.sat", to, (a,), (to, a.type))


class VectorBuilder(Emitter):
    """Lanes: insert, extract, shuffle, splat and reduce."""

    __slots__ = ()

    def insertelement(self, v: Val, x: Val, index: Val | int) -> Val:
        """``v`` with lane ``index`` replaced by ``x``."""
        i = const(i32, index) if isinstance(index, int) else index
        return self.emit(v.type, f"insertelement {v}, {x}, {i}")

    def extractelement(self, v: Val, index: Val | int) -> Val:
        """Lane ``index`` of ``v``; a scalar is its own lane 0."""
        if v.type.lanes == 1:
            return v
        i = const(i32, index) if isinstance(index, int) else index
        return self.emit(v.type.scalar, f"extractelement {v}, {i}")

    def shufflevector(self, a: Val, b: Val | None, mask: Sequence[int]) -> Val:
        """Lanes ``mask`` of the concatenation of ``a`` and ``b``; -1 is a lane of any value."""
        other = poison(a.type) if b is None else b
        lanes = ", ".join(f"i32 {k}" if k >= 0 else "i32 poison" for k in mask)
        to = vec(a.type.scalar, len(mask))
        if len(mask) == 1:
            whole = self.emit(
                Type(f"<1 x {to.text}>", "v1"), f"shufflevector {a}, {other}, <1 x i32> <{lanes}>"
            )
            return self.emit(to, f"extractelement {whole}, i32 0")
        return self.emit(to, f"shufflevector {a}, {other}, <{len(mask)} x i32> <{lanes}>")

    def splat(self, x: Val, n: int) -> Val:
        """``x`` in each of ``n`` lanes; ``x`` itself for 1."""
        if n == 1:
            return x
        to = vec(x.type, n)
        if x.is_constant and x.text[0] != "@":
            return Val(f"splat ({x})", to)
        first = self.insertelement(poison(to), x, 0)
        mask = f"<{n} x i32> zeroinitializer"
        return self.emit(to, f"shufflevector {first}, {to.text} poison, {mask}")

    def reduce(self, kind: str, v: Val, start: Val | None = None, flags: str = "") -> Val:
        """Reduce the lanes to one scalar; a scalar is its own reduction.

        kind: add mul and or xor smin smax umin umax fadd fmul fmin fmax fminimum fmaximum.
        start: needed for fadd and fmul, which go lane by lane unless ``flags`` has ``reassoc``.
        """
        scalar = v.type.scalar
        if kind in ("fadd", "fmul"):
            assert start is not None, f"reduce {kind} needs a start"
            if v.type.lanes == 1:
                return self.binary(kind, start, v, flags)
            operands: tuple[Val, ...] = (start, v)
        elif v.type.lanes == 1:
            return v
        else:
            operands = (v,)
        name = f"llvm.vector.reduce.{kind}"
        return self.intrinsic(name, scalar, operands, (v.type,), flags=flags)


def _tail(align: int, meta: str) -> str:
    return f", align {align}{meta}" if align else meta


class MemoryBuilder(Emitter):
    """Addresses and memory.  ``align`` is in bytes; 0 leaves LLVM's default, the type's own.

    ``meta`` is metadata text appended to the instruction.
    """

    __slots__ = ()

    def alloca(self, type: Type, count: Val | None = None, align: int = 0) -> Val:
        """Stack memory; put it in the entry block."""
        n = f", {count}" if count is not None else ""
        return self.emit(ptr, f"alloca {type.text}{n}{f', align {align}' if align else ''}")

    def gep(self, base: Val, index: Val | int, elem_type: Type, flags: str = "inbounds") -> Val:
        """The address ``index`` elements of ``elem_type`` after ``base``.

        A vector of indices (or of bases) gives a vector of addresses.
        """
        i = const(i64, index) if isinstance(index, int) else index
        if i.text == "0":
            return base
        to = base.type if i.type.lanes == 1 else vec(base.type.scalar, i.type.lanes)
        words = f"getelementptr {flags}" if flags else "getelementptr"
        return self.emit(to, f"{words} {elem_type.text}, {base}, {i}")

    def load(
        self,
        type: Type,
        address: Val,
        align: int = 0,
        *,
        volatile: bool = False,
        meta: str = "",
    ) -> Val:
        """Load a value of ``type``."""
        words = "load volatile" if volatile else "load"
        return self.emit(type, f"{words} {type.text}, {address}{_tail(align, meta)}")

    def store(self, value: Val, address: Val, align: int = 0, *, meta: str = "") -> None:
        """Store a value."""
        self.emit_void(f"store {value}, {address}{_tail(align, meta)}")

    def atomicrmw(
        self,
        op: str,
        address: Val,
        value: Val,
        ordering: str = "seq_cst",
        syncscope: str = "",
    ) -> Val:
        """Atomic read-modify-write; the old value.

        op: xchg add sub and or xor max min umax umin fadd fsub fmax fmin.
        """
        scope = f' syncscope("{syncscope}")' if syncscope else ""
        return self.emit(value.type, f"atomicrmw {op} {address}, {value}{scope} {ordering}")

    def cmpxchg(
        self,
        address: Val,
        expected: Val,
        new: Val,
        success: str = "seq_cst",
        failure: str = "seq_cst",
        *,
        syncscope: str = "",
    ) -> tuple[Val, Val]:
        """Atomic compare and exchange: the old value, and whether it was exchanged."""
        scope = f' syncscope("{syncscope}")' if syncscope else ""
        text = f"cmpxchg {address}, {expected}, {new}{scope} {success} {failure}"
        pair = self.emit(struct_type(new.type, i1), text)
        return self.extractvalue(pair, 0), self.extractvalue(pair, 1)

    def atomic_load(self, type: Type, address: Val, ordering: str = "acquire") -> Val:
        """Atomic load with natural alignment."""
        return self.emit(
            type, f"load atomic {type.text}, {address} {ordering}, align {type.bits // 8}"
        )

    def atomic_store(self, value: Val, address: Val, ordering: str = "release") -> None:
        """Atomic store with natural alignment."""
        self.emit_void(f"store atomic {value}, {address} {ordering}, align {value.type.bits // 8}")

    def insertvalue(self, aggregate: Val, value: Val, index: int) -> Val:
        """``aggregate`` with a member replaced."""
        return self.emit(aggregate.type, f"insertvalue {aggregate}, {value}, {index}")

    def extractvalue(self, aggregate: Val, index: int) -> Val:
        """A member of a struct or array value."""
        members = aggregate.type.members
        member = members[index] if len(members) > 1 else members[0]
        return self.emit(member, f"extractvalue {aggregate}, {index}")


class Builder(ArithmeticBuilder, VectorBuilder, MemoryBuilder, ControlBuilder):
    """Appends instructions at the end of a block; every method takes scalars and vectors alike.

    >>> from bringup.llvm.text import Module, f32
    >>> f = Module().function("scale", f32, [("x", f32)])
    >>> b = Builder(f.block("entry"))
    >>> b.fmul(f.args[0], const(f32, 2.0))
    float %.1
    """

    __slots__ = ()
