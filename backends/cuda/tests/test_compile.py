"""Compiled programs on disk: found by the program, with the commands that launch their code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bringup as bu
from bringup import float32 as f32
from bringup import int32 as i32
from bringup.llvm.host import object_cache
from bringup.llvm.host.object_cache import ObjectCache
from bringup.program.program import Program
from bringup_cuda.codegen import compile as compiling
from bringup_cuda.codegen import lower
from bringup_cuda.codegen.commands import Command, Control, Copy, Launch, Scratch
from bringup_cuda.codegen.compile import CompiledProgram, compile_program

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectCache:
    """An empty directory, and programs looked up in it as users' are."""
    made = ObjectCache(tmp_path)
    monkeypatch.setattr(compiling, "image_cache", lambda: made)
    monkeypatch.setenv("BRINGUP_EMIT", "0")
    return made


@pytest.fixture
def emitted(compiled_for: Callable[[str], list[str]]) -> list[str]:
    """The architectures for which a program is emitted."""
    return compiled_for("translate")


def program_of(fn: Any, *types: Any) -> Program:
    return bu.jit(fn).lower(*types, target="cuda:sm_90").program


def scaled(factor: float) -> Program:
    return program_of(lambda x: bu.exp(x) * factor, f32[8])


def looped(n: Any, x: Any, rows: Any) -> Any:
    """A while, a scan and a case, each inside the one before."""

    def branch(v: Any) -> Any:
        return bu.sort(v) + bu.cumulative_sum(v)

    def step(carry: Any, row: Any) -> Any:
        carry = bu.cond(carry[0] > 0, branch, lambda v: v * row, carry)
        return carry, bu.sum(carry)

    def body(state: Any) -> Any:
        i, v = state
        v, sums = bu.scan(step, v, rows, reverse=True)
        return i + 1, v + bu.sum(sums)

    return bu.while_loop(lambda state: state[0] < n, body, (bu.zeros((), dtype=i32), x))


def scattered(x: Any, at: Any, updates: Any) -> Any:
    return bu.sum(x.at[at].add(updates) @ bu.permute_dims(x, (1, 0)), axis=0)


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "one kernel": (lambda x: bu.exp(x) + 1, (f32[8],)),
    "loops": (looped, (i32, f32[500], f32[6, 500])),
    "op steps": (scattered, (f32[300, 200], i32[50], f32[50, 200])),
    "winners": (lambda x, at, y: x.at[at].set(y), (f32[300, 200], i32[50], f32[50, 200])),
    "nothing to do": (lambda x: bu.sum(x, axis=0), (f32[0, 5],)),
    "a long sort": (lambda x: bu.argsort(x), (f32[70_000],)),
    "no keys": (
        lambda q, k: bu.nn.attention(q, k, k),
        (f32[1, 4, 8], f32[1, 0, 8]),
    ),
}


def kinds_of(commands: tuple[Command, ...]) -> Iterator[type]:
    for command in commands:
        yield type(command)
        if isinstance(command, Launch):
            yield from map(type, command.arguments)
        for inner in command.programs if isinstance(command, Control) else ():
            yield from kinds_of(inner)


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("name", PROGRAMS)
def test_commands_come_back_as_they_were(name: str, emitted: list[str]) -> None:
    fn, types = PROGRAMS[name]
    program = program_of(fn, *types)
    translated = lower.translate(program, "sm_90")
    emitted.clear()
    for _ in range(2):
        found = compile_program(program, "sm_90", "llvm")
        assert found.image == translated.text.encode() + b"\0"
        assert found.commands == translated.commands
        assert found.scratch_bytes == translated.scratch_bytes
    assert emitted == ["sm_90"]


def test_all_kinds_of_commands_are_among_them() -> None:
    programs = [program_of(fn, *types) for fn, types in PROGRAMS.values()]
    kinds = {k for p in programs for k in kinds_of(lower.translate(p, "sm_90").commands)}
    assert kinds >= {Launch, Copy, Control, Scratch}


@pytest.mark.usefixtures("objects")
def test_code_is_made_once_for_program_architecture_and_form(emitted: list[str]) -> None:
    images: set[bytes] = set()
    for _ in range(2):
        for program in (scaled(2.0), scaled(3.0)):
            for architecture in ("sm_80", "sm_90"):
                images.add(compile_program(program, architecture, "ptx").image)
            images.add(compile_program(program, "sm_90", "llvm").image)
    assert emitted == ["sm_80", "sm_90", "sm_90"] * 2
    assert len(images) == 6


