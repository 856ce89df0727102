"""Instructions that NVIDIA's GPUs have for what core's emitters else write out."""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm import text as ir
from bringup.llvm.math.exponential import exp_by_branch
from bringup.llvm.math.remainder import remainder
from bringup.llvm.text import Builder, Val, vec
from bringup_cuda.targets import number_of

#: The first architecture that has them.
_FIRST = 80


def native_of(target: str) -> dict[str, Callable[..., Val]]:
    """For `bringup.llvm.text.Module.native` of an architecture such as ``sm_90``."""
    # LLVM's NVPTX target divides, cuts and subtracts where it finds ``frem``, rounding twice.
    found: dict[str, Callable[..., Val]] = {"rem": remainder, "exp": exp_by_branch}
    if number_of(target) < _FIRST:
        return found
    return {**found, "maximum": _maximum, "minimum": _minimum, "f32_to_bf16": _to_bf16}


def _maximum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.maximum", x.type, (x, y))


def _minimum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.minimum", x.type, (x, y))


def _to_bf16(b: Builder, x: Val) -> Val:
    """Two at a time; LLVM's own ``fptrunc`` is not the same on every machine that runs the IR."""
    lanes = x.type.lanes
    if lanes == 1:
        return b.intrinsic("llvm.nvvm.f2bf16.rn", ir.bf16, (x,), ())
    pair = vec(ir.bf16, 2)
    made = ir.poison(vec(ir.bf16, lanes))
    for low in range(0, lanes, 2):
        parts = [b.extractelement(x, low + n) for n in (1, 0)]
        both = b.intrinsic("llvm.nvvm.ff2bf16x2.rn", pair, parts, ())
        for n in (0, 1):
            made = b.insertelement(made, b.extractelement(both, n), low + n)
    return made


__all__ = ["native_of"]
