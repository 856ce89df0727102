"""Libraries for devices that a host launches work on: a C file that calls nothing but the driver.

The file holds the code of all kernels, a table of commands, and a function that walks a part of it:
launches and copies in order.  Loops and branches of a program are those of C, which waits
for the device only where it has to read what decides.  Nothing is allocated: the caller gives the
memory of arguments, results, weights and the arena.

How C calls a driver is a `HostDialect`, a table of a backend's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bringup.aot.c_control import Memory, control_lines, table
from bringup.aot.c_text import byte_array, function_text
from bringup.backend.link import STATUS, Driver, Linked, LinkOptions, LinkUnit, Weights
from bringup.errors import UnsupportedError
from bringup.integers import round_up
from bringup.program.commands import (
    Argument,
    Command,
    Control,
    Copy,
    Launch,
    SimtKernel,
    scratch_bytes_of,
)
from bringup.program.program import Program, Slot
from bringup.records import record
from bringup.version import VERSION

#: What is laid out in the arena, and each array of the weights, begins at multiples of it.
ALIGNMENT = 256
_OK, _NULL_POINTER, _, _WRONG_WEIGHTS, _ = range(len(STATUS))
_TRY = "if ((status = {call}) != 0) return status;"


@record
class HostDialect:
    """How C calls a driver.

    driver: its names in the header.
    null: an address of nothing.  of: the address of the caller's memory ``{memory}``.
    row_alignment: kernels take the address of a row of a stack if its bytes are multiples of it.
    types: the definition of ``bu_address``.
    functions: of C, by name, each after those that it calls; those that are called are written.
    ``bu_at`` gives the address some bytes on, ``bu_check`` what is wrong with memory of the caller,
    ``bu_launch``, ``bu_copy`` and ``bu_write`` queue work, and ``bu_read`` waits for
    what it reads.  ``NAME`` is the library's.
    load, unload: the functions of the library that load its code, and let it go.
    """

    driver: Driver
    null: str
    of: str
    row_alignment: int
    types: str
    functions: Mapping[str, str]
    load: str
    unload: str


def host_library(
    units: Sequence[LinkUnit],
    commands: Sequence[Sequence[Command]],
    code: bytes,
    suffix: str,
    weights: Weights,
    options: LinkOptions,
    dialect: HostDialect,
) -> Linked:
    """The file of a library, and its code once more as a file that can be read.

    commands: of the program of each unit.  code: of all kernels, which a 0 follows in the file.
    suffix: of a file of such code.  Raises UnsupportedError.
    """
    if options.threads > 1:
        raise UnsupportedError(
            f"a pool of {options.threads} threads runs no parts of what a device runs",
            fix="leave threads out",
        )
    file = _File(weights, options, dialect)
    arenas = tuple([file.add(*pair) for pair in zip(units, commands, strict=True)])
    text = file.text(code)
    return Linked(text.encode(), arenas, ".c", {suffix: code}, file.driver(), file.weights_bytes)


class _File:
    """A file while it is written.

    kernels: by name.  commands, places: rows of their tables.
    pieces: where each array of the weights stands on the device, by its offset and its bytes.
    functions: texts of programs and entries.
    """

    def __init__(self, weights: Weights, options: LinkOptions, dialect: HostDialect) -> None:
        self.weights, self.options, self.dialect = weights, options, dialect
        self.kernels: dict[str, tuple[int, SimtKernel]] = {}
        self.commands: list[str] = []
        self.places: list[str] = []
        self.most_places = 1
        self.pieces: dict[tuple[int, int], int] = {}
        self.weights_bytes = 0
        self.functions: list[str] = []

    def driver(self) -> Driver:
        """The names of the header, with the number of kernels."""
        driver, count = self.dialect.driver, str(max(len(self.kernels), 1))
        state = tuple(member.replace("KERNELS", count) for member in driver.state)
        return replace(driver, state=state)

    def text(self, code: bytes) -> str:
        """Everything, in the order in which C wants it."""
        name, dialect = self.options.name, self.dialect
        if self.weights_bytes:
            self.functions.append(self.upload())
        rows = [
            f'{{"{k.name}", {k.blocks}, {k.threads}, {k.shared_bytes}, {int(k.persistent)}}}'
            for _, k in self.kernels.values()
        ]
        rows = rows or ['{"", 0, 0, 0, 0}']
        own = [text.replace("NAME", name) for text in (dialect.unload, dialect.load)]
        last = [*self.tables(), *self.functions, *own]
        run = _RUN.replace("NAME", name).replace("QUEUE", dialect.driver.queue)
        functions = {key: text.replace("NAME", name) for key, text in dialect.functions.items()}
        parts = [
            _HEAD.format(version=VERSION, name=name),
            byte_array("bu_code", code + b"\0"),
            _KERNELS,
            _rows("bu_kernel bu_kernels", rows),
            dialect.types,
            run,
            *_called(functions, "\n".join(last)),
            *last,
        ]
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[str]:
        """The commands, and the function that runs some of them."""
        if self.commands:
            yield _TYPES
            yield _rows("bu_place bu_places", self.places or ["{BU_BUFFER, 0, 0}"])
            yield _rows("bu_command bu_commands", self.commands)
            yield _WALK.replace("MOST", str(self.most_places))

    # -- units -------------------------------------------------------------------------------------

    def add(self, unit: LinkUnit, commands: Sequence[Command]) -> int:
        """Write the function of a unit; the bytes of its arena."""
        name, driver, program = self.options.name, self.dialect.driver, unit.program
        held = self.held(unit)
        captured = len(program.inputs) - unit.arguments
        frame = _Frame(self, unit.constants(held))
        run = frame.program(program, commands)
        base = round_up(program.arena_bytes, ALIGNMENT)
        rows = base + scratch_bytes_of(commands, ALIGNMENT)
        arena_bytes = rows + frame.row_bytes
        of, weights = self.dialect.of, "args->weights" if unit.weights else self.dialect.null
        whole = of.format(memory="arena") if arena_bytes else self.dialect.null
        passed = [of.format(memory=text) for text, _ in unit.passed]
        captures = [f"bu_at(call.weights, {offset})" for offset in held[:captured]]
        table_ = [*passed[: unit.arguments], *captures, *passed[unit.arguments :]]
        body = [
            *self.checks(unit, arena_bytes),
            f"const bu_address whole = {whole};",
            "const bu_call call = {",
            "  device, queue,",
            f"  {of.format(memory=weights) if unit.weights else weights},",
            f"  bu_at(whole, {base}), bu_at(whole, {rows}),",
            "};",
            *table("const bu_address ", "buffers", table_, self.dialect.null),
            f"return {run}(&call, buffers, whole);",
        ]
        params = [f"const {name}_device *device", f"const {unit.prefix}_args *args"]
        params += [f"const {unit.prefix}_results *results", f"{driver.memory} arena"]
        params.append(f"{driver.queue} queue")
        self.functions.append(function_text(f"int {unit.symbol}", params, body))
        return arena_bytes

    def checks(self, unit: LinkUnit, arena_bytes: int) -> Iterator[str]:
        """Statements that return what is wrong with the pointers."""
        structs = unit.structs(weights=bool(unit.weights))
        nulls = " || ".join(f"{name} == NULL" for name in ("device", *structs))
        yield f"if ({nulls}) return {_NULL_POINTER};"
        memory = [text for text, type_ in unit.passed if type_.size]
        memory += ["args->weights"] if unit.weights else []
        memory += ["arena"] if arena_bytes else []
        yield from ["int status;"] if memory else []
        for each in memory:
            yield _TRY.format(call=f"bu_check({each})")

    # -- weights -----------------------------------------------------------------------------------

    def held(self, unit: LinkUnit) -> list[int]:
        """Where on the device the arrays stand that a unit holds."""
        places = []
        for offset, type_ in zip(unit.weights, unit.held, strict=True):
            key = (offset, type_.nbytes)
            if key not in self.pieces:
                self.pieces[key] = self.weights_bytes
                self.weights_bytes += round_up(max(type_.nbytes, 1), ALIGNMENT)
            places.append(self.pieces[key])
        return places

    def upload(self) -> str:
        """The function that copies the weights to the device."""
        driver, prefix = self.dialect.driver, self.weights.prefix
        start = 0 if prefix is None else self.weights.start
        rows = [
            f"{{{start + offset}, {place}, {nbytes}}}"
            for (offset, nbytes), place in self.pieces.items()
            if nbytes
        ]
        lines = ["int status;", _TRY.format(call="bu_check(weights)")]
        params = [f"{driver.memory} weights", f"{driver.queue} queue"]
        base, parts = "bu_weights", []
        if prefix is not None:
            base = "(const unsigned char *)file"
            params.insert(0, "const void *file")
            lines.insert(0, f"if (file == NULL) return {_NULL_POINTER};")
            test = "memcmp(file, bu_weights, sizeof bu_weights)"
            lines.append(f"if ({test} != 0) return {_WRONG_WEIGHTS};")
        if rows or prefix is not None:
            parts.append(byte_array("bu_weights", self.weights.data if prefix is None else prefix))
        if rows:
            address = self.dialect.of.format(memory="weights")
            call = f"bu_write(queue, bu_at({address}, piece->place), {base} + piece->start,"
            lines += [
                f"for (int n = 0; n < {len(rows)}; n++) {{",
                "  const bu_piece *const piece = &bu_pieces[n];",
                f"  status = {call}",
                "      piece->bytes);",
                "  if (status != 0) return status;",
                "}",
            ]
            parts += [_PIECES, _rows("bu_piece bu_pieces", rows)]
        lines.append(f"return {_OK};")
        upload = function_text(f"int {self.options.name}_upload", params, lines)
        return "\n\n".join([*parts, upload])


class _Frame:
    """The functions of a unit's programs.

    constants: where those of each program stand on the device, by its identity.
    row_bytes: the memory of rows that are copied, beyond the scratch memory.
    """

    def __init__(self, file: _File, constants: Mapping[int, Sequence[int]]) -> None:
        self.file, self.dialect, self.constants = file, file.dialect, constants
        self.row_bytes = 0
        self.names: dict[int, str] = {}
        self.memory = Memory(
            address="bu_address ",
            constant="const bu_address ",
            null=self.dialect.null,
            row="bu_at({base}, (uint64_t)({offset}))",
            copy=_TRY.format(call="bu_copy(call, {target}, {source}, {size})"),
            choice=(
                "int32_t choice;",
                _TRY.format(call="bu_read(call, &choice, {address}, sizeof choice)"),
                "switch (choice) {{",
            ),
            flag=(
                "unsigned char flag;",
                _TRY.format(call="bu_read(call, &flag, {address}, sizeof flag)"),
                "if (!flag) break;",
            ),
            row_alignment=self.dialect.row_alignment,
        )

    def program(self, program: Program, commands: Sequence[Command]) -> str:
        """The function that runs a program; its name."""
        own = id(program)
        if own not in self.names:
            lines = list(self.lines(program, commands))
            lines = ["int status;", *lines] if lines else lines
            self.names[own] = f"bu_program_{len(self.file.functions)}"
            params = ["const bu_call *call", "const bu_address *buffers", "bu_address arena"]
            body = [*lines, f"return {_OK};"]
            text = function_text(f"static int {self.names[own]}", params, body)
            self.file.functions.append(text)
        return self.names[own]

    def lines(self, program: Program, commands: Sequence[Command]) -> Iterator[str]:
        """The statements that run commands: some of the table, a loop or branch, some more."""
        waiting: list[str] = []
        for command in commands:
            if not isinstance(command, Control):
                waiting += self.row(program, command)
                continue
            yield from self.walk(waiting)
            waiting = []
            yield from self.control(program, command)
        yield from self.walk(waiting)

    def walk(self, rows: Sequence[str]) -> Iterator[str]:
        """Put commands into the table; the statement that runs them."""
        if rows:
            first = len(self.file.commands)
            self.file.commands += rows
            last = len(self.file.commands)
            yield _TRY.format(call=f"bu_walk(call, {first}, {last}, buffers, arena)")

    def control(self, program: Program, command: Control) -> Iterator[str]:
        """The statements of a loop or branch."""
        pairs = zip(command.step.programs, command.programs, strict=True)
        own = {id(body): inner for body, inner in pairs}

        def call(body: Program, table_: str, arena: str) -> str:
            name = self.program(body, own[id(body)])
            return _TRY.format(call=f"{name}(call, {table_}, {arena})")

        addresses = [self.address(program, slot) for slot in command.step.slots]
        yield from control_lines(command.step, addresses, call, self.memory, self.room)

    def room(self, nbytes: int) -> str:
        """The address of memory for a row that is copied."""
        self.row_bytes += round_up(nbytes, ALIGNMENT)
        return f"bu_at(call->rows, {self.row_bytes - round_up(nbytes, ALIGNMENT)})"

    def address(self, program: Program, slot: Slot) -> str:
        """The address of a slot, as an expression of a program's function."""
        if slot.space == "arena":
            return f"bu_at(arena, {slot.offset})" if slot.offset else "arena"
        if slot.space == "constant":
            return f"bu_at(call->weights, {self.constants[id(program)][slot.index]})"
        first = len(program.inputs) if slot.space == "output" else 0
        return f"buffers[{first + slot.index}]"

    # -- rows of the tables ------------------------------------------------------------------------

    def row(self, program: Program, command: Launch | Copy) -> Iterator[str]:
        """The row of a command, unless it does nothing."""
        if isinstance(command, Launch):
            kernel = command.kernel
            if not kernel.blocks:
                return
            row = (len(self.file.kernels), kernel)
            number, _ = self.file.kernels.setdefault(kernel.name, row)
            kind, arguments = f"BU_LAUNCH, {number}", command.arguments
        elif not command.nbytes:
            return
        else:
            kind, arguments = f"BU_COPY, {command.nbytes}", (command.target, command.source)
        first, count = len(self.file.places), len(arguments)
        self.file.places += [self.place(program, each) for each in arguments]
        self.file.most_places = max(self.file.most_places, count)
        yield f"{{{kind}, {first}, {count}}}"

    def place(self, program: Program, argument: Argument) -> str:
        """Where an argument stands, as a row of the table."""
        if not isinstance(argument, Slot):
            return f"{{BU_SCRATCH, 0, {argument.offset}}}"
        if argument.space == "arena":
            return f"{{BU_ARENA, 0, {argument.offset}}}"
        if argument.space == "constant":
            place = self.constants[id(program)][argument.index]
            return f"{{BU_WEIGHTS, 0, {place + argument.offset}}}"
        first = len(program.inputs) if argument.space == "output" else 0
        return f"{{BU_BUFFER, {first + argument.index}, {argument.offset}}}"


