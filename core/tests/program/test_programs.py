"""Random graphs through every pass, fusion and planning: programs keep values and their rules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from growing import LIMITS, graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import KERNELS, Paper, lower

import bringup as bu
from bringup import float32 as f32
from bringup.backend import Capabilities, claims
from bringup.dtypes import ALL
from bringup.errors import ConversionError, GraphError
from bringup.graph import Builder, Graph, Literal
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.kernel.parser import parse_kernel
from bringup.ops.build import constant, rows
from bringup.ops.table import lookup
from bringup.program.evaluate import check_program, evaluate_program
from bringup.program.plan import plan
from bringup.program.program import KernelStep, OpStep, Program, Slot
from bringup.program.verify import PROGRAM_RULES, verify_program
from bringup.runtime.compiler import Options, lower_graph

LEFT_WHOLE = ("exp", "tanh", "dot_general", "reduce.add", "transpose", "concatenate")
#: Kernels, and some ops as calls on whole buffers.
MIXED = Capabilities(
    kernels={name: d for name, d in KERNELS.kernels.items() if name not in LEFT_WHOLE},
    ops=claims(["exp", "tanh", "dot_general", "reduce"], ALL),
)
#: Nothing but calls.
CALLS = Capabilities(ops=KERNELS.kernels)


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion and planning are compared in value with the graph, and programs verified."""
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def program_of(
    graph: Graph, capabilities: Capabilities, donated: frozenset[int], *, fuse: bool = True
) -> Program:
    kept = frozenset(i for i in donated if i < len(graph.inputs))
    options = Options(fuse=fuse)
    return lower_graph(graph, Paper(capabilities), donated=kept, options=options).program


donations = st.frozensets(st.integers(0, 2))


@settings(max_examples=50)
@given(graph=graphs, limits=st.sampled_from(LIMITS), donated=donations, fuse=st.booleans())
def test_programs_of_kernels(
    graph: Graph, limits: Limits, donated: frozenset[int], fuse: bool
) -> None:
    program = program_of(graph, replace(KERNELS, limits=limits), donated, fuse=fuse)
    verify_program(program)
    assert all(isinstance(step, KernelStep) for step in program.steps)
    check_arena(program)


@settings(max_examples=30)
@given(graph=graphs, donated=donations, capabilities=st.sampled_from((MIXED, CALLS)))
def test_programs_of_kernels_and_calls(
    graph: Graph, donated: frozenset[int], capabilities: Capabilities
) -> None:
    program = program_of(graph, capabilities, donated)
    verify_program(program)
    if capabilities is CALLS:
        assert all(isinstance(step, OpStep) for step in program.steps)
    check_arena(program)


