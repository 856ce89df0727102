"""Faults of compile caches: a cache of the device's own whose key leaves something out."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from bringup.backend import Backend, Device
from bringup.graph.ir import attrs_key
from bringup.program.program import KernelStep, OpStep, Program, Step
from bringup_selftest.corpus import Faults, FaultyBackend

FAULTS = Faults("Compile cache", "key", depth=3)
Key = Callable[[Program], Hashable]


def kept_by(key: Key, *, shared: bool = False) -> Callable[[Backend], Backend]:
    """Keep executables by a key.  shared: by all devices of the backend."""

    def inject(backend: Backend) -> Backend:
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

        return FaultyBackend(backend, device=edit, ops=None)

    return inject


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


@FAULTS.by(kept_by, "CK04b", "constants are rounded to six digits")
def rounded(program: Program) -> str:

    def short(match: re.Match[str]) -> str:
        return f"{float(match[0]):.5e}"

    return re.sub(r"-?\d+\.\d+(?:e[-+]?\d+)?", short, text(program))


@FAULTS.by(kept_by, "CK08", "a hash of eight bits is all")
def truncated(program: Program) -> int:
    return int(program.key[:2], 16)


@FAULTS.by(kept_by, "CK10", "operands are sorted")
def operands_sorted(program: Program) -> tuple[object, ...]:
    steps = [tuple(sorted(map(str, step.slots))) for step in program.steps]
    bodies = [
        sorted(line.strip() for line in _step_text(step).split("\n")) for step in program.steps
    ]
    plain = [[re.sub(r"%\d+|buffer=\d+|b\d+", "", line) for line in lines] for lines in bodies]
    shown = tuple(tuple(sorted(lines)) for lines in plain)
    return program.inputs, program.outputs, program.donated, tuple(steps), shown


@FAULTS.by(kept_by, "CK09", "an object's address is the key")
def by_identity(program: Program) -> int:
    return id(program)


@FAULTS.by(kept_by, "CK07", "the kernel's body is missing (cubecl#1455)")
def by_names(program: Program) -> tuple[object, ...]:
    steps = tuple((step.name, step.slots) for step in program.steps)
    return program.inputs, program.outputs, program.donated, program.aliases, steps


def _without_float(name: str) -> Key:
    """A key of ops without one float among their attributes."""
    return without(rf"\('{name}', \('float', b.*?\)\)")


_DENSE = r"(?<=\] )[0-9a-f]{8,}"
_INDEX = r"index<[^>]*>|b\d+\[[^\]]*(?:\[\d+\][^\]]*)*\]"


FAULTS.by(kept_by, "CK01", "shapes are missing")(without(r"\[[\d,]*\]", r"arena\+\d+", r"^\d+$"))
FAULTS.by(kept_by, "CK02a", "dtypes are missing")(without(r"\b(?:[fiu]\d+|bf16|bool)(?=[\[ ,)}])"))
FAULTS.by(kept_by, "CK03a", "the set of donated inputs is missing")(without(r"\A.*\n"))
FAULTS.by(kept_by, "CK04", "values of constants are missing")(without(r"value=[^},]*", _DENSE))
FAULTS.by(kept_by, "CK04c", "0.0 is -0.0")(without(r"-(?=0(?:\.0)?\b)"))
FAULTS.by(kept_by, "CK04e", "contents of large constants are missing")(without(_DENSE))
FAULTS.by(kept_by, "CK05", "axes and offsets are missing")(without(_INDEX))
FAULTS.by(kept_by, "CK05b", "the direction of comparisons is missing")(without(r"direction=[^},]*"))
FAULTS.by(kept_by, "CK05c", "the kind of folds is missing")(without(r"fold\.\w+"))
FAULTS.by(kept_by, "CK05d", "attributes of ops are missing")(without(r"(?<=op )(\w+) .*\)\)(?= )"))
FAULTS.by(kept_by, "CK05f", "epsilon of ops is missing", depth=1)(_without_float("epsilon"))
FAULTS.by(kept_by, "CK05g", "correction of ops is missing", depth=1)(_without_float("correction"))
FAULTS.by(kept_by, "CK05e", "names of scalar ops are missing")(
    without(r"(?<== )(?:add|sub|mul|max|min)\b")
)
FAULTS.by(kept_by, "CK10b", "widths of dtypes are missing")(without(r"(?<=\b[fiu])\d+(?=[\[ ,)}])"))
FAULTS.by(partial(kept_by, shared=True), "CK06", "the device is missing")(text)
