"""The primitive that lets loops run past their early ends: pad."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bringup.dtypes import bool_
from bringup.errors import ScheduleError
from bringup.graph.index import Mask
from bringup.kernel.ops import inside as inside_op
from bringup.kernel.ranges import span
from bringup.loops.form import (
    NESTING,
    Body,
    Buffer,
    For,
    Func,
    Let,
    Load,
    Scalar,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import (
    Access,
    accesses,
    meets_only_within,
    outliving,
    private_accesses,
)
from bringup.loops.schedule.rewrite import (
    Names,
    constant,
    map_statements,
    rebuilt,
    rewrite_loops,
    with_body,
)
from bringup.ops.table import lookup


def pad(func: Func, *loops: str) -> Func:
    """The loops run to their whole length where that changes nothing but private memory.

    A loop whose early end keeps loads inside their buffers gets masks on these loads in its place,
    and iterations that did not exist compute with zeros.  Where a sum of products would not stay
    the same by that alone, both factors become 0.  Loops that write memory of the caller keep
    their end, so a register tile is computed whole and stored in part.
    Raises ScheduleError if loops of a name end early and none of them could be padded.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[10], y: out f32[10]) {
    ...   for i.o in 3 {
    ...     alloc t: register f32[4]
    ...     for i.i in 4 until -4*i.o + 10 {
    ...       %0: f32 = x[i.i + 4*i.o]
    ...       t[i.i] = %0
    ...     }
    ...     for i.i in 4 until -4*i.o + 10 {
    ...       %1: f32 = t[i.i]
    ...       y[i.i + 4*i.o] = %1
    ...     }
    ...   }
    ... }''')
    >>> print(pad(func, "i.i"))
    func f(x: in f32[10], y: out f32[10]) {
      for i.o in 3 {
        alloc t: register f32[4]
        for i.i in 4 {
          %0: f32 = x[i.i + 4*i.o] if 1 <= -1*i.i + -4*i.o + 10 < 11
          t[i.i] = %0
        }
        for i.i in 4 until -4*i.o + 10 {
          %1: f32 = t[i.i]
          y[i.i + 4*i.o] = %1
        }
      }
    }
    """
    private = private_accesses(func)
    names = Names(func)
    padded: set[str] = set()
    short: set[str] = set()

    def change(old: For, facts: Mask) -> Body:
        if old.end is None:
            return (old,)
        short.add(old.name)
        zeros, is_summed = _zero_values(old)
        sums = _open_sums(old, facts, private, zeros)
        if sums is None:
            return (old,)
        padded.add(old.name)
        new = with_body(old, _masked(old, facts, needs_zeros=is_summed or bool(sums)))
        body = _with_zero_factors(new, sums, zeros, names) if sums else new.body
        return (For(old.axis, body, old.kind),)

    result = rewrite_loops(func, loops, change)
    if short > padded:
        raise _not_padded(min(short - padded))
    return result


def _not_padded(name: str) -> ScheduleError:
    return ScheduleError(
        f"no loop {name} that ends early writes private memory alone, one element for each "
        "iteration",
        fix="distribute the loop, so that a part of it does",
    )


def _zero_values(loop: For) -> tuple[set[Scalar], bool]:
    """The scalars within a loop that are 0 where loads that depend on the loop give 0, and whether
    they are summed, or the first factors of sums.
    """
    zeros: set[Scalar] = set()
    is_summed = False
    for stmt in statements(loop.body):
        if isinstance(stmt, Load) and loop.axis in stmt.index.axes():
            zeros.add(stmt.result)
        elif isinstance(stmt, Let):
            operands = [operand in zeros for operand in stmt.operands]
            if (stmt.op.name == "convert" and all(operands)) or (
                stmt.op.name == "mul" and any(operands) and stmt.result.dtype.is_integer
            ):
                zeros.add(stmt.result)
        elif isinstance(stmt, Store) and stmt.fold == "add" and stmt.value in zeros:
            is_summed = True
    return zeros, is_summed


def _open_sums(
    loop: For,
    facts: Mask,
    private: Mapping[Buffer, Sequence[Access]],
    zeros: Collection[Scalar],
) -> list[Store] | None:
    """The sums of products to which iterations past the end may add something, if nothing else
    than factors of 0 keeps them as they are; None if more than that would change.

    zeros: scalars that are 0 there.
    """
    result: list[Store] = []
    for access in outliving(loop.body, facts):
        if access.kind == "load":
            continue
        others = private.get(access.buffer)
        if others is None or access.stmt.operands or _leaves(access):
            return None
        inner = frozenset(axis for other in others for axis in other.axes)
        writes = [other for other in others if other.kind != "load"]
        if all(meets_only_within(access, other, loop.axis, inner) for other in writes):
            continue
        store = access.stmt
        if not isinstance(store, Store) or store.fold != "add":
            return None
        factors = [store.value] if store.factor is None else [store.value, store.factor]
        if not all(factor in zeros for factor in factors):
            result.append(store)
    return result


def _with_zero_factors(
    loop: For, sums: Sequence[Store], zeros: Collection[Scalar], names: Names
) -> Body:
    """The block of a loop whose sums get factors that are 0 past its end."""
    lets = {stmt.result: stmt for stmt in statements(loop.body) if isinstance(stmt, Let)}

    def change(stmt: Stmt) -> Sequence[Stmt]:
        if stmt not in sums:
            return (stmt,)
        assert isinstance(stmt, Store)
        inside = names.scalar("inside", bool_)
        before: list[Stmt] = [Let(inside, inside_op, (), {"mask": loop.bounds})]

        def chosen(scalar: Scalar) -> Scalar:
            let = lets.get(scalar)
            if scalar in zeros:
                return scalar
            if let is not None and _passes_zeros(let, stmt):
                # What was converted or multiplied becomes 0, so that it may be computed first.
                first, *others = let.operands
                operands = (chosen(first), *others)
                result = names.scalar(scalar.name, scalar.dtype)
                before.append(Let(result, let.op, operands, let.attrs))
                return result
            zero, result = (names.scalar(scalar.name, scalar.dtype) for _ in range(2))
            before.append(constant(zero, 0))
            before.append(Let(result, lookup("select"), (inside, scalar, zero), {}))
            return result

        value, factor = chosen(stmt.value), stmt.factor and chosen(stmt.factor)
        how = stmt.fold, factor, stmt.precision, stmt.operands, stmt.atomic, stmt.later
        new = Store(stmt.buffer, stmt.index, value, stmt.mask, *how)
        return (*before, new)

    def walk(body: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, NESTING):
                result.append(rebuilt(stmt, walk(stmt.body)))
            else:
                result += change(stmt)
        return tuple(result)

    return walk(loop.body)


def _passes_zeros(let: Let, store: Store) -> bool:
    """Whether a scalar is 0 if its first operand is: a converted one, or a product of integers."""
    if let.op.name == "convert":
        return let.operands[0].dtype.name != "bool"
    is_product = let.result == store.value and store.factor is None
    return is_product and let.op.name == "mul" and let.result.dtype.is_integer


def _leaves(access: Access) -> bool:
    """Whether an access may be outside its buffer."""
    low, high = span(access.index, access.facts)
    return low < 0 or high >= access.buffer.size


def _masked(loop: For, facts: Mask, *, needs_zeros: bool) -> Body:
    """The block of a padded loop: loads past its end give 0, at least where they would leave their
    buffers.
    """
    masked: dict[int, Stmt] = {}
    for access in accesses(loop.body, facts):
        load = access.stmt
        # An index that does not depend on the loop is that of an iteration that exists; but one
        # that is loaded may lie anywhere.
        if not isinstance(load, Load) or (loop.axis not in load.index.axes() and not load.operands):
            continue
        if needs_zeros or load.operands or _leaves(access):
            mask = load.mask + tuple(b for b in loop.bounds if b not in load.mask)
            masked[id(load)] = Load(load.result, load.buffer, load.index, mask, load.operands)
    return map_statements(loop.body, lambda stmt: masked.get(id(stmt), stmt))


__all__ = ["pad"]
