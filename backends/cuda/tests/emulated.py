"""Programs on the emulator, command by command: for tests of what is launched, without the runtime
in between.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import bringup as bu
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_cuda.codegen.commands import (
    Argument,
    Command,
    Copy,
    Launch,
    Scratch,
    Translated,
)
from bringup_cuda.codegen.lower import _machine, translate
from bringup_cuda_emulator import Gpu, Loaded, load

Array = np.ndarray[Any, Any]


@cache
def gpu() -> Gpu:
    return Gpu()


@lru_cache(maxsize=8)
def _loaded(text: str) -> Loaded:
    """Tests run one program with several inputs, or with the threads in several orders."""
    return load(text)


def translated(
    fn: Callable[..., Any], types: Sequence[TensorType], architecture: str = "sm_90"
) -> tuple[Program, Translated]:
    program = bu.jit(fn).lower(*types, target=f"cuda:{architecture}").program
    return program, translate(program, architecture)


class _Memory:
    """The buffers of one run on the emulated GPU."""

    def __init__(self, program: Program, made: Translated, inputs: Sequence[Array]) -> None:
        self.arena = gpu().arena
        self.live: list[int] = []
        self.places = {
            "input": [self._put(array) for array in inputs],
            "output": [self._room(t.nbytes) for t in program.outputs],
            "constant": [self._put(np.asarray(c.elements)) for c in program.constants],
            "arena": [self._room(program.arena_bytes)],
        }
        self.scratch = self._room(made.scratch_bytes)

    def _room(self, nbytes: int) -> int:
        self.live.append(self.arena.allocate(max(nbytes, 1)))
        return self.live[-1]

    def _put(self, array: Array) -> int:
        whole = np.ascontiguousarray(array)
        address = self._room(whole.nbytes)
        ctypes.memmove(address, whole.ctypes.data, whole.nbytes)
        return address

    def where(self, argument: Argument) -> int:
        if isinstance(argument, Scratch):
            return self.scratch + argument.offset
        index = 0 if argument.space == "arena" else argument.index
        return self.places[argument.space][index] + argument.offset

    def free(self) -> None:
        for address in self.live:
            self.arena.free(address)


def run_program(
    program: Program, made: Translated, inputs: Sequence[Array], seed: int = 0
) -> list[Array]:
    """The outputs of a program without control flow."""
    gpu().seed = seed
    module = _loaded(made.text)
    memory = _Memory(program, made, inputs)
    try:
        for command in made.commands:
            _run_command(module, command, memory)
        results: list[Array] = []
        for type_, address in zip(program.outputs, memory.places["output"], strict=True):
            result = np.empty(type_.shape, type_.dtype.numpy)
            ctypes.memmove(result.ctypes.data, address, result.nbytes)
            results.append(result)
        return results
    finally:
        memory.free()


def _run_command(module: Loaded, command: Command, memory: _Memory) -> None:
    where = memory.where
    if isinstance(command, Launch):
        kernel = command.kernel
        grid, block = (kernel.blocks, 1, 1), (kernel.threads, 1, 1)
        given = [where(a) for a in command.arguments]
        gpu().launch(module, kernel.name, grid, block, given, kernel.shared_bytes)
    else:
        assert isinstance(command, Copy), command
        ctypes.memmove(where(command.target), where(command.source), command.nbytes)


def run(
    fn: Callable[..., Any],
    types: Sequence[TensorType],
    inputs: Sequence[Array],
    architecture: str = "sm_90",
    seed: int = 0,
) -> list[Array]:
    program, made = translated(fn, types, architecture)
    return run_program(program, made, inputs, seed)


_ON_SHARED = re.compile(
    r"getelementptr (?:inbounds )?(?:nuw )?\((?:i8|\[\d+ x i8\]), ptr addrspace\(3\) @[\w$.]+,"
    r" i64 -?\d+\)"
    r"|sub \(i64 0, i64 ptrtoint \(ptr addrspace\(3\) @[\w$.]+ to i64\)\)"
)


def optimised(made: Translated, architecture: str) -> Translated:
    """The program as LLVM's passes for NVPTX leave it, which the code generator is given."""
    machine = _machine(architecture)
    module = llvm.parse_assembly(made.text)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    functions = re.split(r"(?m)^(?=define)", str(module))
    text = functions[0] + "".join(map(_without_constant_addresses, functions[1:]))
    return replace(made, text=text)


def _without_constant_addresses(function: str) -> str:
    """Constant addresses in shared memory as instructions of the entry: the emulator has no
    constants there.
    """
    found = dict.fromkeys(_ON_SHARED.findall(function))
    names = {text: f"%shared.{n}" for n, text in enumerate(found)}
    for text, name in names.items():
        function = function.replace(text, name)
    head, body = function.split("{\n", 1)
    first, rest = body.split("\n", 1)
    label, rest = ([first], rest) if first.split(";")[0].strip().endswith(":") else ([], body)
    made = [line for text, name in names.items() for line in _instructions(name, text)]
    return "\n".join([f"{head}{{", *label, *made, rest])


def _instructions(name: str, constant: str) -> Iterator[str]:
    """The instructions that compute a constant address."""
    words, operands = constant.split("(", 1)
    operands = operands.removesuffix(")")
    if words == "sub ":
        cast = operands.removeprefix("i64 0, i64 ptrtoint (").removesuffix(")")
        yield f"  {name}.n = ptrtoint {cast}"
        operands = f"i64 0, {name}.n"
    yield f"  {name} = {words}{operands}"
