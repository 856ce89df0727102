"""The builder of the emulator's native code: integers as operands, and members of structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.llvm.host.emit import Emit
from bringup.llvm.text import Module, Type, Val, const, i32, i64, ptr
from bringup_cuda.codegen.nvvm import IntBuilder

_TYPES = {type.text: type for type in (i32, i64, ptr)}

#: A member of a `structs.Struct`, or a byte offset.
Member = Any


def word(value: int) -> Val:
    """A constant of 32 bits."""
    return const(i32, int(value))


def number(value: int) -> Val:
    """A constant of 64 bits."""
    return const(i64, int(value))


class NativeBuilder(IntBuilder, Emit):
    """A builder of native code, whose functions access members of structs by name."""

    __slots__ = ()

    def at(self, base: Val, offset: Member | Val) -> Val:
        """The address of a member, or ``offset`` bytes after ``base``."""
        return super().at(base, offset if isinstance(offset, int | Val) else offset.offset)

    def get(self, base: Val, offset: Member, type: Type | None = None) -> Val:
        """Load a member; its type follows from its size, and is i64 for an offset."""
        return self.load(type or (i32 if _size(offset) == 4 else i64), self.at(base, offset))

    def put(self, base: Val, offset: Member, value: Val | int) -> None:
        """Store a member; an integer is a constant of the member's size."""
        if isinstance(value, int):
            value = word(value) if _size(offset) == 4 else number(value)
        self.store(value, self.at(base, offset))

    def bump(self, base: Val, offset: Member, by: Val | int) -> Val:
        """Add to an integer member; the new value."""
        value = self.add(self.get(base, offset), by)
        self.put(base, offset, value)
        return value


def _size(member: Member) -> int:
    return 8 if isinstance(member, int) else int(member.size)


def define(
    module: Module,
    name: str,
    ret: Type,
    params: str | Sequence[tuple[str, Type]],
    *,
    internal: bool = True,
) -> tuple[NativeBuilder, tuple[Val, ...]]:
    """Start a function: a builder at its entry, and its arguments.

    params: names and types, such as ``"thread:ptr site:i32"``.
    """
    if isinstance(params, str):
        pairs = [param.split(":") for param in params.split()]
        params = [(param, _TYPES[type]) for param, type in pairs]
    linkage = "internal" if internal else ""
    function = module.function(name, ret, params, "nounwind", linkage=linkage)
    return NativeBuilder(function.block("entry")), function.args
