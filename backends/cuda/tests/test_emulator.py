"""The emulator runs what goes to NVPTX as a GPU would."""

from __future__ import annotations

import re

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

from bringup.errors import CompileError, UnsupportedError
from bringup_cuda_emulator import EmulatorError, load, run
from bringup_cuda_emulator.fibers import host


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


# -- what it refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("call void @llvm.nvvm.unheard.of()", "no shim of llvm.nvvm.unheard.of"),
        ('call void asm sideeffect "bar.sync 0;", ""()', "does not run PTX"),
        (
            "call void @llvm.memset.p1.i64(ptr addrspace(1) %out, i8 0, i64 4, i1 false)",
            "no shim of llvm.memset",
        ),
        ("%w = load <128 x i32>, ptr addrspace(1) %in, align 4", "512 bytes is wider"),
        ("%w = add i32 %v, 1.0", "LLVM refuses the emitted IR"),
    ],
)
def test_what_it_cannot_run_is_refused(body: str, said: str) -> None:
    declared = """
declare void @llvm.nvvm.unheard.of()
declare void @llvm.memset.p1.i64(ptr addrspace(1), i8, i64, i1)
"""
    with pytest.raises(CompileError, match=said):
        load(HEAD + declared + OPEN + body + "\n  %r = add i32 %v, 0" + CLOSE)
