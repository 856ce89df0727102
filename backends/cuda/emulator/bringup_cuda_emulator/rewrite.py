"""From a module for NVPTX to one for the host: the same instructions, and shims for those of GPUs.

This works on the text as LLVM prints it: one instruction a line, every alignment spelled out, old
names of intrinsics updated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from bringup.errors import CompileError
from bringup.integers import ceil_div
from bringup.records import record
from bringup_cuda.codegen.commands import read_extents
from bringup_cuda_emulator.intrinsics import all_shims, read_assembly
from bringup_cuda_emulator.shims import REGISTERS, Shim
from bringup_cuda_emulator.structs import SITE_BITS, Access, Thread

SHARED_SPACE = 3
SPACE = re.compile(r" ?addrspace\((\d+)\)")
GLOBAL = re.compile(
    r"(?P<name>@[-\w$.]+|@\"[^\"]+\") = (?P<words>[^=]*?)(?:addrspace\((?P<space>\d+)\) )?"
    r"(?:externally_initialized )?(?P<kind>global|constant) (?P<rest>.*)"
)
ALIGN = re.compile(r", align (\d+)")
LOAD = re.compile(
    r"  (?P<name>%\S+) = load (?P<how>(?:atomic )?(?:volatile )?)(?P<type>.+?), "
    r"ptr(?: addrspace\((?P<space>\d+)\))? (?P<ptr>\S+?)(?P<tail>(?:,| ).*)?$"
)
STORE = re.compile(
    r"  store (?P<how>(?:atomic )?(?:volatile )?)(?P<value>.+), "
    r"ptr(?: addrspace\((?P<space>\d+)\))? (?P<ptr>[%@][^\s,]+)(?P<tail>(?:,| ).*)?$"
)
ATOMIC = re.compile(
    r"  (?P<name>%\S+) = (?P<op>atomicrmw|cmpxchg) (?P<words>[\w ]*?)"
    r"ptr(?: addrspace\((?P<space>\d+)\))? (?P<ptr>[%@][^\s,]+), (?P<rest>.*)$"
)
CALL = re.compile(
    r"  (?:(?P<name>%\S+) = )?(?:tail |musttail |notail )?call (?P<words>.*?)"
    r"(?P<callee>@[-\w$.]+)\((?P<args>.*)\)(?P<tail>[^()]*)$"
)
ASSEMBLY = re.compile(
    r"  (?:(?P<name>%\S+) = )?(?:tail )?call (?P<type>.+?) asm (?:sideeffect )?"
    r'"(?P<text>[^"]*)", "(?P<constraints>[^"]*)"\((?P<args>.*)\)[^()]*$'
)
DEFINE = re.compile(
    r"define (?P<words>.*?)(?P<name>@[-\w$.]+)\((?P<params>.*)\)(?P<tail>[^()]*)\{$"
)
ADDRESS = re.compile(
    r"  (?P<name>%\S+) = (?:getelementptr (?:\w+ )*?\S.*?, |addrspacecast )"
    r"ptr(?: addrspace\(\d+\))? (?P<from>%[^\s,]+)"
)
SCOPE = re.compile(r' syncscope\("[^"]*"\)')
_SCALARS = {
    "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "i128": 16,
    "half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8,
}  # fmt: skip
_VECTOR = re.compile(r"<(\d+) x (\S+)>$")
WIDE = re.compile(r"<(\d+) x ")
_ARRAY = re.compile(r"\[(\d+) x (.+)\]$")


def size_of(type: str) -> int:
    """Bytes of a type in memory.  Raises CompileError."""
    text = SPACE.sub("", type).strip()
    if text in _SCALARS:
        return _SCALARS[text]
    vector = _VECTOR.match(text)
    if vector:
        return int(vector[1]) * size_of(vector[2])
    array = _ARRAY.match(text)
    if array:
        return int(array[1]) * size_of(array[2])
    raise CompileError(  # pragma: no cover - only wrong kernels
        f"the emulator does not know the type {type!r}"
    )


def split_operands(text: str) -> list[str]:
    """The parts of a list, split at its outer commas."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def type_of(operand: str) -> str:
    """The type at the beginning of ``ptr addrspace(1) noundef align 16 %b0``."""
    text = SPACE.sub("", operand)
    if text[0] in "<[{":
        depths = accumulate((c in "<[{") - (c in ">]}") for c in text)
        return text[: 1 + next(i for i, depth in enumerate(depths) if not depth)]
    return text.split(" ", 1)[0]


