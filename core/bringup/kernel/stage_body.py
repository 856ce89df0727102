"""What one stage of a kernel evaluates: which elements of which values, and the scalar graph that
computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bringup.dtypes import DType, accumulator, i32, i64
from bringup.graph import Builder, Instr, Literal, Value
from bringup.graph.index import Axis, Bound, Dyn, Element, Expr, Index, Source, elements_in, flatten
from bringup.kernel import ops as kops
from bringup.kernel.movement import is_movement, joined, needs_of, source_of
from bringup.ops.monoids import ROUNDING
from bringup.ops.table import Kind, Trait, lookup, opdef
from bringup.records import record
from bringup.types import TensorType

Mask = tuple[Bound, ...]
Key = tuple[Value, Index, Mask]
#: Values one body may hold.
MAX_BODY = 4000


class Unfusable(Exception):
    """The region is no single kernel; the message says why."""


def is_fold(instr: Instr) -> bool:
    """Whether the instruction becomes a register: a reduction or a contraction."""
    return opdef(instr).kind in (Kind.REDUCTION, Kind.CONTRACTION)


def is_expensive(instr: Instr) -> bool:
    """Whether the op is worth keeping rather than computing twice."""
    return Trait.EXPENSIVE in opdef(instr).traits


def inlines(instr: Instr) -> bool:
    """Whether the lowering knows how to evaluate the instruction inside a kernel."""
    kind = opdef(instr).kind
    if instr.literal is not None:
        return instr.literal.is_splat
    pointwise = kind in (Kind.ELEMENTWISE, Kind.SOURCE) or Trait.POINTWISE in opdef(instr).traits
    return pointwise or is_fold(instr) or is_movement(instr)


@dataclass(slots=True, eq=False)
class KernelScope:
    """What all stages of a kernel have in common.

    members: the instructions that the kernel computes.
    grid: its axes, one for each dimension of a register that is longer than 1.
    grid_index: the index that runs over them.
    buffers: the number of the buffer of each value in memory.
    """

    members: set[Instr]
    grid: tuple[Axis, ...] = ()
    grid_index: Index = ()
    buffers: dict[Value, int] = field(default_factory=dict)

    def at_grid(self, shape: tuple[int, ...]) -> Index:
        """The index at which a fold's result of this shape is a register."""
        axes = iter(self.grid_index)
        return tuple(Expr() if n == 1 else next(axes) for n in shape)

    def inner_axes(self, fold: Instr) -> tuple[tuple[Axis, ...], dict[int, Expr]]:
        """The loop axes of a fold and, for a reduction, the index of each reduced dimension."""
        shape = fold.operands[0].shape
        if opdef(fold).kind is Kind.REDUCTION:
            dims: Sequence[int] = fold.attrs["dims"]
        else:
            dims = fold.attrs["contract"][0]
        axes: list[Axis] = []
        table: dict[int, Expr] = {}
        for d in dims:
            if shape[d] == 1:
                table[d] = Expr()
                continue
            axis = Axis(len(self.grid) + len(axes), shape[d])
            axes.append(axis)
            table[d] = Expr.of(axis)
        return tuple(axes), table

    def buffer_of(self, value: Value) -> int:
        """The number of a value's buffer, new on first use."""
        return self.buffers.setdefault(value, len(self.buffers))


@dataclass(slots=True)
class StageItem:
    """A fold to make or a value to store: its level decides the stage."""

    value: Value
    level: int
    inner: tuple[Axis, ...]
    index: Index
    fold: Instr | None


@record
class TileElement:
    """Where an earlier stage stored an element.

    number: of the tile.
    offset: in it, in elements.
    """

    number: int
    offset: Expr


