"""Primitives that change the iterations of one loop: split, peel, fuse, pad, and how it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal as OneOf
from typing import get_args

from bringup.errors import ScheduleError
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div
from bringup.kernel.ranges import span
from bringup.loops.form import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Load,
    LoopKind,
    Stmt,
    Store,
    named_axis,
    statements,
)
from bringup.loops.schedule.barriers import check_threads
from bringup.loops.schedule.dependences import (
    Access,
    accesses,
    conflicts,
    has_barrier,
    meets_only_within,
    private_accesses,
)
from bringup.loops.schedule.rewrite import (
    Body,
    Mask,
    Names,
    Substitution,
    check_new_names,
    decided,
    guarded,
    has_shared,
    has_threads,
    loop_until,
    loops_of,
    rebuilt,
    rewrite_loops,
    with_body,
    with_kind,
)

Tail = OneOf["guard", "peel", "overlap", "branch"]


def split(func: Func, loop: str, outer: str, inner: str, size: int, tail: Tail = "guard") -> Func:
    """``loop`` as ``outer`` blocks of ``size`` iterations of ``inner`` each.

    tail: what happens to the iterations after the last whole block.  ``guard``: the inner loop ends
    early in the last block.  ``peel``: they become a loop ``loop.t``, in a condition if the loop
    ends early, and ``size`` must then divide its length.  ``overlap``: they become a block that
    ends where the loop ends and repeats iterations of the block before.  ``branch``: the last block
    holds a loop ``loop.t`` in place of ``inner``, so that each block is whole, or else the last.
    Raises ScheduleError for an unknown loop, a name that exists, a size below 1, and for a tail
    that could change values.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[10]) {
    ...   for i in 10 {
    ...     %0: f32 = 2.0
    ...     y[i] = %0
    ...   }
    ... }''')
    >>> print(split(func, "i", "i.o", "i.i", 4))
    func f(y: out f32[10]) {
      for i.o in 3 {
        for i.i in 4 until -4*i.o + 10 {
          %0: f32 = 2.0
          y[i.i + 4*i.o] = %0
        }
      }
    }
    """
    apart = [f"{loop}.t"] if tail in ("peel", "branch") else []
    check_new_names(func, outer, inner, *apart, but=(loop,))
    if size < 1:
        raise ScheduleError(f"blocks of {size} iterations", fix="give a size of at least 1")
    if tail not in get_args(Tail):
        raise ScheduleError(f"there is no tail {tail!r}", fix="use guard, peel, overlap or branch")
    names = Names(func)

    def change(old: For, facts: Mask) -> Body:
        return _Split(old, facts, outer, inner, size).with_tail(tail, names)

    result = rewrite_loops(func, (loop,), change)
    check_threads(result)
    return result


class _Split:
    """One loop that is split."""

    def __init__(self, old: For, facts: Mask, outer: str, inner: str, size: int) -> None:
        self.old, self.facts, self.size = old, facts, size
        self.outer, self.inner = outer, inner
        self.last_block = old.axis.size % size

    def with_tail(self, tail: Tail, names: Names) -> Body:
        if self.old.end is not None and tail == "peel" and not self.last_block:
            return self.blocks_and_rest(names)
        if not self.last_block or tail == "guard":
            return self.blocks(ceil_div(self.old.axis.size, self.size))
        if self.old.end is not None:
            raise ScheduleError(
                f"loop {self.old.name} ends early, so it has no last block to {tail}",
                fix="split with tail=guard",
            )
        if has_barrier(self.old.body):
            raise ScheduleError(
                f"threads meet inside loop {self.old.name}, whose last block is apart",
                fix=f"choose a size that divides {self.old.axis.size}",
            )
        whole = self.old.axis.size // self.size
        if tail == "branch":
            return self.branches(whole, names)
        blocks = self.blocks(whole) if whole else ()
        if tail == "peel":
            return (*blocks, self.copy(f"{self.old.name}.t", self.last_block, names))
        if not whole:
            raise ScheduleError(
                f"loop {self.old.name} has {self.old.axis.size} iterations, less than one block of "
                f"{self.size}",
                fix="split with tail=guard or tail=peel",
            )
        _check_repeatable(self.old)
        return (*blocks, self.copy(self.inner, self.size, names))

    def blocks(self, count: int) -> Body:
        """The blocks from the first on; the last may be shorter."""
        old, size = self.old, self.size
        outer, inner = named_axis(self.outer, count), named_axis(self.inner, size)
        start = Expr.of(outer) * size
        end: Expr | None = None
        outer_end: Expr | None = None
        limit: Mask = ()
        total = old.axis.size
        if old.end is not None:
            # Two ends cannot both be that of the inner loop; the other becomes a condition.
            end, outer_end = old.end + start * -1, (old.end + (size - 1)) // size
            if count * size > total and old.end.last > total:
                limit = (Bound(start + Expr.of(inner), 0, total),)
        elif count * size > total:
            end = start * -1 + total
        outer_facts = self.facts + For(outer, (), old.kind, outer_end).bounds
        facts = outer_facts + For(inner, (), old.kind, end).bounds + limit
        is_short = (end is not None and span(end, outer_facts)[0] < size) or limit
        if has_barrier(old.body) and is_short:
            raise ScheduleError(
                f"threads meet inside loop {old.name}, whose last block is shorter",
                fix=f"choose a size that divides {total}",
            )
        body = Substitution({old.axis: start + Expr.of(inner)}, facts)(old.body)
        body = guarded(limit, body)
        inner_loop = loop_until(inner, body, old.kind, end, outer_facts)
        return loop_until(outer, inner_loop, old.kind, outer_end, self.facts)

    def branches(self, whole: int, names: Names) -> Body:
        """The blocks, of which the last one holds a loop of its own."""
        old, outer = self.old, named_axis(self.outer, whole + 1)
        rest = self.copy(f"{old.name}.t", self.last_block, names)
        if not whole:
            return (For(outer, (rest,), old.kind),)
        inner, is_whole = named_axis(self.inner, self.size), (Bound(Expr.of(outer), 0, whole),)
        table = {old.axis: Expr.of(outer) * self.size + Expr.of(inner)}
        body = Substitution(table, self.facts + is_whole)(old.body)
        is_last = (Bound(Expr.of(outer), whole, whole + 1),)
        parts = (If(is_whole, (For(inner, body, old.kind),)), If(is_last, (rest,)))
        return (For(outer, parts, old.kind),)

    def blocks_and_rest(self, names: Names) -> Body:
        """The whole blocks of a loop that may end early, and what is left where it does.

        Conditions stand round the loops that may have no iteration, so that none is in them.
        """
        old, size, end = self.old, self.size, self.old.end
        assert end is not None
        blocks, left = end // size, end % size
        outer, inner = named_axis(self.outer, old.axis.size // size), named_axis(self.inner, size)
        at = Expr.of(outer) * size + Expr.of(inner)
        some = decided((Bound(blocks, 1, blocks.last + 1),), self.facts)
        result: list[Stmt] = []
        if some is not None:
            loop = For(outer, (), old.kind, blocks)
            body = Substitution({old.axis: at}, self.facts + some + loop.bounds)(old.body)
            body = (For(inner, body, old.kind),)
            body = loop_until(outer, body, old.kind, blocks, self.facts + some)
            result += (If(some, body),) if some else body
        early = decided((Bound(end, 1, old.axis.size), Bound(left, 1, size)), self.facts)
        if left.last and early is not None:
            rest = For(named_axis(f"{old.name}.t", left.last), (), old.kind, left)
            table = {old.axis: Expr.of(rest.axis) + end + left * -1}
            body = Substitution(table, self.facts + early + rest.bounds, names)(old.body)
            body = (For(rest.axis, body, old.kind, None if left.is_const else left),)
            result += (If(early, body),) if early else body
        return tuple(result)

    def copy(self, name: str, count: int, names: Names) -> For:
        """The last iterations again, as a loop of their own."""
        old, axis = self.old, named_axis(name, count)
        at = Expr.of(axis) + (old.axis.size - count)
        return For(axis, Substitution({old.axis: at}, self.facts, names)(old.body), old.kind)


def _check_repeatable(loop: For) -> None:
    """Raise ScheduleError unless an iteration may run twice: it reads nothing that it writes."""
    found = accesses(loop.body)
    for access in found:
        if access.kind not in ("load", "store"):
            raise ScheduleError(
                f"loop {loop.name} folds into {access.buffer.name}, so no iteration may run twice",
                fix="split with tail=guard or tail=peel",
            )
    for one, other in conflicts(found):
        if one.kind != other.kind:
            raise ScheduleError(
                f"loop {loop.name} reads {one.buffer.name} and writes {other.buffer.name}, which "
                "may be the same memory, so no iteration may run twice",
                fix="split with tail=guard or tail=peel",
            )


def peel(func: Func, loop: str, first: int, last: int) -> Func:
    """The ``first`` and ``last`` iterations as loops ``loop.first`` and ``loop.last``.

    Between the seams of rolls and pads masks hold everywhere, so loads become plain there.
    Raises ScheduleError for an unknown loop, for more iterations than it has, and for the last ones
    of a loop that ends early.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[9], y: out f32[10]) {
    ...   for i in 10 {
    ...     %0: f32 = x[i + -1] if 1 <= i < 10
    ...     y[i] = %0
    ...   }
    ... }''')
    >>> print(peel(func, "i", 1, 0))
    func f(x: in f32[9], y: out f32[10]) {
      for i.first in 1 {
        %0_1: f32 = 0.0
        y[0] = %0_1
      }
      for i in 9 {
        %0: f32 = x[i]
        y[i + 1] = %0
      }
    }
    """
    check_new_names(func, f"{loop}.first", f"{loop}.last")
    if first < 0 or last < 0:
        raise ScheduleError("a negative number of iterations", fix="give 0 or more")
    names = Names(func)

    def change(old: For, facts: Mask) -> Body:
        middle = _middle(old, first, last)
        result: list[Stmt] = []
        parts = ((f"{loop}.first", 0, first), (loop, first, middle))
        for name, start, count in (*parts, (f"{loop}.last", first + middle, last)):
            axis = named_axis(name, count)
            end = None if old.end is None else old.end + -start
            bounds = For(axis, (), old.kind, end).bounds
            copy = None if name == loop else names
            place = Substitution({old.axis: Expr.of(axis) + start}, facts + bounds, copy)
            if count:
                result += loop_until(axis, place(old.body), old.kind, end, facts)
        return tuple(result)

    result = rewrite_loops(func, (loop,), change)
    check_threads(result)
    return result


def specialize(func: Func, loop: str, count: int, at: str) -> Func:
    """The body of loop ``at`` twice: for the first ``count`` iterations of ``loop``, and the rest.

    Each stands under its condition, which decides ends and masks in it; ``loop`` is ``at`` or round
    it.  So a register tile has a whole body and one for the last tile, which is smaller.
    Raises ScheduleError for an unknown loop, one that is not round ``at``, and for a count that
    leaves nothing to one of the two.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[10]) {
    ...   for o in 3 parallel {
    ...     for i in 4 until -4*o + 10 {
    ...       %0: f32 = 2.0
    ...       y[4*o + i] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(specialize(func, "o", 2, "o"))
    func f(y: out f32[10]) {
      for o in 3 parallel {
        if 0 <= o < 2 {
          for i in 4 {
            %0: f32 = 2.0
            y[4*o + i] = %0
          }
        }
        if 2 <= o < 3 {
          for i in 4 until 2 {
            %0_1: f32 = 2.0
            y[i + 8] = %0_1
          }
        }
      }
    }
    """
    names = Names(func)

    def change(outer: For, facts: Mask) -> Body:
        axis, size = outer.axis, outer.axis.size
        if not 0 < count < size:
            raise ScheduleError(
                f"loop {loop} has {size} iterations, of which the first {count} are not a part",
                fix="give a number between them",
            )
        first, rest = (Bound(Expr.of(axis), *ends) for ends in ((0, count), (count, size)))
        last = {axis: Expr(count)} if size - count == 1 else {}

        def twice(old: For, inner: Mask) -> Body:
            if has_barrier(old.body):
                raise ScheduleError(
                    f"threads meet inside loop {at}", fix="specialize before barriers are placed"
                )
            known = facts + outer.bounds + inner + old.bounds
            whole = Substitution({}, (*known, first))(old.body)
            other = Substitution(last, (*known, rest), names)(old.body)
            return (with_body(old, (If((first,), whole), If((rest,), other))),)

        return rewrite_loops(Func(func.name, func.params, (outer,)), (at,), twice).body

    return rewrite_loops(func, (loop,), change)


def _middle(old: For, first: int, last: int) -> int:
    """How many iterations are left between the first and the last ones."""
    if old.kind == "thread" and has_barrier(old.body):
        raise ScheduleError(
            f"threads meet inside loop {old.name}, so none of them can be apart",
            fix="peel before loops are bound",
        )
    middle = old.axis.size - first - last
    if middle < 1:
        raise ScheduleError(
            f"loop {old.name} has {old.axis.size} iterations, of which {first} + {last} leave none",
            fix="peel fewer",
        )
    if last and old.end is not None:
        raise ScheduleError(
            f"loop {old.name} ends early, so its last iterations are not known",
            fix="peel first ones alone, or give the loop its whole length with pad",
        )
    return middle


def fuse(func: Func, outer: str, inner: str, name: str) -> Func:
    """Two loops, of which one is all that the other holds, as one loop over all their iterations.

    Raises ScheduleError for an unknown loop, loops that are no perfect nest or run in different
    ways, and a name that exists.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[12]) {
    ...   for i in 3 {
    ...     for j in 4 {
    ...       %0: f32 = 2.0
    ...       y[4*i + j] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(fuse(func, "i", "j", "ij"))
    func f(y: out f32[12]) {
      for ij in 12 {
        %0: f32 = 2.0
        y[ij] = %0
      }
    }
    """
    check_new_names(func, name, but=(outer, inner))

    def change(old: For, facts: Mask) -> Body:
        within = old.body[0] if len(old.body) == 1 else None
        if not isinstance(within, For) or within.name != inner:
            raise ScheduleError(
                f"loop {outer} does not hold loop {inner} alone",
                fix="distribute or reorder the loops first",
            )
        if old.kind != within.kind:
            raise ScheduleError(
                f"loop {outer} is {old.kind} and loop {inner} {within.kind}",
                fix="fuse loops that run in the same way",
            )
        count = within.axis.size
        axis = named_axis(name, old.axis.size * count)
        index = Expr.of(axis)
        by = max(count, 1)
        table = {old.axis: index // by, within.axis: index % by}
        place = Substitution(table, facts)
        loop = For(axis, (), old.kind, None if old.end is None else place.expr(old.end) * count)
        mask = decided(place.bounds(within.bounds), facts + loop.bounds)
        if mask is None:
            return ()
        body = Substitution(table, facts + loop.bounds + mask)(within.body)
        return loop_until(axis, guarded(mask, body), old.kind, loop.end, facts)

    result = rewrite_loops(func, (outer,), change)
    check_threads(result)
    return result


def pad(func: Func, *loops: str) -> Func:
    """The loops run to their whole length where that changes nothing but private memory.

    A loop whose early end keeps loads inside their buffers gets masks on these loads in its place,
    and iterations that did not exist compute with zeros.  Loops that write memory of the caller
    keep their end, so a register tile is computed whole and stored in part.
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
    padded: set[str] = set()
    short: set[str] = set()

    def change(old: For, facts: Mask) -> Body:
        if old.end is None:
            return (old,)
        short.add(old.name)
        if not _may_pad(old, facts, private):
            return (old,)
        padded.add(old.name)
        return (For(old.axis, _masked(old.body, old, facts), old.kind),)

    result = rewrite_loops(func, loops, change)
    for name in loops:
        if name in short - padded:
            raise ScheduleError(
                f"no loop {name} that ends early writes private memory alone, one element for each "
                "iteration",
                fix="distribute the loop, so that a part of it does",
            )
    return result


def _may_pad(loop: For, facts: Mask, private: Mapping[Buffer, Sequence[Access]]) -> bool:
    """Whether iterations past the end write only elements that no other iteration writes."""
    for access in accesses(loop.body, facts):
        if access.stmt.operands:
            return False  # A loaded index of such an iteration could lie anywhere.
        if access.kind == "load":
            continue
        others = private.get(access.buffer)
        low, high = span(access.index, access.facts)
        if others is None or low < 0 or high >= access.buffer.size:
            return False
        inner = frozenset(axis for other in others for axis in other.axes)
        writes = [other for other in others if other.kind != "load"]
        if not all(meets_only_within(access, other, loop.axis, inner) for other in writes):
            return False
    return True


def _masked(body: Body, loop: For, facts: Mask) -> Body:
    """The block of a padded loop: loads past its end give 0."""
    result: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Load():
                low, high = span(stmt.index, facts + stmt.mask)
                leaves = low < 0 or high >= stmt.buffer.size
                if leaves or (stmt.buffer.space == "global" and loop.axis in stmt.index.axes()):
                    mask = stmt.mask + tuple(b for b in loop.bounds if b not in stmt.mask)
                    result.append(Load(stmt.result, stmt.buffer, stmt.index, mask, stmt.operands))
                else:
                    result.append(stmt)
            case For() | If():
                more = stmt.bounds if isinstance(stmt, For) else stmt.mask
                result.append(rebuilt(stmt, _masked(stmt.body, loop, facts + more)))
            case _:
                result.append(stmt)
    return tuple(result)


#: Kinds of loops whose iterations stay in order.
ORDERED = ("serial", "unroll")


def unroll(func: Func, *loops: str) -> Func:
    """The renderer writes the loops out, one copy of the body for each iteration."""
    return with_independent_kind(func, loops, "unroll")


def serialize(func: Func, *loops: str) -> Func:
    """The iterations of the loops run one after the other, in order, by one thread."""
    return with_independent_kind(func, loops, "serial")


def vectorize(func: Func, *loops: str) -> Func:
    """The iterations of the loops are lanes of one vector.

    Raises ScheduleError if an iteration needs what an earlier one wrote.
    """
    return with_independent_kind(func, loops, "vector")


def parallelize(func: Func, *loops: str) -> Func:
    """The iterations of the loops run in any order and at the same time.

    Raises ScheduleError if two of them touch one element, or fold into it.
    """
    return with_independent_kind(func, loops, "parallel")


def with_independent_kind(func: Func, loops: Iterable[str], kind: LoopKind) -> Func:
    """The loops run in another way, whose iterations must not need one another's results."""

    def change(old: For, facts: Mask) -> Body:
        if old.kind not in (kind, "parallel", "block", "thread") and kind not in ORDERED:
            _check_independent(old, kind, facts)
        register = None if kind in ("unroll", "vector") else _counted_register(old)
        if register is not None:
            raise ScheduleError(
                f"loop {old.name} counts registers of {register.name}, so it is written out",
                fix="unroll or vectorize it, or choose another loop",
            )
        if kind == "vector" and any(loop.kind == "vector" for loop in loops_of(old.body)):
            raise ScheduleError(
                f"loop {old.name} holds a vector loop", fix="vectorize one loop of a nest"
            )
        return (with_kind(old, kind),)

    result = rewrite_loops(func, tuple(loops), change)
    check_nesting(result)
    return result


def _counted_register(loop: For) -> Buffer | None:
    """A register buffer of which the loop chooses an element."""
    for stmt in statements(loop.body):
        if not isinstance(stmt, Load | Store) or stmt.buffer.space != "register":
            continue
        if loop.axis in stmt.index.axes():
            return stmt.buffer
    return None


def check_nesting(func: Func) -> None:
    """Raise ScheduleError for threads and shared memory in no block, and for blocks in threads."""

    def walk(body: Body, outer: tuple[LoopKind, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, Alloc) and stmt.buffer.space == "shared" and "block" not in outer:
                raise ScheduleError(
                    f"{stmt.buffer.name} is in no block, so no threads share it",
                    fix="bind a loop round it to block",
                )
            if not isinstance(stmt, For | If):
                continue
            kinds = outer
            if isinstance(stmt, For):
                if stmt.kind == "thread" and "block" not in outer:
                    raise ScheduleError(
                        f"thread loop {stmt.name} is in no block loop",
                        fix="bind a loop round it to block first",
                    )
                if stmt.kind in ("parallel", "block") and "thread" in outer:
                    raise ScheduleError(
                        f"{stmt.kind} loop {stmt.name} is in a thread loop",
                        fix="let it be serial there",
                    )
                kinds = (*outer, stmt.kind)
            walk(stmt.body, kinds)

    if has_threads(func) or has_shared(func):
        walk(func.body, ())


def _check_independent(loop: For, kind: LoopKind, facts: Mask) -> None:
    """Raise ScheduleError if the order of the iterations of a loop matters.

    Folds of vector loops may meet, since lanes can be folded together; those of parallel ones not.
    """
    inner = frozenset((loop.axis, *(inside.axis for inside in loops_of(loop.body))))
    found = accesses(loop.body, facts + loop.bounds, (loop.axis,))
    pairs = list(conflicts(found))
    if kind != "vector":
        folds = [a for a in found if a.kind not in ("load", "store")]
        pairs += [(a, b) for n, a in enumerate(folds) for b in folds[n:] if a.buffer == b.buffer]
    for one, other in pairs:
        if not meets_only_within(one, other, loop.axis, inner):
            raise ScheduleError(
                f"iterations of loop {loop.name} touch the same elements of {one.buffer.name}",
                fix=_independence_fix(one.kind, other.kind),
            )


def _independence_fix(one: str, other: str) -> str:
    if {one, other}.isdisjoint(("load", "store")):
        return "give each iteration a register of its own with rfactor"
    return "choose a loop whose iterations are independent"


__all__ = [
    "check_nesting",
    "fuse",
    "pad",
    "parallelize",
    "peel",
    "serialize",
    "specialize",
    "split",
    "unroll",
    "vectorize",
    "with_independent_kind",
]
