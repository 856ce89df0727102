"""LLVM IR as LLVM prints it: patterns of its lines, sizes of its types."""

from __future__ import annotations

import re
from itertools import accumulate

from bringup.errors import CompileError

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
