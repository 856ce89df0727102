"""Where instructions are appended: the one place that writes a line into a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.llvm._module import Block, Callee, Function, Module
from bringup.llvm._types import Type, Val, void


class Emitter:
    """A position at the end of a block, and the primitive ways to append there."""

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
        words = " ".join(w for w in (tail, "call", flags, ret.text) if w)
        text = f"{words} {symbol}({', '.join(args)}){' ' if attrs else ''}{attrs}"
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
        suffix = (ret,) if overloads is None else overloads
        full = name + "".join(f".{t.code}" for t in suffix)
        callee = self.module.declare(full, ret, [a.type for a in args])
        if arg_attrs:
            texts = [
                f"{a.type.text} {w} {a.text}" if w else str(a)
                for a, w in zip(args, arg_attrs, strict=True)
            ]
        else:
            texts = [f"{a.type.text} {a.text}" for a in args]
        return self._call(callee.symbol, ret, texts, flags=flags)
