"""Loads and stores of the lanes of a vector loop: contiguous, gathered, masked, folded."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Bound, Expr
from bringup.llvm import text as ir
from bringup.llvm.func.registers import Registers
from bringup.llvm.func.squares import LaneSteps, interleaved, repeated, store_square, words
from bringup.llvm.index import Indices
from bringup.llvm.loops.heuristics import LOOPS
from bringup.llvm.scalar import combine, memory_type, narrow, neutral, widen
from bringup.llvm.text import Builder, Type, Val, const_vector, i64_const, vec
from bringup.llvm.text.masked import (
    fold_lanes,
    masked_gather,
    masked_load,
    masked_scatter,
    masked_store,
    pairwise,
    strided_load,
)
from bringup.llvm.transpose import transposed
from bringup.loops.form import Load, Store
from bringup.loops.text import print_stmt

#: Bytes of the smallest page of any CPU.
_PAGE = 4096
#: Words of 8 bytes of the longest vector.
_LONGEST = 64


class Memory:
    """The accesses of one function.

    pointers: of the buffers in memory, by name.
    alive: the lanes of the open vector loop that exist; None means all.
    guarded: whether it may be that no lane exists, as in an `If` that differs between lanes.
    first_lanes: how many lanes exist, if they are the first ones and not all.
    zeros: constants that are read in place of what is not there, if there are any.
    """

    def __init__(self, b: Builder, indices: Indices, registers: Registers) -> None:
        self.b = b
        self.indices = indices
        self.registers = registers
        self.pointers: dict[str, Val] = {}
        self.alive: Val | None = None
        self.guarded = False
        self.first_lanes: Val | None = None
        self.zeros: Val | None = None

    # -- loads -------------------------------------------------------------------------------------

    def load(self, stmt: Load, loaded: Sequence[Val]) -> Val:
        """The register of a load: a vector if the lanes read different elements."""
        if stmt.buffer.space == "register":
            return self._load_register(stmt, loaded)
        return self._from_memory(self._load(stmt, loaded), stmt.result.dtype)

    def load_square(self, stmt: Load, copies: Axis) -> list[Val] | None:
        """The vectors of a load in copies of a vector loop, as many as lanes, by loads along them.

        Where the copies read side by side what the lanes read far apart, a square of contiguous
        vectors is loaded, or stands in registers, and is transposed there.  None where that is not
        so.
        """
        indices, lane = self.indices, self.indices.lane
        if lane is None or copies.size != indices.lanes or stmt.operands:
            return None
        if self.alive is not None:
            return None
        stride = stmt.index.coefficient(lane) or 0
        if stmt.index.coefficient(copies) != 1 or abs(stride) < 2:
            return None
        rows: list[Val] = []
        in_registers = stmt.buffer.space == "register"
        indices.lane, indices.axes[copies] = copies, indices.const(0)
        for n in range(copies.size):
            indices.axes[lane] = indices.const(n)
            rows.append(self._load_register(stmt, ()) if in_registers else self._load_row(stmt))
        indices.lane, indices.axes[lane] = lane, indices.const(0)
        columns = transposed(self.b, rows)
        if in_registers:
            return columns
        return [self._from_memory(row, stmt.result.dtype) for row in columns]

    def _load_row(self, stmt: Load) -> Val:
        """The vector of a load whose lanes are contiguous; of zeros elsewhere if it is not there.

        LLVM compiles shuffles of vectors very slowly that are chosen by a scalar condition.
        """
        b, element = self.b, memory_type(stmt.result.dtype)
        address = self._address(stmt.buffer.name, stmt.index, (), element)
        whole = [bound for bound in stmt.mask if not self.indices.varies(bound.expr)]
        wide, align = vec(element, self.indices.lanes), element.bits // 8
        inside = self.indices.inside(whole)
        if inside is not None:
            if self.zeros is None:
                name = f"{b.function.name}.zeros"
                self.zeros = b.module.global_constant(name, ir.i64, [0] * _LONGEST)
            address = b.select(inside, address, self.zeros)
        mask = self.indices.inside([bound for bound in stmt.mask if bound not in whole])
        if mask is None:
            return b.load(wide, address, align)
        return masked_load(b, wide, address, mask, ir.zero(wide), align)

    def _load_register(self, stmt: Load, loaded: Sequence[Val]) -> Val:
        stride = self._stride(stmt, loaded)
        elements = self.indices.constants(stmt.index) if stride not in (0, 1) else None
        if elements is not None:
            lanes, value = len(elements), self.registers.permuted(stmt.buffer, elements)
        else:
            first, lanes = self._register(stmt.index, loaded, stride)
            value = self.registers.read(stmt.buffer, first, lanes)
        mask = self.indices.inside(stmt.mask, loaded)
        if mask is None:
            return value
        zero = ir.zero(value.type)
        if mask.type.lanes > lanes:
            value, zero = self.indices.splat(value), ir.zero(mask.type)
        return self.b.select(mask, value, zero)

    def _stride(self, stmt: Load | Store, loaded: Sequence[Val]) -> int | None:
        """Elements from one lane to the next; each lane has its own of a private buffer."""
        if stmt.buffer.name in self.registers.private:
            return 1
        return self.indices.stride(stmt.index, loaded)

    def _register(self, index: Expr, loaded: Sequence[Val], stride: int | None) -> tuple[int, int]:
        """The first element of an access of registers, and the number of lanes."""
        first = self.indices.scalar(index, loaded).integer
        if stride not in (0, 1) or first is None:
            raise UnsupportedError(
                f"register buffers have constant indices, and lanes side by side: {index}"
            )
        return first, self.indices.lanes if stride else 1

    def _load(self, stmt: Load, loaded: Sequence[Val]) -> Val:
        b, indices = self.b, self.indices
        element = memory_type(stmt.result.dtype)
        mask = indices.inside(stmt.mask, loaded)
        stride = indices.stride(stmt.index, loaded)
        if stride == 0 and (mask is None or mask.type.lanes == 1):
            if indices.lanes > 1 and self.guarded:
                mask = indices.both(mask, self._any_alive())
            address = self._address(stmt.buffer.name, stmt.index, loaded, element)
            if mask is None:
                return b.load(element, address, element.bits // 8)
            return masked_load(b, element, address, mask, ir.zero(element))
        wide, align = vec(element, indices.lanes), element.bits // 8
        is_uniform = self.alive is None and stmt.buffer.size >= indices.lanes
        if stride == 1 and mask is not None and mask.type.lanes == 1 and is_uniform:
            return self._load_whole(stmt, loaded, mask, wide)
        mask = indices.both(mask, self.alive)
        if mask is not None:
            mask = indices.splat(mask)
        if stride == 0 and mask is not None:
            address = self._address(stmt.buffer.name, stmt.index, loaded, element)
            if _is_within(stmt):
                value = b.load(element, address, align)
            else:
                value = masked_load(b, element, address, b.reduce("or", mask), ir.zero(element))
            return b.select(mask, b.splat(value, indices.lanes), ir.zero(wide))
        if stride == 1:
            return self._load_contiguous(stmt, loaded, mask, wide)
        if stride is None and mask is None and indices.lane is not None:
            steps = LaneSteps.of(stmt.index, indices.lane)
            if steps is not None and (steps.apart, steps.within) == (0, 1):
                address = self._address(stmt.buffer.name, stmt.index, loaded, element)
                return repeated(b, address, wide, steps.group)
        if stride == -1 and mask is None:
            first = stmt.index + -(indices.lanes - 1)
            address = self._address(stmt.buffer.name, first, loaded, element)
            return self._reversed(b.load(wide, address, align))
        if stride is not None and 1 < stride <= LOOPS.nearest(indices.lanes):
            near = self._load_near(stmt, loaded, mask, wide, stride)
            if near is not None:
                return near
        addresses = b.gep(
            self.pointers[stmt.buffer.name], indices.wide(stmt.index, loaded), element
        )
        return masked_gather(b, wide, addresses, mask, ir.zero(wide), align)

    def _load_contiguous(
        self, stmt: Load, loaded: Sequence[Val], mask: Val | None, wide: Type
    ) -> Val:
        address, align = self._first_address(stmt, loaded, wide), wide.bits // 8
        if mask is None:
            return self.b.load(wide, address, align)
        return masked_load(self.b, wide, address, mask, ir.zero(wide), align)

    def _load_near(
        self, stmt: Load, loaded: Sequence[Val], mask: Val | None, wide: Type, stride: int
    ) -> Val | None:
        """Lanes a few elements apart, by vectors without gaps; None where a gather is better."""
        b, lanes = self.b, wide.lanes
        known = [True] * lanes if mask is None else ir.known_lanes(mask)
        if known is not None and not stmt.mask and known[0] and all(known[: sum(known)]):
            # Lanes behind the end of a loop may be anything.
            address = self._first_address(stmt, loaded, wide)
            return strided_load(b, wide, address, stride, sum(known))
        if mask is None or stride > 2 or wide.bits < 32:
            return None
        none, whole = const_vector(ir.i1, [False] * lanes), vec(wide.scalar, stride * lanes)
        order = [lanes if n % stride else n // stride for n in range(stride * lanes)]
        address, each = self._first_address(stmt, loaded, wide), b.shufflevector(mask, none, order)
        value = masked_load(b, whole, address, each, ir.zero(whole), wide.bits // 8)
        return b.shufflevector(value, None, range(0, stride * lanes, stride))

    def _first_address(self, stmt: Load, loaded: Sequence[Val], wide: Type) -> Val:
        """The address of the first lane, or of memory that is there if no lane is enabled."""
        offset = self.indices.scalar(stmt.index, loaded)
        reached = self._reached(stmt, loaded)
        if reached is not None:
            offset = self.b.select(reached, offset, i64_const(0))
        return self.b.gep(self.pointers[stmt.buffer.name], offset, wide.scalar)

    def _load_whole(self, stmt: Load, loaded: Sequence[Val], inside: Val, wide: Type) -> Val:
        """A vector where a condition holds that is the same for all lanes; elsewhere zeros."""
        b = self.b
        offset = b.select(inside, self.indices.scalar(stmt.index, loaded), i64_const(0))
        address = b.gep(self.pointers[stmt.buffer.name], offset, wide.scalar)
        value = b.load(wide, address, wide.scalar.bits // 8)
        return b.select(self.indices.splat(inside), value, ir.zero(wide))

    def _address(self, name: str, index: Expr, loaded: Sequence[Val], element: Type) -> Val:
        return self.b.gep(self.pointers[name], self.indices.scalar(index, loaded), element)

    def _reversed(self, vector: Val) -> Val:
        return self.b.shufflevector(vector, None, range(vector.type.lanes - 1, -1, -1))

    def _any_alive(self) -> Val | None:
        return None if self.alive is None else self.b.reduce("or", self.alive)

    def _reached(self, stmt: Load, loaded: Sequence[Val]) -> Val | None:
        """Whether any lane of a masked load is enabled.

        None where the disabled lanes are always in the buffer, or within a page of enabled ones.  A
        load far outside of its buffer takes some hundred cycles although no lane is enabled,
        because the page may not be mapped.
        """
        if stmt.index.first >= 0 and stmt.index.last < stmt.buffer.size:
            return None
        page = _PAGE // stmt.result.dtype.itemsize
        far = [
            bound
            for bound in stmt.mask
            if not self.indices.varies(bound.expr, loaded) or _excluded(bound) >= page
        ]
        inside = self.indices.inside(far, loaded)
        return None if inside is None else self.b.reduce("or", inside)

    def _from_memory(self, value: Val, dtype: DType) -> Val:
        if dtype.name == "bool":
            return self.b.icmp("ne", value, ir.zero(value.type))
        return value

    # -- stores ------------------------------------------------------------------------------------

    def store_across(self, stmt: Store, copies: Axis, rows: Sequence[Val], square: Val) -> None:
        """Store the vectors of all copies of a store for which `is_transposed` holds.

        copies: the loop over them.  square: memory that is free.
        """
        b, indices, lane = self.b, self.indices, self.indices.lane
        assert lane is not None
        steps = LaneSteps.of(stmt.index, lane)
        assert steps is not None
        indices.axes[copies] = i64_const(0)
        rows = [words(b, indices.splat(row), steps.group) for row in rows]
        adjoin = steps.apart == len(rows) * steps.group
        if stmt.buffer.space == "register":
            first = indices.scalar(stmt.index).integer
            assert first is not None, "register buffers have constant indices"
            self.registers.write(stmt.buffer, first, interleaved(b, rows))
            return
        address = self._address(stmt.buffer.name, stmt.index, (), memory_type(stmt.buffer.dtype))
        if adjoin and len(rows) in (2, 4) and self.alive is None:
            b.store(interleaved(b, rows), address, stmt.buffer.dtype.itemsize)
            return
        columns = self.first_lanes
        if columns is not None and steps.group > 1:
            columns = b.udiv(columns, i64_const(steps.group))
        store_square(b, square, address, rows, steps.apart // steps.group, columns)

    def store(self, stmt: Store, value: Val, factor: Val | None, loaded: Sequence[Val]) -> None:
        """Store a value, or fold it into what is there."""
        alive = self.alive
        if stmt.buffer.name in self.registers.padded and not self.guarded:
            alive = None
        mask = self.indices.both(self.indices.inside(stmt.mask, loaded), alive)
        if stmt.atomic:
            self._fold_atomically(stmt, value, mask, loaded)
            return
        stride = self._stride(stmt, loaded)
        differs = self.indices.lanes > 1 and (
            value.type.lanes > 1 or (mask is not None and mask.type.lanes > 1)
        )
        if stride == 0 and stmt.fold and self.indices.lanes > 1:
            self._fold_across(stmt, value, factor, mask, loaded)
            return
        if stride is None and stmt.fold and stmt.buffer.space == "register" and mask is None:
            self._fold_groups(stmt, value, factor)
            return
        if stride == 0 and differs and stmt.buffer.space == "register":
            raise UnsupportedError(f"the lanes of a vector loop store to one element: {stmt.index}")
        if stmt.buffer.space == "register":
            first, lanes = self._register(stmt.index, loaded, stride)
            self._store_register(stmt, value, factor, mask, (first, lanes))
        elif stmt.fold:
            self._fold_memory(stmt, value, factor, mask, loaded)
        else:
            self._store(stmt, value, mask, loaded)

    def _store_register(
        self,
        stmt: Store,
        value: Val,
        factor: Val | None,
        mask: Val | None,
        place: tuple[int, int],
    ) -> None:
        first, lanes = place
        if lanes > 1:
            value = self.indices.splat(value)
        if stmt.fold or mask is not None:
            before = self.registers.read(stmt.buffer, first, lanes)
            if stmt.fold:
                value = self._folded(stmt, before, value, factor)
            if mask is not None:
                value = self.b.select(mask, value, before)
        self.registers.write(stmt.buffer, first, value)

    def _folded(self, stmt: Store, before: Val, value: Val, factor: Val | None) -> Val:
        """``before`` combined with the value, or with its product with the factor."""
        b, dtype = self.b, stmt.buffer.dtype
        if before.type.lanes > 1:
            value = self.indices.splat(value)
        if factor is None:
            return combine(b, stmt.fold, dtype, before, value)
        if before.type.lanes > 1:
            factor = self.indices.splat(factor)
        if not dtype.is_float:
            return b.add(before, b.mul(value, factor))
        return narrow(b, b.fma(widen(b, value), widen(b, factor), widen(b, before)), dtype)

    def _fold_across(
        self,
        stmt: Store,
        value: Val,
        factor: Val | None,
        mask: Val | None,
        loaded: Sequence[Val],
    ) -> None:
        """Fold all lanes into one element."""
        b, dtype, lanes = self.b, stmt.buffer.dtype, self.indices.lanes
        value = self.indices.splat(value)
        start = neutral(stmt.fold, dtype, lanes)
        if factor is not None:
            value = self._folded(stmt, start, value, factor)
        if mask is not None:
            value = b.select(self.indices.splat(mask), value, start)
        one = fold_lanes(b, value, lambda x, y: combine(b, stmt.fold, dtype, x, y))
        if stmt.buffer.space == "register":
            first, _ = self._register(stmt.index, loaded, 0)
            before = self.registers.read(stmt.buffer, first, 1)
            self.registers.write(stmt.buffer, first, combine(b, stmt.fold, dtype, before, one))
            return
        address = self._address(stmt.buffer.name, stmt.index, loaded, memory_type(dtype))
        before = self._from_memory(b.load(memory_type(dtype), address), dtype)
        self._put(combine(b, stmt.fold, dtype, before, one), dtype, address, None)

    def _fold_groups(self, stmt: Store, value: Val, factor: Val | None) -> None:
        """Fold groups of lanes into elements side by side."""
        b, dtype, lanes = self.b, stmt.buffer.dtype, self.indices.lanes
        assert self.indices.lane is not None
        steps = LaneSteps.of(stmt.index, self.indices.lane)
        first = self.indices.scalar(stmt.index).integer
        if steps is None or (steps.apart, steps.within) != (1, 0) or first is None:
            raise UnsupportedError(f"lanes that fold to elements apart: {stmt.index}")
        value = self.indices.splat(value)
        if factor is not None:
            value = self._folded(stmt, neutral(stmt.fold, dtype, lanes), value, factor)
        parts = [
            b.shufflevector(value, None, range(n, lanes, steps.group)) for n in range(steps.group)
        ]
        total = pairwise(parts, lambda x, y: combine(b, stmt.fold, dtype, x, y))
        before = self.registers.read(stmt.buffer, first, lanes // steps.group)
        self.registers.write(stmt.buffer, first, combine(b, stmt.fold, dtype, before, total))

    def _fold_memory(
        self,
        stmt: Store,
        value: Val,
        factor: Val | None,
        mask: Val | None,
        loaded: Sequence[Val],
    ) -> None:
        """Fold into memory, where no two lanes have one element."""
        if self.indices.stride(stmt.index, loaded) not in (0, 1):
            raise UnsupportedError(f"lanes that fold to elements apart: {stmt.index}")
        dtype = stmt.buffer.dtype
        lanes = self.indices.lanes
        element = memory_type(dtype)
        wide = vec(element, lanes)
        address = self._address(stmt.buffer.name, stmt.index, loaded, element)
        if mask is not None:
            mask = self.indices.splat(mask)
            before = masked_load(self.b, wide, address, mask, ir.zero(wide), element.bits // 8)
        else:
            before = self.b.load(wide, address, element.bits // 8)
        after = self._folded(stmt, self._from_memory(before, dtype), value, factor)
        self._put(after, dtype, address, mask)

    def _fold_atomically(
        self, stmt: Store, value: Val, mask: Val | None, loaded: Sequence[Val]
    ) -> None:
        """Fold where others may fold at the same time."""
        raise UnsupportedError(f"nothing folds atomically here: {print_stmt(stmt)}")

    def _store(self, stmt: Store, value: Val, mask: Val | None, loaded: Sequence[Val]) -> None:
        b, indices, dtype = self.b, self.indices, stmt.buffer.dtype
        element = memory_type(dtype)
        if indices.lanes > 1:
            value = indices.splat(value)
            mask = None if mask is None else indices.splat(mask)
            stride = indices.stride(stmt.index, loaded)
            if stride == -1 and mask is None:
                first = stmt.index + -(indices.lanes - 1)
                address = self._address(stmt.buffer.name, first, loaded, element)
                self._put(self._reversed(value), dtype, address, None)
                return
            if stride != 1:
                pointer = self.pointers[stmt.buffer.name]
                addresses = b.gep(pointer, indices.wide(stmt.index, loaded), element)
                if dtype.name == "bool":
                    value = b.zext(value, ir.i8)
                masked_scatter(b, value, addresses, mask, element.bits // 8)
                return
        address = self._address(stmt.buffer.name, stmt.index, loaded, element)
        wide = value.type
        if mask is not None and dtype.name != "bool" and _is_blended(stmt, wide):
            # A volatile load keeps LLVM from making a masked store of the three.
            before = b.load(wide, address, element.bits // 8, volatile=True)
            value, mask = b.select(mask, value, before), None
        self._put(value, dtype, address, mask)

    def _put(self, value: Val, dtype: DType, address: Val, mask: Val | None) -> None:
        if dtype.name == "bool":
            value = self.b.zext(value, ir.i8)
        self._put_aligned(value, address, mask, memory_type(dtype).bits // 8)

    def _put_aligned(self, value: Val, address: Val, mask: Val | None, align: int) -> None:
        """Store elements of which each is aligned."""
        if mask is None:
            self.b.store(value, address, align)
        else:
            masked_store(self.b, value, address, mask, align)


def _is_blended(stmt: Store, wide: Type) -> bool:
    """Whether lanes that are not stored may be stored as they are: in memory that nobody shares.

    CPUs without mask registers, which come with vectors of 512 bits, store by a mask in some twenty
    cycles.
    """
    is_narrow = wide.lanes > 1 and wide.lanes * wide.bits < 512
    return is_narrow and _is_within(stmt) and stmt.buffer.space == "scratch"


def _is_within(stmt: Load | Store) -> bool:
    """Whether the index is one of the buffer, whatever the mask is."""
    return stmt.index.first >= 0 and stmt.index.last < stmt.buffer.size


def _excluded(bound: Bound) -> int:
    """How many values of its expression a bound excludes."""
    below, above = bound.low - bound.expr.first, bound.expr.last + 1 - bound.high
    return max(below, 0) + max(above, 0)


__all__ = ["Memory"]
