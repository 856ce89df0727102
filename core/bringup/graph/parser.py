"""Graphs from text: the reverse of the printer, with errors that point at the character.

Grammar (white space and ``# comments`` are free)::

    graph  = "graph" name "(" [value {"," value}] ")" "{" {instr} "return" [names] "}"
    value  = "%" word ":" type
    instr  = value {"," value} "=" op "(" [names] ")" ["{" [attr {"," attr}] "}"]
    attr   = word "=" item
    item   = "none" | "true" | "false" | number | string | "(" [item {"," item}] [","] ")"
           | dtype | type | type "(" elements ")" | graph | prefix "<" … ">"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Never

import numpy as np

from bringup.dtypes import BY_NAME
from bringup.errors import BringupError, Location, OpTypeError, ParseError
from bringup.graph.builder import Builder
from bringup.graph.elements import read_double, read_element
from bringup.graph.ir import Graph, Literal, Operation, Value
from bringup.graph.printer import NAME
from bringup.types import TensorType

Resolve = Callable[[str], Operation | None]
AttrReader = Callable[[str], Any]

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_VALUE = re.compile(r"%[A-Za-z0-9_]+")
_TYPE = re.compile(r"[a-z][a-z0-9]*\[[0-9, ]*\]")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NUMBER = re.compile(r"0x[0-9a-f]{16}|-inf|-?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?")
_ELEMENT = re.compile(r"[-+.A-Za-z0-9]+")
_LOCATION = re.compile(r"[ \t]*# ([^\n]+):([0-9]{1,9})$", re.MULTILINE)
_WORDS: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "nan": read_double("nan"),
}
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
# The empty text past the end closes nothing.
_CLOSING = ("", *_BRACKETS.values())

_readers: dict[str, AttrReader] = {}


def register_attr_reader(prefix: str, reader: AttrReader) -> None:
    """Let attributes printed ``prefix<body>`` (see the printer's ``__ir__``) be read back.

    prefix: a word.
    reader: makes the attribute from the body; a BringupError or ValueError it raises becomes a
    ParseError at the attribute.
    Raises ValueError if another reader has the prefix.
    """
    if not NAME.fullmatch(prefix) or prefix in _WORDS or prefix in BY_NAME or prefix == "graph":
        raise ValueError(f"{prefix!r} cannot be the prefix of an attribute")
    if _readers.setdefault(prefix, reader) is not reader:
        raise ValueError(f"attributes written {prefix}<…> already have a reader")


def parse_graph(text: str, resolve: Resolve, *, source: str | None = None) -> Graph:
    """The graph that `print_graph` printed as `text`.

    resolve: the op of a name, or None.
    source: what the text was read from; each instruction then gets its line in it as location.
    Without it, locations that were printed are read back.
    Every instruction passes through a builder, so the result is well typed.
    Raises ParseError naming line and column.
    """
    scanner = _Scanner(text)
    try:
        graph = _Parser(scanner, resolve, source).graph()
    except RecursionError:
        scanner.fail("brackets inside one another, too many levels deep", scanner.pos)
    scanner.skip()
    if scanner.pos < len(text):
        scanner.fail("text after the end of the graph", scanner.pos)
    return graph


class _Scanner:
    """A position in a text, and errors that show it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def skip(self) -> int:
        """Pass white space and comments; the position after them."""
        blank = _BLANK.match(self.text, self.pos)
        assert blank is not None
        self.pos = blank.end()
        return self.pos

    def line_of(self, pos: int) -> int:
        return self.text.count("\n", 0, pos) + 1

    def fail(
        self, message: str, pos: int, fix: str | None = None, cause: Exception | None = None
    ) -> Never:
        row, start = self.line_of(pos), self.text.rfind("\n", 0, pos) + 1
        line = self.text[start:].split("\n", 1)[0]
        margin = " " * len(str(row))
        raise ParseError(
            f"line {row}, column {pos - start + 1}: {message}",
            notes=(f"{row} | {line}", f"{margin} | {' ' * (pos - start)}^"),
            fix=fix,
        ) from cause

    def peek(self, token: str) -> bool:
        """Whether a punctuation mark or a whole word comes next."""
        if not self.text.startswith(token, self.skip()):
            return False
        end = self.pos + len(token)
        return not (token.isalpha() and self.text[end : end + 1].isalnum())

    def accept(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.pos += len(token)
        return True

    def expect(self, token: str, where: str) -> None:
        if not self.accept(token):
            self.fail(f"expected {token!r} {where}", self.pos)

    def find(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.skip())
        if match is None:
            return None
        self.pos = match.end()
        return match[0]

    def need(self, pattern: re.Pattern[str], description: str) -> str:
        token = self.find(pattern)
        if token is None:
            self.fail(f"expected {description}", self.pos)
        return token

    def balanced(self) -> str:
        """The body of ``<…>``, from its opening bracket on."""
        start, awaited = self.pos, [">"]
        while awaited:
            self.pos += 1
            char = self.text[self.pos : self.pos + 1]
            if char in _CLOSING and char != awaited.pop():
                self.fail("the bracket is never closed", start)
            if char in _BRACKETS:
                awaited.append(_BRACKETS[char])
        self.pos += 1
        return self.text[start + 1 : self.pos - 1]


class _Parser:
    """Recursive descent, one method per rule; one object per graph, as each has its own names."""

    def __init__(self, scanner: _Scanner, resolve: Resolve, source: str | None) -> None:
        self.scan = scanner
        self.resolve = resolve
        self.source = source
        self.values: dict[str, Value] = {}
        self.builder = Builder()

    def graph(self) -> Graph:
        scan = self.scan
        scan.expect("graph", "at the start of a graph")
        name = self.string() if scan.peek('"') else scan.need(NAME, "the graph's name")
        scan.expect("(", "before the inputs")
        if not scan.peek(")"):
            for text, type_, pos in self.declarations():
                self.define(text, self.builder.input(type_), pos)
        scan.expect(")", "after the inputs")
        scan.expect("{", "before the instructions")
        while scan.peek("%"):
            self.instr(name)
        scan.expect("return", "or an instruction")
        outputs = self.names("}")
        scan.expect("}", "after the outputs")
        return self.builder.build(outputs, name)

    def define(self, text: str, value: Value, pos: int) -> None:
        if text in self.values:
            self.scan.fail(f"{text} is defined twice", pos)
        self.values[text] = value

    def declarations(self) -> list[tuple[str, TensorType, int]]:
        declared = []
        while True:
            pos = self.scan.skip()
            name = self.scan.need(_VALUE, "a value such as %0")
            self.scan.expect(":", "before the type")
            declared.append((name, self.type(), pos))
            if not self.scan.accept(","):
                return declared

    def type(self) -> TensorType:
        pos = self.scan.skip()
        text = self.scan.need(_TYPE, "a type such as f32[4,8]")
        try:
            return TensorType.parse(text)
        except ParseError as error:
            self.scan.fail(error.what, pos, error.fix, error)

    def names(self, end: str) -> list[Value]:
        """Defined values up to, and without, the closing token."""
        values: list[Value] = []
        while not self.scan.peek(end):
            if values:
                self.scan.expect(",", f"or {end!r} after a value")
            pos = self.scan.skip()
            name = self.scan.need(_VALUE, "a value such as %0")
            if name not in self.values:
                self.scan.fail(f"{name} is not defined above", pos)
            values.append(self.values[name])
        return values

    def instr(self, function: str) -> None:
        scan = self.scan
        start = scan.skip()
        declared = self.declarations()
        scan.expect("=", "after the results")
        op_pos = scan.skip()
        op_name = scan.need(NAME, "the name of an op")
        op = self.resolve(op_name)
        if op is None:
            scan.fail(f"there is no op {op_name!r}", op_pos)
        scan.expect("(", "before the operands")
        operands = self.names(")")
        scan.expect(")", "after the operands")
        attrs = self.attrs() if scan.peek("{") else {}
        if self.source is not None:
            self.builder.location = Location(self.source, scan.line_of(start), function)
        else:
            printed = _LOCATION.match(scan.text, scan.pos)
            line = Location(printed[1], int(printed[2]), function) if printed is not None else None
            self.builder.location = line
        try:
            results = self.builder.emit(op, operands, attrs)
        except OpTypeError as error:
            scan.fail(error.what, op_pos, error.fix, error)
        if len(results) != len(declared):
            scan.fail(f"{op_name} has {len(results)} results, not {len(declared)}", start)
        for (text, type_, pos), value in zip(declared, results, strict=True):
            if type_ is not value.type:
                scan.fail(f"{text} is a {value.type}, not a {type_}", pos)
            self.define(text, value, pos)

    def attrs(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        self.scan.expect("{", "before the attributes")
        while not self.scan.accept("}"):
            if attrs:
                self.scan.expect(",", "or '}' after an attribute")
            pos = self.scan.skip()
            name = self.scan.need(NAME, "the name of an attribute")
            if name in attrs:
                self.scan.fail(f"attribute {name} is given twice", pos)
            self.scan.expect("=", "after the attribute's name")
            attrs[name] = self.item()
        return attrs

    def item(self) -> Any:
        scan = self.scan
        pos = scan.skip()
        if scan.peek('"'):
            return self.string()
        if scan.accept("("):
            return self.tuple()
        number = scan.find(_NUMBER)
        if number is not None:
            return int(number) if number.lstrip("-").isdigit() else read_double(number)
        word = scan.need(NAME, "an attribute's value")
        if word in _WORDS:
            return _WORDS[word]
        following = scan.text[scan.pos : scan.pos + 1]
        if word in BY_NAME and following != "[":
            return BY_NAME[word]
        if following == "<":
            return self.foreign(word, pos)
        scan.pos = pos
        if word == "graph":
            return _Parser(scan, self.resolve, self.source).graph()
        type_ = self.type()
        return self.literal(type_) if scan.accept("(") else type_

    def tuple(self) -> tuple[Any, ...]:
        items: list[Any] = []
        while not self.scan.accept(")"):
            items.append(self.item())
            if not self.scan.accept(","):
                self.scan.expect(")", "or ',' after an item")
                break
        return tuple(items)

    def string(self) -> str:
        pos = self.scan.skip()
        try:
            return str(json.loads(self.scan.need(_STRING, 'a string such as "add"')))
        except json.JSONDecodeError as error:
            self.scan.fail(f"not a string: {error.msg}", pos)

    def foreign(self, prefix: str, pos: int) -> Any:
        if prefix not in _readers:
            known = ", ".join(sorted(_readers)) or "none"
            self.scan.fail(f"attributes {prefix}<…> have no reader; known: {known}", pos)
        body = self.scan.balanced()
        try:
            return _readers[prefix](body)
        except (BringupError, ValueError) as error:
            message = error.what if isinstance(error, BringupError) else str(error)
            self.scan.fail(message, pos, getattr(error, "fix", None), error)

    def literal(self, type_: TensorType) -> Literal:
        pos = self.scan.skip()
        data = self.raw() if self.scan.accept("hex") else self.elements(type_)
        self.scan.expect(")", "after the elements")
        width = type_.dtype.itemsize
        if len(data) not in (width, type_.size * width):
            count = f"{len(data)} bytes" if len(data) % width else f"{len(data) // width} elements"
            self.scan.fail(f"{type_} takes 1 or {type_.size} elements, not {count}", pos)
        return Literal(np.frombuffer(data, dtype=type_.dtype.numpy), type_)

    def raw(self) -> bytes:
        pos = self.scan.skip()
        try:
            return bytes.fromhex(self.string())
        except ValueError as error:
            self.scan.fail("not a row of hexadecimal digits", pos, cause=error)

    def elements(self, type_: TensorType) -> bytes:
        chunks: list[bytes] = []
        while not self.scan.peek(")"):
            if chunks:
                self.scan.expect(",", "or ')' after an element")
            pos = self.scan.skip()
            text = self.scan.need(_ELEMENT, "an element")
            try:
                chunks.append(read_element(text, type_.dtype).tobytes())
            except (ValueError, OverflowError) as error:
                self.scan.fail(f"{text} is not a {type_.dtype}", pos, cause=error)
        return b"".join(chunks)