def value_of(operand: str) -> str:
    """The value at the end of ``ptr addrspace(1) noundef %b0``."""
    rest = SPACE.sub("", operand)[len(type_of(operand)) :].strip()
    if rest[0] in "<{[" or rest.startswith("splat"):
        return rest
    return rest.rsplit(" ", 1)[-1]


def align_of(match: re.Match[str], type: str) -> int:
    """The alignment that an access claims, in bytes."""
    aligned = ALIGN.search(match["tail"] or "")
    return int(aligned[1]) if aligned else size_of(type)


def without_address_spaces(line: str) -> str:
    """The line without address spaces: the host has only one."""
    if "addrspace" not in line:
        return line
    line = SPACE.sub("", line)
    return re.sub(r"\baddrspacecast (ptr .*? to ptr)", r"bitcast \1", line)


#: Bytes between variables that belong to none, and a multiple of every alignment.
RED_ZONE = 128


@record
class SharedVariable:
    """A variable in shared memory, at a byte offset of the block's memory."""

    name: str
    offset: int
    size: int


def shared_variables(lines: Sequence[str]) -> tuple[dict[str, SharedVariable], set[str]]:
    """Static variables in shared memory by name, and the names of dynamic ones."""
    static: dict[str, SharedVariable] = {}
    dynamic: set[str] = set()
    for line in lines:
        match = GLOBAL.match(line) if line.startswith("@") else None
        if match is None or int(match["space"] or 0) != SHARED_SPACE:
            continue
        if "external" in match["words"].split():
            dynamic.add(match["name"])
        else:
            static[match["name"]] = SharedVariable(
                match["name"][1:], 0, size_of(type_of(match["rest"]))
            )
    return static, dynamic


def assign_offsets(lines: Sequence[str], shared: dict[str, SharedVariable]) -> dict[str, int]:
    """Assign an offset to each variable; the offset of the dynamic variable in each function.

    Variables of one function share memory with those of others; what several functions name comes
    before them all.
    """
    users: dict[str, list[str]] = {name: [] for name in shared}
    functions, current = [], ""
    for line in lines:
        if line.startswith("define ") and (match := DEFINE.match(line)):
            current = match["name"][1:]
            functions.append(current)
        elif current and "addrspace(3)" in line:
            for name in re.findall(r'@[-\w$.]+|@"[^"]+"', line):
                if name in users and current not in users[name]:
                    users[name].append(current)

    def place(name: str, offset: int) -> int:
        shared[name] = SharedVariable(name[1:], offset, shared[name].size)
        return (ceil_div(offset + shared[name].size, RED_ZONE) + 1) * RED_ZONE

    common = 0
    for name in [n for n, u in users.items() if len(u) > 1]:
        common = place(name, common)  # pragma: no cover - only kernels run by hand
    dynamic_offsets = dict.fromkeys(functions, common)
    for name, using in users.items():
        if len(using) == 1:
            dynamic_offsets[using[0]] = place(name, dynamic_offsets[using[0]])
    # Whatever is called may name the dynamic variable, so that its place must be one.
    return (
        dynamic_offsets
        if not _calls(lines)
        else dict.fromkeys(functions, max(dynamic_offsets.values(), default=0))
    )


def _calls(lines: Sequence[str]) -> bool:
    defined = {m["name"] for m in map(DEFINE.match, lines) if m}
    kernels = {m["name"] for m in map(DEFINE.match, lines) if m and "ptx_kernel" in m["words"]}
    return bool(defined - kernels)


@record
class KernelCode:
    """A kernel of a module for the host.

    params: LLVM types.
    shared: its static variables in shared memory.  dynamic: where the dynamic one begins.
    waits: whether its threads can wait for each other.
    granule: log2 of the least number of bytes that an instruction touches.
    stack: bytes that a thread's stack needs at most.
    extents: bytes behind each parameter, if the module says so (`bringup_cuda.codegen.commands`).
    constant, written: of those, parameters that are read as what never changes, and that are
    written, with an instruction that does so.
    """

    params: tuple[str, ...]
    shared: tuple[SharedVariable, ...]
    dynamic: int
    waits: bool
    granule: int
    stack: int
    extents: Sequence[int]
    constant: Mapping[int, str]
    written: Mapping[int, str]


