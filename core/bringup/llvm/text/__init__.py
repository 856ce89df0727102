"""LLVM IR text: types, constants, modules, functions, blocks and the instruction builder.

The one import for whoever emits LLVM IR.  The text is for LLVM 22 (opaque pointers, ``splat``
constants, alignment of masked accesses as an attribute).
"""

from __future__ import annotations

from bringup.llvm.text.builder import Builder, Loop
from bringup.llvm.text.module import Block, Callee, Function, Module, Param, Phi
from bringup.llvm.text.types import (
    Type,
    Val,
    array,
    bf16,
    const,
    const_bits,
    const_vector,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    i64_const,
    i128,
    integer,
    known_lanes,
    pointer,
    poison,
    ptr,
    struct_type,
    undef,
    vec,
    void,
    zero,
)  # fmt: skip

__all__ = [
    "Block", "Builder", "Callee", "Function", "Loop", "Module", "Param", "Phi", "Type", "Val",
    "array", "bf16", "const", "const_bits", "const_vector", "f16", "f32", "f64", "i1", "i8", "i16",
    "i32", "i64", "i64_const", "i128", "integer", "known_lanes", "pointer", "poison", "ptr",
    "struct_type", "undef", "vec", "void", "zero",
]  # fmt: skip
