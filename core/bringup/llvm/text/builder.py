"""The instruction builder, the one place that writes a line into a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from bringup.llvm.text.module import Block, Callee, Function, Module, Phi
from bringup.llvm.text.types import (
    Type,
    Val,
    const,
    const_vector,
    f16,
    i1,
    i16,
    i32,
    i64,
    known_lanes,
    poison,
    ptr,
    struct_type,
    vec,
    void,
)


class Loop:
    """A counted loop being built.

    index: the induction variable.
    carried: the loop-carried values at the start of an iteration; after the loop, the same names
    are the final values.
    """

    __slots__ = ("_next", "body", "carried", "exit", "index")

    def __init__(self, index: Phi, carried: tuple[Phi, ...], body: Block, exit: Block) -> None:
        self.index = index
        self.carried = carried
        self.body = body
        self.exit = exit
        self._next: tuple[Val, ...] | None = None

    @property
    def following(self) -> tuple[Val, ...]:
        """The carried values of the next iteration."""
        assert self._next is not None or not self.carried, "the body did not call Loop.next"
        return self._next or ()

    def next(self, *values: Val) -> None:
        """Set the carried values of the next iteration, in order."""
        assert len(values) == len(self.carried), "one value per carried phi"
        self._next = values


class Builder:
    """Appends instructions at the end of a block.  Methods take scalars and vectors alike.

    ``flags`` is LLVM text between opcode and type: ``nsw``, ``exact``, ``contract``, ``fast`` …
    ``align`` is in bytes; 0 leaves LLVM's default, the alignment of the type.
    ``meta`` is metadata text appended to the instruction.

    >>> from bringup.llvm.text import Module, f32
    >>> f = Module().function("scale", f32, [("x", f32)])
    >>> b = Builder(f.block("entry"))
    >>> b.fmul(f.args[0], const(f32, 2.0))
    float %.1
    """

    __slots__ = ("_lines", "block", "function", "module")

    block: Block
    function: Function
    module: Module

    def __init__(self, block: Block) -> None:
        self.function = block.function
        self.module = block.function.module
        self.position(block)

    def position(self, block: Block) -> None:
        """Go to the end of ``block``."""
        if not block.placed:
            self.function.place(block)
        self.block = block
        self._lines = block.lines

    def emit(self, type: Type, text: str) -> Val:
        """Append ``%new = text``, whose result has ``type``."""
        function = self.function
        function.value_count += 1
        name = f"%.{function.value_count}"
        self._lines.append(f"  {name} = {text}")
        return Val(name, type)

    def emit_void(self, text: str) -> None:
        """Append an instruction without result."""
        self._lines.append(f"  {text}")

    def terminate(self, text: str) -> None:
        """Append a terminator; the block is then complete."""
        assert not self.block.terminated, f"block {self.block.name} has a terminator"
        self._lines.append(f"  {text}")
        self.block.terminated = True

    def binary(self, op: str, a: Val, b: Val, flags: str = "") -> Val:
        """Any instruction on two operands of one type."""
        t = a.type
        assert t is b.type, f"{op}: {a} and {b}"
        function = self.function
        function.value_count += 1
        name = f"%.{function.value_count}"
        words = f"{op} {flags}" if flags else op
        self._lines.append(f"  {name} = {words} {t.text} {a.text}, {b.text}")
        return Val(name, t)

    def call(
        self,
        callee: Function | Callee,
        args: Sequence[Val],
        attrs: str = "",
        flags: str = "",
        tail: str = "",
    ) -> Val:
        """Call a function.  The result is a value of type void where nothing is returned.

        attrs: call-site attributes.
        flags: fast-math flags.
        tail: ``tail`` or ``musttail``.
        """
        target = callee.callee if isinstance(callee, Function) else callee
        assert tuple(a.type for a in args) == target.params, f"call {target.name}: {args}"
        return self._call(
            target.symbol, target.ret, map(str, args), attrs=attrs, flags=flags, tail=tail
        )

    def call_pointer(self, ret: Type, address: Val, args: Sequence[Val], attrs: str = "") -> Val:
        """Call through a function pointer."""
        return self._call(address.text, ret, map(str, args), attrs=attrs)

    def _call(
        self,
        symbol: str,
        ret: Type,
        args: Iterable[str],
        *,
        attrs: str = "",
        flags: str = "",
        tail: str = "",
    ) -> Val:
        words = f"{tail} call" if tail else "call"
        if flags:
            words = f"{words} {flags}"
        text = f"{words} {ret.text} {symbol}({', '.join(args)})"
        if attrs:
            text = f"{text} {attrs}"
        if ret is void:
            self.emit_void(text)
            return Val("void", void)
        return self.emit(ret, text)

    def intrinsic(
        self,
        name: str,
        ret: Type,
        args: Sequence[Val],
        overloads: Sequence[Type] | None = None,
        *,
        flags: str = "",
        arg_attrs: Sequence[str] = (),
    ) -> Val:
        """Call an LLVM intrinsic, declared on first use.

        name: without type suffix.
        overloads: the types of the suffix; ``(ret,)`` by default, ``()`` for none.
        arg_attrs: attributes per argument (``align 4``), empty for none.

        >>> from bringup.llvm.text import Builder, vec, f32
        >>> f = Module().function("root", vec(f32, 4), [("x", vec(f32, 4))])
        >>> b = Builder(f.block("entry"))
        >>> _ = b.intrinsic("llvm.sqrt", vec(f32, 4), [f.args[0]])
        >>> print(f.blocks[0].lines[0].strip())
        %.1 = call <4 x float> @llvm.sqrt.v4f32(<4 x float> %x)
        """
        if overloads is None:
            full = f"{name}.{ret.code}"
        else:
            full = ".".join([name, *[t.code for t in overloads]])
        callee = self.module.declare(full, ret, [a.type for a in args])
        if arg_attrs:
            texts = [
                f"{a.type.text} {w} {a.text}" if w else str(a)
                for a, w in zip(args, arg_attrs, strict=True)
            ]
        else:
            texts = [f"{a.type.text} {a.text}" for a in args]
        return self._call(callee.symbol, ret, texts, flags=flags)

    # -- element-wise arithmetic, comparison and casts ---------------------------------------------

    def add(self, a: Val, b: Val, flags: str = "") -> Val:
        """Integer ``a + b``; folds constants and 0."""
        x, y = a.integer, b.integer
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
        x, y = a.integer, b.integer
        if y == 0:
            return a
        if x is not None and y is not None:
            return const(a.type, x - y)
        return self.binary("sub", a, b, flags)

    def mul(self, a: Val, b: Val, flags: str = "") -> Val:
        """Integer ``a * b``; folds constants, 0 and 1."""
        x, y = a.integer, b.integer
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

    def urem(self, a: Val, b: Val) -> Val:
        """Unsigned remainder; undefined for ``b == 0``."""
        return self.binary("urem", a, b)

    def and_(self, a: Val, b: Val) -> Val:
        """Bitwise and.  Of masks that are written out it is one, so that all know its lanes."""
        x, y = known_lanes(a), known_lanes(b)
        if x is not None and y is not None:
            return const_vector(i1, [p and q for p, q in zip(x, y, strict=True)])
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
        emulated = self.module.native.get("fma")
        if emulated is not None:
            return emulated(self, a, b, c)
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
        if a.type.scalar is f16 and not self.module.selects_halves:
            bits = vec(i16, a.type.lanes)
            chosen = self.select(condition, self.bitcast(a, bits), self.bitcast(b, bits))
            return self.bitcast(chosen, a.type)
        t = a.type
        assert t is b.type, f"select: {a} and {b}"
        c = condition
        return self.emit(t, f"select {c.type.text} {c.text}, {t.text} {a.text}, {t.text} {b.text}")

    def smin(self, a: Val, b: Val) -> Val:
        """The smaller of two signed integers."""
        return self.intrinsic("llvm.smin", a.type, (a, b))

    def smax(self, a: Val, b: Val) -> Val:
        """The larger of two signed integers."""
        return self.intrinsic("llvm.smax", a.type, (a, b))

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

    # -- lanes -------------------------------------------------------------------------------------

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

    # -- memory ------------------------------------------------------------------------------------

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

    # -- control flow ------------------------------------------------------------------------------

    def phi(self, type: Type) -> Phi:
        """A phi at the head of the current block; give its edges with ``add_incoming``."""
        self.function.value_count += 1
        phi = Phi(f"%.{self.function.value_count}", type)
        self.block.phis.append(phi)
        return phi

    def br(self, target: Block, meta: str = "") -> None:
        """Jump."""
        self.terminate(f"br label %{target.name}{meta}")

    def cond_br(self, condition: Val, then: Block, otherwise: Block, meta: str = "") -> None:
        """Jump to ``then`` if the scalar ``condition`` holds, else to ``otherwise``."""
        self.terminate(f"br {condition}, label %{then.name}, label %{otherwise.name}{meta}")

    def switch(self, value: Val, default: Block, cases: Sequence[tuple[int, Block]]) -> None:
        """Jump to the block of the matching case."""
        arms = " ".join(f"{const(value.type, k)}, label %{b.name}" for k, b in cases)
        self.terminate(f"switch {value}, label %{default.name} [ {arms} ]")

    def ret(self, value: Val | None = None) -> None:
        """Return."""
        self.terminate("ret void" if value is None else f"ret {value}")

    def unreachable(self) -> None:
        """Declare that control never comes here."""
        self.terminate("unreachable")

    def branch_weights(self, likely: bool) -> str:
        """The ``meta`` of a ``cond_br`` whose condition almost always (or never) holds."""
        first, second = (2000, 1) if likely else (1, 2000)
        node = self.module.metadata(f'!{{!"branch_weights", i32 {first}, i32 {second}}}')
        return f", !prof {node}"

    @contextmanager
    def loop(
        self,
        start: Val,
        stop: Val,
        step: Val | int = 1,
        carried: Sequence[Val] = (),
        *,
        meta: str = "",
        flags: str = "nsw",
    ) -> Iterator[Loop]:
        """Build ``for (i = start; i < stop; i += step)``, signed; the block is the body.

        carried: initial values of loop-carried values; the body must then call ``Loop.next``.
        meta: on the back edge (``!llvm.loop``).  Afterwards the builder is after the loop.

        >>> from bringup.llvm.text import Builder, Module, i64
        >>> f = Module().function("triangle", i64, [("n", i64)])
        >>> b = Builder(f.block("entry"))
        >>> with b.loop(const(i64, 0), f.args[0], carried=[const(i64, 0)]) as loop:
        ...     loop.next(b.add(loop.carried[0], loop.index))
        >>> b.ret(loop.carried[0])
        """
        entry, header = self.block, self.function.block("loop")
        body, done = self.function.block("body"), self.function.block("done")
        self.br(header)
        self.position(header)
        index = self.phi(start.type)
        loop = Loop(index, tuple(self.phi(v.type) for v in carried), body, done)
        more = self.emit(i1, f"icmp slt {index}, {stop.text}")
        self.cond_br(more, body, done)
        self.position(body)
        yield loop
        if not self.block.terminated:
            by = const(start.type, step) if isinstance(step, int) else step
            after = self.binary("add", index, by, flags)
            self._enter((index, *loop.carried), (after, *loop.following), self.block)
            self.br(header, meta)
        self._enter((index, *loop.carried), (start, *carried), entry)
        self.position(done)

    def _enter(self, phis: Sequence[Phi], values: Sequence[Val], block: Block) -> None:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)

    @contextmanager
    def while_loop(
        self,
        carried: Sequence[Val],
        condition: Callable[[tuple[Phi, ...]], Val],
    ) -> Iterator[Loop]:
        """Build ``while (condition(carried))``; the block is the body and calls ``Loop.next``."""
        entry, header = self.block, self.function.block("while")
        body, done = self.function.block("body"), self.function.block("done")
        self.br(header)
        self.position(header)
        phis = tuple(self.phi(v.type) for v in carried)
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, entry)
        loop = Loop(phis[0], phis, body, done)
        self.cond_br(condition(phis), body, done)
        self.position(body)
        yield loop
        assert loop._next is not None, "the body did not call Loop.next"
        for phi, value in zip(phis, loop._next, strict=True):
            phi.add_incoming(value, self.block)
        self.br(header)
        self.position(done)

    @contextmanager
    def if_then(self, condition: Val, likely: bool | None = None) -> Iterator[None]:
        """Build ``if (condition) { … }``; the block is the taken side."""
        then, after = self.function.block("then"), self.function.block("after")
        self.cond_br(condition, then, after, "" if likely is None else self.branch_weights(likely))
        self.position(then)
        yield
        if not self.block.terminated:
            self.br(after)
        self.position(after)

    def cond(
        self,
        condition: Val,
        then: Callable[[], Val | Sequence[Val] | None],
        otherwise: Callable[[], Val | Sequence[Val] | None],
        likely: bool | None = None,
    ) -> tuple[Val, ...]:
        """Branch, build one side each with the callables, and merge what they return.

        >>> from bringup.llvm.text import Builder, Module, i1, i32
        >>> f = Module().function("pick", i32, [("c", i1), ("x", i32)])
        >>> b = Builder(f.block("entry"))
        >>> c, x = f.args
        >>> b.ret(b.cond(c, lambda: b.mul(x, x), lambda: x)[0])
        """
        sides = self.function.block("then"), self.function.block("else")
        after = self.function.block("merge")
        self.cond_br(condition, *sides, "" if likely is None else self.branch_weights(likely))
        ends: list[tuple[Block, tuple[Val, ...]]] = []
        for side, build in zip(sides, (then, otherwise), strict=True):
            self.position(side)
            result = build()
            if result is None:
                values: tuple[Val, ...] = ()
            else:
                values = (result,) if isinstance(result, Val) else tuple(result)
            ends.append((self.block, values))
            self.br(after)
        self.position(after)
        phis = tuple(self.phi(v.type) for v in ends[0][1])
        for block, values in ends:
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, block)
        return phis


def _tail(align: int, meta: str) -> str:
    return f", align {align}{meta}" if align else meta
