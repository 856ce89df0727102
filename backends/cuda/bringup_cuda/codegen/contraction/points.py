"""Scalar bodies at a few neighbouring points of a tile, as vectors.

Index arithmetic has 32 bits where that is enough, and elements that lie side by side are accessed
as aligned vectors.  A load that must not happen reads element 0 and its value is replaced, so that
no branch delays other loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.graph import Instr, Value
from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.kernel.contraction import Axes, vector
from bringup.kernel.form import BufferDecl
from bringup.llvm import text as ir
from bringup.llvm.scalar import literal, memory_type, register_type, render
from bringup.llvm.text import Type, Val, const, vec
from bringup_cuda.codegen.nvvm import IntBuilder, build_vector

#: The values of axes at a point, as i32.
Point = Mapping[Axis, Val]

#: How far beyond the end of an axis a tile may reach.
_SLACK = 1 << 10


def delinearize(b: IntBuilder, flat: Val, axes: Axes) -> dict[Axis, Val]:
    """The axes' values at a row-major position, which may lie beyond the end."""
    point: dict[Axis, Val] = {}
    for position in range(len(axes) - 1, 0, -1):
        axis = axes[position]
        point[axis] = b.urem(flat, axis.size)
        flat = b.udiv(flat, axis.size)
    return {**point, axes[0]: flat} if axes else point


def neighbours(b: IntBuilder, first: Val, axes: Axes, lanes: int) -> list[Point]:
    """``lanes`` points that follow each other, from a multiple of ``lanes`` on."""
    start = delinearize(b, first, axes)
    last = next((a for a in reversed(axes) if a.size > 1), axes[-1])
    if last.size % lanes == 0:
        return [{**start, last: b.add(start[last], n)} for n in range(lanes)]
    following = [delinearize(b, b.add(first, n), axes) for n in range(1, lanes)]
    return [start, *following]


# -- index expressions -----------------------------------------------------------------------------


def needs_i64(expr: Expr) -> bool:
    """Whether a part of the arithmetic may exceed 32 bits, a tile beyond the end included."""
    largest = abs(expr.const)
    for atom, c in expr.terms:
        largest += abs(c) * (max(abs(atom.first), abs(atom.last)) + _SLACK)
    inner = [atom.of for atom, _ in expr.terms if isinstance(atom, Div | Mod)]
    return largest >= 1 << 31 or any(map(needs_i64, inner))


def emit_index(b: IntBuilder, expr: Expr, point: Point, loaded: Sequence[Val] = ()) -> Val:
    """The expression at a point, as i32, or as i64 where it needs that.

    loaded: the indices from memory that it names.
    """
    return _emit_index(b, expr, point, ir.i64 if needs_i64(expr) else ir.i32, loaded)


def _emit_index(b: IntBuilder, expr: Expr, point: Point, kind: Type, loaded: Sequence[Val]) -> Val:
    total = const(kind, 0)
    for atom, c in expr.terms:
        part = _emit_atom(b, atom, point, kind, loaded)
        total = b.add(total, b.mul(part, const(kind, c)))
    return b.add(total, const(kind, expr.const))


def _emit_atom(b: IntBuilder, atom: Atom, point: Point, kind: Type, loaded: Sequence[Val]) -> Val:
    if isinstance(atom, Axis):
        return b.zext(point[atom], kind) if kind is ir.i64 else point[atom]
    if isinstance(atom, Dyn):
        value = loaded[atom.operand]
        return (b.zext if value.type.bits < kind.bits else b.trunc)(value, kind)
    assert isinstance(atom, Div | Mod), f"{atom} is no index of a kernel"
    value, divisor = _emit_index(b, atom.of, point, kind, loaded), const(kind, atom.by)
    if atom.of.first >= 0:
        return (b.udiv if isinstance(atom, Div) else b.urem)(value, divisor)
    remainder = b.srem(value, divisor)
    negative = b.icmp("slt", remainder, const(kind, 0))
    remainder = b.select(negative, b.add(remainder, divisor), remainder)
    return remainder if isinstance(atom, Mod) else b.sdiv(b.sub(value, remainder), divisor)


def emit_mask(
    b: IntBuilder, mask: Iterable[Bound], point: Point, loaded: Sequence[Val] = ()
) -> Val | None:
    """Whether all bounds hold at a point; None if there are none."""
    result: Val | None = None
    for bound in mask:
        index = emit_index(b, bound.expr, point, loaded)
        low, high = max(bound.low, bound.expr.first), min(bound.high, bound.expr.last + 1)
        shifted = b.sub(index, const(index.type, low))
        inside = b.icmp("ult", shifted, const(index.type, max(high - low, 0)))
        result = both(b, result, inside)
    return result


