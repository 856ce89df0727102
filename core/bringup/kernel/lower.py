"""From a region of graph instructions to one `Kernel`.

The values a region must produce are evaluated symbolically: element ``index`` of a value is a scalar expression of elements
of its operands.  Movement ops rewrite the index; elementwise ops become scalar instructions; values from outside become
loads.  A reduction or contraction becomes a *fold*: a register of the grid point, which requires that wherever it is read,
it is read at exactly the grid's axes.  Folds and stores that depend on each other's results fall into successive stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.dtypes import DType, accumulator, i32, i64
from bringup.graph import Builder, Graph, Instr, Literal, Value
from bringup.kernel import ops as kops
from bringup.kernel.form import BufferDecl, Fold, Kernel, Sink, Stage, Store
from bringup.kernel.index import Axis, Bound, Expr, flatten
from bringup.kernel.limits import Limits
from bringup.kernel.movement import Index, is_movement, source_of
from bringup.ops.table import Kind, OpDef, Trait, lookup
from bringup.types import TensorType

Mask = tuple[Bound, ...]
_Key = tuple[Value, Index, Mask]
_MAX_BODY = 4000


class Unfusable(Exception):
    """The region is no single kernel; the message says why."""


def opdef(instr: Instr) -> OpDef:
    """The row of an instruction."""
    assert isinstance(instr.op, OpDef)
    return instr.op


def is_fold(instr: Instr) -> bool:
    """Whether the instruction becomes a register: a reduction or a contraction."""
    return opdef(instr).kind in (Kind.REDUCTION, Kind.CONTRACTION)


def is_expensive(instr: Instr) -> bool:
    return Trait.EXPENSIVE in opdef(instr).traits


def inlines(instr: Instr) -> bool:
    """Whether the lowering knows how to evaluate the instruction inside a kernel."""
    kind = opdef(instr).kind
    if instr.op.name == "constant":
        return bool(instr.attrs["value"].is_splat)
    pointwise = kind in (Kind.ELEMENTWISE, Kind.SOURCE) or Trait.POINTWISE in opdef(instr).traits
    return pointwise or is_fold(instr) or is_movement(instr)


@dataclass(slots=True)
class Region:
    """Instructions that are to run in one launch, and the values they must leave in memory."""

    members: set[Instr]
    outputs: list[Value]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a region's kernel without building it: its grid, its number of stages, and the indices at which
    every outside value is read.
    """

    grid: tuple[Axis, ...]
    stages: int
    reads: Mapping[Value, list[Index]]

    @property
    def points(self) -> int:
        return _trips(self.grid)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, and the values behind its non-tile buffers in order."""

    kernel: Kernel
    values: tuple[Value, ...]


@dataclass(slots=True)
class _Item:
    """A fold to make or a value to store: its level decides the stage."""

    value: Value
    level: int
    inner: tuple[Axis, ...]
    index: Index
    fold: Instr | None


def lower_region(region: Region, order: Mapping[Instr, int], limits: Limits, name: str) -> Lowered:
    """Build the kernel of a region.  Raises Unfusable."""
    return _Lowering(region, order, limits).run(name)


def shape_region(region: Region, order: Mapping[Instr, int], limits: Limits) -> Shape:
    """Find out whether a region is one kernel, and which.  Raises Unfusable."""
    return _Lowering(region, order, limits).shape()


class _Lowering:
    def __init__(self, region: Region, order: Mapping[Instr, int], limits: Limits) -> None:
        self.region = region
        self.limits = limits
        self.folds = sorted((m for m in region.members if is_fold(m)), key=order.__getitem__)
        self.order = order
        self.grid: tuple[Axis, ...] = ()
        self.grid_full: Index = ()
        self.buffers: dict[Value, int] = {}
        self.levels: dict[Value, int] = {}

    def shape(self) -> Shape:
        """Walk every stage without building it."""
        self._choose_grid()
        stages = _group(self._items())
        self._check_rows(stages)
        reads: dict[Value, dict[Index, None]] = {}
        for stage in stages:
            walk = _Walk(self, {}, stage[0].inner)
            for item in stage:
                walk.visit(walk.roots(item))
            for value, index in walk.outside():
                reads.setdefault(value, {})[index] = None
        if len(reads) + len(self.region.outputs) > self.limits.buffers:
            raise Unfusable(f"needs {len(reads)} inputs, the device takes {self.limits.buffers} buffers")
        return Shape(self.grid, len(stages), {v: list(indices) for v, indices in reads.items()})

    def run(self, name: str) -> Lowered:
        self._choose_grid()
        items = self._items()
        stages = _group(items)
        self._check_rows(stages)
        tiles = self._shared(stages)
        built, decls = self._build(stages, tiles)
        values = sorted(self.buffers, key=self.buffers.__getitem__)
        if len(values) > self.limits.buffers:
            raise Unfusable(f"needs {len(values)} buffers, the device takes {self.limits.buffers}")
        outputs = set(self.region.outputs)
        buffers = tuple(BufferDecl(v.type, "out" if v in outputs else "in") for v in values)
        source = tuple(m.op.name for m in sorted(self.region.members, key=self.order.__getitem__))
        kernel = Kernel(name, self.grid, buffers + decls, built, source)
        return Lowered(kernel, tuple(values))

    # -- grid ---------------------------------------------------------------------------------------------------------

    def _choose_grid(self) -> None:
        shapes = [_squeezed(f.result.shape) for f in self.folds] or [_squeezed(self.region.outputs[0].shape)]
        if any(s != shapes[0] for s in shapes):
            raise Unfusable(f"reductions over different grids: {shapes}")
        self.grid = tuple(Axis(i, n) for i, n in enumerate(shapes[0]))
        self.grid_full = tuple(map(Expr.of, self.grid))

    def _at_grid(self, shape: tuple[int, ...]) -> Index:
        axes = iter(self.grid_full)
        return tuple(Expr() if n == 1 else next(axes) for n in shape)

    # -- items and levels ---------------------------------------------------------------------------------------------

    def _items(self) -> list[_Item]:
        items: list[_Item] = []
        for fold in self.folds:
            inner, _ = self._inner_axes(fold)
            index = self._at_grid(fold.result.shape)
            level = self._level_of_operands(fold)
            self.levels[fold.result] = level + 1
            items.append(_Item(fold.result, level, inner, index, fold))
        for value in self.region.outputs:
            index, inner = self._place(value)
            items.append(_Item(value, self._level(value), inner, index, None))
        return items

    def _level(self, value: Value) -> int:
        """Stages that must have run before ``value`` can be evaluated; iterative, as chains may be long."""
        stack = [value]
        while stack:
            top = stack[-1]
            made = top.producer
            if top in self.levels:
                stack.pop()
            elif made is None or made not in self.region.members:
                self.levels[top] = 0
                stack.pop()
            elif missing := [v for v in made.operands if v not in self.levels]:
                stack.extend(missing)
            else:
                self.levels[top] = max((self.levels[v] for v in made.operands), default=0)
                stack.pop()
        return self.levels[value]

    def _level_of_operands(self, fold: Instr) -> int:
        return max(self._level(v) for v in fold.operands)

    def _inner_axes(self, fold: Instr) -> tuple[tuple[Axis, ...], dict[int, Expr]]:
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

    def _place(self, value: Value) -> tuple[Index, tuple[Axis, ...]]:
        """Where an output's dimensions lie: on grid axes or on inner axes of its store stage."""
        shape = value.shape
        sizes = _squeezed(shape)
        wanted = [a.size for a in self.grid]
        if not self.folds or not any(_depends(value, f, self.region.members) for f in self.folds):
            if list(sizes[: len(wanted)]) != wanted:
                raise Unfusable(f"output {value.type} does not span the grid {tuple(wanted)}")
            positions = list(range(len(wanted)))
        else:
            positions = self._probe(value)
        return self._assign(shape, positions)

    def _assign(self, shape: tuple[int, ...], positions: list[int]) -> tuple[Index, tuple[Axis, ...]]:
        live = [d for d, n in enumerate(shape) if n != 1]
        table: dict[int, Expr] = {live[p]: self.grid_full[g] for g, p in enumerate(positions)}
        inner: list[Axis] = []
        for d in live:
            if d not in table:
                axis = Axis(len(self.grid) + len(inner), shape[d])
                inner.append(axis)
                table[d] = Expr.of(axis)
        return tuple(table.get(d, Expr()) for d in range(len(shape))), tuple(inner)

    def _probe(self, value: Value) -> list[int]:
        """Which (squeezed) dimensions of an output are the grid's, found by following it to a fold."""
        sizes = _squeezed(value.shape)
        axes = [Axis(10_000 + i, n) for i, n in enumerate(sizes)]
        it = iter(axes)
        start: Index = tuple(Expr() if n == 1 else Expr.of(next(it)) for n in value.shape)
        stack: list[tuple[Value, Index]] = [(value, start)]
        seen: set[tuple[Value, Index]] = set()
        while stack:
            at = stack.pop()
            made = at[0].producer
            if at in seen or made is None or made not in self.region.members:
                continue
            seen.add(at)
            if is_fold(made):
                return self._grid_positions(made, at[1], axes)
            if is_movement(made):
                stack.extend((made.operands[s.operand], s.index) for s in source_of(made, at[1]))
            else:
                stack.extend((v, at[1]) for v in made.operands)
            if len(seen) > _MAX_BODY:
                break
        raise Unfusable("an output does not reach its reduction")

    def _grid_positions(self, fold: Instr, index: Index, axes: list[Axis]) -> list[int]:
        positions: list[int] = []
        for e, n in zip(index, fold.result.shape, strict=True):
            if n == 1:
                continue
            axis = e.axis
            if axis is None or axis not in axes or axes.index(axis) in positions:
                raise Unfusable(f"{fold.op.name} is read at {e}, not at one grid point")
            positions.append(axes.index(axis))
        return positions

    # -- limits -------------------------------------------------------------------------------------------------------

    def _check_rows(self, stages: list[list[_Item]]) -> None:
        looping = [s for s in stages if s[0].inner]
        if len(looping) > 1:
            longest = max(_trips(s[0].inner) for s in looping)
            if longest > self.limits.row_elements:
                raise Unfusable(f"a row of {longest} elements does not stay close; limit {self.limits.row_elements}")
            if any(opdef(i.fold).kind is Kind.CONTRACTION for s in looping for i in s if i.fold is not None):
                raise Unfusable("a contraction shares no kernel with other loops")
        if len(stages) > self.limits.stages:
            raise Unfusable(f"needs {len(stages)} stages, the device takes {self.limits.stages}")

    # -- tiles --------------------------------------------------------------------------------------------------------

    def _shared(self, stages: list[list[_Item]]) -> dict[tuple[Value, Index], tuple[int, int]]:
        """Expensive values that two stages need: (value, index) -> (stage that makes it, its inner trips)."""
        heavy = _Heavy(self.region.members)
        homes: dict[tuple[Value, Index], tuple[int, int]] = {}
        tiles: dict[tuple[Value, Index], tuple[int, int]] = {}
        for number, stage in enumerate(stages):
            inner = stage[0].inner
            trips = _trips(inner)
            if not inner:
                continue
            walk = _Walk(self, {}, inner)
            for item in stage:
                walk.visit(walk.roots(item))
            for value, index, mask in walk.seen:
                if mask or not heavy(value) or not _moves_with(index, inner):
                    continue
                place = (value, index)
                if place in homes and homes[place][1] == trips and self._fits(trips, value):
                    tiles[place] = homes[place]
                homes.setdefault(place, (number, trips))
        return _topmost(tiles, self.region.members)

    def _fits(self, trips: int, value: Value) -> bool:
        return trips * value.dtype.itemsize <= self.limits.tile_bytes

    # -- bodies -------------------------------------------------------------------------------------------------------

    def _buffer(self, value: Value) -> int:
        return self.buffers.setdefault(value, len(self.buffers))

    def _build(
        self, stages: list[list[_Item]], tiles: dict[tuple[Value, Index], tuple[int, int]]
    ) -> tuple[tuple[Stage, ...], tuple[BufferDecl, ...]]:
        self.buffers.clear()
        pending: list[tuple[list[_Item], Graph, list[Sink]]] = []
        registers: list[tuple[Value, DType]] = []
        ids = {place: n for n, place in enumerate(tiles)}
        made: set[tuple[Value, Index]] = set()
        for number, stage in enumerate(stages):
            ready = {place: ids[place] for place in made}
            body = _Body(self, registers, ready, stage[0].inner)
            outputs: list[Value] = []
            sinks: list[Sink] = []
            for item in stage:
                outputs.append(body.value_of(item))
                sinks.append(self._sink(item, body))
            for place, (home, _) in tiles.items():
                if home == number:
                    outputs.append(body.at(*place, ()))
                    sinks.append(Store(-1 - ids[place], _row_offset(stage[0].inner)))
                    made.add(place)
            pending.append((stage, body.builder.build(outputs, f"stage{number}"), sinks))
            registers += [(i.value, _register_dtype(i.fold)) for i in stage if i.fold is not None]
        count = len(self.buffers)
        decls = tuple(
            BufferDecl(TensorType((trips,), place[0].dtype), "tile") for place, (_, trips) in tiles.items()
        )
        built = tuple(
            Stage(s[0].inner, _renumber(g, count), tuple(_place_sink(k, count) for k in sinks)) for s, g, sinks in pending
        )
        return built, decls

    def _sink(self, item: _Item, body: _Body) -> Sink:
        if item.fold is not None:
            contracts = opdef(item.fold).kind is Kind.CONTRACTION
            kind = "add" if contracts else item.fold.attrs["kind"]
            return Fold(kind, _register_dtype(item.fold), contracts)
        return Store(self._buffer(item.value), flatten(item.index, item.value.shape))


