"""Index expressions and conditions as C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bringup.c.library import Library
from bringup.c.names import Names
from bringup.c.text import parenthesised
from bringup.dtypes import DType
from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.loops.form import Scalar


class Indices(ABC):
    """Those of one function.

    index_dtype, index: of indices, and its type in C.
    constants: the indices of the ``unroll`` loops whose copies are being written.
    """

    def __init__(self, lib: Library, index_dtype: DType) -> None:
        self.lib = lib
        self.names = Names(lib.dialect)
        self.index_dtype = index_dtype
        self.index = lib.type(index_dtype)
        self.constants: dict[Axis, Expr] = {}

    @abstractmethod
    def value(self, operand: Scalar) -> str:
        """A scalar."""

    def tests(self, mask: Sequence[Bound], operands: Sequence[Scalar] = ()) -> list[str]:
        """The conditions ``low <= expr < high``, but for sides that always hold."""
        tests: list[str] = []
        for bound in mask:
            expr = bound.expr.substitute(self.constants)
            text = self.expr(expr, operands)
            if expr.first < bound.low:
                tests.append(f"{text} >= {bound.low}")
            if expr.last >= bound.high:
                tests.append(f"{text} < {bound.high}")
        return list(dict.fromkeys(tests))

    def expr(self, expr: Expr, operands: Sequence[Scalar]) -> str:
        """An index expression; none of its parts leaves the range of its type."""
        expr = expr.substitute(self.constants) if self.constants else expr
        text = ""
        for atom, factor in expr.terms:
            size = abs(factor)
            part = self.atom(atom, operands)
            part = part if size == 1 else f"{size} * {part}"
            if not text:
                text = part if factor > 0 else f"-{part}"
            else:
                text += f" + {part}" if factor > 0 else f" - {part}"
        if not text:
            return str(expr.const)
        if expr.const:
            text += f" + {expr.const}" if expr.const > 0 else f" - {-expr.const}"
        return text

    def atom(self, atom: Atom, operands: Sequence[Scalar]) -> str:
        """A part of an index expression."""
        match atom:
            case Axis():
                return self.names.of(atom, atom.name)
            case Dyn():
                operand = operands[atom.operand]
                text = self.value(operand)
                return text if operand.dtype is self.index_dtype else f"({self.index}){text}"
            case Div() | Mod():
                return self.divided(atom, self.expr(atom.of, operands))
        raise AssertionError(f"{atom} stands in no function")

    def divided(self, atom: Div | Mod, text: str) -> str:
        """C divides towards 0, and indices are divided downwards."""
        sign, family = ("/", "floor_div") if isinstance(atom, Div) else ("%", "floor_rem")
        if atom.of.first < 0:
            return self.lib.call(f"{family}_{self.index_dtype}", text, str(atom.by))
        return f"({parenthesised(text)} {sign} {atom.by})"


__all__ = ["Indices"]
