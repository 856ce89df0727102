"""Compiled programs: code that a driver loads, and the commands that launch it.

Both stand in one file on disk, which is found by the program that they were made of: a process that
finds it neither emits LLVM IR nor compiles it.  (NVIDIA's driver keeps what its own compiler makes
of PTX, in ``~/.nv/ComputeCache``.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from bringup import config
from bringup.llvm.host.object_cache import (
    Emitted,
    ObjectCache,
    StoredObject,
    deferred,
    object_key,
)
from bringup.llvm.simt import SimtKernel
from bringup.program.program import ControlStep, Program, Slot
from bringup.records import record
from bringup.types import TensorType
from bringup_cuda.codegen.commands import (
    Argument,
    Command,
    Control,
    Copy,
    Launch,
    Scratch,
    Translated,
)
from bringup_cuda.driver.protocol import Image
from bringup_cuda.targets import PTX_FEATURE

_PACKAGE = Path(__file__).parents[1]


@record
class CompiledProgram:
    """A program that is ready to be loaded.

    image: its code, as the driver takes it.
    commands, scratch_bytes: as in `Translated`.
    """

    image: bytes
    commands: tuple[Command, ...]
    scratch_bytes: int


def compile_program(program: Program, architecture: str, image: Image) -> CompiledProgram:
    """Find a program on disk, or compile it for an architecture such as ``sm_90``.

    Raises UnsupportedError, CompileError.
    """
    import llvmlite

    def emit() -> Emitted:
        from bringup_cuda.codegen.lower import translate

        translated = translate(program, architecture)
        return Emitted(translated.text, _encoded(program, translated))

    source = f"program {program.code_key}"
    module = emit() if config.level("BRINGUP_EMIT") else deferred(source, emit, _PACKAGE)
    key = object_key(module, architecture, image, PTX_FEATURE, llvmlite.__version__)
    stored = image_cache().get(key)
    if stored is None:
        from bringup_cuda.codegen.lower import image_of

        emitted = module if isinstance(module, Emitted) else module.make()
        stored = StoredObject(image_of(emitted.text, architecture, image), emitted.facts)
        image_cache().put(key, stored)
    scratch_bytes, commands = json.loads(stored.facts)
    return CompiledProgram(stored.data, _decoded_commands(program, commands), scratch_bytes)


@cache
def image_cache() -> ObjectCache:
    """The directory of this user."""
    from platformdirs import user_cache_dir

    return ObjectCache(Path(user_cache_dir("bringup")) / "cuda", limit=128 << 20)


# -- commands as JSON ------------------------------------------------------------------------------


def _encoded(program: Program, translated: Translated) -> bytes:
    commands = _encoded_commands(program, translated.commands)
    return json.dumps([translated.scratch_bytes, commands], separators=(",", ":")).encode()


def _encoded_commands(program: Program, commands: Sequence[Command]) -> list[list[Any]]:
    """Lists of a kind and what the command of that kind has; a step is its number."""
    numbers = {id(step): number for number, step in enumerate(program.steps)}
    encoded: list[list[Any]] = []
    for command in commands:
        if isinstance(command, Launch):
            kernel = [getattr(command.kernel, field.name) for field in fields(SimtKernel)]
            arguments = list(map(_encoded_memory, command.arguments))
            encoded.append(["launch", numbers[id(command.step)], kernel, arguments])
        elif isinstance(command, Copy):
            pair = map(_encoded_memory, (command.source, command.target))
            encoded.append(["copy", *pair, command.nbytes])
        else:
            pairs = zip(command.step.programs, command.programs, strict=True)
            bodies = [_encoded_commands(body, inner) for body, inner in pairs]
            encoded.append(["control", numbers[id(command.step)], bodies])
    return encoded


def _decoded_commands(program: Program, encoded: Sequence[Sequence[Any]]) -> tuple[Command, ...]:
    commands: list[Command] = []
    for kind, *rest in encoded:
        if kind == "copy":
            source, target, nbytes = rest
            commands.append(Copy(_decoded_memory(source), _decoded_memory(target), nbytes))
        else:
            step = program.steps[rest[0]]
            if isinstance(step, ControlStep):
                pairs = zip(step.programs, rest[1], strict=True)
                bodies = tuple(_decoded_commands(body, inner) for body, inner in pairs)
                commands.append(Control(step, bodies))
            else:
                _, kernel, arguments = rest
                memory = tuple(map(_decoded_memory, arguments))
                commands.append(Launch(SimtKernel(*kernel), memory, step))
    return tuple(commands)


def _encoded_memory(argument: Argument) -> list[Any]:
    if isinstance(argument, Scratch):
        return [argument.offset, argument.nbytes]
    return [argument.space, argument.index, argument.offset, str(argument.type)]


def _decoded_memory(encoded: Sequence[Any]) -> Argument:
    if len(encoded) == 2:
        return Scratch(*encoded)
    space, index, offset, type_ = encoded
    return Slot(space, index, offset, TensorType.parse(type_))


__all__ = ["CompiledProgram", "compile_program", "image_cache"]
