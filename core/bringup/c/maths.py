"""Elementary functions as functions of C, from the definitions of `bringup.maths`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import ClassVar

from bringup.c.library import Family, Library
from bringup.dtypes import BY_NAME, DType
from bringup.maths import arctangent, errorfunction, exponential, portable, power
from bringup.maths.arithmetic import Arithmetic
from bringup.records import record

#: C's comparison of each predicate; what is true of NaN is the negation of what is false of it.
_ORDERED = {"oeq": "==", "ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "une": "!="}
_UNORDERED = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}

#: The names that statements give, and a statement that does nothing but give one.
_NAME, _DEFINED = re.compile(r"\bt\d+\b"), re.compile(r"const \w+ (t\d+) = ")


@record(eq=False)
class Term:
    """An operand in C and its type."""

    text: str
    type: str


class Statements(Arithmetic[Term]):
    """Arithmetic that writes a statement ``const float t3 = t1 * t2;`` for each operation."""

    has_fma: ClassVar[bool] = True

    def __init__(self, lib: Library, dtype: DType) -> None:
        super().__init__(dtype.bits)
        self.lib = lib
        self.dtype = dtype
        self.float = lib.type(dtype)
        self.signed = BY_NAME[f"i{dtype.bits}"]
        self.int, self.word = lib.type(self.signed), lib.unsigned(dtype)
        self.lines: list[str] = []
        self.add, self.sub = self._operator("+"), self._operator("-")
        self.mul, self.div = self._operator("*"), self._operator("/")
        self.fma, self.muladd = self._function("fma"), self._function("muladd")
        self.floor, self.sqrt = self._native("floor"), self._native("sqrt")
        self.abs, self.copysign = self._native("abs"), self._native("copysign")
        self.neg = lambda x: self._let(f"-{x.text}", self.float)
        self.and_, self.or_, self.xor = self._bitwise("&"), self._bitwise("|"), self._bitwise("^")
        self.not_ = lambda x: self._let(f"!{x.text}", "bool")
        self.int_add, self.int_sub = self._wrapping("+"), self._wrapping("-")

    def _let(self, value: str, type_: str) -> Term:
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {type_} {name} = {value};")
        return Term(name, type_)

    def body(self, result: Term) -> list[str]:
        """The statements that a result depends on, and its return."""
        kept = [f"return {result.text};"]
        needed = set(_NAME.findall(result.text))
        for line in reversed(self.lines):
            name = _DEFINED.match(line)
            if name is None or name[1] in needed:
                needed.update(_NAME.findall(line))
                kept.append(line)
        return kept[::-1]

    def _operator(self, sign: str) -> Callable[[Term, Term], Term]:
        return lambda a, b: self._let(f"{a.text} {sign} {b.text}", self.float)

    def _function(self, family: str) -> Callable[[Term, Term, Term], Term]:
        name = f"{family}_{self.dtype.name}"
        return lambda *xs: self._let(self.lib.call(name, *(x.text for x in xs)), self.float)

    def _native(self, op: str) -> Callable[..., Term]:
        name = self.lib.native(op, self.dtype)
        return lambda *xs: self._let(f"{name}({', '.join(x.text for x in xs)})", self.float)

    def _bitwise(self, sign: str) -> Callable[[Term, Term], Term]:
        return lambda a, b: self._let(f"{a.text} {sign} {b.text}", a.type)

    def _wrapping(self, sign: str) -> Callable[[Term, Term], Term]:
        word = self.word
        return lambda a, b: self._let(
            f"({self.int})(({word}){a.text} {sign} ({word}){b.text})", self.int
        )

    def c(self, value: float) -> Term:
        """A float constant."""
        text = self.lib.real(value, self.dtype)
        return Term(f"({text})" if text.startswith("-") else text, self.float)

    def i(self, value: int) -> Term:
        """An integer constant as wide as the float."""
        low = value & ((1 << self.width) - 1)
        signed = low - (1 << self.width) if low >> (self.width - 1) else low
        text = self.lib.integer(signed, self.signed)
        return Term(f"({text})" if text.startswith("-") else text, self.int)

    def test(self, predicate: str, a: Term, b: Term) -> Term:
        """Float comparison by LLVM's predicate."""
        x, y = a.text, b.text
        if predicate == "uno":
            value = f"{x} != {x} || {y} != {y}"
        elif predicate == "one":
            value = f"{x} < {y} || {x} > {y}"
        elif predicate in _ORDERED:
            value = f"{x} {_ORDERED[predicate]} {y}"
        else:
            value = f"!({x} {_UNORDERED[predicate]} {y})"
        return self._let(value, "bool")

    def select(self, mask: Term, a: Term, b: Term) -> Term:
        """``a`` where the condition holds, else ``b``."""
        return self._let(f"{mask.text} ? {a.text} : {b.text}", a.type)

    def bits(self, x: Term) -> Term:
        """The pattern of a float."""
        return self._let(f"({self.int}){self.lib.bits(x.text, self.dtype)}", self.int)

    def from_bits(self, n: Term) -> Term:
        """The float of a pattern."""
        return self._let(self.lib.from_bits(f"({self.word}){n.text}", self.dtype), self.float)

    def to_float(self, n: Term) -> Term:
        """An integer as a float."""
        return self._let(f"({self.float}){n.text}", self.float)

    def to_integer(self, x: Term) -> Term:
        """An integral float as an integer; 0 for NaN, which C's own conversion leaves undefined."""
        return self._let(self.lib.call(f"whole_{self.dtype.name}", x.text), self.int)

    def shift_left(self, n: Term, count: int) -> Term:
        """By a constant; bits go out at the upper end."""
        return self._let(f"({self.int})(({self.word}){n.text} << {count})", self.int)

    def shift_right(self, n: Term, count: int) -> Term:
        """By a constant, with the sign."""
        name = f"sar_{self.signed.name}"
        return self._let(self.lib.call(name, n.text, str(count)), self.int)

    def negative(self, n: Term) -> Term:
        """Whether an integer is below 0."""
        return self._let(f"{n.text} < 0", "bool")


