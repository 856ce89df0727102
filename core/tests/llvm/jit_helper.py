"""Compile IR text for this machine: element-wise loops as numpy callables, and bare functions.

MCJIT's engine owns its target machine and dies badly when that is shared, so there is one engine
for the process and modules are added to it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from bringup.llvm.text import (
    Builder,
    Function,
    Module,
    Param,
    Type,
    Val,
    const,
    i64,
    ptr,
    vec,
    void,
)

Array = NDArray[Any]
_serial = count()


@cache
def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )


@cache
def _engine() -> Any:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())


def parse(module: Module | str) -> Any:
    """Parse and verify IR text; LLVM's error is raised."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return parsed


def optimise(parsed: Any, machine: Any, level: int = 2) -> None:
    """Run LLVM's standard pipeline."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)


def load(module: Module, name: str) -> int:
    """Compile ``module`` for this machine and give the address of ``name``."""
    parsed = parse(module)
    optimise(parsed, _target_machine())
    engine = _engine()
    engine.add_module(parsed)
    engine.finalize_object()
    address: int = engine.get_function_address(name)
    return address


def assembly(module: Module) -> str:
    """The optimised assembly for this machine."""
    parsed = parse(module)
    optimise(parsed, _target_machine())
    text: str = _target_machine().emit_assembly(parsed)
    return text


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A compiled loop.  Call it with arrays of one length; compile_ms: parse to machine code."""

    module: Module
    entry: Any
    out_dtype: np.dtype[Any]
    lanes: int
    compile_ms: float

    def __call__(self, *arrays: Array) -> Array:
        """Apply to arrays; they are padded to a multiple of the lanes."""
        n = arrays[0].size
        padded = -(-n // self.lanes) * self.lanes
        inputs = [np.resize(a, padded) if padded != n else np.ascontiguousarray(a) for a in arrays]
        out = np.empty(padded, self.out_dtype)
        self.run(out, *inputs)
        return out[:n]

    def run(self, out: Array, *inputs: Array) -> None:
        """Apply in place to whole vectors."""
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *inputs)]
        self.entry(*pointers, ctypes.c_int64(out.size // self.lanes))


def elementwise_module(
    emit: Callable[..., Val],
    in_type: Type,
    lanes: int,
    operands: int = 1,
    out_type: Type | None = None,
    name: str = "loop",
) -> Module:
    """``void name(out, in…, i64 vectors)``, applying ``emit`` to whole vectors."""
    module = Module()
    sources: list[Param] = [(f"in{k}", ptr) for k in range(operands)]
    params: list[Param] = [("out", ptr, "noalias"), *sources, ("n", i64)]
    function: Function = module.function(name, void, params, "nounwind")
    out, *inputs, n = function.args
    b = Builder(function.block("entry"))
    wide = vec(in_type, lanes)
    with b.loop(const(i64, 0), n) as loop:
        index = b.mul(loop.index, const(i64, lanes))
        values = [b.load(wide, b.gep(p, index, in_type), 1) for p in inputs]
        result = emit(b, *values)
        b.store(result, b.gep(out, index, out_type or in_type), 1)
    b.ret()
    return module


def elementwise(
    emit: Callable[..., Val],
    dtype: Any,
    lanes: int,
    operands: int = 1,
    out: tuple[Type, Any] | None = None,
    in_type: Type | None = None,
) -> Elementwise:
    """Compile ``emit`` over arrays of ``dtype``; ``out``: the result's (LLVM, numpy) type."""
    from bringup.llvm import text

    kind = np.dtype(dtype)
    element = in_type or {"float32": text.f32, "float64": text.f64}[kind.name]
    name = f"loop{next(_serial)}"
    module = elementwise_module(emit, element, lanes, operands, out[0] if out else None, name)
    start = time.perf_counter()
    address = load(module, name)
    spent = (time.perf_counter() - start) * 1e3
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (operands + 1), ctypes.c_int64)
    return Elementwise(module, prototype(address), np.dtype(out[1] if out else kind), lanes, spent)
