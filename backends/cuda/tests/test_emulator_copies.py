"""Asynchronous copies on the emulator: they arrive when they are waited for, and not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup_cuda_emulator import EmulatorError, Finding, run

TEXT = """
target triple = "nvptx64-nvidia-cuda"
@tile = internal addrspace(3) global [128 x i32] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.ca.shared.global.4.s(ptr addrspace(3), ptr addrspace(1), i32)
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)
declare void @llvm.nvvm.cp.async.wait.all()
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %t32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %t = zext i32 %t32 to i64
  %from = getelementptr i32, ptr addrspace(1) %in, i64 %t
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %t
  %mine = getelementptr i32, ptr addrspace(3) @tile, i64 %t
  %last = sub i64 63, %t
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %last
  BODY
  store i32 %r, ptr addrspace(1) %to, align 4
  ret void
}
"""
COPY = """
  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %mine, ptr addrspace(1) %from)
  call void @llvm.nvvm.cp.async.commit.group()
"""
WAIT = "call void @llvm.nvvm.cp.async.wait.group(i32 0)\n"
BARRIER = "call void @llvm.nvvm.barrier0()\n"
READ = "%r = load i32, ptr addrspace(3) %theirs, align 4"
VALUES = np.arange(100, 164, dtype=np.int32)


def on_gpu(body: str, **more: Any) -> list[int]:
    out = np.zeros_like(VALUES)
    run(TEXT.replace("BODY", body), "k", 1, 64, [VALUES.copy(), out], **more)
    return [int(v) for v in out]


def fault(body: str, kind: str) -> Finding:
    with pytest.raises(EmulatorError) as caught:
        on_gpu(body)
    assert caught.value.finding.kind == kind, caught.value.finding
    return caught.value.finding


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wait", [WAIT, "call void @llvm.nvvm.cp.async.wait.all()\n"])
def test_copies_arrive(wait: str, seed: int) -> None:
    assert on_gpu(COPY + wait + BARRIER + READ, seed=seed) == VALUES[::-1].tolist()


def test_a_missing_wait_is_found() -> None:
    found = fault(COPY + BARRIER + READ, "in-flight")
    assert found.other is not None
    assert "cp.async" in found.other.instruction


def test_a_missing_barrier_is_found() -> None:
    """A thread waits for its own copies alone."""
    found = fault(COPY + WAIT + READ, "uninitialised")
    assert found.at.thread == (0, 0, 0), "threads run one after another where none waits"
    more = COPY + WAIT + BARRIER + READ.replace("%r", "%x") + COPY + WAIT + READ
    found = fault(more.replace("%r", "%y") + "\n  %r = add i32 %x, %y", "race")
    assert found.other is not None
    assert found.at.thread[0] + found.other.thread[0] == 63


def test_groups_arrive_in_order() -> None:
    """With one group left under way the first one is there, and the second one is not."""
    second = """
  %far = getelementptr i32, ptr addrspace(3) %mine, i64 64
  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %far, ptr addrspace(1) %from)
  call void @llvm.nvvm.cp.async.commit.group()
"""
    some = WAIT.replace("i32 0", "i32 1")
    assert on_gpu(COPY + second + some + BARRIER + READ) == VALUES[::-1].tolist()
    late = READ.replace("%theirs", "%far")
    found = fault(COPY + second + some + BARRIER + late, "in-flight")
    assert found.where == "byte 508 of @tile (shared)", "the last one to come goes on first"
    assert on_gpu(COPY + second + WAIT + BARRIER + late) == VALUES.tolist()


def test_what_is_not_read_is_zero() -> None:
    copy = """
  %even = and i32 %t32, 1
  %size = mul i32 %even, 4
  call void @llvm.nvvm.cp.async.ca.shared.global.4.s(
    ptr addrspace(3) %mine, ptr addrspace(1) %from, i32 %size)
  call void @llvm.nvvm.cp.async.commit.group()
"""
    expected = [int(v) * (n % 2) for n, v in enumerate(VALUES)]
    assert on_gpu(copy + WAIT + BARRIER + READ) == expected[::-1]


def test_a_copy_from_beyond_a_buffer() -> None:
    far = "%far = getelementptr i32, ptr addrspace(1) %from, i64 1\n"
    found = fault(far + COPY.replace("%from", "%far") + WAIT + BARRIER + READ, "out-of-bounds")
    assert found.at.thread == (63, 0, 0)
    assert found.where == "0 bytes behind an allocation of 256 bytes"
