"""Products of warpgroups on the emulator, by kernels written here: matrices are put into shared
memory as the PTX manual draws them, and sums read where it says they are; and every fault that the
emulator knows of them, planted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bringup.errors import CompileError
from bringup_cuda_emulator import EmulatorError, Finding, run

Array = np.ndarray[Any, Any]
ROWS, COLUMNS, INNER, THREADS = 64, 128, 16, 128
COUNT = COLUMNS // 2
#: Bytes of shared memory of each factor.
ROOM = 1 << 14

HEAD = """
target triple = "nvptx64-nvidia-cuda"
@tiles = external addrspace(3) global [0 x i8], align 1024
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.fence.proxy.async.shared_cta()
declare void @llvm.nvvm.wgmma.fence.sync.aligned()
declare void @llvm.nvvm.wgmma.commit_group.sync.aligned()
declare void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64)
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out, i64 %a, i64 %b) {
entry:
  %t32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %t = zext i32 %t32 to i64
  br label %copy
copy:
  %n = phi i64 [ %t, %entry ], [ %next, %copy ]
  %from = getelementptr <4 x i32>, ptr addrspace(1) %in, i64 %n
  %to = getelementptr <4 x i32>, ptr addrspace(3) @tiles, i64 %n
  %v = load <4 x i32>, ptr addrspace(1) %from, align 16
  store <4 x i32> %v, ptr addrspace(3) %to, align 16
  %next = add i64 %n, THREADS
  %more = icmp slt i64 %next, CHUNKS
  br i1 %more, label %copy, label %go
go:
  %base = ptrtoint ptr addrspace(3) @tiles to i64
  %low = and i64 %base, 262143
  %chunk = lshr i64 %low, 4
  %da = add i64 %a, %chunk
  %db = add i64 %b, %chunk
  %mine = getelementptr i8, ptr addrspace(3) @tiles, i64 0
  %first = icmp eq i64 %t, 0
"""
SHOW = "  call void @llvm.nvvm.fence.proxy.async.shared_cta()\n"
BARRIER = "  call void @llvm.nvvm.barrier0()\n"
FENCE = "  call void @llvm.nvvm.wgmma.fence.sync.aligned()\n"
COMMIT = "  call void @llvm.nvvm.wgmma.commit_group.sync.aligned()\n"
WAIT = "  call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)\n"
#: Thread 0 writes where the first factor begins.
WRITE = """
  br i1 %first, label %write, label %on
write:
  store i32 0, ptr addrspace(3) %mine, align 16
  br label %on
on:
"""
KIND = "{ " + ", ".join(["float"] * COUNT) + " }"
TIES = ",".join([*["=f"] * COUNT, *map(str, range(COUNT))])


def tied(name: str, text: str, sums: Sequence[str], more: str = "", constraints: str = "") -> str:
    """PTX on registers of sums, as the instruction ``%name``, and its results one by one."""
    given = ", ".join(f"float {s}" for s in sums) + more
    call = f'  %{name} = call {KIND} asm sideeffect "{text}", "{TIES}{constraints},~{{memory}}"'
    parts = [f"  %{name}{n} = extractvalue {KIND} %{name}, {n}" for n in range(COUNT)]
    return "\n".join([f"{call}({given})", *parts, ""])


def results(name: str) -> list[str]:
    return [f"%{name}{n}" for n in range(COUNT)]


def product(
    name: str, sums: Sequence[str], *, kind: str = "bf16", turned: tuple[int, int] = (0, 0)
) -> str:
    registers = ", ".join(f"${n}" for n in range(COUNT))
    text = (
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}k16.f32.{kind}.{kind} {{{registers}}}, "
        f"${2 * COUNT}, ${2 * COUNT + 1}, p, 1, 1, {turned[0]}, {turned[1]}; }}"
    )
    return tied(name, text, sums, ", i64 %da, i64 %db", ",l,l")


def awaited(name: str, sums: Sequence[str], pending: int = 0) -> str:
    return tied(name, f"wgmma.wait_group.sync.aligned {pending};", sums)


def stored(name: str) -> str:
    lines = [f"  %row = mul i64 %t, {COUNT}"]
    for n, value in enumerate(results(name)):
        lines += [
            f"  %at{n} = add i64 %row, {n}",
            f"  %to{n} = getelementptr float, ptr addrspace(1) %out, i64 %at{n}",
            f"  store float {value}, ptr addrspace(1) %to{n}, align 4",
        ]
    return "\n".join([*lines, "  ret void\n}\n"])


NOTHING = ["-0.0"] * COUNT
ASKED = product("x", NOTHING)
GOOD = SHOW + BARRIER + FENCE + ASKED + COMMIT + awaited("y", results("x")) + stored("y")


def swizzled(at: Array) -> Array:
    """``Swizzle<3, 4, 3>`` of byte addresses."""
    return at ^ (((at >> 7) & 7) << 4)


def image(matrix: Array, *, turned: bool, stride: int = 1024, leading: int = 2048) -> Array:
    """A factor, lines by 16, in shared memory: the canonical layouts of 128-byte swizzling."""
    line, inner = np.indices(matrix.shape)
    if turned:
        at = line // 64 * leading + line % 64 * 2 + inner // 8 * stride + inner % 8 * 128
    else:
        at = line // 8 * stride + line % 8 * 128 + inner * 2
    made = np.full(ROOM // 2, 77, matrix.dtype)
    made[swizzled(at) // 2] = matrix
    return made


def descriptor(first: int, stride: int = 1024, leading: int = 2048, **bits: int) -> int:
    """Of a matrix that begins at a byte of shared memory."""
    made = first >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 62
    for name, value in bits.items():
        made ^= value << int(name.removeprefix("bit"))
    return made


def sums_of(found: Array) -> Array:
    """The matrix that the threads' registers hold."""
    thread, register = np.indices((THREADS, COUNT))
    lane = thread % 32
    row = thread // 32 * 16 + lane // 4 + register // 2 % 2 * 8
    column = register // 4 * 8 + lane % 4 * 2 + register % 2
    made = np.full((ROWS, COLUMNS), np.nan, np.float32)
    made[row, column] = found.reshape(THREADS, COUNT)
    return made


def factors(dtype: Any) -> tuple[Array, Array]:
    random = np.random.default_rng(5)
    return tuple(random.integers(-9, 10, (n, INNER)).astype(dtype) for n in (ROWS, COLUMNS))  # type: ignore[return-value]


def launched(
    body: str,
    images: Sequence[Array],
    descriptors: tuple[int, int] = (descriptor(0), descriptor(ROOM)),
    threads: int = THREADS,
    written: int = 2 * ROOM,
    **more: Any,
) -> Array:
    text = (HEAD + body).replace("THREADS", str(threads)).replace("CHUNKS", str(written // 16))
    out = np.full(max(threads, THREADS) * COUNT, np.nan, np.float32)
    given = np.concatenate(images).view(np.int32)
    run(text, "k", 1, threads, [given, out, *descriptors], shared_bytes=2 * ROOM, **more)
    return out


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_a_product(kind: str, turned: tuple[int, int]) -> None:
    x, y = factors(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
    body = GOOD.replace(ASKED, product("x", NOTHING, kind=kind, turned=turned))
    images = [image(m, turned=bool(t)) for m, t in zip((x, y), turned, strict=True)]
    found = sums_of(launched(body, images))
    np.testing.assert_array_equal(found, x.astype(np.float32) @ y.astype(np.float32).T)


def test_a_part_of_longer_lines_and_other_strides() -> None:
    """The third 16 of 64 inner elements begin within the first piece."""
    x, y = factors(ml_dtypes.bfloat16)
    wide = np.random.default_rng(6).integers(-9, 10, (ROWS, 64)).astype(x.dtype)
    wide[:, 32:48] = x
    images = image(wide, turned=False), image(y, turned=True, stride=2048, leading=4096)
    given = descriptor(64, leading=16), descriptor(ROOM, 2048, 4096)
    body = GOOD.replace(ASKED, product("x", NOTHING, turned=(0, 1)))
    found = sums_of(launched(body, images, given))
    np.testing.assert_array_equal(found, x.astype(np.float32) @ y.astype(np.float32).T)


def test_products_add_up_in_groups() -> None:
    """Two in a group, one in the next; a wait that leaves one under way gives no sums yet."""
    x, y = factors(np.float16)
    parts = [
        SHOW + BARRIER + FENCE,
        product("x", ["1.0"] * COUNT, kind="f16") + product("y", results("x"), kind="f16"),
        COMMIT + product("z", results("y"), kind="f16") + COMMIT,
        awaited("u", results("z"), 1) + awaited("w", results("u")) + stored("w"),
    ]
    images = [image(m, turned=False) for m in (x, y)]
    found = sums_of(launched("".join(parts), images))
    wanted = 3 * (x.astype(np.float32) @ y.astype(np.float32).T) + 1
    np.testing.assert_array_equal(found, wanted)


# -- faults


def fault(body: str, kind: str, **more: Any) -> Finding:
    images = [image(m, turned=False) for m in factors(ml_dtypes.bfloat16)]
    with pytest.raises(EmulatorError) as caught:
        launched(body, images, **more)
    assert caught.value.finding.kind == kind, caught.value
    return caught.value.finding


def without(part: str) -> str:
    assert GOOD.count(part) == 1
    return GOOD.replace(part, "")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_made_visible(seed: int) -> None:
    found = fault(without(SHOW), "not-visible", seed=seed)
    assert found.other is not None
    assert "store <4 x i32>" in found.other.instruction
    assert "wgmma.mma_async" in found.at.instruction


def test_a_write_after_the_fence_is_not_visible() -> None:
    fault(GOOD.replace(BARRIER, BARRIER + WRITE + BARRIER), "not-visible")


def test_a_fence_behind_the_barrier_is_one_of_its_own_writes_alone() -> None:
    """Another warpgroup has not fenced what it wrote when the first one reads it."""
    other = "  %late = icmp uge i64 %t, 128\n  br i1 %late, label %end, label %ask\nend:\n"
    body = BARRIER + SHOW + other + "  ret void\nask:\n" + without(SHOW).replace(BARRIER, "")
    for seed in range(3):
        fault(body, "not-visible", threads=256, seed=seed)


def test_a_missing_barrier() -> None:
    fault(without(BARRIER), "race")


def test_bytes_that_nobody_wrote() -> None:
    fault(GOOD, "uninitialised", written=ROOM)


def test_bytes_that_are_not_the_kernels() -> None:
    fault(GOOD, "out-of-bounds", descriptors=(descriptor(0), descriptor(ROOM, 4096)))


def test_a_write_while_products_read() -> None:
    """By a thread of the warpgroup itself, which no race detector would mind."""
    late = ASKED + WRITE + COMMIT
    assert fault(GOOD.replace(ASKED + COMMIT, late), "overtaken").other is not None


def test_a_write_behind_a_barrier_before_the_wait() -> None:
    fault(GOOD.replace(ASKED + COMMIT, ASKED + COMMIT + BARRIER + WRITE + BARRIER), "overtaken")


def test_a_write_after_the_wait_is_none() -> None:
    end = awaited("y", results("x"))
    x, y = factors(ml_dtypes.bfloat16)
    images = [image(m, turned=False) for m in (x, y)]
    found = sums_of(launched(GOOD.replace(end, end + BARRIER + WRITE), images))
    np.testing.assert_array_equal(found, x.astype(np.float32) @ y.astype(np.float32).T)


def test_no_fence_of_registers() -> None:
    fault(without(FENCE), "not-fenced")


@pytest.mark.parametrize("wait", ["", WAIT, awaited("z", results("x"), 1)], ids=len)
def test_sums_that_are_not_waited_for(wait: str) -> None:
    """Nor is a wait enough that does not say for which registers, or leaves the last group."""
    body = GOOD.replace(awaited("y", results("x")) + stored("y"), wait + stored("x"))
    fault(body, "sums-in-flight")


def test_a_product_that_was_never_committed() -> None:
    fault(without(COMMIT), "sums-in-flight")


def test_sums_that_are_changed_under_way() -> None:
    """One register of a product is no longer that of the one before."""
    changed = ["%other", *results("x")[1:]]
    more = "  %other = fadd float 1.0, 1.0\n" + product("z", changed)
    assert "fadd" not in fault(GOOD.replace(COMMIT, more + COMMIT), "sums-in-flight").kind


def test_products_nobody_waits_for() -> None:
    body = SHOW + BARRIER + FENCE + ASKED + COMMIT + "  ret void\n}\n"
    fault(body, "products-left")


@pytest.mark.parametrize(
    "wrong",
    [
        {"bit62": 3},
        {"bit49": 1},
        {"bit46": 1},
        {"bit14": 1},
        {"first": 128},
        {"first": 112},
        {"stride": 512},
        {"stride": 0},
    ],
    ids=str,
)
def test_descriptors(wrong: dict[str, int]) -> None:
    first = wrong.pop("first", 0)
    found = fault(
        GOOD, "bad-descriptor", descriptors=(descriptor(first, **wrong), descriptor(ROOM))
    )
    assert found.details[0].startswith("descriptor 0x")


def test_turned_matrices_begin_with_a_line() -> None:
    body = GOOD.replace(ASKED, product("x", NOTHING, turned=(1, 0)))
    fault(body, "bad-descriptor", descriptors=(descriptor(32), descriptor(ROOM)))


def test_threads_that_name_other_matrices() -> None:
    """A descriptor is the warpgroup's, not the thread's."""
    own = "  %odd = mul i64 %t, 64\n  %dc = add i64 %da, %odd\n"
    body = GOOD.replace(FENCE, FENCE + own).replace("i64 %da, i64 %db)", "i64 %dc, i64 %db)")
    fault(body, "bad-descriptor")


def test_a_short_warpgroup() -> None:
    fault(GOOD, "short-warpgroup", threads=64)


def test_warps_that_go_apart() -> None:
    """The same instruction twice is two."""
    both = FENCE + "  br label %both\n"
    split = "  %early = icmp ult i64 %t, 32\n  br i1 %early, label %one, label %two\n"
    body = GOOD.replace(FENCE, split + "one:\n" + both + "two:\n" + both + "both:\n")
    fault(body, "divergent-warpgroup")


def test_a_warp_that_stays_away() -> None:
    stay = "  %idle = icmp ult i64 %t, 32\n  br i1 %idle, label %end, label %rest\nend:\n"
    body = GOOD.replace(FENCE, stay + "  ret void\nrest:\n" + FENCE)
    assert "wait for their warpgroup" in "".join(fault(body, "deadlock").details)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("m64n128k16", "m64n120k16"),
        (".bf16.bf16", ".bf16.f16"),
        ("p, 1, 1, 0", "p, 1, -1, 0"),
        ("$0, $1,", "$1, $0,"),
        (",l,l,", ",l,r,"),
    ],
)
def test_other_ptx_is_refused(text: str, instead: str) -> None:
    assert len(re.findall(re.escape(text), GOOD)) >= 1
    with pytest.raises(CompileError, match="does not run PTX"):
        launched(GOOD.replace(text, instead), [np.zeros(ROOM, np.int16)])
