"""Folds that threads do to one element side by side, whose result no order changes."""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, narrow, widen
from bringup.llvm.text import Builder, Val, const


def fold_atomically(
    b: Builder, kind: str, dtype: DType, address: Val, value: Val, scope: str
) -> None:
    """Fold a value, as it is in memory, into the element at an address.

    scope: of the threads that may fold into it, as LLVM spells it.
    """
    if not dtype.is_float and kind != "mul" and dtype.bits >= 32:
        op = f"u{kind}" if dtype.kind == "uint" and kind in ("max", "min") else kind
        b.atomicrmw(op, address, value, "monotonic", scope)
        return
    raw = ir.integer(value.type.bits)
    first = b.atomic_load(raw, address, "monotonic")
    with b.while_loop([first, const(ir.i1, 0)], lambda c: b.not_(c[1])) as loop:
        known = loop.carried[0]
        new = combine(b, kind, dtype, b.cast("bitcast", known, value.type), value)
        new = _canonical_nan(b, dtype, new) if dtype.is_float else new
        new = b.cast("bitcast", new, raw)
        loop.next(*b.cmpxchg(address, known, new, "monotonic", "monotonic", syncscope=scope))


def _canonical_nan(b: Builder, dtype: DType, value: Val) -> Val:
    """Replace any NaN by one NaN: which of several remains would depend on the order."""
    wide = widen(b, value)
    nan = narrow(b, const(wide.type, math.nan), dtype)
    return b.select(b.fcmp("uno", wide, wide), nan, value)


__all__ = ["fold_atomically"]