# -- text ------------------------------------------------------------------------------------------


def _rows(declaration: str, rows: Sequence[str]) -> str:
    """A constant table."""
    lines = [f"  {row}," for row in rows]
    return "\n".join([f"static const {declaration}[] = {{", *lines, "};"])


def _called(functions: Mapping[str, str], text: str) -> list[str]:
    """The functions that a text calls, with those that these call."""
    found: list[str] = []
    for name, body in reversed([*functions.items()]):
        if re.search(rf"\b{name}\(", text):
            found.insert(0, body)
            text += body
    return found


_HEAD = """\
/* Made by bringup {version}: kernels as the driver takes them, and the calls that launch them. */
#include "{name}.h"

#include <stddef.h>
#include <string.h>"""
_KERNELS = """\
typedef struct {
  const char *name;
  uint32_t blocks, threads, shared_bytes;
  int persistent; /* as many blocks as the device holds at once are enough */
} bu_kernel;"""
_RUN = """\
/* What all commands of a call have in common.  rows: memory for rows that are copied. */
typedef struct {
  const NAME_device *device;
  QUEUE queue;
  bu_address weights, scratch, rows;
} bu_call;"""
_TYPES = """\
/* The memory of an argument; index: of a buffer. */
enum { BU_BUFFER, BU_ARENA, BU_SCRATCH, BU_WEIGHTS };
typedef struct {
  int space;
  uint32_t index;
  uint64_t offset;
} bu_place;

/* A launch, or a copy of some bytes.  value: the number of the kernel, or those bytes.
   first, count: its arguments. */
enum { BU_LAUNCH, BU_COPY };
typedef struct {
  int kind;
  uint64_t value;
  uint32_t first, count;
} bu_command;"""
_WALK = """\
/* Queue the commands of a part of the table. */
static int bu_walk(
    const bu_call *call,
    int begin,
    int end,
    const bu_address *buffers,
    bu_address arena) {
  for (const bu_command *command = &bu_commands[begin]; command < &bu_commands[end]; command++) {
    bu_address memory[MOST];
    for (uint32_t n = 0; n < command->count; n++) {
      const bu_place *const place = &bu_places[command->first + n];
      switch (place->space) {
        case BU_BUFFER: memory[n] = bu_at(buffers[place->index], place->offset); break;
        case BU_ARENA: memory[n] = bu_at(arena, place->offset); break;
        case BU_SCRATCH: memory[n] = bu_at(call->scratch, place->offset); break;
        default: memory[n] = bu_at(call->weights, place->offset);
      }
    }
    const int status = command->kind == BU_LAUNCH
        ? bu_launch(call, (int)command->value, memory, command->count)
        : bu_copy(call, memory[0], memory[1], command->value);
    if (status != 0) return status;
  }
  return 0;
}"""
_PIECES = """\
/* An array of the weights: where it begins in them, where on the device, and its bytes. */
typedef struct {
  uint64_t start, place, bytes;
} bu_piece;"""

__all__ = ["ALIGNMENT", "HostDialect", "host_library"]
