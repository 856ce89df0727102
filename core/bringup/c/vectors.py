"""Which ``vector`` loops are written as statements on vectors, one after the other.

Compilers keep variables of vector types in registers, where arrays may stay in memory: the
accumulators of a matrix product are not loaded and stored again for each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.c.dialect import WIDE, Dialect
from bringup.graph.index import Axis, Bound, Expr
from bringup.loops.form import Alloc, Buffer, For, Func, Let, Load, Stmt, Store, statements
from bringup.loops.scopes import accesses

#: The ops of straight loops besides constants, by their operators on vectors of floats.  Functions
#: of many statements are better in loops that compilers vectorise themselves.
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "neg": "-"}
#: How straight loops store.
FOLDS = ("", "add", "mul")
#: A register buffer of more vectors is an array.
MOST_VECTORS = 64


def is_straight(loop: For, dialect: Dialect) -> bool:
    """Whether each statement of a loop is one on vectors of all iterations: accesses go from
    element to element, or are the same for all.
    """
    if loop.kind != "vector" or not is_length(loop.axis.size, dialect):
        return False
    straight = all(_is_straight(stmt, loop, dialect) for stmt in loop.body)
    return straight and _is_independent(loop)


def is_length(lanes: int, dialect: Dialect) -> bool:
    """Whether a vector may have so many elements."""
    return lanes > 1 and not lanes & (lanes - 1) and lanes <= (dialect.vector_lanes or lanes)


def _is_straight(stmt: Stmt, loop: For, dialect: Dialect) -> bool:
    match stmt:
        case Let(op=op, result=result) if op.name == "constant" or (
            op.name in OPERATORS and result.dtype.name in WIDE
        ):
            return result.dtype.itemsize * loop.axis.size <= dialect.vector_bytes
        case Load(operands=()):
            if stmt.index.coefficient(loop.axis) == 0 and not has_one_mask(stmt.mask, loop):
                return False
            fits = stmt.buffer.dtype.itemsize * loop.axis.size <= dialect.vector_bytes
            return fits and stmt.index.coefficient(loop.axis) in (0, 1)
        case Store(operands=()):
            fits = stmt.buffer.dtype.itemsize * loop.axis.size <= dialect.vector_bytes
            fits = fits and stmt.fold in FOLDS
            return fits and stmt.index.coefficient(loop.axis) == 1
        case _:
            return False


def _is_independent(loop: For) -> bool:
    """Whether no iteration sees what another one stores: each statement is run for all of them
    before the next one is.  An output may have the memory of an input, whose elements are to be
    read before they are replaced.
    """
    accesses = [stmt for stmt in loop.body if isinstance(stmt, Load | Store)]
    for n, store in enumerate(accesses):
        if not isinstance(store, Store):
            continue
        for m, other in enumerate(accesses):
            one_memory = other.buffer == store.buffer or (
                m > n and {other.buffer.space, store.buffer.space} == {"global"}
            )
            distance = other.index + store.index * -1
            if one_memory and not (
                distance == Expr() or (distance.is_const and abs(distance.const) >= loop.axis.size)
            ):
                return False
    return True


def touches_own(loop: For, scalars: frozenset[Buffer]) -> bool:
    """Whether each iteration of an innermost loop writes elements that no other one touches, so
    that compilers need not look for dependences.  Folds of all iterations into one element are the
    only ones that `vector` loops have.

    scalars: buffers that are variables of C, for which compilers see that by themselves.
    """
    for stmt in statements(loop.body):
        match stmt:
            case For():
                return False
            case Alloc(buffer=buffer) if buffer not in scalars:
                return False
            case Store() if stmt.buffer not in scalars:
                if stmt.operands or not stmt.index.is_affine:
                    return False
                if not stmt.index.coefficient(loop.axis):
                    return False
    return True


def has_one_mask(mask: Sequence[Bound], loop: For) -> bool:
    """Whether a mask is the same in all iterations."""
    return all(loop.axis not in bound.expr.axes() for bound in mask)


def vector_registers(func: Func, dialect: Dialect) -> dict[Buffer, int]:
    """The register buffers that are vectors, and their lanes: of the straight loops that access
    them from multiples of their lengths on.  Other accesses have constant indices once ``unroll``
    loops are written out.
    """
    straight: set[Buffer] = set()
    arrays: set[Buffer] = set()
    lanes: dict[Buffer, set[int]] = {}
    for stmt, scope in accesses(func):
        buffer, start = stmt.buffer, stmt.index
        if buffer.space != "register":
            continue
        loop = scope.loops[-1] if scope.loops else None
        is_of_vectors = loop is not None and is_straight(loop, dialect)
        if loop is not None and start.coefficient(loop.axis) == 1:
            if is_of_vectors or is_copied(stmt, loop):
                lanes.setdefault(buffer, set()).add(loop.axis.size)
                start = start + Expr.of(loop.axis) * -1
                factors = [start.const, *(factor for _, factor in start.terms)]
                if any(factor % loop.axis.size for factor in factors):
                    arrays.add(buffer)
            if is_of_vectors:
                straight.add(buffer)
        if not start.axes() <= unrolled_axes(scope.loops) or not start.is_affine:
            arrays.add(buffer)
    return {
        buffer: min(sizes)
        for buffer, sizes in lanes.items()
        if len(sizes) == 1
        and buffer in straight - arrays
        and buffer.size % min(sizes) == 0
        and buffer.size // min(sizes) <= MOST_VECTORS
    }


def is_copied(stmt: Stmt, loop: For) -> bool:
    """Whether the lanes of a loop that is not straight may read a vector from a copy in memory."""
    is_load = isinstance(stmt, Load) and stmt.index.coefficient(loop.axis) == 1
    return is_load and loop.kind == "vector" and loop.end is None


def lanes_within(mask: Sequence[Bound], loop: For) -> tuple[range, tuple[Bound, ...]]:
    """The lanes in which the bounds hold that depend on nothing else, and the other bounds."""
    axis = loop.axis
    own = [bound for bound in mask if bound.expr.is_affine and bound.expr.axes() == {axis}]
    lanes = [n for n in range(axis.size) if all(_in_lane(bound, axis, n).always for bound in own)]
    within = range(lanes[0], lanes[-1] + 1) if lanes else range(0)
    return within, tuple(bound for bound in mask if bound not in own)


def at_ends(mask: Sequence[Bound], loop: For) -> list[Bound]:
    """The bounds of the first and the last lane, by which a mask holds in all lanes; none if its
    expressions are not linear.
    """
    axis = loop.axis
    if any(bound.expr.coefficient(axis) is None for bound in mask):
        return []
    return [_in_lane(bound, axis, n) for n in (0, axis.size - 1) for bound in mask]


def _in_lane(bound: Bound, axis: Axis, lane: int) -> Bound:
    return replace(bound, expr=bound.expr.substitute({axis: Expr(lane)}))


def is_common(load: Load, loop: For) -> bool:
    """Whether lanes read one element, which is there whatever their masks say: compilers would
    gather it.
    """
    index, buffer = load.index, load.buffer
    is_one = index.is_affine and not load.operands and loop.axis.size > 1
    is_one &= not has_one_mask(load.mask, loop)
    around = {other.axis for other in statements(loop.body) if isinstance(other, For)}
    is_one &= index.axes().isdisjoint({loop.axis} | around)
    return is_one and 0 <= index.first <= index.last < buffer.size


def folds_across(loop: For, dialect: Dialect) -> list[Store]:
    """The folds of all iterations of a loop into one element each: vectors are halved for them,
    since compilers keep the order of additions.
    """
    if loop.kind != "vector" or loop.end is not None or not is_length(loop.axis.size, dialect):
        return []
    read = {stmt.buffer for stmt in statements(loop.body) if isinstance(stmt, Load)}
    return [
        stmt
        for stmt in loop.body
        if isinstance(stmt, Store)
        and stmt.fold
        and stmt.factor is None
        and not stmt.operands
        and stmt.index.coefficient(loop.axis) == 0
        and stmt.buffer not in read
        and stmt.buffer.dtype.name in WIDE
    ]


def unrolled_axes(loops: Sequence[For]) -> frozenset[Axis]:
    """The axes of ``unroll`` loops: constants in each copy of what is in them."""
    return frozenset(loop.axis for loop in loops if loop.kind == "unroll")


__all__ = [
    "OPERATORS",
    "at_ends",
    "folds_across",
    "has_one_mask",
    "is_common",
    "is_copied",
    "is_length",
    "is_straight",
    "lanes_within",
    "touches_own",
    "unrolled_axes",
    "vector_registers",
]  # fmt: skip