def both(b: IntBuilder, x: Val | None, y: Val | None) -> Val | None:
    """The conjunction of two conditions, of which None always holds."""
    if x is None or y is None:
        return y if x is None else x
    return b.and_(x, y)


# -- bodies ----------------------------------------------------------------------------------------


class PointBody:
    """Evaluates scalar instructions at several points, which become lanes of vectors.

    points: one for each lane.  walk: the axes along which they follow each other, the last fastest.
    active: whether the points exist, all or none; None for always.
    """

    def __init__(
        self,
        b: IntBuilder,
        buffers: Sequence[tuple[BufferDecl, Val]],
        points: Sequence[Point],
        walk: Axes,
        active: Val | None,
    ) -> None:
        self.b = b
        self.buffers = buffers
        self.points = points
        self.walk = walk
        self.active = active
        self.lanes = len(points)

    def run(self, instrs: Iterable[Instr], values: dict[Value, Val]) -> None:
        """Add the results of instructions to ``values``; those equal in all lanes stay scalars."""
        for instr in instrs:
            values[instr.result] = self._emit(instr, [values[v] for v in instr.operands])

    def spread(self, value: Val) -> Val:
        """A value in every lane."""
        return self.b.splat(value, self.lanes) if value.type.lanes < self.lanes else value

    def _emit(self, instr: Instr, operands: Sequence[Val]) -> Val:
        name = instr.op.name
        if instr.literal is not None:
            return literal(instr.literal.scalar, instr.result.dtype)
        if name == "load":
            return self._load(instr, operands)
        if name in ("index", "inside"):
            exprs = [bound.expr for bound in instr.attrs.get("mask", ())]
            exprs += [instr.attrs["index"]] if "index" in instr.attrs else []
            lanes = self.lanes if self._differs(exprs, operands) else 1
            return build_vector(
                self.b, [self._emit_lane(instr, operands, lane) for lane in range(lanes)]
            )
        if any(v.type.lanes > 1 for v in operands):
            operands = [self.spread(v) for v in operands]
        return render(self.b, instr, tuple(operands))

    def _differs(self, exprs: Iterable[Expr], operands: Iterable[Val]) -> bool:
        """Whether a value differs between lanes."""
        if any(v.type.lanes > 1 for v in operands):
            return True
        return any(not e.axes().isdisjoint(self.walk) for e in exprs)

    def _emit_lane(self, instr: Instr, operands: Sequence[Val], lane: int) -> Val:
        """An index, or a test of bounds, in one lane."""
        b, to = self.b, register_type(instr.result.dtype)
        loaded = [b.extractelement(v, lane) for v in operands]
        if instr.op.name == "inside":
            inside = emit_mask(b, instr.attrs["mask"], self.points[lane], loaded)
            return const(ir.i1, 1) if inside is None else inside
        index = emit_index(b, instr.attrs["index"], self.points[lane], loaded)
        return (b.sext if index.type.bits < to.bits else b.trunc)(index, to)

    # -- memory

    def _load(self, instr: Instr, operands: Sequence[Val]) -> Val:
        dtype, expr, mask = instr.result.dtype, instr.attrs["index"], instr.attrs["mask"]
        decl, base = self.buffers[instr.attrs["buffer"]]
        element = memory_type(dtype)
        if not decl.type.size:  # pragma: no cover - folded before
            loaded = ir.zero(element)
        elif not self._differs([expr, *(bound.expr for bound in mask)], operands):
            loaded = self._read(element, base, expr, mask, 0, operands)
        elif not operands and vector(expr, mask, self.walk, self.lanes) == self.lanes:
            loaded = self._read(vec(element, self.lanes), base, expr, mask, 0, operands)
        else:
            lanes: list[Val] = []
            for n in range(self.lanes):
                indices = [self.b.extractelement(v, n) for v in operands]
                lanes.append(self._read(element, base, expr, mask, n, indices))
            loaded = build_vector(self.b, lanes)
        return self.b.icmp("ne", loaded, ir.zero(loaded.type)) if dtype.name == "bool" else loaded

    def _read(
        self,
        kind: Type,
        base: Val,
        expr: Expr,
        mask: Iterable[Bound],
        lane: int,
        loaded: Sequence[Val],
    ) -> Val:
        b, point = self.b, self.points[lane]
        index = emit_index(b, expr, point, loaded)
        allowed = both(b, self.active, emit_mask(b, mask, point, loaded))
        if allowed is not None:
            index = b.select(allowed, index, const(index.type, 0))
        address = b.gep(base, b.sext(index, ir.i64), kind.scalar)
        value = b.load(kind, address, kind.bits // 8 * kind.lanes)
        return value if allowed is None else b.select(allowed, value, ir.zero(kind))
