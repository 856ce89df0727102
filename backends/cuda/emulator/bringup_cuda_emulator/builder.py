"""The builder of the emulator's native code: integers as operands, and members of structs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bringup.llvm.host.emit import Emit
from bringup.llvm.text import Builder, Module, Type, Val, const, i32, i64, ptr

_TYPES = {type.text: type for type in (i32, i64, ptr)}

#: A member of a `structs.Struct`, or a byte offset.
Member = Any


def word(value: int) -> Val:
    """A constant of 32 bits."""
    return const(i32, int(value))


def number(value: int) -> Val:
    """A constant of 64 bits."""
    return const(i64, int(value))


class _Binary(Protocol):
    def __call__(self, a: Val, b: Val | int, flags: str = "") -> Val: ...


class _Compare(Protocol):
    def __call__(self, predicate: str, a: Val, b: Val | int) -> Val: ...


def _with_integers(method: Callable[..., Val], position: int = 1) -> Any:
    """A method of `Builder` whose last operand may be an integer: a constant of the type of the
    operand before it.
    """

    def call(self: Builder, *operands: Any) -> Val:
        value, other = operands[position - 1 : position + 1]
        if isinstance(other, int):
            other = const(value.type, int(other))
        return method(self, *operands[:position], other, *operands[position + 1 :])

    return call


class IntBuilder(Builder):
    """A builder that takes Python integers as second operands: ``b.add(x, 1)``."""

    __slots__ = ()

    add: _Binary = _with_integers(Builder.add)
    sub: _Binary = _with_integers(Builder.sub)
    mul: _Binary = _with_integers(Builder.mul)
    udiv: _Binary = _with_integers(Builder.udiv)
    urem: _Binary = _with_integers(Builder.urem)
    and_: _Binary = _with_integers(Builder.and_)
    xor: _Binary = _with_integers(Builder.xor)
    lshr: _Binary = _with_integers(Builder.lshr)
    icmp: _Compare = _with_integers(Builder.icmp, 2)


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