@record
class Rewritten:
    """A module for the host.

    kernels: by name.
    sites: the instructions that faults can name: function and text.
    tables: constants of the module, by name, with their sizes; ``emu.table.<name>()`` gives the
    address.
    """

    text: str
    kernels: dict[str, KernelCode]
    sites: tuple[tuple[str, str], ...]
    tables: dict[str, int]


_HIGHEST_GRANULE = 4
#: Intrinsics of GPUs, and those that touch memory, need a shim.
_UNKNOWN = ("llvm.nvvm.", "llvm.masked.", "llvm.memcpy.", "llvm.memmove.", "llvm.memset.")
#: What LLVM has for NVPTX only as an approximation, and exactly on the host: results here would
#: prove nothing.
_INEXACT = re.compile(
    r" frem |@llvm\.(?:a?(?:sin|cos|tan)h?|exp(?:2|10)?|log(?:2|10)?|pow|powi|atan2|sincos)\."
)
#: The widest access that `Access` has room for.
_WIDEST = 255


def rewrite(source: str, *, checked: bool) -> Rewritten:
    """Rewrite a module as LLVM prints it.  checked: with checks of memory accesses.

    Raises CompileError for what has no shim.
    """
    return _Rewriter(source, checked=checked).run()


class _Function:
    """The function that is being rewritten."""

    def __init__(self, name: str, head: str, params: tuple[str, ...] | None) -> None:
        self.name = name
        self.head = head
        #: Of a kernel.
        self.params = params
        self.body: list[str] = []
        self.shared_addresses: dict[str, str] = {}
        self.calls: set[str] = set()
        self.waits = False
        self.granule = _HIGHEST_GRANULE
        #: Whether sums of tensor cores may be under way in its registers.
        self.sums = False
        #: The kernel's parameter that each pointer was made from.
        self.pointer_arguments: dict[str, int] = {}
        self.parameter_names: list[str] = []
        self.constant: dict[int, str] = {}
        self.written: dict[int, str] = {}

    @property
    def stack(self) -> int:
        """Bytes of the stack at most: unoptimised code may keep every value there."""
        return sum(_stack_of(line) for line in self.body if " = " in line)

    def reachable(self, functions: Mapping[str, _Function]) -> list[_Function]:
        """The function and all functions that it calls."""
        match, rest = {self.name: self}, [self]
        while rest:
            for name in rest.pop().calls - match.keys():
                match[name] = functions[name]
                rest.append(functions[name])
        return list(match.values())


