"""Native libraries made ahead of time: an object file for any processor that LLVM knows.

Each function of a library is a program's entry, as the device runs it, behind a function of C that
checks its pointers and lays out the table of them.  A table of launches is walked by a function of
the library, so nothing is called from outside but what compilers call for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import llvmlite.binding as llvm

from bringup.backend.link import STATUS, Linked, LinkOptions, LinkUnit, Weights
from bringup.errors import CompileError
from bringup.llvm import text as ir
from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.host.machine import LLVM
from bringup.llvm.loops.schedule import LINE_BYTES
from bringup.llvm.math.fused import multiply_add
from bringup.llvm.math.remainder import remainder
from bringup.llvm.text import Module, Val, const
from bringup_cpu.codegen import SharedCode, emit_program
from bringup_cpu.launch_table import TOP, emit_walk
from bringup_cpu.processors import Processor, processors
from bringup_cpu.support import needed_support, support_module

OK, NULL_POINTER, MISALIGNED, WRONG_WEIGHTS, WRONG_PROCESSOR = range(len(STATUS))
_WEIGHTS = "weights"


def link(units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions) -> Linked:
    """An object file with the functions of ``units``.  Raises UnsupportedError, CompileError."""
    levels = processors(target)
    main = levels[0]
    texts, arenas = [], [0] * len(units)
    for n, level in enumerate(levels):
        suffix = f".{n}" if len(levels) > 1 else ""
        text, sizes = _programs(units, level, options, suffix)
        texts.append(_for_processor(text, level, options))
        arenas = [max(pair) for pair in zip(arenas, sizes, strict=True)]
    frame = _Frame(units, weights, levels, options, arenas)
    texts.append(_for_processor(frame.text(), main, options))
    if len(levels) > 1:
        texts.append(_for_processor(_LEVELS[main.architecture], main, options))
    symbols = [unit.symbol for unit in units]
    code = _object(texts, symbols, main)
    if names := needed_support(code):
        support = str(support_module(names, main.triple, main.wide))
        code = _object([*texts, _for_processor(support, main, options)], symbols, main)
    return Linked(code, tuple(arenas))


def _programs(
    units: Sequence[LinkUnit], level: Processor, options: LinkOptions, suffix: str
) -> tuple[str, list[int]]:
    """The entries of all units for a processor, and the bytes of their arenas."""
    code = SharedCode(Module(level.triple), level.architecture)
    code.module.native["rem"] = remainder
    if not level.fuses:
        code.module.native["fma"] = multiply_add
    code.module.selects_halves = level.architecture != "aarch64"
    if "+sve" in level.features:
        code.module.gathered_bytes = 4
    row = replace(level.row, threads=options.threads)
    sizes = []
    for unit in units:
        name = f"{unit.symbol}.program{suffix}"
        size, _ = emit_program(code, name, unit.program, row)
        sizes.append(size)
    emit_walk(code.module, _by_pool if options.threads > 1 else _alone, internal=True)
    return str(code.module), sizes


def _alone(b: Emit, _tables: Val, launch: Sequence[Val]) -> None:
    """Run all units on the calling thread."""
    function, context, units, _ = launch
    b.call_pointer(ir.void, function, (context, number(0), units, number(0)))


def _by_pool(b: Emit, tables: Val, launch: Sequence[Val]) -> None:
    """Have the caller's pool run the units, if there is one."""
    top = b.load(ir.ptr, b.gep(tables, TOP, ir.ptr))
    pool = b.load(ir.ptr, b.gep(top, -1, ir.ptr))
    none = b.is_null(pool)
    with b.if_then(none):
        _alone(b, tables, launch)
    with b.if_then(b.not_(none)):
        run, data = (b.load(ir.ptr, b.gep(pool, n, ir.ptr)) for n in range(2))
        b.call_pointer(ir.void, run, (data, *launch))


