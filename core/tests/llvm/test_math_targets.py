"""Inline math on targets: no library calls on x86-64 with FMA, code for the others, valid PTX."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
from accuracy import BINARY
from jit_helper import elementwise_module, optimise, parse

from bringup.llvm.math import MATH
from bringup.llvm.text import Builder, Module, Type, f32, f64, i32, i64, pointer, void

TYPES = [f32, f64]
NVPTX = "nvptx64-nvidia-cuda"


@cache
def machine(triple: str, name: str, features: str = "") -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=name, features=features, opt=2)


def operands(name: str) -> int:
    return 2 if name in BINARY else 1


def compile_for(module: Module, target: Any) -> str:
    parsed = parse(module)
    optimise(parsed, target)
    text: str = target.emit_assembly(parsed)
    return text


@pytest.mark.parametrize("type", TYPES, ids=["f32", "f64"])
@pytest.mark.parametrize(
    ("triple", "name", "lanes", "call"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64-v4", 16, r"\bcall\w*\s+(\S+)"),
        ("x86_64-unknown-linux-gnu", "x86-64-v3", 8, r"\bcall\w*\s+(\S+)"),
        ("aarch64-unknown-linux-gnu", "neoverse-n1", 4, r"\bblr?\s+(\S+)"),
    ],
)
def test_no_library_calls(triple: str, name: str, lanes: int, call: str, type: Type) -> None:
    """The one function called is our own slow reduction, defined beside its caller."""
    for op in sorted(MATH):
        module = elementwise_module(MATH[op], type, lanes, operands(op))
        calls = set(re.findall(call, compile_for(module, machine(triple, name))))
        allowed = ("bringup.", "%r", "*%r", "x")  # by name or through a register
        assert all(c.startswith(allowed) for c in calls), (op, calls)
        if calls:
            assert (op, type) in {("sin", f64), ("cos", f64), ("tan", f64)}


def kernel(name: str, type: Type) -> Module:
    """``out[thread] = f(in[thread], …)`` as a kernel."""
    module = Module(NVPTX)
    params = [("out", pointer(1)), *((f"in{k}", pointer(1)) for k in range(operands(name)))]
    function = module.function("kernel", void, params, calling_convention="ptx_kernel")
    b = Builder(function.block("entry"))
    thread = b.zext(b.intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", i32, (), ()), i64)
    values = [b.load(type, b.gep(p, thread, type)) for p in function.args[1:]]
    b.store(MATH[name](b, *values), b.gep(function.args[0], thread, type))
    b.ret()
    return module


@pytest.mark.parametrize("type", TYPES, ids=["f32", "f64"])
@pytest.mark.parametrize("name", sorted(MATH))
def test_ptx(name: str, type: Type, tmp_path: Path) -> None:
    """No flushing, no approximation, nothing that ptxas may contract; and ptxas takes it."""
    text = compile_for(kernel(name, type), machine(NVPTX, "sm_90"))
    assert ".visible .entry kernel(" in text
    assert ".extern" not in text
    assert not re.search(r"\.(ftz|approx)\b", text)
    assert not re.search(r"\b(add|sub|mul)\.f(32|64)\b", text)
    ptxas = shutil.which("ptxas")
    if ptxas:
        source = tmp_path / "kernel.ptx"
        source.write_text(text)
        subprocess.run(
            [ptxas, "-arch=sm_90", str(source), "-o", str(tmp_path / "kernel.cubin")],
            check=True,
            capture_output=True,
            text=True,
        )
