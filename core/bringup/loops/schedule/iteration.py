"""Primitives that change the iterations of one loop: split, peel, fuse, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal as OneOf
from typing import TypeGuard, get_args

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Bound, Div, Expr, Mask, Mod
from bringup.integers import ceil_div
from bringup.kernel.ranges import span
from bringup.loops.contents import contents_in, contents_of
from bringup.loops.form import (
    CONCURRENT,
    NESTING,
    Alloc,
    Body,
    For,
    Func,
    If,
    LoopKind,
    Stmt,
    named_axis,
    statements,
)
from bringup.loops.schedule.dependences import (
    Access,
    conflicts,
    meets_only_within,
    outliving,
)
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_loops,
    check_new_names,
    check_word,
    checked,
    decided,
    exprs_of,
    guarded,
    loop_until,
    loops_of,
    rebuilt,
    rewrite_block,
    rewrite_loops,
    with_body,
    with_fragments,
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
    check_word("there is no tail", tail, *get_args(Tail))
    names = Names(func)

    def change(old: For, facts: Mask) -> Body:
        return _Split(old, facts, outer, inner, size).with_tail(tail, names)

    return rewrite_loops(func, (loop,), change)


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
        if contents_of(self.old).has_barrier:
            raise ScheduleError(
                f"threads meet inside loop {self.old.name}, whose last block is apart",
                fix=f"choose a size that divides {self.old.axis.size}",
            )
        whole = self.old.axis.size // self.size
        if tail == "branch":
            return self.branches(whole, names)
        blocks = self.blocks(whole) if whole else ()
        if tail == "peel":
            return blocks + self.copy(f"{self.old.name}.t", self.last_block, names)
        if not whole:
            raise ScheduleError(
                f"loop {self.old.name} has {self.old.axis.size} iterations, less than one block of "
                f"{self.size}",
                fix="split with tail=guard or tail=peel",
            )
        _check_repeatable(self.old)
        return blocks + self.copy(self.inner, self.size, names)

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
        if contents_of(old).has_barrier and is_short:
            raise ScheduleError(
                f"threads meet inside loop {old.name}, whose last block is shorter",
                fix=f"choose a size that divides {total}",
            )
        at = start + Expr.of(inner)
        body = guarded(limit, Substitution({old.axis: at}, facts)(old.body))
        inner_loop = loop_until(inner, body, old.kind, end, outer_facts)
        return loop_until(outer, inner_loop, old.kind, outer_end, self.facts)

    def branches(self, whole: int, names: Names) -> Body:
        """The blocks, of which the last one holds a loop of its own."""
        old, outer = self.old, named_axis(self.outer, whole + 1)
        rest = self.copy(f"{old.name}.t", self.last_block, names)
        if not whole:
            return (For(outer, rest, old.kind),)
        inner, is_whole = named_axis(self.inner, self.size), (Bound(Expr.of(outer), 0, whole),)
        table = {old.axis: Expr.of(outer) * self.size + Expr.of(inner)}
        body = Substitution(table, self.facts + is_whole)(old.body)
        is_last = (Bound(Expr.of(outer), whole, whole + 1),)
        parts = (If(is_whole, (For(inner, body, old.kind),)), If(is_last, rest))
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
        result: Body = ()
        if some is not None:
            facts = self.facts + some
            bounds = For(outer, (), old.kind, blocks).bounds
            block = _part(old, inner, at, None, facts + bounds)
            result += guarded(some, loop_until(outer, block, old.kind, blocks, facts))
        early = decided((Bound(end, 1, old.axis.size), Bound(left, 1, size)), self.facts)
        if left.last and early is not None:
            rest = named_axis(f"{old.name}.t", left.last)
            at = Expr.of(rest) + end + left * -1
            result += guarded(early, _part(old, rest, at, left, self.facts + early, names))
        return result

    def copy(self, name: str, count: int, names: Names) -> Body:
        """The last iterations again, as a loop of their own."""
        axis = named_axis(name, count)
        at = Expr.of(axis) + (self.old.axis.size - count)
        return _part(self.old, axis, at, None, self.facts, names)


def _part(
    old: For, axis: Axis, at: Expr, end: Expr | None, facts: Mask, names: Names | None = None
) -> Body:
    """Some iterations of a loop, as a loop over another axis.

    at: which iteration each is.  names: makes it a copy beside another part.
    """
    bounds = For(axis, (), old.kind, end).bounds
    body = Substitution({old.axis: at}, facts + bounds, names)(old.body)
    return loop_until(axis, body, old.kind, end, facts)


def _check_repeatable(loop: For) -> None:
    """Raise ScheduleError unless an iteration may run twice: it reads nothing that it writes."""
    found = outliving(loop.body)
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
        result: Body = ()
        parts = ((f"{loop}.first", 0, first), (loop, first, middle))
        for name, start, count in (*parts, (f"{loop}.last", first + middle, last)):
            axis = named_axis(name, count)
            end = None if old.end is None else old.end + -start
            copy = None if name == loop else names
            if count:
                result += _part(old, axis, Expr.of(axis) + start, end, facts, copy)
        return result

    return rewrite_loops(func, (loop,), change)


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
        size, within = outer.axis.size, contents_of(outer).loops
        if not 0 < count < size:
            raise ScheduleError(
                f"loop {loop} has {size} iterations, of which the first {count} are not a part",
                fix="give a number between them",
            )
        if at not in within:
            raise ScheduleError(
                f"there is no loop {at} within loop {loop}", fix="name a loop within it, or itself"
            )
        known = facts + outer.bounds

        def twice(old: For, inner: Mask) -> Body:
            return _twice(old, outer.axis, count, known + inner + old.bounds, names)

        return rewrite_block((outer,), frozenset((at,)), twice)

    return rewrite_loops(func, (loop,), change)


def _twice(old: For, axis: Axis, count: int, facts: Mask, names: Names) -> Body:
    """A loop whose body stands there for the first iterations of another loop, and for the rest."""
    if contents_of(old).has_barrier:
        raise ScheduleError(
            f"threads meet inside loop {old.name}", fix="specialize before barriers are placed"
        )
    at = Expr.of(axis)
    first, rest = Bound(at, 0, count), Bound(at, count, axis.size)
    last = {axis: Expr(count)} if axis.size - count == 1 else {}
    whole = Substitution({}, (*facts, first))(old.body)
    other = Substitution(last, (*facts, rest), names)(old.body)
    return (with_body(old, (If((first,), whole), If((rest,), other))),)


def _middle(old: For, first: int, last: int) -> int:
    """How many iterations are left between the first and the last ones."""
    if old.kind == "thread" and contents_of(old).has_barrier:
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

    Loops ``outer`` that hold no loop ``inner`` stay as they are.
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
    check_loops(func, (inner,))

    def change(old: For, facts: Mask) -> Body:
        if inner not in contents_in(old.body).loops:
            return (old,)
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

    return rewrite_loops(func, (outer,), change)


def segment(func: Func, loop: str, outer: str, around: str = "") -> Func:
    """``loop`` in segments along which the quotients in its indices do not change.

    A loop that was fused and split runs across the ends of rows: its indices have quotients and
    remainders.  ``outer`` counts the rows that it reaches; an iteration belongs to one of them, and
    goes on from the start of that row.  Loops without such indices stay as they are, and those with
    rows of several lengths that are no multiples of one another.
    around: a loop round ``loop`` that ``outer`` stands round, by default ``loop`` itself.
    Raises ScheduleError for an unknown loop, and where iterations of ``loop`` need one another's
    results, so that they must stay in order.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[20], y: out f32[12]) {
    ...   for i.o in 3 {
    ...     for i.i in 4 {
    ...       %0: f32 = x[10*(4*i.o + i.i)//6 + (4*i.o + i.i)%6]
    ...       y[4*i.o + i.i] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(segment(func, "i.i", "i.s"))
    func f(x: in f32[20], y: out f32[12]) {
      for i.o in 3 {
        for i.s in 2 until ((2*i.o)%3 + 1)//3 + 1 {
          for i.i in 4 {
            if 0 <= i.i + -6*i.s + 2*(2*i.o)%3 < 6 {
              %0: f32 = x[i.i + 4*i.s + 10*(2*i.o)//3 + 2*(2*i.o)%3]
              y[i.i + 4*i.o] = %0
            }
          }
        }
      }
    }
    """
    check_new_names(func, outer)

    def change(old: For, facts: Mask) -> Body:
        found = [within for within in loops_of((old,)) if within.name == loop]
        return _segments(old, found[0], outer, facts) if len(found) == 1 else (old,)

    return rewrite_loops(func, (around or loop,), change)


def _segments(whole: For, loop: For, outer: str, facts: Mask) -> Body:
    """A loop that holds another, in segments of that; itself if no quotient changes along it."""
    axis = Expr.of(loop.axis)
    divided = {
        atom
        for stmt in statements(loop.body)
        for expr in exprs_of(stmt)
        for atom in expr.atoms()
        if isinstance(atom, (Div, Mod)) and (loop.axis, 1) in atom.of.terms
    }
    by = min((atom.by for atom in divided), default=0)
    rows = [atom.of + axis * -1 for atom in divided if atom.by == by]
    inner = frozenset(within.axis for within in loops_of((whole,)))
    if not divided or not all(inner.isdisjoint(row.axes()) for row in rows):
        return (whole,)
    if whole is not loop:
        for one, other in conflicts(outliving((whole,), facts)):
            if not meets_only_within(one, other, loop.axis, inner):
                raise ScheduleError(
                    f"iterations of loop {loop.name} meet at elements of {one.buffer.name}",
                    fix="let the segments stand round that loop alone",
                )
    start = rows[0]
    for atom in divided:
        apart = atom.of + axis * -1 + start * -1
        if atom.by % by or any(n % by for n in (apart.const, *(c for _, c in apart.terms))):
            return (whole,)
    before = start % by
    number = named_axis(outer, (span(before, facts)[1] + loop.axis.size - 1) // by + 1)
    place = before + axis + Expr.of(number) * -by

    def moved(atom: Div | Mod) -> Expr | None:
        if atom not in divided:
            return None
        row = (atom.of + axis * -1) // by + Expr.of(number)
        if isinstance(atom, Div):
            return row // (atom.by // by)
        return (row % (atom.by // by)) * by + place

    body = Substitution({}, facts + loop.bounds, quotients=moved)(loop.body)
    bounds = decided((Bound(place, 0, by),), facts + loop.bounds)
    within = with_body(loop, guarded(bounds or (), body))
    end = (before + (loop.axis.size - 1)) // by + 1
    return loop_until(number, (_replaced(whole, loop, within),), "serial", end, facts)


def _replaced(stmt: Stmt, old: For, new: For) -> Stmt:
    """A statement with another loop in place of one within it."""
    if stmt is old:
        return new
    if not isinstance(stmt, NESTING):
        return stmt
    return rebuilt(stmt, tuple(_replaced(inner, old, new) for inner in stmt.body))


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


def with_independent_kind(
    func: Func, loops: Iterable[str], kind: LoopKind, check: Callable[[Func], Func] = checked
) -> Func:
    """The loops run in another way, whose iterations must not need one another's results."""
    loops = tuple(loops)

    def change(old: For, facts: Mask) -> Body:
        if old.kind == "thread" and kind != "thread" and contents_of(old).has_barrier:
            raise ScheduleError(
                f"the threads of loop {old.name} wait for one another or exchange values",
                fix="let it be a loop of threads",
            )
        if kind == "thread" != old.kind and "shared" in contents_of(old).spaces:
            common = next(s.buffer for s in statements(old.body) if _is_common(s))
            raise ScheduleError(
                f"iterations of loop {old.name} would share one {common.name}",
                fix="bind the loop before its buffers are shared",
            )
        if kind == "unroll":
            return (with_kind(old, kind),)
        found = outliving(old.body, facts + old.bounds, (old,))
        if old.kind not in (kind, *CONCURRENT) and kind != "serial":
            _check_independent(old, kind, found)
        for access in found if kind != "vector" else ():
            if access.buffer.space == "register" and old.axis in access.index.axes():
                raise ScheduleError(
                    f"loop {old.name} counts registers of {access.buffer.name}, so it is written "
                    "out",
                    fix="unroll or vectorize it, or choose another loop",
                )
        if kind == "vector" and "vector" in contents_in(old.body).kinds:
            raise ScheduleError(
                f"loop {old.name} holds a vector loop", fix="vectorize one loop of a nest"
            )
        return (with_kind(old, kind),)

    before = {loop.kind for loop in loops_of(func.body) if loop.name in loops}
    if kind in (*ORDERED, "vector") and before.isdisjoint(("block", "thread")):
        # In which order one thread goes on is no matter between threads.
        return rewrite_loops(func, loops, change, with_fragments)
    return rewrite_loops(func, loops, change, check)


def _is_common(stmt: Stmt) -> TypeGuard[Alloc]:
    """Whether a statement makes memory of a block."""
    return isinstance(stmt, Alloc) and stmt.buffer.space == "shared"


def _check_independent(loop: For, kind: LoopKind, found: Sequence[Access]) -> None:
    """Raise ScheduleError if the order of the iterations of a loop matters.

    Folds of vector loops may meet, since lanes can be folded together; those of parallel ones not.
    """
    inner = frozenset((loop.axis, *(inside.axis for inside in loops_of(loop.body))))
    pairs = list(conflicts(found))
    if kind != "vector":
        folds = [a for a in found if a.kind not in ("load", "store")]
        pairs += [
            (a, b)
            for n, a in enumerate(folds)
            for b in folds[n:]
            if a.buffer == b.buffer and not (a.is_atomic and b.is_atomic)
        ]
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
    "fuse",
    "parallelize",
    "peel",
    "segment",
    "serialize",
    "specialize",
    "split",
    "unroll",
    "vectorize",
    "with_independent_kind",
]
