"""The headers of a library: C, and a few lines for C++ and Rust above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.aot.interface import Function, Member
from bringup.aot.weights import ALIGNMENT
from bringup.backend.link import STATUS, Driver
from bringup.records import record
from bringup.version import VERSION

#: What the elements of each dtype are in C.  Floats that C lacks are passed as their bits.
C_TYPES = {
    "bool": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "f16": "uint16_t",
    "bf16": "uint16_t", "f32": "float", "f64": "double", "f8e4m3fn": "uint8_t",
    "f8e5m2": "uint8_t",
}  # fmt: skip
_RUST = {"float": "f32", "double": "f64"}


@record
class Interface:
    """What the headers of a library tell.

    name: of the library.  target: what it was made for.  functions: those of it.
    arena_bytes: the scratch memory of each.  threads: the most workers of a run.
    weights_file: the file that functions with weights need; empty if there is none.
    driver: of the device that functions launch on; None if they read the caller's memory.
    weights_bytes: the memory that the weights take there.
    """

    name: str
    target: str
    functions: tuple[Function, ...]
    arena_bytes: tuple[int, ...]
    threads: int = 1
    weights_file: str = ""
    driver: Driver | None = None
    weights_bytes: int = 0

    def needs_file(self, function: Function) -> bool:
        """Whether a function takes the address of the file of weights."""
        return bool(self.weights_file and function.held)


def c_header(library: Interface) -> str:
    """The C header, which C++ may include too."""
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
    return "\n".join(lines) + "\n"


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
    weights = any(function.held for function in library.functions)
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
    if weights:
        file = "const void *file, " if library.weights_file else ""
        content = library.weights_file or "the weights"
        yield f"/* Copies {content} to {name.upper()}_WEIGHTS_BYTES of memory.  */"
        yield f"int {name}_upload({file}{driver.memory} weights, {driver.queue});"
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
        if library.needs_file(function):
            arguments.append((library.weights_file, f"const void *{_WEIGHTS};"))
        results = [(str(m.type), _declared(m)) for m in function.results]
        pool = f", const {library.name}_pool *pool" if library.threads > 1 else ""
        device, last = "", f"void *arena{pool}"
    else:
        every = (function.arguments, function.results)
        arguments, results = (
            [(str(m.type), f"{driver.memory} {m.name};") for m in each] for each in every
        )
        if function.held:
            written = f"written by {library.name}_upload"
            arguments.append((written, f"{driver.memory} {_WEIGHTS};"))
        device, last = f"const {library.name}_device *device, ", f"{driver.memory} arena, "
        last += driver.queue
    yield from _struct(f"{prefix}_args", arguments)
    yield from _struct(f"{prefix}_results", results)
    yield f"int {function.symbol}({device}const {prefix}_args *args,"
    yield f"    const {prefix}_results *results, {last});"
    yield ""


#: The member that points to the file of weights.
_WEIGHTS = "weights"


def _declared(member: Member) -> str:
    return f"{C_TYPES[member.type.dtype.name]} *{member.name};"


def _struct(name: str, members: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "typedef struct {"
    # C has no struct without members.
    for note, text in members or [("nothing", "const void *unused;")]:
        yield f"  {text} /* {note} */"
    yield f"}} {name};"
    yield ""


def cpp_header(library: Interface) -> str:
    """References to arrays of the right length, and an arena on the stack, for C++."""
    lines = [f"// {library.name} for C++: the sizes of arrays are checked when it is compiled."]
    lines += [
        "#pragma once",
        "",
        f'#include "{library.name}.h"',
        "",
        f"namespace {library.name} {{",
    ]
    for function in library.functions:
        lines += ["", *_cpp_function(library, function)]
    return "\n".join([*lines, "", f"}}  // namespace {library.name}"]) + "\n"


def _cpp_function(library: Interface, function: Function) -> Iterator[str]:
    name = function.symbol.removeprefix(f"{library.name}_")
    parameters = [f"const {_reference(m)}" for m in function.arguments]
    parameters += [f"const void *{_WEIGHTS}"] if library.needs_file(function) else []
    parameters += [_reference(m) for m in function.results]
    given = [m.name for m in function.arguments]
    given += [_WEIGHTS] if library.needs_file(function) else []
    args, results = ", ".join(given), ", ".join(m.name for m in function.results)
    pool = ", nullptr" if library.threads > 1 else ""
    upper = function.prefix.upper()
    yield f"inline int {name}({', '.join(parameters)}) {{"
    yield f"  alignas({ALIGNMENT}) unsigned char arena[{upper}_ARENA_BYTES + 1];"
    yield f"  const {function.prefix}_args args = {{{args or 'nullptr'}}};"
    yield f"  const {function.prefix}_results results = {{{results or 'nullptr'}}};"
    yield f"  return {function.symbol}(&args, &results, arena{pool});"
    yield "}"


def _reference(member: Member) -> str:
    return f"{C_TYPES[member.type.dtype.name]} (&{member.name})[{max(member.type.size, 1)}]"


def rust_module(library: Interface) -> str:
    """The functions for Rust 1.82 and later, editions 2018 to 2024."""
    lines = [f"//! {library.name} for {library.target}, made by bringup {VERSION}."]
    lines += ["", "use core::ffi::c_void;"]
    for function, size in zip(library.functions, library.arena_bytes, strict=True):
        lines += ["", *_rust_function(library, function, size)]
    return "\n".join(lines) + "\n"


def _rust_function(library: Interface, function: Function, arena_bytes: int) -> Iterator[str]:
    name = function.symbol.removeprefix(f"{library.name}_")
    symbol, has_file = function.symbol, library.needs_file(function)
    takes = [f"{m.name}: &{_slice(m)}" for m in function.arguments]
    takes += [f"{_WEIGHTS}: &[u8]"] if has_file else []
    takes += [f"{m.name}: &mut {_slice(m)}" for m in function.results]
    arguments = [f"{m.name}.as_ptr().cast()" for m in function.arguments]
    arguments += [f"{_WEIGHTS}.as_ptr().cast()"] if has_file else []
    results = [f"{m.name}.as_mut_ptr().cast()" for m in function.results]
    pool = ", pool: *const c_void" if library.threads > 1 else ""
    yield f"#[repr(C, align({ALIGNMENT}))]"
    yield f"struct {_camel(name)}Arena([core::mem::MaybeUninit<u8>; {max(arena_bytes, 1)}]);"
    yield ""
    yield 'unsafe extern "C" {'
    yield f"    fn {symbol}(args: *const *const c_void, results: *const *mut c_void,"
    yield f"        arena: *mut c_void{pool}) -> i32;"
    yield "}"
    yield ""
    yield f"/// {', '.join(f'{m.name}: {m.type}' for m in function.arguments)}"
    if has_file:
        yield f"/// {_WEIGHTS}: the file, at a multiple of {ALIGNMENT} bytes, as where it is mapped"
    yield f"pub fn {name}({', '.join(takes)}) -> Result<(), i32> {{"
    yield f"    let args: [*const c_void; {len(arguments)}] = [{', '.join(arguments)}];"
    yield f"    let results: [*mut c_void; {len(results)}] = [{', '.join(results)}];"
    yield f"    let mut arena = core::mem::MaybeUninit::<{_camel(name)}Arena>::uninit();"
    null = ", core::ptr::null()" if library.threads > 1 else ""
    call = f"{symbol}(args.as_ptr(), results.as_ptr(), arena.as_mut_ptr().cast(){null})"
    yield f"    match unsafe {{ {call} }} {{ 0 => Ok(()), code => Err(code) }}"
    yield "}"


def _slice(member: Member) -> str:
    type_ = C_TYPES[member.type.dtype.name]
    rust = _RUST.get(type_, type_.removesuffix("_t").replace("uint", "u").replace("int", "i"))
    return f"[{rust}; {member.type.size}]"


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


#: What JavaScript calls an array of each type of C.
_JS = {
    "uint8_t": "Uint8Array", "int8_t": "Int8Array", "int16_t": "Int16Array",
    "int32_t": "Int32Array", "int64_t": "BigInt64Array", "uint16_t": "Uint16Array",
    "uint32_t": "Uint32Array", "uint64_t": "BigUint64Array", "float": "Float32Array",
    "double": "Float64Array",
}  # fmt: skip
_LOADER = """\
class Room {
  constructor(memory, base) {
    this.memory = memory;
    this.end = base;
  }
  take(bytes) {
    const start = Math.ceil(this.end / ALIGNMENT) * ALIGNMENT;
    this.end = start + bytes;
    const missing = this.end - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
    return start;
  }
}

