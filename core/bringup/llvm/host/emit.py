"""Helpers to emit native runtimes: members of structs, calls of C, unlikely branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bringup.llvm.text import (
    Builder,
    Function,
    Module,
    Type,
    Val,
    const,
    i1,
    i8,
    i64,
    ptr,
    zero,
)

NULL = zero(ptr)
FALSE, TRUE = const(i1, 0), const(i1, 1)


class Field(Protocol):
    """A field of a `ctypes.Structure`, as the class has it; its layout is that of C."""

    @property
    def offset(self) -> Any:
        """Its position in the structure, in bytes."""


def number(value: int) -> Val:
    """A 64-bit constant."""
    return const(i64, value)


class Emit(Builder):
    """A builder with the few idioms of C that the runtime is written in."""

    __slots__ = ()

    def at(self, base: Val, offset: int | Val | Field) -> Val:
        """The address of a member, or ``offset`` bytes after ``base``."""
        return self.gep(base, offset if isinstance(offset, int | Val) else offset.offset, i8)

    def get(self, base: Val, offset: int | Field, type: Type = i64) -> Val:
        """Load the member at an offset."""
        return self.load(type, self.at(base, offset))

    def put(self, base: Val, offset: int | Field, value: Val) -> None:
        """Store the member at an offset."""
        self.store(value, self.at(base, offset))

    def bump(self, base: Val, offset: int | Field, by: Val) -> Val:
        """Add to the integer member at an offset; returns the new value."""
        value = self.add(self.get(base, offset), by)
        self.put(base, offset, value)
        return value

    def c(self, name: str, ret: Type, *args: Val) -> Val:
        """Call a C function by name."""
        return self.call(self.module.declare(name, ret, [a.type for a in args], "nounwind"), args)

    def is_null(self, pointer: Val) -> Val:
        """Whether a pointer is null."""
        return self.icmp("eq", pointer, NULL)

    @contextmanager
    def unless(self, condition: Val) -> Iterator[None]:
        """Build ``if (!condition) { … }``, rarely taken."""
        with self.if_then(self.not_(condition), likely=False):
            yield

    @contextmanager
    def rarely(self, condition: Val) -> Iterator[None]:
        """Build ``if (condition) { … }``, rarely taken."""
        with self.if_then(condition, likely=False):
            yield


def define(
    module: Module,
    name: str,
    ret: Type,
    params: Sequence[tuple[str, Type]],
    *,
    internal: bool = True,
) -> tuple[Emit, tuple[Val, ...]]:
    """Start a function: a builder at its entry, and its arguments."""
    linkage = "internal" if internal else ""
    function: Function = module.function(name, ret, params, "nounwind", linkage=linkage)
    return Emit(function.block("entry")), function.args
