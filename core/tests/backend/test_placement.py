"""Strict placement explains itself; a fallback cuts the graph without changing what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.backend import Capabilities, Limits, can_run, check_placement, claims
from bringup.backend.partition import Partition, partition
from bringup.backend.placement import placement
from bringup.dtypes import ALL, DType, f32, f64, i32
from bringup.errors import Location, UnsupportedError
from bringup.graph import Builder, Graph, Literal, Value
from bringup.ops.table import lookup, opdef
from bringup.program.program import OpStep, Program, Slot

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Device:
    name: str
    capabilities: Capabilities


def ops(*names: str, dtypes: Iterable[DType | str] = ALL, **rest: Any) -> Capabilities:
    return Capabilities(ops=claims(names, dtypes), **rest)


def kernels(*names: str, dtypes: Iterable[DType | str] = ALL, **rest: Any) -> Capabilities:
    return Capabilities(kernels=claims(names, dtypes), **rest)


def emit(name: str, *operands: Value, **attrs: Any) -> Value:
    value: Value = lookup(name)(*operands, **attrs)
    return value


def example() -> Graph:
    """``exp(x * 2) + x``, with user lines."""
    with Builder() as b:
        x = b.input(f32[4])
        b.location = Location("model.py", 7, "f")
        two = emit("constant", value=Literal.splat(2.0, f32[4]))
        y = emit("exp", emit("mul", x, two))
        return b.build([emit("add", y, x)])


def test_a_device_that_has_everything_runs_everything() -> None:
    report = placement(example(), Device("chip", ops("exp", "mul", "add")))
    assert [str(p) for p in report] == [
        "%1: f32[4] = constant() {value=f32[4](2.0)} → chip: uploaded",
        "%2: f32[4] = mul(%0, %1) → chip: claimed as an op",
        "%3: f32[4] = exp(%2) → chip: claimed as an op",
        "%4: f32[4] = add(%3, %0) → chip: claimed as an op",
    ]


def error(graph: Graph, capabilities: Capabilities) -> str:
    with pytest.raises(UnsupportedError) as caught:
        check_placement(graph, capabilities, "chip")
    return str(caught.value)


def test_a_missing_op_is_named_with_its_line() -> None:
    assert error(example(), ops("mul", "add")) == (
        "exp(f32[4]) cannot run on chip: it does not claim 'exp'\n"
        "  at model.py:7 (f)\n"
        "  in instruction: %3: f32[4] = exp(%2)\n"
        "  fix: use a dtype and shape it takes, or name a device that may take over: "
        'jit(f, fallback="…")'
    )


def test_a_missing_dtype_is_named_with_those_there_are() -> None:
    assert "it claims 'mul' for i32, f64, not for f32" in error(
        example(), ops("exp", "mul", "add", dtypes=[f64, i32])
    )


def test_a_claim_split_between_ops_and_kernels_is_told() -> None:
    with Builder() as b:
        x = b.input(f32[4])
        graph = b.build([emit("convert", x, dtype=f64)])
    split = Capabilities(ops=claims(["convert"], [f32]), kernels=claims(["convert"], [f64]))
    assert "for f32, f64 only in part as an op, in part in kernels" in error(graph, split)


def test_limits_are_named() -> None:
    everything = ("exp", "mul", "add")
    assert "f32[4] has rank 1, its limit is rank=0" in error(
        example(), ops(*everything, limits=Limits(rank=0))
    )
    assert "f32[4] is beyond its limit elements=3" in error(
        example(), ops(*everything, limits=Limits(elements=3))
    )
    check_placement(example(), ops(*everything, limits=Limits(elements=4, rank=1)))


def test_movement_and_counters_need_no_claim_in_kernels() -> None:
    with Builder() as b:
        moved = emit("transpose", b.input(f32[4, 2]), permutation=(1, 0))
        graph = b.build([emit("exp", moved), emit("iota", type=f32[4], dim=0)])
    check_placement(graph, kernels("exp"))
    assert "it does not claim 'transpose'" in error(graph, ops("exp"))
    report = placement(graph, Device("chip", kernels("exp")))
    assert [p.reason for p in report] == [
        "part of a kernel",
        "claimed in kernels",
        "part of a kernel",
    ]
    assert can_run(graph.instrs[0], kernels("exp"))
    assert not can_run(graph.instrs[0], kernels("exp", dtypes=[f64]))
    assert not can_run(graph.instrs[0], ops("exp"))


def test_the_steps_of_a_program_are_reported() -> None:
    x, z = Slot("input", 0, 0, f32[4]), Slot("output", 0, 0, f32[4])
    step = OpStep(lookup("add"), {}, (x, x), (z,))
    program = Program("main", (f32[4],), (f32[4],), (step,))
    [row] = placement(program, Device("chip", ops("add")))
    assert str(row) == "add(f32[4], f32[4]) -> f32[4] → chip: op"


def test_a_fallback_takes_what_the_device_lacks_and_moves_are_counted() -> None:
    chip, host = Device("chip", ops("mul", "add")), Device("host", ops("exp"))
    report = placement(example(), chip, host)
    assert [str(p) for p in report] == [
        "%2: f32[4] = mul(%0, %1) → chip: claimed as an op",
        "%3: f32[4] = exp(%2) → host: chip: it does not claim 'exp', 16 bytes moved",
        "%4: f32[4] = add(%3, %0) → chip: claimed as an op, 16 bytes moved",
    ]


def test_results_come_home() -> None:
    chip, host = Device("chip", ops("add")), Device("host", ops("exp", "mul"))
    with Builder() as b:
        x = b.input(f32[4])
        graph = b.build([emit("exp", x), x])
    cut = partition(graph, chip, host)
    assert [(t.source, t.target, t.before, t.nbytes) for t in cut.transfers] == [
        ("chip", "host", 0, 16),
        ("host", "chip", 1, 16),
    ]
    assert str(cut.report[-1]) == "return → chip: results made on host, 16 bytes moved"
    assert cut.bytes_moved == 32


def test_what_neither_runs_names_both() -> None:
    with pytest.raises(UnsupportedError) as caught:
        partition(example(), Device("chip", ops("add")), Device("host", ops("exp")))
    assert "mul(f32[4], f32[4]) cannot run on chip: it does not claim 'mul'; nor on host: it " in (
        str(caught.value)
    )


def test_independent_work_of_one_device_shares_a_segment() -> None:
    with Builder() as b:
        x, y = b.input(f32[4]), b.input(f32[4])
        outputs = [emit("neg", emit("exp", emit("neg", v))) for v in (x, y)]
        graph = b.build(outputs)
    cut = partition(graph, Device("chip", ops("neg")), Device("host", ops("exp")))
    assert [(s.device, len(s.graph)) for s in cut.segments] == [
        ("chip", 2),
        ("host", 2),
        ("chip", 2),
    ]
    assert cut.segments[0].graph.name == "main.chip"


def run(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs by the references of the ops."""
    env = dict(zip(graph.inputs, inputs, strict=True))
    for instr in graph.instrs:
        with np.errstate(all="ignore"):
            env[instr.result] = opdef(instr).reference(
                *(env[v] for v in instr.operands), **instr.attrs
            )
    return [env[v] for v in graph.outputs]