def check_arena(program: Program) -> None:
    """No larger than all its slots side by side, no smaller than those of any one step."""
    slots = {s for step in program.steps for s in step.slots if s.space == "arena"}
    assert all(s.offset % 64 == 0 for s in slots)
    ends = [s.offset + s.type.nbytes for s in slots]
    assert program.arena_bytes >= max(ends, default=0)
    written = [s for step in program.steps for s in writes(step) if s.space == "arena"]
    assert program.arena_bytes <= sum(max(64, -(-s.type.nbytes // 64) * 64) for s in written)


def writes(step: KernelStep | OpStep) -> tuple[Slot, ...]:
    if isinstance(step, OpStep):
        return step.results
    decls = [d for d in step.kernel.buffers if d.role != "tile"]
    return tuple(s for s, d in zip(step.slots, decls, strict=True) if d.role == "out")


@settings(max_examples=30)
@given(graph=graphs, donated=donations)
def test_equal_content_has_equal_keys(graph: Graph, donated: frozenset[int]) -> None:
    first, second = (program_of(graph, KERNELS, donated) for _ in range(2))
    assert first.key == second.key == replace(first, name="other").key
    assert replace(first, arena_bytes=first.arena_bytes + 64).key != first.key
    if first.steps:
        assert replace(first, steps=first.steps[:-1]).key != first.key


def test_code_in_little_time_is_another_program_of_equal_text() -> None:
    with Builder() as b:
        graph = b.build([lookup("exp")(b.input(f32[8]))], "g")
    fast, soon = (
        lower_graph(graph, Paper(KERNELS), options=Options(optimize=optimize)).program
        for optimize in (True, False)
    )
    assert (fast.optimize, soon.optimize) == (True, False)
    assert str(fast) == str(soon)
    assert fast.key != soon.key


def test_blocks_alike_lie_in_one_order() -> None:
    """One launch leaves two values for the next: nothing but their order tells them apart."""
    one_loop = replace(KERNELS, limits=Limits(stages=1))

    def built() -> Graph:
        with Builder() as builder:
            return builder.build([rows.softmax(builder.input(f32[8]), dims=(0,))])

    kept = [built() for _ in range(40)]  # alive, so that each has other addresses
    programs = [program_of(graph, one_loop, frozenset()) for graph in kept]
    assert len({p.key for p in programs}) == 1


# -- the rules of programs -------------------------------------------------------------------------


def chain() -> Program:
    """Two products: one intermediate in the arena, the last over the donated input."""
    return lower(lambda x, y: (x @ y) @ y, f32[4, 4], f32[4, 4], donated=[0]).program


def moved(program: Program, step: int, position: int, slot: Slot) -> Program:
    """The program with another slot at one position of a step."""
    steps = list(program.steps)
    changed = steps[step]
    assert isinstance(changed, KernelStep)
    slots = (*changed.slots[:position], slot, *changed.slots[position + 1 :])
    steps[step] = replace(changed, slots=slots)
    return replace(program, steps=tuple(steps))


MATRIX = f32[4, 4]


Broken = dict[str, tuple[str, Program, str]]


def broken() -> Broken:
    """What is wrong: the rule, the program, and what is said."""
    return broken_slots() | broken_flow()


def broken_slots() -> Broken:
    right = chain()
    assert right.aliases == ((0, 0),)
    out = len(right.steps[0].slots) - 1
    return {
        "alias of a kept input": (
            "aliases", replace(right, donated=frozenset()), "which is not donated",
        ),
        "donated and absent": (
            "aliases", replace(right, donated=frozenset({0, 7})), "does not exist",
        ),
        "two aliases": ("aliases", replace(right, aliases=((0, 0), (0, 0))), "two aliases"),
        "outside the arena": ("slots", replace(right, arena_bytes=0), "outside the arena"),
        "misaligned": (
            "slots",
            moved(replace(right, arena_bytes=99), 0, out, Slot("arena", 0, 2, MATRIX)),
            "not aligned",
        ),
        "no such input": (
            "slots", moved(right, 0, 0, Slot("input", 9, 0, MATRIX)), "does not exist",
        ),
        "another type": (
            "signatures",
            moved(replace(right, arena_bytes=999), 0, out, Slot("arena", 0, 0, f32[4, 5])),
            "takes",
        ),
    }  # fmt: skip


def broken_flow() -> Broken:
    right = chain()
    first, last = right.steps
    out = len(first.slots) - 1
    return {
        "reads what nobody wrote": (
            "flow", replace(right, steps=(last,)), "no step wrote it",
        ),
        "never written": ("flow", replace(right, steps=(first,)), "output 0 is never written"),
        "written twice": ("flow", replace(right, steps=(*right.steps, last)), "again"),
        "writes an input": (
            "flow", moved(right, 0, out, Slot("input", 1, 0, MATRIX)), "writes",
        ),
        "overwritten too early": (
            "flow",
            replace(right, steps=(*moved(right, 0, out, last.slots[-1]).steps[:1], first, last)),
            "step 0 wrote over it",
        ),
        "over what it reads": ("in place", over_its_operand(), "which it still reads"),
        "two results in one place": ("in place", one_place(), "which overlap"),
    }  # fmt: skip


def over_its_operand() -> Program:
    """A product in the place of its own operand."""
    made = lower(lambda x, y: ((x @ y) @ y) @ y, f32[4, 4], f32[4, 4]).program
    _, middle, last = made.steps
    place = Slot("arena", 0, 0, MATRIX)
    assert place in middle.slots[:-1]
    reads = last.slots.index(middle.slots[-1])
    return moved(moved(made, 1, len(middle.slots) - 1, place), 2, reads, place)


def one_place() -> Program:
    """Both results of the first kernel in one place, where the second finds them."""

    def weighed(x: Any, gain: Any, weight: Any) -> Any:
        return bu.sum(bu.nn.layer_norm(x, gain) * weight)

    made = lower(bu.grad(weighed, argnums=(0, 1)), f32[8, 4], f32[4], f32[8, 4]).program
    first, last = made.steps
    one, other = (s for s in writes(first) if s.space == "arena")
    assert one.type is other.type
    moved_once = moved(made, 0, first.slots.index(other), one)
    return moved(moved_once, 1, last.slots.index(other), one)


@pytest.mark.parametrize("name", broken())
def test_a_broken_rule_is_named(name: str) -> None:
    rule, program, complaint = broken()[name]
    with pytest.raises(GraphError) as caught:
        verify_program(program)
    assert caught.value.fix is not None
    assert caught.value.fix.startswith(f"rule {rule}: ")
    assert complaint in caught.value.what


def test_every_rule_is_broken_above() -> None:
    assert {rule for rule, _, _ in broken().values()} == {r.name for r in PROGRAM_RULES}


# -- running them ----------------------------------------------------------------------------------


def subtraction() -> tuple[Graph, list[Launch], Program]:
    graph = bu.trace(lambda x, y: bu.exp(x - y), f32[4], f32[4])
    launches = fuse(graph, Limits())
    return graph, launches, plan(graph, launches)


def test_a_wrong_place_changes_values() -> None:
    graph, launches, program = subtraction()
    check_program(graph, launches, program)
    step = program.steps[0]
    first, second = (step.slots.index(Slot("input", i, 0, f32[4])) for i in range(2))
    swapped = moved(moved(program, 0, first, step.slots[second]), 0, second, step.slots[first])
    verify_program(swapped)
    with pytest.raises(GraphError, match=r"^planning changed the value of graph"):
        check_program(graph, launches, swapped)


def test_a_wrong_kernel_changes_values() -> None:
    graph, (launch,), program = subtraction()
    assert launch.kernel is not None
    wrong = parse_kernel(re.sub(r"sub\((%\d), (%\d)\)", r"sub(\2, \1)", str(launch.kernel)))
    with pytest.raises(GraphError, match=r"^fusion changed the value of graph"):
        check_program(graph, [replace(launch, kernel=wrong)], program)


def test_a_step_that_breaks_the_form_is_named() -> None:
    """Its operand's memory, which another point still reads."""
    program = lower(lambda x: x[::-1] + 1, f32[4]).program
    wrong = replace(program, donated=frozenset({0}), aliases=((0, 0),))
    with pytest.raises(GraphError, match=r"step 0: kernel k0_add: (?s:.*)b0"):
        evaluate_program(wrong, [np.zeros(4, np.float32)])


def test_inputs_are_copied_and_checked() -> None:
    program = lower(lambda x, y: x + y, f32[4], f32[4], donated=[0]).program
    x, y = np.ones(4, np.float32), np.full(4, 2, np.float32)
    assert evaluate_program(program, [x, y])[0].tolist() == [3.0] * 4
    assert x.tolist() == [1.0] * 4
    with pytest.raises(ConversionError, match=r"takes f32\[4\], f32\[4\], got"):
        evaluate_program(program, [x, y.astype(np.float64)])
    with pytest.raises(ConversionError, match="got"):
        evaluate_program(program, [x])


def test_dense_constants_belong_to_the_program() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    with Builder() as builder:
        x = builder.input(f32[2, 3])
        graph = builder.build([rows.mul(x, constant(table, f32))])
    program = program_of(graph, KERNELS, frozenset())
    assert [c.type for c in program.constants] == [f32[2, 3]]
    assert len(program.steps) == 1
    ones = np.ones((2, 3), np.float32)
    assert evaluate_program(program, [ones])[0].tolist() == table.tolist()
    other = replace(program, constants=(Literal.of(table + 1, f32),))
    assert other.key != program.key


def test_the_text_says_what_runs_where() -> None:
    assert str(chain()).splitlines() == [
        "program lambda(f32[4,4], f32[4,4]) -> (f32[4,4]) arena=64",
        "  k0_dot_general(f32[4,4]@input1, f32[4,4]@input0, f32[4,4]@arena+0)",
        "  k1_dot_general(f32[4,4]@input1, f32[4,4]@arena+0, f32[4,4]@output0)",
    ]
