"""Kernels of the stand-in for ``libcuda.so.1`` run on the emulator: real results by real pycuda.

Named by ``STANDIN_HOOKS``, and installed by the library when a device is opened.  It is given PTX,
the emulator takes the LLVM IR that the PTX was made of: what
`bringup_cuda.codegen.lower` translates is remembered.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from standin import LIBRARY

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64)
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint * 3),
    ctypes.POINTER(ctypes.c_uint * 3),
    ctypes.c_uint,
    ctypes.c_void_p,
    ctypes.c_uint64,
)


class _Hooks(ctypes.Structure):
    _fields_ = (
        ("allocate", _ALLOCATE),
        ("release", _RELEASE),
        ("load", _LOAD),
        ("launch", _LAUNCH),
    )


# cuda.h's, by what the emulator found.
INVALID_VALUE, ILLEGAL_ADDRESS, MISALIGNED, LAUNCH_FAILED = 1, 700, 716, 719
#: What an emulated device has; `standin.StandIn.memory` gives less.
MEMORY = 1 << 30


class Emulation:
    """GPUs, and the modules loaded on them."""

    def __init__(self) -> None:
        from bringup_cuda_emulator import Gpu

        seed = int(os.environ.get("CUDA_EMULATED_SEED", "0"))
        self._make: Callable[[], Gpu] = lambda: Gpu(MEMORY + (64 << 20), seed)
        self._gpus: dict[int, Gpu] = {}
        #: LLVM IR by the PTX that was made of it.
        self.texts: dict[str, str] = {}
        self.modules: list[Any] = []
        self._loaded: dict[str, int] = {}

    def gpu(self, device: int) -> Any:
        """The GPU of this number."""
        if device not in self._gpus:
            self._gpus[device] = self._make()
        return self._gpus[device]

    def allocate(self, device: int, nbytes: int) -> int:
        """See ``struct hooks``."""
        from bringup_cuda_emulator.memory import OutOfArena

        try:
            found: int = self.gpu(device).arena.allocate(nbytes)
        except OutOfArena:
            return 0
        return found

    def release(self, device: int, address: int) -> None:
        """See ``struct hooks``."""
        self.gpu(device).arena.free(address)

    def load(self, device: int, image: bytes) -> int:
        """See ``struct hooks``."""
        from bringup_cuda_emulator import load

        ptx = image.decode()
        if _is_copy(ptx):
            self.modules.append(None)
            return len(self.modules) - 1
        if ptx not in self.texts:
            return -1
        if ptx not in self._loaded:
            self._loaded[ptx] = len(self.modules)
            self.modules.append(load(self.texts[ptx]))
        return self._loaded[ptx]

    def launch(
        self, device: int, module: int, kernel: bytes, grid: Any, block: Any, shared: int,
        parameters: int, nbytes: int,
    ) -> int:  # fmt: skip
        """See ``struct hooks``."""
        from bringup_cuda_emulator import EmulatorError

        loaded, name = self.modules[module], kernel.decode()
        packed = ctypes.string_at(parameters, nbytes)
        if loaded is None:
            target, source, count = struct.unpack("<3Q", packed)
            ctypes.memmove(target, source, 16 * count)
            return 0
        arguments = _unpacked(packed, loaded.kernels[name].params)
        if arguments is None:
            return INVALID_VALUE
        try:
            self.gpu(device).launch(
                loaded, name, tuple(grid.contents), tuple(block.contents), arguments, shared
            )
        except EmulatorError as error:
            sys.stderr.write(f"{error}\n")
            return ILLEGAL_ADDRESS
        return 0

    def remember(self) -> None:
        """The LLVM IR of whatever is compiled from now on, or was before and comes from a cache."""
        from bringup_cuda.codegen.lower import translate
        from bringup_cuda.runtime import device

        compile_program = device.compile_program

        def compiled(program: Any, architecture: str, image: Any) -> Any:
            made = compile_program(program, architecture, image)
            if image == "ptx":
                ptx = made.image.rstrip(b"\0").decode()
                self.texts[ptx] = translate(program, architecture).text
            return made

        device.compile_program = compiled


def _is_copy(ptx: str) -> bool:
    """The kernel that benchmarks compare with was written as PTX: the emulator cannot run it."""
    from gpu_checks.copying import PTX

    return ptx == PTX


def _unpacked(packed: bytes, types: Any) -> list[int | bytes] | None:
    """The arguments in a parameter block, aligned as C aligns them; None if it is another size."""
    from bringup_cuda_emulator.rewrite import size_of

    at = 0
    made: list[int | bytes] = []
    for type_ in types:
        size = size_of(type_)
        at = -(-at // size) * size
        value = packed[at : at + size]
        made.append(int.from_bytes(value, "little") if type_.startswith("ptr") else value)
        at += size
    return made if at == len(packed) else None


def _guarded(fn: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """ctypes would pass over an exception."""

    def call(*args: Any) -> Any:
        try:
            return fn(*args)
        except BaseException:  # noqa: BLE001  (reported, and the launch fails)
            sys.excepthook(*sys.exc_info())
            return otherwise

    return call


emulation: Emulation
_hooks: _Hooks


def install(remembers: bool = True) -> None:
    """Give the library its hooks.  remembers: `Emulation.remember`."""
    global emulation, _hooks  # noqa: PLW0603  (the library calls it once)
    emulation = Emulation()
    if remembers:
        emulation.remember()
    _hooks = _Hooks(
        _ALLOCATE(_guarded(emulation.allocate, 0)),
        _RELEASE(_guarded(emulation.release, None)),
        _LOAD(_guarded(emulation.load, -1)),
        _LAUNCH(_guarded(emulation.launch, LAUNCH_FAILED)),
    )
    ctypes.CDLL(LIBRARY).standin_hooks(ctypes.byref(_hooks))
