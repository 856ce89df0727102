"""Faults of how fused kernels are cut into lanes, vectors and parts, and of what lanes convert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bringup.graph import Instr, Value
from bringup.graph.builder import Rewrite, current_builder
from bringup.graph.index import Axis, Bound, Expr
from bringup.kernel import ops as kops
from bringup.kernel.form import Fold, Kernel, Sink, Stage, Store
from bringup_selftest.corpus import Faults
from bringup_selftest.device import VECTOR
from bringup_selftest.editing import (
    call,
    each_store,
    in_bodies,
    in_fused,
    number,
    with_outputs,
)

FAULTS = Faults("Fusion", "fus", depth=3)

#: Iterations of a fold that one part takes.
_PART = 64
#: Where products are packed: least multiplications, longest block of a sum, rows of a tile.
_PACKED, _DEPTH, _ROWS = 1 << 17, 256, 14
Values = tuple[Value, ...]


@FAULTS.by(in_fused, "FU37a", "only whole vectors of a result are written")
def tail_lost(kernel: Kernel) -> Kernel:
    """Of a result only what fills whole vectors is written."""

    def whole(_stage: int, store: Store) -> Store:
        decl = kernel.buffers[store.buffer]
        count = decl.type.size // VECTOR * VECTOR
        if decl.role == "tile" or not count:
            return store
        return replace(store, mask=(*store.mask, Bound(store.index, 0, count)))

    return each_store(kernel, whole)


@FAULTS.by(in_fused, "FU40a", "a long fold in parts loses an element at the seam")
def seam_lost(kernel: Kernel) -> Kernel:
    """Parts of a long fold are off by one: the first element behind a seam is in none of them."""

    def parted(stage: Stage) -> Stage:
        if not stage.folds or not stage.axes or stage.axes[-1].size <= _PART:
            return stage
        seam = Bound(Expr.of(stage.axes[-1]), _PART, _PART + 1)

        def without(n: int, sink: Sink, values: list[Value]) -> Value:
            if not isinstance(sink, Fold):
                return values[n]
            nothing = number(sink.monoid.empty(sink.dtype.numpy), values[n])
            return call("select", kops.inside(mask=(seam,)), nothing, values[n])

        return with_outputs(stage, without)

    return replace(kernel, stages=tuple(map(parted, kernel.stages)))


def _packs(kernel: Kernel) -> bool:
    first = kernel.stages[0]
    products = kernel.points * first.trips
    return any(f.product for f in first.folds) and products >= _PACKED and len(kernel.grid) > 1


@FAULTS.by(in_fused, "FU42a", "packed products add their first block alone")
def first_block_alone(kernel: Kernel) -> Kernel:
    """Of a sum of packed products the blocks after the first are not added."""
    first = kernel.stages[0]
    if not _packs(kernel) or first.axes[-1].size <= _DEPTH:
        return kernel
    block = Bound(Expr.of(first.axes[-1]), 0, _DEPTH)

    def within(n: int, _sink: Sink, values: list[Value]) -> Value:
        return call("select", kops.inside(mask=(block,)), values[n], number(0, values[n]))

    return replace(kernel, stages=(with_outputs(first, within), *kernel.stages[1:]))


@FAULTS.by(in_fused, "FU43a", "packed products are stored in whole tiles")
def whole_tiles(kernel: Kernel) -> Kernel:
    """What follows packed products is stored for whole tiles of rows alone."""
    rows = kernel.grid[-2] if _packs(kernel) else None
    if rows is None or rows.size < _ROWS:
        return kernel
    whole = Bound(Expr.of(rows), 0, rows.size // _ROWS * _ROWS)
    return each_store(kernel, lambda _n, store: replace(store, mask=(*store.mask, whole)))


@FAULTS.by(in_bodies, "FU38a", "the last axis is read densely, strided or not")
def dense_last(_stage: Stage) -> Rewrite:
    """A read whose last axis has a stride is done as if it had none."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or operands:
            return None
        expr: Expr = instr.attrs["index"]
        steps = {atom: c for atom, c in expr.terms if isinstance(atom, Axis)}
        if len(steps) < len(expr.terms) or not steps or min(map(abs, steps.values())) == 1:
            return None
        last = max(steps, key=lambda axis: axis.id)
        if steps[last] < 0:
            return None
        dense = Expr(expr.const)
        for axis, c in steps.items():
            dense = dense + Expr.of(axis) * (1 if axis is last else c)
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": dense})

    return rewrite


@FAULTS.by(in_bodies, "FU41a", "a read begins at the vector before its start")
def aligned_start(_stage: Stage) -> Rewrite:
    """A read along elements in a row begins where a vector may, before its start perhaps."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or operands:
            return None
        expr: Expr = instr.attrs["index"]
        start = expr.const // VECTOR * VECTOR
        if start == expr.const or 1 not in (c for _, c in expr.terms):
            return None
        early = Expr(start, expr.terms)
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": early})

    return rewrite


@FAULTS.by(in_bodies, "FU39a", "narrowing integers saturates in kernels")
def saturating(_stage: Stage) -> Rewrite:
    """Integers that become narrower ones saturate."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "convert":
            return None
        (x,), dtype = operands, instr.attrs["dtype"]
        if not (x.dtype.is_integer and dtype.is_integer) or dtype.itemsize >= x.dtype.itemsize:
            return None
        limits, own = np.iinfo(dtype.numpy), np.iinfo(x.dtype.numpy)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        inside = call("max", call("min", x, number(high, x)), number(low, x))
        return current_builder().emit(instr.op, (inside,), instr.attrs)

    return rewrite