def _exp(m: Statements, x: Term) -> Term:
    return exponential.exp(m, x, exponential.SPLIT_LN2[m.width])


def _log(m: Statements, x: Term) -> Term:
    """-infinity at ±0, NaN below; subnormal numbers are scaled first."""
    y, exponent = m.normalise(x)
    result = m.muladd(exponent, m.c(math.log(2)), portable.log(m, y))
    result = m.select(m.test("oeq", x, m.c(0.0)), m.c(-math.inf), result)
    result = m.select(m.test("olt", x, m.c(math.inf)), result, x)
    return m.select(m.test("olt", x, m.c(0.0)), m.c(math.nan), result)


def _exp_call(m: Statements, x: Term) -> Term:
    """The function of the library, or the dialect's own."""
    native = m.lib.native("exp", m.dtype)
    call = f"{native}({x.text})" if native else m.lib.call(f"exp_{m.dtype.name}", x.text)
    return m._let(call, m.float)


def _exp_in_range(m: Statements, x: Term) -> Term:
    """The dialect's own exponential, or that of normal results."""
    if m.lib.native("exp", m.dtype):
        return _exp_call(m, x)
    return exponential.exp_in_range(m, x, exponential.SPLIT_LN2[m.width])


def _logistic(m: Statements, x: Term) -> Term:
    """``1 / (1 + e^-|x|)`` on the right, ``e^-|x|`` times that on the left."""
    one = m.c(1.0)
    power_ = _exp_call(m, m.neg(m.abs(x)))
    over = m.select(m.test("olt", x, m.c(0.0)), power_, one)
    return m.div(over, m.add(one, power_))


#: By op: the definition, which gets its operands by position.
OWN: dict[str, Callable[..., Term]] = {
    "exp": _exp,
    "log": _log,
    "logistic": _logistic,
    "atan": arctangent.atan,
    "atan2": arctangent.atan2,
    "erf": lambda m, x: errorfunction.erf(m, x, lambda y: _exp_in_range(m, y)),
    "pow": power.power,
}
_PARAMS = {"atan2": ("y", "x"), "pow": ("x", "y")}


def _define(lib: Library, name: str, dtype: DType) -> str:
    op = name.rpartition("_")[0]
    m = Statements(lib, dtype)
    params = _PARAMS.get(op, ("x",))
    result = OWN[op](m, *(Term(param, m.float) for param in params))
    declared = [f"{m.float} {param}" for param in params]
    return lib.function(name, m.float, declared, m.body(result))


#: What `Library` takes.
OWN_FAMILIES: dict[str, Family] = dict.fromkeys(OWN, _define)

__all__ = ["OWN", "OWN_FAMILIES"]