class _Frame:
    """The functions of C, the choice of a processor, and the weights."""

    def __init__(
        self,
        units: Sequence[LinkUnit],
        weights: Weights,
        levels: Sequence[Processor],
        options: LinkOptions,
        arenas: Sequence[int],
    ) -> None:
        self.units, self.weights, self.levels, self.options = units, weights, levels, options
        self.arenas = arenas
        self.module = Module(levels[0].triple)
        self.pointer_bits = levels[0].pointer_bits
        self.word = ir.i64 if self.pointer_bits == 64 else ir.i32

    def text(self) -> str:
        data = self.weights
        content = data.data if data.prefix is None else data.prefix
        if any(unit.weights for unit in self.units):
            # Arrays without elements have an address as well.
            content = content or bytes(1)
            type_ = ir.array(ir.i8, len(content))
            self.module.global_variable(
                _WEIGHTS, type_, _quoted(content), align=LINE_BYTES, constant=True
            )
        for unit, arena in zip(self.units, self.arenas, strict=True):
            self.unit(unit, arena)
        return str(self.module)

    def unit(self, unit: LinkUnit, arena_bytes: int) -> None:
        """The function of a unit."""
        names = ["arguments", "results", "arena", *(["pool"] if self.options.threads > 1 else [])]
        params = [(name, ir.ptr) for name in names]
        b, args = define(self.module, unit.symbol, ir.i32, params, internal=False)
        program, passed = unit.program, unit.program.inputs[: unit.arguments]
        places = [(type_.dtype.itemsize, type_.size) for type_ in passed]
        is_external = self.weights.prefix is not None and unit.weights
        inputs = self.pointers(b, args[0], [*places, (LINE_BYTES, 1)] if is_external else places)
        outputs = self.pointers(b, args[1], [(t.dtype.itemsize, t.size) for t in program.outputs])
        if arena_bytes:
            self.check(b, args[2], LINE_BYTES)
        base = Val(f"@{_WEIGHTS}", ir.ptr)
        if is_external:
            base = inputs.pop()
            self.check_weights(b, base)
            base = b.gep(base, self.weights.start, ir.i8)
        held = [b.gep(base, offset, ir.i8) for offset in unit.weights]
        captured = len(program.inputs) - unit.arguments
        # The function that walks the launches finds the pool before the table.
        pool = args[3] if len(args) > 3 else NULL
        table = [pool, *inputs, *held[:captured], *outputs, *held[captured:]]
        memory = b.alloca(ir.array(ir.ptr, len(table)))
        for n, address in enumerate(table):
            b.store(address, b.gep(memory, n, ir.ptr))
        self.run(b, unit, b.gep(memory, 1, ir.ptr), args[2])

    def pointers(self, b: Emit, table: Val, places: Sequence[tuple[int, int]]) -> list[Val]:
        """The addresses in a struct of C, each checked.

        places: the alignment of each, and the number of elements there.
        """
        if not places:
            return []
        self.check(b, table, self.pointer_bits // 8)
        found = []
        for n, (align, size) in enumerate(places):
            address = b.load(ir.ptr, b.gep(table, n, ir.ptr))
            if size:
                self.check(b, address, align)
            found.append(address)
        return found

    def check(self, b: Emit, address: Val, align: int) -> None:
        """Return if an address is null or misaligned."""
        with b.rarely(b.is_null(address)):
            b.ret(const(ir.i32, NULL_POINTER))
        if align > 1:
            low = b.and_(b.ptrtoint(address, self.word), const(self.word, align - 1))
            with b.rarely(b.icmp("ne", low, const(self.word, 0))):
                b.ret(const(ir.i32, MISALIGNED))

    def check_weights(self, b: Emit, file: Val) -> None:
        """Return if a file does not begin as that of the weights does."""
        prefix = self.weights.prefix
        assert prefix is not None
        with b.loop(number(0), number(len(prefix))) as loop:
            wanted = b.load(ir.i8, b.gep(Val(f"@{_WEIGHTS}", ir.ptr), loop.index, ir.i8), 1)
            found = b.load(ir.i8, b.gep(file, loop.index, ir.i8), 1)
            with b.rarely(b.icmp("ne", wanted, found)):
                b.ret(const(ir.i32, WRONG_WEIGHTS))

    def run(self, b: Emit, unit: LinkUnit, table: Val, arena: Val) -> None:
        """Call the program, that of the highest level which the processor has."""
        name, count = f"{unit.symbol}.program", len(self.levels)
        if count == 1:
            b.c(name, ir.void, table, arena)
            b.ret(const(ir.i32, OK))
            return
        level = b.call(self.module.declare(_LEVEL_NAME, ir.i32, []), [])
        blocks = [b.function.block("level") for _ in self.levels]
        none = b.function.block("none")
        b.switch(level, none, list(enumerate(blocks, 2)))
        for n, block in enumerate(blocks):
            b.position(block)
            b.c(f"{name}.{n}", ir.void, table, arena)
            b.ret(const(ir.i32, OK))
        b.position(none)
        b.ret(const(ir.i32, WRONG_PROCESSOR))


def _for_processor(text: str, processor: Processor, options: LinkOptions) -> str:
    """A module whose functions are compiled for a processor, and for little code if asked."""
    words = [f'"target-cpu"="{processor.cpu}"', f'"target-features"="{processor.features}"']
    words += [processor.attributes] if processor.attributes else []
    words += ["optsize", "minsize"] if options.small else []
    return re.sub(r"^(define .*) \{$", rf"\1 {' '.join(words)} {{", text, flags=re.MULTILINE)


def _object(texts: Sequence[str], symbols: Sequence[str], processor: Processor) -> bytes:
    """One object file of several modules, in which the symbols alone are seen from outside."""
    # LLVM's objects must be freed under the lock too, so they are locals of another function.
    with LLVM:
        return _linked(texts, symbols, processor)


def _linked(texts: Sequence[str], symbols: Sequence[str], processor: Processor) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.cpu,
        features=processor.features,
        opt=2,
        reloc="pic" if processor.relocatable else "static",
        codemodel="default",
    )
    with closing(llvm.create_context()) as context:
        try:
            first, *others = [llvm.parse_assembly(text, context) for text in texts]
            for other in others:
                first.link_in(other)
            with closing(first):
                first.verify()
                for function in first.functions:
                    if not function.is_declaration and function.name not in symbols:
                        function.linkage = "internal"
                for variable in first.global_variables:
                    if not variable.is_declaration:
                        variable.linkage = "internal"
                return bytes(machine.emit_object(first))
        except RuntimeError as error:  # pragma: no cover - only wrong emitters
            raise CompileError(
                "LLVM refused a module", log=str(error), source="\n".join(texts)
            ) from None


