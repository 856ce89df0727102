"""Long folds in programs: what is shown is the two kernels that run, and their partial results are
memory like any other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lowering import KERNELS, Paper, lower

import bringup as bu
from bringup.dtypes import STORED
from bringup.errors import BackendError
from bringup.kernel.form import Kernel
from bringup.kernel.parser import parse_kernel
from bringup.program.evaluate import evaluate_program
from bringup.program.program import KernelStep, LoopStep
from bringup.runtime.compiler import lower_graph

f32 = bu.float32


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def total(x: Any) -> Any:
    return bu.sum(x * 2)


def test_a_long_sum_is_two_launches() -> None:
    compiled = lower(total, f32[1000], chunk=300)
    assert [kernel.name for kernel in compiled.kernels] == [
        "k0_mul_reduce_partial",
        "k0_mul_reduce_final",
    ]
    cost = compiled.cost()
    assert cost.kernels == 2
    assert (cost.bytes_read, cost.bytes_written) == (4 * (1000 + 4), 4 * (4 + 1))
    assert cost.flops == 2 * 1000 + 4
    assert cost.arena_bytes == 64
    assert str(compiled.program).splitlines()[1:] == [
        "  k0_mul_reduce_partial(f32[1000]@input0, f32[4]@arena+0)",
        "  k0_mul_reduce_final(f32[]@output0, f32[4]@arena+0)",
    ]
    for kernel in compiled.kernels:
        assert str(parse_kernel(str(kernel))) == str(kernel)


def test_the_program_computes_the_sum() -> None:
    compiled = lower(total, f32[1000], chunk=300)
    x = np.arange(1000, dtype=np.float32)
    (result,) = evaluate_program(compiled.program, [x])
    assert result == 2 * x.sum()


def test_a_fold_shorter_than_two_chunks_is_one_launch() -> None:
    assert len(lower(total, f32[599], chunk=300).kernels) == 1


def test_unfused_programs_are_cut_likewise() -> None:
    kernels = lower(total, f32[1000], chunk=300, fuse=False).kernels
    assert [kernel.name for kernel in kernels] == ["k0_mul", "k1_reduce_partial", "k1_reduce_final"]


def test_what_exists_is_counted_exactly() -> None:
    """The last chunk of 34 of every third element reads fewer than the others."""
    cost = lower(lambda x: bu.sum(x[::3] * 2), f32[100], chunk=10).cost()
    assert cost.bytes_read == 4 * (34 + 4)
    assert cost.flops == 2 * 34 + 4


def test_limits_are_part_of_a_programs_key() -> None:
    programs = [lower(total, f32[1000], chunk=chunk).program for chunk in (300, 300, 299)]
    assert programs[0].code_key == programs[1].code_key != programs[2].code_key
    (step, *_) = programs[0].steps
    assert isinstance(step, KernelStep)
    (limit,) = step.kernel.stages[0].limits
    assert str(step.kernel).count(f" if {limit}\n") == 1


def test_partial_results_share_the_arena_with_others() -> None:
    program = lower(lambda x, y: (bu.sum(x), bu.max(y)), f32[1000], f32[2000], chunk=100).program
    slots = {slot for step in program.steps for slot in step.slots if slot.space == "arena"}
    assert {(slot.type.shape, slot.offset) for slot in slots} == {((10,), 0), ((20,), 0)}
    assert program.arena_bytes == 128


def test_both_launches_tell_the_line_of_the_sum() -> None:
    program = lower(total, f32[1000], chunk=300).program
    first, second = (step.location for step in program.steps)
    assert first is not None
    assert first == second
    assert Path(first.file).name == Path(__file__).name


def test_folds_in_loops_are_cut() -> None:
    def loop(x: Any) -> Any:
        return bu.fori_loop(0, 3, lambda _, y: bu.sum(x * y), x[0])

    claims = {**KERNELS.ops, **dict.fromkeys(("while", "scan", "case"), frozenset(STORED))}
    backend = Paper(replace(KERNELS, ops=claims), chunk=100)
    compiled = lower_graph(bu.trace(loop, f32[1000]), backend)
    (step,) = (s for s in compiled.program.steps if isinstance(s, LoopStep))
    assert any(kernel.name.endswith("_partial") for kernel in step.programs[-1].kernels)


def test_a_dump_says_what_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_DUMP", str(tmp_path))
    lower(total, f32[1000], chunk=300)
    (fusion,) = tmp_path.rglob("89-fusion.txt")
    said = "k0_mul_reduce_partial and k0_mul_reduce_final: a fold in 4 chunks of 300"
    assert said in fusion.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("2", "Wrong.chunk_length gave '2', no length of chunks"),
        (-1, "Wrong.chunk_length gave -1, no length of chunks"),
        (None, "Wrong.chunk_length gave None, no length of chunks"),
    ],
)
def test_answers_that_are_no_length_are_refused(answer: Any, complaint: str) -> None:
    class Wrong(Paper):
        def chunk_length(self, kernel: Kernel, target: str = "") -> int:
            length: int = answer
            return length

    with pytest.raises(BackendError, match=complaint):
        lower_graph(bu.trace(total, f32[1000]), Wrong(KERNELS))
