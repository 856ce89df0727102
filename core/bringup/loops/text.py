"""Functions of the loop level as text, and back.

Loops have names, so an index is printed without the sizes of its axes: ``8*i + j``, where a kernel
says ``8*a0[4] + a1[8]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Never, TypeVar, get_args

from bringup.dtypes import BY_NAME, Precision
from bringup.errors import ParseError
from bringup.graph.elements import format_element
from bringup.graph.index import Axis, Bound, Expr
from bringup.graph.parser import parse_graph
from bringup.graph.printer import format_attr
from bringup.kernel.ops import KERNEL_OPS
from bringup.kernel.parser import parse_bound, parse_expr, resolve
from bringup.loops.form import (
    NESTING,
    Alloc,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    InFlight,
    Let,
    Load,
    LoopKind,
    Param,
    Role,
    Scalar,
    Shuffle,
    Space,
    Stmt,
    Store,
    Wait,
    named_axis,
)
from bringup.ops.table import lookup
from bringup.types import TensorType

_T = TypeVar("_T")
#: By what the text has behind a product.
_PRECISIONS: dict[str | None, Precision] = {None: "highest", "tf32": "tf32"}
# Patterns are compiled when text is read first, which a process that only runs programs never does.
_SIZE = r"(?<=[\w.])\[\d+\]"
_NAME = r"([A-Za-z_][\w.]*)"
_FUNC = rf"func {_NAME}\((.*)\) \{{"
_PARAM = rf"{_NAME}: (\w+) (\S+\[\d+\])"
_KINDS = "|".join(get_args(LoopKind))
# An end may end in a name, too.
_FOR = rf"for {_NAME} in (\d+)(?: until (.*?))?(?: ({_KINDS}))?(?: by (\d+x\d+x\d+))? \{{"
_ALLOC = rf"alloc {_NAME}: (\w+) (\S+\[\d+\])(?: swizzle (\d+))?"
_LET = r"%(\w+): (\w+) = (.*)"
_ACCESS = rf"{_NAME}\[(.*?)\](?:\((%[%\w, ]*)\))?(?: if (.*))?"
_INDEXED = r"(index|inside) (.*?)(?: of (%[%\w, ]*))?"
_STORE = (
    rf"{_NAME}\[(.*?)\](?:\((%[%\w, ]*)\))? (atomic |later )?(\w*)= %(\w+)(?: \* %(\w+))?"
    r"(?: (tf32))?(?: if (.*))?"
)
_WAIT = r"wait (products )?([0-9]+)"
_COMMITS: dict[str, InFlight] = {"commit": "copies", "commit products": "products"}
_SHUFFLE = r"shuffle %(\w+) over ([\w.]+) xor (\d+)"


def print_func(func: Func) -> str:
    """The function, in the form that `parse_func` reads."""
    head = f"func {func.name}({', '.join(map(str, func.params))}) {{"
    return "\n".join([head, *_lines(func.body, "  "), "}"])


def print_stmt(stmt: Stmt) -> str:
    """The line of a statement, without what it contains."""
    return _head(stmt) if isinstance(stmt, NESTING) else _line(stmt)


def _lines(body: Sequence[Stmt], indent: str) -> Iterator[str]:
    for stmt in body:
        if isinstance(stmt, NESTING):
            yield f"{indent}{_head(stmt)} {{"
            yield from _lines(stmt.body, indent + "  ")
            yield f"{indent}}}"
        else:
            yield indent + _line(stmt)


def _head(stmt: For | If) -> str:
    if isinstance(stmt, If):
        tests = [*map(_bare, stmt.mask), *([str(stmt.test)] if stmt.test else [])]
        return f"if {' and '.join(tests)}"
    until = f" until {_bare(stmt.end)}" if stmt.end is not None else ""
    kind = f" {stmt.kind}" if stmt.kind != "serial" else ""
    by = f" by {stmt.by}" if stmt.by else ""
    return f"for {stmt.name} in {stmt.axis.size}{until}{kind}{by}"


def _line(stmt: Let | Load | Store | Alloc | Barrier | Commit | Wait | Shuffle) -> str:
    match stmt:
        case Let():
            return f"{stmt.result}: {stmt.result.dtype} = {_computed(stmt)}"
        case Load():
            place = _place(stmt.buffer, stmt.index, stmt.operands)
            return f"{stmt.result}: {stmt.result.dtype} = {place}{_where(stmt.mask)}"
        case Store():
            place = _place(stmt.buffer, stmt.index, stmt.operands)
            value = f"{stmt.value} * {stmt.factor}" if stmt.factor else str(stmt.value)
            less = f" {stmt.precision}" if stmt.precision != "highest" else ""
            how = "atomic " if stmt.atomic else "later " if stmt.later else ""
            return f"{place} {how}{stmt.fold}= {value}{less}{_where(stmt.mask)}"
        case Alloc():
            return f"alloc {stmt.buffer}"
        case Barrier():
            return "barrier"
        case Commit():
            return "commit" if stmt.what == "copies" else f"commit {stmt.what}"
        case Wait():
            return f"wait {'' if stmt.what == 'copies' else stmt.what + ' '}{stmt.pending}"
        case Shuffle():
            place = f"{stmt.value} over {stmt.axis.name} xor {stmt.mask}"
            return f"{stmt.result}: {stmt.result.dtype} = shuffle {place}"


def _computed(stmt: Let) -> str:
    """What is behind the ``=`` of a scalar."""
    operands = ", ".join(map(str, stmt.operands))
    match stmt.op.name:
        case "constant":
            return format_element(stmt.attrs["value"].scalar, stmt.result.dtype)
        case "index":
            text = f"index {_bare(stmt.attrs['index'])}"
        case "inside":
            text = f"inside {' and '.join(map(_bare, stmt.attrs['mask']))}"
        case name:
            attrs = ", ".join(f"{n}={format_attr(v)}" for n, v in stmt.attrs.items())
            return f"{name}({operands})" + (f" {{{attrs}}}" if attrs else "")
    return f"{text} of {operands}" if operands else text


def _place(buffer: Buffer, index: Expr, operands: Sequence[Scalar]) -> str:
    named = f"({', '.join(map(str, operands))})" if operands else ""
    return f"{buffer.name}[{_bare(index)}]{named}"


def _where(mask: Sequence[Bound]) -> str:
    return f" if {' and '.join(map(_bare, mask))}" if mask else ""


def _bare(of: Expr | Bound) -> str:
    """An index or a bound without the sizes of loops; ranges of loaded indices stay."""
    return re.sub(_SIZE, "", str(of))


def parse_func(text: str) -> Func:
    """The function whose ``str`` is ``text``; blank lines are free.

    The result is well formed, not verified; see `bringup.loops.verify_func`.
    Raises ParseError naming the line.

    >>> func = parse_func('''
    ... func f(y: out f32[4]) {
    ...   for i in 4 {
    ...     %0: f32 = 2.0
    ...     y[i] = %0
    ...   }
    ... }''')
    >>> func
    <Func f: 1 buffers, 1 loops>
    >>> str(parse_func(str(func))) == str(func)
    True
    """
    return _Reader(text).func()


class _Scope:
    """The names that a block sees."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self.axes: dict[str, Axis] = dict(outer.axes) if outer else {}
        self.scalars: dict[str, Scalar] = dict(outer.scalars) if outer else {}
        self.buffers: dict[str, Buffer] = dict(outer.buffers) if outer else {}


