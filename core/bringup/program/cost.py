"""Exact counts of what one run of a program moves and computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np

from bringup.graph import Builder, Instr, Operation, Value
from bringup.graph.index import Axis, Dyn, Expr
from bringup.kernel.form import AxisLimit, Kernel, Stage
from bringup.kernel.ranges import Mask, axis_values, expr_value, span
from bringup.ops.subgraphs import is_branch, is_loop, trips_of
from bringup.ops.table import Kind, OpDef, Trait
from bringup.program.in_place import changed_bytes
from bringup.program.program import (
    BranchStep,
    ControlStep,
    Cost,
    KernelStep,
    OpStep,
    Program,
)
from bringup.types import TensorType

#: Elementwise on floats, and yet they compute nothing.
_FREE = ("select", "convert", "bitcast")


def program_cost(program: Program) -> Cost:
    """The `Cost` of a program."""
    launches = read = written = flops = 0
    aliases = dict(program.aliases)
    for step in program.steps:
        if isinstance(step, ControlStep):
            inside = _control_cost(step)
            launches += inside.kernels
            read += inside.bytes_read
            written += inside.bytes_written
            flops += inside.flops
            continue
        launches += 1
        own = _launch_cost(step, aliases)
        read, written, flops = read + own[0], written + own[1], flops + own[2]
    return Cost(launches, read, written, flops, program.arena_bytes, _call_bytes(program))


def launch_facts(step: KernelStep | OpStep) -> dict[str, int]:
    """What the timeline says of a launch: bytes that it moves, and floating-point operations."""
    read, written, flops = _launch_cost(step, {})
    return {"bytes": read + written, "flops": flops}


def _launch_cost(step: KernelStep | OpStep, aliases: Mapping[int, int]) -> tuple[int, int, int]:
    """Bytes read, bytes written, and floating-point operations."""
    if isinstance(step, OpStep):
        changed = changed_bytes(step, aliases) if step.operands else None
        read = sum(s.type.nbytes for s in step.operands[changed is not None :])
        written = sum(s.type.nbytes for s in step.results) if changed is None else changed
        return read, written, _op_flops(step.op, [s.type for s in step.operands], step.attrs)
    kernel = step.kernel
    read = sum(_bytes_read(kernel, i) for i in kernel.inputs)
    written = sum(kernel.buffers[i].type.nbytes for i in kernel.outputs)
    return read, written, kernel_flops(kernel)


def _call_bytes(program: Program) -> int:
    """Memory of a call: its buffers, what is written over a donated one once, and the scratch."""
    shared = {output for output, _ in program.aliases}
    types = [
        *program.inputs,
        *(t for n, t in enumerate(program.outputs) if n not in shared),
        *(literal.type for literal in program.constants),
    ]
    return program.arena_bytes + sum(t.nbytes for t in types)


def _control_cost(step: ControlStep) -> Cost:
    costs = [program_cost(program) for program in step.programs]
    return _largest(costs) if isinstance(step, BranchStep) else _loop_cost(costs, step.trips)


def host_cost(instr: Instr, costs: Sequence[Cost]) -> Cost:
    """The cost of a loop or branch that core runs.

    costs: of condition and body, or of the branches.
    """
    return _largest(costs) if is_branch(instr) else _loop_cost(costs, trips_of(instr))


def _loop_cost(costs: Sequence[Cost], trips: int | None) -> Cost:
    """The cost of a body that runs a number of times, once if that is unknown; of a condition
    before it, which is asked once more.
    """
    times = (1, 1) if trips is None else (trips + 1, trips)
    return _repeated(costs, times[-len(costs) :])


def _largest(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(max, zip(*map(_fields, costs), strict=True)))


def _repeated(costs: Sequence[Cost], times: Sequence[int]) -> Cost:
    """Programs that run several times, each in the same arena."""
    *counted, arenas, peaks = zip(*map(_fields, costs), strict=True)
    totals = [sum(map(mul, times, column)) for column in counted]
    return Cost(*[*totals, sum(arenas), max(peaks)])


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """The cost of programs run one after the other, each with an arena of its own."""
    *counted, peaks = zip(_fields(Cost(0, 0, 0, 0, 0, 0)), *map(_fields, costs), strict=True)
    return Cost(*[*map(sum, counted), max(peaks)])


def _fields(cost: Cost) -> tuple[int, ...]:
    return (
        cost.kernels,
        cost.bytes_read,
        cost.bytes_written,
        cost.flops,
        cost.arena_bytes,
        cost.peak_bytes,
    )


def _bytes_read(kernel: Kernel, buffer: int) -> int:
    """An element counts once however often it is read: its row, or its panel, stays close.

    Several index maps count one by one, up to the whole buffer.
    """
    maps: dict[Expr, int] = {}
    for stage in kernel.stages:
        for instr in stage.loads():
            if instr.attrs["buffer"] == buffer:
                index = instr.attrs["index"]
                mask = (*instr.attrs["mask"], *stage.bounds)
                count = _elements(kernel, stage, index, mask)
                maps[index] = max(maps.get(index, 0), count)
    type_ = kernel.buffers[buffer].type
    return min(type_.size, sum(maps.values())) * type_.dtype.itemsize


def _elements(kernel: Kernel, stage: Stage, index: Expr, mask: Mask) -> int:
    """How many different elements one index map touches, as far as its axes and its range tell."""
    axes: Sequence[Axis] = tuple(index.axes())
    if any(isinstance(atom, Dyn) for atom in index.atoms()):
        axes = (*kernel.grid, *stage.axes)
    low, high = span(index, mask)
    if not kernel.points or not stage.trips:
        return 0
    return max(0, min(_positions(axes, stage.limits), high - low + 1))


def _positions(axes: Sequence[Axis], limits: Iterable[AxisLimit]) -> int:
    """How many positions of some axes exist.

    An axis counts whole if its limit depends on axes that are not among them.
    """
    free, count = set(axes), 1
    for limit in limits:
        grid = tuple(limit.end.axes())
        if free.issuperset({limit.axis, *grid}):
            free -= {limit.axis, *grid}
            points = np.arange(math.prod(a.size for a in grid), dtype=np.int64)
            ends = expr_value(limit.end, dict(axis_values(grid, points)))
            count *= int(np.minimum(ends, limit.axis.size).sum())
    return count * math.prod(a.size for a in free)


def kernel_flops(kernel: Kernel) -> int:
    """Floating-point operations of a launch: one per op on floats and per fold step.

    A transcendental counts one.  Work that an inner loop does not change is done outside it.
    """
    total = 0
    for stage in kernel.stages:
        used: dict[Value, frozenset[Axis]] = {v: frozenset() for v in stage.body.inputs}
        for instr in stage.body.instrs:
            axes = _own_axes(instr).union(*(used[v] for v in instr.operands))
            used[instr.result] = axes
            if _computes(instr.op, [v.type for v in instr.operands]) and stage.trips:
                inner = (a for a in stage.axes if a in axes)
                total += _positions((*kernel.grid, *inner), stage.limits)
        iterations = _positions((*kernel.grid, *stage.axes), stage.limits)
        total += iterations * sum(f.dtype.is_float for f in stage.folds)
    return total


def _own_axes(instr: Instr) -> frozenset[Axis]:
    exprs = [b.expr for b in instr.attrs.get("mask", ())]
    exprs += [instr.attrs["index"]] if "index" in instr.attrs else []
    return frozenset[Axis]().union(*(e.axes() for e in exprs))


def _computes(op: Operation, operands: Sequence[TensorType]) -> bool:
    assert isinstance(op, OpDef)
    pointwise = op.kind is Kind.ELEMENTWISE or Trait.POINTWISE in op.traits
    return pointwise and op.name not in _FREE and bool(operands) and operands[0].dtype.is_float


def _op_flops(op: Operation, operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> int:
    """Floating-point operations of an op on whole arrays; a composite counts as it decomposes."""
    assert isinstance(op, OpDef)
    if not operands or not operands[0].dtype.is_float:
        return 0
    if _computes(op, operands):
        return sum(t.size for t in op.result_types(tuple(operands), attrs))
    if op.kind is Kind.REDUCTION:
        return operands[0].size
    if op.kind is Kind.CONTRACTION:
        (result,) = op.result_types(tuple(operands), attrs)
        contracted: tuple[int, ...] = attrs["contract"][0]
        return 2 * result.size * math.prod(operands[0].shape[d] for d in contracted)
    if op.kind is not Kind.COMPOSITE or op.decompose is None:
        return 0
    with Builder() as builder:
        results = op.decompose(*(builder.input(t) for t in operands), **attrs)
    graph = builder.build(results if isinstance(results, tuple) else (results,))
    return sum(map(_instr_flops, graph.instrs))


def _instr_flops(instr: Instr) -> int:
    """As `_op_flops`; of a loop, of as many runs of its body as there are, one if that is open."""
    if is_loop(instr):
        trips = trips_of(instr)
        once = sum(map(_instr_flops, instr.attrs["body"].instrs))
        return once if trips is None else trips * once
    return _op_flops(instr.op, [v.type for v in instr.operands], instr.attrs)
