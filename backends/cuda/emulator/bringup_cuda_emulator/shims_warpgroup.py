"""Instructions of warpgroups: products that go on by themselves, what orders and what ends them.

LLVM has no intrinsic of the product, nor of a fence and a wait that say which registers they are
for: these come as PTX, by `ASSEMBLY`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bringup.llvm.host.emit import Emit, number
from bringup.llvm.text import Val, f32, i32, i64, struct_type, void
from bringup_cuda_emulator.layout import Context, Group, Thread
from bringup_cuda_emulator.machine import context_of, stamped, word
from bringup_cuda_emulator.products import FORM_BF16, FORM_TURNED, LEFT, PAYLOAD_BYTES, RIGHT
from bringup_cuda_emulator.shims import Body, Call, Shim, Spelling
from bringup_cuda_emulator.warpgroups import group_of

_PREFIX = "llvm.nvvm.wgmma."
_PRODUCT, _FENCED, _AWAITED = (f"emulated.wgmma.{name}." for name in ("product", "fence", "wait"))
#: Columns of products that are known.
COLUMNS = (64, 128, 256)

Work = Callable[[Emit, Call, Val], None]


def _together(b: Emit, call: Call, payload: Val, work: Work) -> None:
    """What the last thread of the warpgroup to come does for all of them."""
    last = b.c("emu.group_arrive", i32, call.thread, call.site, payload)
    with b.if_then(b.icmp("ne", last, word(0))):
        work(b, call, group_of(b, call.thread))
        b.c("emu.group_release", void, call.thread)


def _plain(work: Work) -> Body:
    """An instruction without registers."""

    def body(b: Emit, call: Call) -> None:
        _together(b, call, b.alloca(i64), work)

    return body


def _with_sums(count: int, work: Work) -> Body:
    """One that changes so many registers where they are; descriptors may follow."""
    kind = struct_type(*[f32] * count)

    def body(b: Emit, call: Call) -> Val:
        payload = b.alloca(i64, number(PAYLOAD_BYTES // 8), 16)
        for n, value in enumerate(call.args[:count]):
            b.put(payload, 4 * n, value)
        for place, value in zip((LEFT, RIGHT), call.args[count : count + 2], strict=False):
            b.put(payload, place, value)
        _together(b, call, payload, work)
        made = Val("undef", kind)
        for n in range(count):
            made = b.insertvalue(made, b.get(payload, 4 * n, f32), n)
        return made

    return body


def _fence(b: Emit, call: Call, group: Val) -> None:
    b.put(group, Group.FENCED, number(1))


def _commit(b: Emit, call: Call, group: Val) -> None:
    b.bump(group, Group.COMMITTED, number(1))


def _wait(b: Emit, call: Call, group: Val) -> None:
    b.c("emu.complete", void, call.thread, call.args[0])


def _ask(b: Emit, call: Call, group: Val) -> None:
    b.c("emu.product", void, call.thread, call.site, call.args[-1])


def _await(b: Emit, call: Call, group: Val) -> None:
    b.c("emu.complete", void, call.thread, call.args[-1])
    b.c("emu.deliver", void, call.thread, call.site, number(len(call.args) - 1))


def _show(b: Emit, call: Call) -> None:
    """Tensor cores see what this thread has written so far, and what it writes later is later."""
    thread, context = call.thread, context_of(b, call.thread)
    before = b.get(thread, Thread.PROXY)
    settled = b.icmp("ule", before, b.get(context, Context.FLOOR))
    b.put(thread, Thread.SETTLED, b.select(settled, before, b.get(thread, Thread.SETTLED)))
    stamp = b.bump(context, Context.STAMP, number(1))
    b.put(thread, Thread.PROXY, stamp)
    index = b.zext(b.get(thread, Thread.NUMBER, i32), i64)
    b.put(thread, Thread.RECORD, stamped(b, stamp, index))


def _registers(count: int) -> tuple[str, str]:
    """How PTX names so many registers of sums, and how constraints tie them."""
    names = ", ".join(f"${n}" for n in range(count))
    ties = ",".join([*["=f"] * count, *(str(n) for n in range(count))])
    return names, ties


def _read_product(found: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = int(found["columns"])
    count = columns // 2
    names, ties = _registers(count)
    operands = found["sums"], int(found["left"]), int(found["right"])
    known = columns in COLUMNS and operands == (names, 2 * count, 2 * count + 1)
    if (
        not known or constraints != f"{ties},l,l,~{{memory}}"
    ):  # pragma: no cover - only wrong kernels
        return None
    form = columns | (FORM_BF16 if found["kind"] == "bf16" else 0)
    for bit, turned in zip(FORM_TURNED, (found["a"], found["b"]), strict=True):
        form |= bit * int(turned)
    return f"{_PRODUCT}{columns}", (f"i64 {form}",)


def _columns(constraints: str) -> int | None:
    """The columns of the sums that constraints tie, and nothing else."""
    ties = (c for c in COLUMNS if constraints == f"{_registers(c // 2)[1]},~{{memory}}")
    return next(ties, None)


def _read_fence(_: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = _columns(constraints)
    return None if columns is None else (f"{_FENCED}{columns}", ())


def _read_wait(found: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = _columns(constraints)
    return None if columns is None else (f"{_AWAITED}{columns}", (f"i64 {found['pending']}",))


def _sums(name: str, columns: int, more: int, work: Work) -> Shim:
    """An instruction with the registers of sums of so many columns, and ``more`` operands."""
    count = columns // 2
    params = (*[f32] * count, *[i64] * more)
    body = _with_sums(count, work)
    return Shim(f"{name}{columns}", struct_type(*[f32] * count), params, body, waits=True)


SHIMS = (
    Shim(f"{_PREFIX}fence.sync.aligned", void, (), _plain(_fence), waits=True),
    Shim(f"{_PREFIX}commit_group.sync.aligned", void, (), _plain(_commit), waits=True),
    Shim(f"{_PREFIX}wait_group.sync.aligned", void, (i64,), _plain(_wait), waits=True),
    Shim("llvm.nvvm.fence.proxy.async.shared_cta", void, (), _show),
    Shim("llvm.nvvm.fence.proxy.async", void, (), _show),
    *(_sums(_PRODUCT, columns, 3, _ask) for columns in COLUMNS),
    *(_sums(_FENCED, columns, 0, _fence) for columns in COLUMNS),
    *(_sums(_AWAITED, columns, 1, _await) for columns in COLUMNS),
)

ASSEMBLY = (
    Spelling(
        re.compile(
            r"\{ \.reg \.pred (?P<p>\w+); setp\.ne\.b32 (?P=p), 1, 0; "
            r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k16\.f32\.(?P<kind>f16|bf16)"
            r"\.(?P=kind) \{(?P<sums>[^}]*)\}, \$(?P<left>\d+), \$(?P<right>\d+), (?P=p), 1, 1, "
            r"(?P<a>[01]), (?P<b>[01]); \}"
        ),
        _read_product,
    ),
    Spelling(re.compile(r"wgmma\.fence\.sync\.aligned;"), _read_fence),
    Spelling(re.compile(r"wgmma\.wait_group\.sync\.aligned (?P<pending>\d+);"), _read_wait),
)
