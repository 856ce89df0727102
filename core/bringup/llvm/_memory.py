"""Memory: addresses, loads and stores in every shape, atomics."""

from __future__ import annotations

from bringup.llvm._emitter import Emitter
from bringup.llvm._types import Type, Val, const, i1, i64, ptr, struct_type, vec


def _tail(align: int, meta: str) -> str:
    return f", align {align}{meta}" if align else meta


class MemoryBuilder(Emitter):
    """Addresses and memory.  ``align`` is in bytes; 0 leaves LLVM's default, the type's own.

    ``meta`` is metadata text appended to the instruction.
    """

    __slots__ = ()

    def alloca(self, type: Type, count: Val | None = None, align: int = 0) -> Val:
        """Stack memory; put it in the entry block."""
        n = f", {count}" if count is not None else ""
        return self.emit(ptr, f"alloca {type.text}{n}{f', align {align}' if align else ''}")

    def gep(self, base: Val, index: Val | int, elem_type: Type, flags: str = "inbounds") -> Val:
        """The address ``index`` elements of ``elem_type`` after ``base``.

        A vector of indices (or of bases) gives a vector of addresses.
        """
        i = const(i64, index) if isinstance(index, int) else index
        if i.text == "0":
            return base
        to = base.type if i.type.lanes == 1 else vec(base.type.scalar, i.type.lanes)
        words = f"getelementptr {flags}" if flags else "getelementptr"
        return self.emit(to, f"{words} {elem_type.text}, {base}, {i}")

    def load(
        self,
        type: Type,
        address: Val,
        align: int = 0,
        *,
        volatile: bool = False,
        meta: str = "",
    ) -> Val:
        """Load a value of ``type``."""
        words = "load volatile" if volatile else "load"
        return self.emit(type, f"{words} {type.text}, {address}{_tail(align, meta)}")

    def store(self, value: Val, address: Val, align: int = 0, *, meta: str = "") -> None:
        """Store a value."""
        self.emit_void(f"store {value}, {address}{_tail(align, meta)}")

    def atomicrmw(
        self,
        op: str,
        address: Val,
        value: Val,
        ordering: str = "seq_cst",
        syncscope: str = "",
    ) -> Val:
        """Atomic read-modify-write; the old value.

        op: xchg add sub and or xor max min umax umin fadd fsub fmax fmin.
        """
        scope = f' syncscope("{syncscope}")' if syncscope else ""
        return self.emit(value.type, f"atomicrmw {op} {address}, {value}{scope} {ordering}")

    def cmpxchg(
        self,
        address: Val,
        expected: Val,
        new: Val,
        success: str = "seq_cst",
        failure: str = "seq_cst",
        *,
        syncscope: str = "",
    ) -> tuple[Val, Val]:
        """Atomic compare and exchange: the old value, and whether it was exchanged."""
        scope = f' syncscope("{syncscope}")' if syncscope else ""
        text = f"cmpxchg {address}, {expected}, {new}{scope} {success} {failure}"
        pair = self.emit(struct_type(new.type, i1), text)
        return self.extractvalue(pair, 0), self.extractvalue(pair, 1)

    def atomic_load(self, type: Type, address: Val, ordering: str = "acquire") -> Val:
        """Atomic load with natural alignment."""
        return self.emit(
            type, f"load atomic {type.text}, {address} {ordering}, align {type.bits // 8}"
        )

    def atomic_store(self, value: Val, address: Val, ordering: str = "release") -> None:
        """Atomic store with natural alignment."""
        self.emit_void(f"store atomic {value}, {address} {ordering}, align {value.type.bits // 8}")

    def insertvalue(self, aggregate: Val, value: Val, index: int) -> Val:
        """``aggregate`` with a member replaced."""
        return self.emit(aggregate.type, f"insertvalue {aggregate}, {value}, {index}")

    def extractvalue(self, aggregate: Val, index: int) -> Val:
        """A member of a struct or array value."""
        members = aggregate.type.members
        member = members[index] if len(members) > 1 else members[0]
        return self.emit(member, f"extractvalue {aggregate}, {index}")