class ElementWalk:
    """Which elements one stage needs: every (value, index, mask) reached from its items, operands
    first.
    """

    def __init__(
        self,
        scope: KernelScope,
        tiles: Mapping[tuple[Value, Index], TileElement],
        inner: tuple[Axis, ...],
    ) -> None:
        self.scope = scope
        self.tiles = tiles
        self.inner = inner
        self.seen: dict[Key, None] = {}

    def roots(self, item: StageItem) -> list[Key]:
        """The elements whose values an item's sink is producer of."""
        if item.fold is None:
            return [(item.value, item.index, ())]
        if opdef(item.fold).kind is Kind.REDUCTION:
            return [(item.fold.operands[0], self._reduced_index(item.fold, item.index), ())]
        left, right = dot_indices(item.fold, item.index, self.scope.inner_axes(item.fold)[1])
        return [(item.fold.operands[0], left, ()), (item.fold.operands[1], right, ())]

    def visit(self, keys: Iterable[Key]) -> None:
        """Reach everything below ``keys``.  Raises Unfusable where a fold is read off its grid
        point.
        """
        stack, seen = list(keys), self.seen
        while stack:
            key = stack[-1]
            if key in seen:
                stack.pop()
                continue
            missing = [k for k in self._needs(*key) if k not in seen]
            if missing:
                stack.extend(missing)
                continue
            seen[key] = None
            self._reached(key)
            stack.pop()
            if len(seen) > MAX_BODY:
                raise Unfusable(f"the body exceeds {MAX_BODY} values")

    def outside(self) -> Iterable[tuple[Value, Index]]:
        """What is read from memory."""
        return ((v, i) for v, i, _ in self.seen if self._inside(v, i) is None)

    def _reached(self, key: Key) -> None:
        value, index, _ = key
        producer = self._inside(value, index)
        if producer is not None and is_fold(producer) and index != self.scope.at_grid(value.shape):
            where = ", ".join(map(str, index))
            raise Unfusable(f"{producer.op.name} is read at ({where}), not at its grid point")

    def _reduced_index(self, fold: Instr, index: Index) -> Index:
        _, inner = self.scope.inner_axes(fold)
        outer = iter(index)
        return tuple(
            inner[d] if d in inner else next(outer) for d in range(fold.operands[0].type.rank)
        )

    def _inside(self, value: Value, index: Index) -> Instr | None:
        producer = value.producer
        if producer is None or producer not in self.scope.members or (value, index) in self.tiles:
            return None
        return producer

    def _needs(self, value: Value, index: Index, mask: Mask) -> Iterable[Key]:
        producer = self._inside(value, index)
        if producer is None or is_fold(producer):
            return ()
        if is_movement(producer):
            return needs_of(producer, index, mask)
        return [(v, index, mask) for v in producer.operands]


