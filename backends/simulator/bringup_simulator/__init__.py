"""A small simulated accelerator with its driver: the hardware a vendor would bring.

The host reaches device memory only through ``upload``, ``download`` and ``copy``; work is queued
and runs late; fresh memory is poisoned and stands between guards; errors come on demand.  Two ways
to compute: ``call`` runs a function of an op library (`bringup_simulator.library`), ``load`` and
``launch`` compile and run a kernel (`bringup_simulator.compiler` has its language).
"""

from __future__ import annotations

from bringup_simulator.accelerator import (
    Accelerator,
    Binding,
    Counters,
    FaultKind,
    LoadedKernel,
    Operand,
)
from bringup_simulator.arithmetic import CASTS, DTYPES, OPERATIONS
from bringup_simulator.compiler import VECTOR_WIDTH, Limits
from bringup_simulator.errors import (
    BadKernelError,
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
)
from bringup_simulator.memory import GUARD, Handle

__all__ = [
    "CASTS",
    "DTYPES",
    "GUARD",
    "OPERATIONS",
    "VECTOR_WIDTH",
    "Accelerator",
    "BadKernelError",
    "Binding",
    "CommandFailedError",
    "CommandTimeoutError",
    "Counters",
    "DeviceLostError",
    "DoubleFreeError",
    "FaultKind",
    "GuardError",
    "Handle",
    "InjectedError",
    "InvalidHandleError",
    "LimitError",
    "Limits",
    "LoadedKernel",
    "Operand",
    "OutOfBoundsError",
    "OutOfDeviceMemoryError",
    "SimulatorError",
    "UseAfterFreeError",
]
