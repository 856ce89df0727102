"""The emulator runs what goes to NVPTX, and finds each planted fault."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup import float32
from bringup.errors import UnsupportedError
from bringup.types import TensorType
from bringup_cuda.emulator import EmulatorError, Finding, load, run
from bringup_cuda.emulator.switching import host
from bringup_cuda.lower import translate

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


# -- what works ------------------------------------------------------------------------------------

EXCHANGE = """
  store i32 %v, ptr addrspace(3) %mine, align 4
  {barrier}
  %last = sub i64 63, %t
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %last
  %r = load i32, ptr addrspace(3) %theirs, align 4
"""
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_exchange_through_shared_memory(seed: int) -> None:
    out = on_gpu(EXCHANGE.format(barrier=BARRIER), blocks=3, seed=seed)
    assert out.reshape(3, 64).tolist() == np.arange(192).reshape(3, 64)[:, ::-1].tolist()


SHUFFLES = {
    "down": lambda i: i + 3 if i % 32 + 3 < 32 else i,
    "up": lambda i: i - 3 if i % 32 >= 3 else i,
    "bfly": lambda i: i ^ 3,
    "idx": lambda i: i // 32 * 32 + 3,
}


@pytest.mark.parametrize("mode", SHUFFLES)
@pytest.mark.parametrize("seed", SEEDS)
def test_shuffles(mode: str, seed: int) -> None:
    clamp = 0 if mode == "up" else 31
    body = f"%r = call i32 @llvm.nvvm.shfl.sync.{mode}.i32(i32 -1, i32 %v, i32 3, i32 {clamp})"
    assert on_gpu(body, seed=seed).tolist() == [SHUFFLES[mode](i) for i in range(64)]


def test_shuffles_in_segments_say_what_was_in_range() -> None:
    """Segments of 8: the mask of segments is 24, the clamp 31."""
    body = """
  %p = call {i32, i1} @llvm.nvvm.shfl.sync.down.i32p(i32 -1, i32 %v, i32 1, i32 6175)
  %x = extractvalue {i32, i1} %p, 0
  %f = extractvalue {i32, i1} %p, 1
  %y = select i1 %f, i32 100, i32 0
  %r = add i32 %x, %y
"""
    expected = [i + 101 if i % 8 < 7 else i for i in range(64)]
    assert on_gpu(body).tolist() == expected


def test_many_shuffles_in_a_row() -> None:
    """A lane that is ahead does not overwrite what a lane behind still has to read."""
    steps, value = [], "%v"
    for n, by in enumerate((16, 8, 4, 2, 1)):
        steps.append(
            f"%s{n} = call i32 @llvm.nvvm.shfl.sync.bfly.i32"
            f"(i32 -1, i32 {value}, i32 {by}, i32 31)\n  %a{n} = add i32 {value}, %s{n}"
        )
        value = f"%a{n}"
    body = "\n".join(steps) + f"\n  %r = add i32 {value}, 0"
    for seed in SEEDS:
        assert on_gpu(body, seed=seed).tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def test_votes_matches_and_reductions() -> None:
    body = """
  %odd32 = and i32 %v, 1
  %odd = icmp ne i32 %odd32, 0
  %ballot = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %odd)
  %same = call i32 @llvm.nvvm.match.any.sync.i32(i32 -1, i32 %odd32)
  %any = call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 %odd)
  %all = call i1 @llvm.nvvm.vote.all.sync(i32 -1, i1 %odd)
  %sum = call i32 @llvm.nvvm.redux.sync.add(i32 %v, i32 -1)
  %low = call i32 @llvm.nvvm.redux.sync.min(i32 %v, i32 -1)
  %agree = icmp eq i32 %ballot, %same
  %x = select i1 %agree, i32 1, i32 0
  %y = select i1 %any, i32 2, i32 0
  %z = select i1 %all, i32 4, i32 0
  %xy = or i32 %x, %y
  %xyz = or i32 %xy, %z
  %s = mul i32 %sum, 8
  %l = mul i32 %low, 100000
  %sl = add i32 %s, %l
  %r = add i32 %xyz, %sl
