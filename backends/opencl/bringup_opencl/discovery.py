"""The devices of all platforms, and what their drivers say of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bringup.backend import NoHardware
from bringup_opencl.driver import cl
from bringup_opencl.machine import Machine
from bringup_opencl.quirks import BROKEN, why

_FP = cl.device_fp_config
_INTEL_SUBGROUP = 16


@cache
def devices() -> Sequence[tuple[cl.Device, Machine]]:
    """Every device of every platform that can be used, in the order of the drivers.

    Raises NoHardware, with what is missing of the devices there are.
    """
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise NoHardware(f"there is no OpenCL platform: {error}") from None
    usable, others = [], []
    for device in (device for platform in platforms for device in _of(platform)):
        machine = _machine(device)
        missing = _missing(device) or why(BROKEN, machine.platform, machine.version)
        if missing:
            others.append(f"{machine.name}: {missing}")
        else:
            usable.append((device, machine))
    if not usable:
        raise NoHardware("; ".join(others) or "no OpenCL platform has a device")
    return usable


def _of(platform: cl.Platform) -> Sequence[cl.Device]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices
        return []


def _missing(device: cl.Device) -> str:
    """What the op table asks of any device, and this one does not have."""
    wanted = _FP.CORRECTLY_ROUNDED_DIVIDE_SQRT | _FP.INF_NAN | _FP.ROUND_TO_NEAREST
    if device.single_fp_config & wanted != wanted:
        return "its arithmetic in f32 is not that of IEEE 754"
    return "" if device.available and device.compiler_available else "it has no compiler"


def _machine(device: cl.Device) -> Machine:
    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind: Any = next((name for bit, name in kinds.items() if device.type & bit), "other")
    extensions = frozenset(device.extensions.split())
    alignment = max(64, device.mem_base_addr_align // 8)
    return Machine(
        platform=device.platform.name,
        name=device.name.strip(),
        version=f"{device.version} {device.driver_version}",
        kind=kind,
        extensions=extensions,
        flushes_subnormals=not device.single_fp_config & _FP.DENORM,
        vector_bits=32 * max(1, device.native_vector_width_float),
        line_bytes=device.global_mem_cacheline_size or 64,
        subgroup=_subgroup(device, extensions) if kind == "gpu" else 1,
        units=device.max_compute_units,
        group=device.max_work_group_size,
        local_bytes=device.local_mem_size,
        memory_bytes=device.global_mem_size,
        buffer_bytes=device.max_mem_alloc_size,
        alignment=1 << (alignment - 1).bit_length(),
        unified=bool(device.host_unified_memory),
    )


def _subgroup(device: cl.Device, extensions: frozenset[str]) -> int:
    """Work items that exchange values, if their number is known before a kernel is compiled."""
    if {"cl_intel_subgroups", "cl_intel_required_subgroup_size"} <= extensions:
        return _INTEL_SUBGROUP
    if "cl_khr_subgroup_shuffle" not in extensions:
        return 1
    for name in ("warp_size_nv", "wavefront_width_amd"):
        try:
            return int(getattr(device, name))
        except (AttributeError, cl.Error):
            continue
    return 1
