"""LLVM IR as LLVM prints it: patterns of its lines, sizes of its types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from bringup.errors import CompileError
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


def split(text: str) -> list[str]:
    """The parts of a list at its outer commas."""
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


def align_of(found: re.Match[str], type: str) -> int:
    """The alignment that an access claims, in bytes."""
    aligned = ALIGN.search(found["tail"] or "")
    return int(aligned[1]) if aligned else size_of(type)


def plain(line: str) -> str:
    """Without address spaces: all memory of the host is one."""
    if "addrspace" not in line:
        return line
    line = SPACE.sub("", line)
    return re.sub(r"\baddrspacecast (ptr .*? to ptr)", r"bitcast \1", line)


#: Bytes between variables that belong to none, and a multiple of every alignment.
RED_ZONE = 128


@record
class Shared:
    """A variable in shared memory: its place in the block's, in bytes."""

    name: str
    offset: int
    size: int


def shared_variables(lines: Sequence[str]) -> tuple[dict[str, Shared], set[str]]:
    """Static variables in shared memory by name, and the names of dynamic ones."""
    static: dict[str, Shared] = {}
    dynamic: set[str] = set()
    for line in lines:
        found = GLOBAL.match(line) if line.startswith("@") else None
        if found is None or int(found["space"] or 0) != SHARED_SPACE:
            continue
        if "external" in found["words"].split():
            dynamic.add(found["name"])
        else:
            static[found["name"]] = Shared(found["name"][1:], 0, size_of(type_of(found["rest"])))
    return static, dynamic


