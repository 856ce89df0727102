"""A small simulated accelerator: the hardware and driver a vendor would bring.

The host reaches device memory only through ``upload``, ``download`` and ``copy``; work is queued
and runs late; memory is poisoned and fenced; errors can be ordered.  Two ways to compute: ``call``
runs a Python callable over views (an op library), ``load`` and ``launch`` run a kernel image
written with ``Assembler`` (a compiler target).
"""

from __future__ import annotations

from bringup_simulator.accelerator import Accelerator, Binding, LoadedKernel
from bringup_simulator.alu import ALU, LANES
from bringup_simulator.assembler import Assembler, Place, Reg
from bringup_simulator.errors import (
    BadImageError,
    CommandFailedError,
    CommandTimeoutError,
    DeviceLostError,
    DoubleFreeError,
    GuardError,
    InjectedError,
    InvalidHandleError,
    LimitError,
    OutOfBoundsError,
    OutOfDeviceMemoryError,
    SimulatorError,
    UseAfterFreeError,
    ViewEscapedError,
)
from bringup_simulator.isa import (
    DTYPES,
    LANE,
    Affine,
    Divided,
    Image,
    Range,
    decode,
    encode,
    grid_axis,
    loop_counter,
)
from bringup_simulator.limits import VECTOR_WIDTH, Counters, Limits
from bringup_simulator.memory import GUARD, Handle
from bringup_simulator.queue import Ticket
from bringup_simulator.views import Operand

__all__ = [
    "ALU",
    "DTYPES",
    "GUARD",
    "LANE",
    "LANES",
    "VECTOR_WIDTH",
    "Accelerator",
    "Affine",
    "Assembler",
    "BadImageError",
    "Binding",
    "CommandFailedError",
    "CommandTimeoutError",
    "Counters",
    "DeviceLostError",
    "Divided",
    "DoubleFreeError",
    "GuardError",
    "Handle",
    "Image",
    "InjectedError",
    "InvalidHandleError",
    "LimitError",
    "Limits",
    "LoadedKernel",
    "Operand",
    "OutOfBoundsError",
    "OutOfDeviceMemoryError",
    "Place",
    "Range",
    "Reg",
    "SimulatorError",
    "Ticket",
    "UseAfterFreeError",
    "ViewEscapedError",
    "decode",
    "encode",
    "grid_axis",
    "loop_counter",
]