"""
    assert on_gpu(body).tolist() == [
        (i & 1) + 2 + 8 * sum(range(i & 32, (i & 32) + 32)) + 100000 * (i & 32) for i in range(64)
    ]


def test_a_short_warp_has_the_lanes_it_has() -> None:
    body = "%r = call i32 @llvm.nvvm.redux.sync.add(i32 %v, i32 -1)"
    assert on_gpu(body, threads=40).tolist() == [sum(range(32))] * 32 + [sum(range(32, 40))] * 8


def test_lanes_of_a_diverged_warp_meet_in_their_masks() -> None:
    body = """
  %even32 = and i32 %v, 1
  %even = icmp eq i32 %even32, 0
  br i1 %even, label %a, label %b
a:
  %x = call i32 @llvm.nvvm.redux.sync.add(i32 %v, i32 1431655765)
  br label %done
b:
  %y = call i32 @llvm.nvvm.redux.sync.add(i32 %v, i32 -1431655766)
  br label %done
done:
  %r = phi i32 [ %x, %a ], [ %y, %b ]
"""
    even, odd = sum(range(0, 32, 2)), sum(range(1, 32, 2))
    for seed in SEEDS:
        assert on_gpu(body, threads=32, seed=seed).tolist() == [even, odd] * 16


def test_barriers_of_some_warps() -> None:
    """One warp produces, the other waits: 64 threads come, 32 of them without waiting."""
    body = """
  %producer = icmp ult i32 %t32, 32
  br i1 %producer, label %a, label %b
a:
  store i32 %v, ptr addrspace(3) %mine, align 4
  call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 1, i32 64)
  br label %done
b:
  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 1, i32 64)
  %less = sub i64 %t, 32
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %less
  %x = load i32, ptr addrspace(3) %theirs, align 4
  br label %done
done:
  %r = phi i32 [ %v, %a ], [ %x, %b ]
"""
    for seed in SEEDS:
        assert on_gpu(body, seed=seed).tolist() == [*range(32), *range(32)]


WARP_EXCHANGE = """
  store i32 %v, ptr addrspace(3) %mine, align 4
  {sync}
  %other = xor i64 %t, 1
  %theirs = getelementptr i32, ptr addrspace(3) @tile, i64 %other
  %r = load i32, ptr addrspace(3) %theirs, align 4
"""


def test_a_warp_synchronises_its_own_memory() -> None:
    out = on_gpu(WARP_EXCHANGE.format(sync="call void @llvm.nvvm.bar.warp.sync(i32 -1)"))
    assert out.tolist() == [i ^ 1 for i in range(64)]


def test_dynamic_shared_memory() -> None:
    body = EXCHANGE.format(barrier=BARRIER).replace("@tile", "@dyn").replace("%mine,", "%own,")
    body = "%own = getelementptr i32, ptr addrspace(3) @dyn, i64 %t\n" + body
    assert on_gpu(body, shared_bytes=256).tolist() == list(range(63, -1, -1))
    found = fault(body, "out-of-bounds", shared_bytes=252)
    assert found.where.startswith("byte 252 of dynamic shared memory")


def test_atomics() -> None:
    body = """
  %old = atomicrmw add ptr addrspace(1) %out, i32 1 syncscope("device") monotonic
"""
    assert on_gpu(body + OWN_END, blocks=4)[0] == 255


def test_constants_of_the_module_can_be_read() -> None:
    body = """
  %low = and i64 %t, 3
  %c = getelementptr float, ptr addrspace(1) @table, i64 {index}
  %f = load float, ptr addrspace(1) %c, align 4
  %r = fptosi float %f to i32
