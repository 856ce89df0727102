"""Functions of the loop level, compiled for this machine and run."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.llvm.func.render import emit_func
from bringup.llvm.host.engine import Engine
from bringup.llvm.loops.schedule import NativeKernel
from bringup.llvm.text import Builder, Module, i64, ptr, void
from bringup.loops import parse_func
from bringup.loops.form import Func

Array = np.ndarray[Any, Any]
#: What no function here computes; it stands round every buffer.
_GUARD = 0x5A
_GUARD_BYTES = 512


@cache
def _engine() -> Engine:
    return Engine(None, 0)


def text_of(func: Func) -> tuple[NativeKernel, str]:
    """The function in a module with ``entry``, which calls it."""
    module = Module()
    native = emit_func(module, func, "inner")
    params = [("buffers", ptr), ("begin", i64), ("end", i64), ("worker", i64)]
    entry = module.function("entry", void, params, "nounwind")
    b = Builder(entry.block("entry"))
    if native.units:
        b.call(module.functions[native.name], entry.args)
    b.ret()
    return native, str(module)


def run(func: Func | str, *inputs: Array, together: bool = False) -> list[Array]:
    """The outputs; units are run one by one, the last first, or all together in one call.

    Every buffer is behind and before guards, which must stay as they are.
    """
    func = parse_func(func) if isinstance(func, str) else func
    native, text = text_of(func)
    code = _engine().compile_native(text, ("entry",))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    entry = kind(code.addresses["entry"])
    values = iter(inputs)
    sizes = [
        (p.buffer.dtype, p.buffer.size, next(values) if p.role == "in" else None)
        for p in func.params
    ]
    guarded = [_guarded(dtype, size, data) for dtype, size, data in sizes]
    scratch = np.zeros(2 * native.tile_bytes + 64, np.uint8)
    pointers = [memory.ctypes.data + _GUARD_BYTES for memory in guarded]
    table = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, scratch.ctypes.data)
    ranges = [(0, native.units)] if together else [(n, n + 1) for n in range(native.units)]
    for begin, end in reversed(ranges):
        entry(ctypes.addressof(table), begin, end, 1)
    outputs: list[Array] = []
    for param, memory in zip(func.params, guarded, strict=True):
        middle = memory[_GUARD_BYTES:-_GUARD_BYTES]
        edges = np.concatenate([memory[:_GUARD_BYTES], memory[-_GUARD_BYTES:]])
        assert (edges == _GUARD).all(), f"{param} is written outside"
        if param.role == "out":
            outputs.append(middle.view(param.buffer.dtype.numpy).copy())
    return outputs


def _guarded(dtype: DType, size: int, data: Array | None) -> Array:
    memory: Array = np.full(size * dtype.numpy.itemsize + 2 * _GUARD_BYTES, _GUARD, np.uint8)
    if data is not None:
        assert data.size == size, f"{data.size} elements for {size}"
        flat = np.ascontiguousarray(data, dtype.numpy).reshape(-1)
        memory[_GUARD_BYTES:-_GUARD_BYTES] = flat.view(np.uint8)
    return memory
