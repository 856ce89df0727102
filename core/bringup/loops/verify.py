"""The loop level as a specification: rules as data, checked in order, each relying on those before
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

import numpy as np

from bringup.dtypes import f32
from bringup.errors import GraphError, OpTypeError
from bringup.graph.index import Axis, Dyn, Expr
from bringup.graph.ir import attrs_key
from bringup.kernel.ranges import expr_value, is_row_major, mask_value, outside, positions, span
from bringup.loops.conflicts import races
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    OF_BLOCK,
    PRIVATE,
    Alloc,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Role,
    Scalar,
    Shuffle,
    Space,
    Stmt,
    Store,
    Wait,
    statements,
)
from bringup.loops.fragments import disagreements
from bringup.loops.scopes import accesses, walk
from bringup.loops.text import print_stmt
from bringup.ops.monoids import MONOIDS
from bringup.ops.table import Kind, Trait
from bringup.records import record

#: What is wrong with a function, each time with the statement; empty if nothing.
Check = Callable[[Func], Iterator[tuple[Stmt | None, str]]]
Problems = Iterator[tuple[Stmt | None, str]]

_NAME = re.compile(r"[A-Za-z_][\w.]*")


@record
class FuncRule:
    """One rule: its name, what it says, and the check that lists violations."""

    name: str
    says: str
    check: Check


def verify_func(func: Func) -> None:
    """Check every rule of `FUNC_RULES`.

    Raises GraphError with the rule broken first, the statement and the function's text.
    Sizes too large to look at position by position, and conditions on data, are accepted where
    intervals do not decide; `evaluate_func` is exact.

    >>> from bringup.loops import parse_func
    >>> verify_func(parse_func('''
    ... func f(y: out f32[4]) {
    ...   for i in 4 parallel {
    ...     %0: f32 = 2.0
    ...     y[0] = %0
    ...   }
    ... }'''))                                    # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    GraphError: func f: every iteration of parallel loop i writes y[0]
    """
    for rule in FUNC_RULES:
        for stmt, what in rule.check(func):
            raise GraphError(
                f"func {func.name}: {what}",
                notes=tuple(str(func).splitlines()),
                instruction=print_stmt(stmt) if stmt is not None else None,
                fix=f"rule {rule.name}: {rule.says}",
            )


def _done(stmt: Load | Store) -> str:
    return "reads" if isinstance(stmt, Load) else "writes"


# -- names -----------------------------------------------------------------------------------------


def _buffers(func: Func) -> Problems:
    if not func.outputs:
        yield None, "nothing is written: all parameters are in"
    for param in func.params:
        if param.role not in get_args(Role):
            yield None, f"parameter {param.buffer.name} has the role {param.role!r}"
        if param.buffer.space != "global":
            yield None, f"parameter {param.buffer} is not global"
    for stmt, scope in walk(func):
        if isinstance(stmt, Alloc):
            if stmt.buffer.space not in get_args(Space):
                yield stmt, f"{stmt.buffer.space!r} is no space"
            if stmt.buffer.space in OF_BLOCK and not any(v.kind == "block" for v in scope.loops):
                yield stmt, f"{stmt.buffer} is memory of a block, yet in no block"


def _names(func: Func) -> Problems:
    names = [p.buffer.name for p in func.params]
    for name in names:
        if not _NAME.fullmatch(name):
            yield None, f"{name!r} is no name"
        if names.count(name) > 1:
            yield None, f"two parameters are called {name}"
    yield from _names_within(func.body, {("buffer", name) for name in names})


def _names_within(body: Sequence[Stmt], seen: set[tuple[str, str]]) -> Problems:
    seen = set(seen)
    for stmt in body:
        name: tuple[str, str] | None = None
        match stmt:
            case For():
                name = ("loop", stmt.name)
            case Alloc():
                name = ("buffer", stmt.buffer.name)
            case Let() | Load() | Shuffle():
                name = ("scalar", stmt.result.name)
        if name in seen:
            yield stmt, f"{name[0]} {name[1]} has the name of another that is seen here"
        elif name is not None:
            # The name of a scalar may be a number, behind the sign that marks it.
            if not _NAME.fullmatch(name[1] if name[0] != "scalar" else f"_{name[1]}"):
                yield stmt, f"{name[1]!r} is no name"
            if isinstance(stmt, For) and stmt.name in get_args(LoopKind):
                yield stmt, f"loop {stmt.name} is called as a kind of loops"
            if not isinstance(stmt, For):
                seen.add(name)
        if isinstance(stmt, NESTING):
            yield from _names_within(stmt.body, seen if name is None else {*seen, name})


def _scope(func: Func) -> Problems:
    yield from _scope_within(func.body, set(), {p.buffer for p in func.params})


def _scope_within(body: Sequence[Stmt], scalars: set[Scalar], buffers: set[Buffer]) -> Problems:
    scalars, buffers = set(scalars), set(buffers)
    for stmt in body:
        for scalar in _read_by(stmt):
            if scalar not in scalars:
                yield stmt, f"there is no {scalar}: {scalar.dtype} here"
        if isinstance(stmt, ACCESSES) and stmt.buffer not in buffers:
            yield stmt, f"there is no buffer {stmt.buffer} here"
        match stmt:
            case Let() | Load() | Shuffle():
                scalars.add(stmt.result)
            case Alloc():
                buffers.add(stmt.buffer)
            case For() | If():
                yield from _scope_within(stmt.body, scalars, buffers)


def _read_by(stmt: Stmt) -> tuple[Scalar, ...]:
    match stmt:
        case Let() | Load():
            return stmt.operands
        case Shuffle():
            return (stmt.value,)
        case Store():
            factor = () if stmt.factor is None else (stmt.factor,)
            return (stmt.value, *factor, *stmt.operands)
        case If():
            return () if stmt.test is None else (stmt.test,)
    return ()


# -- types -----------------------------------------------------------------------------------------


def _scalars(func: Func) -> Problems:
    for stmt, _ in walk(func):
        if isinstance(stmt, Let):
            what = _let(stmt)
            if what:
                yield stmt, what
        elif isinstance(stmt, Shuffle) and stmt.result.dtype is not stmt.value.dtype:
            yield stmt, f"the value is {stmt.value.dtype}"
        elif isinstance(stmt, If) and stmt.test is not None and stmt.test.dtype.name != "bool":
            yield stmt, f"{stmt.test}, a {stmt.test.dtype}, is no condition"


def _let(stmt: Let) -> str | None:
    """What is wrong with a scalar: it is one op of the table on scalars."""
    op = stmt.op
    pointwise = op.kind is Kind.ELEMENTWISE or Trait.POINTWISE in op.traits
    computed = pointwise or op.name in ("constant", "index", "inside")
    if not computed:
        return f"{op.name} is not an op on scalars"
    try:
        bound = op.bind(stmt.attrs)
        types = op.result_types(tuple(s.type for s in stmt.operands), bound)
    except (OpTypeError, GraphError) as error:
        return error.what
    if attrs_key(bound) != attrs_key(stmt.attrs):
        return f"the attributes of {op.name} are not bound"
    if types != (stmt.result.type,):
        return f"{op.name} gives {types[0]}, not {stmt.result.type}"
    return None


def _access_types(func: Func) -> Problems:
    read_only = set(func.inputs)
    folds: dict[Buffer, str] = {}
    for stmt, _ in accesses(func):
        if isinstance(stmt, Store) and stmt.atomic:
            first = folds.setdefault(stmt.buffer, stmt.fold)
            if first != stmt.fold:
                yield stmt, f"{stmt.buffer.name} is folded into atomically by {first}, too"
        scalar = stmt.result if isinstance(stmt, Load) else stmt.value
        if scalar.dtype is not stmt.buffer.dtype:
            yield stmt, f"{stmt.buffer} is accessed as {scalar.dtype}"
        if isinstance(stmt, Store):
            if stmt.buffer in read_only:
                yield stmt, f"{stmt.buffer.name} is an in buffer, which is only read"
            what = _fold(stmt)
            if what:
                yield stmt, what


def _fold(stmt: Store) -> str | None:
    dtype = stmt.buffer.dtype
    if stmt.fold and stmt.fold not in MONOIDS:
        return f"there is no fold {stmt.fold!r}"
    if stmt.fold and dtype not in MONOIDS[stmt.fold].dtypes:
        return f"fold {stmt.fold!r} does not take {dtype}"
    if stmt.atomic:
        if not stmt.fold or stmt.factor is not None or not MONOIDS[stmt.fold].is_exact(dtype):
            return "only a fold that gives the same bits in any order is atomic"
        if stmt.buffer.space in PRIVATE:
            return f"a fold into {stmt.buffer.name}, which is private, is not atomic"
    if stmt.factor is not None:
        if stmt.fold != "add":
            return "a product is summed: only fold 'add' has a factor"
        if stmt.factor.dtype is not dtype:
            return f"the factor {stmt.factor} is {stmt.factor.dtype}, not {dtype}"
    if stmt.precision != "highest" and (stmt.factor is None or dtype is not f32):
        return f"{stmt.precision} is for products of f32"
    return None


# -- loops and indices -----------------------------------------------------------------------------


def _indices(func: Func) -> Problems:
    for stmt, scope in walk(func):
        for expr, operands in _expressions(stmt):
            strange = sorted(axis.name for axis in expr.axes() - {*scope.axes})
            if strange:
                yield stmt, f"index {expr} uses {', '.join(strange)}, which is no loop round it"
            numbers = {a.operand for a in expr.atoms() if isinstance(a, Dyn)}
            if any(n >= len(operands) or not operands[n].dtype.is_integer for n in numbers):
                yield stmt, f"index {expr} names operands that are no loaded integers"


def _expressions(stmt: Stmt) -> Iterator[tuple[Expr, tuple[Scalar, ...]]]:
    """The index expressions of a statement, with the operands that they may name."""
    match stmt:
        case Load() | Store():
            yield stmt.index, stmt.operands
            yield from ((b.expr, stmt.operands) for b in stmt.mask)
        case Let() if stmt.op.name == "index":
            yield stmt.attrs["index"], stmt.operands
        case Let() if stmt.op.name == "inside":
            yield from ((b.expr, stmt.operands) for b in stmt.attrs["mask"])
        case If():
            yield from ((b.expr, ()) for b in stmt.mask)
        case For() if stmt.end is not None:
            yield stmt.end, ()


def _loops(func: Func) -> Problems:
    for stmt, scope in walk(func):
        if not isinstance(stmt, For):
            continue
        if stmt.kind not in get_args(LoopKind):
            yield stmt, f"{stmt.kind!r} is no kind of loop"
        if stmt.axis.size < 0:
            yield stmt, f"loop {stmt.name} has a negative size"
        if stmt.axis.id:
            yield stmt, f"the axis of loop {stmt.name} has a number"
        if stmt.end is not None and span(stmt.end, scope.mask)[0] < 1:
            yield stmt, f"loop {stmt.name} may have no iteration: it ends at {stmt.end}"
        outer = {loop.kind for loop in scope.loops}
        if stmt.kind == "thread" and "block" not in outer:
            yield stmt, f"thread loop {stmt.name} is in no block loop"
        if stmt.kind in ("parallel", "block") and "thread" in outer:
            yield stmt, f"{stmt.kind} loop {stmt.name} is in a thread loop"


def _ranges(func: Func) -> Problems:
    for stmt, scope in accesses(func):
        if scope.guarded:
            continue
        size = stmt.buffer.size
        wrong = outside(stmt.index, (*stmt.mask, *scope.mask), scope.axes, size)
        if wrong is not None:
            element = f"element {wrong} of {stmt.buffer.name}, which has {size}"
            yield stmt, f"an access {_done(stmt)} {element}: index {stmt.index}"


def _registers(func: Func) -> Problems:
    for stmt, scope in accesses(func):
        if stmt.buffer.space != "register":
            continue
        if any(isinstance(atom, Dyn) for atom in stmt.index.atoms()):
            yield stmt, f"register buffer {stmt.buffer.name} is indexed by data"
        unrolled = {v.axis for v in scope.loops if v.kind in ("unroll", "vector")}
        strange = sorted(axis.name for axis in stmt.index.axes() - unrolled)
        if strange:
            loops = ", ".join(strange)
            yield stmt, f"register buffer {stmt.buffer.name} is indexed by {loops}, not unrolled"


def _later(func: Func) -> Problems:
    """Stores to come that are no copies from the caller's memory to that of a block, and no
    products.
    """
    yield from _later_within(func.body, has_shape=False)


def _later_within(body: Sequence[Stmt], *, has_shape: bool) -> Problems:
    """has_shape: whether a loop round the block is given to an instruction."""
    loads = {stmt.result: stmt for stmt in body if isinstance(stmt, Load)}
    for stmt in body:
        if isinstance(stmt, NESTING):
            inside = has_shape or (isinstance(stmt, For) and bool(stmt.by))
            yield from _later_within(stmt.body, has_shape=inside)
        elif isinstance(stmt, Wait) and stmt.pending < 0:
            yield stmt, "there are no fewer groups than none"
        elif isinstance(stmt, Store) and stmt.later and has_shape:
            others = [load for load in loads.values() if load.buffer.space != "shared"]
            if stmt.fold != "add" or stmt.buffer.space != "fragment":
                yield stmt, f"products are added to a fragment later, not so to {stmt.buffer.name}"
            elif others:
                yield stmt, f"factor {others[0].result} is not in shared memory"
        elif isinstance(stmt, Store) and stmt.later:
            load = loads.get(stmt.value)
            if stmt.buffer.space != "shared" or stmt.fold or stmt.mask:
                yield stmt, f"{stmt.buffer.name} cannot be stored later"
            elif load is None or load.buffer.space != "global":
                yield stmt, f"{stmt.value} is no element of the caller's memory, loaded here"
            elif any(load.result in _read_by(other) for other in body if other is not stmt):
                yield stmt, f"{stmt.value} is used before it comes"


def _outputs(func: Func) -> Problems:
    for buffer in (param.buffer for param in func.params if param.role == "out"):
        stores = [(s, c) for s, c in accesses(func) if isinstance(s, Store) and s.buffer == buffer]
        stores = [(s, c) for s, c in stores if all(axis.size for axis in c.axes)]
        written = np.zeros(buffer.size, np.bool_)
        for stmt, scope in stores:
            mask = (*stmt.mask, *scope.mask)
            axes = _used([stmt.index, *(b.expr for b in mask)], scope.axes)
            if not mask and is_row_major(stmt.index, axes):
                written[: stmt.index.last + 1] = True
                continue
            table = positions(axes)
            if table is None or stmt.operands:
                written[:] = True  # it is not decided
                continue
            index, holds = np.broadcast_arrays(
                expr_value(stmt.index, table), mask_value(mask, table)
            )
            written[index[holds]] = True
        missing = np.flatnonzero(~written)
        if missing.size:
            yield None, f"element {missing[0]} of {buffer.name}, which is out, is never written"


def _used(exprs: Iterable[Expr], axes: Sequence[Axis]) -> list[Axis]:
    used = frozenset[Axis]().union(*(e.axes() for e in exprs))
    return [axis for axis in axes if axis in used]


# -- threads ---------------------------------------------------------------------------------------


def _barriers(func: Func) -> Problems:
    blocks = [s for s in statements(func.body) if isinstance(s, For) and s.kind == "block"]
    inside = {s for block in blocks for s in statements(block.body)}
    for stmt in statements(func.body):
        if isinstance(stmt, (Barrier, Commit, Wait)) and stmt not in inside:
            yield stmt, f"{_place_of(stmt)} stands outside of a block"
    yield from _shuffles(func)
    yield from _barriers_within(func.body, (), frozenset(), (), alone=False)


def _place_of(stmt: Barrier | Commit | Wait) -> str:
    return "a barrier" if isinstance(stmt, Barrier) else "a commit or a wait"


def _shuffles(func: Func) -> Problems:
    """Exchanges with threads that there are not."""
    for stmt, scope in walk(func):
        if isinstance(stmt, Shuffle):
            loop = next((loop for loop in scope.loops if loop.axis == stmt.axis), None)
            if loop is None or loop.kind != "thread":
                yield stmt, f"there is no thread loop {stmt.axis.name} round it"
            elif not stmt.mask or loop.axis.size % (1 << stmt.mask.bit_length()):
                yield stmt, f"not all threads of loop {loop.name} have a partner"


@record(eq=False)
class _Choice:
    """What decides by thread whether a block runs.

    axes: the thread loops on which that depends; None for all, if it is data.
    is_end: whether it is the end of the thread loop that is all there is in its block, so that
    there are no other threads.
    """

    stmt: For | If
    axes: frozenset[Axis] | None
    is_end: bool = False

    def parts(self, stmt: Barrier | Shuffle | Commit | Wait) -> bool:
        """Whether some threads come to a statement and others, who should, do not."""
        if isinstance(stmt, Shuffle):
            return self.axes is None or stmt.axis in self.axes
        return not self.is_end


def _barriers_within(
    body: Sequence[Stmt],
    threads: tuple[Axis, ...],
    varying: frozenset[Scalar],
    choices: tuple[_Choice, ...],
    *,
    alone: bool,
) -> Problems:
    """Barriers and shuffles to which some threads may not come.

    threads: the axes of the thread loops round the block.
    varying: scalars that may differ between threads.
    choices: what decides by thread whether the block runs.
    alone: whether the block of threads does nothing else.
    """
    alone = alone and sum(not isinstance(stmt, Alloc) for stmt in body) == 1
    for stmt in body:
        if isinstance(stmt, (Barrier, Shuffle, Commit, Wait)):
            for choice in choices:
                if choice.parts(stmt):
                    what = "shuffle" if isinstance(stmt, Shuffle) else "barrier"
                    why = print_stmt(choice.stmt)
                    yield stmt, f"only some threads may come to a {what}: {why}"
            varying |= {stmt.result} if isinstance(stmt, Shuffle) else frozenset()
        elif isinstance(stmt, (Let, Load)):
            exprs = [expr for expr, _ in _expressions(stmt)]
            differs = not varying.isdisjoint(stmt.operands) or bool(_used(exprs, threads))
            if isinstance(stmt, Load) and threads:
                differs = differs or stmt.buffer.space in PRIVATE
            varying |= {stmt.result} if differs else frozenset()
        elif isinstance(stmt, If):
            axes = frozenset(_used([b.expr for b in stmt.mask], threads))
            inner = choices
            if axes or stmt.test in varying:
                inner += (_Choice(stmt, None if stmt.test in varying else axes),)
            yield from _barriers_within(stmt.body, threads, varying, inner, alone=False)
        elif isinstance(stmt, For):
            is_thread = stmt.kind == "thread"
            inside = (*threads, stmt.axis) if is_thread else threads
            axes = frozenset(_used([stmt.end], threads)) if stmt.end is not None else frozenset()
            inner = choices
            if stmt.end is not None and (is_thread or axes):
                own = {stmt.axis} if is_thread else frozenset[Axis]()
                inner += (_Choice(stmt, axes | own, is_end=alone and is_thread),)
            within = alone or stmt.kind == "block"
            yield from _barriers_within(stmt.body, inside, varying, inner, alone=within)


FUNC_RULES: tuple[FuncRule, ...] = (
    FuncRule(
        "buffers",
        "parameters are global, one at least is written, what is shared is allocated in a block",
        _buffers,
    ),
    FuncRule("names", "what a block sees has one name each, within its kind", _names),
    FuncRule("scope", "scalars and buffers are used below their definition, in its block", _scope),
    FuncRule("scalars", "a scalar is one elementwise op of the table, of the right type", _scalars),
    FuncRule(
        "accesses", "an access has its buffer's dtype, and none writes an in buffer", _access_types
    ),
    FuncRule(
        "indices", "an index uses the loops round it and integers among its operands", _indices
    ),
    FuncRule("loops", "loops may end early, after one iteration; threads are in a block", _loops),
    FuncRule("ranges", "where its mask holds, an access lies inside the buffer", _ranges),
    FuncRule("registers", "registers have constant indices once loops are unrolled", _registers),
    FuncRule(
        "fragments",
        "all accesses of a fragment say the same thread for each of its elements, and a register",
        disagreements,
    ),
    FuncRule(
        "later",
        "what is stored later is loaded from global memory for that, and goes to shared memory; or "
        "an instruction adds products of shared memory to a fragment",
        _later,
    ),
    FuncRule("outputs", "every element of an out buffer is written", _outputs),
    FuncRule(
        "races",
        "what an iteration writes, none beside it uses, but for threads behind a barrier",
        races,
    ),
    FuncRule(
        "barriers",
        "all threads of a block come to a barrier, a commit and a wait, all of a loop to a shuffle",
        _barriers,
    ),
)

__all__ = ["FUNC_RULES", "FuncRule", "verify_func"]
