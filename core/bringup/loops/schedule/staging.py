"""The primitive that copies what a loop touches of a buffer: stage."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Atom, Axis, Bound, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.form import (
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    Load,
    LoopKind,
    Space,
    Stmt,
    Store,
    named_axis,
    statements,
)
from bringup.loops.schedule.dependences import Access, accesses, may_share
from bringup.loops.schedule.folds import unrolled
from bringup.loops.schedule.rewrite import (
    Names,
    check_word,
    checked,
    decided,
    guarded,
    loop_names,
    loop_until,
    loops_of,
    map_statements,
    nested,
    rewrite_loops,
    with_body,
    with_place,
)
from bringup.records import record


def stage(func: Func, buffer: str, at: str, space: Space = "scratch", layout: str = "") -> Func:
    """Each iteration of loop ``at`` works on a copy of what it touches of ``buffer``.

    The copy has a dimension for each stride with which loops inside ``at`` walk through the buffer.
    What is read is copied first, in loops ``buffer.0``, ``buffer.1``, …; what is written is copied
    back, in loops ``buffer.out.0``, ….  Masks that all loads share become those of the copying
    loads, so that the loop itself reads zeros without asking.
    at: a loop, or ``.`` for the whole function.
    space: ``scratch``, or ``register``, which unrolls the loops that choose an element.
    layout: the order of the dimensions, each by a loop that walks along it, as ``k,j``; by strides
    if empty.  ``j/16`` and ``j%16`` cut a dimension in two: ``j/16,k,j%16`` are panels of 16.
    Raises ScheduleError for an unknown loop or buffer, for indices that are no sums of loops, and
    where it is not known which elements are written.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[12], y: out f32[12]) {
    ...   for i in 3 {
    ...     for j in 4 {
    ...       %0: f32 = x[i + 3*j]
    ...       y[4*i + j] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(stage(func, "x", ".", layout="i,j"))
    func f(x: in f32[12], y: out f32[12]) {
      alloc x.c: scratch f32[12]
      for x.0 in 3 {
        for x.1 in 4 {
          %x: f32 = x[x.0 + 3*x.1]
          x.c[4*x.0 + x.1] = %x
        }
      }
      for i in 3 {
        for j in 4 {
          %0: f32 = x.c[4*i + j]
          y[4*i + j] = %0
        }
      }
    }
    """
    check_word("copies do not lie in", space, "scratch", "register")
    names = Names(func)
    taken = loop_names(func)
    holds_all = any(b.name == buffer for b in func.inputs) and not _may_be_written(func, buffer)

    def change(body: Body, facts: Mask) -> Body:
        return _Staging(body, buffer, at, space, facts, holds_all).staged(layout, names, taken)

    def change_loop(loop: For, facts: Mask) -> Body:
        return (with_body(loop, change(loop.body, facts + loop.bounds)),)

    if at == ".":
        return checked(Func(func.name, func.params, change(func.body, ())))
    return rewrite_loops(func, (at,), change_loop)


def _may_be_written(func: Func, buffer: str) -> bool:
    """Whether an input may have the memory of an output: if it is read as that is written.

    Loops over one row may have several names, so indices count as one if their strides do.
    """

    def shape(stmt: Load | Store) -> tuple[int, tuple[tuple[int, int], ...]]:
        terms = ((c, atom.last) for atom, c in stmt.index.terms)
        return stmt.index.const, tuple(sorted(terms))

    loads = [s for s in statements(func.body) if isinstance(s, Load) and s.buffer.name == buffer]
    for output in func.outputs:
        stores = [s for s in statements(func.body) if isinstance(s, Store) and s.buffer == output]
        written = {shape(store) for store in stores}
        if loads and may_share(loads[0].buffer, output) and all(shape(s) in written for s in loads):
            return True
    return False


@record
class _Dimension:
    """One dimension of the region.

    stride: the step in the buffer.
    low: the least coordinate, relative to the first index.
    size: how many coordinates there are.
    """

    stride: int
    low: int
    size: int


class _Staging:
    """The region of a buffer that one iteration touches, and its copy."""

    def __init__(
        self, body: Body, buffer: str, at: str, space: Space, facts: Mask, holds_all: bool
    ) -> None:
        self.holds_all = holds_all
        self.body, self.buffer, self.at, self.space, self.facts = body, buffer, at, space, facts
        self.inner = {loop.axis for loop in loops_of(body)}
        self.inner_names = {axis.name for axis in self.inner}
        # By statements of the body, those that have some.
        parts = [[a for a in accesses((stmt,)) if a.buffer.name == buffer] for stmt in body]
        self.parts_of_body = [part for part in parts if part]
        self.accesses = [access for part in parts for access in part]
        if not self.accesses:
            raise self.error("nothing is read or written", "name a buffer that the loop uses")
        if any(isinstance(s, Alloc) and s.buffer.name == buffer for s in statements(body)):
            raise self.error("it is allocated there", "name an inner loop")
        if any(axis.size == 0 for axis in self.inner):
            raise self.error("a loop there has no iteration", "name a loop that runs")
        self.whole = self.accesses[0].buffer
        self.kind: LoopKind = "unroll" if "register" in (space, self.whole.space) else "serial"
        self.first = min(access.index.const for access in self.accesses)
        self.fixed, self.dimensions = self.region()

    def error(self, why: str, fix: str) -> ScheduleError:
        where = "the function" if self.at == "." else f"loop {self.at}"
        return ScheduleError(f"{self.buffer} cannot be staged at {where}: {why}", fix=fix)

    def region(self) -> tuple[Expr, list[_Dimension]]:
        """What the indices have in common, and the dimensions by falling stride."""
        fixed: tuple[tuple[Atom, int], ...] | None = None
        sizes: dict[int, int] = {}
        for access in self.accesses:
            mine: dict[int, int] = {}
            outer: list[tuple[Atom, int]] = []
            for atom, c in access.index.terms:
                if isinstance(atom, Axis) and atom in self.inner:
                    mine[c] = mine.get(c, 1) + atom.last
                elif self.inner.isdisjoint(Expr(0, ((atom, 1),)).axes()):
                    outer.append((atom, c))
                else:
                    raise self.error(
                        f"{atom} in the index {access.index} is no loop",
                        "stage before loops are fused",
                    )
            if access.stmt.operands:
                raise self.error("indices are data", "stage another buffer")
            if fixed is not None and set(fixed) != set(outer):
                raise self.error(
                    f"its indices {self.accesses[0].stmt.index} and {access.index} have no "
                    "common start",
                    "stage at an outer loop",
                )
            fixed = tuple(outer)
            for stride, size in mine.items():
                sizes[stride] = max(sizes.get(stride, 1), size)
        strides = sorted(sizes, key=lambda s: (-abs(s), s))
        shifts = [self.shift(access, strides) for access in self.accesses]
        dimensions: list[_Dimension] = []
        for stride, moved in zip(strides, zip(*shifts, strict=True), strict=True):
            low = min(moved)
            dimensions.append(_Dimension(stride, low, sizes[stride] + max(moved) - low))
        return Expr(self.first, fixed or ()), dimensions

    def shift(self, access: Access, strides: Sequence[int]) -> list[int]:
        """How far an access is from the first one along each dimension."""
        distance, moved = access.index.const - self.first, []
        for stride in strides:
            steps = (2 * distance + abs(stride)) // (2 * abs(stride)) * (1 if stride > 0 else -1)
            moved.append(steps)
            distance -= steps * stride
        if distance:
            raise self.error(
                f"index {access.index} lies between the others", "stage at an inner loop"
            )
        return moved

    def coordinates(self, access: Access) -> list[Expr]:
        """Where an access is in the region."""
        moved = self.shift(access, [d.stride for d in self.dimensions])
        result: list[Expr] = []
        for dimension, steps in zip(self.dimensions, moved, strict=True):
            terms = tuple(
                (atom, 1)
                for atom, c in access.index.terms
                if atom in self.inner and c == dimension.stride
            )
            result.append(Expr(steps - dimension.low, terms))
        return result

    # -- the layout --------------------------------------------------------------------------------

    def parts(self, layout: str) -> list[tuple[int, str, int, int]]:
        """The dimensions of the copy: of the region's, with ``/`` or ``%``, by what, and size."""
        if not layout:
            return [(n, "", 1, d.size) for n, d in enumerate(self.dimensions)]
        result: list[tuple[int, str, int, int]] = []
        for word in layout.split(","):
            sign = next((s for s in "/%" if s in word), "")
            name, _, by = word.partition(sign) if sign else (word, "", "1")
            if any(axis.name == name and axis.size == 1 for axis in self.inner):
                # No index names such a loop; the copy has a dimension for it all the same.
                result.append((-1, "", 1, 1))
                continue
            number = self.dimension_of(name)
            size = self.dimensions[number].size
            if sign and not (by.isdigit() and int(by)):
                raise self.error(f"{word!r} is no part of a layout", f"write {name}{sign}16")
            count = {"/": -(-size // int(by)), "%": int(by), "": size}[sign]
            result.append((number, sign, int(by), count))
        wanted = {
            n: sorted(s for m, s, _, _ in result if m == n) for n in range(len(self.dimensions))
        }
        if any(signs not in ([""], ["%", "/"]) for signs in wanted.values()) or any(
            len({by for m, _, by, _ in result if m == n}) > 1 for n in wanted
        ):
            raise self.error(
                f"the layout {layout} does not say each dimension once",
                f"name one loop for each of the strides "
                f"{', '.join(str(d.stride) for d in self.dimensions)}",
            )
        return result

    def strides(self) -> dict[Axis, int]:
        """The loops that choose an element, each with the stride along which it walks."""
        return {
            atom: c
            for access in self.accesses
            for atom, c in access.index.terms
            if isinstance(atom, Axis) and atom.name in self.inner_names
        }

    def dimension_of(self, name: str) -> int:
        """The dimension along which a loop walks."""
        strides = {axis.name: stride for axis, stride in self.strides().items()}
        if name not in strides:
            raise self.error(
                f"loop {name} of the layout does not choose its elements",
                f"name loops of {', '.join(sorted(strides))}",
            )
        return [d.stride for d in self.dimensions].index(strides[name])

    # -- the copy ----------------------------------------------------------------------------------

    def staged(self, layout: str, names: Names, taken: Sequence[str]) -> Body:
        """The body with the copies round it."""
        parts = self.parts(layout)
        size = 1
        for *_, count in parts:
            size *= count
        copy = Buffer(
            names.buffer(f"{self.buffer}.{'c' if self.at == '.' else self.at}"),
            self.whole.dtype,
            size,
            self.space,
        )
        masks = self.shared_mask()
        places: dict[int, Stmt] = {}
        for access in self.accesses:
            index = _flat(_laid_out(self.coordinates(access), parts), parts)
            own = None if masks is None else ()
            places[id(access.stmt)] = with_place(access.stmt, copy, index, own)
        body = map_statements(self.body, lambda stmt: places.get(id(stmt), stmt))
        if self.space == "register":
            body = unrolled(body, self.choosing())
        prefix, number = self.buffer, 0
        while {f"{prefix}.0", f"{prefix}.out.0"} & set(taken):
            prefix = f"{copy.name}_{number}" if number else copy.name
            number += 1
        result: list[Stmt] = [Alloc(copy)]
        reads = self.read_first()
        if reads:
            # What the function writes may hold nothing yet, or change, where nothing is read.
            mask = (masks or ()) if self.holds_all else self.touched(reads)
            result += self.copy_in(copy, parts, prefix, mask, names)
        result += body
        if any(isinstance(access.stmt, Store) for access in self.accesses):
            result += self.copy_out(copy, parts, f"{prefix}.out", names)
        return tuple(result)

    def choosing(self) -> list[str]:
        """The loops that choose an element, which must be written out for registers."""
        axes = self.strides()
        for loop in loops_of(self.body):
            if loop.axis in axes and loop.kind in ("parallel", "block", "thread"):
                raise self.error(
                    f"{loop.kind} loop {loop.name} chooses a register", "use scratch memory"
                )
        return [axis.name for axis in axes]

    def read_first(self) -> list[Access]:
        """The accesses that need elements which the loop did not write before."""
        needs = [a for a in self.accesses if isinstance(a.stmt, Load) or a.stmt.fold]
        first = self.accesses[0]
        if first in needs or not needs:
            return needs
        if any(access in self.parts_of_body[0] for access in needs) or not self.covers(first):
            raise self.error("it is written in part before it is read", "stage at an inner loop")
        # A first statement that writes whatever the others touch leaves nothing to read.
        return [] if set(self.touched([first])) <= set(self.touched(needs)) else needs

    def covers(self, access: Access) -> bool:
        """Whether an access goes through the whole region, one loop along each dimension."""
        for coordinate, dimension in zip(self.coordinates(access), self.dimensions, strict=True):
            if coordinate.const or len(coordinate.terms) > 1:
                return False
            if coordinate.last + 1 != dimension.size:
                return False
        return True

    def translated(self, bound: Bound, access: Access) -> Bound | None:
        """A condition of an access as one of coordinates, axes with the names of their numbers."""
        expr = bound.expr
        table = dict(expr.terms)
        result = Expr(expr.const)
        for number, coordinate in enumerate(self.coordinates(access)):
            factors = {table.pop(atom, 0) for atom, _ in coordinate.terms}
            if len(factors) > 1:
                return None
            factor = factors.pop() if factors else 0
            axis = named_axis(f"{number}", self.dimensions[number].size)
            result = result + Expr.of(axis) * factor + -coordinate.const * factor
        if any(not self.inner.isdisjoint(Expr(0, ((atom, 1),)).axes()) for atom in table):
            return None
        return Bound(result + Expr(0, tuple(table.items())), bound.low, bound.high)

    def shared_mask(self) -> Mask | None:
        """The mask that all loads have, of coordinates; None if they differ."""
        loads = [access for access in self.accesses if isinstance(access.stmt, Load)]
        masks = [[self.translated(bound, access) for bound in access.stmt.mask] for access in loads]
        if not masks or len(loads) < len(self.accesses) or any(None in mask for mask in masks):
            return None
        if any(set(mask) != set(masks[0]) for mask in masks):
            return None
        return tuple(bound for bound in masks[0] if bound is not None)

    def touched(self, accesses: Sequence[Access]) -> Mask:
        """The conditions of coordinates under which these accesses touch an element."""
        result: Mask | None = None
        for access in accesses:
            if access.on_data:
                raise self.error(
                    "which elements it touches depends on data", "stage another buffer"
                )
            mine: list[Bound] = []
            ends = {bound: loop.axis for loop in access.loops for bound in loop.bounds}
            for bound in access.facts:
                moved = self.translated(bound, access)
                if moved is not None:
                    mine.append(moved)
                elif bound not in ends or access.index.coefficient(ends[bound]) != 0:
                    raise self.error(
                        f"whether its elements are touched depends on {bound}",
                        "stage at an inner loop, or pad the loop",
                    )
            if not self.covers(access) or (result is not None and set(result) != set(mine)):
                raise self.error(
                    "it is not known which elements it touches", "stage at an inner loop"
                )
            result = tuple(mine)
        return result or ()

    def copy_in(
        self,
        copy: Buffer,
        parts: Sequence[tuple[int, str, int, int]],
        prefix: str,
        mask: Mask,
        names: Names,
    ) -> Body:
        """The loops that fill the copy."""
        axes, coordinates, inside = self.loops(parts, prefix)
        index = self.index(coordinates)
        mask = inside + tuple(_at(bound, coordinates) for bound in mask)
        low, high = span(index, self.facts + mask)
        if low < 0 or high >= self.whole.size:
            mask += (Bound(index, 0, self.whole.size),)
        still = decided(mask, self.facts)
        if still is None:
            raise self.error("nothing of it is touched", "name a loop that runs")
        scalar = names.scalar(self.buffer.replace(".", "_"), copy.dtype)
        point = _flat([Expr.of(axis) for axis in axes], parts)
        load, store = Load(scalar, self.whole, index, still), Store(copy, point, scalar)
        return nested([For(axis, (), self.kind) for axis in axes], (load, store))

    def copy_out(
        self, copy: Buffer, parts: Sequence[tuple[int, str, int, int]], prefix: str, names: Names
    ) -> Body:
        """The loops that write the copy back."""
        stores = [access for access in self.accesses if isinstance(access.stmt, Store)]
        axes, coordinates, inside = self.loops(parts, prefix)
        mask = inside + tuple(_at(bound, coordinates) for bound in self.touched(stores))
        still = decided(mask, self.facts)
        if still is None:
            raise self.error("nothing of it is touched", "name a loop that runs")
        scalar = names.scalar(self.buffer.replace(".", "_"), copy.dtype)
        point = _flat([Expr.of(axis) for axis in axes], parts)
        store = Store(self.whole, self.index(coordinates), scalar)
        ends: dict[Axis, Expr] = {}
        for axis in axes:
            for bound in still:
                end = bound.expr + Expr.of(axis)
                is_end = bound.low == 1 and bound.expr.coefficient(axis) == -1
                if is_end and end.axes().isdisjoint(axes) and axis not in ends:
                    ends[axis] = end
        still = tuple(
            bound for bound in still if not any(bound.expr + Expr.of(a) == ends[a] for a in ends)
        )
        body: Body = guarded(still, (Load(scalar, copy, point), store))
        for axis in reversed(axes):
            body = loop_until(axis, body, self.kind, ends.get(axis), self.facts)
        return body

    def index(self, coordinates: Sequence[Expr]) -> Expr:
        """The index in the buffer."""
        index = self.fixed
        for coordinate, dimension in zip(coordinates, self.dimensions, strict=True):
            index = index + (coordinate + dimension.low) * dimension.stride
        return index

    def loops(
        self, parts: Sequence[tuple[int, str, int, int]], prefix: str
    ) -> tuple[list[Axis], list[Expr], Mask]:
        """Axes over the copy, the coordinates they are at, and where these exist."""
        axes = [named_axis(f"{prefix}.{n}", count) for n, (*_, count) in enumerate(parts)]
        coordinates = [Expr() for _ in self.dimensions]
        for axis, (number, sign, by, _) in zip(axes, parts, strict=True):
            if number < 0:
                continue
            step = by if sign == "/" else 1
            coordinates[number] = coordinates[number] + Expr.of(axis) * step
        inside = tuple(
            Bound(coordinate, 0, dimension.size)
            for coordinate, dimension in zip(coordinates, self.dimensions, strict=True)
            if coordinate.last >= dimension.size
        )
        return axes, coordinates, inside


def _laid_out(
    coordinates: Sequence[Expr], parts: Sequence[tuple[int, str, int, int]]
) -> list[Expr]:
    """The coordinates of the region as those of the copy."""
    result: list[Expr] = []
    for number, sign, by, _ in parts:
        coordinate = coordinates[number] if number >= 0 else Expr()
        if sign:
            coordinate = coordinate // by if sign == "/" else coordinate % by
        result.append(coordinate)
    return result


def _flat(coordinates: Sequence[Expr], parts: Sequence[tuple[int, str, int, int]]) -> Expr:
    """The row-major index of coordinates of the copy."""
    index = Expr()
    for coordinate, (*_, count) in zip(coordinates, parts, strict=True):
        index = index * count + coordinate
    return index


def _at(bound: Bound, coordinates: Sequence[Expr]) -> Bound:
    """A condition of coordinates at some."""
    expr = bound.expr.rewrite(
        lambda atom: (
            coordinates[int(atom.name)] if isinstance(atom, Axis) and atom.name.isdigit() else None
        )
    )
    return Bound(expr, bound.low, bound.high)


__all__ = ["stage"]