class _Walk:
    """Which elements one stage needs: every (value, index, mask) reached from its items, operands first."""

    def __init__(
        self, owner: _Lowering, tiles: dict[tuple[Value, Index], int], inner: tuple[Axis, ...]
    ) -> None:
        self.owner = owner
        self.tiles = tiles
        self.inner = inner
        self.seen: dict[_Key, None] = {}

    def roots(self, item: _Item) -> list[_Key]:
        """The elements whose values an item's sink is made of."""
        if item.fold is None:
            return [(item.value, item.index, ())]
        if opdef(item.fold).kind is Kind.REDUCTION:
            return [(item.fold.operands[0], self._reduced_index(item.fold, item.index), ())]
        left, right = _dot_indices(item.fold, item.index, self.owner._inner_axes(item.fold)[1])
        return [(item.fold.operands[0], left, ()), (item.fold.operands[1], right, ())]

    def visit(self, keys: Iterable[_Key]) -> None:
        """Reach everything below ``keys``.  Raises Unfusable where a fold is read off its grid point."""
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
            if len(seen) > _MAX_BODY:
                raise Unfusable(f"the body exceeds {_MAX_BODY} values")

    def outside(self) -> Iterable[tuple[Value, Index]]:
        """What is read from memory."""
        return ((v, i) for v, i, _ in self.seen if self._inside(v, i) is None)

    def _reached(self, key: _Key) -> None:
        value, index, _ = key
        made = self._inside(value, index)
        if made is not None and is_fold(made) and index != self.owner._at_grid(value.shape):
            at = ", ".join(map(str, index))
            raise Unfusable(f"{made.op.name} is read at ({at}), not at its grid point")

    def _reduced_index(self, fold: Instr, index: Index) -> Index:
        _, inner = self.owner._inner_axes(fold)
        kept = iter(index)
        return tuple(inner[d] if d in inner else next(kept) for d in range(fold.operands[0].type.rank))

    def _inside(self, value: Value, index: Index) -> Instr | None:
        made = value.producer
        if made is None or made not in self.owner.region.members or (value, index) in self.tiles:
            return None
        return made

    def _needs(self, value: Value, index: Index, mask: Mask) -> Iterable[_Key]:
        made = self._inside(value, index)
        if made is None or is_fold(made):
            return ()
        if is_movement(made):
            return [
                (made.operands[s.operand], s.index, _joined(mask, s.bounds)) for s in source_of(made, index)
            ]
        return [(v, index, mask) for v in made.operands]


