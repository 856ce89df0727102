"""Where buffers of a function stand: parameters, scratch of a call, local arrays, scalars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from bringup.c.geometry import nest
from bringup.c.vectors import unrolled_axes
from bringup.dtypes import DType, i64
from bringup.graph.index import Axis, Div, Dyn, Expr, Mod
from bringup.integers import round_up
from bringup.loops.form import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    Scalar,
    Shuffle,
    Stmt,
    Store,
    statements,
)
from bringup.loops.scopes import Scope, accesses
from bringup.records import record

#: Scratch buffers up to so many bytes are local arrays; others stand in the scratch of a call.
MOST_LOCAL = 1024
#: Scratch buffers begin at multiples of so many bytes, a line of most caches.
ALIGNMENT = 64
#: A register buffer of more elements is an array, even where all of its indices are constant.
MOST_SCALARS = 64


@record(eq=False)
class Layout:
    """offsets: in bytes, of the buffers that stand in scratch.  size: of scratch."""

    offsets: dict[Buffer, int]
    size: int


def scratch_layout(func: Func, *, shared: bool) -> Layout:
    """Where the large scratch buffers of a function stand, one behind the other.

    shared: whether buffers common to a block have memory of their own; else they are scratch.
    """
    offsets: dict[Buffer, int] = {}
    end = 0
    for stmt in statements(func.body):
        if not isinstance(stmt, Alloc) or stmt.buffer in offsets:
            continue
        if in_scratch(stmt.buffer, shared=shared):
            offsets[stmt.buffer] = end
            end = round_up(end + _bytes(stmt.buffer), ALIGNMENT)
    return Layout(offsets, end)


def _bytes(buffer: Buffer) -> int:
    return buffer.size * buffer.dtype.itemsize


def in_scratch(buffer: Buffer, *, shared: bool) -> bool:
    """Whether a buffer that is allocated stands in the scratch of a call."""
    if buffer.space == "shared":
        return not shared and _bytes(buffer) > MOST_LOCAL
    return buffer.space == "global" or (buffer.space == "scratch" and _bytes(buffer) > MOST_LOCAL)


def index_dtype(func: Func, narrow: DType) -> DType:
    """The narrow dtype of indices if no part of an index expression and no number of a unit leaves
    its range, else i64.
    """
    largest, units = 0, 1
    for stmt in statements(func.body):
        largest = max([largest, *map(_largest, _expressions(stmt))])
        if isinstance(stmt, For):
            largest = max(largest, stmt.axis.size)
            units *= max(stmt.axis.size, 1) if stmt.kind in ("parallel", "block") else 1
    # The number of the last unit, and of threads beyond it, is in range too.
    return narrow if 4 * max(largest, units) < 1 << narrow.bits else i64


def _expressions(stmt: Stmt) -> Iterator[Expr]:
    match stmt:
        case Load() | Store():
            yield from (stmt.index, *(bound.expr for bound in stmt.mask))
        case Let():
            yield from (bound.expr for bound in stmt.attrs.get("mask", ()))
            if stmt.op.name == "index":
                yield stmt.attrs["index"]
        case If():
            yield from (bound.expr for bound in stmt.mask)
        case For() if stmt.end is not None:
            yield stmt.end


def _largest(expr: Expr) -> int:
    """A bound on the sizes of an expression and of everything that it is computed from."""
    inner = [_largest(atom.of) for atom, _ in expr.terms if isinstance(atom, Div | Mod)]
    terms = (abs(factor) * max(abs(a.first), abs(a.last)) for a, factor in expr.terms)
    divisors = [atom.by for atom, _ in expr.terms if isinstance(atom, Div | Mod)]
    return max([abs(expr.const) + sum(terms), *inner, *divisors])


def aliasing_free(func: Func) -> frozenset[Buffer]:
    """The parameters that share memory with no other: no ``in`` and ``out`` buffer of one size in
    elements of one width, of which each unit reads only elements that it alone writes.
    """
    alike = [
        (source, target)
        for source, target in product(func.inputs, func.outputs)
        if (source.size, source.dtype.itemsize) == (target.size, target.dtype.itemsize)
    ]
    found = list(accesses(func)) if alike else []
    shared: set[Buffer] = set()
    for source, target in alike:
        if not _reads_elsewhere(func, found, source, target):
            shared |= {source, target}
    return frozenset(param.buffer for param in func.params) - shared


def _reads_elsewhere(
    func: Func, found: Sequence[tuple[Load | Store, Scope]], source: Buffer, target: Buffer
) -> bool:
    """Whether a unit surely reads an element of ``source`` in whose place it writes none of
    ``target``.

    found: the accesses of the function.
    Units with one index of 1 and others of 0 are looked at, and of what they read the first element
    and the next one along each loop.
    """
    loops, _ = nest(func.body, ("parallel", "block"))
    written = [stmt.index for stmt, _ in found if isinstance(stmt, Store) and stmt.buffer == target]
    read = [
        stmt.index
        for stmt, scope in found
        if stmt.buffer == source
        and stmt.index.is_affine
        and not (stmt.mask or stmt.operands or scope.mask or scope.guarded)
    ]
    for one in (loop for loop in loops if loop.axis.size > 1):
        unit = {loop.axis: Expr(int(loop is one)) for loop in loops}
        places = [index.substitute(unit) for index in written]
        for index in (index.substitute(unit) for index in read):
            steps = [0, *(factor * min(1, atom.last) for atom, factor in index.terms)]
            elements = (index.const + step for step in steps)
            if not all(any(_may_be(place, e) for place in places) for e in elements):
                return True
    return False


def _may_be(index: Expr, element: int) -> bool:
    """Whether an index may have a value: not if none of its digits is as large as a step of the
    next one, and the rest that they leave is not 0.
    """
    rest, reach = element - index.const, 0
    if not index.is_affine:
        return True
    for atom, factor in sorted(index.terms, key=lambda term: term[1]):
        if factor <= reach:
            return True
        reach += factor * atom.last
    for atom, factor in sorted(index.terms, key=lambda term: -term[1]):
        rest -= factor * min(max(rest // factor, 0), atom.last)
    return rest == 0


def scalar_registers(func: Func) -> frozenset[Buffer]:
    """The register buffers whose every index is constant once ``unroll`` loops are written out."""
    body = statements(func.body)
    registers = {s.buffer for s in body if isinstance(s, Alloc) and s.buffer.space == "register"}
    arrays = {
        stmt.buffer
        for stmt, scope in accesses(func)
        if not _is_constant(stmt.index, unrolled_axes(scope.loops))
    }
    return frozenset(b for b in registers - arrays if b.size <= MOST_SCALARS)


def live(func: Func) -> frozenset[Scalar | Buffer]:
    """The scalars and buffers that results depend on; compilers warn of all others."""
    body = list(statements(func.body))
    allocated = {stmt.buffer for stmt in body if isinstance(stmt, Alloc)}
    waiting: list[Scalar | Buffer] = []
    #: What each is made of.
    sources: dict[Scalar | Buffer, list[Scalar | Buffer]] = {}
    for stmt in body:
        match stmt:
            case Let():
                sources.setdefault(stmt.result, []).extend(stmt.operands)
            case Load():
                sources.setdefault(stmt.result, []).extend((stmt.buffer, *stmt.operands))
            case Store():
                factor = () if stmt.factor is None else (stmt.factor,)
                sources.setdefault(stmt.buffer, []).extend((stmt.value, *factor, *stmt.operands))
                waiting += [] if stmt.buffer in allocated else [stmt.buffer]
            case If(test=Scalar() as test):
                waiting.append(test)
            case Shuffle():
                waiting.append(stmt.value)
    found: set[Scalar | Buffer] = set()
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += sources.get(each, ())
    return frozenset(found)


def _is_constant(index: Expr, unrolled: frozenset[Axis]) -> bool:
    return index.axes() <= unrolled and not any(isinstance(a, Dyn) for a in index.atoms())


__all__ = [
    "Layout",
    "aliasing_free",
    "in_scratch",
    "index_dtype",
    "live",
    "scalar_registers",
    "scratch_layout",
]  # fmt: skip
