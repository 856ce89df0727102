"""Shims: native functions that stand in for the intrinsics of GPUs, and how to write one.

The rewritten kernel calls a shim in the place of the intrinsic.  Its ``body`` builds the function:

``body(b, call)`` with ``b`` an `Emit` (LLVM builder) at the function's entry and ``call`` the
`Call`: the thread, the site and the intrinsic's arguments.  It returns the result, None for void.

Three kinds:

* `shim`: of one thread alone.
* `collective`: of a warp.  The lanes of the mask meet; the last to arrive runs ``work`` once for
  all of them, over `Lanes`: it reads the arguments of each lane and sets the result of each.
* `REGISTERS`: reads of special registers, which become loads.

Inline PTX is recognised by its text: a `Spelling` reads it and names the shim to call.  All shims
stand in the table `bringup_cuda_emulator.intrinsics.INTRINSICS`.

Memory that a shim accesses is checked by `check`, as that of an instruction is.  Pointers have no
address space here.  Names are those that LLVM prints, after its own renaming of old ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.text import Module, Type, Val, i32, i64, ptr, void
from bringup.records import record
from bringup_cuda_emulator.fibers import context_of, each_lane, word
from bringup_cuda_emulator.structs import Access, Context, Thread

_SREG = "llvm.nvvm.read.ptx.sreg."
#: Special registers, by the member of the thread that holds them.
REGISTERS = {
    **{f"{_SREG}tid.{c}": Thread.TID + 4 * n for n, c in enumerate("xyz")},
    **{f"{_SREG}ntid.{c}": Thread.NTID + 4 * n for n, c in enumerate("xyz")},
    **{f"{_SREG}ctaid.{c}": Thread.CTAID + 4 * n for n, c in enumerate("xyz")},
    **{f"{_SREG}nctaid.{c}": Thread.NCTAID + 4 * n for n, c in enumerate("xyz")},
    f"{_SREG}laneid": Thread.LANE,
    f"{_SREG}warpid": Thread.WARP,
}


@record
class Call:
    """A call of an intrinsic: who, where (a number for reports), with what."""

    thread: Val
    site: Val
    args: tuple[Val, ...]


Body = Callable[[Emit, Call], Val | None]


@record
class Shim:
    """The stand-in for an intrinsic.

    name, ret, params: the intrinsic's, pointers without address space.
    waits: whether a thread may wait in it, so that threads must be fibres.
    body: builds the function.
    grain: the least bytes of memory it touches at once.
    reads: the argument that points to global memory it reads: as many bytes as the third argument
    says, or ``grain`` without one.
    """

    name: str
    ret: Type
    params: tuple[Type, ...]
    body: Body
    waits: bool = False
    grain: int = 16
    reads: int | None = None

    @property
    def symbol(self) -> str:
        """Of the native function ``(thread, site, *params)``."""
        return f"emu.{self.name.removeprefix('llvm.')}"

    def emit(self, module: Module) -> None:
        """Define the function."""
        params = [("t", ptr), ("site", i32)]
        params += [(f"a{n}", type) for n, type in enumerate(self.params)]
        b, (thread, site, *args) = define(module, self.symbol, self.ret, params, internal=False)
        made = self.body(b, Call(thread, site, tuple(args)))
        b.ret(None if self.ret is void else made)


@record
class Spelling:
    """PTX that the emulator runs.

    pattern: of the whole text.  read: the shim's name and more operands for it, of what the pattern
    found and the constraints; None if operands or constraints are not as the shim takes them.
    """

    pattern: re.Pattern[str]
    read: Callable[[re.Match[str], str], tuple[str, tuple[str, ...]] | None]


def shim(name: str, ret: Type, params: Sequence[Type], body: Body) -> Shim:
    """An intrinsic of one thread."""
    return Shim(name, ret, tuple(params), body)


_SLOT = 16


class Lanes:
    """The lanes that have met, for the work that is done once for all of them.

    mask: the lanes that take part, 32 bits.  site: for faults.  thread: the one that does the work.
    """

    def __init__(self, b: Emit, call: Call, mask: Val, ret: Type, params: tuple[Type, ...]) -> None:
        self.b = b
        self.thread = call.thread
        self.site = call.site
        self.mask = mask
        self._context = context_of(b, call.thread)
        self._warp = b.zext(b.get(call.thread, Thread.WARP, i32), i64)
        self._ret = ret
        self._params = params

    def each(self, do: Callable[[Val, Val], None]) -> None:
        """``do(lane, thread)`` for each lane of the mask; ``lane`` has 64 bits."""
        each_lane(self.b, self._context, self._warp, self.mask, do)

    def at(self, lane: Val) -> Val:
        """The thread of a lane, which must take part."""
        index = self.b.add(self.b.mul(self._warp, number(32)), lane)
        threads = self.b.get(self._context, Context.THREADS_AT, ptr)
        return self.b.at(threads, self.b.mul(index, number(Thread.BYTES)))

    def arg(self, thread: Val, index: int) -> Val:
        """An argument that this thread gave."""
        payload = self.b.get(thread, Thread.PAYLOAD, ptr)
        return self.b.get(payload, _SLOT * index, self._params[index])

    def arg_bytes(self, thread: Val, index: int) -> Val:
        """The address of that argument; those after it follow 16 bytes apart."""
        return self.b.at(self.b.get(thread, Thread.PAYLOAD, ptr), _SLOT * index)

    def give(self, thread: Val, value: Val) -> None:
        """This thread's result."""
        payload = self.b.get(thread, Thread.PAYLOAD, ptr)
        self.b.put(payload, _SLOT * len(self._params), value)

    def result_bytes(self, thread: Val) -> Val:
        """Where this thread's result is to be stored, a struct's members one after another."""
        return self.arg_bytes(thread, len(self._params))


Work = Callable[[Emit, Lanes], None]


def collective(
    name: str, ret: Type, params: Sequence[Type], work: Work, *, mask: int | None = None
) -> Shim:
    """An intrinsic of a warp.  mask: the argument that says which lanes; None for all of them."""
    types = tuple(params)

    def body(b: Emit, call: Call) -> Val | None:
        payload = b.alloca(i64, number(2 * len(types) + 8), 16)
        for n, value in enumerate(call.args):
            b.put(payload, _SLOT * n, value)
        wanted = word(-1) if mask is None else call.args[mask]
        present = b.c("emu.present", i32, call.thread, wanted)
        last = b.c("emu.arrive", i32, call.thread, call.site, present, payload)
        with b.if_then(b.icmp("ne", last, word(0))):
            work(b, Lanes(b, call, present, ret, types))
            b.c("emu.release_warp", void, call.thread, present)
        return None if ret is void else b.get(payload, _SLOT * len(types), ret)

    return Shim(name, ret, types, body, waits=True)


def check(
    b: Emit, thread: Val, site: Val, address: Val, size: int, *, space: int, kind: int
) -> None:
    """Check an access of ``size`` bytes, aligned to them.  kind: `Access.READ`, `Access.WRITE`."""
    cells = b.get(context_of(b, thread), Context.CELLS, ptr)
    with b.if_then(b.icmp("ne", cells, NULL)):
        b.c("emu.check", void, thread, address, word(Access.pack(size, size, space, kind)), site)
