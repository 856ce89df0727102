"""What follows of a device's properties; no driver is needed."""

from __future__ import annotations

import re

import pytest

import bringup as bu
from bringup.c import geometry, render_c
from bringup.llvm.choices import chunk_length_for, scheduled_for
from bringup.loops import For, Func, Load, Shuffle, statements
from bringup.program.program import KernelStep
from bringup_opencl.backend import OpenCLBackend
from bringup_opencl.machine import KINDS, Machine, capabilities_of, dialect_of, target_of
from bringup_opencl.quirks import BROKEN, QUIRKS, why

F32 = bu.float32
GPU = Machine(
    kind="gpu", units=16, group=256, local_bytes=64 << 10,
    extensions=frozenset({"cl_khr_fp64"}),
)  # fmt: skip
INTEL = Machine(
    kind="gpu", units=32, group=512, local_bytes=64 << 10, subgroup=16,
    extensions=frozenset({"cl_intel_subgroups", "cl_intel_required_subgroup_size"}),
)  # fmt: skip
AMD = Machine(
    kind="gpu", units=60, group=256, local_bytes=64 << 10, subgroup=64,
    extensions=frozenset({"cl_khr_fp64", "cl_khr_subgroups", "cl_khr_subgroup_shuffle"}),
)  # fmt: skip
POCL = Machine(
    platform="Portable Computing Language",
    version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512 3.1",
    vector_bits=512, units=4, group=4096, local_bytes=1 << 20,
)  # fmt: skip


def softmax(machine: Machine) -> Func:
    """The loops of rows of 600 elements as a machine runs them."""
    lowered = bu.jit(lambda x: bu.nn.softmax(x, axis=-1)).lower(F32[64, 600])
    (step,) = (s for s in lowered.program.steps if isinstance(s, KernelStep))
    return scheduled_for(step, target_of(machine)).after


def test_a_processor_has_vectors_in_work_items() -> None:
    func = softmax(POCL)
    assert geometry(func).threads == 0
    source = render_c(func, dialect_of(POCL))
    assert "typedef float16 bu_f32x16;" in source
    assert "assume_safety) vectorize_width(16)" in source
    assert "__kernel __attribute__((min_vector_width(512))) void k0" in source
    assert target_of(POCL).lanes(32) == 16


def test_a_thread_of_a_processor_runs_units_that_follow_each_other() -> None:
    source = render_c(softmax(POCL), dialect_of(POCL))
    assert "const int share = (64 + get_global_size(0) - 1) / get_global_size(0);" in source
    assert "for (int g0 = get_global_id(0) * share; " in source
    assert "share" not in render_c(softmax(GPU), dialect_of(GPU))


def test_a_processor_reads_columns_by_rows_and_copies_vectors_whole() -> None:
    lowered = bu.jit(lambda x: x.T + 1).lower(F32[512, 512])
    (step,) = (s for s in lowered.program.steps if isinstance(s, KernelStep))
    func = scheduled_for(step, target_of(POCL)).after
    source = render_c(func, dialect_of(POCL))
    assert source.count("bu_exchange8_f32x16(&") == 8
    assert "__builtin_shufflevector(first, second, 0, 16, 2, 18," in source
    assert "__builtin_memcpy(&v1, &b0[" in source
    assert "vload" not in source
    assert "__builtin" not in render_c(func, dialect_of(GPU))


def test_what_lanes_have_in_common_is_outside_of_their_loops() -> None:
    lowered = bu.jit(lambda x, s: bu.pad(x * s[:, None], 1)).lower(F32[8, 200], F32[8])
    (step,) = (s for s in lowered.program.steps if isinstance(s, KernelStep))
    func = scheduled_for(step, target_of(POCL)).after
    lanes = [s for s in statements(func.body) if isinstance(s, For) and s.kind == "vector"]
    masked = [(loop, s) for loop in lanes for s in loop.body if isinstance(s, Load) and s.mask]
    assert masked
    assert all(
        loop.axis in s.index.axes() or any(loop.axis in bound.expr.axes() for bound in s.mask)
        for loop, s in masked
    )


def test_a_gpu_without_subgroups_folds_in_local_memory() -> None:
    func = softmax(GPU)
    source = render_c(func, dialect_of(GPU))
    assert geometry(func).threads > 1
    assert "__local float" in source
    assert "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);" in source
    assert not any(isinstance(s, Shuffle) for s in statements(func.body))


@pytest.mark.parametrize(
    ("machine", "call"),
    [(INTEL, "intel_sub_group_shuffle_xor("), (AMD, "sub_group_shuffle_xor(")],
    ids=["intel", "amd"],
)
def test_work_items_of_a_subgroup_exchange_values(machine: Machine, call: str) -> None:
    source = render_c(softmax(machine), dialect_of(machine))
    masks = [int(m) for m in re.findall(rf"{re.escape(call)}[^;]*?, (\d+)\)", source)]
    assert masks
    assert max(masks) < machine.subgroup
    is_fixed = f"__attribute__((intel_reqd_sub_group_size({machine.subgroup}))) void k0" in source
    assert is_fixed == (machine is INTEL)


def test_other_devices_get_the_loops_as_they_are() -> None:
    other = Machine(kind="other", units=2)
    lowered = bu.jit(lambda x: x + 1).lower(F32[100])
    (step,) = (s for s in lowered.program.steps if isinstance(s, KernelStep))
    scheduled = scheduled_for(step, target_of(other))
    assert scheduled.steps.steps == ()
    assert chunk_length_for(step.kernel, target_of(other)) == 0


def test_what_a_device_lacks_is_not_claimed() -> None:
    capabilities = capabilities_of(INTEL)
    assert bu.float64 not in capabilities.kernels["add"]
    assert bu.float64 in capabilities_of(AMD).kernels["add"]
    assert not capabilities.numerics.flush_subnormals
    flushing = Machine(flushes_subnormals=True)
    assert capabilities_of(flushing).numerics.flush_subnormals


def test_kernels_for_a_kind_of_machines_are_shown_as_it_runs_them() -> None:
    program = bu.jit(lambda x: bu.sum(x, axis=1)).lower(F32[64, 6000]).program
    cpu, gpu = (OpenCLBackend().lower(program, kind).source for kind in KINDS)
    assert "barrier(" not in cpu
    assert "barrier(" in gpu


def test_a_row_of_quirks_names_another_function() -> None:
    (row,) = (quirk for quirk in QUIRKS if quirk.op == "floor")
    lowered = bu.jit(bu.floor).lower(F32[100])
    (func,) = lowered.loops
    assert row.instead is not None
    assert f"{row.instead[0]}(" in render_c(func, dialect_of(POCL))
    assert row.instead[0] not in render_c(func, dialect_of(GPU))


def test_a_driver_that_compiles_nothing_is_no_device() -> None:
    assert not why(BROKEN, POCL.platform, POCL.version)
    unknown = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic 3.0-rc2"
    assert "does not know the processor" in why(BROKEN, POCL.platform, unknown)
