"""Functions of a module for transcendental ops, which kernels call instead of writing them out."""

from __future__ import annotations

from bringup.graph import Instr
from bringup.llvm.math import MATH
from bringup.llvm.scalar import narrow, widen
from bringup.llvm.text import Builder, Function, Type, Val

#: So many instructions of one op are written out in a function; the next ones call a function of
#: their own, or a long kernel would take LLVM seconds.  Those with a branch for large arguments
#: are as fast by a call, or faster; the others lose up to a fifth.
_WRITTEN_OUT = {"sin": 4, "cos": 4, "tan": 4}
_WRITTEN_OUT_ELSE = 32


class SharedMath:
    """`bringup.llvm.text.Module.shared_math` of one module."""

    def __init__(self) -> None:
        #: Instructions by function, op and type, in order.
        self._met: dict[tuple[str, str, Type], dict[Instr, int]] = {}
        #: Functions by op, type and the texts of constant operands.
        self._functions: dict[tuple[str, Type, tuple[str, ...]], Function] = {}

    def __call__(self, b: Builder, instr: Instr, operands: tuple[Val, ...]) -> Val | None:
        """The result of an instruction that comes after many others of its op and type in its
        function; None for others, and for ops of few instructions.
        """
        name = instr.op.name
        if name not in MATH:
            return None
        met = self._met.setdefault((b.function.name, name, operands[0].type), {})
        if met.setdefault(instr, len(met)) < _WRITTEN_OUT.get(name, _WRITTEN_OUT_ELSE):
            return None
        result = self._called(b, name, [widen(b, x) for x in operands])
        return narrow(b, result, instr.operands[0].dtype)

    def _called(self, b: Builder, name: str, operands: list[Val]) -> Val:
        """The result of an op on f32 or f64.  Constants are part of the function, because emitters
        look at them.
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
            given = iter(function.args)
            inner = Builder(function.block("entry"))
            emit = module.native.get(name) or MATH[name]
            inner.ret(emit(inner, *(x if x.is_constant else next(given) for x in operands)))
        return b.call(function, arguments)
