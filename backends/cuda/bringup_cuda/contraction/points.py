"""Scalar bodies at a few neighbouring points of a tile: index arithmetic in 32 bits where it fits,
aligned vectors where elements lie side by side.

A load that may not happen reads element 0 and its value is replaced, so that no branch keeps other
loads from starting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.graph import Instr, Value
from bringup.kernel.contraction import Axes, vector
from bringup.kernel.form import BufferDecl, Store
from bringup.kernel.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.llvm import text as ir
from bringup.llvm.scalar import literal, memory_type, register_type, render
from bringup.llvm.text import Builder, Type, Val, const, vec

#: The values of axes at a point, as i32.
Point = Mapping[Axis, Val]

_MOST_LANES = 16
_SLACK = 1 << 10


def number(value: int) -> Val:
    """An i32."""
    return const(ir.i32, value)


def decode(b: Builder, flat: Val, axes: Axes) -> dict[Axis, Val]:
    """The axes' values at a row-major position, which may lie beyond the end."""
    point: dict[Axis, Val] = {}
    rest = flat
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        if position == 0:
            point[axis] = rest
        else:
            point[axis] = b.urem(rest, number(axis.size))
            rest = b.udiv(rest, number(axis.size))
    return point


def is_wide(expr: Expr) -> bool:
    """Whether some part of the arithmetic may need 64 bits, a tile beyond the end included."""
    worst = abs(expr.const)
    for atom, c in expr.terms:
        worst += abs(c) * (max(abs(atom.first), abs(atom.last)) + _SLACK)
    inner = [atom.of for atom, _ in expr.terms if isinstance(atom, Div | Mod)]
    return worst >= 1 << 31 or any(map(is_wide, inner))


def evaluate(b: Builder, expr: Expr, point: Point, wide: bool, loaded: Sequence[Val] = ()) -> Val:
    """The expression at a point, as i64 if ``wide``, else i32."""
    kind = ir.i64 if wide else ir.i32
    total = const(kind, 0)
    for atom, c in expr.terms:
        part = _atom(b, atom, point, wide, loaded)
        total = b.add(total, b.mul(part, const(kind, c)))
    return b.add(total, const(kind, expr.const))


def _atom(b: Builder, atom: Atom, point: Point, wide: bool, loaded: Sequence[Val]) -> Val:
    kind = ir.i64 if wide else ir.i32
    if isinstance(atom, Axis):
        return b.zext(point[atom], kind) if wide else point[atom]
    if isinstance(atom, Dyn):
        value = loaded[atom.operand]
        narrow = value.type.bits < kind.bits
        return (b.zext if narrow else b.trunc)(value, kind)
    assert isinstance(atom, Div | Mod), f"{atom} is no index of a kernel"
    value, by = evaluate(b, atom.of, point, wide, loaded), const(kind, atom.by)
    if atom.of.first >= 0:
        return (b.udiv if isinstance(atom, Div) else b.urem)(value, by)
    rest = b.srem(value, by)
    rest = b.select(b.icmp("slt", rest, const(kind, 0)), b.add(rest, by), rest)
    return rest if isinstance(atom, Mod) else b.sdiv(b.sub(value, rest), by)


def holds(
    b: Builder, mask: Iterable[Bound], point: Point, loaded: Sequence[Val] = ()
) -> Val | None:
    """Whether all bounds hold at a point; None for none."""
    result: Val | None = None
    for bound in mask:
        at = evaluate(b, bound.expr, point, is_wide(bound.expr), loaded)
        low, high = max(bound.low, bound.expr.first), min(bound.high, bound.expr.last + 1)
        shifted = b.sub(at, const(at.type, low))
        result = both(b, result, b.icmp("ult", shifted, const(at.type, max(high - low, 0))))
    return result


def both(b: Builder, x: Val | None, y: Val | None) -> Val | None:
    """The conjunction of two conditions, of which None always holds."""
    if x is None or y is None:
        return y if x is None else x
    return b.and_(x, y)


