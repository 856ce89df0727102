"""Dialects of C as tables: names of types, address spaces, ids and functions, and what is missing.

A dialect is one `Dialect`; the renderer and the scalar library ask it for every spelling that
differs between compilers, and know no compiler by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from bringup.records import record

#: The dtypes by which the columns of functions are indexed: halves are computed in f32.
WIDE = ("f32", "f64")


@record(eq=False, kw_only=True)
class Dialect:
    """How one family of C compilers spells things.

    types: by the name of a dtype, that of its registers; f16 and bf16 are unsigned integers of 16
    bits there, floats to store of 8, and bool is an unsigned integer of 8 bits in memory.
    index: the dtype of indices where none leaves its range; else it is i64.
    suffixes: of integer literals, by dtype; none for those that need none.
    head: the first lines of a source.
    for_f64: a line that a source needs if it has an f64.
    function: what stands before a function of the library.
    kernel: the head of a function, with ``{name}`` and ``{params}``.
    params: of each call besides buffers: ``{n}`` is their number in front of it.
    pointer: a buffer among the parameters, with ``{type}``, ``{restrict}``, ``{name}``, ``{n}``;
    nothing if buffers come in an array.
    begin: the definition of a buffer ``{name}`` where `pointer` and `scratch` pass it otherwise.
    constant: what stands before the type of a buffer that is only read.
    scratch: the type of the parameter of scratch; as `pointer`, only where a function needs it.
    spaces: address spaces in front of types, by those of buffers.
    restrict: what says that a pointer has no alias; nothing if the dialect has no word for it.
    lanes: a line before the loops that are to become vectors, whose iterations touch no element in
    common.  width: what follows there for as many ``{lanes}`` as a vector may have.
    vector: the declaration of a type ``{name}`` of ``{lanes}`` elements of a ``{type}``, in all
    ``{bytes}``.
    vector_bytes: the most that such a type may have: what machines have in a register; 0 for none.
    vector_lanes: the most elements; 0 for any number.
    lane: an element of the vector ``{name}``, to read and to write.
    vector_zero: the value of which every element is 0.
    vector_load, vector_store: the statement that copies the elements from ``{first}`` on.
    vector_order: the vector of elements of ``{x}`` and ``{y}`` in an ``{order}`` of numbers, or of
    ``{lanes}``, which are the same as expressions; nothing where the dialect has none.
    vector_fma: the vector ``{x} * {y} + {z}``, rounded once; nothing where elements are computed
    one by one.
    barrier: the statement at which threads of a block meet; nothing if it has no threads.
    shuffle: by dtype the ``{value}`` of the thread whose number differs in the bits of ``{mask}``,
    which is below ``warp``; empty if there is no such function.
    warp: threads that may exchange values by it.
    shares: whether each thread runs units that follow each other, as is good for threads that have
    caches of their own; else units as far apart as there are threads.
    ids: expressions by ``unit`` and ``units``, the number of a thread and of all threads;
    ``block`` and ``blocks``; ``thread``, the number within its block.
    bits, from_bits: of f32 and f64, templates that give the pattern as an unsigned integer, and
    back; None for a function of the library that copies memory.
    functions: names by op, of f32 and f64, where the dialect's own are within the row's accuracy.
    fast_fma: the macros that say that an fma is one instruction, of f32 and f64; nothing where it
    always is.
    missing: dtypes that the dialect does not have.
    flags: of the compiler, on which the rendered text relies.
    """

    name: str
    types: Mapping[str, str]
    index: str = "i64"
    suffixes: Mapping[str, str]
    head: tuple[str, ...]
    for_f64: str = ""
    function: str
    kernel: str
    params: tuple[str, ...] = ()
    pointer: str = ""
    begin: str = ""
    constant: str = "const "
    scratch: str = ""
    spaces: Mapping[str, str]
    restrict: str = ""
    lanes: str = ""
    width: str = ""
    vector: str = ""
    vector_bytes: int = 0
    vector_lanes: int = 0
    lane: str = "{name}[{index}]"
    vector_zero: str = "{{0}}"
    vector_load: str = "memcpy(&{name}, &{first}, sizeof {name});"
    vector_store: str = "memcpy(&{first}, &{name}, sizeof {name});"
    vector_order: str = ""
    vector_fma: str = ""
    barrier: str = ""
    shuffle: Mapping[str, str]
    warp: int = 32
    shares: bool = False
    ids: Mapping[str, str]
    bits: Mapping[str, str] | None = None
    from_bits: Mapping[str, str] | None = None
    functions: Mapping[str, tuple[str, str]]
    fast_fma: tuple[str, str] | None = None
    missing: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()

    @property
    def has_threads(self) -> bool:
        """Whether a call is run by many threads, each of which asks for its number."""
        return bool(self.ids)

    @property
    def words(self) -> frozenset[str]:
        """Every identifier in the table: what no buffer and no loop may be called."""
        text = " ".join(_strings(replace(self, suffixes={})))
        return frozenset(re.findall(r"(?<![\w.])[A-Za-z_]\w*", re.sub(r"{\w+}", " ", text)))


def _strings(value: Any) -> Iterator[str]:
    """Every text within a table."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, Dialect):
        for column in fields(value):
            yield from _strings(getattr(value, column.name))


