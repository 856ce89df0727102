"""LLVM IR text: types, constants, modules, functions, blocks and the instruction builder.

The one import for whoever emits LLVM IR.  The text is for LLVM 22 (opaque pointers, ``splat``
constants, alignment of masked accesses as an attribute).
"""

from __future__ import annotations

from bringup.llvm._builder import Builder
from bringup.llvm._control import Loop
from bringup.llvm._module import Block, Callee, Function, Module, Param, Phi
from bringup.llvm._types import (
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
    i128,
    integer,
    pointer,
    poison,
    ptr,
    struct_type,
    undef,
    vec,
    void,
    zero,
)

__all__ = [
    "Block",
    "Builder",
    "Callee",
    "Function",
    "Loop",
    "Module",
    "Param",
    "Phi",
    "Type",
    "Val",
    "array",
    "bf16",
    "const",
    "const_bits",
    "const_vector",
    "f16",
    "f32",
    "f64",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "integer",
    "pointer",
    "poison",
    "ptr",
    "struct_type",
    "undef",
    "vec",
    "void",
    "zero",
]
