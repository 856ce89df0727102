"""Ops that change the memory of their first operand: who may have whose memory, and what is kept
out of kernels for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lowering
import numpy as np
import pytest
from lowering import Paper

import bringup as bu
from bringup.backend import Capabilities
from bringup.dtypes import ALL, f32, i32
from bringup.errors import GraphError
from bringup.llvm.claims import emitter_claims, step_claims
from bringup.program.evaluate import evaluate_program
from bringup.program.program import OpStep, Program
from bringup.program.verify import verify_program
from bringup.runtime.compiler import lower_graph

STEPS = Capabilities(kernels=emitter_claims(), ops=step_claims())


def program_of(fn: Any, *types: Any, donated: tuple[int, ...] = ()) -> Program:
    """The program on a device that has op functions beside its kernels."""
    graph = bu.trace(fn, *types)
    made = lower_graph(graph, Paper(STEPS), donated=frozenset(donated)).program
    verify_program(made)
    return made


def steps(program: Program) -> list[str]:
    return [step.op.name if isinstance(step, OpStep) else "kernel" for step in program.steps]


def write(x: Any, u: Any, i: Any) -> Any:
    return bu.dynamic_update_slice(x, u, (i, i))


def test_a_small_update_of_donated_memory_is_a_step_that_writes_it_alone() -> None:
    types = (f32[64, 32], f32[1, 32], i32[()])
    kept = program_of(write, *types, donated=(0,))
    assert steps(kept) == ["dynamic_update_slice"]
    assert kept.aliases == ((0, 0),)
    assert steps(program_of(write, *types)) == ["kernel"], "x must be copied anyhow"
    large = (f32[64, 32], f32[63, 32], i32[()])
    assert steps(program_of(write, *large, donated=(0,))) == ["kernel"]


def test_memory_that_others_read_is_not_changed() -> None:
    def twice(x: Any, u: Any, i: Any) -> Any:
        return write(x, u, i), bu.sum(x, axis=0)

    made = program_of(twice, f32[64, 32], f32[1, 32], i32[()], donated=(0,))
    assert "dynamic_update_slice" not in steps(made)
    x, u = np.ones((64, 32), np.float32), np.zeros((1, 32), np.float32)
    changed, total = evaluate_program(made, [x, u, np.int32(3)])
    assert (changed == 0).sum() == 32
    assert (total == 64).all()


def test_an_operand_that_is_read_as_updates_too_keeps_its_memory() -> None:
    def own(x: Any, i: Any) -> Any:
        return x.at[i].add(x)

    made = program_of(own, f32[8], i32[8], donated=(0,))
    assert steps(made)[-1] == "scatter"
    assert made.aliases == ()


def test_a_dying_intermediate_is_changed_in_place() -> None:
    def chain(x: Any, i: Any, u: Any) -> Any:
        once = bu.sin(x).at[i].add(u)
        return bu.exp(once.at[i].set(u))

    made = program_of(chain, f32[512], i32[8], f32[8])
    scatters = [s for s in made.steps if isinstance(s, OpStep)]
    assert len(scatters) == 2
    assert all(s.operands[0] == s.results[0] for s in scatters)
    x, i = np.linspace(0, 3, 512, dtype=np.float32), np.arange(8, dtype=np.int32) * 3
    (found,) = evaluate_program(made, [x, i, x[:8]])
    wanted = np.sin(x)
    wanted[i] = x[:8]
    np.testing.assert_allclose(found, np.exp(wanted), rtol=1e-5)


def test_what_becomes_an_output_in_place_has_its_memory_from_the_start() -> None:
    def summed(i: Any, u: Any) -> Any:
        return bu.zeros((64,), dtype=bu.float32).at[i].add(u).at[i].max(u)

    made = program_of(summed, i32[8], f32[8])
    fill, *rest = [step for step in made.steps if f32[64] in [s.type for s in step.slots]]
    assert fill.slots[-1].space == "output"
    assert all(s.operands[0] == s.results[0] == fill.slots[-1] for s in rest)
    assert made.arena_bytes < 64 * 4
    i, u = np.arange(8, dtype=np.int32) % 3, np.ones(8, np.float32)
    (found,) = evaluate_program(made, [i, u])
    assert found[:4].tolist() == [3, 3, 2, 0]


def test_a_chain_of_changes_keeps_to_donated_memory() -> None:
    def chain(x: Any, i: Any, u: Any) -> Any:
        return x.at[i].add(u).at[i].multiply(u)

    made = program_of(chain, f32[64], i32[8], f32[8], donated=(0,))
    assert made.aliases == ((0, 0),)
    kept = program_of(chain, f32[64], i32[8], f32[8])
    for program in (made, kept):
        assert not any(
            s.type is f32[64] and s.space == "arena" for t in program.steps for s in t.slots
        )
        x, i, u = np.ones(64, np.float32), np.arange(8, dtype=np.int32), np.full(8, 2, np.float32)
        (found,) = evaluate_program(program, [x, i, u])
        assert found.tolist() == [6.0] * 8 + [1.0] * 56


def test_an_output_that_others_read_before_its_change_is_copied() -> None:
    def both(i: Any, u: Any) -> Any:
        x = bu.exp(bu.ones((64,), dtype=bu.float32) * u[0])
        return x.at[i].add(u), x * 2 + bu.sum(x)

    made = program_of(both, i32[8], f32[8])
    i, u = np.arange(8, dtype=np.int32), np.ones(8, np.float32)
    changed, twice = evaluate_program(made, [i, u])
    np.testing.assert_allclose(changed[8:], np.e, rtol=1e-5)
    np.testing.assert_allclose(twice, 66 * np.e, rtol=1e-5)


def test_a_program_that_changes_what_it_still_reads_is_refused() -> None:
    made = program_of(lambda x, i, u: bu.sin(x).at[i].add(u), f32[8], i32[8], f32[8])
    step = made.steps[-1]
    assert isinstance(step, OpStep)
    x = step.operands[0]
    broken = OpStep(step.op, step.attrs, (x, step.operands[1], x), (x,))
    steps = (*made.steps[:-1], broken, step)
    with pytest.raises(GraphError, match="which it still reads"):
        verify_program(replace(made, steps=steps))


def test_devices_without_the_op_have_it_in_a_kernel() -> None:
    made = lowering.lower(write, f32[64, 32], f32[1, 32], i32[()], donated=(0,)).program
    assert steps(made) == ["kernel"]
    assert made.aliases == ((0, 0),)
    assert {"dynamic_update_slice", "scatter.set"} <= set(step_claims())
    assert step_claims()["scatter.set"] >= frozenset(ALL)