class Points:
    """The points at which a body is evaluated together: lanes of vectors.

    points: one per lane.  walk: the axes along which they follow each other, the last fastest.
    alive: whether they exist, all or none; None for always.
    """

    def __init__(
        self,
        b: Builder,
        buffers: Sequence[tuple[BufferDecl, Val]],
        points: Sequence[Point],
        walk: Axes,
        alive: Val | None,
    ) -> None:
        self.b = b
        self.buffers = buffers
        self.points = points
        self.walk = walk
        self.alive = alive
        self.lanes = len(points)

    def run(self, steps: Iterable[Instr], values: dict[Value, Val]) -> None:
        """Add the results of instructions to ``values``; some stay scalars where lanes agree."""
        for instr in steps:
            values[instr.result] = self._step(instr, values)

    def spread(self, value: Val) -> Val:
        """A value in every lane."""
        return self.b.splat(value, self.lanes) if value.type.lanes < self.lanes else value

    def _step(self, instr: Instr, values: Mapping[Value, Val]) -> Val:
        name = instr.op.name
        operands = [values[v] for v in instr.operands]
        if name == "constant":
            return literal(instr.attrs["value"].scalar, instr.result.dtype)
        if name == "load":
            return self._load(instr, operands)
        if name in ("index", "inside"):
            return self._each(instr, operands)
        if any(v.type.lanes > 1 for v in operands):
            operands = [self.spread(v) for v in operands]
        return render(self.b, instr, tuple(operands))

    def _moves(self, exprs: Iterable[Expr], operands: Iterable[Val]) -> bool:
        """Whether lanes differ."""
        moving = any(v.type.lanes > 1 for v in operands)
        return moving or any(not e.axes().isdisjoint(self.walk) for e in exprs)

    def _each(self, instr: Instr, operands: Sequence[Val]) -> Val:
        """An index or a test of bounds, lane by lane."""
        b, to = self.b, register_type(instr.result.dtype)

        def one(lane: int) -> Val:
            loaded = [b.extractelement(v, lane) for v in operands]
            if instr.op.name == "inside":
                found = holds(b, instr.attrs["mask"], self.points[lane], loaded)
                return const(ir.i1, 1) if found is None else found
            expr = instr.attrs["index"]
            at = evaluate(b, expr, self.points[lane], is_wide(expr), loaded)
            return (b.sext if at.type.bits < to.bits else b.trunc)(at, to)

        exprs = [m.expr for m in instr.attrs.get("mask", ())]
        exprs += [instr.attrs["index"]] if "index" in instr.attrs else []
        if not self._moves(exprs, operands):
            return one(0)
        return self._joined(to, [one(n) for n in range(self.lanes)])

    def _joined(self, kind: Type, lanes: Sequence[Val]) -> Val:
        if len(lanes) == 1:
            return lanes[0]
        made = ir.poison(vec(kind, len(lanes)))
        for n, value in enumerate(lanes):
            made = self.b.insertelement(made, value, n)
        return made

    def _load(self, instr: Instr, operands: Sequence[Val]) -> Val:
        dtype, expr, mask = instr.result.dtype, instr.attrs["index"], instr.attrs["mask"]
        decl, base = self.buffers[instr.attrs["buffer"]]
        element = memory_type(dtype)
        if not decl.type.size:  # pragma: no cover - folded before
            loaded = ir.zero(element)
        elif not self._moves([expr, *(m.expr for m in mask)], operands):
            loaded = self._read(element, base, expr, mask, 0, operands)
        elif not operands and vector(expr, mask, self.walk, self.lanes) == self.lanes:
            loaded = self._read(vec(element, self.lanes), base, expr, mask, 0, operands)
        else:
            parts: list[Val] = []
            for n in range(self.lanes):
                own = [self.b.extractelement(v, n) for v in operands]
                parts.append(self._read(element, base, expr, mask, n, own))
            loaded = self._joined(element, parts)
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
        at = evaluate(b, expr, point, is_wide(expr), loaded)
        allowed = both(b, self.alive, holds(b, mask, point, loaded))
        if allowed is not None:
            at = b.select(allowed, at, const(at.type, 0))
        address = b.gep(base, b.sext(at, ir.i64), kind.scalar)
        found = b.load(kind, address, kind.bits // 8 * kind.lanes)
        return found if allowed is None else b.select(allowed, found, ir.zero(kind))

    def store(self, sink: Store, value: Val) -> None:
        """Write a value at every point, where the sink's mask holds."""
        b = self.b
        decl, base = self.buffers[sink.buffer]
        element = memory_type(decl.type.dtype)
        if decl.type.dtype.name == "bool":
            value = b.zext(value, ir.i8)
        if vector(sink.index, sink.mask, self.walk, self.lanes) == self.lanes:
            self._write(sink, base, element, self.spread(value), 0)
            return
        for n in range(self.lanes):
            self._write(sink, base, element, b.extractelement(value, n), n)

    def _write(self, sink: Store, base: Val, element: Type, value: Val, lane: int) -> None:
        b, point = self.b, self.points[lane]
        at = evaluate(b, sink.index, point, is_wide(sink.index))
        address = b.gep(base, b.sext(at, ir.i64), element)
        align = element.bits // 8 * value.type.lanes
        mask = holds(b, sink.mask, point)
        if mask is None:
            b.store(value, address, align)
            return
        with b.if_then(mask):
            b.store(value, address, align)


def widest_store(sinks: Iterable[Store], buffers: Sequence[BufferDecl], walk: Axes) -> int:
    """Lanes that make 16 bytes of the narrowest-grained store."""
    widths = [
        vector(s.index, s.mask, walk, max(1, _MOST_LANES // buffers[s.buffer].type.dtype.itemsize))
        for s in sinks
    ]
    return max(widths, default=1)
