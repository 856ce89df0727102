"""What other languages than C take of a library: a few lines for C++, Rust and JavaScript.

Their own names end with an underscore where those of arrays stand beside them: these never do,
unless one is a word of a language.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.aot.header import C_TYPES, WEIGHTS, Interface
from bringup.aot.interface import Function, Member
from bringup.aot.weights import ALIGNMENT
from bringup.backend.link import STATUS, Driver
from bringup.version import VERSION

#: What Rust calls types of C, beside whole numbers.
_RUST = {"float": "f32", "double": "f64"}


def wrappers(library: Interface) -> dict[str, bytes]:
    """The files, by their names."""
    name = library.name
    files = {f"{name}.hpp": cpp_header(library), f"{name}.rs": rust_module(library)}
    files |= {f"{name}.mjs": js_module(library)} if library.target == "wasm32" else {}
    return {file: text.encode() for file, text in files.items()}


def _own_name(library: Interface, function: Function) -> str:
    return function.symbol.removeprefix(f"{library.name}_")


# -- C++ -------------------------------------------------------------------------------------------


def cpp_header(library: Interface) -> str:
    """C++11: functions of references to arrays of the right length and to the arena, which has a
    type; or an object that holds the code on a device.
    """
    name = library.name
    head = [f"// {name} for {library.target}, made by bringup {VERSION}.", "#pragma once", ""]
    head += [f'#include "{name}.h"', "", f"namespace {name} {{"]
    if library.driver is None:
        lines = [line for f in library.functions for line in ("", *_cpp_function(library, f))]
    else:
        lines = [*_cpp_device(library, library.driver)]
    return "\n".join([*head, *lines, "", f"}}  // namespace {name}"]) + "\n"


def _cpp_function(library: Interface, function: Function) -> Iterator[str]:
    takes = library.takes_weights(function)
    parameters = [f"const {_reference(m)}" for m in function.arguments]
    parameters += [f"const void *{WEIGHTS}"] if takes else []
    parameters += [_reference(m) for m in function.results]
    given = [m.name for m in function.arguments] + ([WEIGHTS] if takes else [])
    args, results = ", ".join(given), ", ".join(m.name for m in function.results)
    own, upper = _own_name(library, function), function.prefix.upper()
    parameters.append(f"{own}_arena &arena_")
    pool = ""
    if library.threads > 1:
        parameters.append(f"const {library.name}_pool *pool_ = nullptr")
        pool = ", pool_"
    size = f"{upper}_ARENA_BYTES + ({upper}_ARENA_BYTES == 0)"
    yield f"struct alignas({ALIGNMENT}) {own}_arena {{ unsigned char bytes[{size}]; }};"
    yield ""
    yield f"inline int {own}({', '.join(parameters)}) {{"
    yield f"  const {function.prefix}_args args_ = {{{args or 'nullptr'}}};"
    yield f"  const {function.prefix}_results results_ = {{{results or 'nullptr'}}};"
    yield f"  return {function.symbol}(&args_, &results_, arena_.bytes{pool});"
    yield "}"


def _reference(member: Member) -> str:
    return f"{C_TYPES[member.type.dtype.name]} (&{member.name})[{max(member.type.size, 1)}]"


def _cpp_device(library: Interface, driver: Driver) -> Iterator[str]:
    name = library.name
    context = [each.rpartition(" ")[2] for each in driver.context]
    file, passed = ("const void *file, ", "file, ") if library.weights_file else ("", "")
    yield ""
    yield f"// The code on a device, for as long as this lives.  status: what {name}_load returned;"
    yield "// nothing else may be called unless it is 0."
    yield "class device {"
    yield " public:"
    yield f"  explicit device({', '.join(driver.context)})"
    yield f"      : status_({name}_load({', '.join(['&own_', *context])})) {{}}"
    yield f"  ~device() {{ if (status_ == 0) {name}_unload(&own_); }}"
    yield "  device(const device &) = delete;"
    yield "  device &operator=(const device &) = delete;"
    yield "  int status() const { return status_; }"
    if library.has_weights:
        yield f"  int upload({file}{driver.memory} weights, {driver.queue} queue) const {{"
        yield f"    return {name}_upload({passed}weights, queue);"
        yield "  }"
    for function in library.functions:
        prefix = function.prefix
        yield f"  int {_own_name(library, function)}(const {prefix}_args &args,"
        yield f"      const {prefix}_results &results, {driver.memory} arena, {driver.queue} queue)"
        yield f"      const {{ return {function.symbol}(&own_, &args, &results, arena, queue); }}"
    yield " private:"
    yield f"  {name}_device own_;"
    yield "  int status_;"
    yield "};"


# -- Rust ------------------------------------------------------------------------------------------


def rust_module(library: Interface) -> str:
    """Rust 1.82 and later, editions 2018 to 2024: functions of references to arrays and to the
    arena, which has a type; or an object that holds the code on a device.
    """
    lines = [f"//! {library.name} for {library.target}, made by bringup {VERSION}."]
    lines += ["#![allow(dead_code, non_snake_case)]", "", "use core::ffi::c_void;"]
    driver = library.driver
    if driver is not None:
        lines += [*_rust_declarations(library, driver), *_rust_device(library, driver)]
        return "\n".join(lines) + "\n"
    if library.threads > 1:
        lines += _RUST_POOL.replace("THREADS", str(library.threads)).splitlines()
    for function, size in zip(library.functions, library.arena_bytes, strict=True):
        lines += ["", *_rust_function(library, function, size)]
    return "\n".join(lines) + "\n"


_RUST_POOL = """use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A loop in parts: a call with each number below their count computes one.
pub type Parts<'a> = &'a (dyn Fn(usize) + Sync);
/// Calls parts, on threads of its own if it likes; what it leaves out the calling thread computes.
pub type Pool<'a> = &'a dyn Fn(Parts<'_>, usize);

type Part = unsafe extern "C" fn(*mut c_void, i64, i64, i64);
#[repr(C)]
struct Runner<'a> {
    run: unsafe extern "C" fn(*const Pool<'a>, Part, *mut c_void, i64, i64),
    own: *const Pool<'a>,
}
struct Context(*mut c_void);
unsafe impl Sync for Context {}
impl Context { fn get(&self) -> *mut c_void { self.0 } }

// Each part once, whatever the pool does, and none after it: the closure ends here.
unsafe extern "C" fn run_parts(
    pool: *const Pool<'_>, part: Part, context: *mut c_void, count: i64, grain: i64,
) {
    let context = Context(context);
    let grains = (count + grain - 1) / grain;
    let each = (grains + THREADS - 1) / THREADS * grain;
    let called = [const { AtomicBool::new(false) }; THREADS];
    let one = |n: usize| {
        if n >= THREADS || called[n].swap(true, Relaxed) { return; }
        let begin = n as i64 * each;
        let end = count.min(begin + each);
        if begin < end { unsafe { part(context.get(), begin, end, n as i64) } }
    };
    unsafe { (*pool)(&one, THREADS) };
    for n in 0..THREADS { one(n); }
}"""


def _rust_function(library: Interface, function: Function, arena_bytes: int) -> Iterator[str]:
    name = _own_name(library, function)
    symbol, has_file = function.symbol, library.takes_weights(function)
    takes = [f"{m.name}: &{_slice(m)}" for m in function.arguments]
    takes += [f"{WEIGHTS}: &[u8]"] if has_file else []
    takes += [f"{m.name}: &mut {_slice(m)}" for m in function.results]
    arguments = [f"{m.name}.as_ptr().cast()" for m in function.arguments]
    arguments += [f"{WEIGHTS}.as_ptr().cast()"] if has_file else []
    results = [f"{m.name}.as_mut_ptr().cast()" for m in function.results]
    pool = ", pool: *const Runner<'_>" if library.threads > 1 else ""
    arena = f"{_camel(name)}Arena"
    takes += [f"arena_: &mut core::mem::MaybeUninit<{arena}>"]
    takes += ["pool_: Option<Pool<'_>>"] if pool else []
    yield f"#[repr(C, align({ALIGNMENT}))]"
    yield f"pub struct {arena}([core::mem::MaybeUninit<u8>; {max(arena_bytes, 1)}]);"
    yield ""
    yield 'unsafe extern "C" {'
    yield f"    fn {symbol}(args: *const *const c_void, results: *const *mut c_void,"
    yield f"        arena: *mut c_void{pool}) -> i32;"
    yield "}"
    yield ""
    yield f"/// {', '.join(f'{m.name}: {m.type}' for m in function.arguments)}"
    if has_file:
        yield f"/// {WEIGHTS}: the file, at a multiple of {ALIGNMENT} bytes, as where it is mapped"
    yield f"pub fn {name}({', '.join(takes)}) -> Result<(), i32> {{"
    if has_file:
        wrong = [name for name, _ in STATUS].index("WRONG_WEIGHTS")
        yield f"    if {WEIGHTS}.len() < {library.file_bytes} {{ return Err({wrong}); }}"
    yield f"    let args_: [*const c_void; {len(arguments)}] = [{', '.join(arguments)}];"
    yield f"    let results_: [*mut c_void; {len(results)}] = [{', '.join(results)}];"
    runner = ""
    if pool:
        yield "    let runner_ = pool_.as_ref().map(|own| Runner { run: run_parts, own });"
        runner = ", runner_.as_ref().map_or(core::ptr::null(), |it| it)"
    call = f"{symbol}(args_.as_ptr(), results_.as_ptr(), arena_.as_mut_ptr().cast(){runner})"
    yield f"    match unsafe {{ {call} }} {{ 0 => Ok(()), code => Err(code) }}"
    yield "}"


def _slice(member: Member) -> str:
    type_ = C_TYPES[member.type.dtype.name]
    rust = _RUST.get(type_, type_.removesuffix("_t").replace("uint", "u").replace("int", "i"))
    return f"[{rust}; {member.type.size}]"


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _rust_declarations(library: Interface, driver: Driver) -> Iterator[str]:
    """What the C header says."""
    name = library.name
    yield ""
    yield f"pub type Memory = {_rust_type(driver, driver.memory)}; // {driver.memory}"
    yield f"pub type Queue = {_rust_type(driver, driver.queue)}; // {driver.queue}"
    yield f"pub const WEIGHTS_BYTES: usize = {library.weights_bytes};"
    for function, size in zip(library.functions, library.arena_bytes, strict=True):
        own = _own_name(library, function)
        members = [m.name for m in function.arguments]
        members += [WEIGHTS] if library.takes_weights(function) else []
        yield f"pub const {own.upper()}_ARENA_BYTES: usize = {size};"
        yield from _rust_struct(f"{_camel(own)}Args", members)
        yield from _rust_struct(f"{_camel(own)}Results", [m.name for m in function.results])
    yield ""
    yield "#[repr(C)]"
    yield f"struct Code {{ {', '.join(_rust_member(driver, each) for each in driver.state)} }}"
    yield ""
    yield 'unsafe extern "C" {'
    context = "".join(f", {_rust_member(driver, each)}" for each in driver.context)
    yield f"    fn {name}_load(device: *mut Code{context}) -> i32;"
    yield f"    fn {name}_unload(device: *mut Code) -> i32;"
    if library.has_weights:
        file = "file: *const c_void, " if library.weights_file else ""
        yield f"    fn {name}_upload({file}weights: Memory, queue: Queue) -> i32;"
    for function in library.functions:
        own = _camel(_own_name(library, function))
        yield f"    fn {function.symbol}(device: *const Code, args: *const {own}Args,"
        yield f"        results: *const {own}Results, arena: Memory, queue: Queue) -> i32;"
    yield "}"


_RUST_DEVICE = """
fn checked(code: i32) -> Result<(), i32> { if code == 0 { Ok(()) } else { Err(code) } }

/// The code on a device, for as long as this lives.  Its functions are unsafe: memory, queues and
/// what else is the driver's have to be what the header says.
pub struct Device(Code);

impl Drop for Device {
    fn drop(&mut self) { unsafe { NAME_unload(&mut self.0); } }
}

impl Device {
    pub unsafe fn load(PARAMETERS) -> Result<Device, i32> {
        let mut code = core::mem::MaybeUninit::<Code>::zeroed();
        checked(unsafe { NAME_load(ARGUMENTS) })?;
        Ok(Device(unsafe { code.assume_init() }))
    }"""


def _rust_device(library: Interface, driver: Driver) -> Iterator[str]:
    """An object whose functions call those of the library."""
    parameters = [_rust_member(driver, each) for each in driver.context]
    arguments = ["code.as_mut_ptr()", *(each.partition(":")[0] for each in parameters)]
    text = _RUST_DEVICE.replace("NAME", library.name)
    text = text.replace("PARAMETERS", ", ".join(parameters))
    yield from text.replace("ARGUMENTS", ", ".join(arguments)).splitlines()
    if library.has_weights:
        file, passed = ("file: *const c_void, ", "file, ") if library.weights_file else ("", "")
        yield f"    pub unsafe fn upload(&self, {file}weights: Memory, queue: Queue)"
        yield "        -> Result<(), i32> {"
        yield f"        checked(unsafe {{ {library.name}_upload({passed}weights, queue) }})"
        yield "    }"
    for function in library.functions:
        own, call = _own_name(library, function), f"{function.symbol}(&self.0, args, results,"
        yield f"    pub unsafe fn {own}(&self, args: &{_camel(own)}Args,"
        yield f"        results: &{_camel(own)}Results, arena: Memory, queue: Queue)"
        yield "        -> Result<(), i32> {"
        yield f"        checked(unsafe {{ {call} arena, queue) }})"
        yield "    }"
    yield "}"


def _rust_struct(name: str, members: Sequence[str]) -> Iterator[str]:
    yield "#[repr(C)]"
    yield f"pub struct {name} {{ {', '.join(f'pub {m}: Memory' for m in members or ['unused'])} }}"


def _rust_member(driver: Driver, declared: str) -> str:
    """A parameter or a member of C, such as ``CUfunction kernels[4]``."""
    type_, _, name = declared.rpartition(" ")
    name, _, length = name.rstrip("]").partition("[")
    rust = _rust_type(driver, type_)
    return f"{name}: [{rust}; {length}]" if length else f"{name}: {rust}"


def _rust_type(driver: Driver, type_: str) -> str:
    return driver.integers.get(type_, "*mut c_void")


# -- JavaScript ------------------------------------------------------------------------------------

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
        name = _own_name(library, function)
        args, results = map(_js_members, (function.arguments, function.results))
        lines += [f'    {name}: callable(exports, room, "{function.symbol}",']
        lines += [f"      {args}, {results}, {size}),"]
    return "\n".join([*lines, "  };", "}"]) + "\n"


def _js_members(members: Sequence[Member]) -> str:
    texts = [f'["{m.name}", {_JS[C_TYPES[m.type.dtype.name]]}, {m.type.size}]' for m in members]
    return f"[{', '.join(texts)}]"


__all__ = ["cpp_header", "js_module", "rust_module", "wrappers"]
