"""The primitive that gives loops to an instruction for products of tiles: tensorize."""

from __future__ import annotations

import math

from bringup.errors import ScheduleError
from bringup.graph.index import Mask
from bringup.loops.form import Body, For, Func, Let, Load, Scalar, Store
from bringup.loops.schedule.rewrite import rewrite_loops
from bringup.records import record


def tensorize(func: Func, loop: str, shape: str) -> Func:
    """One instruction adds up the products of the loop and of those within it.

    shape: rows, columns and inner elements of the instruction, as ``16x8x16``.  Of loops of the
    name, those that hold a sum of products are meant.
    Raises ScheduleError where there is none, where something else is computed, and for other sizes.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[8], y: in f32[8], z: inout f32[4]) {
    ...   for i in 2 {
    ...     for j in 2 {
    ...       for k in 4 {
    ...         %0: f32 = x[4*i + k]
    ...         %1: f32 = y[2*k + j]
    ...         z[2*i + j] add= %0 * %1
    ...       }
    ...     }
    ...   }
    ... }''')
    >>> print(tensorize(func, "i", "2x2x4"))
    func f(x: in f32[8], y: in f32[8], z: inout f32[4]) {
      for i in 2 by 2x2x4 {
        for j in 2 {
          for k in 4 {
            %0: f32 = x[4*i + k]
            %1: f32 = y[2*k + j]
            z[2*i + j] add= %0 * %1
          }
        }
      }
    }
    """
    if len(shape.split("x")) != 3 or not shape.replace("x", "").isdecimal():
        raise ScheduleError(f"{shape} is no shape of an instruction", fix="write 16x8x16")
    found = 0

    def change(old: For, _facts: Mask) -> Body:
        nonlocal found
        product = TileProduct.of(old)
        if product is None:
            return (old,)
        found += 1
        _check_sizes(product, loop, shape)
        return (For(old.axis, old.body, old.kind, old.end, shape),)

    result = rewrite_loops(func, (loop,), change)
    if found:
        return result
    raise ScheduleError(
        f"no loop {loop} holds nothing but loops round a sum of products of two loads",
        fix="reorder the loops, and compute the factors first",
    )


def _check_sizes(product: TileProduct, loop: str, shape: str) -> None:
    """Raise ScheduleError unless each sum has an element, and the sizes are those of the shape."""
    chosen = {each.axis for each in (*product.rows, *product.columns)}
    if not chosen <= product.sums.index.axes():
        raise ScheduleError(
            f"loop {loop} adds up several products in one element", fix="leave out loops"
        )
    if product.shape != shape:
        raise ScheduleError(
            f"loop {loop} multiplies tiles of {product.shape}, not {shape}",
            fix="split loops, so that their sizes are those of the instruction",
        )


@record(eq=False)
class TileProduct:
    """A nest that adds up products: its loops by what they choose, and the three accesses."""

    rows: tuple[For, ...]
    columns: tuple[For, ...]
    inner: tuple[For, ...]
    left: Load
    right: Load
    sums: Store

    @property
    def shape(self) -> str:
        """As that of an instruction."""
        sides = (self.rows, self.columns, self.inner)
        return "x".join(str(math.prod(loop.axis.size for loop in side)) for side in sides)

    @staticmethod
    def of(loop: For) -> TileProduct | None:
        """The product that loops compute, of which none ends early; None if it is another thing."""
        nest: list[For] = []
        body: Body = (loop,)
        while len(body) == 1 and isinstance(body[0], For):
            nest.append(body[0])
            body = body[0].body
        loads = [stmt for stmt in body if isinstance(stmt, Load)]
        sums = body[-1] if body else None
        is_plain = isinstance(sums, Store) and sums.fold == "add" and len(loads) == 2
        if not is_plain or any(each.end is not None for each in nest):
            return None
        assert isinstance(sums, Store)
        if any(s.mask or s.operands for s in loads) or sums.mask or sums.operands:
            return None
        if not _multiplies(body, sums):
            return None
        one, other = (load.index.axes() for load in loads)
        own = [loop for loop in nest if (loop.axis in one) != (loop.axis in other)]
        both = [loop for loop in nest if loop.axis in one and loop.axis in other]
        if len(own) + len(both) < len(nest) or any(v.axis in sums.index.axes() for v in both):
            return None
        # The factor whose own loops come first has the rows.
        left, right = loads if own and own[0].axis in one else reversed(loads)
        rows, columns = (
            tuple(loop for loop in own if loop.axis in load.index.axes()) for load in (left, right)
        )
        return TileProduct(rows, columns, tuple(both), left, right, sums)


def _multiplies(body: Body, sums: Store) -> bool:
    """Whether what is added is the product of the two loads, each converted or not."""
    loaded = {stmt.result for stmt in body if isinstance(stmt, Load)}
    source = {scalar: scalar for scalar in loaded}
    product: tuple[Scalar, ...] = ()
    for stmt in body:
        if isinstance(stmt, Load):
            continue
        if isinstance(stmt, Let) and stmt.op.name == "convert" and stmt.operands[0] in loaded:
            source[stmt.result] = stmt.operands[0]
        elif isinstance(stmt, Let) and stmt.op.name == "mul" and stmt.result == sums.value:
            product = stmt.operands
        elif stmt is not sums:
            return False
    factors = product if sums.factor is None else (sums.value, sums.factor)
    return len({source.get(factor) for factor in factors} - {None}) == 2


__all__ = ["TileProduct", "tensorize"]
