"""C source of programs: one file that any compiler of C11 takes, whatever the processor.

Kernels and library ops are functions of the loop level, rendered as C; the functions of a library
share those that are equal.  A program is a function that calls them one after the other, and a loop
or a branch of it is one of C.  Nothing is allocated, and nothing is static but constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bringup.aot.c_control import control_lines, table
from bringup.aot.c_text import Functions, constant_array, function_text
from bringup.backend.adapters import SimpleBackend, scheduled_loops
from bringup.backend.capabilities import CONTROL_CLAIMS, Capabilities, LibraryClaims
from bringup.backend.device import Device, NoHardware
from bringup.backend.link import STATUS, Linked, LinkOptions, LinkUnit, Weights
from bringup.c import C11, c_claims, render_c, scratch_bytes, symbol, units
from bringup.c.dialect import WIDE
from bringup.dtypes import BY_NAME, bool_
from bringup.errors import UnsupportedError
from bringup.integers import round_up
from bringup.llvm.loops.kernel import scheduled_kernel
from bringup.loops.form import Func
from bringup.loops.schedule import Scheduled
from bringup.loops.sequence import instructions
from bringup.program.loops import numbered_loops
from bringup.program.program import BranchStep, KernelStep, LoopStep, Program, Slot
from bringup.target import Target
from bringup.types import TensorType
from bringup.version import VERSION

#: The name of the target.
TARGET = "c11"
#: Static functions without extensions of compilers, which take scratch memory if they need any.
DIALECT = replace(
    C11,
    head=(
        *C11.head,
        "#ifdef __FAST_MATH__",
        '#error "NaN and infinity need arithmetic as the standard has it"',
        "#endif",
        # gcc warns of ``x < 0`` of unsigned integers, and its -O3 unrolls short loops before it
        # makes vectors of them.
        "#if defined(__GNUC__) && !defined(__clang__)",
        '#pragma GCC diagnostic ignored "-Wtype-limits"',
        '#define BU_LANES _Pragma("GCC unroll 1")',
        "#else",
        "#define BU_LANES",
        "#endif",
    ),
    lanes="BU_LANES",
    kernel="static void {name}({params})",
    params=("void *const *buffers", "int64_t begin", "int64_t end"),
    scratch="unsigned char *scratch",
    vector_bytes=0,
    index="i32",
)
#: What schedules are chosen for: compilers make vectors of loops of 8 floats, of 256 bits or less.
ROW = Target(vector_bits=256, registers=16)
#: What is laid out in the arena begins at multiples of it.
ALIGNMENT = 64
#: A launch of so many statements is shared by a pool, in parts of so many.
_PARALLEL_WORK = 1 << 17
_GRAIN_WORK = 1 << 15
_, _NULL_POINTER, _MISALIGNED, _WRONG_WEIGHTS, _ = range(len(STATUS))


def capabilities() -> Capabilities:
    """What C holds: kernels, the ops of the op library, loops and branches."""
    kernels = c_claims(DIALECT)
    return Capabilities(
        kernels=kernels, ops={**LibraryClaims(kernels), **CONTROL_CLAIMS}, alignment=ALIGNMENT
    )


def _no_device(_index: int) -> Device:
    raise NoHardware("C source is compiled and run elsewhere")


class CSource(SimpleBackend):
    """What makes C source of programs.  It has no devices."""

    def __init__(self) -> None:
        render = partial(render_c, dialect=DIALECT)
        super().__init__(TARGET, _no_device, capabilities, (), render=render, target=ROW)

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled:
        """As the native code of a CPU has its loops."""
        scheduled = scheduled_kernel(step.kernel, ROW, step.schedule)
        return scheduled_loops(step) if scheduled is None else scheduled

    def link_targets(self) -> Sequence[str]:
        """C11."""
        return (TARGET,)

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """The file.  Raises UnsupportedError."""
        if target != TARGET:
            raise UnsupportedError(f"there is no C called {target!r}", fix=f"use {TARGET}")
        file = _File(weights, options, scheduled_loops if options.small else self.scheduled)
        arenas = tuple([file.add(unit) for unit in units])
        return Linked(file.text().encode(), arenas, ".c")


class _File:
    """A file while it is written.

    scheduled: gives the loops of a kernel.
    loops: the functions that are rendered.  parts: what a pool runs, by their names.
    arrays: definitions of weights, by name.  functions: texts of programs and entries.
    """

    def __init__(
        self,
        weights: Weights,
        options: LinkOptions,
        scheduled: Callable[[KernelStep], Scheduled],
    ) -> None:
        self.weights, self.options, self.scheduled = weights, options, scheduled
        self.has_pool = options.threads > 1
        self.target = replace(ROW, threads=options.threads)
        self.loops = Functions(DIALECT)
        self.parts: dict[str, str] = {}
        self.arrays: dict[str, str] = {}
        self.functions: list[str] = []
        #: Parameters of the functions of programs.
        self.params = ["void *const *buffers", "unsigned char *arena", "unsigned char *scratch"]
        self.params += ["const unsigned char *file"] if weights.prefix is not None else []
        self.params += [f"const {options.name}_pool *pool"] if self.has_pool else []

    def text(self) -> str:
        """Everything, in the order in which C wants it."""
        name, prefix = self.options.name, self.weights.prefix
        parts = [_HEAD.format(version=VERSION, name=name)]
        parts.append(self.loops.text().rstrip("\n"))
        parts.append(_CHECK)
        if prefix is not None:
            parts += [_LITTLE_ENDIAN, constant_array("unsigned char", _PREFIX, map(str, prefix))]
        if self.parts:
            parts += [_POOL.replace("NAME", name), *self.parts.values()]
        return "\n\n".join([*parts, *self.arrays.values(), *self.functions]) + "\n"

    def add(self, unit: LinkUnit) -> int:
        """Write the function of a unit; the bytes of its arena."""
        program = unit.program
        held = list(self.held(unit))
        captured = len(program.inputs) - unit.arguments
        frame = _Frame(self, unit.constants(held))
        passed = [text for text, _ in unit.passed]
        inputs = [f"(void *){text}" for text in passed[: unit.arguments]]
        outputs = passed[unit.arguments :]
        base = round_up(program.arena_bytes, ALIGNMENT)
        call = frame.call(program, "buffers", "arena", _at("scratch", base))
        arena_bytes = base + frame.scratch_bytes
        body = [
            *self.checks(unit, arena_bytes),
            "unsigned char *const scratch = arena;",
            *table("void *const ", "buffers", [*inputs, *held[:captured], *outputs]),
            call,
            "return 0;",
        ]
        params = [f"const {unit.prefix}_args *args", f"const {unit.prefix}_results *results"]
        params += ["void *arena", *(self.params[-1:] if self.has_pool else [])]
        self.functions.append(function_text(f"int {unit.symbol}", params, body))
        return arena_bytes

    def checks(self, unit: LinkUnit, arena_bytes: int) -> Iterator[str]:
        """Statements that return what is wrong with the pointers."""
        has_file = bool(self.weights.prefix is not None and unit.weights)
        structs = unit.structs(weights=has_file)
        checks = [(struct, f"_Alignof({unit.prefix}_{struct})") for struct in structs]
        checks += [(text, str(type_.dtype.itemsize)) for text, type_ in unit.passed if type_.size]
        checks += [("args->weights", str(ALIGNMENT))] if has_file else []
        checks += [("arena", str(ALIGNMENT))] if arena_bytes else []
        yield "int status;"
        for address, align in checks:
            yield f"if ((status = bu_check({address}, {align})) != 0) return status;"
        if has_file:
            yield "const unsigned char *const file = args->weights;"
            yield f"if (memcmp(file, {_PREFIX}, sizeof {_PREFIX}) != 0) return {_WRONG_WEIGHTS};"
        elif self.weights.prefix is not None:
            yield "const unsigned char *const file = NULL;"

    # -- weights -----------------------------------------------------------------------------------

    def held(self, unit: LinkUnit) -> Iterator[str]:
        """The addresses of the arrays that a unit holds."""
        weights = self.weights
        for offset, type_ in zip(unit.weights, unit.held, strict=True):
            if not type_.size:
                yield "NULL"
            elif weights.prefix is not None:
                yield f"(void *)(file + {weights.start + offset})"
            else:
                name = f"bu_{type_.dtype.name}_weights_{offset}"
                if name not in self.arrays:
                    data = weights.data[offset : offset + type_.nbytes]
                    element = "uint8_t" if type_.dtype is bool_ else DIALECT.types[type_.dtype.name]
                    self.arrays[name] = constant_array(element, name, _elements(data, type_))
                yield f"(void *){name}"

    # -- kernels -----------------------------------------------------------------------------------

    def launch(self, func: Func, addresses: Sequence[str], scratch: int) -> Iterator[str]:
        """Statements that run a function.  scratch: where its own begins in that of the call."""
        func = self.loops.add(func)
        name, size, count = symbol(func, DIALECT), scratch_bytes(func, DIALECT), units(func)
        own = f"scratch + {scratch}" if scratch else "scratch"
        work = int(instructions(func.body, 1))
        yield "{"
        yield from (f"  {line}" for line in table("void *const ", "v", addresses))
        if self.has_pool and count > 1 and work >= _PARALLEL_WORK:
            part, grain = f"bu_part_{name}", max(1, _GRAIN_WORK * count // work)
            self.parts[part] = _part(part, name, size)
            yield f"  const bu_launch launch = {{v, {own if size else 'NULL'}}};"
            yield f"  bu_run(pool, {part}, &launch, {count}, {grain});"
        else:
            yield f"  {name}({f'{own}, ' if size else ''}v, 0, {count});"
        yield "}"


class _Frame:
    """The functions of a unit's programs.

    constants: the addresses of those of each program, by its identity.
    scratch_bytes: what they need beyond the arenas.
    """

    def __init__(self, file: _File, constants: Mapping[int, Sequence[str]]) -> None:
        self.file, self.constants = file, constants
        self.scratch_bytes = 0
        self.names: dict[int, str] = {}

    def call(self, program: Program, buffers: str, arena: str, scratch: str = "scratch") -> str:
        """The statement that runs a program, whose function is written when it is first called."""
        own = id(program)
        if own not in self.names:
            lines = [line for n in range(len(program.steps)) for line in self.step(program, n)]
            self.names[own] = name = f"bu_program_{len(self.file.functions)}"
            self.file.functions.append(
                function_text(f"static void {name}", self.file.params, lines)
            )
        others = [param.rpartition("*")[2] for param in self.file.params[3:]]
        return f"{self.names[own]}({', '.join([buffers, arena, scratch, *others])});"

    def step(self, program: Program, number: int) -> Iterator[str]:
        """The statements of a step."""
        step = program.steps[number]
        addresses = [self.address(program, slot) for slot in step.slots]
        if isinstance(step, LoopStep | BranchStep):
            yield from control_lines(step, addresses, self.call)
            return
        if isinstance(step, KernelStep):
            yield from self.launch(self.file.scheduled(step).after, addresses, 0)
            return
        loops = numbered_loops(program, number, self.file.target)
        if loops is None:
            raise UnsupportedError(f"C has no function for {step.name}", location=step.location)
        size = 0
        for buffer in loops.temporaries:
            addresses.append(_at("scratch", size))
            size = round_up(size + buffer.size * buffer.dtype.itemsize, ALIGNMENT)
        for func, numbers in zip(loops.funcs, loops.numbers, strict=True):
            yield from self.launch(func, [addresses[n] for n in numbers], size)

    def launch(self, func: Func, addresses: Sequence[str], used: int) -> Iterator[str]:
        """The statements that run a function.  used: bytes of scratch before its own."""
        size = used + scratch_bytes(func, DIALECT) * self.file.options.threads
        self.scratch_bytes = max(self.scratch_bytes, round_up(size, ALIGNMENT))
        if units(func):
            yield from self.file.launch(func, addresses, used)

    def address(self, program: Program, slot: Slot) -> str:
        """The address of a slot, as an expression of a program's function."""
        if slot.space == "arena":
            return _at("arena", slot.offset)
        if slot.space == "constant":
            return self.constants[id(program)][slot.index]
        first = len(program.inputs) if slot.space == "output" else 0
        return f"buffers[{first + slot.index}]"