class _Body(_Walk):
    """The scalar graph of one stage, built on demand; ``memo`` maps (value, index, mask) to its scalar."""

    def __init__(
        self,
        owner: _Lowering,
        registers: list[tuple[Value, DType]],
        tiles: dict[tuple[Value, Index], int],
        inner: tuple[Axis, ...],
    ) -> None:
        super().__init__(owner, tiles, inner)
        self.builder = Builder(dedupe=True)
        self.registers = {v: self.builder.input(TensorType((), d)) for v, d in registers}
        self.memo: dict[_Key, Value] = {}

    def value_of(self, item: _Item) -> Value:
        """The scalar an item's sink takes."""
        keys = self.roots(item)
        with self.builder:
            self.visit(keys)
            scalars = [self.memo[k] for k in keys]
            if item.fold is None:
                return scalars[0]
            wide = _register_dtype(item.fold)
            scalars = [self._convert(s, wide) for s in scalars]
            product: Value = scalars[0] if len(scalars) == 1 else lookup("mul")(*scalars)
            return product

    def at(self, value: Value, index: Index, mask: Mask) -> Value:
        """Element ``index`` of ``value``, valid where ``mask`` holds."""
        with self.builder:
            self.visit([(value, index, mask)])
        return self.memo[(value, index, mask)]

    def _reached(self, key: _Key) -> None:
        super()._reached(key)
        self.memo[key] = self._make(*key)

    def _make(self, value: Value, index: Index, mask: Mask) -> Value:
        made = self._inside(value, index)
        if made is None:
            return self._load(value, index, mask)
        if is_fold(made):
            return self._register(made)
        if is_movement(made):
            return self._moved(made, index, mask)
        if made.op.name == "iota":
            return self._iota(made, index)
        if made.op.name == "constant":
            literal = made.attrs["value"]
            scalar: Value = lookup("constant")(value=Literal(literal.elements, TensorType((), value.dtype)))
            return scalar
        operands = tuple(self.memo[(v, index, mask)] for v in made.operands)
        self.builder.location = made.location
        return self.builder.emit(made.op, operands, made.attrs)[0]

    def _load(self, value: Value, index: Index, mask: Mask) -> Value:
        number = self.tiles.get((value, index))
        result: Value
        if number is not None:
            result = kops.load(buffer=-1 - number, dtype=value.dtype, index=_row_offset(self.inner))
            return result
        offset = flatten(index, value.shape)
        result = kops.load(buffer=self.owner._buffer(value), dtype=value.dtype, index=offset, mask=mask)
        return result

    def _register(self, fold: Instr) -> Value:
        return self._convert(self.registers[fold.result], fold.result.dtype)

    def _moved(self, made: Instr, index: Index, mask: Mask) -> Value:
        sources = source_of(made, index)
        parts = [self.memo[(made.operands[s.operand], s.index, _joined(mask, s.bounds))] for s in sources]
        result = parts[-1]
        for source, part in reversed(list(zip(sources[:-1], parts[:-1], strict=True))):
            result = lookup("select")(kops.inside(mask=source.bounds), part, result)
        return result

    def _iota(self, made: Instr, index: Index) -> Value:
        expr = index[made.attrs["dim"]]
        narrow = i32 if expr.last < 2**31 else i64
        return self._convert(kops.index(index=expr, dtype=narrow), made.result.dtype)

    def _convert(self, value: Value, dtype: DType) -> Value:
        result: Value = value if value.dtype is dtype else lookup("convert")(value, dtype=dtype)
        return result