"""
    assert on_gpu(body.format(index="%low")).tolist() == [1, 2, 3, 4] * 16
    fault(body.format(index="%t"), "out-of-bounds")


def test_functions_are_called_with_their_thread() -> None:
    body = """
  %r = call i32 @helper(i32 %v)
  store i32 %r, ptr addrspace(1) %to, align 4
  ret void
}
define internal i32 @helper(i32 %x) {
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  %y = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %x, i32 1, i32 31)
  %sum = add i32 %lane, %y
  ret i32 %sum
}
define void @unused(ptr addrspace(1) %to, i32 %r) {
"""
    assert on_gpu(body).tolist() == [(i ^ 1) + i % 32 for i in range(64)]


# -- planted faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_is_a_race(seed: int) -> None:
    """Found in any order of the threads; if the reader comes first, nobody has written yet."""
    with pytest.raises(EmulatorError) as caught:
        on_gpu(EXCHANGE.format(barrier=""), seed=seed)
    found = caught.value.finding
    if found.kind == "uninitialised":
        assert found.where == f"byte {4 * (63 - found.at.thread[0])} of @tile (shared)"
        return
    assert found.kind == "race"
    assert found.other is not None
    assert found.at.thread[0] + found.other.thread[0] == 63
    assert {found.at.instruction[:4], found.other.instruction[:4]} == {"stor", "%r ="}
    assert found.size == 4


def test_a_race_is_found_where_memory_held_something_before() -> None:
    """A second exchange through the same memory needs a barrier of its own before it writes."""
    body = (
        EXCHANGE.format(barrier=BARRIER).replace("%r =", "%first =")
        + """
  {barrier}
  store i32 %first, ptr addrspace(3) %mine, align 4
  call void @llvm.nvvm.barrier0()
  %r = load i32, ptr addrspace(3) %theirs, align 4
"""
    )
    assert on_gpu(body.format(barrier=BARRIER)).tolist() == list(range(64))
    for seed in SEEDS:
        found = fault(body.format(barrier=""), "race", seed=seed)
        assert found.other is not None
        assert found.at.thread[0] + found.other.thread[0] == 63


def test_the_step_of_a_warp_orders_nothing() -> None:
    found = fault(WARP_EXCHANGE.format(sync=""), "uninitialised")
    assert found.other is None
    body = (
        WARP_EXCHANGE.format(sync=BARRIER)
        + """
  %again = add i32 %r, 1
  store i32 %again, ptr addrspace(3) %mine, align 4
"""
    )
    found = fault(body, "race")
    assert found.other is not None
    assert found.at.thread[0] // 32 == found.other.thread[0] // 32


def test_many_readers_and_a_writer() -> None:
    """The writer has read as well, last of all: the others are not forgotten."""
    body = EXCHANGE.format(barrier=BARRIER).replace(
        "%last = sub i64 63, %t", "%last = add i64 0, 5"
    )
    body += """
  %writes = icmp eq i64 %t, 62
  br i1 %writes, label %w, label %done
w:
  store i32 1, ptr addrspace(3) %theirs, align 4
  br label %done
done:
"""
    found = fault(body, "race")
    assert found.at.thread == (62, 0, 0), "the last one to go on"
    assert found.details == ("other threads read as well",)


def test_blocks_race_in_global_memory() -> None:
    body = """
  %one = getelementptr i32, ptr addrspace(1) %out, i64 %t
  store i32 %v, ptr addrspace(1) %one, align 4
"""
    assert on_gpu(body + OWN_END).tolist() == list(range(64))
    found = fault(body + OWN_END, "race", blocks=3)
    assert found.other is not None
    assert (found.at.block, found.other.block) == ((1, 0, 0), (0, 0, 0))
    assert found.at.thread == found.other.thread
    assert found.where == f"byte 0 of an allocation of {64 * 3 * 4} bytes"


PUBLISH = """
  %isfirst = icmp eq i32 %b32, 0
  %flag = getelementptr i32, ptr addrspace(1) %out, i64 1
  br i1 %isfirst, label %a, label %b
a:
  store i32 7, ptr addrspace(1) %out, align 4
  {fence}
  %x = atomicrmw xchg ptr addrspace(1) %flag, i32 1 monotonic
  ret void
b:
  %y = load atomic i32, ptr addrspace(1) %flag acquire, align 4
  %ready = icmp eq i32 %y, 1
  br i1 %ready, label %c, label %b
c:
  %r = load i32, ptr addrspace(1) %out, align 4
  %third = getelementptr i32, ptr addrspace(1) %out, i64 2
  store i32 %r, ptr addrspace(1) %third, align 4
"""


def test_what_an_atomic_publishes_is_ordered_between_blocks() -> None:
    body = PUBLISH.replace("{fence}", "call void @llvm.nvvm.membar.gl()")
    found = fault(body + OWN_END, "race", threads=1, blocks=3)
    assert found.at.instruction.startswith("store i32 %r"), "blocks 1 and 2 write the third"
    assert found.at.block == (2, 0, 0)


def test_what_no_fence_publishes_is_not() -> None:
    found = fault(PUBLISH.replace("{fence}", "") + OWN_END, "race", threads=1, blocks=3)
    assert found.at.instruction.startswith("%r = load")


def test_a_thread_that_waits_for_a_value_for_ever() -> None:
    body = """
  br label %again
again:
  %y = load atomic i32, ptr addrspace(1) %out acquire, align 4
  %ready = icmp eq i32 %y, 5
  br i1 %ready, label %done, label %again
done:
  %r = add i32 %y, 0
"""
    fault(body, "endless-wait", threads=1)


def test_a_barrier_that_some_threads_pass_by() -> None:
    body = f"""
  %low = icmp ult i32 %t32, 40
  br i1 %low, label %a, label %done
a:
  {BARRIER}
  br label %done
done:
  %r = add i32 %v, 0
"""
    for seed in SEEDS:
        found = fault(body, "deadlock", seed=seed)
        assert "barrier" in found.at.instruction
        assert set(found.details) == {
            "40 threads wait at a barrier: 0-39",
            "24 threads have returned: 40-63",
        }


def test_two_barriers_are_not_one() -> None:
    body = f"""
  %low = icmp ult i32 %t32, 40
  br i1 %low, label %a, label %b
a:
  {BARRIER}
  br label %done
b:
  {BARRIER}
  br label %done
done:
  %r = add i32 %v, 0
"""
    found = fault(body, "divergent-barrier")
    assert found.other is not None


def test_a_shuffle_that_leaves_its_own_lane_out() -> None:
    body = "%r = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 65535, i32 %v, i32 1, i32 31)"
    found = fault(body, "lane-not-in-mask")
    assert found.at.thread[0] == 16
    assert found.details == ("mask 0x0000ffff",)


SOME_LANES = """
  %low = icmp ult i32 %t32, 16
  br i1 %low, label %a, label {otherwise}
a:
  %x = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 {mask}, i32 %v, i32 {by}, i32 31)
  br label %done
