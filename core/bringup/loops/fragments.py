"""Fragments: which thread has an element, and in which of its registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Dyn, Expr
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    If,
    Load,
    Stmt,
    Store,
)
from bringup.loops.scopes import Scope, accesses


def disagreements(func: Func) -> Iterator[tuple[Load | Store, str]]:
    """Accesses of fragments that do not say which thread has an element, or say another one."""
    threads: dict[Buffer, list[tuple[int, int]]] = {}
    registers: dict[Buffer, set[int]] = {}
    last: dict[Buffer, Load | Store] = {}
    for stmt, scope in accesses(func):
        buffer = stmt.buffer
        if buffer.space != "fragment":
            continue
        inner = _inside(stmt, scope.loops)
        what, mine = _threads_of(stmt, scope, inner)
        if what:
            yield stmt, what
            return
        if inner:
            if _shared(mine, inner, stmt, threads.get(buffer, ())) is None:
                yield stmt, f"other threads than those of the instruction have {buffer.name}"
                return
            continue
        if threads.setdefault(buffer, mine) != mine:
            yield stmt, f"other threads have the elements of {buffer.name} before"
            return
        loops = [loop for loop in scope.loops if loop.kind in ("unroll", "vector")]
        registers.setdefault(buffer, set()).update(_own(stmt, loops))
        last[buffer] = stmt
    for buffer, mine in threads.items():
        elements = np.array(sorted(registers[buffer]))
        for size, step in mine:
            elements = np.add.outer(elements, np.arange(size) * step).ravel()
        if np.bincount(elements).max() > 1:
            yield last[buffer], f"two threads have an element of {buffer.name}"


def _inside(stmt: Load | Store, loops: Sequence[For]) -> list[For]:
    """The loops of an instruction along which it reads a factor from registers of a warp.

    Which thread has an element is what the accesses before say.
    """
    first = next((n for n, loop in enumerate(loops) if loop.by), len(loops))
    own = [loop for loop in loops[first:] if loop.kind == "serial"]
    return own if isinstance(stmt, Load) and any(map(stmt.index.coefficient, _axes(own))) else []


def _axes(loops: Sequence[For]) -> list[Axis]:
    return [loop.axis for loop in loops]


def _shared(
    mine: Sequence[tuple[int, int]],
    inner: Sequence[For],
    stmt: Load | Store,
    threads: Sequence[tuple[int, int]],
) -> list[For] | None:
    """Those of the loops ``inner`` that choose a thread; None if threads have other elements.

    mine, threads: the sizes and steps of the thread loops round the access, and of those round the
    others.
    """
    if len(mine) != len(threads):
        return None
    missing = [other for one, other in zip(mine, threads, strict=True) if one != other]
    if any(one not in (other, (other[0], 0)) for one, other in zip(mine, threads, strict=True)):
        return None
    found = [
        loop for loop in inner if (loop.axis.size, stmt.index.coefficient(loop.axis)) in missing
    ]
    return found if len(found) == len(missing) else None


def _threads_of(
    stmt: Load | Store, scope: Scope, inner: Sequence[For]
) -> tuple[str, list[tuple[int, int]]]:
    """What is wrong with an access by itself, and the sizes and steps of its thread loops.

    inner: loops of an instruction, which does not need them written out.
    """
    name = stmt.buffer.name
    if stmt.operands or any(isinstance(atom, Dyn) for atom in stmt.index.atoms()):
        return f"fragment {name} is indexed by data", []
    own = {loop.axis for loop in scope.loops if loop.kind in ("unroll", "vector", "thread")}
    own.update(_axes(inner))
    others = sorted(axis.name for axis in stmt.index.axes() - own)
    if others:
        return f"fragment {name} is indexed by {', '.join(others)}, which is not written out", []
    loops = [loop for loop in scope.loops if loop.kind == "thread"]
    if not loops:
        return f"fragment {name} is used by no thread", []
    if any(not isinstance(atom, Axis) for atom, _ in stmt.index.terms):
        return f"fragment {name} is indexed by quotients", []
    return "", [(loop.axis.size, stmt.index.coefficient(loop.axis) or 0) for loop in loops]


def in_registers(body: Body) -> tuple[Body, dict[str, dict[int, int]]]:
    """The block with a register buffer for each fragment: the elements that a thread has of it.

    Returns, too, the registers of each fragment by the elements that thread 0 has.  Factors that an
    instruction reads in registers stay as they are.
    """
    offsets: dict[Buffer, set[int]] = {}
    listed = [
        (stmt, [loop for loop in loops if loop.kind in ("unroll", "vector")])
        for stmt, loops in _fragment_accesses(body, ())
        if not _inside(stmt, loops)
    ]
    for stmt, loops in listed:
        offsets.setdefault(stmt.buffer, set()).update(_own(stmt, loops))
    ranks = {
        buffer: {offset: rank for rank, offset in enumerate(sorted(found))}
        for buffer, found in offsets.items()
    }
    registers = {b: Buffer(b.name, b.dtype, len(found), "register") for b, found in ranks.items()}
    moved: dict[Stmt, Stmt] = {}
    for stmt, loops in listed:
        index = _in_ranks(stmt, loops, ranks[stmt.buffer])
        moved[stmt] = _moved(stmt, registers[stmt.buffer], index)

    def change(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer in registers:
            return Alloc(registers[stmt.buffer])
        return moved.get(stmt, stmt)

    return _mapped(body, change), {buffer.name: found for buffer, found in ranks.items()}


def _fragment_accesses(
    body: Body, loops: tuple[For, ...]
) -> Iterator[tuple[Load | Store, tuple[For, ...]]]:
    """The accesses of fragments, each with the loops round it."""
    for stmt in body:
        if isinstance(stmt, For):
            yield from _fragment_accesses(stmt.body, (*loops, stmt))
        elif isinstance(stmt, NESTING):
            yield from _fragment_accesses(stmt.body, loops)
        elif isinstance(stmt, ACCESSES) and stmt.buffer.space == "fragment":
            yield stmt, loops


def _steps(stmt: Load | Store, loops: Sequence[For]) -> list[tuple[Axis, int]]:
    """The loops that choose a register of a thread, each with its step in the fragment."""
    steps = [(loop.axis, stmt.index.coefficient(loop.axis) or 0) for loop in loops]
    return [(axis, step) for axis, step in steps if step]


def _own(stmt: Load | Store, loops: Sequence[For]) -> set[int]:
    """The elements that thread 0 has of those that an access touches."""
    result = {stmt.index.const}
    for axis, step in _steps(stmt, loops):
        result = {offset + step * n for offset in result for n in range(axis.size)}
    return result


def _in_ranks(stmt: Load | Store, loops: Sequence[For], ranks: dict[int, int]) -> Expr:
    """The index of an access among the registers of a thread."""
    start, steps = stmt.index.const, _steps(stmt, loops)
    index = Expr(ranks[start])
    for axis, step in steps:
        if axis.size > 1:
            index = index + Expr.of(axis) * (ranks[start + step] - ranks[start])
    for point in product(*({0, axis.size - 1} for axis, _ in steps)):
        offset = start + sum(n * step for n, (_, step) in zip(point, steps, strict=True))
        rank = index.substitute({a: Expr(n) for n, (a, _) in zip(point, steps, strict=True)})
        if rank.const != ranks[offset]:
            raise UnsupportedError(f"registers of {stmt.buffer.name} are no even steps apart")
    return index


def _moved(stmt: Load | Store, buffer: Buffer, index: Expr) -> Load | Store:
    """The same access to a register."""
    if isinstance(stmt, Load):
        return Load(stmt.result, buffer, index, stmt.mask)
    fold, factor, precision = stmt.fold, stmt.factor, stmt.precision
    return Store(buffer, index, stmt.value, stmt.mask, fold, factor, precision, later=stmt.later)


def _mapped(body: Body, change: Callable[[Stmt], Stmt]) -> Body:
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            body = _mapped(stmt.body, change)
            result.append(For(stmt.axis, body, stmt.kind, stmt.end, stmt.by))
        elif isinstance(stmt, If):
            result.append(If(stmt.mask, _mapped(stmt.body, change), stmt.test))
        else:
            result.append(change(stmt))
    return tuple(result)


__all__ = ["disagreements", "in_registers"]