def lay_out(lines: Sequence[str], shared: dict[str, Shared]) -> dict[str, int]:
    """Give each variable its place; where the dynamic variable begins in each function.

    Variables of one function share memory with those of others; what several functions name comes
    before them all.
    """
    users: dict[str, list[str]] = {name: [] for name in shared}
    functions, now = [], ""
    for line in lines:
        if line.startswith("define ") and (found := DEFINE.match(line)):
            now = found["name"][1:]
            functions.append(now)
        elif now and "addrspace(3)" in line:
            for name in re.findall(r'@[-\w$.]+|@"[^"]+"', line):
                if name in users and now not in users[name]:
                    users[name].append(now)

    def place(name: str, offset: int) -> int:
        shared[name] = Shared(name[1:], offset, shared[name].size)
        return (-(-(offset + shared[name].size) // RED_ZONE) + 1) * RED_ZONE

    common = 0
    for name in [n for n, u in users.items() if len(u) > 1]:
        common = place(name, common)  # pragma: no cover - only kernels run by hand
    ends = dict.fromkeys(functions, common)
    for name, using in users.items():
        if len(using) == 1:
            ends[using[0]] = place(name, ends[using[0]])
    # Whatever is called may name the dynamic variable, so that its place must be one.
    return ends if not _calls(lines) else dict.fromkeys(functions, max(ends.values(), default=0))


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
    shared: tuple[Shared, ...]
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
    """What is known of the function being rewritten."""

    def __init__(self, name: str, head: str, params: tuple[str, ...] | None) -> None:
        self.name = name
        self.head = head
        #: Of a kernel.
        self.params = params
        self.body: list[str] = []
        self.places: dict[str, str] = {}
        self.calls: set[str] = set()
        self.waits = False
        self.granule = _HIGHEST_GRANULE
        #: Whether sums of tensor cores may be under way in its registers.
        self.sums = False
        #: The kernel's parameter that each pointer was made from.
        self.roots: dict[str, int] = {}
        self.given: list[str] = []
        self.constant: dict[int, str] = {}
        self.written: dict[int, str] = {}

    @property
    def stack(self) -> int:
        """Bytes of the stack at most: unoptimised code may keep every value there."""
        return sum(_stack_of(line) for line in self.body if " = " in line)

    def reached(self, functions: Mapping[str, _Function]) -> list[_Function]:
        """It and all that it calls."""
        found, rest = {self.name: self}, [self]
        while rest:
            for name in rest.pop().calls - found.keys():
                found[name] = functions[name]
                rest.append(functions[name])
        return list(found.values())


class _Rewriter:
    def __init__(self, source: str, *, checked: bool) -> None:
        self.lines = source.split("\n")
        self.checked = checked
        self.shims: dict[str, Shim] = all_shims()
        self.used: dict[str, Shim] = {}
        self.sites: list[tuple[str, str]] = [("", "")]
        self.shared, self.dynamic = shared_variables(self.lines)
        self.ends = lay_out(self.lines, self.shared)
        self.extents = read_extents(self.lines)
        self.tables: dict[str, int] = {}
        self.defined = {m["name"] for m in map(DEFINE.match, self.lines) if m}
        self.functions: dict[str, _Function] = {}
        self.now: _Function | None = None
        self.fresh = 0

    def run(self) -> Rewritten:
        out: list[str] = []
        for line in self.lines:
            if not line or line[0] == ";" or line.startswith(("target ", "source_filename")):
                continue
            out += self._line(line)
        out += sorted(_declaration(s) for s in self.used.values())
        out += _OWN
        out += (f'define ptr @"emu.table.{n}"() nounwind {{ ret ptr @{n} }}' for n in self.tables)
        return Rewritten("\n".join(out) + "\n", self._kernels(), tuple(self.sites), self.tables)

    def _kernels(self) -> dict[str, KernelCode]:
        made = {}
        for name, function in self.functions.items():
            if function.params is None:
                continue
            parts = function.reached(self.functions)
            names = [n for n in self.shared if any(n in p.places for p in parts)]
            made[name] = KernelCode(
                function.params,
                tuple(self.shared[n] for n in names),
                self.ends[name],
                any(p.waits for p in parts),
                min(p.granule for p in parts),
                sum(p.stack for p in parts),
                self.extents.get(name, ()),
                function.constant,
                function.written,
            )
        return made

    @property
    def function(self) -> _Function:
        assert self.now is not None
        return self.now

    # -- what stands outside functions -------------------------------------------------------------

    def _line(self, line: str) -> list[str]:
        if self.now is not None and line.startswith("  "):
            self.now.body += self._instruction(line)
            return []
        if line[0] == "@":
            return self._global(line)
        if line.startswith("define "):
            return self._define(line)
        if line.startswith("declare "):
            name = line[line.index("@") + 1 :].split("(", 1)[0]
            return [] if name.startswith("llvm.nvvm.") else [plain(line)]
        if self.now is None:
            return [plain(line)]
        if line[0] == "}":
            return self._end()
        self.now.body.append(line)
        return []

    def _global(self, line: str) -> list[str]:
        found = GLOBAL.match(line)
        if found is None:  # pragma: no cover - only kernels run by hand
            return [plain(line)]
        if int(found["space"] or 0) == SHARED_SPACE or found["name"].startswith("@llvm."):
            return []
        self.tables[found["name"][1:].strip('"')] = size_of(type_of(found["rest"]))
        return [plain(line)]

    def _define(self, line: str) -> list[str]:
        found = DEFINE.match(line)
        assert found is not None, line
        words, name = found["words"], found["name"]
        params = plain(found["params"])
        kernel = "ptx_kernel" in words.split()
        types = tuple(type_of(p) for p in split(params)) if kernel else None
        words = words.replace("ptx_kernel ", "")
        head = f"define {plain(words)}{name}(ptr %emu.t{', ' if params else ''}{params})"
        self.now = _Function(name[1:], head + found["tail"] + "{", types)
        self.functions[name[1:]] = self.now
        if name[1:] in self.extents:
            names = [part.rsplit(" ", 1)[-1] for part in split(params)]
            self.now.roots = {name: n for n, name in enumerate(names)}
            self.now.given = names
        return []

    def _end(self) -> list[str]:
        """The function's text, with the places of shared memory it uses at its beginning."""
        function = self.function
        entry: list[str] = []
        if function.places:
            entry = [
                f"  %emu.sp = getelementptr i8, ptr %emu.t, i64 {Thread.SHARED}",
                "  %emu.s = load ptr, ptr %emu.sp, align 8",
                *function.places.values(),
            ]
        body = function.body
        at = 1 if not body[0].startswith("  ") else 0
        lines = [function.head, *body[:at], *entry, *body[at:], "}"]
        if function.params is not None:
            lines += _entry(function.name, function.params)
        self.now = None
        return lines

    # -- instructions ------------------------------------------------------------------------------

    def _site(self, line: str) -> int:
        if len(self.sites) < (1 << SITE_BITS) - 1:  # pragma: no branch - only huge modules
            self.sites.append((self.function.name, line.strip()))
        return len(self.sites) - 1

    def _instruction(self, line: str) -> list[str]:
        if self.function.roots and (made := ADDRESS.match(line)):
            root = self.function.roots.get(made["from"])
            if root is not None:
                self.function.roots[made["name"]] = root
        found = _INEXACT.search(line) if " frem " in line or "@llvm." in line else None
        if found is not None:  # pragma: no cover - only wrong kernels
            raise CompileError(f"GPUs have no exact {found[0].strip(' @.')}: {line.strip()}")
        if "addrspace(3)" in line:
            line = self._placed(line)
        if " load " in line and (found := LOAD.match(line)):
            return self._load(line, found)
        if line.startswith("  store ") and (found := STORE.match(line)):
            return self._store(line, found)
        if (" atomicrmw " in line or " cmpxchg " in line) and (found := ATOMIC.match(line)):
            return self._atomic(line, found)
        if " fence " in line:  # pragma: no cover - only kernels run by hand
            return [*self._fenced(), SCOPE.sub("", line)]
        if " asm " in line and (found := ASSEMBLY.match(line)):
            return self._assembly(line, found)
        if "call " in line and (found := CALL.match(line)):
            return self._call(line, found)
        return [plain(line)]

    def _placed(self, line: str) -> str:
        """Name variables in shared memory by a value of this function."""
        places = self.function.places

        def place(match: re.Match[str]) -> str:
            name = match[0]
            found = self.shared.get(name)
            if found is None and name not in self.dynamic:
                return name
            if name not in places:
                offset = self.ends[self.function.name] if found is None else found.offset
                value = f"%emu.s{len(places)}"
                places[name] = f"  {value} = getelementptr i8, ptr %emu.s, i64 {offset}"
            return places[name].split(" = ", 1)[0].strip()

        return re.sub(r'@[-\w$.]+|@"[^"]+"', place, line)

    def _checked(
        self, line: str, found: re.Match[str], type: str, kind: int, align: int
    ) -> list[str]:
        if not self.checked:  # pragma: no cover - only kernels run by hand
            return []
        size = size_of(type)
        if size > _WIDEST:  # pragma: no cover - only wrong kernels
            raise CompileError(f"an access of {size} bytes is wider than the emulator checks")
        low = size | align
        self.function.granule = min(self.function.granule, (low & -low).bit_length() - 1)
        access = Access.pack(size, align, int(found["space"] or 0), kind)
        site = self._site(line)
        checks = self._within(found["ptr"], str(access), site)
        checks.append(
            f"  call void @emu.check(ptr %emu.t, ptr {found['ptr']}, i32 {access}, i32 {site})"
        )
        return checks

    def _within(self, pointer: str, access: str, site: int) -> list[str]:
        """The check that an access stays inside the argument that its address was made from."""
        function = self.function
        which = function.roots.get(pointer)
        if which is None:
            return []
        size, start = self.extents[function.name][which], function.given[which]
        return [
            f"  call void @emu.within(ptr %emu.t, ptr {pointer}, i32 {access}, i32 {site}, "
            f"ptr {start}, i64 {size}, i32 {which})"
        ]

    def _load(self, line: str, found: re.Match[str]) -> list[str]:
        waits = bool(found["how"])
        kind = Access.ATOMIC_READ if waits else Access.READ
        before = self._pause(line) if waits else []
        if "!invariant.load" in line:
            self._note(self.function.constant, line, found)
        check = self._checked(line, found, found["type"], kind, align_of(found, found["type"]))
        return [*before, *check, plain(SCOPE.sub("", line))]

    def _store(self, line: str, found: re.Match[str]) -> list[str]:
        kind = Access.WRITE
        if found["how"]:  # pragma: no cover - only kernels run by hand
            strong = re.search(r" (release|seq_cst)\b", found["tail"] or "")
            kind = Access.ATOMIC_RELEASE if strong else Access.ATOMIC
        self._note(self.function.written, line, found)
        type = type_of(found["value"])
        check = self._checked(line, found, type, kind, align_of(found, type))
        if self.function.sums and type.endswith(("float", "float>")):
            check += self._no_sums(line, type, value_of(found["value"]))
        return [*check, plain(SCOPE.sub("", line))]

    def _no_sums(self, line: str, type: str, value: str) -> Iterator[str]:
        """The checks that what is stored is no sum under way."""
        site, wide = self._site(line), WIDE.match(type)
        for lane in range(int(wide[1]) if wide else 1):
            one = value
            if wide:
                one = self._name()
                yield f"  {one} = extractelement {type} {value}, i32 {lane}"
            bits = self._name()
            yield f"  {bits} = bitcast float {one} to i32"
            yield f"  call void @emu.settled(ptr %emu.t, i32 {bits}, i32 {site})"

    def _atomic(self, line: str, found: re.Match[str]) -> list[str]:
        strong = re.search(r" (release|acq_rel|seq_cst)\b", found["rest"])
        kind = Access.ATOMIC_RELEASE if strong else Access.ATOMIC
        before = self._pause(line) if found["op"] == "cmpxchg" else []
        self._note(self.function.written, line, found)
        type = type_of(found["rest"])
        check = self._checked(line, found, type, kind, size_of(type))
        return [*before, *check, plain(SCOPE.sub("", line))]

    def _note(self, what: dict[int, str], line: str, found: re.Match[str]) -> None:
        """That an access is to a parameter's memory."""
        which = self.function.roots.get(found["ptr"])
        if which is not None:
            what.setdefault(which, line.strip())

    def _pause(self, line: str) -> list[str]:
        self.function.waits = True
        return [f"  call void @emu.pause(ptr %emu.t, i32 {self._site(line)})"]

    def _fenced(self) -> list[str]:  # pragma: no cover - only kernels run by hand
        place = self._name()
        return [
            f"  {place} = getelementptr i8, ptr %emu.t, i64 {Thread.FENCED}",
            f"  store i32 1, ptr {place}, align 4",
        ]

    def _name(self) -> str:
        self.fresh += 1
        return f"%emu.v{self.fresh}"

    def _call(self, line: str, found: re.Match[str]) -> list[str]:
        callee, args = found["callee"], found["args"]
        name = callee[1:]
        if callee in self.defined:
            self.function.calls.add(name)
            given = f"ptr %emu.t, {args}" if args else "ptr %emu.t"
            at = line.index(callee)
            return [plain(f"{line[:at]}{callee}({given}){found['tail']}")]
        if name in REGISTERS:
            place = self._name()
            return [
                f"  {place} = getelementptr i8, ptr %emu.t, i64 {REGISTERS[name]}",
                f"  {found['name']} = load i32, ptr {place}, align 4",
            ]
        if (
            name == "llvm.nvvm.read.ptx.sreg.warpsize"
        ):  # pragma: no cover - only kernels run by hand
            return [f"  {found['name']} = add i32 32, 0"]
        if name == "llvm.trap":  # pragma: no cover - only wrong kernels
            return [f"  call void @emu.trap(ptr %emu.t, i32 {self._site(line)})"]
        if name in self.shims:
            operands = [f"{type_of(a)} {value_of(a)}" for a in split(args)]
            return self._shim(line, found["name"], operands, self.shims[name])
        if name.startswith(_UNKNOWN):  # pragma: no cover - only wrong kernels
            raise CompileError(f"the emulator has no shim of {name}")
        return [plain(line)]

    def _assembly(self, line: str, found: re.Match[str]) -> list[str]:
        name, more = read_assembly(found["text"], found["constraints"])
        operands = [f"{type_of(a)} {value_of(a)}" for a in split(found["args"])]
        self.function.sums = True
        return self._shim(line, found["name"], [*operands, *more], self.shims[name])

    def _shim(self, line: str, name: str | None, operands: Sequence[str], shim: Shim) -> list[str]:
        self.used[shim.name] = shim
        self.function.waits |= shim.waits
        self.function.granule = min(self.function.granule, shim.grain.bit_length() - 1)
        site = self._site(line)
        given = ", ".join(["ptr %emu.t", f"i32 {site}", *operands])
        result = f"{name} = " if name else ""
        checks: list[str] = []
        if self.checked and shim.reads is not None:
            size = operands[2].split(" ")[1] if len(operands) > 2 else str(shim.grain)
            checks = self._within(operands[shim.reads].split(" ")[1], size, site)
        return [*checks, f"  {result}call {shim.ret.text} @{shim.symbol}({given})"]


_ALLOCA = re.compile(r"alloca (.+?)(?:, i\d+ (\d+))?(?:, align \d+)?$")


def _stack_of(line: str) -> int:
    found = _ALLOCA.search(line)
    if found is not None:  # pragma: no cover - only kernels run by hand
        return size_of(found[1]) * int(found[2] or 1) + 64
    vector = WIDE.search(line)
    if "call { " in line:
        return 16 * line.count(",")
    return 16 if vector is None else 16 + 8 * int(vector[1])


#: What the machine offers beside shims.
_OWN = (
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
    """How the machine calls a kernel: with its arguments in memory, 8 bytes each."""
    yield f'define void @"{name}.entry"(ptr %t, ptr %args) nounwind {{'
    operands = ["ptr %t"]
    for n, type in enumerate(params):
        yield f"  %p{n} = getelementptr i8, ptr %args, i64 {8 * n}"
        yield f"  %a{n} = load {type}, ptr %p{n}, align 8"
        operands.append(f"{type} %a{n}")
    yield f"  call void @{name}({', '.join(operands)})"
    yield "  ret void"
    yield "}"
