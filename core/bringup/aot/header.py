"""The C header of a library."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from bringup.aot.interface import Function, Member
from bringup.aot.weights import ALIGNMENT
from bringup.backend.link import STATUS, Driver
from bringup.errors import BringupError
from bringup.records import record
from bringup.version import VERSION

#: What the elements of each dtype are in C.  Floats that C lacks are passed as their bits.
C_TYPES = {
    "bool": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "f16": "uint16_t",
    "bf16": "uint16_t", "f32": "float", "f64": "double", "f8e4m3fn": "uint8_t",
    "f8e5m2": "uint8_t",
}  # fmt: skip


@record
class Interface:
    """What the headers of a library tell.

    name: of the library.  target: what it was made for.  functions: those of it.
    arena_bytes: the scratch memory of each.  threads: the most workers of a run.
    file_bytes: of the file that functions with weights need; 0 if there is none.
    driver: of the device that functions launch on; None if they read the caller's memory.
    weights_bytes: the memory that the weights take there.
    """

    name: str
    target: str
    functions: tuple[Function, ...]
    arena_bytes: tuple[int, ...]
    threads: int = 1
    file_bytes: int = 0
    driver: Driver | None = None
    weights_bytes: int = 0

    @property
    def weights_file(self) -> str:
        """What the file of weights is called; empty if there is none."""
        return f"{self.name}.safetensors" if self.file_bytes else ""

    @property
    def has_weights(self) -> bool:
        """Whether any function holds arrays."""
        return any(function.held for function in self.functions)

    def takes_weights(self, function: Function) -> bool:
        """Whether the arguments of a function end with weights: a file, or those on a device."""
        return bool(function.held and (self.weights_file or self.driver))


def c_header(library: Interface) -> str:
    """The C header, which C++ may include too.

    Raises BringupError if names of functions or arguments clash.
    """
    upper = library.name.upper()
    statuses = [f"  {upper}_{name} = {n}, /* {why} */" for n, (name, why) in enumerate(STATUS)]
    lines = [
        f"/* {library.name} for {library.target}, made by bringup {VERSION}.",
        "",
        "   Every array is dense and in order of its indices, the last one fastest.",
        *(_NOTE if library.driver is None else _DEVICE_NOTE),
        *([f"   Negative ones are {library.driver.errors}.  */"] if library.driver else []),
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        *([library.driver.include] if library.driver is not None else []),
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f'#define {upper}_TARGET "{library.target}"',
        f"#define {upper}_ARENA_ALIGNMENT {ALIGNMENT}",
        "",
        "enum {",
        *statuses,
        "};",
        "",
    ]
    if library.threads > 1:
        lines += _pool(library)
    if library.driver is not None:
        lines += _device(library, library.driver)
    for function, size in zip(library.functions, library.arena_bytes, strict=True):
        lines += _function(library, function, size)
    lines += ["#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {upper}_H */"]
    text = "\n".join(lines) + "\n"
    _check_names(library, text)
    return text


#: What C names something by: a constant, a struct, a function, or a type of functions.
_DEFINITION = re.compile(r"^#define (\w+)|^} (\w+);|^int (\w+)\(|^typedef void \(\*(\w+)\)", re.M)


def _check_names(library: Interface, header: str) -> None:
    """Raise BringupError for a name that stands for two things."""
    names = Counter("".join(groups) for groups in _DEFINITION.findall(header))
    [(name, times)] = names.most_common(1)
    if times > 1:
        raise BringupError(
            f"{name} would stand in {library.name}.h twice",
            fix="give a function or an argument another name; capitals do not count",
        )


def _pool(library: Interface) -> Iterator[str]:
    """The type of what runs parts of a loop."""
    name = library.name
    yield f"/* Runs parts of a loop on up to {library.threads} workers: each call of `part` has a"
    yield "   range of 0 ... count - 1 that begins at a multiple of grain, and the number of its"
    yield f"   worker, 0 ... {library.threads - 1}.  `run` returns when all is done.  */"
    yield f"typedef void (*{name}_part)(void *context, int64_t begin, int64_t end, int64_t worker);"
    yield "typedef struct {"
    yield f"  void (*run)(void *self, {name}_part part, void *context, int64_t count,"
    yield "      int64_t grain);"
    yield "  void *self;"
    yield f"}} {name}_pool;"
    yield ""


_NOTE = (
    "   Functions allocate nothing and keep nothing: calls with arenas of their own may overlap.",
    "   Results share no memory with arguments.  */",
)
_DEVICE_NOTE = (
    "   Arguments, results, weights and the arena are memory of the device, which the caller",
    "   allocates, and results share none with arguments.  Functions queue work and return, but",
    "   for loops and branches that wait for what decides.  Calls in one queue may share an arena.",
    "   Functions return one of the codes below.",
)


def _device(library: Interface, driver: Driver) -> Iterator[str]:
    """What is loaded once for all functions."""
    name, struct = library.name, f"{library.name}_device"
    yield f"#define {name.upper()}_WEIGHTS_BYTES {library.weights_bytes}"
    yield ""
    yield "/* The code on a device; one thread at a time launches what stands in it.  */"
    yield "typedef struct {"
    yield from (f"  {member};" for member in driver.state)
    yield f"}} {struct};"
    yield ""
    context = "".join(f", {param}" for param in driver.context)
    yield f"int {name}_load({struct} *device{context});"
    yield f"int {name}_unload({struct} *device);"
    yield ""
    if library.has_weights:
        file = "const void *file, " if library.weights_file else ""
        content = library.weights_file or "the weights"
        yield f"/* Copies {content} to {name.upper()}_WEIGHTS_BYTES of memory.  */"
        yield f"int {name}_upload({file}{driver.memory} weights, {driver.queue} queue);"
        yield ""


def _function(library: Interface, function: Function, arena_bytes: int) -> Iterator[str]:
    upper, prefix = function.prefix.upper(), function.prefix
    takes = ", ".join(f"{m.name}: {m.type}" for m in function.arguments)
    gives = ", ".join(f"{m.name}: {m.type}" for m in function.results)
    yield f"/* {function.symbol}({takes}) -> ({gives}) */"
    yield f"#define {upper}_ARENA_BYTES {arena_bytes}"
    for member in (*function.arguments, *function.results):
        yield f"#define {upper}_{member.name.upper()}_SIZE {member.type.size}"
    yield ""
    driver = library.driver
    if driver is None:
        arguments = [(str(m.type), f"const {_declared(m)}") for m in function.arguments]
        weights = (library.weights_file, f"const void *{WEIGHTS};")
        results = [(str(m.type), _declared(m)) for m in function.results]
        pool = f", const {library.name}_pool *pool" if library.threads > 1 else ""
        device, last = "", f"void *arena{pool}"
    else:
        every = (function.arguments, function.results)
        arguments, results = (
            [(str(m.type), f"{driver.memory} {m.name};") for m in each] for each in every
        )
        weights = (f"written by {library.name}_upload", f"{driver.memory} {WEIGHTS};")
        device = f"const {library.name}_device *device, "
        last = f"{driver.memory} arena, {driver.queue} queue"
    arguments += [weights] if library.takes_weights(function) else []
    yield from _struct(f"{prefix}_args", arguments)
    yield from _struct(f"{prefix}_results", results)
    yield f"int {function.symbol}({device}const {prefix}_args *args,"
    yield f"    const {prefix}_results *results, {last});"
    yield ""


#: The member for the weights.
WEIGHTS = "weights"


def _declared(member: Member) -> str:
    return f"{C_TYPES[member.type.dtype.name]} *{member.name};"


def _struct(name: str, members: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "typedef struct {"
    # C has no struct without members.
    for note, text in members or [("nothing", "const void *unused;")]:
        yield f"  {text} /* {note} */"
    yield f"}} {name};"
    yield ""


__all__ = ["C_TYPES", "WEIGHTS", "Interface", "c_header"]