@pytest.mark.usefixtures("objects")
def test_the_ptx_of_a_program_is_what_lower_shows() -> None:
    lowered = bu.jit(lambda x: bu.exp(x) + 1).lower(f32[8], target="cuda:sm_90")
    image = compile_program(lowered.program, "sm_90", "ptx").image
    assert image == lowered.asm.encode() + b"\0"


@pytest.mark.usefixtures("objects")
def test_other_emitters_and_versions_emit_again(
    emitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled() -> CompiledProgram:
        return compile_program(scaled(2.0), "sm_90", "llvm")

    first = compiled()
    with monkeypatch.context() as patch:
        patch.setattr(object_cache, "digest_of_sources", lambda *_: "another")
        compiled()
    with monkeypatch.context() as patch:
        patch.setattr(object_cache, "VERSION", "another")
        compiled()
    assert len(emitted) == 3
    assert compiled() == first
    assert len(emitted) == 3


def test_what_is_asked_for_is_of_core_and_of_this_backend(
    objects: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages: list[Path] = []
    monkeypatch.setattr(
        object_cache, "digest_of_sources", lambda *asked: packages.extend(asked) or ""
    )
    compile_program(scaled(2.0), "sm_90", "llvm")
    for module in (bu.__file__, lower.__file__):
        assert module is not None
        assert any(package in Path(module).parents for package in packages)


def test_a_damaged_file_is_made_again(objects: ObjectCache, emitted: list[str]) -> None:
    program = scaled(2.0)
    first = compile_program(program, "sm_90", "llvm")
    (path,) = objects.directory.rglob("*.o")
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:-2] + bytes([good[-2] ^ 1]) + good[-1:]):
        path.write_bytes(bad)
        assert compile_program(program, "sm_90", "llvm") == first
        assert path.read_bytes() == good
    assert len(emitted) == 4


@pytest.mark.usefixtures("objects")
def test_emitters_at_work_are_always_asked(
    emitted: list[str],
    compiled_for: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then code is found by its text, and PTX is not made again."""
    monkeypatch.setenv("BRINGUP_EMIT", "1")
    compiled = compiled_for("to_ptx")
    first, second = (compile_program(scaled(2.0), "sm_90", "ptx") for _ in range(2))
    assert first == second
    assert (emitted, compiled) == (["sm_90"] * 2, ["sm_90"])


_USE = """
import sys
import numpy as np
import bringup as bu
from bringup.runtime.devices import get

def body(state):
    i, x = state
    x, sums = bu.scan(lambda c, r: (bu.sort(c) * 0.5 + r, bu.sum(c)), x, bu.reshape(x, (4, 1)))
    return i + 1, bu.cond(sums[0] > 3, lambda v: v, lambda v: v + 1, x)

x = np.arange(4, dtype=np.float32)
loop = bu.jit(lambda x: bu.while_loop(lambda s: s[0] < 3, body, (0, x))[1], device="cuda-emulated")
product = bu.jit(lambda x, y: bu.sum(x @ y), device="cuda-emulated")
left, right = np.ones((40, 30), np.float32), np.ones((30, 50), np.float32)
print(np.asarray(loop(x)).tolist(), float(product(left, right)))
print("bringup_cuda.codegen.lower" in sys.modules)
"""


_COMPILE = """
import sys
import bringup as bu
from bringup_cuda.codegen.compile import compile_program
from bringup_cuda.runtime.device import CudaDevice
fn = lambda x, y: bu.sum(bu.exp(x @ y), axis=0)
types = (bu.float32[70, 80], bu.float32[80, 90])
program = bu.jit(fn).lower(*types, target="cuda:sm_90").program
print(len(compile_program(program, "sm_90", "ptx").image))
print([name for name in ("bringup_cuda.codegen.lower", "llvmlite.binding") if name in sys.modules])
"""


def test_a_second_process_loads_no_llvm_for_ptx(python: Python) -> None:
    first, second = (python(_COMPILE).stdout.splitlines() for _ in range(2))
    assert first[1] == "['bringup_cuda.codegen.lower', 'llvmlite.binding']"
    assert second == [first[0], "[]"]


def test_a_second_process_runs_no_emitter(python: Python) -> None:
    first, second = (python(_USE).stdout.splitlines() for _ in range(2))
    assert first[1] == "True"
    assert second == [first[0], "False"]
    assert python(_USE, BRINGUP_EMIT="1").stdout.splitlines() == first