# -- text ------------------------------------------------------------------------------------------


def _at(pointer: str, offset: int) -> str:
    return f"{pointer} + {offset}" if offset else pointer


def _elements(data: bytes, type_: TensorType) -> Iterator[str]:
    """Constants of C, of floats to the last bit but for the payload of NaN."""
    name = type_.dtype.name
    if name not in WIDE:
        stored = BY_NAME[f"u{type_.dtype.bits}"] if type_.dtype.is_float else type_.dtype
        suffix = C11.suffixes.get(stored.name, "")
        for value in np.frombuffer(data, stored.numpy).tolist():
            least = stored.kind == "int" and value == -(1 << (stored.bits - 1))
            yield f"({value + 1}{suffix} - 1)" if least else f"{int(value)}{suffix}"
        return
    form = "%.8ef" if name == "f32" else "%.16e"
    for value in np.frombuffer(data, type_.dtype.numpy).tolist():
        if value - value == 0:
            yield form % value
        else:
            sign = "-" if math.copysign(1, value) < 0 else ""
            yield f"{sign}NAN" if math.isnan(value) else f"{sign}INFINITY"


_PREFIX = "bu_prefix"
_LITTLE_ENDIAN = """\
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file of weights is little-endian"
#endif"""
_HEAD = """\
/* Made by bringup {version}.  Arithmetic is that of the standard: compile with -std=c11, or with
   -ffp-contract=off, and without -ffast-math.  Needs memcpy and functions of <math.h>. */
#include "{name}.h"
"""
_CHECK = f"""\
/* What is wrong with an address. */
static int bu_check(const void *address, uintptr_t align) {{
  if (address == NULL) return {_NULL_POINTER};
  return (uintptr_t)address % align == 0 ? 0 : {_MISALIGNED};
}}"""
_POOL = """\
typedef struct {
  void *const *buffers;
  unsigned char *scratch;
} bu_launch;

/* Run all units of a launch, by the pool if there is one. */
static void bu_run(
    const NAME_pool *pool,
    NAME_part part,
    const bu_launch *launch,
    int64_t count,
    int64_t grain
) {
  if (pool == NULL) part((void *)launch, 0, count, 0);
  else pool->run(pool->self, part, (void *)launch, count, grain);
}"""


def _part(part: str, name: str, scratch: int) -> str:
    """What runs a part of the units of a function on a worker of a pool."""
    ignored = "" if scratch else "  (void)worker;\n"
    own = f"launch->scratch + worker * {scratch}, " if scratch else ""
    return (
        f"static void {part}(void *context, int64_t begin, int64_t end, int64_t worker) {{\n"
        f"  const bu_launch *launch = context;\n{ignored}"
        f"  {name}({own}launch->buffers, begin, end);\n}}"
    )


__all__ = ["TARGET", "CSource"]
