"""Results do not depend on how the host set the processor's floating point unit, nor change it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"),
    reason="knows the control registers of x86-64 and AArch64",
)

_SET = """
import ctypes, platform
import numpy as np
import bringup as bu
from bringup.llvm.host.engine import engine
if platform.machine() in ("x86_64", "AMD64"):
    text = '''
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i64 @get() { %p = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %p) %x = load i32, ptr %p %y = zext i32 %x to i64 ret i64 %y }
define void @set(i64 %x) { %p = alloca i32 %y = trunc i64 %x to i32 store i32 %y, ptr %p
  call void @llvm.x86.sse.ldmxcsr(ptr %p) ret void }'''
    PLAIN, FLUSH, UP, FLAGS = 0x1F80, 0x8040, 2 << 13, 0x3F
else:
    text = '''
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define i64 @get() { %x = call i64 @llvm.aarch64.get.fpcr() ret i64 %x }
define void @set(i64 %x) { call void @llvm.aarch64.set.fpcr(i64 %x) ret void }'''
    PLAIN, FLUSH, UP, FLAGS = 0, 1 << 24, 1 << 22, 0
code = engine().compile_native(text, ("get", "set"))
get = ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["get"])
put = ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.addresses["set"])

def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    assert (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")).all(), (a, b)
"""


@pytest.mark.parametrize("state", ["FLUSH", "UP", "FLUSH | UP"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_kernels_round_to_nearest_and_keep_subnormals(
    python: Callable[..., Any], state: str, threads: str
) -> None:
    code = f"""
function = bu.jit(lambda x: (x * np.float32(1) + np.float32(2.0**-30), x * np.float32(0.5)))
tree = bu.jit(lambda x: bu.cond(bu.max(x) > 0, lambda x: x / 3, lambda x: x, x))
for n in (1, 7, 1 << 20):
    x = np.full(n, 1e-40, np.float32)
    x[::3] = 1
    put(PLAIN | {state})
    found, chosen, eager = function(x), tree(x), bu.asarray(x) * np.float32(1.5)
    results = [np.asarray(v) for v in (*found, chosen, eager)]
    again = [np.asarray(v) for v in function(x)]
    kept = get() & ~FLAGS == PLAIN | {state}
    put(PLAIN)
    assert kept
    wanted = [x + np.float32(2.0**-30), x * np.float32(0.5), x / np.float32(3), x * np.float32(1.5)]
    for a, b in zip(results, wanted, strict=True):
        same(a, b)
    for a, b in zip(again, wanted):
        same(a, b)
"""
    python(_SET + code, BRINGUP_THREADS=threads)


def test_exceptions_that_the_host_traps_are_not_trapped_in_kernels(
    python: Callable[..., Any],
) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("AArch64 processors need not have traps")
    code = """
function = bu.jit(lambda x: 1 / x)
x = np.zeros(9, np.float32)
put(PLAIN & ~(1 << 9))
found = function(x)
put(PLAIN)
assert np.isinf(np.asarray(found)).all()
"""
    python(_SET + code)