class _Heavy:
    """Whether evaluating a value inside the region runs an expensive op."""

    def __init__(self, members: set[Instr]) -> None:
        self.members = members
        self.known: dict[Value, bool] = {}

    def __call__(self, value: Value) -> bool:
        stack = [value]
        while stack:
            top = stack[-1]
            made = top.producer
            if top in self.known:
                stack.pop()
            elif made is None or made not in self.members or is_fold(made):
                self.known[top] = False
                stack.pop()
            elif missing := [v for v in made.operands if v not in self.known]:
                stack.extend(missing)
            else:
                self.known[top] = is_expensive(made) or any(self.known[v] for v in made.operands)
                stack.pop()
        return self.known[value]


def _topmost(
    tiles: dict[tuple[Value, Index], tuple[int, int]], members: set[Instr]
) -> dict[tuple[Value, Index], tuple[int, int]]:
    """Drop a shared value that is only an operand of another shared value made in the same stage."""
    under: set[Value] = set()
    for value, _ in tiles:
        stack = list(value.producer.operands) if value.producer is not None else []
        while stack:
            v = stack.pop()
            if v not in under and v.producer is not None and v.producer in members and not is_fold(v.producer):
                under.add(v)
                stack.extend(v.producer.operands)
    return {place: home for place, home in tiles.items() if place[0] not in under}


