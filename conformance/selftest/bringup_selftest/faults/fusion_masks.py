"""Faults of fused regions that the list has under indices, masks and special values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.graph import Instr, Value
from bringup.graph.builder import Rewrite, current_builder
from bringup.graph.index import Bound, Expr
from bringup.kernel import ops as kops
from bringup.kernel.form import Fold, Kernel, Sink, Stage
from bringup_selftest.corpus import Faults
from bringup_selftest.device import VECTOR
from bringup_selftest.editing import (
    again,
    call,
    cone,
    each_body,
    in_bodies,
    in_fused,
    is_made_by,
    number,
    with_outputs,
)

FAULTS = Faults("Fusion", "fus", depth=3)

Values = tuple[Value, ...]


@FAULTS.by(
    in_fused, "IX15", "starts of slices go to the next operand (xla#49119)", group="Indexing"
)
def starts_rotated(kernel: Kernel) -> Kernel:
    """The starts of slices go to the next operand of a fusion (xla#49119)."""
    found = [i for stage in kernel.stages for i in stage.loads() if not i.operands]
    starts = [i.attrs["index"].const for i in found]
    if len(set(starts)) < 2:
        return kernel
    others = {i: starts[n - 1] for n, i in enumerate(found)}

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr not in others:
            return None
        index: Expr = instr.attrs["index"]
        moved = Expr(others[instr], index.terms)
        size = kernel.buffers[instr.attrs["buffer"]].type.size
        if moved.first < 0 or moved.last >= size:
            return None
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": moved})

    return each_body(kernel, lambda _stage: rewrite)


@FAULTS.by(
    in_fused,
    "MT04",
    "lanes past a row are masked in the max and not in the sum",
    group="Masks and tails",
)
def unmasked_sum(kernel: Kernel) -> Kernel:
    """Lanes past a row are masked in the maximum and not in the sum behind it."""
    highest = [n for n, s in enumerate(kernel.stages) if any(f.kind == "max" for f in s.folds)]

    def tailed(position: int, stage: Stage) -> Stage:
        ragged = stage.axes and stage.axes[-1].size % VECTOR
        if not highest or position <= highest[0] or not ragged:
            return stage
        axis = stage.axes[-1]
        last = Bound(Expr.of(axis), axis.size - 1, axis.size)

        def more(n: int, sink: Sink, values: list[Value]) -> Value:
            if not isinstance(sink, Fold) or sink.kind != "add":
                return values[n]
            twice = call("add", values[n], values[n])
            return call("select", kops.inside(mask=(last,)), twice, values[n])

        return with_outputs(stage, more)

    return replace(kernel, stages=tuple(tailed(n, s) for n, s in enumerate(kernel.stages)))


@FAULTS.by(
    in_fused, "MT07", "a pad's boundary is lost in a fold (pytorch#189895)", group="Masks and tails"
)
def boundary_lost(kernel: Kernel) -> Kernel:
    """The choice at a pad's boundary is lost in a fold: zeros are folded (pytorch#189895)."""

    def open_(stage: Stage) -> Stage:
        def folded(n: int, sink: Sink, values: list[Value]) -> Value:
            if not isinstance(sink, Fold):
                return values[n]
            guards = [i.result for i in cone(values[n]) if i.op.name == "inside"]
            return again(values[n], {v: number(True, v) for v in guards})

        return with_outputs(stage, folded)

    return replace(kernel, stages=tuple(map(open_, kernel.stages)))


@FAULTS.by(in_bodies, "SV13", "softmax without max subtraction", group="NaN, signed zero, infinity")
def peak_kept(_stage: Stage) -> Rewrite:
    """A softmax does not subtract the maximum before it takes powers, nor behind."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "exp" or not is_made_by(operands[0], "sub"):
            return None
        made = operands[0].producer
        assert made is not None
        x, peak = made.operands
        return (call("exp", x),) if peak.producer is None else None

    return rewrite
