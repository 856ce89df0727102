"""Contractions by packed panels: blocks that stay in a core's cache, tiles that stay in registers.

A unit is a block of rows by a block of columns.  For each block of inner indices it packs the
columns it needs (`bringup.llvm.loops.packing`), then the rows, one band at a time that fits a
core's cache, and runs the micro-kernel on every tile.  Sums stay in scratch memory until the last
block of inner indices.  The epilogue runs on each tile as soon as its sums are complete, while
they are in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.dtypes import DType, i16
from bringup.graph.index import Axis
from bringup.integers import ceil_div
from bringup.kernel.axes import merge_neighbours
from bringup.kernel.contraction import Axes, Contraction, recognise, size
from bringup.kernel.form import Kernel, Stage, Store
from bringup.llvm import text as ir
from bringup.llvm.body import Frame
from bringup.llvm.loops.blocking import Blocking, TileShape, blocking, panels
from bringup.llvm.loops.body import VectorBody
from bringup.llvm.loops.packing import Packing, coordinates, pointers, runs
from bringup.llvm.loops.schedule import LINE_BYTES, LoopTarget, NativeKernel, unit_function
from bringup.llvm.scalar import combine, convert, memory_type, neutral, register_type
from bringup.llvm.text import Builder, Callee, Module, Param, Val, i64_const, vec
from bringup.llvm.text.masked import prefetch

#: The id of the axis that stands for all axes of the rows in an epilogue.
_ROW = -2


def packed_plan(kernel: Kernel, target: LoopTarget) -> tuple[Contraction, Blocking] | None:
    """How to block ``kernel`` if it is a contraction for which packing pays."""
    contraction = recognise(kernel)
    if contraction is None:
        return None
    other = replace(contraction, left=contraction.right, right=contraction.left)
    if panels(contraction, target) is None and panels(other, target) is not None:
        # Panels in memory are worth stores that are not contiguous.
        contraction = other
    plan = blocking(contraction, target)
    return None if plan is None else (contraction, plan)


def emit_packed(
    module: Module, contraction: Contraction, plan: Blocking, name: str
) -> NativeKernel:
    """Emit a contraction as function ``name``."""
    return _Emitter(module, contraction, plan, name).run()


class _Emitter:
    """Emits a contraction by packed panels."""

    def __init__(self, module: Module, contraction: Contraction, plan: Blocking, name: str) -> None:
        self.contraction = contraction
        self.plan = plan
        self.name = name
        self.dtype = contraction.fold.dtype
        self.element = register_type(self.dtype)
        self.rows = size(contraction.left.axes)
        self.columns = size(contraction.right.axes)
        tile, cut = plan.tile, plan.cut
        left = Packing(contraction, contraction.left, tile.rows, tile.lanes, cut, tile.pair)
        self.pack_rows = left.function(module, f"{name}.rows")
        if plan.ready is None:
            width, right = tile.columns, contraction.right
            right_packing = Packing(contraction, right, width, tile.lanes, cut, tile.pair)
            self.pack_columns = right_packing.function(module, f"{name}.columns")
        stored = self.dtype if plan.ready is None else plan.ready.dtype
        self.right_element = memory_type(stored)
        self.micro = micro_kernel(module, self.dtype, tile, stored)
        self.function = unit_function(module, name)
        self.b = Builder(self.function.block("entry"))
        self.pointers: list[Val] = []
        self.bases: dict[Axis, Val] = {}

    # -- units -------------------------------------------------------------------------------------

    def run(self) -> NativeKernel:
        b, plan = self.b, self.plan
        self.buffers, begin, end, worker = self.function.args
        self.pointers = pointers(b, self.contraction, self.buffers)
        used = self._scratch(worker)
        self.parts = ceil_div(self.rows, plan.rows), ceil_div(self.columns, plan.columns)
        units = size(self.contraction.batch) * self.parts[0] * self.parts[1]
        with b.loop(begin, end, carried=[i64_const(-1)] * 2) as loop:
            loop.next(*self._unit(loop.index, loop.carried))
        b.ret()
        kernel = self.contraction.kernel
        total = sum(len(s.body) * s.trips for s in kernel.stages) * kernel.points
        return NativeKernel(self.name, units, used, total // units)

    def _scratch(self, worker: Val) -> int:
        """Lay out panels and sums in scratch memory; returns the bytes of a worker."""
        b, plan, tile = self.b, self.plan, self.plan.tile
        depth, each = plan.cut.depth, self.element.bits // 8
        sums = plan.rows * plan.columns if plan.cut.blocks > 1 else tile.rows * tile.columns
        # Squares and vectors are stored whole and may exceed the end.
        spare = tile.lanes * max(tile.rows, tile.columns)
        columns = 0 if plan.ready is not None else depth * plan.columns + spare
        counts = [depth * plan.band + spare, columns, sums + tile.lanes]
        sizes = [-(-n * each // LINE_BYTES) * LINE_BYTES for n in counts]
        buffers = len(self.contraction.kernel.buffers)
        scratch = b.load(ir.ptr, b.gep(self.buffers, buffers, ir.ptr), 8)
        self.left = b.gep(scratch, b.mul(worker, i64_const(sum(sizes))), ir.i8)
        self.right = b.gep(self.left, sizes[0], ir.i8)
        self.sums = b.gep(self.left, sizes[0] + sizes[1], ir.i8)
        return sum(sizes)

    def _unit(self, unit: Val, packed: Sequence[Val]) -> tuple[Val, Val]:
        """Emit a unit.

        packed: the numbers of the columns and of the rows whose panels are in scratch memory; they
        are packed only if they differ.  Returns the numbers of this unit.
        """
        b, plan = self.b, self.plan
        parts, batch = self.parts, self.contraction.batch
        strip = b.udiv(unit, i64_const(parts[0]))
        down = b.urem(unit, i64_const(parts[0])) if parts[0] > 1 else i64_const(0)
        across = b.urem(strip, i64_const(parts[1])) if parts[1] > 1 else i64_const(0)
        self.batch = b.udiv(strip, i64_const(parts[1]))
        self.bases |= coordinates(b, self.batch, batch)
        self.row = b.mul(down, i64_const(plan.rows))
        self.column = b.mul(across, i64_const(plan.columns))
        self.height = b.lesser(i64_const(plan.rows), b.sub(i64_const(self.rows), self.row))
        self.width = b.lesser(i64_const(plan.columns), b.sub(i64_const(self.columns), self.column))
        unit_rows = b.add(b.mul(self.batch, i64_const(parts[0])), down)
        if plan.cut.blocks > 1:
            with b.loop(i64_const(0), i64_const(plan.cut.blocks)) as loop:
                start, depth = self._depth(loop.index)
                self._pack_columns(start, depth)
                row, height = self.row, self.height
                with b.loop(i64_const(0), height, plan.band) as bands:
                    self.row = b.add(row, bands.index)
                    self.height = b.lesser(i64_const(plan.band), b.sub(height, bands.index))
                    self._pack_rows(start, depth)
                    self._tiles(loop.index, depth, bands.index)
            return strip, unit_rows
        depth = i64_const(plan.cut.depth)
        if plan.ready is not None:
            self._pack_columns(i64_const(0), depth)
        else:
            with b.if_then(b.icmp("ne", strip, packed[0])):
                self._pack_columns(i64_const(0), depth)
        with b.if_then(b.icmp("ne", unit_rows, packed[1])):
            self._pack_rows(i64_const(0), depth)
        self._tiles(i64_const(0), depth, i64_const(0))
        return strip, unit_rows

    def _depth(self, block: Val) -> tuple[Val, Val]:
        """The first inner index of a block, and how many it has."""
        b, cut = self.b, self.plan.cut
        axis = cut.axes[cut.level]
        piece = b.urem(block, i64_const(cut.pieces)) if cut.pieces > 1 else i64_const(0)
        low = b.mul(piece, i64_const(cut.piece))
        outer = b.mul(b.udiv(block, i64_const(cut.pieces)), i64_const(axis.size))
        count = b.lesser(i64_const(cut.piece), b.sub(i64_const(axis.size), low))
        return b.mul(b.add(outer, low), i64_const(cut.tail)), b.mul(count, i64_const(cut.tail))

    def _pack_columns(self, start: Val, depth: Val) -> None:
        """Make `right` point to the panels of a block, which are `stride` inner indices apart."""
        b, ready = self.b, self.plan.ready
        self.stride = depth
        if ready is None:
            args = [self.buffers, self.right, self.batch, self.column, self.width, start, depth]
            b.call(self.pack_columns, args)
            return
        body = VectorBody(b, self.contraction.kernel.stages[0].body, self.pointers, [], None, [])
        offset = body.scalar(ready.first, (), Frame(self.bases, (), None, 1, None))
        self.stride = i64_const(size(self.contraction.inner))
        offset = b.add(offset, b.mul(self.column, self.stride))
        offset = b.add(offset, b.mul(start, i64_const(self.plan.tile.columns)))
        self.right = b.gep(self.pointers[ready.buffer], offset, self.right_element)

    def _pack_rows(self, start: Val, depth: Val) -> None:
        args = [self.buffers, self.left, self.batch, self.row, self.height, start, depth]
        self.b.call(self.pack_rows, args)

    def _tiles(self, block: Val, depth: Val, skipped: Val) -> None:
        """Emit the loops over the tiles of a band in a block of inner indices.

        skipped: rows of the unit before the band.
        """
        b, tile, cut = self.b, self.plan.tile, self.plan.cut
        first = b.icmp("eq", block, i64_const(0))
        count = b.lshr(b.add(depth, i64_const(1)), i64_const(1)) if tile.pair else depth
        with b.loop(i64_const(0), self.width, tile.columns) as across:
            right = b.gep(self.right, b.mul(across.index, self.stride), self.right_element)
            with b.loop(i64_const(0), self.height, tile.rows) as down:
                left = b.gep(self.left, b.mul(down.index, depth), self.element)
                sums = self.sums
                if cut.blocks > 1:
                    row = b.mul(b.add(skipped, down.index), i64_const(tile.columns))
                    offset = b.add(b.mul(across.index, i64_const(self.plan.rows)), row)
                    sums = b.gep(sums, offset, self.element)
                if cut.blocks == 1:
                    self._prefetch(down.index, across.index)
                    b.call(self.micro, [left, right, sums, count, first])
                    self._finish(sums, down.index, across.index)
                else:
                    last = b.icmp("eq", block, i64_const(cut.blocks - 1))
                    with b.if_then(last):
                        self._prefetch(down.index, across.index)
                    b.call(self.micro, [left, right, sums, count, first])
                    with b.if_then(last):
                        self._finish(sums, down.index, across.index)

    def _prefetch(self, down: Val, across: Val) -> None:
        """Prefetch the memory of a tile's results before its sums are computed."""
        b, tile = self.b, self.plan.tile
        first, column = b.add(self.row, down), b.add(self.column, across)
        for stage in self.contraction.epilogue:
            merged, rows = merge_neighbours(stage, self.contraction.left.axes)
            merged, columns = merge_neighbours(merged, self.contraction.right.axes)
            if len(rows) != 1:
                continue
            bases = self.bases | coordinates(b, column, columns) | {rows[0]: first}
            body = VectorBody(b, merged.body, self.pointers, [], None, [])
            frame = Frame(bases, (), None, 1, None)
            for store in merged.stores:
                element = memory_type(self.contraction.kernel.buffers[store.buffer].type.dtype)
                if store.index.coefficient(columns[-1]) != 1:
                    continue
                start = body.scalar(store.index, (), frame)
                step = store.index.coefficient(rows[0]) or 0
                with b.loop(i64_const(0), i64_const(tile.rows)) as loop:
                    row = b.add(start, b.mul(loop.index, i64_const(step)))
                    for v in range(tile.vectors):
                        offset = b.add(row, i64_const(v * tile.lanes))
                        line = b.gep(self.pointers[store.buffer], offset, element, flags="")
                        prefetch(b, line, write=True)

    # -- epilogue ----------------------------------------------------------------------------------

    def _finish(self, sums: Val, down: Val, across: Val) -> None:
        """Emit the epilogue of a tile."""
        b, tile = self.b, self.plan.tile
        rows = b.lesser(i64_const(tile.rows), b.sub(self.height, down))
        columns = b.lesser(i64_const(tile.columns), b.sub(self.width, across))
        first = b.add(self.column, across)
        for stage in self.contraction.epilogue:
            merged, axes = merge_neighbours(stage, self.contraction.right.axes)

            def run(
                indices: dict[Axis, Val],
                done: Val,
                mask: Val | None,
                stage: Stage = merged,
                axes: Axes = axes,
            ) -> None:
                self.bases |= indices
                start = b.gep(sums, done, self.element)
                _Epilogue(self, stage, axes).emit(start, b.add(self.row, down), rows, mask)

            runs(b, axes, first, columns, (tile.columns, tile.lanes), run)