/** Places for arrays, and the struct of C that points to them. */
function struct(room, members) {
  const places = members.map(([, type, size]) => room.take(type.BYTES_PER_ELEMENT * size));
  const address = room.take(4 * places.length);
  new Uint32Array(room.memory.buffer, address, places.length).set(places);
  return { members, places, address };
}

function callable(exports, room, symbol, args, results, arenaBytes) {
  const given = struct(room, args), made = struct(room, results), arena = room.take(arenaBytes);
  return (values) => {
    given.members.forEach(([name, type, size], n) => {
      const view = new type(room.memory.buffer, given.places[n], size);
      if (values[name]?.length !== size) throw new RangeError(`${name} has ${size} elements`);
      view.set(values[name]);
    });
    const status = exports[symbol](given.address, made.address, arena);
    if (status !== 0) throw new Error(`${symbol} returned ${status}`);
    const found = made.members.map(([name, type, size], n) =>
      [name, new type(room.memory.buffer, made.places[n], size).slice()]);
    return Object.fromEntries(found);
  };
}
"""


def js_module(library: Interface) -> str:
    """The functions for JavaScript, which loads the linked module: arrays in, arrays out."""
    lines = [f"// {library.name} for {library.target}, made by bringup {VERSION}.", ""]
    lines += [f"const ALIGNMENT = {ALIGNMENT};", "", _LOADER]
    lines += ["/** The functions of a module, from its bytes. */"]
    lines += ["export async function load(bytes) {"]
    lines += ["  const { instance } = await WebAssembly.instantiate(bytes, {});"]
    lines += ["  const { exports } = instance;"]
    lines += ["  const room = new Room(exports.memory, exports.__heap_base.value);", "  return {"]
    for function, size in zip(library.functions, library.arena_bytes, strict=True):
        name = function.symbol.removeprefix(f"{library.name}_")
        args, results = map(_js_members, (function.arguments, function.results))
        lines += [f'    {name}: callable(exports, room, "{function.symbol}",']
        lines += [f"      {args}, {results}, {size}),"]
    return "\n".join([*lines, "  };", "}"]) + "\n"


def _js_members(members: Sequence[Member]) -> str:
    texts = [f'["{m.name}", {_JS[C_TYPES[m.type.dtype.name]]}, {m.type.size}]' for m in members]
    return f"[{', '.join(texts)}]"


__all__ = ["C_TYPES", "Interface", "c_header", "cpp_header", "js_module", "rust_module"]