def _dot_indices(fold: Instr, index: Index, contracted: dict[int, Expr]) -> tuple[Index, Index]:
    """Indices of both operands of a dot at result index ``index``; ``contracted`` is keyed by the left's dimensions."""
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


def _register_dtype(fold: Instr | None) -> DType:
    assert fold is not None
    if opdef(fold).kind is Kind.CONTRACTION:
        wide: DType = fold.attrs["accumulate"]
        return wide
    if fold.attrs["kind"] in ("add", "mul"):
        return accumulator(fold.result.dtype)
    return fold.result.dtype


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _trips(axes: tuple[Axis, ...]) -> int:
    product = 1
    for axis in axes:
        product *= axis.size
    return product


def _row_offset(inner: tuple[Axis, ...]) -> Expr:
    return flatten(map(Expr.of, inner), (a.size for a in inner))


def _joined(mask: Mask, more: Mask) -> Mask:
    return mask + tuple(b for b in more if b not in mask)


def _moves_with(index: Index, inner: tuple[Axis, ...]) -> bool:
    axes = {a for e in index for a in e.axes()}
    return all(a in axes for a in inner)


def _depends(value: Value, fold: Instr, members: set[Instr]) -> bool:
    stack, seen = [value], set()
    while stack:
        v = stack.pop()
        if v.producer is fold:
            return True
        if v not in seen and v.producer is not None and v.producer in members:
            seen.add(v)
            stack.extend(v.producer.operands)
    return False


def _group(items: list[_Item]) -> list[list[_Item]]:
    """Stages: items of one level and one inner nest, in order of level."""
    table: dict[tuple[int, tuple[Axis, ...]], list[_Item]] = {}
    for item in items:
        table.setdefault((item.level, item.inner), []).append(item)
    return [table[key] for key in sorted(table, key=lambda k: k[0])]


def _renumber(body: Graph, count: int) -> Graph:
    """Tile loads carry ``-1 - n`` until the number of outside buffers is known."""
    if all(i.op.name != "load" or i.attrs["buffer"] >= 0 for i in body.instrs):
        return body
    from bringup.graph import rebuild

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if instr.op.name != "load" or instr.attrs["buffer"] >= 0:
            return None
        attrs: dict[str, Any] = {**instr.attrs, "buffer": count - 1 - instr.attrs["buffer"]}
        return (kops.load(*operands, **attrs),)

    return rebuild(body, rewrite)


def _place_sink(sink: Sink, count: int) -> Sink:
    if isinstance(sink, Store) and sink.buffer < 0:
        return Store(count - 1 - sink.buffer, sink.index, sink.mask)
    return sink