class _Epilogue:
    """Emits one stage of the epilogue on a run of columns of a tile."""

    def __init__(self, owner: _Emitter, stage: Stage, axes: Axes) -> None:
        self.owner = owner
        self.b = owner.b
        self.lane = axes[-1]
        self.stage, self.rows = merge_neighbours(stage, owner.contraction.left.axes)
        self.loop = Axis(_ROW, owner.plan.tile.rows)
        self.body = _RowBody(self.b, self.stage, owner.pointers, self.loop, self.lane, self.rows)

    def emit(self, sums: Val, first: Val, count: Val, mask: Val | None) -> None:
        b, owner, lanes = self.b, self.owner, self.owner.plan.tile.lanes
        body, element = self.body, owner.element
        frame = Frame(owner.bases, (), self.lane, lanes, None if mask is None else (mask,))
        body.give(0, {}, frozenset((self.loop,)), True)
        body.analyse()
        body.emit_level(0, frame)
        with b.loop(i64_const(0), count) as loop:
            owner.bases.update(coordinates(b, b.add(first, loop.index), self.rows))
            offset = b.mul(loop.index, i64_const(owner.plan.tile.columns))
            total = b.load(vec(element, lanes), b.gep(sums, offset, element), element.bits // 8)
            body.give(0, {(): total}, frozenset((self.loop,)), True)
            body.emit_level(1, frame)
            for value, sink in zip(self.stage.body.outputs, self.stage.sinks, strict=True):
                assert isinstance(sink, Store)
                dtype = owner.contraction.kernel.buffers[sink.buffer].type.dtype
                target = (sink.buffer, sink.index, sink.mask)
                body.store(body.at(value, ()), dtype, target, (), frame)


class _RowBody(VectorBody):
    """The body of a stage in one loop over all axes of the rows."""

    def __init__(
        self,
        b: Builder,
        stage: Stage,
        addresses: list[Val],
        loop: Axis,
        lane: Axis,
        rows: Axes,
    ) -> None:
        super().__init__(b, stage.body, addresses, [loop], lane, [])
        self.loop = loop
        self.rows = frozenset(rows)

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        return used | {self.loop} if used & self.rows else used


# -- the micro-kernel: a tile of sums in registers -------------------------------------------------
#
# A panel of the left factor holds, for each inner index, the elements of a tile's rows one after
# the other, and a panel of the right factor those of its columns.  Each iteration of the innermost
# loop loads a row of the right panel, broadcasts each element of the left one, and adds products.
#
# Integers of up to 16 bits whose sums have 32 go in pairs: an element of a panel is two neighbours
# along the inner axis in one word, and a step multiplies both and adds the products.  That is
# exact, and one instruction on x86-64 (``pmaddwd``, with AVX512-VNNI ``vpdpwssd``), where a product
# of words alone is two.


def micro_kernel(module: Module, dtype: DType, shape: TileShape, stored: DType) -> Callee:
    """``void (ptr a, ptr b, ptr c, i64 count, i1 first)``: the products of a tile.

    They are summed over ``count`` inner indices, or pairs of them, and written to ``c`` row by row
    if ``first``, else added to ``c``.
    stored: dtype of the right panels' elements, which are converted when they are read.
    """
    name = f"bringup.product.{dtype}.{stored}.{shape.rows}x{shape.vectors}x{shape.lanes}"
    name += ".pairs" if shape.pair else ""
    function = module.functions.get(name)
    if function is None:
        params: list[Param] = [("a", ir.ptr, "noalias"), ("b", ir.ptr, "noalias")]
        params += [("c", ir.ptr, "noalias"), ("count", ir.i64), ("first", ir.i1)]
        function = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        _MicroKernel(Builder(function.block("entry")), dtype, shape, stored).fill(*function.args)
    return function.callee


class _MicroKernel:
    def __init__(self, b: Builder, dtype: DType, shape: TileShape, stored: DType) -> None:
        self.b = b
        self.stored = stored
        self.dtype = dtype
        self.shape = shape
        self.element = register_type(dtype)

    def fill(self, a: Val, other: Val, c: Val, count: Val, first: Val) -> None:
        b, shape = self.b, self.shape
        start = neutral("add", self.dtype, shape.lanes)
        with b.loop(i64_const(0), count, carried=[start] * (shape.rows * shape.vectors)) as loop:
            left = b.gep(a, b.mul(loop.index, i64_const(shape.rows)), self.element)
            vectors = [self._right(other, loop.index, v) for v in range(shape.vectors)]
            sums: list[Val] = []
            for r in range(shape.rows):
                factor = b.load(self.element, b.gep(left, r, self.element), self.element.bits // 8)
                spread = b.splat(factor, shape.lanes)
                for v, vector in enumerate(vectors):
                    sums.append(self._step(spread, vector, loop.carried[r * len(vectors) + v]))
            loop.next(*sums)
        b.cond(
            first,
            lambda: self._write(c, loop.carried),
            lambda: self._write(
                c,
                [
                    combine(b, "add", self.dtype, self._vector(c, n, self.dtype), total)
                    for n, total in enumerate(loop.carried)
                ],
            ),
        )
        b.ret()

    def _right(self, panel: Val, index: Val, v: int) -> Val:
        """A vector of the right panel; pairs are joined here if the panel holds single elements."""
        b, dtype, shape = self.b, self.stored, self.shape
        rows = 2 if shape.pair and dtype is not self.dtype else 1
        offset = b.mul(index, i64_const(rows * shape.columns))
        row = b.gep(panel, offset, memory_type(dtype))
        if rows == 1:
            return convert(b, self._vector(row, v, dtype), dtype, self.dtype)
        even, odd = (self._vector(row, v + n * shape.vectors, dtype) for n in range(2))
        order = [n + half for n in range(shape.lanes) for half in (0, shape.lanes)]
        pairs = convert(b, b.shufflevector(even, odd, order), dtype, i16)
        return b.bitcast(pairs, vec(self.element, shape.lanes))

    def _vector(self, base: Val, v: int, dtype: DType) -> Val:
        element, lanes = memory_type(dtype), self.shape.lanes
        address = self.b.gep(base, v * lanes, element)
        return self.b.load(vec(element, lanes), address, element.bits // 8)

    def _step(self, x: Val, y: Val, total: Val) -> Val:
        if self.dtype.is_float:
            return self.b.fma(x, y, total)
        if self.shape.pair:
            return self.b.add(self._pairs(x, y), total)
        return self.b.add(self.b.mul(x, y), total)

    def _pairs(self, x: Val, y: Val) -> Val:
        """The sum of the products of both halves of each word, in the form that LLVM recognises."""
        b, count = self.b, 2 * self.shape.lanes
        x, y = (b.sext(b.bitcast(v, vec(ir.i16, count)), vec(ir.i32, count)) for v in (x, y))
        products = b.mul(x, y)
        even, odd = (b.shufflevector(products, None, range(n, count, 2)) for n in (0, 1))
        return b.add(even, odd)

    def _write(self, c: Val, sums: list[Val] | tuple[Val, ...]) -> None:
        for n, total in enumerate(sums):
            address = self.b.gep(c, n * self.shape.lanes, self.element)
            self.b.store(total, address, self.element.bits // 8)
