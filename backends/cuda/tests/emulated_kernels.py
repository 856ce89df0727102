"""Small kernels in LLVM IR for tests of the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup_cuda_emulator import EmulatorError, Finding, run

HEAD = """
target triple = "nvptx64-nvidia-cuda"
@tile = internal addrspace(3) global [64 x float] undef, align 16
@dyn = external addrspace(3) global [0 x i8], align 16
@table = internal addrspace(1) constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.laneid()
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.barrier.cta.sync.aligned.count(i32, i32)
declare void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32, i32)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare void @llvm.nvvm.membar.gl()
declare i32 @llvm.nvvm.shfl.sync.down.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.up.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)
declare {i32, i1} @llvm.nvvm.shfl.sync.down.i32p(i32, i32, i32, i32)
declare i1 @llvm.nvvm.vote.any.sync(i32, i1)
declare i1 @llvm.nvvm.vote.all.sync(i32, i1)
declare i32 @llvm.nvvm.vote.ballot.sync(i32, i1)
declare i32 @llvm.nvvm.match.any.sync.i32(i32, i32)
declare i32 @llvm.nvvm.redux.sync.add(i32, i32)
declare i32 @llvm.nvvm.redux.sync.min(i32, i32)
declare void @llvm.trap()
"""
OPEN = """
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {
entry:
  %t32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %t = zext i32 %t32 to i64
  %b32 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %n32 = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %bn = mul i32 %b32, %n32
  %g32 = add i32 %bn, %t32
  %g = zext i32 %g32 to i64
  %from = getelementptr i32, ptr addrspace(1) %in, i64 %g
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %g
  %mine = getelementptr i32, ptr addrspace(3) @tile, i64 %t
  %v = load i32, ptr addrspace(1) %from, align 4
"""
CLOSE = """
  store i32 %r, ptr addrspace(1) %to, align 4
  ret void
}
"""
#: Instead of the common end, for bodies that store themselves.
OWN_END = """
  ret void
}
define void @unused(ptr addrspace(1) %to, i32 %r) {
"""
BARRIER = "call void @llvm.nvvm.barrier0()"


def on_gpu(body: str, *, threads: int = 64, blocks: int = 1, seed: int = 0, **more: Any) -> Any:
    """The results of ``body``, which makes ``%r`` of each thread's ``%v``, for 0, 1, 2, …"""
    values = np.arange(threads * blocks, dtype=np.int32)
    out = np.full_like(values, -1)
    run(HEAD + OPEN + body + CLOSE, "k", blocks, threads, [values, out], seed=seed, **more)
    return out


def fault(body: str, kind: str, **more: Any) -> Finding:
    with pytest.raises(EmulatorError) as caught:
        on_gpu(body, **more)
    finding = caught.value.finding
    assert finding.kind == kind, finding
    assert finding.kernel == "k"
    assert str(caught.value).startswith("k: ")
    return finding


#: Each thread gets what the last one, the last but one, … put into shared memory.
EXCHANGE = """
  store i32 %v, ptr addrspace(3) %mine, align 4
  {barrier}
  %last = sub i64 63, %t
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %last
  %r = load i32, ptr addrspace(3) %theirs, align 4
"""
SEEDS = range(4)
#: Each thread gets what its neighbour in the warp put there.
WARP_EXCHANGE = """
  store i32 %v, ptr addrspace(3) %mine, align 4
  {sync}
  %other = xor i64 %t, 1
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %other
  %r = load i32, ptr addrspace(3) %theirs, align 4
"""