def _quoted(data: bytes) -> str:
    """Bytes as LLVM writes them."""
    return 'c"' + "".join(map(_BYTES.__getitem__, data)) + '"'


_BYTES = [f"\\{byte:02X}" for byte in range(256)]
_LEVEL_NAME = "processor.level"
#: The level of a processor of AArch64 with SVE: 2, or 3 where vectors have 256 bits or more.
_AARCH64_LEVEL = """
target triple = "aarch64-linux-gnu"

declare i32 @llvm.vscale.i32()

define i32 @processor.level() nounwind noinline {
  %vscale = call i32 @llvm.vscale.i32()
  %wide = icmp uge i32 %vscale, 2
  %level = select i1 %wide, i32 3, i32 2
  ret i32 %level
}
"""
#: The level of x86-64 that this processor and its system have, 1 to 4.  It is asked once; threads
#: that ask beside each other find the same.  By the rows of "System V ABI, x86-64 psABI", 3.1.1.
_X86_LEVEL = """
target triple = "x86_64-linux-gnu"

@processor.known = internal global i32 0, align 4

define i32 @processor.level() nounwind noinline {
entry:
  %known = load atomic i32, ptr @processor.known monotonic, align 4
  %found = icmp ne i32 %known, 0
  br i1 %found, label %last, label %ask
ask:
  %one = call {i32, i32, i32, i32} @processor.cpuid(i32 1)
  %first = extractvalue {i32, i32, i32, i32} %one, 2
  %v2 = call i1 @processor.has(i32 %first, i32 9970177)
  %seven = call {i32, i32, i32, i32} @processor.cpuid(i32 7)
  %wide = extractvalue {i32, i32, i32, i32} %seven, 1
  %more = call {i32, i32, i32, i32} @processor.cpuid(i32 -2147483647)
  %lzcnt = extractvalue {i32, i32, i32, i32} %more, 2
  %a = call i1 @processor.has(i32 %first, i32 943722496)
  %b = call i1 @processor.has(i32 %wide, i32 296)
  %c = call i1 @processor.has(i32 %lzcnt, i32 32)
  %ab = and i1 %a, %b
  %abc = and i1 %ab, %c
  %fit = and i1 %abc, %v2
  br i1 %fit, label %system, label %done
system:
  %state = call i32 asm "xgetbv", "={ax},{cx},~{dx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %v3 = call i1 @processor.has(i32 %state, i32 6)
  %d = call i1 @processor.has(i32 %wide, i32 -805109760)
  %e = call i1 @processor.has(i32 %state, i32 230)
  %v4 = and i1 %d, %e
  br label %done
done:
  %is3 = phi i1 [false, %ask], [%v3, %system]
  %is4 = phi i1 [false, %ask], [%v4, %system]
  %low = select i1 %v2, i32 2, i32 1
  %mid = select i1 %is3, i32 3, i32 %low
  %level = select i1 %is4, i32 4, i32 %mid
  store atomic i32 %level, ptr @processor.known monotonic, align 4
  ret i32 %level
last:
  ret i32 %known
}

define internal i1 @processor.has(i32 %bits, i32 %mask) nounwind {
  %both = and i32 %bits, %mask
  %all = icmp eq i32 %both, %mask
  ret i1 %all
}

define internal {i32, i32, i32, i32} @processor.cpuid(i32 %leaf) nounwind {
  %found = call {i32, i32, i32, i32} asm "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 0)
  ret {i32, i32, i32, i32} %found
}
"""
_LEVELS = {"x86_64": _X86_LEVEL, "aarch64": _AARCH64_LEVEL}
