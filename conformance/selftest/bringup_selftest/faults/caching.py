"""Faults of compile caches: a cache of the device's own whose key leaves something out."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from bringup.backend import Backend, Device
from bringup.graph.ir import attrs_key
from bringup.program.program import KernelStep, OpStep, Program, Step
from bringup_selftest.corpus import Fault, Planted

GROUP = "Compile cache"
Key = Callable[[Program], Hashable]


def kept_by(key: Key, *, shared: bool = False) -> Callable[[Backend], Backend]:
    """A plant that keeps executables by a key.  shared: by all devices of the backend."""

    def plant(backend: Backend) -> Backend:
        common: dict[Hashable, Any] = {}

        def edit(device: Device) -> Device:
            own = common if shared else {}
            inner: Any = device.compile

            def compile_(program: Program) -> Any:
                at = key(program)
                if at not in own:
                    own[at] = inner(replace(program))
                return own[at]

            device.compile = compile_  # type: ignore[method-assign]
            return device

        return Planted(backend, device=edit, ops=None)

    return plant


def text(program: Program) -> str:
    """All that matters of a program, as text: what a right key holds."""
    head = (program.inputs, program.outputs, sorted(program.donated), program.aliases)
    parts = [repr(head), str(program.arena_bytes)]
    parts += [f"{c.type} {c.elements.tobytes().hex()}" for c in program.constants]
    return "\n".join([*parts, *map(_step_text, program.steps)])


def _step_text(step: Step) -> str:
    slots = ", ".join(map(str, step.slots))
    if isinstance(step, KernelStep):
        return f"kernel {slots}\n" + str(step.kernel).partition("\n")[2]
    if isinstance(step, OpStep):
        return f"op {step.op.name} {attrs_key(step.attrs)!r} {slots}"
    numbers = replace(step, location=None)
    inner = " ".join(text(each) for each in step.programs)
    shape = [getattr(numbers, n, "") for n in ("carried", "updated", "length", "reverse", "stacks")]
    return f"{step.name} {shape} {slots} {inner}"


def without(*patterns: str, by: str = "") -> Key:
    """The text without what matches."""
    found = [re.compile(pattern) for pattern in patterns]

    def key(program: Program) -> str:
        kept = text(program)
        for pattern in found:
            kept = pattern.sub(by, kept)
        return kept

    return key


def rounded(program: Program) -> str:
    """Numbers to six digits."""

    def short(match: re.Match[str]) -> str:
        return f"{float(match[0]):.5e}"

    return re.sub(r"-?\d+\.\d+(?:e[-+]?\d+)?", short, text(program))


def truncated(program: Program) -> int:
    """Eight bits of a hash."""
    return int(program.key[:2], 16)


def operands_sorted(program: Program) -> tuple[object, ...]:
    """Operands of a launch in whatever order."""
    steps = [tuple(sorted(map(str, step.slots))) for step in program.steps]
    bodies = [
        sorted(line.strip() for line in _step_text(step).split("\n")) for step in program.steps
    ]
    plain = [[re.sub(r"%\d+|buffer=\d+|b\d+", "", line) for line in lines] for lines in bodies]
    shown = tuple(tuple(sorted(lines)) for lines in plain)
    return program.inputs, program.outputs, program.donated, tuple(steps), shown


def by_identity(program: Program) -> int:
    """The object's address, which the next program may have."""
    return id(program)


def by_names(program: Program) -> tuple[object, ...]:
    """What a launch takes and is called, not what it does (cubecl#1455)."""
    steps = tuple((step.name, step.slots) for step in program.steps)
    return program.inputs, program.outputs, program.donated, program.aliases, steps


def _fault(id: str, title: str, key: Key, *, shared: bool = False) -> Fault:
    return Fault(id, GROUP, "key", title, kept_by(key, shared=shared), depth=3)


def _one_attribute(id: str, name: str) -> Fault:
    """A key of ops without one float among their attributes."""
    key = without(rf"\('{name}', \('float', b.*?\)\)")
    return Fault(id, GROUP, "key", f"{name} of ops is missing", kept_by(key), depth=1)


_DENSE = r"(?<=\] )[0-9a-f]{8,}"
_INDEX = r"index<[^>]*>|b\d+\[[^\]]*(?:\[\d+\][^\]]*)*\]"
FAULTS: tuple[Fault, ...] = (
    _fault("CK01", "shapes are missing", without(r"\[[\d,]*\]", r"arena\+\d+", r"^\d+$")),
    _fault("CK02a", "dtypes are missing", without(r"\b(?:[fiu]\d+|bf16|bool)(?=[\[ ,)}])")),
    _fault("CK03a", "the set of donated inputs is missing", without(r"\A.*\n")),
    _fault("CK04", "values of constants are missing", without(r"value=[^},]*", _DENSE)),
    _fault("CK04b", "constants are rounded to six digits", rounded),
    _fault("CK04c", "0.0 is -0.0", without(r"-(?=0(?:\.0)?\b)")),
    _fault("CK04e", "contents of large constants are missing", without(_DENSE)),
    _fault("CK05", "axes and offsets are missing", without(_INDEX)),
    _fault("CK05b", "the direction of comparisons is missing", without(r"direction=[^},]*")),
    _fault("CK05c", "the kind of folds is missing", without(r"fold\.\w+")),
    _fault("CK05d", "attributes of ops are missing", without(r"(?<=op )(\w+) .*\)\)(?= )")),
    _one_attribute("CK05f", "epsilon"),
    _one_attribute("CK05g", "correction"),
    _fault(
        "CK05e", "names of scalar ops are missing", without(r"(?<== )(?:add|sub|mul|max|min)\b")
    ),
    _fault("CK06", "the device is missing", text, shared=True),
    _fault("CK07", "the kernel's body is missing (cubecl#1455)", by_names),
    _fault("CK08", "a hash of eight bits is all", truncated),
    _fault("CK09", "an object's address is the key", by_identity),
    _fault("CK10", "operands are sorted", operands_sorted),
    _fault("CK10b", "widths of dtypes are missing", without(r"(?<=\b[fiu])\d+(?=[\[ ,)}])")),
)