def run_cut(graph: Graph, cut: Partition, home: str, inputs: Sequence[Array]) -> list[Array]:
    """The outputs by the segments, each seeing only what is in its own device's memory."""
    memory: dict[str, dict[Value, Array]] = {s.device: {} for s in cut.segments}
    memory.setdefault(home, {}).update(zip(graph.inputs, inputs, strict=True))
    for number in range(len(cut.segments) + 1):
        for t in cut.transfers:
            if t.before == number:
                assert t.value not in memory[t.target], "moved twice"
                memory[t.target][t.value] = memory[t.source][t.value]
        if number < len(cut.segments):
            part = cut.segments[number]
            here = memory[part.device]
            results = run(part.graph, [here[v] for v in part.inputs])
            here.update(zip(part.outputs, results, strict=True))
    return [memory[home][v] for v in graph.outputs]


def test_what_is_read_later_is_computed_there_unless_more_has_to_last() -> None:
    """``max`` makes fewer bytes than it reads of ``-x``, which nothing else keeps."""
    with Builder() as b:
        x, y = b.input(f32[4]), b.input(f32[1])
        wide = emit("broadcast_in_dim", y, shape=(4,), dims=(0,))
        least = emit("reduce", emit("neg", x), kind="max", dims=(0,))
        other = emit("exp", x)
        total = emit("reduce", other, kind="add", dims=(0,))
        graph = b.build([emit("add", other, wide), emit("mul", least, total)])
    names = ("neg", "add", "mul", "broadcast_in_dim", "reduce.max", "reduce.add")
    cut = partition(graph, Device("chip", ops(*names)), Device("host", ops("exp")))
    assert [[instr.op.name for instr in s.graph.instrs] for s in cut.segments] == [
        ["neg", "reduce"],
        ["exp"],
        ["broadcast_in_dim", "reduce", "add", "mul"],
    ]


NAMES = ("neg", "abs", "floor", "add", "mul", "max", "constant")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs over vectors; operands are drawn as backward distances."""
    with Builder() as b:
        values = [b.input(f32[3]), b.input(f32[3])]
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=12)):
            if name == "constant":
                number = float(draw(st.integers(-3, 3)))
                values.append(emit(name, value=Literal.splat(number, f32[3])))
                continue
            back = st.integers(1, len(values))
            operands = [values[-draw(back)] for _ in range(lookup(name).arity or 1)]
            values.append(emit(name, *operands))
        chosen = st.lists(st.sampled_from(values), min_size=1, max_size=3)
        return b.build(draw(chosen))


@given(graphs(), st.sets(st.sampled_from(NAMES)))
def test_a_cut_graph_computes_the_same_and_moves_no_more_than_reported(
    graph: Graph, on_chip: set[str]
) -> None:
    chip, host = Device("chip", ops(*on_chip)), Device("host", ops(*NAMES))
    cut = partition(graph, chip, host)
    inputs = [np.float32([1.5, -2.5, 0.0]), np.float32([-0.5, 3.0, 7.25])]
    expected, found = run(graph, inputs), run_cut(graph, cut, "chip", inputs)
    for a, b in zip(expected, found, strict=True):
        assert np.array_equal(a, b)
    for part in cut.segments:
        capabilities = {"chip": chip, "host": host}[part.device].capabilities
        check_placement(part.graph, capabilities)
    assert sum(p.bytes_moved for p in cut.report) == cut.bytes_moved
    devices = [s.device for s in cut.segments]
    assert all(a != b for a, b in pairwise(devices))