class _Reader:
    """One line after the other."""

    def __init__(self, text: str) -> None:
        self.lines = [line.strip() for line in text.split("\n")]
        self.at = 0

    def fail(self, message: str, cause: ParseError | None = None) -> Never:
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        fix = cause.fix if cause is not None else None
        raise ParseError(f"line {self.at + 1}: {message}", notes=(line,), fix=fix) from cause

    @property
    def line(self) -> str:
        while self.at < len(self.lines) and not self.lines[self.at]:
            self.at += 1
        return self.lines[self.at] if self.at < len(self.lines) else ""

    def func(self) -> Func:
        head = re.fullmatch(_FUNC, self.line)
        if head is None:
            self.fail("expected a head such as func f(x: in f32[4], y: out f32[4]) {")
        scope = _Scope()
        params = tuple(self.param(part, scope) for part in head[2].split(", ") if part)
        self.at += 1
        body = self.block(scope)
        if self.line:
            self.fail("text after the end of the function")
        return Func(head[1], params, body)

    def param(self, text: str, scope: _Scope) -> Param:
        found = re.fullmatch(_PARAM, text)
        role: Role | None = next((r for r in get_args(Role) if found and r == found[2]), None)
        if found is None or role is None:
            self.fail(f"expected a parameter such as x: in f32[4], not {text!r}")
        return Param(self.buffer(found[1], found[3], "global", scope), role)

    def buffer(self, name: str, text: str, space: Space, scope: _Scope, swizzle: int = 0) -> Buffer:
        type_ = self.read(TensorType.parse, text)
        buffer = Buffer(name, type_.dtype, type_.size, space, swizzle)
        return scope.buffers.setdefault(name, buffer)

    def read(self, reader: Callable[[str], _T], text: str) -> _T:
        try:
            return reader(text)
        except ParseError as error:
            self.fail(error.what, error)

    def block(self, scope: _Scope) -> tuple[Stmt, ...]:
        body: list[Stmt] = []
        while self.line != "}":
            if not self.line:
                self.fail("expected }")
            body.append(self.stmt(scope))
        self.at += 1
        return tuple(body)

    def stmt(self, scope: _Scope) -> Stmt:
        line = self.line
        if line.startswith("for "):
            return self.loop(line, scope)
        if line.startswith("if "):
            return self.branch(line, scope)
        stmt: Stmt
        if line == "barrier":
            stmt = Barrier()
        elif line in _COMMITS:
            stmt = Commit(_COMMITS[line])
        elif line.startswith("wait "):
            stmt = self.wait(line)
        elif line.startswith("alloc "):
            stmt = self.alloc(line, scope)
        elif line.startswith("%"):
            stmt = self.scalar(line, scope)
        else:
            stmt = self.store(line, scope)
        self.at += 1
        return stmt

    def loop(self, line: str, scope: _Scope) -> For:
        found = re.fullmatch(_FOR, line)
        if found is None:
            kinds = ", ".join(get_args(LoopKind))
            self.fail(f"expected a loop such as for i in 8 until 3*j + 2 vector {{, of: {kinds}")
        kind = next(k for k in get_args(LoopKind) if k == (found[4] or "serial"))
        end = self.expr(found[3], scope) if found[3] else None
        axis = named_axis(found[1], int(found[2]))
        inner = _Scope(scope)
        inner.axes[axis.name] = axis
        self.at += 1
        return For(axis, self.block(inner), kind, end, found[5] or "")

    def branch(self, line: str, scope: _Scope) -> If:
        if not line.endswith(" {"):
            self.fail("expected a condition such as if 0 <= i < 4 {")
        *bounds, last = line[3:-2].split(" and ")
        test = self.value(last[1:], scope) if last.startswith("%") else None
        bounds += [] if test else [last]
        mask = tuple(self.bound(text, scope) for text in bounds)
        self.at += 1
        return If(mask, self.block(_Scope(scope)), test)

    def alloc(self, line: str, scope: _Scope) -> Alloc:
        found = re.fullmatch(_ALLOC, line)
        space: Space | None = next((s for s in get_args(Space) if found and s == found[2]), None)
        if found is None or space is None:
            self.fail("expected a buffer such as alloc t: scratch f32[8]")
        scope.buffers.pop(found[1], None)
        return Alloc(self.buffer(found[1], found[3], space, scope, int(found[4] or 0)))

    def wait(self, line: str) -> Wait:
        found = re.fullmatch(_WAIT, line)
        if found is None:
            self.fail("expected a number of groups such as wait 2, or wait products 1")
        return Wait(int(found[2]), "products" if found[1] else "copies")

    def scalar(self, line: str, scope: _Scope) -> Let | Load | Shuffle:
        found = re.fullmatch(_LET, line)
        if found is None or found[2] not in BY_NAME:
            self.fail("expected a scalar such as %0: f32 = x[4*i]")
        result, text = Scalar(found[1], BY_NAME[found[2]]), found[3]
        indexed, access = re.fullmatch(_INDEXED, text), re.fullmatch(_ACCESS, text)
        shuffle = re.fullmatch(_SHUFFLE, text)
        stmt: Let | Load | Shuffle
        if shuffle is not None:
            if shuffle[2] not in scope.axes:
                self.fail(f"there is no loop {shuffle[2]} round it")
            value, axis = self.value(shuffle[1], scope), scope.axes[shuffle[2]]
            stmt = Shuffle(result, value, axis, int(shuffle[3]))
        elif indexed is not None:
            stmt = self.indexed(result, indexed, scope)
        elif access is not None and access[1] in scope.buffers:
            index, operands = self.expr(access[2], scope), self.values(access[3], scope)
            buffer, mask = scope.buffers[access[1]], self.mask(access[4], scope)
            stmt = Load(result, buffer, index, mask, operands)
        elif access is not None:
            self.fail(f"there is no buffer {access[1]}")
        else:
            stmt = self.computed(result, text, scope)
        scope.scalars[result.name] = result
        return stmt

    def indexed(self, result: Scalar, found: re.Match[str], scope: _Scope) -> Let:
        op, operands = KERNEL_OPS[found[1]], self.values(found[3], scope)
        if op.name == "inside":
            return Let(result, op, operands, {"mask": self.mask(found[2], scope)})
        index = self.expr(found[2], scope)
        return Let(result, op, operands, {"index": index, "dtype": result.dtype})

    def computed(self, result: Scalar, text: str, scope: _Scope) -> Let:
        """An op of the table, read by the parser of graphs from a graph of this one instruction."""
        if "(" not in text:
            text = f"constant() {{value={result.type}({text})}}"
        names = dict.fromkeys(re.findall(r"%(\w+)", text))
        operands = tuple(self.value(name, scope) for name in names)
        inputs = ", ".join(f"{scalar}: {scalar.type}" for scalar in operands)
        line = f"%_: {result.type} = {text}"
        try:
            graph = parse_graph(f"graph one({inputs}) {{ {line} return %_ }}", resolve)
        except ParseError as error:  # which counts lines and columns of that graph
            what = re.sub(r"^line \d+, column \d+: ", "", error.what)
            self.fail(what.replace("%_", str(result)), error)
        (instr,) = graph.instrs
        named = dict(zip(graph.inputs, operands, strict=True))
        row = lookup(instr.op.name)
        return Let(result, row, tuple(named[v] for v in instr.operands), instr.attrs)

    def store(self, line: str, scope: _Scope) -> Store:
        found = re.fullmatch(_STORE, line)
        if found is None:
            self.fail("expected a statement: for, if, alloc, barrier, %0: f32 = …, or x[i] = %0")
        if found[1] not in scope.buffers:
            self.fail(f"there is no buffer {found[1]}")
        return Store(
            scope.buffers[found[1]],
            self.expr(found[2], scope),
            self.value(found[6], scope),
            self.mask(found[9], scope),
            found[5],
            self.value(found[7], scope) if found[7] else None,
            _PRECISIONS[found[8]],
            self.values(found[3], scope),
            found[4] == "atomic ",
            found[4] == "later ",
        )

    def value(self, name: str, scope: _Scope) -> Scalar:
        if name not in scope.scalars:
            self.fail(f"%{name} is not defined above")
        return scope.scalars[name]

    def values(self, text: str | None, scope: _Scope) -> tuple[Scalar, ...]:
        return tuple(self.value(name[1:], scope) for name in text.split(", ")) if text else ()

    def expr(self, text: str, scope: _Scope) -> Expr:
        return self.read(lambda part: parse_expr(part, scope.axes), text)

    def bound(self, text: str, scope: _Scope) -> Bound:
        return self.read(lambda part: parse_bound(part, scope.axes), text)

    def mask(self, text: str | None, scope: _Scope) -> tuple[Bound, ...]:
        return tuple(self.bound(part, scope) for part in text.split(" and ")) if text else ()


__all__ = ["parse_func", "print_func", "print_stmt"]