class _Rewriter:
    def __init__(self, source: str, *, checked: bool) -> None:
        self.lines = source.split("\n")
        self.checked = checked
        self.shims: dict[str, Shim] = all_shims()
        self.used: dict[str, Shim] = {}
        self.sites: list[tuple[str, str]] = [("", "")]
        self.shared, self.dynamic = shared_variables(self.lines)
        self.dynamic_offsets = assign_offsets(self.lines, self.shared)
        self.extents = read_extents(self.lines)
        self.tables: dict[str, int] = {}
        self.defined = {m["name"] for m in map(DEFINE.match, self.lines) if m}
        self.functions: dict[str, _Function] = {}
        self.current: _Function | None = None
        self.fresh = 0

    def run(self) -> Rewritten:
        out: list[str] = []
        for line in self.lines:
            if not line or line[0] == ";" or line.startswith(("target ", "source_filename")):
                continue
            out += self._line(line)
        out += sorted(_declaration(s) for s in self.used.values())
        out += _DECLARATIONS
        out += (f'define ptr @"emu.table.{n}"() nounwind {{ ret ptr @{n} }}' for n in self.tables)
        return Rewritten("\n".join(out) + "\n", self._kernels(), tuple(self.sites), self.tables)

    def _kernels(self) -> dict[str, KernelCode]:
        kernels = {}
        for name, function in self.functions.items():
            if function.params is None:
                continue
            parts = function.reachable(self.functions)
            names = [n for n in self.shared if any(n in p.shared_addresses for p in parts)]
            kernels[name] = KernelCode(
                function.params,
                tuple(self.shared[n] for n in names),
                self.dynamic_offsets[name],
                any(p.waits for p in parts),
                min(p.granule for p in parts),
                sum(p.stack for p in parts),
                self.extents.get(name, ()),
                function.constant,
                function.written,
            )
        return kernels

    @property
    def function(self) -> _Function:
        assert self.current is not None
        return self.current

    # -- what stands outside functions -------------------------------------------------------------

    def _line(self, line: str) -> list[str]:
        if self.current is not None and line.startswith("  "):
            self.current.body += self._instruction(line)
            return []
        if line[0] == "@":
            return self._global(line)
        if line.startswith("define "):
            return self._define(line)
        if line.startswith("declare "):
            name = line[line.index("@") + 1 :].split("(", 1)[0]
            return [] if name.startswith("llvm.nvvm.") else [without_address_spaces(line)]
        if self.current is None:
            return [without_address_spaces(line)]
        if line[0] == "}":
            return self._end()
        self.current.body.append(line)
        return []

    def _global(self, line: str) -> list[str]:
        match = GLOBAL.match(line)
        if match is None:  # pragma: no cover - only kernels run by hand
            return [without_address_spaces(line)]
        if int(match["space"] or 0) == SHARED_SPACE or match["name"].startswith("@llvm."):
            return []
        self.tables[match["name"][1:].strip('"')] = size_of(type_of(match["rest"]))
        return [without_address_spaces(line)]

    def _define(self, line: str) -> list[str]:
        match = DEFINE.match(line)
        assert match is not None, line
        words, name = match["words"], match["name"]
        params = without_address_spaces(match["params"])
        kernel = "ptx_kernel" in words.split()
        types = tuple(type_of(p) for p in split_operands(params)) if kernel else None
        words = words.replace("ptx_kernel ", "")
        words = without_address_spaces(words)
        head = f"define {words}{name}(ptr %emu.t{', ' if params else ''}{params})"
        self.current = _Function(name[1:], head + match["tail"] + "{", types)
        self.functions[name[1:]] = self.current
        if name[1:] in self.extents:
            names = [part.rsplit(" ", 1)[-1] for part in split_operands(params)]
            self.current.pointer_arguments = {name: n for n, name in enumerate(names)}
            self.current.parameter_names = names
        return []

    def _end(self) -> list[str]:
        """The function's text, starting with the addresses of its variables in shared memory."""
        function = self.function
        entry: list[str] = []
        if function.shared_addresses:
            entry = [
                f"  %emu.sp = getelementptr i8, ptr %emu.t, i64 {Thread.shared.offset}",
                "  %emu.s = load ptr, ptr %emu.sp, align 8",
                *function.shared_addresses.values(),
            ]
        body = function.body
        at = 1 if not body[0].startswith("  ") else 0
        lines = [function.head, *body[:at], *entry, *body[at:], "}"]
        if function.params is not None:
            lines += _entry(function.name, function.params)
        self.current = None
        return lines

    # -- instructions ------------------------------------------------------------------------------

    def _site(self, line: str) -> int:
        if len(self.sites) < (1 << SITE_BITS) - 1:  # pragma: no branch - only huge modules
            self.sites.append((self.function.name, line.strip()))
        return len(self.sites) - 1

    def _instruction(self, line: str) -> list[str]:
        if self.function.pointer_arguments and (derived := ADDRESS.match(line)):
            root = self.function.pointer_arguments.get(derived["from"])
            if root is not None:
                self.function.pointer_arguments[derived["name"]] = root
        match = _INEXACT.search(line) if " frem " in line or "@llvm." in line else None
        if match is not None:  # pragma: no cover - only wrong kernels
            raise CompileError(f"GPUs have no exact {match[0].strip(' @.')}: {line.strip()}")
        if "addrspace(3)" in line:
            line = self._address_shared(line)
        if " load " in line and (match := LOAD.match(line)):
            return self._load(line, match)
        if line.startswith("  store ") and (match := STORE.match(line)):
            return self._store(line, match)
        if (" atomicrmw " in line or " cmpxchg " in line) and (match := ATOMIC.match(line)):
            return self._atomic(line, match)
        if " fence " in line:  # pragma: no cover - only kernels run by hand
            return [*self._fenced(), SCOPE.sub("", line)]
        if " asm " in line and (match := ASSEMBLY.match(line)):
            return self._assembly(line, match)
        if "call " in line and (match := CALL.match(line)):
            return self._call(line, match)
        return [without_address_spaces(line)]

    def _address_shared(self, line: str) -> str:
        """Replace variables in shared memory by values of this function."""
        shared_addresses = self.function.shared_addresses

        def place(match: re.Match[str]) -> str:
            name = match[0]
            variable = self.shared.get(name)
            if variable is None and name not in self.dynamic:
                return name
            if name not in shared_addresses:
                offset = (
                    self.dynamic_offsets[self.function.name]
                    if variable is None
                    else variable.offset
                )
                value = f"%emu.s{len(shared_addresses)}"
                shared_addresses[name] = f"  {value} = getelementptr i8, ptr %emu.s, i64 {offset}"
            return shared_addresses[name].split(" = ", 1)[0].strip()

        return re.sub(r'@[-\w$.]+|@"[^"]+"', place, line)

    def _check_access(
        self, line: str, match: re.Match[str], type: str, kind: int, align: int
    ) -> list[str]:
        if not self.checked:  # pragma: no cover - only kernels run by hand
            return []
        size = size_of(type)
        if size > _WIDEST:  # pragma: no cover - only wrong kernels
            raise CompileError(f"an access of {size} bytes is wider than the emulator checks")
        low = size | align
        self.function.granule = min(self.function.granule, (low & -low).bit_length() - 1)
        access = Access.pack(size, align, int(match["space"] or 0), kind)
        site = self._site(line)
        checks = self._within(match["ptr"], str(access), site)
        checks.append(
            f"  call void @emu.check(ptr %emu.t, ptr {match['ptr']}, i32 {access}, i32 {site})"
        )
        return checks

    def _within(self, pointer: str, access: str, site: int) -> list[str]:
        """The check that an access stays inside the argument that its address derives from."""
        function = self.function
        which = function.pointer_arguments.get(pointer)
        if which is None:
            return []
        size, start = self.extents[function.name][which], function.parameter_names[which]
        return [
            f"  call void @emu.within(ptr %emu.t, ptr {pointer}, i32 {access}, i32 {site}, "
            f"ptr {start}, i64 {size}, i32 {which})"
        ]

    def _load(self, line: str, match: re.Match[str]) -> list[str]:
        waits = bool(match["how"])
        kind = Access.ATOMIC_READ if waits else Access.READ
        before = self._pause(line) if waits else []
        if "!invariant.load" in line:
            self._note_argument(self.function.constant, line, match)
        check = self._check_access(line, match, match["type"], kind, align_of(match, match["type"]))
        return [*before, *check, without_address_spaces(SCOPE.sub("", line))]

    def _store(self, line: str, match: re.Match[str]) -> list[str]:
        kind = Access.WRITE
        if match["how"]:  # pragma: no cover - only kernels run by hand
            strong = re.search(r" (release|seq_cst)\b", match["tail"] or "")
            kind = Access.ATOMIC_RELEASE if strong else Access.ATOMIC
        self._note_argument(self.function.written, line, match)
        type = type_of(match["value"])
        check = self._check_access(line, match, type, kind, align_of(match, type))
        if self.function.sums and type.endswith(("float", "float>")):
            check += self._no_sums(line, type, value_of(match["value"]))
        return [*check, without_address_spaces(SCOPE.sub("", line))]

    def _no_sums(self, line: str, type: str, value: str) -> Iterator[str]:
        """The checks that the stored value is no sum in flight."""
        site, wide = self._site(line), WIDE.match(type)
        for lane in range(int(wide[1]) if wide else 1):
            one = value
            if wide:
                one = self._name()
                yield f"  {one} = extractelement {type} {value}, i32 {lane}"
            bits = self._name()
            yield f"  {bits} = bitcast float {one} to i32"
            yield f"  call void @emu.settled(ptr %emu.t, i32 {bits}, i32 {site})"

    def _atomic(self, line: str, match: re.Match[str]) -> list[str]:
        strong = re.search(r" (release|acq_rel|seq_cst)\b", match["rest"])
        kind = Access.ATOMIC_RELEASE if strong else Access.ATOMIC
        before = self._pause(line) if match["op"] == "cmpxchg" else []
        self._note_argument(self.function.written, line, match)
        type = type_of(match["rest"])
        check = self._check_access(line, match, type, kind, size_of(type))
        return [*before, *check, without_address_spaces(SCOPE.sub("", line))]

    def _note_argument(self, what: dict[int, str], line: str, match: re.Match[str]) -> None:
        """Note that an instruction accesses the memory of a parameter."""
        which = self.function.pointer_arguments.get(match["ptr"])
        if which is not None:
            what.setdefault(which, line.strip())

    def _pause(self, line: str) -> list[str]:
        self.function.waits = True
        return [f"  call void @emu.pause(ptr %emu.t, i32 {self._site(line)})"]

    def _fenced(self) -> list[str]:  # pragma: no cover - only kernels run by hand
        place = self._name()
        return [
            f"  {place} = getelementptr i8, ptr %emu.t, i64 {Thread.fenced.offset}",
            f"  store i32 1, ptr {place}, align 4",
        ]

    def _name(self) -> str:
        self.fresh += 1
        return f"%emu.v{self.fresh}"

    def _call(self, line: str, match: re.Match[str]) -> list[str]:
        callee, args = match["callee"], match["args"]
        name = callee[1:]
        if callee in self.defined:
            self.function.calls.add(name)
            operands_text = f"ptr %emu.t, {args}" if args else "ptr %emu.t"
            at = line.index(callee)
            return [without_address_spaces(f"{line[:at]}{callee}({operands_text}){match['tail']}")]
        if name in REGISTERS:
            place = self._name()
            return [
                f"  {place} = getelementptr i8, ptr %emu.t, i64 {REGISTERS[name]}",
                f"  {match['name']} = load i32, ptr {place}, align 4",
            ]
        if (
            name == "llvm.nvvm.read.ptx.sreg.warpsize"
        ):  # pragma: no cover - only kernels run by hand
            return [f"  {match['name']} = add i32 32, 0"]
        if name == "llvm.trap":  # pragma: no cover - only wrong kernels
            return [f"  call void @emu.trap(ptr %emu.t, i32 {self._site(line)})"]
        if name in self.shims:
            operands = [f"{type_of(a)} {value_of(a)}" for a in split_operands(args)]
            return self._shim(line, match["name"], operands, self.shims[name])
        if name.startswith(_UNKNOWN):  # pragma: no cover - only wrong kernels
            raise CompileError(f"the emulator has no shim of {name}")
        return [without_address_spaces(line)]

    def _assembly(self, line: str, match: re.Match[str]) -> list[str]:
        name, more = read_assembly(match["text"], match["constraints"])
        operands = [f"{type_of(a)} {value_of(a)}" for a in split_operands(match["args"])]
        self.function.sums = True
        return self._shim(line, match["name"], [*operands, *more], self.shims[name])

    def _shim(self, line: str, name: str | None, operands: Sequence[str], shim: Shim) -> list[str]:
        self.used[shim.name] = shim
        self.function.waits |= shim.waits
        self.function.granule = min(self.function.granule, shim.grain.bit_length() - 1)
        site = self._site(line)
        arguments = ", ".join(["ptr %emu.t", f"i32 {site}", *operands])
        result = f"{name} = " if name else ""
        checks: list[str] = []
        if self.checked and shim.reads is not None:
            size = operands[2].split(" ")[1] if len(operands) > 2 else str(shim.grain)
            checks = self._within(operands[shim.reads].split(" ")[1], size, site)
        return [*checks, f"  {result}call {shim.ret.text} @{shim.symbol}({arguments})"]


