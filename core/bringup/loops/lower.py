"""Kernels as functions of the loop level: the loops that the form of a kernel says, unscheduled.

The grid becomes ``parallel`` loops ``g0, g1, …``; the inner axes of stage number n become the loops
``s{n}_0, s{n}_1, …``; registers become buffers ``r0, r1, …`` and tiles scratch buffers ``t3, …``
by their number in the kernel.  A scalar stands in the outermost loop that has all its axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.graph import Instr, Literal, Value
from bringup.graph.index import Axis, Bound, Expr
from bringup.kernel import form as kernels
from bringup.loops.form import (
    Alloc,
    Buffer,
    For,
    Func,
    Let,
    Load,
    Param,
    Scalar,
    Stmt,
    Store,
    named_axis,
)
from bringup.ops.table import lookup, opdef


def lower_kernel(kernel: kernels.Kernel) -> Func:
    """The loops of a kernel: one iteration of the parallel loops for each point of the grid.

    >>> from bringup.kernel.parser import parse_kernel
    >>> print(lower_kernel(parse_kernel('''kernel double
    ...   b0: in f32[8]
    ...   b1: out f32[8]
    ...   grid a0[8]
    ...   stage 0 over ()
    ...     graph body() {
    ...       %0: f32[] = load() {buffer=0, dtype=f32, index=index<a0[8]>, mask=()}
    ...       %1: f32[] = add(%0, %0)
    ...       return %1
    ...     }
    ...     store b1[a0[8]]''')))
    func double(b0: in f32[8], b1: out f32[8]) {
      for g0 in 8 parallel {
        %0: f32 = b0[g0]
        %1: f32 = add(%0, %0)
        b1[g0] = %1
      }
    }
    """
    return _Lowering(kernel).func()


class _Lowering:
    def __init__(self, kernel: kernels.Kernel) -> None:
        self.kernel = kernel
        self.buffers = [
            Buffer(f"b{n}", decl.type.dtype, decl.type.size)
            if decl.role != "tile"
            else Buffer(f"t{n}", decl.type.dtype, decl.type.size, "scratch")
            for n, decl in enumerate(kernel.buffers)
        ]
        self.grid = {axis: named_axis(f"g{axis.id}", axis.size) for axis in kernel.grid}
        self.registers: list[Buffer] = []
        self.scalars = 0

    def func(self) -> Func:
        kernel, tiles, params = self.kernel, [], []
        for decl, buffer in zip(kernel.buffers, self.buffers, strict=True):
            if decl.role == "tile":
                tiles.append(Alloc(buffer))
            else:
                params.append(Param(buffer, decl.role))
        body: tuple[Stmt, ...] = tuple(tiles)
        for number, stage in enumerate(kernel.stages):
            body += self.stage(number, stage)
        for axis in reversed(kernel.grid):
            body = (For(self.grid[axis], body, "parallel"),)
        return Func(kernel.name, tuple(params), body)

    def stage(self, number: int, stage: kernels.Stage) -> tuple[Stmt, ...]:
        """The statements of one stage, with the registers of its folds before them."""
        inner = {axis: named_axis(f"s{number}_{n}", axis.size) for n, axis in enumerate(stage.axes)}
        rename = _Renaming({**self.grid, **inner})
        before: list[Stmt] = []
        folds: list[Buffer] = []
        for fold in stage.folds:
            register = Buffer(f"r{len(self.registers) + len(folds)}", fold.dtype, 1, "register")
            start = self.fresh(register)
            literal = Literal.of(fold.start(stage.trips), fold.dtype)
            before += [Alloc(register), Let(start, lookup("constant"), (), {"value": literal})]
            before.append(Store(register, Expr(), start))
            folds.append(register)
        loops = self.loops(stage, rename, folds, [inner[axis] for axis in stage.axes])
        self.registers += folds
        return (*before, *loops)

    def loops(
        self,
        stage: kernels.Stage,
        rename: _Renaming,
        folds: Sequence[Buffer],
        axes: Sequence[Axis],
    ) -> tuple[Stmt, ...]:
        """The loop nest of a stage; each level holds the scalars that need no deeper one."""
        levels: list[list[Stmt]] = [[] for _ in range(len(axes) + 1)]
        scalars: dict[Value, Scalar] = {}
        depth: dict[Value, int] = {}
        users = stage.body.users()
        for value, register in zip(stage.body.inputs, self.registers, strict=True):
            scalars[value], depth[value] = self.fresh(register), 0
            if users[value] or value in stage.body.outputs:
                levels[0].append(Load(scalars[value], register, Expr()))
        products = _products(stage)
        unused = {p for p in products if stage.body.outputs.count(p.result) == 1}
        unused -= {i for i in unused if users[i.result]}
        for instr in stage.body.instrs:
            result = instr.result
            used = [depth[v] for v in instr.operands]
            used += [axes.index(a) + 1 for a in rename.axes_of(instr) if a in axes]
            depth[result] = max(used, default=0)
            scalars[result] = self.fresh(result)
            if instr not in unused:
                operands = tuple(scalars[v] for v in instr.operands)
                levels[depth[result]].append(self.instr(instr, scalars[result], operands, rename))
        registers = iter(folds)
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, kernels.Store):
                store = Store(
                    self.buffers[sink.buffer],
                    rename.expr(sink.index),
                    scalars[value],
                    rename.mask(sink.mask),
                )
                levels[-1].append(store)
                continue
            levels[-1].append(_fold(next(registers), sink, value, scalars, products))
        if not stage.trips:
            return ()
        ends = {rename.axes[limit.axis]: rename.expr(limit.end) for limit in stage.limits}
        body = tuple(levels[-1])
        for axis, level in zip(reversed(axes), reversed(levels[:-1]), strict=True):
            body = (*level, For(axis, body, end=ends.get(axis)))
        return body

    def instr(
        self, instr: Instr, result: Scalar, operands: tuple[Scalar, ...], rename: _Renaming
    ) -> Stmt:
        attrs = instr.attrs
        match instr.op.name:
            case "load":
                buffer = self.buffers[attrs["buffer"]]
                index, mask = rename.expr(attrs["index"]), rename.mask(attrs["mask"])
                return Load(result, buffer, index, mask, operands)
            case "index":
                changed = {**attrs, "index": rename.expr(attrs["index"])}
            case "inside":
                changed = {"mask": rename.mask(attrs["mask"])}
            case _:
                changed = dict(attrs)
        return Let(result, opdef(instr), operands, changed)

    def fresh(self, like: Value | Buffer) -> Scalar:
        """A scalar of the next number, of the same dtype."""
        self.scalars += 1
        return Scalar(str(self.scalars - 1), like.dtype)


class _Renaming:
    """The axes of a kernel as those of loops."""

    def __init__(self, axes: Mapping[Axis, Axis]) -> None:
        self.axes = axes
        self._table = {axis: Expr.of(loop) for axis, loop in axes.items()}

    def expr(self, expr: Expr) -> Expr:
        return expr.substitute(self._table)

    def mask(self, mask: Sequence[Bound]) -> tuple[Bound, ...]:
        return tuple(Bound(self.expr(b.expr), b.low, b.high) for b in mask)

    def axes_of(self, instr: Instr) -> frozenset[Axis]:
        """The loops on which the expressions of an instruction depend."""
        exprs = [b.expr for b in instr.attrs.get("mask", ())]
        exprs += [instr.attrs["index"]] if instr.op.name in ("load", "index") else []
        return frozenset(self.axes[axis] for expr in exprs for axis in expr.axes())


def _products(stage: kernels.Stage) -> frozenset[Instr]:
    """The multiplications whose results a fold takes without rounding them."""
    return frozenset(
        value.producer
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True)
        if isinstance(sink, kernels.Fold) and sink.product and value.producer is not None
        if value.producer.op.name == "mul" and value.dtype.is_float
    )


def _fold(
    register: Buffer,
    fold: kernels.Fold,
    value: Value,
    scalars: Mapping[Value, Scalar],
    products: frozenset[Instr],
) -> Store:
    if fold.product and value.producer in products:
        assert value.producer is not None
        one, other = (scalars[v] for v in value.producer.operands)
        return Store(register, Expr(), one, fold=fold.kind, factor=other, precision=fold.precision)
    return Store(register, Expr(), scalars[value], fold=fold.kind)


__all__ = ["lower_kernel"]