b:
  %y = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 {mask}, i32 %v, i32 {by}, i32 31)
  br label %done
done:
  %r = add i32 %v, 0
"""


def test_a_shuffle_from_a_lane_that_is_not_there() -> None:
    body = SOME_LANES.format(otherwise="%done", mask=65535, by=16)
    assert fault(body, "foreign-lane").details == ("lane 16",)


def test_a_mask_with_lanes_that_never_come() -> None:
    found = fault(SOME_LANES.format(otherwise="%done", mask=-1, by=1), "deadlock")
    assert "16 threads wait for their warp: 0-15" in found.details


def test_lanes_meet_at_two_shuffles() -> None:
    found = fault(SOME_LANES.format(otherwise="%b", mask=-1, by=1), "divergent-warp", threads=32)
    assert found.other is not None
    assert found.at.instruction != found.other.instruction


@pytest.mark.parametrize(("offset", "said"), [(64, "0 bytes behind"), (-1, ""), (1 << 40, "")])
def test_a_write_out_of_bounds(offset: int, said: str) -> None:
    body = f"""
  %i = add i64 %t, {offset}
  %bad = getelementptr i32, ptr addrspace(1) %out, i64 %i
  store i32 %v, ptr addrspace(1) %bad, align 4
  %r = add i32 %v, 0
"""
    found = fault(body, "out-of-bounds")
    assert found.at.thread == (0, 0, 0)
    assert found.at.instruction.startswith("store i32 %v, ptr addrspace(1) %bad")
    assert said in found.where


def test_a_wide_read_that_ends_out_of_bounds() -> None:
    body = """
  %wide = getelementptr i32, ptr addrspace(1) %in, i64 64
  %back = getelementptr i32, ptr addrspace(1) %wide, i64 -{words}
  %w = load <4 x i32>, ptr addrspace(1) %back, align 4
  %r = extractelement <4 x i32> %w, i32 0
"""
    assert on_gpu(body.replace("{words}", "4")).tolist() == [60] * 64
    assert fault(body.replace("{words}", "3"), "out-of-bounds").size == 16


def test_arguments_have_bounds_of_their_own() -> None:
    """What lies behind a buffer may be another one of the same allocation."""
    note = """
