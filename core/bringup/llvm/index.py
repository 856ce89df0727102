"""Index expressions as LLVM integers, scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial

from bringup.graph.index import Atom, Axis, Bound, Div, Dyn, Expr, Mod
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Type, Val, const, const_vector, i64_const, vec


class Indices:
    """Emits the index expressions of one function.

    type: of scalar indices, i64 or, where all indices fit, i32.
    axes: the value of each loop that is open; of the lane axis the value in lane 0, 0.
    lane, lanes: the axis of the vector loop that is open, and its number of lanes.
    counts: remainders that open loops count.

    An operation on the same operands is emitted once in a block and the blocks within it, because
    the passes of LLVM's code generator do not look for it in the text.
    """

    def __init__(self, b: Builder, type: Type = ir.i64) -> None:
        self.b = b
        self.type = type
        self.const: Callable[[int], Val] = i64_const if type is ir.i64 else partial(const, type)
        self.axes: dict[Axis, Val] = {}
        self.lane: Axis | None = None
        self.lanes = 1
        self.counts: dict[Mod, Val] = {}
        self._emitted: dict[tuple[str, str, str, Type], Val] = {}

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is emitted within is forgotten afterwards: it does not dominate what follows."""
        outer = self._emitted
        self._emitted = dict(outer)
        yield
        self._emitted = outer

    def _once(self, op: str, x: Val, y: Val, emit: Callable[[Val, Val], Val]) -> Val:
        key = (op, x.text, y.text, x.type)
        value = self._emitted.get(key)
        if value is None:
            value = self._emitted[key] = emit(x, y)
        return value

    def _add(self, x: Val, y: Val) -> Val:
        return self._once("add", x, y, self.b.add)

    def _mul(self, x: Val, y: Val) -> Val:
        return self._once("mul", x, y, self.b.mul)

    def splat(self, x: Val) -> Val:
        """A scalar in every lane; a vector as it is."""
        if x.type.lanes > 1 or self.lanes == 1:
            return x
        return self._once(
            "splat", x, self.const(self.lanes), lambda v, _n: self.b.splat(v, self.lanes)
        )

    # -- what differs between lanes ----------------------------------------------------------------

    def varies(self, expr: Expr, loaded: Sequence[Val] = ()) -> bool:
        """Whether the expression differs from lane to lane.  loaded: what its `Dyn` atoms name."""
        return self.lanes > 1 and any(self._atom_varies(atom, loaded) for atom, _ in expr.terms)

    def _atom_varies(self, atom: Atom, loaded: Sequence[Val]) -> bool:
        if isinstance(atom, Dyn):
            return loaded[atom.operand].type.lanes > 1
        if isinstance(atom, (Div, Mod)):
            return self.varies(atom.of, loaded)
        return atom == self.lane

    def stride(self, expr: Expr, loaded: Sequence[Val] = ()) -> int | None:
        """Elements from one lane to the next; None if that is not constant."""
        if self.lane is None or self.lanes == 1:
            return 0
        if loaded and any(
            isinstance(a, Dyn) and loaded[a.operand].type.lanes > 1 for a in expr.atoms()
        ):
            return None
        return expr.coefficient(self.lane)

    # -- values ------------------------------------------------------------------------------------

    def scalar(self, expr: Expr, loaded: Sequence[Val] = ()) -> Val:
        """The expression in lane 0, as i64."""
        constant, total = expr.const, None
        for atom, c in expr.terms:
            if isinstance(atom, Axis):
                part = self.axes[atom]
            elif isinstance(atom, (Div, Mod)):
                part = self._divided(atom, self.scalar(atom.of, loaded))
            else:
                part = self._loaded(atom, loaded, self.type)
            known = part.integer
            if known is not None:
                constant += c * known
                continue
            term = part if c == 1 else self._mul(part, self.const(c))
            total = term if total is None else self._add(total, term)
        if total is None:
            return self.const(constant)
        return self._add(total, self.const(constant)) if constant else total

    def vector(self, expr: Expr, loaded: Sequence[Val] = ()) -> Val:
        """The expression in every lane: a vector of i32 if its range allows that, else of i64.

        What was loaded as i64 stays so where indices of memory have that width.
        """
        b = self.b
        narrow = fits_i32(expr) and not self._is_wide(expr, loaded)
        element = ir.i32 if narrow else ir.i64
        steps = vec(element, self.lanes)
        total: Val | None = None
        varying = [t for t in expr.terms if self._atom_varies(t[0], loaded)]
        uniform = Expr(expr.const, tuple(t for t in expr.terms if t not in varying))
        for atom, c in varying:
            if isinstance(atom, Axis):
                part = const_vector(element, [c * i for i in range(self.lanes)])
            elif isinstance(atom, (Div, Mod)):
                part = self._divided(atom, self.vector(atom.of, loaded))
                if part.type.scalar is not element:
                    widen = element.bits > part.type.bits
                    part = b.sext(part, element) if widen else b.trunc(part, element)
                part = self._mul(part, const(steps, c))
            else:
                part = self._mul(self._loaded(atom, loaded, element), const(steps, c))
            total = part if total is None else self._add(total, part)
        base = self.scalar(uniform, loaded)
        if total is not None and base.integer == 0:
            return total
        if narrow and base.integer is None:
            base = self._once("trunc", base, self.const(0), lambda x, _: b.trunc(x, element))
        splat = self.splat(base) if base.integer is None else const(steps, base.integer)
        return splat if total is None else self._add(total, splat)

    def _is_wide(self, expr: Expr, loaded: Sequence[Val]) -> bool:
        """Whether indices of 64 bits were loaded in every lane."""
        if self.type is not ir.i64:
            return False
        types = (loaded[a.operand].type for a in expr.atoms() if isinstance(a, Dyn))
        return any(t.lanes > 1 and t.bits == 64 for t in types)

    def wide(self, expr: Expr, loaded: Sequence[Val] = ()) -> Val:
        """The expression in every lane, as a vector of i64."""
        index = self.vector(expr, loaded)
        return index if index.type.bits == 64 else self.b.sext(index, ir.i64)

    def _loaded(self, atom: Atom, loaded: Sequence[Val], element: Type) -> Val:
        """A loaded index in the type of the arithmetic on it; no such index is negative."""
        assert isinstance(atom, Dyn), f"{atom} is no index of a function"
        value = loaded[atom.operand]
        if value.type.bits > element.bits:
            return self.b.trunc(value, element)
        return self.b.zext(value, element)

    def _divided(self, atom: Div | Mod, value: Val) -> Val:
        known = value.integer
        if isinstance(atom, Mod) and atom in self.counts:
            return self.counts[atom]
        if known is not None:
            return const(value.type, known // atom.by if isinstance(atom, Div) else known % atom.by)
        op = "div" if isinstance(atom, Div) else "mod"
        by = const(value.type, atom.by)
        return self._once(op, value, by, lambda x, _by: divided(self.b, atom, x))

    # -- conditions --------------------------------------------------------------------------------

    def inside(self, mask: Sequence[Bound], loaded: Sequence[Val] = ()) -> Val | None:
        """Whether every bound holds: an i1, or a vector of them; None if that is certain."""
        result: Val | None = None
        for bound in mask:
            differs = self.differs(bound, loaded)
            values = self.constants(bound.expr) if differs else None
            if values is not None:
                lanes = [bound.low <= value < bound.high for value in values]
                if not any(lanes):
                    return const(ir.i1, 0)
                if not all(lanes):
                    result = self.both(result, const_vector(ir.i1, lanes))
                continue
            index = (self.vector if differs else self.scalar)(bound.expr, loaded)
            known = index.integer
            if known is not None:
                if not bound.low <= known < bound.high:
                    return const(ir.i1, 0)
                continue
            if differs and loaded and bound.high > bound.expr.last:
                # Vectors compare signed numbers faster on many CPUs.
                result = self.both(result, self.b.icmp("sge", index, const(index.type, bound.low)))
                continue
            # The bounds may exceed the type of the index, so they are cut to its range.
            low, high = max(bound.low, bound.expr.first), min(bound.high, bound.expr.last + 1)
            shifted = self._add(index, const(index.type, -low)) if low else index
            below = const(index.type, max(high - low, 0))
            holds = self._once("below", shifted, below, partial(self.b.icmp, "ult"))
            result = self.both(result, holds)
        return result

    def differs(self, bound: Bound, loaded: Sequence[Val]) -> bool:
        """Whether a condition is one for each lane."""
        return self.varies(bound.expr, loaded)

    def constants(self, expr: Expr) -> list[int] | None:
        """The values of an expression lane by lane, if they are constants."""
        total = [expr.const] * self.lanes
        for atom, c in expr.terms:
            values: Sequence[int] | None = None
            if atom == self.lane:
                values = range(self.lanes)
            elif isinstance(atom, Axis):
                known = self.axes[atom].integer
                values = None if known is None else [known] * self.lanes
            elif isinstance(atom, (Div, Mod)):
                values = self.constants(atom.of)
                by, is_div = atom.by, isinstance(atom, Div)
                values = values and [v // by if is_div else v % by for v in values]
            if values is None:
                return None
            total = [t + c * v for t, v in zip(total, values, strict=True)]
        return total

    def both(self, x: Val | None, y: Val | None) -> Val | None:
        """The conjunction of two conditions, where None always holds."""
        if x is None or y is None:
            return y if x is None else x
        if x.type.lanes != y.type.lanes:
            x, y = self.splat(x), self.splat(y)
        return self.b.and_(x, y)


def divided(b: Builder, atom: Div | Mod, value: Val) -> Val:
    """Floor division or remainder by a constant.  value: of the expression that is divided."""
    by = const(value.type, atom.by)
    if atom.of.first >= 0:
        return b.binary("udiv" if isinstance(atom, Div) else "urem", value, by)
    remainder = b.binary("srem", value, by)
    negative = b.icmp("slt", remainder, const(value.type, 0))
    remainder = b.select(negative, b.add(remainder, by), remainder)
    if isinstance(atom, Mod):
        return remainder
    return b.binary("sdiv", b.sub(value, remainder), by)


@lru_cache(maxsize=1 << 12)
def fits_i32(expr: Expr) -> bool:
    """Whether the value and every part of it fit 32 bits.

    A lane beyond the end of an axis adds at most one vector, for which 128 is more than enough.
    """
    worst = abs(expr.const) + sum(
        abs(c) * (max(abs(a.first), abs(a.last)) + 128) for a, c in expr.terms
    )
    inner = all(fits_i32(a.of) for a, _ in expr.terms if isinstance(a, (Div, Mod)))
    return worst < 2**31 and inner