_ALLOCA = re.compile(r"alloca (.+?)(?:, i\d+ (\d+))?(?:, align \d+)?$")


def _stack_of(line: str) -> int:
    match = _ALLOCA.search(line)
    if match is not None:  # pragma: no cover - only kernels run by hand
        return size_of(match[1]) * int(match[2] or 1) + 64
    vector = WIDE.search(line)
    if "call { " in line:
        return 16 * line.count(",")
    return 16 if vector is None else 16 + 8 * int(vector[1])


#: What the machine offers beside shims.
_DECLARATIONS = (
    "declare void @emu.check(ptr, ptr, i32, i32) nounwind",
    "declare void @emu.within(ptr, ptr, i32, i32, ptr, i64, i32) nounwind",
    "declare void @emu.pause(ptr, i32) nounwind",
    "declare void @emu.trap(ptr, i32) nounwind",
    "declare void @emu.settled(ptr, i32, i32) nounwind",
)


def _declaration(shim: Shim) -> str:
    types = ", ".join(["ptr", "i32", *(t.text for t in shim.params)])
    return f"declare {shim.ret.text} @{shim.symbol}({types}) nounwind"


def _entry(name: str, params: Sequence[str]) -> Iterator[str]:
    """The function that calls a kernel with arguments from memory, 8 bytes each."""
    yield f'define void @"{name}.entry"(ptr %t, ptr %args) nounwind {{'
    operands = ["ptr %t"]
    for n, type in enumerate(params):
        yield f"  %p{n} = getelementptr i8, ptr %args, i64 {8 * n}"
        yield f"  %a{n} = load {type}, ptr %p{n}, align 8"
        operands.append(f"{type} %a{n}")
    yield f"  call void @{name}({', '.join(operands)})"
    yield "  ret void"
    yield "}"