!bringup.extents = !{{!0}}
!0 = !{{!"k", i64 256, i64 {size}}}
"""
    text = HEAD + OPEN + "  %r = add i32 %v, 1" + CLOSE
    both = np.zeros(64, np.int32)
    run(text + note.format(size=256), "k", 1, 64, [np.arange(64, dtype=np.int32), both])
    assert both.tolist() == list(range(1, 65))
    with pytest.raises(EmulatorError) as caught:
        run(text + note.format(size=240), "k", 1, 64, [both, both])
    found = caught.value.finding
    assert (found.kind, found.at.thread) == ("out-of-bounds", (60, 0, 0))
    assert found.where == "byte 240 of argument 1, which has 240 bytes"


def test_programs_say_how_large_their_buffers_are() -> None:
    types = (TensorType((3, 700), float32),)
    program = bu.jit(lambda x: bu.sum(x, axis=1)).lower(*types, target="cuda:sm_90").program
    made = load(translate(program, "sm_90").text)
    assert [tuple(k.extents) for k in made.kernels.values()] == [(3 * 700 * 4, 3 * 4)]


def test_shared_memory_has_bounds() -> None:
    body = """
  %i = add i64 %t, 1
  %next = getelementptr i32, ptr addrspace(3) @tile, i64 %i
  store i32 %v, ptr addrspace(3) %next, align 4
  %r = add i32 %v, 0
"""
    assert fault(body, "out-of-bounds").at.thread == (63, 0, 0)


def test_vectors_must_be_aligned() -> None:
    body = """
  %odd = getelementptr i32, ptr addrspace(1) %in, i64 1
  %w = load <4 x i32>, ptr addrspace(1) %odd, align 16
  %r = extractelement <4 x i32> %w, i32 0
"""
    found = fault(body, "misaligned")
    assert found.details == ("16 bytes of alignment are claimed",)


def test_an_address_of_another_space() -> None:
    body = """
  %g1 = addrspacecast ptr addrspace(1) %in to ptr
  %s = addrspacecast ptr %g1 to ptr addrspace(3)
  %r = load i32, ptr addrspace(3) %s, align 4
"""
    fault(body, "wrong-space")
    generic = """
  %g1 = addrspacecast ptr addrspace(1) %from to ptr
  %r = load i32, ptr %g1, align 4
"""
    assert on_gpu(generic).tolist() == list(range(64))


def test_a_trap() -> None:
    fault("call void @llvm.trap()\n  %r = add i32 %v, 0", "trap")


def test_the_gpu_goes_on_after_a_fault() -> None:
    for _ in range(2):
        fault("call void @llvm.trap()\n  %r = add i32 %v, 0", "trap")
        assert on_gpu("%r = add i32 %v, 1").tolist() == list(range(1, 65))


def test_unchecked_modules_run_the_same_and_say_nothing_of_memory() -> None:
    text = HEAD + OPEN + EXCHANGE.format(barrier=BARRIER) + CLOSE
    values = np.arange(64, dtype=np.int32)
    out = np.empty_like(values)
    run(load(text, checked=False), "k", 1, 64, [values, out])
    assert out.tolist() == values[::-1].tolist()
    racing = HEAD + OPEN + EXCHANGE.format(barrier="") + CLOSE
    run(load(racing, checked=False), "k", 1, 64, [values, out])
    with pytest.raises(EmulatorError):
        run(load(racing), "k", 1, 64, [values, out])


# -- hosts -----------------------------------------------------------------------------------------


def test_the_switch_of_x86_64_keeps_what_a_callee_must() -> None:
    made = host("x86_64")
    pushed = re.findall(r"pushq (\S+);", made.switch)
    assert pushed == re.findall(r"popq (\S+);", made.switch)[::-1]
    assert set(pushed) == {"%rbp", "%rbx", "%r12", "%r13", "%r14", "%r15"}
    left = made.frame - 8 * len(pushed) - 8
    assert left > 0
    assert left % 16 == 0, "what is left where the fibre's function is called"


def test_the_switch_of_aarch64_keeps_what_a_callee_must() -> None:
    made = host("aarch64")
    stored = re.findall(r"stp (\S+), (\S+), \[sp, #(\d+)\]", made.switch)
    assert stored == re.findall(r"ldp (\S+), (\S+), \[sp, #(\d+)\]", made.switch)
    assert [int(offset) for _, _, offset in stored] == list(range(0, made.frame, 16))
    kept = {name for first, second, _ in stored for name in (first, second)}
    assert kept == {*(f"x{n}" for n in range(19, 31)), *(f"d{n}" for n in range(8, 16))}
    places = {name: int(at) + 8 * n for *pair, at in stored for n, name in enumerate(pair)}
    assert (places["x19"], places["x20"], places["x30"]) == (made.thread, made.main, made.resume)


def test_hosts_that_nobody_wrote_a_switch_for() -> None:
    with pytest.raises(UnsupportedError, match="riscv64"):
        host("riscv64")
