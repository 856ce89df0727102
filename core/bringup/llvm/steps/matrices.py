"""Dense matrices in native code, one matrix being one unit of work.

`Dense` has functions on matrices of f32 or f64 with contiguous rows, emitted once per module and
element type: the update ``C −= A B`` in register tiles.  `MatrixEmitter` copies the matrices of a
step to scratch memory of their worker, widened to f32 if they are narrower, with rows whose
distance is no power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import f32
from bringup.integers import round_up
from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LINE_BYTES
from bringup.llvm.scalar import is_half, memory_type, register_type, widen
from bringup.llvm.steps.base import NativeStep, PhaseBuilder
from bringup.llvm.text import (
    Builder,
    Callee,
    Module,
    Param,
    Type,
    Val,
    const,
    i64_const,
    vec,
)
from bringup.llvm.text.masked import lanes_below_wide, masked_load, masked_store
from bringup.loops.target import Target
from bringup.program.program import OpStep
from bringup.types import TensorType

#: Reflections of a block.
BLOCK = 32
_COLUMNS = 2

#: A matrix with contiguous rows: its address and leading dimension.
Rows = tuple[Val, Val]
#: A matrix that is read with two strides: its address, and the strides of rows and of columns.
View = tuple[Val, Val, Val]


def element(b: Builder, base: Val, type_: Type, stride: Val, row: Val, column: Val) -> Val:
    """The address of an element of a matrix."""
    return b.gep(base, b.add(b.mul(row, stride), column), type_)


class Dense:
    """Functions on matrices of one element type.

    type: ir.f32 or ir.f64.  lanes: of a vector.  rows: of a register tile.
    """

    def __init__(self, module: Module, type_: Type, target: Target) -> None:
        self.module = module
        self.type = type_
        self.bytes = 4 if type_ is ir.f32 else 8
        self.lanes = max(1, target.vector_bits // (8 * self.bytes))
        self.rows = 8 if target.registers >= 32 else 4
        self._suffix = f"{'f32' if type_ is ir.f32 else 'f64'}.{self.lanes}.{self.rows}"

    @property
    def width(self) -> int:
        """Columns of a register tile."""
        return self.lanes * _COLUMNS

    def padded(self, columns: int) -> int:
        """A leading dimension that is no power of two: such rows share few sets of a cache."""
        count = round_up(columns, self.lanes)
        return count + self.lanes if columns > self.width else count

    def at(self, b: Builder, base: Val, stride: int | Val, row: Val, column: Val) -> Val:
        """The address of an element."""
        by = i64_const(stride) if isinstance(stride, int) else stride
        return element(b, base, self.type, by, row, column)

    def function(
        self, name: str, params: Sequence[Param], fill: Callable[[Builder, list[Val]], None]
    ) -> Callee:
        """A function of the module for this type, whose body `fill` emits the first time."""
        full = f"bringup.{name}.{self._suffix}"
        function = self.module.functions.get(full)
        if function is None:
            function = self.module.function(
                full, ir.void, params, attrs="nounwind", linkage="internal"
            )
            b = Builder(function.block("entry"))
            fill(b, list(function.args))
            b.ret()
        return function.callee

    # -- C −= A B

    def update(self, b: Builder, c: Rows, a: View, x: Rows, sizes: tuple[Val, Val, Val]) -> None:
        """Emit ``C[m × n] −= A[m × k] X[k × n]``.  sizes: m, n, k."""
        params: list[Param] = [("c", ir.ptr), ("ldc", ir.i64), ("a", ir.ptr), ("ar", ir.i64)]
        params += [("ac", ir.i64), ("x", ir.ptr), ("ldx", ir.i64)]
        params += [("m", ir.i64), ("n", ir.i64), ("k", ir.i64)]
        b.call(self.function("update", params, self._fill_update), [*c, *a, *x, *sizes])

    def _fill_update(self, b: Builder, args: list[Val]) -> None:
        n = args[8]
        with b.loop(i64_const(0), n, self.width) as columns:
            left = b.sub(n, columns.index)

            def whole() -> None:
                self._tiles(b, args, columns.index, [None] * _COLUMNS)

            def partial() -> None:
                masks = [
                    self.mask(b, b.sub(left, i64_const(v * self.lanes))) for v in range(_COLUMNS)
                ]
                self._tiles(b, args, columns.index, masks)

            b.cond(b.icmp("sge", left, i64_const(self.width)), whole, partial)

    def mask(self, b: Builder, count: Val) -> Val:
        """The lanes below a count."""
        return lanes_below_wide(b, count, self.lanes)

    def _tiles(self, b: Builder, args: list[Val], j: Val, masks: Sequence[Val | None]) -> None:
        m = args[7]
        whole = b.sub(m, b.urem(m, i64_const(self.rows)))
        with b.loop(i64_const(0), whole, self.rows) as rows:
            self._tile(b, args, rows.index, j, self.rows, masks)
        with b.loop(whole, m) as rows:
            self._tile(b, args, rows.index, j, 1, masks)

    def _tile(
        self, b: Builder, args: list[Val], i: Val, j: Val, rows: int, masks: Sequence[Val | None]
    ) -> None:
        c, ldc, a, by_row, by_column, x, ldx, _, _, k = args
        zero = ir.zero(vec(self.type, self.lanes))
        heads = [b.gep(a, b.mul(b.add(i, i64_const(r)), by_row), self.type) for r in range(rows)]
        with b.loop(i64_const(0), k, carried=[zero] * (rows * len(masks))) as terms:
            start = self.at(b, x, ldx, terms.index, j)
            step = b.mul(terms.index, by_column)
            vectors = [self._load(b, start, v, mask) for v, mask in enumerate(masks)]
            sums: list[Val] = []
            for r in range(rows):
                factor = b.load(self.type, b.gep(heads[r], step, self.type), self.bytes)
                spread = b.splat(factor, self.lanes)
                for v, vector in enumerate(vectors):
                    total = terms.carried[r * len(masks) + v]
                    sums.append(b.intrinsic("llvm.fmuladd", vector.type, (spread, vector, total)))
            terms.next(*sums)
        for r in range(rows):
            start = self.at(b, c, ldc, b.add(i, i64_const(r)), j)
            for v, mask in enumerate(masks):
                before = self._load(b, start, v, mask)
                change = terms.carried[r * len(masks) + v]
                self._store(b, b.fsub(before, change), start, v, mask)

    def _load(self, b: Builder, start: Val, v: int, mask: Val | None) -> Val:
        address, kind = b.gep(start, v * self.lanes, self.type), vec(self.type, self.lanes)
        if mask is None:
            return b.load(kind, address, self.bytes)
        return masked_load(b, kind, address, mask, align=self.bytes)

    def _store(self, b: Builder, value: Val, start: Val, v: int, mask: Val | None) -> None:
        address = b.gep(start, v * self.lanes, self.type)
        if mask is None:
            b.store(value, address, self.bytes)
        else:
            masked_store(b, value, address, mask, self.bytes)


Strides = tuple[int, int]
_ZERO, _ONE = i64_const(0), i64_const(1)


class MatrixEmitter:
    """Emits a step on a stack of matrices; a unit of work is one matrix.

    dense: functions on matrices.  b: the builder.  unit: the number of the matrix, inside `each`.
    """

    def __init__(self, module: Module, step: OpStep, name: str, target: Target) -> None:
        self.step = step
        self.phase = PhaseBuilder(module, step, name)
        self.b: Builder = self.phase.b
        self.dtype = step.operands[0].type.dtype
        wide = f32 if is_half(self.dtype) else self.dtype
        self.type: Type = memory_type(wide)
        self.dense = Dense(module, self.type, target)
        self.unit = _ZERO
        self._shared = 0

    @property
    def count(self) -> int:
        """MatrixEmitter of the stack."""
        return math.prod(self.step.operands[0].type.shape[:-2])

    @contextmanager
    def each(self) -> Iterator[None]:
        """The loop over matrices."""
        with self.phase.units() as unit:
            self.unit = unit
            yield

    def scratch(self, *sizes: int) -> list[Val]:
        """Addresses of scratch memory for ``sizes`` elements."""
        nbytes = [max(size, 1) * self.dense.bytes for size in sizes]
        if self.count > 1:
            return self.phase.scratch(*nbytes)
        # A single matrix has a single worker, so that shared memory serves as scratch memory.
        addresses: list[Val] = []
        for size in nbytes:
            addresses.append(self.b.gep(self.phase.shared, self._shared, ir.i8))
            self._shared += round_up(size, LINE_BYTES)
        return addresses

    def done(self, work: int) -> NativeStep:
        """The finished step, with ``work`` operations per matrix."""
        return NativeStep((self.phase.done(self.count, work),), self._shared)

    def operand(self, n: int) -> Val:
        """The address of this unit's matrix in operand ``n``."""
        return self._matrix(self.phase.operands[n], self.step.operands[n].type, 2)

    def result(self, n: int, rank: int = 2) -> Val:
        """The address of this unit's matrix, or vector, in result ``n``."""
        return self._matrix(self.phase.results[n], self.step.results[n].type, rank)

    def _matrix(self, base: Val, type_: TensorType, rank: int) -> Val:
        size = math.prod(type_.shape[len(type_.shape) - rank :])
        return self.b.gep(base, self.b.mul(self.unit, i64_const(size)), memory_type(type_.dtype))

    def each_element(self, rows: Val, columns: Val, body: Callable[[Val, Val], None]) -> None:
        """Loops over all rows and columns."""
        with self.b.loop(_ZERO, rows) as outer, self.b.loop(_ZERO, columns) as inner:
            body(outer.index, inner.index)

    def copy_in(self, source: Val, by: Strides, target: Rows, rows: int, columns: int) -> None:
        """Elements of an operand's matrix, read with strides, to scratch memory."""
        b, kind = self.b, memory_type(self.dtype)

        def body(i: Val, j: Val) -> None:
            offset = b.add(b.mul(i, i64_const(by[0])), b.mul(j, i64_const(by[1])))
            loaded = b.load(kind, b.gep(source, offset, kind), self.dtype.itemsize)
            value = widen(b, Val(loaded.text, register_type(self.dtype)))
            self.put(target, i, j, value)

        self.each_element(i64_const(rows), i64_const(columns), body)

    def address(self, rows: Rows, i: Val, j: Val) -> Val:
        """Of an element of scratch memory."""
        return self.dense.at(self.b, rows[0], rows[1], i, j)

    def part(self, rows: Rows, i: Val, j: Val) -> Rows:
        """The matrix that begins at an element."""
        return self.address(rows, i, j), rows[1]

    def get(self, rows: Rows, i: Val, j: Val) -> Val:
        """An element."""
        return self.b.load(self.type, self.address(rows, i, j), self.dense.bytes)

    def put(self, rows: Rows, i: Val, j: Val, value: Val) -> None:
        """Store an element."""
        self.b.store(value, self.address(rows, i, j), self.dense.bytes)

    def clear(self, rows: Rows, m: Val, n: Val) -> None:
        """Zeros."""
        self.each_element(m, n, lambda i, j: self.put(rows, i, j, self.real(0.0)))

    def real(self, value: float) -> Val:
        """A number of the type worked in."""
        return const(self.type, value)

    def total(self, start: Val, first: Val, end: Val, term: Callable[[Val, Val], Val]) -> Val:
        """A value carried through a loop: ``start = term(i, start)``."""
        with self.b.loop(first, end, carried=[start]) as loop:
            loop.next(term(loop.index, loop.carried[0]))
        return loop.carried[0]

    def sqrt(self, x: Val) -> Val:
        """The square root."""
        return self.b.intrinsic("llvm.sqrt", self.type, (x,))