def _types(signed: str, unsigned: str, *, bool_: str = "bool") -> dict[str, str]:
    """The column of types, from the names of integers of 8, 16, 32 and 64 bits."""
    i8, i16, i32, i64 = signed.split(", ")
    u8, u16, u32, u64 = unsigned.split(", ")
    return {
        "bool": bool_, "i8": i8, "i16": i16, "i32": i32, "i64": i64,
        "u8": u8, "u16": u16, "u32": u32, "u64": u64,
        "f8e4m3fn": u8, "f8e5m2": u8, "f16": u16, "bf16": u16, "f32": "float", "f64": "double",
    }  # fmt: skip


def _suffixed(*ops: str, **renamed: str) -> dict[str, tuple[str, str]]:
    """Functions named as in C: ``sinf`` of f32 and ``sin`` of f64."""
    names = {op: op for op in ops} | renamed
    return {op: (f"{name}f", name) for op, name in names.items()}


def _overloaded(*ops: str, **renamed: str) -> dict[str, tuple[str, str]]:
    """Functions with one name for both types."""
    names = {op: op for op in ops} | renamed
    return {op: (name, name) for op, name in names.items()}


#: Plain C, for gcc, clang and whatever else compiles C of 2011.
C11 = Dialect(
    name="C11",
    types=_types(
        "int8_t, int16_t, int32_t, int64_t", "uint8_t, uint16_t, uint32_t, uint64_t"
    ),
    suffixes={"u32": "u", "i64": "ll", "u64": "ull"},
    head=(
        "#include <math.h>",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "#include <string.h>",
        "#if defined(__clang__) || !defined(__GNUC__)",
        "#pragma STDC FP_CONTRACT OFF",
        "#endif",
    ),
    function="static inline ",
    kernel="void {name}({params})",
    params=("void *const *buffers", "int64_t begin", "int64_t end", "void *scratch"),
    spaces={"global": "", "scratch": "", "shared": "", "register": ""},
    restrict="restrict ",
    vector="typedef {type} {name} __attribute__((vector_size({bytes})));",
    vector_bytes=32,
    vector_order="({type}){{{lanes}}}",
    shuffle={},
    ids={},
    functions=_suffixed(
        "sqrt", "floor", "fma", "copysign", "sin", "cos", "tan", "tanh", "expm1", "log1p",
        abs="fabs", round="rint", rem="fmod",
    ),
    fast_fma=("FP_FAST_FMAF", "FP_FAST_FMA"),
    flags=("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)  # fmt: skip

_SHORT = _types("char, short, int, long", "uchar, ushort, uint, ulong")

# The errors that OpenCL 1.2 allows in full profile (table 7.2) are too large for exp, log, sin,
# tanh, pow, erf, atan and atan2.
#: OpenCL C of version 1.2.
OPENCL = Dialect(
    name="OPENCL",
    types=_SHORT,
    index="i32",
    suffixes={"u32": "u", "i64": "L", "u64": "UL"},
    head=("#pragma OPENCL FP_CONTRACT OFF",),
    for_f64="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
    function="static inline __attribute__((always_inline)) ",
    kernel="__kernel void {name}({params})",
    pointer="__global {type} *{restrict}{name}",
    scratch="__global uchar *scratch",
    spaces={"global": "__global ", "scratch": "__global ", "shared": "__local ", "register": ""},
    restrict="restrict ",
    lanes="#pragma clang loop vectorize(assume_safety)",
    width=" vectorize_width({lanes})",
    vector="typedef {type}{lanes} {name};",
    vector_bytes=64,
    vector_lanes=16,
    lane="(({type} *)&{name})[{index}]",
    vector_zero="({type})(0)",
    vector_load="{name} = vload{lanes}(0, &{first});",
    vector_store="vstore{lanes}({name}, 0, &{first});",
    vector_order="({type})({lanes})",
    vector_fma="fma({x}, {y}, {z})",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    shuffle={},
    ids={
        "unit": "get_global_id(0)",
        "units": "get_global_size(0)",
        "block": "get_group_id(0)",
        "blocks": "get_num_groups(0)",
        "thread": "get_local_id(0)",
    },
    bits={"f32": "as_uint({})", "f64": "as_ulong({})"},
    from_bits={"f32": "as_float({})", "f64": "as_double({})"},
    functions=_overloaded(
        "sqrt", "floor", "fma", "copysign", "cos", "tan", "expm1", "log1p",
        abs="fabs", round="rint", rem="fmod",
    ),
    flags=("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt", "-w"),
)  # fmt: skip

# The errors of CUDA's functions stand in the appendix "Mathematical Functions" of its guide.
#: CUDA C++.
CUDA = Dialect(
    name="CUDA",
    types=_types(
        "signed char, short, int, long long",
        "unsigned char, unsigned short, unsigned int, unsigned long long",
    ),
    index="i32",
    suffixes={"u32": "u", "i64": "ll", "u64": "ull"},
    head=(),
    function="static __device__ __forceinline__ ",
    kernel='extern "C" __global__ void {name}({params})',
    pointer="{type} *{restrict}{name}",
    scratch="unsigned char *scratch",
    spaces={"global": "", "scratch": "", "shared": "__shared__ ", "register": ""},
    restrict="__restrict__ ",
    barrier="__syncthreads();",
    shuffle=dict.fromkeys(
        ("i32", "u32", "i64", "u64", "f32", "f64"), "__shfl_xor_sync(0xffffffffu, {value}, {mask})"
    ),
    ids={
        "unit": "(blockIdx.x * (long long)blockDim.x + threadIdx.x)",
        "units": "(gridDim.x * (long long)blockDim.x)",
        "block": "blockIdx.x",
        "blocks": "gridDim.x",
        "thread": "threadIdx.x",
    },
    bits={"f32": "__float_as_uint({})", "f64": "(unsigned long long)__double_as_longlong({})"},
    from_bits={"f32": "__uint_as_float({})", "f64": "__longlong_as_double((long long)({}))"},
    functions=_suffixed(
        "sqrt", "floor", "fma", "copysign", "exp", "log", "sin", "cos", "tan", "tanh", "expm1",
        "log1p", "erf", "atan", "atan2", "pow", abs="fabs", round="rint", rem="fmod",
    ),
    flags=("--fmad=false",),
)  # fmt: skip


#: HIP C++: CUDA, but for shuffles.
HIP = replace(
    CUDA,
    name="HIP",
    head=("#include <hip/hip_runtime.h>",),
    shuffle=dict.fromkeys(CUDA.shuffle, "__shfl_xor({value}, {mask})"),
    flags=("-ffp-contract=off", "-fno-fast-math"),
)

# Metal's functions are too far off for exp, log, sin, tan, tanh, pow, atan and atan2; it has no
# erf, expm1 and log1p; its fmod rounds.
#: The Metal Shading Language.
METAL = Dialect(
    name="METAL",
    types=_SHORT,
    index="i32",
    suffixes={"u32": "u", "i64": "l", "u64": "ul"},
    head=(
        "#include <metal_stdlib>",
        "using namespace metal;",
        "#pragma METAL fp contract(off)",
    ),
    function="static inline ",
    kernel="kernel void {name}({params})",
    params=(
        "uint unit_id [[thread_position_in_grid]]",
        "uint unit_count [[threads_per_grid]]",
        "uint block_id [[threadgroup_position_in_grid]]",
        "uint block_count [[threadgroups_per_grid]]",
        "uint thread_id [[thread_position_in_threadgroup]]",
    ),
    pointer="device {type} *{restrict}{name} [[buffer({n})]]",
    scratch="device uchar *scratch [[buffer({n})]]",
    spaces={
        "global": "device ", "scratch": "device ", "shared": "threadgroup ", "register": "",
    },
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
    shuffle={
        **dict.fromkeys(("i32", "u32", "f32"), "simd_shuffle_xor({value}, {mask})"),
        **{
            name: f"as_type<{type_}>(simd_shuffle_xor(as_type<uint2>({{value}}), {{mask}}))"
            for name, type_ in (("i64", "long"), ("u64", "ulong"))
        },
    },
    ids={
        "unit": "unit_id",
        "units": "unit_count",
        "block": "block_id",
        "blocks": "block_count",
        "thread": "thread_id",
    },
    bits={"f32": "as_type<uint>({})", "f64": ""},
    from_bits={"f32": "as_type<float>({})", "f64": ""},
    functions=_overloaded(
        "floor", "fma", "copysign",
        abs="fabs", round="rint", sqrt="precise::sqrt", cos="precise::cos",
    ),
    missing=frozenset({"f64"}),
    flags=("-fno-fast-math",),
)  # fmt: skip

#: All of them, by their names.
DIALECTS: Mapping[str, Dialect] = {d.name: d for d in (C11, OPENCL, CUDA, HIP, METAL)}

__all__ = ["C11", "CUDA", "DIALECTS", "HIP", "METAL", "OPENCL", "WIDE", "Dialect"]
