"""Where the variables in shared memory of a module's kernels lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bringup.records import record
from bringup_cuda_emulator.irtext import DEFINE, GLOBAL, SHARED_SPACE, size_of, type_of

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
