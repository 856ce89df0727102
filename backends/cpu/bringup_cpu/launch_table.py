"""Launches as data: a program's kernels are listed in a table that one runtime function walks.

A call for each launch would be compiled with every program, at 0.7 ms per call.  A table costs LLVM
nothing, and walking it takes about as long as the calls.

A launch is ``{ptr function, i64 units, i64 grain, i64 count}``; with a grain of 0 all units run on
the calling thread.  Another table has its ``count`` pointers as three numbers each, launch after
launch: ``offset`` bytes past pointer ``index`` of table ``table`` of the function that runs the
program.  These tables are `OWN`, with the addresses of its arena and its scratch memory, `BUFFERS`
of the program, and `TOP`, the buffers of the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Builder, Callee, Module, Val, const
from bringup.records import record

OWN, BUFFERS, TOP = range(3)
ARENA, SCRATCH = range(2)
#: The function that walks a table; see `emit_walk`.
WALK = "bringup_launch"
#: The level of LLVM's code generator for that function, which runs before every kernel.
WALK_LEVEL = 2

_LAUNCH = ir.struct_type(ir.ptr, ir.i64, ir.i64, ir.i64)
_WORD = 8


@record
class MemoryRef:
    """The start of some memory: ``offset`` bytes past pointer ``index`` of a table."""

    table: int
    index: int
    offset: int = 0


class LaunchTable:
    """The consecutive launches of a function, up to the next step of another kind.

    name: of the function; the names of the constants begin with it.
    """

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name
        self._launches: list[str] = []
        self._refs: list[int] = []
        self._most = 1
        self._emitted = 0

    def add(self, kernel: Callee, refs: Sequence[MemoryRef], units: int, grain: int) -> None:
        """One more; ``refs`` are what its context points to."""
        numbers = ", ".join(f"i64 {n}" for n in (units, grain, len(refs)))
        self._launches.append(f"{_LAUNCH} {{ptr {kernel.symbol}, {numbers}}}")
        for ref in refs:
            self._refs += (ref.offset, ref.table, ref.index)
        self._most = max(self._most, len(refs))

    def emit(self, b: Builder, tables: Val) -> None:
        """Emit all launches, and start a new table.  tables: address of those that refs name."""
        if not self._launches:
            return
        name, count = f"{self.name}.launches{self._emitted}", len(self._launches)
        launches = self.module.global_variable(
            name,
            ir.array(_LAUNCH, count),
            f"[{', '.join(self._launches)}]",
            align=_WORD,
            constant=True,
        )
        refs = self.module.global_constant(f"{name}.places", ir.i64, self._refs, align=_WORD)
        context = b.alloca(ir.array(ir.ptr, self._most), align=_WORD)
        walk = self.module.declare(WALK, ir.void, [ir.ptr, ir.i64, ir.ptr, ir.ptr, ir.ptr])
        b.call(walk, [launches, const(ir.i64, count), refs, tables, context])
        self._launches, self._refs, self._most = [], [], 1
        self._emitted += 1


Parallel = Callable[[Emit, Val, Sequence[Val]], None]


def emit_walk(module: Module, parallel: Parallel, *, internal: bool = False) -> None:
    """Emit ``void bringup_launch(ptr launches, i64 count, ptr refs, ptr tables, ptr context)``.

    context: memory for the pointers of one launch.
    parallel: emits the call that shares a launch among threads, from the builder, the tables, and
    the function, its context, its units and the grain.
    """
    params = [("launches", ir.ptr), ("count", ir.i64)]
    params += [(name, ir.ptr) for name in ("places", "tables", "context")]
    b, (launches, count, refs, tables, context) = define(
        module, WALK, ir.void, params, internal=internal
    )
    with b.loop(number(0), count, carried=[refs]) as loop:
        launch = b.gep(launches, b.mul(loop.index, number(4)), ir.i64)
        function = b.get(launch, 0, ir.ptr)
        units, grain, given = (b.get(launch, n * _WORD) for n in (1, 2, 3))
        with b.loop(number(0), given) as inner:
            ref = b.gep(loop.carried[0], b.mul(inner.index, number(3)), ir.i64)
            offset, table, index = (b.get(ref, n * _WORD) for n in range(3))
            pointers = b.load(ir.ptr, b.gep(tables, table, ir.ptr))
            start = b.load(ir.ptr, b.gep(pointers, index, ir.ptr))
            b.store(b.at(start, offset), b.gep(context, inner.index, ir.ptr), _WORD)
        alone = b.icmp("eq", grain, number(0))
        with b.if_then(alone):
            b.call_pointer(ir.void, function, (context, number(0), units, number(0)))
        with b.if_then(b.not_(alone)):
            parallel(b, tables, (function, context, units, grain))
        loop.next(b.gep(loop.carried[0], b.mul(given, number(3)), ir.i64))
    b.ret()
