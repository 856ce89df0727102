"""What is known of an OpenCL device: its dialect, its row, its capabilities."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal

from bringup.backend import Capabilities, LibraryClaims, Limits, Numerics, Shapes, Target
from bringup.c import OPENCL, Dialect, c_claims
from bringup.llvm.loops.heuristics import LONGEST_CHAIN, PRODUCTS
from bringup.records import record
from bringup_opencl.quirks import quirks_of, without_quirks

#: Functions by which work items of a sub-group exchange values, by the extension that has them.
_SHUFFLES = {
    "cl_khr_subgroup_shuffle": "sub_group_shuffle_xor({value}, {mask})",
    "cl_intel_subgroups": "intel_sub_group_shuffle_xor({value}, {mask})",
}
#: Dtypes that all of these take.
_SHUFFLED = ("i32", "u32", "i64", "u64", "f32", "f64")
#: Work items of a usual group: two to eight of them fit on a compute unit of any vendor.
_GROUP = 256
#: Work items that keep a compute unit of a GPU busy.
_RESIDENT = 1024
#: Instructions of one thread in the time in which a processor's threads wake for a launch.
_LAUNCH = 450_000
#: Of longer loops core runs each body, which costs little beside so many launches.
_LOOP_RUNS = 1024
#: Rows of several stages stay in the second-level cache of a processor.
_ROW_ELEMENTS = 1 << 18


@record(kw_only=True)
class Machine:
    """One device, by what its driver says of it.

    kind: ``other`` are FPGAs and accelerators, whose loops stay as they are.
    subgroup: work items of a sub-group that exchange values; 1 if they cannot.
    units: compute units.  group: work items of the largest group.
    local_bytes: of memory that a group shares.
    buffer_bytes: of the largest buffer.  alignment: of parts of buffers, bytes.
    unified: whether the host sees the memory.
    """

    platform: str = ""
    name: str = "OpenCL"
    version: str = ""
    kind: Literal["cpu", "gpu", "other"] = "cpu"
    extensions: frozenset[str] = frozenset({"cl_khr_fp64"})
    flushes_subnormals: bool = False
    vector_bits: int = 256
    line_bytes: int = 64
    subgroup: int = 1
    units: int = 1
    group: int = 1
    local_bytes: int = 0
    memory_bytes: int = 0
    buffer_bytes: int = 1 << 32
    alignment: int = 128
    unified: bool = True


#: Machines of which the kind alone is known: libraries are made for them.
KINDS = {
    "cpu": Machine(units=16),
    "gpu": Machine(kind="gpu", units=16, group=_GROUP, local_bytes=32 << 10, unified=False),
}


@cache
def dialect_of(machine: Machine) -> Dialect:
    """OpenCL C as this driver has it."""
    dialect = without_quirks(OPENCL, quirks_of(machine.platform, machine.version))
    if "cl_khr_fp64" not in machine.extensions:
        dialect = replace(dialect, missing=frozenset({"f64"}))
    if machine.kind == "cpu":
        # Drivers of processors are made of clang.  Its own functions take vectors whole, where
        # those of drivers go from element to element, and leave orders as they are written.
        dialect = replace(
            dialect,
            vector_load="__builtin_memcpy(&{name}, &{first}, sizeof {name});",
            vector_store="__builtin_memcpy(&{first}, &{name}, sizeof {name});",
            vector_order="__builtin_shufflevector({x}, {y}, {order})",
        )
    if machine.kind == "cpu" and machine.vector_bits > 256:
        # It halves such vectors where loops of lanes become some, unless a function asks.
        hint = f"__attribute__((min_vector_width({machine.vector_bits}))) void"
        dialect = replace(dialect, kernel=dialect.kernel.replace("void", hint, 1))
    if machine.kind != "gpu":
        return replace(dialect, shares=True)
    if machine.subgroup == 1:
        return dialect
    shuffle = next(text for name, text in _SHUFFLES.items() if name in machine.extensions)
    return replace(dialect, **_exchanging(machine, dialect, shuffle))


def _exchanging(machine: Machine, dialect: Dialect, shuffle: str) -> dict[str, Any]:
    """The columns of a dialect whose work items exchange values in sub-groups of fixed size."""
    names = sorted(name for name in machine.extensions if "subgroup" in name)
    head = [f"#pragma OPENCL EXTENSION {name} : enable" for name in names]
    kernel = dialect.kernel
    if "cl_intel_required_subgroup_size" in machine.extensions:
        size = f"__attribute__((intel_reqd_sub_group_size({machine.subgroup})))"
        kernel = kernel.replace("void", f"{size} void", 1)
    return {
        "shuffle": {dtype: shuffle for dtype in _SHUFFLED if dtype not in dialect.missing},
        "warp": machine.subgroup,
        "head": (*dialect.head, *head),
        "kernel": kernel,
    }


@cache
def target_of(machine: Machine) -> Target:
    """The row of the machine."""
    if machine.kind == "cpu":
        return Target(
            vector_bits=machine.vector_bits,
            registers=32 if machine.vector_bits == 512 else 16,
            line_bytes=machine.line_bytes,
            threads=machine.units,
            launch_instructions=_LAUNCH,
        )
    if machine.kind == "other":
        return Target(threads=machine.units)
    return Target(
        line_bytes=128,
        threads=machine.units * _RESIDENT,
        warp=machine.subgroup,
        block=min(_GROUP, machine.group),
        most_threads=machine.group,
        shared_bytes=machine.local_bytes,
        multiprocessors=machine.units,
    )


@cache
def capabilities_of(machine: Machine) -> Capabilities:
    """What kernels may hold, and how large they and arrays may be."""
    kernels, target = c_claims(dialect_of(machine)), target_of(machine)
    limits = Limits(
        row_elements=_ROW_ELEMENTS, memory_bytes=machine.memory_bytes, loop_runs=_LOOP_RUNS
    )
    shapes = Shapes()
    if machine.kind == "gpu":
        tiles = target.tile_bytes
        limits = replace(limits, row_elements=tiles // 4, tile_bytes=tiles)
        shapes = Shapes(vector=machine.subgroup, block=target.block)
    elif machine.kind == "cpu":
        shapes = Shapes(
            vector=target.lanes(32),
            contraction=PRODUCTS.lengths(target),
            products=PRODUCTS.least_products,
            panel=PRODUCTS.panel_bits(target),
        )
    return Capabilities(
        kernels=kernels,
        ops=LibraryClaims(kernels),
        limits=limits,
        numerics=Numerics(
            flush_subnormals=machine.flushes_subnormals,
            longest_chain=LONGEST_CHAIN if machine.kind == "cpu" else 1 << 62,
        ),
        shapes=shapes,
        alignment=machine.alignment,
        asynchronous=True,
    )
