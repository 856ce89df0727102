"""From a region of graph instructions to one `Kernel`.

The values a region must produce are evaluated symbolically: element ``index`` of a value is a
scalar expression of elements of its operands.  Movement ops rewrite the index; elementwise ops
become scalar instructions; values from outside become loads.  A reduction or contraction becomes a
*fold*: a register of the grid point, which requires that wherever it is read, it is read at exactly
the grid's axes.  Folds and stores that depend on each other's results fall into successive stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bringup.dtypes import DType
from bringup.graph import Graph, Instr, Value
from bringup.graph.index import Axis, Div, Expr, Index, Mod, flatten
from bringup.kernel.axes import renumber_buffers
from bringup.kernel.form import BufferDecl, Fold, Kernel, Sink, Stage, Store
from bringup.kernel.limits import Limits
from bringup.kernel.movement import is_movement, needs_of
from bringup.kernel.stage_body import (
    MAX_BODY,
    BodyBuilder,
    ElementWalk,
    KernelScope,
    StageItem,
    TileElement,
    Unfusable,
    inlines,
    is_expensive,
    is_fold,
    register_dtype,
    row_offset,
)
from bringup.ops.table import Kind, opdef
from bringup.records import record
from bringup.types import TensorType


@dataclass(slots=True)
class Region:
    """Instructions that are to run in one launch, and the values they must leave in memory."""

    members: set[Instr]
    outputs: list[Value]


@record
class Shape:
    """What is known of a region's kernel without building it: its grid, its number of stages, and
    the indices at which every outside value is read.
    """

    grid: tuple[Axis, ...]
    stages: int
    reads: Mapping[Value, list[Index]]

    @property
    def points(self) -> int:
        """Grid points."""
        return _trips(self.grid)


@record
class BuiltKernel:
    """A kernel, and the values behind its non-tile buffers in order."""

    kernel: Kernel
    values: tuple[Value, ...]


@record
class _Part:
    """What of an output's dimension one grid axis is: all of it, or its quotient (high) or
    remainder (low) by ``by``.
    """

    dim: int
    role: str = "whole"
    by: int = 0

    def clashes(self, other: _Part) -> bool:
        """Whether no index can have both."""
        if self.dim != other.dim:
            return False
        return "whole" in (self.role, other.role) or self.role == other.role or self.by != other.by


def _part_of(e: Expr, size: int, axes: list[Axis]) -> _Part | None:
    """The part of one of ``axes`` that an index of this size runs over, if it is one."""
    axis = e.axis
    if axis is not None:
        return _Part(axes.index(axis)) if axis in axes and axis.size == size else None
    if e.const or len(e.terms) != 1 or e.terms[0][1] != 1:
        return None
    atom = e.terms[0][0]
    if not isinstance(atom, (Div, Mod)) or (axis := atom.of.axis) is None or axis not in axes:
        return None
    high = isinstance(atom, Div)
    whole = axis.size % atom.by == 0 and size == (axis.size // atom.by if high else atom.by)
    return _Part(axes.index(axis), "high" if high else "low", atom.by) if whole else None


def build_kernel(
    region: Region, order: Mapping[Instr, int], limits: Limits, name: str
) -> BuiltKernel:
    """Build the kernel of a region.  Raises Unfusable."""
    return KernelBuilder(region, order, limits).run(name)


def shape_region(region: Region, order: Mapping[Instr, int], limits: Limits) -> Shape:
    """Find out whether a region is one kernel, and which.  Raises Unfusable."""
    return KernelBuilder(region, order, limits).shape()


class KernelBuilder:
    """One region that becomes a kernel."""

    def __init__(self, region: Region, order: Mapping[Instr, int], limits: Limits) -> None:
        self.region = region
        self.limits = limits
        self.folds = sorted((m for m in region.members if is_fold(m)), key=order.__getitem__)
        self.order = order
        self.scope = KernelScope(region.members)
        self.levels: dict[Value, int] = {}

    def shape(self) -> Shape:
        """ElementWalk every stage without building it."""
        self._choose_grid()
        stages = _group(self._items())
        self._check_rows(stages)
        reads: dict[Value, dict[Index, None]] = {}
        for stage in stages:
            walk = ElementWalk(self.scope, {}, stage[0].inner)
            for item in stage:
                walk.visit(walk.roots(item))
            for value, index in walk.outside():
                reads.setdefault(value, {})[index] = None
        if len(reads) + len(self.region.outputs) > self.limits.buffers:
            raise Unfusable(
                f"needs {len(reads)} inputs, the device takes {self.limits.buffers} buffers"
            )
        return Shape(
            self.scope.grid, len(stages), {v: list(indices) for v, indices in reads.items()}
        )

    def run(self, name: str) -> BuiltKernel:
        """The whole lowering.  Raises Unfusable."""
        self._choose_grid()
        items = self._items()
        stages = _group(items)
        self._check_rows(stages)
        tiles = self._shared(stages)
        built, decls = self._build(stages, tiles)
        values = sorted(self.scope.buffers, key=self.scope.buffers.__getitem__)
        if len(values) > self.limits.buffers:
            raise Unfusable(f"needs {len(values)} buffers, the device takes {self.limits.buffers}")
        outputs = set(self.region.outputs)
        buffers = tuple(BufferDecl(v.type, "out" if v in outputs else "in") for v in values)
        source = tuple(m.op.name for m in sorted(self.region.members, key=self.order.__getitem__))
        kernel = Kernel(name, self.scope.grid, buffers + decls, built, source)
        return BuiltKernel(kernel, tuple(values))

    # -- grid --------------------------------------------------------------------------------------

    def _choose_grid(self) -> None:
        shapes = [_squeezed(f.result.shape) for f in self.folds] or [
            _squeezed(self.region.outputs[0].shape)
        ]
        if any(s != shapes[0] for s in shapes):
            raise Unfusable(f"reductions over different grids: {shapes}")
        self.scope.grid = tuple(Axis(i, n) for i, n in enumerate(shapes[0]))
        self.scope.grid_index = tuple(map(Expr.of, self.scope.grid))

    # -- items and levels --------------------------------------------------------------------------

    def _items(self) -> list[StageItem]:
        items: list[StageItem] = []
        for fold in self.folds:
            inner, _ = self.scope.inner_axes(fold)
            index = self.scope.at_grid(fold.result.shape)
            level = self._level_of_operands(fold)
            self.levels[fold.result] = level + 1
            items.append(StageItem(fold.result, level, inner, index, fold))
        for value in self.region.outputs:
            index, inner = self._place(value)
            items.append(StageItem(value, self._level(value), inner, index, None))
        return items

    def _level(self, value: Value) -> int:
        """Stages that must have run before ``value`` can be evaluated; iterative, as chains may be
        long.
        """
        stack = [value]
        while stack:
            top = stack[-1]
            producer = top.producer
            if top in self.levels:
                stack.pop()
            elif producer is None or producer not in self.region.members:
                self.levels[top] = 0
                stack.pop()
            elif missing := [v for v in producer.operands if v not in self.levels]:
                stack.extend(missing)
            else:
                self.levels[top] = max((self.levels[v] for v in producer.operands), default=0)
                stack.pop()
        return self.levels[value]

    def _level_of_operands(self, fold: Instr) -> int:
        return max(self._level(v) for v in fold.operands)

    def _place(self, value: Value) -> tuple[Index, tuple[Axis, ...]]:
        """Where an output's dimensions lie: on grid axes or on inner axes of its store stage."""
        shape = value.shape
        sizes = _squeezed(shape)
        grid = [a.size for a in self.scope.grid]
        if not self.folds or not any(_depends(value, f, self.region.members) for f in self.folds):
            if list(sizes[: len(grid)]) != grid:
                raise Unfusable(f"output {value.type} does not span the grid {tuple(grid)}")
            parts = [_Part(p) for p in range(len(grid))]
        else:
            parts = self._probe(value)
        return self._assign(shape, parts)

    def _assign(self, shape: tuple[int, ...], parts: list[_Part]) -> tuple[Index, tuple[Axis, ...]]:
        """The index that runs over ``shape``, of the grid's axes and new inner ones."""
        live = [d for d, n in enumerate(shape) if n != 1]
        parts_of = {(live[part.dim], part.role): part for part in parts}
        grid = dict(zip(((live[p.dim], p.role) for p in parts), self.scope.grid_index, strict=True))
        index: list[Expr] = [Expr()] * len(shape)
        inner: list[Axis] = []

        def along(d: int, role: str, size: int) -> Expr:
            if (d, role) in grid:
                return grid[d, role]
            inner.append(Axis(len(self.scope.grid) + len(inner), size))
            return Expr.of(inner[-1])

        for d in live:
            part = parts_of.get((d, "high")) or parts_of.get((d, "low"))
            if part is None:
                index[d] = along(d, "whole", shape[d])
                continue
            high = along(d, "high", shape[d] // part.by)
            index[d] = high * part.by + along(d, "low", part.by)
        return tuple(index), tuple(inner)

    def _probe(self, value: Value) -> list[_Part]:
        """Which (squeezed) dimensions of an output, or parts of them, are the grid's, by following
        it to a fold.
        """
        sizes = _squeezed(value.shape)
        axes = [Axis(10_000 + i, n) for i, n in enumerate(sizes)]
        it = iter(axes)
        start: Index = tuple(Expr() if n == 1 else Expr.of(next(it)) for n in value.shape)
        stack: list[tuple[Value, Index]] = [(value, start)]
        seen: set[tuple[Value, Index]] = set()
        while stack:
            element = stack.pop()
            index, producer = element[1], element[0].producer
            if element in seen or producer is None or producer not in self.region.members:
                continue
            seen.add(element)
            if is_fold(producer):
                return self._grid_positions(producer, index, axes)
            if is_movement(producer):
                stack.extend((v, where) for v, where, _ in needs_of(producer, index))
            else:
                stack.extend((v, index) for v in producer.operands)
            if len(seen) > MAX_BODY:
                break
        raise Unfusable("an output does not reach its reduction")

    def _grid_positions(self, fold: Instr, index: Index, axes: list[Axis]) -> list[_Part]:
        parts: list[_Part] = []
        for e, n in zip(index, fold.result.shape, strict=True):
            if n == 1:
                continue
            part = _part_of(e, n, axes)
            if part is None or any(part.clashes(other) for other in parts):
                raise Unfusable(f"{fold.op.name} is read at {e}, not at one grid point")
            parts.append(part)
        return parts

    # -- limits ------------------------------------------------------------------------------------

    def _check_rows(self, stages: list[list[StageItem]]) -> None:
        looping = [s for s in stages if s[0].inner]
        if len(looping) > 1:
            longest = max(_trips(s[0].inner) for s in looping)
            if longest > self.limits.row_elements:
                raise Unfusable(
                    f"a row of {longest} elements does not stay close; "
                    f"limit {self.limits.row_elements}"
                )
            if any(
                opdef(i.fold).kind is Kind.CONTRACTION
                for s in looping
                for i in s
                if i.fold is not None
            ):
                raise Unfusable("a contraction shares no kernel with other loops")
        if len(looping) > self.limits.stages:
            raise Unfusable(f"needs {len(looping)} loops, the device takes {self.limits.stages}")

    # -- tiles -------------------------------------------------------------------------------------

    def _shared(self, stages: list[list[StageItem]]) -> dict[tuple[Value, Index], tuple[int, int]]:
        """Expensive values that two stages need: (value, index) -> (stage that makes it, its inner
        trips).
        """
        heavy = _Heavy(self.region.members)
        makers: dict[tuple[Value, Index], tuple[int, int]] = {}
        tiles: dict[tuple[Value, Index], tuple[int, int]] = {}
        for number, stage in enumerate(stages):
            inner = stage[0].inner
            trips = _trips(inner)
            if not inner:
                continue
            walk = ElementWalk(self.scope, {}, inner)
            for item in stage:
                walk.visit(walk.roots(item))
            for value, index, mask in walk.seen:
                if mask or not heavy(value) or not _moves_with(index, inner):
                    continue
                element = (value, index)
                if element in makers and makers[element][1] == trips and self._fits(trips, value):
                    tiles[element] = makers[element]
                makers.setdefault(element, (number, trips))
        return self._within_scratch(_topmost(tiles, self.region.members))

    def _fits(self, trips: int, value: Value) -> bool:
        return trips * value.dtype.itemsize <= self.limits.tile_bytes

    def _within_scratch(
        self, tiles: dict[tuple[Value, Index], tuple[int, int]]
    ) -> dict[tuple[Value, Index], tuple[int, int]]:
        """As many as fit together; the others are evaluated once more."""
        fitting: dict[tuple[Value, Index], tuple[int, int]] = {}
        room = self.limits.tile_bytes
        for element, (stage, trips) in tiles.items():
            size = trips * element[0].dtype.itemsize
            if size <= room:
                fitting[element] = (stage, trips)
                room -= size
        return fitting

    # -- bodies ------------------------------------------------------------------------------------

    def _build(
        self, stages: list[list[StageItem]], tiles: dict[tuple[Value, Index], tuple[int, int]]
    ) -> tuple[tuple[Stage, ...], tuple[BufferDecl, ...]]:
        self.scope.buffers.clear()
        pending: list[tuple[list[StageItem], Graph, list[Sink]]] = []
        registers: list[tuple[Value, DType]] = []
        stored = {
            element: TileElement(n, row_offset(stages[stage][0].inner))
            for n, (element, (stage, _)) in enumerate(tiles.items())
        }
        done: set[tuple[Value, Index]] = set()
        for number, stage in enumerate(stages):
            # A stage over more axes has the element it wants at the maker's axes among its own.
            ready = {e: stored[e] for e in done if stored[e].offset.axes() <= {*stage[0].inner}}
            body = BodyBuilder(self.scope, registers, ready, stage[0].inner)
            outputs: list[Value] = []
            sinks: list[Sink] = []
            for item in stage:
                outputs.append(body.value_of(item))
                sinks.append(self._sink(item, body))
            for element, (maker, _) in tiles.items():
                if maker == number:
                    outputs.append(body.element(*element, ()))
                    sinks.append(Store(-1 - stored[element].number, stored[element].offset))
                    done.add(element)
            pending.append((stage, body.builder.build(outputs, f"stage{number}"), sinks))
            registers += [(i.value, register_dtype(i.fold)) for i in stage if i.fold is not None]
        count = len(self.scope.buffers)
        decls = tuple(
            BufferDecl(TensorType((trips,), value.dtype), "tile")
            for (value, _), (_, trips) in tiles.items()
        )

        def buffer_number(buffer: int) -> int:
            """Tiles are ``-1 - n`` until the number of outside buffers is known."""
            return buffer if buffer >= 0 else count - 1 - buffer

        built = tuple(
            renumber_buffers(Stage(s[0].inner, g, tuple(sinks)), buffer_number)
            for s, g, sinks in pending
        )
        return built, decls

    def _sink(self, item: StageItem, body: BodyBuilder) -> Sink:
        if item.fold is not None:
            contracts = opdef(item.fold).kind is Kind.CONTRACTION
            kind = "add" if contracts else item.fold.attrs["kind"]
            precision = item.fold.attrs.get("precision", "highest")
            return Fold(kind, register_dtype(item.fold), contracts, precision)
        return Store(self.scope.buffer_of(item.value), flatten(item.index, item.value.shape))


class _Heavy:
    """Whether evaluating a value inside the region runs an expensive op."""

    def __init__(self, members: set[Instr]) -> None:
        self.members = members
        self.known: dict[Value, bool] = {}

    def __call__(self, value: Value) -> bool:
        stack = [value]
        while stack:
            top = stack[-1]
            producer = top.producer
            if top in self.known:
                stack.pop()
            elif producer is None or producer not in self.members or is_fold(producer):
                self.known[top] = False
                stack.pop()
            elif missing := [v for v in producer.operands if v not in self.known]:
                stack.extend(missing)
            else:
                self.known[top] = is_expensive(producer) or any(
                    self.known[v] for v in producer.operands
                )
                stack.pop()
        return self.known[value]


def _topmost(
    tiles: dict[tuple[Value, Index], tuple[int, int]], members: set[Instr]
) -> dict[tuple[Value, Index], tuple[int, int]]:
    """Drop a shared value that only feeds another shared value made in the same stage."""
    under: set[Value] = set()
    for value, _ in tiles:
        stack = list(value.producer.operands) if value.producer is not None else []
        while stack:
            v = stack.pop()
            if (
                v not in under
                and v.producer is not None
                and v.producer in members
                and not is_fold(v.producer)
            ):
                under.add(v)
                stack.extend(v.producer.operands)
    return {element: maker for element, maker in tiles.items() if element[0] not in under}


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _trips(axes: tuple[Axis, ...]) -> int:
    product = 1
    for axis in axes:
        product *= axis.size
    return product


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


def _group(items: list[StageItem]) -> list[list[StageItem]]:
    """Stages: items of one level and one inner nest, in order of level."""
    table: dict[tuple[int, tuple[Axis, ...]], list[StageItem]] = {}
    for item in items:
        table.setdefault((item.level, item.inner), []).append(item)
    return [table[key] for key in sorted(table, key=lambda k: k[0])]


__all__ = [
    "BuiltKernel",
    "KernelBuilder",
    "Region",
    "Shape",
    "Unfusable",
    "build_kernel",
    "inlines",
    "is_expensive",
    "is_fold",
    "shape_region",
]
