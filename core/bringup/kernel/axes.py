"""Normal form of a kernel's loops: axes split where an index divides them, merged where no index
tells them apart; and the changes of whole stages that it is made of.

Both steps keep every element's address, so they never change a result; they leave loops as long as
possible and index expressions free of divisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bringup.graph import Graph, Instr, Value, rebuild
from bringup.graph.index import Axis, Bound, Div, Expr, Mod
from bringup.kernel.form import Kernel, Sink, Stage, Store
from bringup.kernel.ops import load

ExprMap = Callable[[Expr], Expr]
_BOUNDED = ("load", "inside")
_INDEXED = ("load", "index")


def normalize_axes(kernel: Kernel) -> Kernel:
    """Split, merge and renumber the axes of a kernel."""
    kernel = _split_grid(kernel)
    kernel = replace(kernel, stages=tuple(map(_split_stage, kernel.stages)))
    kernel = _merge_grid(kernel)
    kernel = replace(kernel, stages=tuple(map(_merge_stage, kernel.stages)))
    return _renumber(kernel)


def expressions(stage: Stage) -> Iterator[Expr]:
    """Every index expression of a stage, bounds included."""
    for instr in stage.body.instrs:
        if instr.op.name in _INDEXED:
            yield instr.attrs["index"]
        if instr.op.name in _BOUNDED:
            yield from (b.expr for b in instr.attrs["mask"])
    for store in stage.stores:
        yield store.index
        yield from (b.expr for b in store.mask)


def map_stage(stage: Stage, change: ExprMap, axes: tuple[Axis, ...]) -> Stage:
    """The stage with every expression changed and new inner axes."""
    assert not stage.limits, "folds are cut when nothing else changes their axes any more"
    sinks = tuple(_map_sink(s, change) for s in stage.sinks)
    return Stage(axes, _map_body(stage.body, change), sinks)


def renumber_buffers(stage: Stage, number: Callable[[int], int]) -> Stage:
    """The stage with buffer ``number(n)`` in the place of every buffer n."""

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if instr.op.name != "load":
            return None
        attrs: dict[str, Any] = {**instr.attrs, "buffer": number(instr.attrs["buffer"])}
        return (load(*operands, **attrs),)

    body = stage.body
    if any(number(each) != each for each in (i.attrs["buffer"] for i in stage.loads())):
        body = rebuild(body, rewrite)
    sinks = tuple(
        replace(s, buffer=number(s.buffer)) if isinstance(s, Store) else s for s in stage.sinks
    )
    return replace(stage, body=body, sinks=sinks)


def _map_bounds(bounds: Sequence[Bound], change: ExprMap) -> tuple[Bound, ...]:
    return tuple(Bound(change(b.expr), b.low, b.high) for b in bounds)


def _map_sink(sink: Sink, change: ExprMap) -> Sink:
    if isinstance(sink, Store):
        return Store(sink.buffer, change(sink.index), _map_bounds(sink.mask, change))
    return sink


def _map_body(body: Graph, change: ExprMap) -> Graph:
    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if instr.op.name not in (*_BOUNDED, *_INDEXED):
            return None
        attrs: dict[str, Any] = dict(instr.attrs)
        if "index" in attrs:
            attrs["index"] = change(attrs["index"])
        if "mask" in attrs:
            attrs["mask"] = _map_bounds(attrs["mask"], change)
        result: Value = instr.op(*operands, **attrs)  # type: ignore[operator]
        return (result,)

    return rebuild(body, rewrite)


def _divisor(exprs: Iterator[Expr], axes: tuple[Axis, ...]) -> tuple[Axis, int] | None:
    """An axis that stands alone under a division or remainder that splits it evenly."""
    for e in exprs:
        for atom in e.atoms():
            if isinstance(atom, (Div, Mod)):
                axis = atom.of.axis
                if axis is None or axis not in axes:
                    continue
                if axis.size % atom.by == 0 and atom.by < axis.size:
                    return axis, atom.by
    return None


def _fresh(kernel_axes: Sequence[Axis]) -> int:
    return max((a.id for a in kernel_axes), default=-1) + 1


def _split_axis(
    axes: tuple[Axis, ...], axis: Axis, by: int, fresh: int
) -> tuple[tuple[Axis, ...], ExprMap]:
    high, low = Axis(fresh, axis.size // by), Axis(fresh + 1, by)
    table = {axis: Expr.of(high) * by + Expr.of(low)}
    at = axes.index(axis)
    return (*axes[:at], high, low, *axes[at + 1 :]), lambda e: e.substitute(table)


def _all_axes(kernel: Kernel) -> list[Axis]:
    return [*kernel.grid, *(a for s in kernel.stages for a in s.axes)]


def _split_grid(kernel: Kernel) -> Kernel:
    while True:
        found = _divisor((e for s in kernel.stages for e in expressions(s)), kernel.grid)
        if found is None:
            return kernel
        grid, change = _split_axis(kernel.grid, *found, 1000 + _fresh(_all_axes(kernel)))
        stages = tuple(map_stage(s, change, s.axes) for s in kernel.stages)
        kernel = replace(kernel, grid=grid, stages=stages)


def _split_stage(stage: Stage) -> Stage:
    while True:
        found = _divisor(expressions(stage), stage.axes)
        if found is None:
            return stage
        axes, change = _split_axis(stage.axes, *found, 100_000 + _fresh(stage.axes))
        stage = map_stage(stage, change, axes)


def _merges(exprs: Iterator[Expr], outer: Axis, inner: Axis) -> bool:
    for e in exprs:
        a, b = e.coefficient(outer), e.coefficient(inner)
        if a is None or b is None or a != b * inner.size:
            return False
    return True


def _merged(outer: Axis, inner: Axis) -> tuple[Axis, ExprMap]:
    axis = Axis(outer.id, outer.size * inner.size)

    def change(e: Expr) -> Expr:
        stride = e.coefficient(inner)
        if not stride:
            return e
        rest = Expr(e.const, tuple(t for t in e.terms if t[0] not in (outer, inner)))
        return rest + Expr.of(axis) * stride

    return axis, change


def _pair(
    axes: tuple[Axis, ...], exprs: Callable[[], Iterator[Expr]]
) -> tuple[int, Axis, ExprMap] | None:
    for at in range(len(axes) - 1):
        if axes[at].size > 1 and axes[at + 1].size > 1 and _merges(exprs(), axes[at], axes[at + 1]):
            return at, *_merged(axes[at], axes[at + 1])
    return None


def _merge_grid(kernel: Kernel) -> Kernel:
    while True:
        found = _pair(kernel.grid, lambda k=kernel: (e for s in k.stages for e in expressions(s)))  # type: ignore[misc]
        if found is None:
            return kernel
        at, axis, change = found
        grid = (*kernel.grid[:at], axis, *kernel.grid[at + 2 :])
        stages = tuple(map_stage(s, change, s.axes) for s in kernel.stages)
        kernel = replace(kernel, grid=grid, stages=stages)


def _merge_stage(stage: Stage) -> Stage:
    while True:
        found = _pair(stage.axes, lambda s=stage: expressions(s))  # type: ignore[misc]
        if found is None:
            return stage
        at, axis, change = found
        stage = map_stage(stage, change, (*stage.axes[:at], axis, *stage.axes[at + 2 :]))


def merge_neighbours(stage: Stage, axes: tuple[Axis, ...]) -> tuple[Stage, tuple[Axis, ...]]:
    """The stage with neighbours among ``axes`` merged where no index of it tells them apart, and
    what becomes of those axes; those of size 1 vanish.
    """
    axes = tuple(a for a in axes if a.size > 1)
    while True:
        found = _pair(axes, lambda s=stage: expressions(s))  # type: ignore[misc]
        if found is None:
            return stage, axes
        at, axis, change = found
        axes = (*axes[:at], axis, *axes[at + 2 :])
        stage = map_stage(stage, change, stage.axes)


def _renumber(kernel: Kernel) -> Kernel:
    grid = tuple(Axis(i, a.size) for i, a in enumerate(kernel.grid))
    table = dict(zip(kernel.grid, grid, strict=True))
    stages: list[Stage] = []
    for stage in kernel.stages:
        axes = tuple(Axis(len(grid) + i, a.size) for i, a in enumerate(stage.axes))
        full = {**table, **dict(zip(stage.axes, axes, strict=True))}
        if all(k == v for k, v in full.items()):
            stages.append(stage)
            continue
        exact = {k: Expr.of(v) for k, v in full.items()}
        stages.append(map_stage(stage, lambda e, t=exact: e.substitute(t), axes))  # type: ignore[misc]
    return replace(kernel, grid=grid, stages=tuple(stages))
