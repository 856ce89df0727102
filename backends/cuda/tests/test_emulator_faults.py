"""The emulator finds each planted fault, and says who did what where."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import (
    BARRIER,
    CLOSE,
    EXCHANGE,
    HEAD,
    OPEN,
    OWN_END,
    SEEDS,
    WARP_EXCHANGE,
    fault,
    on_gpu,
)

import bringup as bu
from bringup import float32
from bringup.types import TensorType
from bringup_cuda.codegen.lower import translate
from bringup_cuda_emulator import EmulatorError, load, run


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
