"""Kernels from text: the reverse of the printer, and readers of index expressions for attributes.

Grammar of an expression, as `Expr` prints it::

    expr  = term {" + " term}
    term  = integer | [integer "*"] atom
    atom  = "a" id "[" size "]" | "d" operand "[" first ":" last "]"
          | "(" expr ")//" by | "(" expr ")%" by
    bound = low " <= " expr " < " high

In functions of the loop level, whose loops have names, an axis is such a name alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Never, get_args

from bringup.dtypes import BY_NAME, Precision
from bringup.errors import ParseError
from bringup.graph import Graph, Operation
from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.graph.parser import parse_graph, register_attr_reader
from bringup.kernel.form import AxisLimit, BufferDecl, Fold, Kernel, Role, Sink, Stage, Store
from bringup.kernel.ops import KERNEL_OPS
from bringup.ops.table import find
from bringup.types import TensorType

_AXIS = re.compile(r"a(\d+)\[(\d+)\]")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_DYN = re.compile(r"d(\d+)\[(-?\d+):(-?\d+)\]")
_INTEGER = re.compile(r"-?\d+")
_BY = re.compile(r"(//|%)(\d+)")
_BOUND = re.compile(r"(-?\d+) <= (.*) < (-?\d+)")
_BOUND_ATTR = re.compile(r"(-?\d+):(-?\d+) (.*)")
_BUFFER = re.compile(r"b(\d+): (\w+) (\S+)")
_STAGE = re.compile(r"stage (\d+) over (.*?)(?: if (.*))?")
_LIMIT = re.compile(r"a(\d+)\[(\d+)\] < (.*)")
_FOLD = re.compile(r"fold\.(\w+) (\w+)(?:( product)(?: (\w+))?)?")
#: By what the text has behind a product.
_PRECISIONS: dict[str | None, Precision] = {None: "highest", "tf32": "tf32"}
_STORE = re.compile(r"store b(\d+)\[(.*?)\](?: if (.*))?")


def parse_expr(text: str, loops: Mapping[str, Axis] | None = None) -> Expr:
    """The expression that `str` printed as ``text``, term by term as it stands.

    loops: the axes by name, where the text has names alone.
    Raises ParseError.

    >>> str(parse_expr("4*a0[8] + (a1[6] + 1)//2 + -3"))
    '4*a0[8] + (a1[6] + 1)//2 + -3'
    """
    reader = _ExprReader(text, loops)
    try:
        found = reader.expr()
    except RecursionError:
        reader.fail("brackets inside one another, too many levels deep")
    if reader.pos < len(text):
        reader.fail("text after the expression")
    return found


def parse_bound(text: str, loops: Mapping[str, Axis] | None = None) -> Bound:
    """The condition that `str` printed as ``text``; see `parse_expr`.  Raises ParseError."""
    found = _BOUND.fullmatch(text)
    if found is None:
        axis = "a0[8]" if loops is None else "i"
        raise ParseError(f"not a bound: {text!r}", fix=f"write it like 0 <= {axis} + -1 < 6")
    return Bound(parse_expr(found[2], loops), int(found[1]), int(found[3]))


def _read_bound_attr(text: str) -> Bound:
    found = _BOUND_ATTR.fullmatch(text)
    if found is None:
        raise ParseError(f"not a bound: {text!r}", fix="write it like bound<0:6 a0[8] + -1>")
    return Bound(parse_expr(found[3]), int(found[1]), int(found[2]))


class _ExprReader:
    def __init__(self, text: str, loops: Mapping[str, Axis] | None) -> None:
        self.text = text
        self.loops = loops
        self.pos = 0

    def fail(self, message: str) -> Never:
        raise ParseError(f"{message} at {self.text[self.pos : self.pos + 20]!r}, in {self.text!r}")

    def find(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.pos)
        if found is not None:
            self.pos = found.end()
        return found

    def accept(self, token: str) -> bool:
        if not self.text.startswith(token, self.pos):
            return False
        self.pos += len(token)
        return True

    def expr(self) -> Expr:
        const, terms = 0, []
        while True:
            number = self.find(_INTEGER)
            if number is None or self.accept("*"):
                terms.append((self.atom(), int(number[0]) if number else 1))
            else:
                const += int(number[0])
            if not self.accept(" + "):
                return Expr(const, tuple(terms))

    def atom(self) -> Atom:
        dyn = self.find(_DYN)
        if dyn is not None:
            return Dyn(int(dyn[1]), int(dyn[2]), int(dyn[3]))
        axis = self.axis()
        if axis is not None:
            return axis
        if not self.accept("("):
            self.fail("expected an axis such as " + ("i" if self.loops is not None else "a0[4]"))
        inner = self.expr()
        if not self.accept(")"):
            self.fail("expected ')'")
        by = self.find(_BY)
        if by is None or int(by[2]) == 0:
            self.fail("expected // or % and a positive integer")
        return Div(inner, int(by[2])) if by[1] == "//" else Mod(inner, int(by[2]))

    def axis(self) -> Axis | None:
        if self.loops is None:
            axis = self.find(_AXIS)
            return Axis(int(axis[1]), int(axis[2])) if axis is not None else None
        name = self.find(_NAME)
        if name is not None and name[0] not in self.loops:
            self.fail(f"there is no loop {name[0]} round this")
        return self.loops[name[0]] if name is not None else None


register_attr_reader("index", parse_expr)
register_attr_reader("bound", _read_bound_attr)


def resolve(name: str) -> Operation | None:
    """The op of a name in a body: the kernel level's own, then the table's."""
    return KERNEL_OPS.get(name) or find(name)


def parse_kernel(text: str, *, source: str | None = None) -> Kernel:
    """The kernel whose ``str`` is ``text``.

    source: what the text was read from, for the locations of instructions.  The result is well
    typed, not verified; see `verify_kernel`.
    Raises ParseError naming the line.
    """
    return _KernelReader(text, source).kernel()


class _KernelReader:
    """One line after the other; bodies are left to the graph's parser."""

    def __init__(self, text: str, source: str | None) -> None:
        self.lines = text.rstrip().split("\n")
        self.source = source
        self.at = 0

    def fail(self, message: str, cause: ParseError | None = None) -> Never:
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        fix = cause.fix if cause is not None else None
        raise ParseError(f"line {self.at + 1}: {message}", notes=(line,), fix=fix) from cause

    @property
    def line(self) -> str:
        return self.lines[self.at].strip() if self.at < len(self.lines) else ""

    def take(self, start: str) -> str:
        """The rest of the line, which must begin with a word."""
        if not self.line.startswith(start):
            self.fail(f"expected {start.strip()!r}")
        rest = self.line[len(start) :]
        self.at += 1
        return rest

    def kernel(self) -> Kernel:
        name = self.take("kernel ")
        buffers: list[BufferDecl] = []
        while self.line.startswith("b"):
            buffers.append(self.buffer(len(buffers)))
        grid = self.axes(self.take("grid "))
        stages: list[Stage] = []
        while self.at < len(self.lines):
            stages.append(self.stage(len(stages)))
        return Kernel(name, grid, tuple(buffers), tuple(stages))

    def buffer(self, number: int) -> BufferDecl:
        found = _BUFFER.fullmatch(self.line)
        if found is None or int(found[1]) != number:
            self.fail(f"expected a buffer such as b{number}: in f32[4]")
        role: Role | None = next((r for r in get_args(Role) if r == found[2]), None)
        if role is None:
            self.fail(f"{found[2]!r} is no role: {', '.join(get_args(Role))}")
        try:
            decl = BufferDecl(TensorType.parse(found[3]), role)
        except ParseError as error:
            self.fail(error.what, error)
        self.at += 1
        return decl

    def axes(self, text: str) -> tuple[Axis, ...]:
        if text == "()":
            return ()
        found = [_AXIS.fullmatch(word) for word in text.split()]
        axes = tuple(Axis(int(m[1]), int(m[2])) for m in found if m is not None)
        if len(axes) < len(found) or not axes:
            self.at -= 1
            self.fail("expected axes such as a0[4] a1[8], or ()")
        return axes

    def stage(self, number: int) -> Stage:
        found = _STAGE.fullmatch(self.line)
        if found is None or int(found[1]) != number:
            self.fail(f"expected stage {number} over its axes")
        limits = self.limits(found[3]) if found[3] else ()
        self.at += 1
        axes = self.axes(found[2])
        body = self.body()
        sinks: list[Sink] = []
        while self.line.startswith(("fold", "store")):
            sinks.append(self.sink())
        return Stage(axes, body, tuple(sinks), limits)

    def limits(self, text: str) -> tuple[AxisLimit, ...]:
        limits: list[AxisLimit] = []
        for part in text.split(" and "):
            found = _LIMIT.fullmatch(part)
            if found is None:
                self.fail("expected the limit of an axis, such as a1[8] < -8*a0[2] + 12")
            try:
                axis = Axis(int(found[1]), int(found[2]))
                limits.append(AxisLimit(axis, parse_expr(found[3])))
            except ParseError as error:
                self.fail(error.what, error)
        return tuple(limits)

    def body(self) -> Graph:
        """The lines up to the closing bracket, with blank ones before them so that errors count
        lines right.
        """
        start = self.at
        while self.at < len(self.lines) and self.line != "}":
            self.at += 1
        text = "\n" * start + "\n".join(self.lines[start : self.at + 1])
        self.at += 1
        return parse_graph(text, resolve, source=self.source)

    def sink(self) -> Sink:
        fold, store = _FOLD.fullmatch(self.line), _STORE.fullmatch(self.line)
        sink: Sink
        if fold is not None and fold[2] in BY_NAME:
            precision = _PRECISIONS.get(fold[4])
            if precision is None:
                self.fail(f"{fold[4]!r} is no precision of products: tf32")
            sink = Fold(fold[1], BY_NAME[fold[2]], fold[3] is not None, precision)
        elif store is not None:
            sink = self.store(int(store[1]), store[2], store[3])
        else:
            self.fail("expected fold.kind dtype or store b0[index]")
        self.at += 1
        return sink

    def store(self, buffer: int, index: str, mask: str | None) -> Store:
        try:
            bounds = tuple(map(parse_bound, mask.split(" and "))) if mask else ()
            return Store(buffer, parse_expr(index), bounds)
        except ParseError as error:
            self.fail(error.what, error)


__all__ = ["parse_bound", "parse_expr", "parse_kernel", "resolve"]
