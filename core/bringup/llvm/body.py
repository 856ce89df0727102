"""Evaluation of a stage's scalar body at the positions of a register tile.

A position is one element of the tile along each tiled axis.  A value that does not depend on a
tiled axis is computed once for all positions along it, and a value that does not depend on the lane
axis stays a scalar.  So a contraction loads each operand once per tile, and uniform work is done
once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from bringup.dtypes import DType
from bringup.graph import Graph, Instr, Value
from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.kernel.form import Fold
from bringup.llvm import text as ir
from bringup.llvm.index import divided, fits_i32
from bringup.llvm.scalar import combine, empty, literal, neutral, register_type, render, widen
from bringup.llvm.text import Builder, Type, Val, const, const_vector, vec
from bringup.llvm.text.masked import fold_lanes, pairwise
from bringup.records import record

Position = tuple[int, ...]


@record
class Tile:
    """``count`` positions of ``axis``, ``step`` apart, computed together."""

    axis: Axis
    count: int
    step: int


@record(eq=False)
class Frame:
    """The environment of the body at one point of the loop nest.

    bases: the value of every axis at position 0 of the tile.
    tiles: the tiled axes.
    lane, lanes: the axis that the lanes are along, and the vector length.
    masks: which lanes exist, by position along the lane axis; None means all.
    """

    bases: dict[Axis, Val]
    tiles: tuple[Tile, ...]
    lane: Axis | None
    lanes: int
    masks: tuple[Val, ...] | None

    def positions(self) -> list[Position]:
        """Every position of the tile."""
        result: list[Position] = [()]
        for tile in self.tiles:
            result = [(*p, i) for p in result for i in range(tile.count)]
        return result


class BodyEmitter(ABC):
    """Emits one stage's body.  The level of an instruction is the deepest loop it depends on."""

    def __init__(
        self,
        b: Builder,
        body: Graph,
        pointers: Sequence[Val],
        loops: Sequence[Axis],
        lane: Axis | None,
        tiled: Sequence[Axis],
        wide_tiles: Mapping[int, int] | None = None,
    ) -> None:
        """wide_tiles: tile buffers that hold a vector for each of their elements, and its width."""
        self.b = b
        self.body = body
        self.pointers = pointers
        self.loops = list(loops)
        self.tiled = list(tiled)
        self.wide_tiles = wide_tiles or {}
        self.uses: dict[Value, frozenset[Axis]] = {}
        self.varying: set[Value] = set()
        self.values: dict[tuple[Value, Position], Val] = {}
        self.divisors: set[Value] = set()
        self.reciprocals: dict[tuple[Value, Position], Reciprocal] = {}
        self.lane = lane
        self._levels: dict[int, list[Instr]] = {}
        for value in body.inputs:
            self.uses[value] = frozenset()

    def give(
        self, number: int, registers: Mapping[Position, Val], axes: frozenset[Axis], varying: bool
    ) -> None:
        """Set body input ``number``.

        registers: its values by grid position.  axes: that it depends on.  varying: whether it
        differs between lanes.
        """
        value = self.body.inputs[number]
        self.uses[value] = axes
        if varying:
            self.varying.add(value)
        for position, val in registers.items():
            self.values[(value, self._restrict(value, position))] = val

    def analyse(self) -> None:
        """Find out what every value depends on, after all inputs have been set."""
        for instr in self.body.instrs:
            self._analyse(instr)
        levels = {i.result: level for level, instrs in self._levels.items() for i in instrs}
        for instr in self.body.instrs:
            if instr.op.name == "div" and divides_fast(register_type(instr.result.dtype)):
                x, y = instr.operands
                if (
                    x in self.varying
                    and y not in self.varying
                    and levels.get(y, 0) < levels[instr.result]
                ):
                    self.divisors.add(y)

    def _analyse(self, instr: Instr) -> None:
        axes: set[Axis] = set()
        for operand in instr.operands:
            axes |= self.uses[operand]
        if "index" in instr.attrs:
            axes |= instr.attrs["index"].axes()
        for bound in instr.attrs.get("mask", ()):
            axes |= bound.expr.axes()
        used = self._moved(frozenset(axes))
        self.uses[instr.result] = used
        if instr.attrs.get("buffer") in self.wide_tiles:
            self.uses[instr.result] = used = used | set(self.tiled)
        if self.lane in used or any(v in self.varying for v in instr.operands):
            self.varying.add(instr.result)
        level = max((i + 1 for i, axis in enumerate(self.loops) if axis in used), default=0)
        self._levels.setdefault(level, []).append(instr)

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        """The axes that a value depends on, given those in its expressions."""
        return used

    def _restrict(self, value: Value, position: Position) -> Position:
        used = self.uses[value]
        return tuple(p if t in used else 0 for p, t in zip(position, self.tiled, strict=True))

    def at(self, value: Value, position: Position) -> Val:
        """The register of ``value`` at a position, which `emit_level` has emitted before."""
        return self.values[(value, self._restrict(value, position))]

    def lanes_of(self, value: Value, position: Position, lanes: int) -> Val:
        """The register of ``value`` at a position, with all lanes."""
        register = self.at(value, position)
        return self.b.splat(register, lanes) if register.type.lanes != lanes else register

    def emit_level(self, level: int, frame: Frame) -> None:
        """Emit the instructions of a level at every position; level 0 stands before all loops."""
        positions = frame.positions()
        if level == 0:
            for value in self.body.inputs:
                self._prepare(value, positions)
        for instr in self._levels.get(level, ()):
            result = instr.result
            done: set[Position] = set()
            for position in positions:
                key = self._restrict(result, position)
                if key in done:
                    continue
                done.add(key)
                self.values[(result, key)] = self._emit(instr, key, frame)
            self._prepare(result, positions)

    def _prepare(self, value: Value, positions: Sequence[Position]) -> None:
        """Emit the reciprocals of a value that divides many elements."""
        if value in self.divisors:
            for key in dict.fromkeys(self._restrict(value, p) for p in positions):
                self.reciprocals[(value, key)] = reciprocal(self.b, self.values[(value, key)])

    def _emit(self, instr: Instr, position: Position, frame: Frame) -> Val:
        name = instr.op.name
        if instr.literal is not None:
            return literal(instr.literal.scalar, instr.result.dtype)
        if name == "index":
            return self._index(instr, position, frame)
        if name == "inside":
            return self._inside(instr.attrs["mask"], position, frame, instr.operands)
        if name == "load":
            return self._load(instr, position, frame)
        operands = [self.at(v, position) for v in instr.operands]
        if any(v.type.lanes > 1 for v in operands):
            operands = [self.b.splat(v, frame.lanes) if v.type.lanes == 1 else v for v in operands]
        return render(self.b, instr, tuple(operands))

    # -- index expressions -------------------------------------------------------------------------

    @abstractmethod
    def scalar(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        """The expression at lane 0.  loaded: the index values that it refers to."""

    def _data_index(
        self, atom: Atom, loaded: Sequence[Value], position: Position, element: Type
    ) -> Val:
        """A loaded index in the type of the arithmetic on it; no such index is negative."""
        assert isinstance(atom, Dyn), f"{atom} is no index of a kernel"
        value = self.at(loaded[atom.operand], position)
        if value.type.bits == element.bits:
            return value
        if value.type.bits < element.bits:
            return self.b.zext(value, element)
        return self.b.trunc(value, element)

    def _varies(self, expr: Expr, frame: Frame, loaded: Sequence[Value]) -> bool:
        """Whether the expression differs from lane to lane."""
        if frame.lane is None:
            return False
        return any(self._atom_varies(atom, frame, loaded) for atom, _ in expr.terms)

    def _atom_varies(self, atom: Atom, frame: Frame, loaded: Sequence[Value]) -> bool:
        if isinstance(atom, Dyn):
            return loaded[atom.operand] in self.varying
        if isinstance(atom, Div | Mod):
            return self._varies(atom.of, frame, loaded)
        return atom == frame.lane

    def _lane_stride(self, expr: Expr, frame: Frame, loaded: Sequence[Value]) -> int | None:
        """Elements from one lane to the next; None if that is not constant."""
        if frame.lane is None:
            return 0
        data = any(
            isinstance(atom, Dyn) and loaded[atom.operand] in self.varying for atom in expr.atoms()
        )
        return None if data else expr.coefficient(frame.lane)

    def vector(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        """The expression at every lane: a vector of i32 if its range allows that, else of i64."""
        b = self.b
        narrow = fits_i32(expr)
        element = ir.i32 if narrow else ir.i64
        steps = vec(element, frame.lanes)
        total: Val | None = None
        varying = [t for t in expr.terms if self._atom_varies(t[0], frame, loaded)]
        uniform = Expr(expr.const, tuple(t for t in expr.terms if t not in varying))
        for atom, c in varying:
            if isinstance(atom, Axis):
                part = const_vector(element, [c * i for i in range(frame.lanes)])
                uniform = uniform + Expr(0, ((atom, c),))
            elif not isinstance(atom, Div | Mod):
                index = self._data_index(atom, loaded, position, element)
                part = b.mul(index, const(steps, c))
            else:
                inner = self.vector(atom.of, position, frame, loaded)
                part = divided(self.b, atom, inner)
                if part.type.scalar is not element:
                    widen = element.bits > part.type.bits
                    part = b.sext(part, element) if widen else b.trunc(part, element)
                part = b.mul(part, const(steps, c))
            total = part if total is None else b.add(total, part)
        base = self.scalar(uniform, position, frame, loaded)
        base = b.splat(b.trunc(base, element) if narrow else base, frame.lanes)
        return base if total is None else b.add(total, base)

    def _index(self, instr: Instr, position: Position, frame: Frame) -> Val:
        expr, loaded = instr.attrs["index"], instr.operands
        compute = self.vector if self._varies(expr, frame, loaded) else self.scalar
        value = compute(expr, position, frame, loaded)
        target = register_type(instr.result.dtype)
        if value.type.bits > target.bits:
            return self.b.trunc(value, target)
        return self.b.sext(value, target) if value.type.bits < target.bits else value

    def _inside(
        self,
        mask: Sequence[Bound],
        position: Position,
        frame: Frame,
        loaded: Sequence[Value] = (),
    ) -> Val:
        result: Val | None = None
        for bound in mask:
            varies = self._varies(bound.expr, frame, loaded)
            index = (self.vector if varies else self.scalar)(bound.expr, position, frame, loaded)
            # The bounds may exceed the type of the index, so they are cut to its range.
            low, high = max(bound.low, bound.expr.first), min(bound.high, bound.expr.last + 1)
            shifted = self.b.sub(index, const(index.type, low))
            holds = self.b.icmp("ult", shifted, const(index.type, max(high - low, 0)))
            result = holds if result is None else self._both(result, holds, frame)
        return result if result is not None else const(ir.i1, 1)

    def _both(self, x: Val, y: Val, frame: Frame) -> Val:
        if x.type.lanes != y.type.lanes:
            x, y = (self.b.splat(v, frame.lanes) if v.type.lanes == 1 else v for v in (x, y))
        return self.b.and_(x, y)

    # -- memory ------------------------------------------------------------------------------------

    @abstractmethod
    def _load(self, instr: Instr, position: Position, frame: Frame) -> Val:
        """The register of a load."""

    def _wide_index(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        index = self.vector(expr, position, frame, loaded)
        return index if index.type.bits == 64 else self.b.sext(index, ir.i64)

    def _from_memory(self, value: Val, dtype: DType) -> Val:
        if dtype.name == "bool":
            return self.b.icmp("ne", value, ir.zero(value.type))
        return value


def start(fold: Fold, lanes: int, is_empty: bool) -> Val:
    """The accumulator before the first element; the result itself if there is no element."""
    element = empty if is_empty else neutral
    return element(fold.kind, fold.dtype, lanes)


def accumulate(
    body: BodyEmitter,
    fold: Fold,
    value: Value,
    position: Position,
    acc: Val,
    lanes: int,
    mask: Val | None,
) -> Val:
    """Fold the body's value at a position into its accumulator, in the lanes of ``mask``."""
    b = body.b
    producer = value.producer
    is_product = producer is not None and producer.op.name == "mul"
    if fold.product and fold.dtype.is_float and producer is not None and is_product:
        x, y = (body.lanes_of(v, position, lanes) for v in producer.operands)
        after = b.fma(widen(b, x), widen(b, y), acc)
    else:
        after = combine(b, fold.kind, fold.dtype, acc, body.lanes_of(value, position, lanes))
    return after if mask is None else b.select(mask, after, acc)


def finish(b: Builder, fold: Fold, parts: Sequence[Val], *, across: bool) -> Val:
    """Combine accumulators pairwise, and then their lanes if ``across``."""
    folded = pairwise(parts, lambda x, y: combine(b, fold.kind, fold.dtype, x, y))
    if not across:
        return folded
    return fold_lanes(b, folded, lambda x, y: combine(b, fold.kind, fold.dtype, x, y))


# -- division of many elements by one divisor ------------------------------------------------------
#
# One multiplication and two fused multiply-adds give the same result to the bit.  With r = RN(1/y),
# q = RN(x·r) and e = RN(x - q·y), RN(q + e·r) is the correctly rounded x/y as long as nothing
# overflows or underflows in between: P. Markstein, "Computation of elementary functions on the IBM
# RISC System/6000 processor", IBM J. Res. Dev. 34 (1990); N. Brisebarre, J.-M. Muller, S. K. Raina,
# "Accelerating correctly rounded floating-point division when the divisor is known in advance",
# IEEE Trans. Comput. 53 (2004), section 2.  That holds if the exponents of both operands are within
# half the range.  A vector with an element outside is divided as usual.

#: Exponents between which operands must lie, and the bits of the magnitudes that have them.
_POWERS = {ir.f32: (-60, 60), ir.f64: (-500, 500)}
_RANGE = {ir.f32: (67 << 23, 187 << 23), ir.f64: (523 << 52, 1523 << 52)}


@record
class Reciprocal:
    """A divisor with what is computed once for it.  usable: whether it lies in the range."""

    divisor: Val
    inverse: Val
    usable: Val


def divides_fast(element: Type) -> bool:
    """Whether elements of this type are divided this way."""
    return element in _RANGE


def reciprocal(b: Builder, divisor: Val) -> Reciprocal:
    """Prepare a scalar divisor."""
    inverse = b.fdiv(const(divisor.type, 1.0), divisor)
    return Reciprocal(divisor, inverse, _in_range(b, divisor))


def divide(b: Builder, x: Val, by: Reciprocal, *, lane_registers: bool = False) -> Val:
    """Every lane of ``x`` over the divisor, rounded once.

    lane_registers: each lane is a register of its own, so that each is tested by itself.
    """
    lanes = x.type.lanes
    y, r = b.splat(by.divisor, lanes), b.splat(by.inverse, lanes)
    in_range = _lanes_in_range(b, x) if lane_registers else _vector_in_range(b, x)
    every = b.and_(in_range, by.usable)

    def fast() -> Val:
        q = b.fmul(x, r)
        e = b.fma(b.fneg(q), y, x)
        return b.fma(e, r, q)

    return b.cond(every, fast, lambda: b.fdiv(x, y), likely=True)[0]


def _vector_in_range(b: Builder, x: Val) -> Val:
    """One test of a vector register.  Zeros count as in range, because their quotient is exact."""
    lanes = x.type.lanes
    bits = b.cast("bitcast", x, vec(ir.integer(x.type.bits), lanes))
    inside = b.or_(_in_range(b, x), b.icmp("eq", bits, const(bits.type, 0)))
    whole = b.cast("bitcast", inside, ir.integer(lanes))
    return b.icmp("eq", whole, const(whole.type, -1))


def _lanes_in_range(b: Builder, x: Val) -> Val:
    """Two tests of each register, which GPUs chain."""
    low, high = (math.ldexp(1.0, n) for n in _POWERS[x.type.scalar])
    every: Val | None = None
    for i in range(x.type.lanes):
        size = b.fabs(b.extractelement(x, i))
        for test in (
            b.fcmp("oge", size, const(size.type, low)),
            b.fcmp("olt", size, const(size.type, high)),
        ):
            every = test if every is None else b.and_(every, test)
    assert every is not None, "vectors have lanes"
    return every


def _in_range(b: Builder, x: Val) -> Val:
    low, high = _RANGE[x.type.scalar]
    lanes = x.type.lanes
    bits = b.cast("bitcast", x, vec(ir.integer(x.type.bits), lanes))
    magnitude = b.and_(bits, const(bits.type, (1 << (x.type.bits - 1)) - 1))
    return b.icmp("ult", b.sub(magnitude, const(bits.type, low)), const(bits.type, high - low))