class BodyBuilder(ElementWalk):
    """The scalar graph of one stage, built on demand; ``memo`` maps (value, index, mask) to its
    scalar.
    """

    def __init__(
        self,
        scope: KernelScope,
        registers: list[tuple[Value, DType]],
        tiles: Mapping[tuple[Value, Index], TileElement],
        inner: tuple[Axis, ...],
    ) -> None:
        super().__init__(scope, tiles, inner)
        self.builder = Builder(dedupe=True)
        self.registers = {v: self.builder.input(TensorType((), d)) for v, d in registers}
        self.memo: dict[Key, Value] = {}

    def value_of(self, item: StageItem) -> Value:
        """The scalar that the sink of an item takes."""
        keys = self.roots(item)
        with self.builder:
            self.visit(keys)
            scalars = [self.memo[k] for k in keys]
            if item.fold is None:
                return scalars[0]
            wide = register_dtype(item.fold)
            scalars = [self._convert(s, wide) for s in scalars]
            product: Value = scalars[0] if len(scalars) == 1 else lookup("mul")(*scalars)
            return product

    def element(self, value: Value, index: Index, mask: Mask) -> Value:
        """Element ``index`` of ``value``, valid where ``mask`` holds."""
        with self.builder:
            self.visit([(value, index, mask)])
        return self.memo[(value, index, mask)]

    def _reached(self, key: Key) -> None:
        super()._reached(key)
        self.memo[key] = self._make(*key)

    def _make(self, value: Value, index: Index, mask: Mask) -> Value:
        producer = self._inside(value, index)
        if producer is None:
            return self._load(value, index, mask)
        if is_fold(producer):
            return self._register(producer)
        if is_movement(producer):
            return self._moved(producer, index, mask)
        if producer.op.name == "iota":
            return self._iota(producer, index)
        if producer.literal is not None:
            scalar = Literal(producer.literal.elements, TensorType((), value.dtype))
            return self.builder.emit(producer.op, (), {"value": scalar})[0]
        operands = tuple(self.memo[(v, index, mask)] for v in producer.operands)
        self.builder.location = producer.location
        return self.builder.emit(producer.op, operands, producer.attrs)[0]

    def _load(self, value: Value, index: Index, mask: Mask) -> Value:
        tile = self.tiles.get((value, index))
        result: Value
        if tile is not None:
            result = kops.load(buffer=-1 - tile.number, dtype=value.dtype, index=tile.offset)
            return result
        offset, where, loaded = self._resolved(flatten(index, value.shape), mask)
        result = kops.load(
            *loaded,
            buffer=self.scope.buffer_of(value),
            dtype=value.dtype,
            index=offset,
            mask=where,
        )
        return result

    def _resolved(self, expr: Expr, mask: Mask) -> tuple[Expr, Mask, list[Value]]:
        """An expression and a mask with the elements they name as operands."""
        exprs = (expr, *(b.expr for b in mask))
        numbers = {e: n for n, e in enumerate(dict.fromkeys(elements_in(exprs)))}
        if not numbers:
            return expr, mask, []

        def leaf(atom: Axis | Dyn | Element) -> Expr | None:
            if not isinstance(atom, Element):
                return None
            return Expr.of(Dyn(numbers[atom], 0, atom.last))

        bounds = tuple(Bound(b.expr.rewrite(leaf), b.low, b.high) for b in mask)
        return expr.rewrite(leaf), bounds, [self._clamped(e) for e in numbers]

    def _raw(self, element: Element) -> Value:
        return self.memo[(element.value, element.index, element.mask)]

    def _clamped(self, element: Element) -> Value:
        from bringup.ops._windows import clamped

        return clamped(self._raw(element), element.last)

    def _inside_mask(self, mask: Mask) -> Value:
        _, where, loaded = self._resolved(Expr(), mask)
        result: Value = kops.inside(*loaded, mask=where)
        return result

    def _register(self, fold: Instr) -> Value:
        return self._convert(self.registers[fold.result], fold.result.dtype)

    def _moved(self, producer: Instr, index: Index, mask: Mask) -> Value:
        sources = source_of(producer, index, mask)
        parts = [self._part(producer.operands[s.operand], s, mask) for s in sources]
        result = parts[-1]
        for source, part in reversed(list(zip(sources[:-1], parts[:-1], strict=True))):
            result = lookup("select")(self._inside_mask(source.bounds), part, result)
        return result

    def _part(self, operand: Value, source: Source, mask: Mask) -> Value:
        from bringup.ops._windows import fits_in

        result = self.memo[(operand, source.index, joined(mask, source.bounds))]
        for element in source.inside:
            fits = fits_in(self._raw(element), element.last)
            if fits is None:
                continue
            zero = lookup("constant")(value=Literal.splat(0, result.type))
            result = lookup("select")(fits, result, zero)
        return result

    def _iota(self, producer: Instr, index: Index) -> Value:
        expr, _, loaded = self._resolved(index[producer.attrs["dim"]], ())
        dtype = i32 if expr.last < 2**31 else i64
        number = kops.index(*loaded, index=expr, dtype=dtype)
        return self._convert(number, producer.result.dtype)

    def _convert(self, value: Value, dtype: DType) -> Value:
        result: Value = value if value.dtype is dtype else lookup("convert")(value, dtype=dtype)
        return result


def dot_indices(fold: Instr, index: Index, contracted: dict[int, Expr]) -> tuple[Index, Index]:
    """Indices of both operands of a dot at result index ``index``; ``contracted`` is keyed by the
    left's dimensions.
    """
    (lb, rb), (lc, rc) = fold.attrs["batch"], fold.attrs["contract"]
    lhs, rhs = fold.operands
    batch, rest = index[: len(lb)], list(index[len(lb) :])
    sides: list[Index] = []
    for value, bs, cs, keys in ((lhs, lb, lc, lc), (rhs, rb, rc, lc)):
        table = dict(zip(bs, batch, strict=True))
        table.update({c: contracted[k] for c, k in zip(cs, keys, strict=True)})
        for d in range(value.type.rank):
            if d not in table:
                table[d] = rest.pop(0)
        sides.append(tuple(table[d] for d in range(value.type.rank)))
    return sides[0], sides[1]


def register_dtype(fold: Instr | None) -> DType:
    """The dtype in which a fold accumulates."""
    assert fold is not None
    if opdef(fold).kind is Kind.CONTRACTION:
        wide: DType = fold.attrs["accumulate"]
        return wide
    dtype = fold.result.dtype
    return accumulator(dtype) if fold.attrs["kind"] in ROUNDING else dtype


def row_offset(inner: tuple[Axis, ...]) -> Expr:
    """The row-major position within a stage's inner axes."""
    return flatten(map(Expr.of, inner), (a.size for a in inner))
