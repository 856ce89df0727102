"""The floating-point control register: kernels run with the default, whatever the host has set.

A host may flush subnormals or use another rounding mode: libraries built with fast-math set that on
the thread that loads them, and threads inherit it.  A register with the default value is only read.
"""

from __future__ import annotations

from bringup.llvm.text import Builder, Val, array, const, i32, i64, ptr, void

_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
#: MXCSR: every exception masked, to nearest, subnormals kept; and without the six sticky flags.
_MXCSR, _MXCSR_MASK = 0x1F80, 0xFFC0
#: FPCR: traps, subnormals of f16, rounding, subnormals, the default NaN; 0 is the default of each.
_FPCR_MASK = 0x9F00 | 1 << 19 | 3 << 22 | 1 << 24 | 1 << 25


class FloatState:
    """Emits code that sets the default where it is constructed; `restore` emits the inverse.

    architecture: of the processor, as `platform.machine` calls it.
    changed: whether the host had another value; None if the processor is not known.
    """

    def __init__(self, b: Builder, architecture: str) -> None:
        self.changed: Val | None = None
        if architecture in _X86:
            self.memory = b.alloca(array(i32, 2), align=8)
            b.intrinsic("llvm.x86.sse.stmxcsr", void, (self.memory,), ())
            self.before = b.load(i32, self.memory, 4)
            bits = b.and_(self.before, const(i32, _MXCSR_MASK))
            self.changed = b.icmp("ne", bits, const(i32, _MXCSR))
        elif architecture in _ARM:  # pragma: no cover - only ARM
            self.before = b.intrinsic("llvm.aarch64.get.fpcr", i64, (), ())
            bits = b.and_(self.before, const(i64, _FPCR_MASK))
            self.changed = b.icmp("ne", bits, const(i64, 0))
        if self.changed is not None:  # pragma: no branch - only other processors
            with b.if_then(self.changed, likely=False):
                self._set(b, const(self.before.type, _MXCSR if self.before.type is i32 else 0))

    def restore(self, b: Builder) -> None:
        """Emit the restoration of the host's value."""
        if self.changed is not None:  # pragma: no branch - only other processors
            with b.if_then(self.changed, likely=False):
                self._set(b, self.before)

    def _set(self, b: Builder, value: Val) -> None:
        if value.type is i64:  # pragma: no cover - only ARM
            b.intrinsic("llvm.aarch64.set.fpcr", void, (value,), ())
            return
        other = b.gep(self.memory, 1, i32)
        assert other.type is ptr
        b.store(value, other, 4)
        b.intrinsic("llvm.x86.sse.ldmxcsr", void, (other,), ())
