"""Primitives that change the order of statements: reorder, distribute and hoist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import Literal as OneOf

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Bound, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.contents import contents_in, contents_of
from bringup.loops.form import (
    ACCESSES,
    CONCURRENT,
    DEFINING,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Scalar,
    Shuffle,
    Space,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import (
    conflicts,
    may_share,
    meets_only_within,
    outliving,
)
from bringup.loops.schedule.iteration import ORDERED
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_loops,
    check_word,
    decided,
    exprs_of,
    guarded,
    loops_of,
    map_statements,
    nested,
    points_of,
    rebuilt,
    rewrite_loops,
    used_scalars,
    with_body,
    with_kind,
    with_place,
    without_dead,
)
from bringup.records import record

Depth = OneOf["parts", "innermost"]
Sharing = OneOf["keep", "repeat"]

# ---- reorder ---------------------------------------------------------------------------------


def reorder(func: Func, *loops: str) -> Func:
    """The loops of a nest in this order, from the outermost to the innermost.

    The loops hold one another with nothing beside them but scalars and conditions, which go
    innermost (`hoist` brings them out again), and buffers of one iteration, which become buffers
    with a part for each before it.  Nests without some of the loops stay as they are.  An early end
    that names a loop which goes inside becomes the end of that loop.
    Raises ScheduleError where no nest has all loops, and for an order that could change a value.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[12], y: out f32[4]) {
    ...   for i in 4 {
    ...     for j in 3 {
    ...       %0: f32 = x[3*i + j]
    ...       y[i] add= %0
    ...     }
    ...   }
    ... }''')
    >>> print(reorder(func, "j", "i"))
    func f(x: in f32[12], y: out f32[4]) {
      for j in 3 {
        for i in 4 {
          %0: f32 = x[3*i + j]
          y[i] add= %0
        }
      }
    }
    """
    names = frozenset(loops)
    if len(names) < len(loops):
        raise ScheduleError(f"{' '.join(loops)} names a loop twice", fix="name each loop once")
    found = False

    def change(old: For, facts: Mask) -> Body:
        nonlocal found
        if not names <= contents_of(old).loops.keys():
            return (old,)
        found = True
        return _reordered(old, loops, facts, Names(func))

    result = rewrite_loops(func, loops, change)
    if not found:
        raise _no_nest(loops)
    return result


def _no_nest(loops: Sequence[str]) -> ScheduleError:
    return ScheduleError(
        f"no nest has all of the loops {', '.join(loops)}", fix="name loops that hold one another"
    )


def _reordered(outermost: For, order: Sequence[str], facts: Mask, names: Names) -> Body:
    """One nest in another order, with the buffers that were inside it before it."""
    nest: dict[str, For] = {}
    sunk: list[Stmt] = []
    conditions: list[If] = []
    spread: dict[Buffer, tuple[Buffer, Expr]] = {}
    body: Body = (outermost,)
    missing = set(order)
    while missing:
        *scalars, last = body
        if not isinstance(last, NESTING) or not all(
            isinstance(s, (Let, Load, Alloc)) for s in scalars
        ):
            raise _not_perfect(nest, missing)
        outer = list(nest.values())
        spread |= {s.buffer: _spread(s, outer, names) for s in scalars if isinstance(s, Alloc)}
        sunk += [s for s in scalars if not isinstance(s, Alloc)]
        if isinstance(last, If):
            conditions.append(If(last.mask, (), last.test))
            sunk.append(conditions[-1])
        else:
            nest[last.name] = last
            missing.discard(last.name)
        body = last.body
    body = map_statements(body, lambda stmt: _in_part(stmt, spread))
    # Loops between those that are named keep their places.
    free = iter(order)
    wanted = [next(free) if name in order else name for name in nest]
    _check_order(list(nest.values()), wanted, body, sunk, facts)
    for stmt in reversed(sunk):
        body = (If(stmt.mask, body, stmt.test),) if isinstance(stmt, If) else (stmt, *body)
    loops, limits = _with_ends([nest[name] for name in wanted], facts)
    # Iterations of a parallel loop would not see the parts of one another.
    in_order = [
        with_kind(loop, "serial") if spread and loop.kind == "parallel" else loop for loop in loops
    ]
    allocs = [Alloc(buffer) for buffer, _ in spread.values()]
    return (*allocs, *nested(in_order, guarded(limits, body)))


def _spread(stmt: Alloc, outer: Sequence[For], names: Names) -> tuple[Buffer, Expr]:
    """A buffer with a part for each iteration of the loops round it, and where the part begins."""
    old, (count, number) = stmt.buffer, points_of(loop.axis for loop in outer)
    new = Buffer(names.outside(old.name), old.dtype, old.size * count, old.space)
    return new, number * old.size


def _in_part(stmt: Stmt, spread: Mapping[Buffer, tuple[Buffer, Expr]]) -> Stmt:
    if not isinstance(stmt, ACCESSES) or stmt.buffer not in spread:
        return stmt
    buffer, start = spread[stmt.buffer]
    return with_place(stmt, buffer, stmt.index + start)


def _with_ends(nest: Sequence[For], facts: Mask) -> tuple[list[For], Mask]:
    """The loops of a nest with ends that name outer loops alone, and the conditions that are left.

    An end that names a loop which is inside now, ``i < n - 4*o``, becomes that of the inner loop:
    ``o < (n - i + 3) // 4``.
    """
    limits: Mask = ()
    loops: list[For] = []
    for number, loop in enumerate(nest):
        inside = {inner.axis for inner in nest[number:]}
        before = facts + tuple(bound for outer in loops for bound in outer.bounds)
        end = loop.end
        if end is not None and (not inside.isdisjoint(end.axes()) or span(end, before)[0] < 1):
            limits += loop.bounds
            end = None
        for bound in limits if end is None else ():
            c = -(bound.expr.coefficient(loop.axis) or 0)
            ended = (bound.expr + Expr.of(loop.axis) * c + (c - bound.low)) // max(c, 1)
            is_outer = (inside - {loop.axis}).isdisjoint(bound.expr.axes())
            if c > 0 and is_outer and end is None and span(ended, before)[0] >= 1:
                end = ended
                limits = tuple(other for other in limits if other is not bound)
        loops.append(For(loop.axis, (), loop.kind, end))
    return loops, limits


def _not_perfect(nest: Mapping[str, For], missing: set[str]) -> ScheduleError:
    within = f"inside loop {list(nest)[-1]}" if nest else "there"
    return ScheduleError(
        f"loop {', '.join(sorted(missing))} is not all that is left {within}",
        fix="distribute the loop round them, so that each part is a nest of its own",
    )


def _check_order(
    nest: Sequence[For], wanted: Sequence[str], body: Body, sunk: Sequence[Stmt], facts: Mask
) -> None:
    """Raise ScheduleError if the new order could change a value.

    Two iterations that meet at one element must stay in their order.  They do if they differ in
    one loop alone, and if the loops in which they may differ keep their order.
    """
    ends = tuple(bound for loop in nest for bound in loop.bounds)
    inner = frozenset(loop.axis for loop in (*nest, *loops_of(body)))
    if contents_in(body).has_barrier:
        raise ScheduleError(
            f"threads meet inside loop {nest[-1].name}", fix="reorder before barriers are placed"
        )
    ends += tuple(bound for stmt in sunk if isinstance(stmt, If) for bound in stmt.mask)
    found = outliving((*sunk, *body), facts + ends, tuple(nest))
    written = {a.buffer for a in found if a.kind != "load"}
    for stmt in sunk:
        if isinstance(stmt, Load) and stmt.buffer in written:
            raise ScheduleError(
                f"a load of {stmt.buffer.name} stands between the loops, and they write it",
                fix="distribute the loop round them",
            )
    # The outermost parallel loops carry nothing: their iterations are independent.
    while nest and nest[0].kind in ("parallel", "block"):
        nest = nest[1:]
    place = {name: n for n, name in enumerate(wanted)}
    exchanged = [
        (first, second)
        for first, second in combinations(nest, 2)
        if place[first.name] > place[second.name]
    ]
    for one, other in conflicts(found) if exchanged else ():
        if any(
            not meets_only_within(one, other, first.axis, inner)
            and not meets_only_within(one, other, second.axis, inner)
            for first, second in exchanged
        ):
            before = [
                loop.name for loop in nest if not meets_only_within(one, other, loop.axis, inner)
            ]
            raise ScheduleError(
                f"iterations of the loops {' and '.join(before)} meet at elements of "
                f"{one.buffer.name}, so their order matters",
                fix=f"keep the order {', '.join(before)}",
            )


# ---- distribute ------------------------------------------------------------------------------


def distribute(
    func: Func,
    *loops: str,
    space: Space = "register",
    to: Depth = "parts",
    scalars: Sharing = "keep",
) -> Func:
    """One nest of the loops for each nest within them, and for the statements between those.

    What an iteration holds from one part to the next goes to buffers with an element for each
    iteration: a buffer of the block becomes as many times as large, and a scalar that differs and
    that a further part reads is stored and loaded.  Loops that do not hold all others stay.
    space: of these buffers; ``register`` unrolls the loops, ``scratch`` makes them serial.
    to: ``innermost`` makes nests within those loops and conditions of the body that do not depend
    on the loops that are distributed.
    scalars: ``repeat`` computes them again where the nest writes nothing that they depend on.
    Raises ScheduleError for loops that hold other statements beside one another, and where an
    iteration needs what an earlier one wrote.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[12], y: out f32[12]) {
    ...   for i in 4 {
    ...     %0: f32 = x[3*i]
    ...     for j in 3 {
    ...       %1: f32 = neg(%0)
    ...       y[3*i + j] = %1
    ...     }
    ...   }
    ... }''')
    >>> print(distribute(func, "i"))
    func f(x: in f32[12], y: out f32[12]) {
      alloc v0: register f32[4]
      for i in 4 unroll {
        %0: f32 = x[3*i]
        v0[i] = %0
      }
      for i in 4 unroll {
        %0_1: f32 = v0[i]
        for j in 3 {
          %1: f32 = neg(%0_1)
          y[3*i + j] = %1
        }
      }
    }
    """
    _check_options(loops, space, to, scalars)
    names, found = Names(func), 0

    def change(old: For, facts: Mask) -> Body:
        nonlocal found
        if not contents_in(old.body).loops.keys() >= set(loops[1:]):
            return (old,)
        found += 1
        nest = _nest_of(old, loops[1:])
        return _Distribution(func, nest, names, space, to, scalars).blocks(facts)

    result = rewrite_loops(func, loops[:1], change)
    if not found:
        raise _no_nest(loops)
    return result


def _check_options(loops: Sequence[str], space: Space, to: Depth, scalars: Sharing) -> None:
    """Raise ScheduleError for what `distribute` does not take."""
    check_word("no parts are connected by buffers in", space, "register", "scratch")
    check_word("there are no nests", to, "parts", "innermost")
    check_word("scalars cannot", scalars, "keep", "repeat")
    if not loops:
        raise ScheduleError("no loops to distribute", fix="name the loops, from the outermost in")


def _nest_of(outermost: For, inner: Sequence[str]) -> list[For]:
    """A loop and those of these names inside it, each of which is all that the one before holds."""
    nest = [outermost]
    for name in inner:
        (within, *others) = nest[-1].body
        if others or not isinstance(within, For) or within.name != name:
            raise ScheduleError(
                f"loop {nest[-1].name} does not hold loop {name} alone",
                fix="name loops that hold one another, from the outermost in",
            )
        nest.append(within)
    for loop in nest:
        if loop.kind in ("block", "thread"):
            raise ScheduleError(
                f"loop {loop.name} is bound, so its parts would not share registers",
                fix="distribute loops before they are bound",
            )
    return nest


@record(eq=False)
class _Part:
    """Statements that become a nest of their own."""

    body: list[Stmt]


@record(eq=False)
class _Outside:
    """A loop or a condition that is then round the nests of its body."""

    stmt: For | If
    items: Sequence[_Item]


#: What the block of the new nests is made of.  Scalars there are the same in every iteration.
_Item = _Part | _Outside | Alloc | Let | Load


class _Distribution:
    """One nest of loops that is distributed over the parts of its body.

    buffers: those of the body, with an element for each iteration.
    homes: the part that defines a scalar which may differ between iterations.
    shared: scalars that other parts read than the one that defines them.
    registers: what such scalars are stored in.
    repeated: the definitions of scalars that other parts compute again.
    changed: accesses to memory that other statements change or read.
    """

    def __init__(
        self,
        func: Func,
        nest: Sequence[For],
        names: Names,
        space: Space,
        to: Depth,
        scalars: Sharing,
    ) -> None:
        self.nest, self.names, self.space, self.to = nest, names, space, to
        self.repeats = scalars == "repeat"
        self.repeated: dict[Scalar, Let | Load] = {}
        self.changed: Set[Stmt] = set()
        self.points, self.point = points_of(loop.axis for loop in nest)
        self.axes = {loop.axis for loop in nest}
        self.written = _written(func, nest[-1].body, is_concurrent=True)
        self.buffers: dict[Buffer, Buffer] = {}
        self.homes: dict[Scalar, _Part] = {}
        self.shared: set[Scalar] = set()
        self.registers: dict[Scalar, Buffer] = {}

    def blocks(self, facts: Mask) -> Body:
        """The new nests, with the buffers that connect them before them."""
        body = self.nest[-1].body
        if self.repeats:
            touched = outliving(body, facts, tuple(self.nest))
            self.changed = {access.stmt for pair in conflicts(touched) for access in pair}
        items = self.items(body)
        parts = list(_parts(items))
        self.check(parts, facts)
        for part in parts:
            for stmt in statements(tuple(part.body)):
                self.shared.update(s for s in used_scalars(stmt) if self.homes.get(s, part) != part)
        self.shared -= self.repeated.keys()
        self.run_in_order()
        return self.block(items)

    def items(self, body: Body) -> list[_Item]:
        """The body cut before and after each loop and condition."""
        result: list[_Item] = []
        part = _Part([])
        for stmt in body:
            match stmt:
                case Alloc(buffer):
                    space = self.space if buffer.space == "register" else buffer.space
                    name, size = self.names.outside(buffer.name), buffer.size * self.points
                    wide = self.buffers[buffer] = Buffer(name, buffer.dtype, size, space)
                    result.append(Alloc(wide))
                case For() | If():
                    result.append(part)
                    part = _Part([])
                    if self.to == "innermost" and self.may_be_outside(stmt):
                        result.append(_Outside(stmt, self.items(stmt.body)))
                    else:
                        result.append(_Part([stmt]))
                case Let() | Load() if self.is_fixed(stmt):
                    result.append(stmt)
                case _:
                    part.body.append(stmt)
                    if isinstance(stmt, DEFINING):
                        if not isinstance(stmt, Shuffle) and self.may_repeat(stmt):
                            self.repeated[stmt.result] = stmt
                        self.homes[stmt.result] = part
        return [*result, part]

    def is_fixed(self, stmt: Let | Load) -> bool:
        """Whether a scalar is the same in every iteration."""
        changing = self.homes.keys()
        return all(_is_fixed(stmt, self.axes, changing, self.written, loop) for loop in self.nest)

    def may_repeat(self, stmt: Let | Load) -> bool:
        """Whether other parts may compute a scalar again, if it is to be so."""
        operands = (s for s in stmt.operands if s in self.homes)
        return (
            self.repeats and stmt not in self.changed and all(s in self.repeated for s in operands)
        )

    def repeat(self, scalar: Scalar, body: list[Stmt], copies: dict[Scalar, Scalar]) -> None:
        """Compute a scalar of another part again, after what it is computed from."""
        stmt = self.repeated[scalar]
        for operand in stmt.operands:
            if operand in self.repeated and operand not in copies:
                self.repeat(operand, body, copies)
        copy = self.names.scalar(scalar.name, scalar.dtype)
        operands = tuple(copies.get(s, s) for s in stmt.operands)
        copies[scalar] = copy
        if isinstance(stmt, Let):
            body.append(Let(copy, stmt.op, operands, stmt.attrs))
        else:
            body.append(Load(copy, stmt.buffer, stmt.index, stmt.mask, operands))

    def may_be_outside(self, stmt: For | If) -> bool:
        """Whether a loop or a condition is the same in every iteration."""
        if isinstance(stmt, For) and stmt.kind not in ORDERED:
            return False
        test = stmt.test if isinstance(stmt, If) else None
        return test not in self.homes and all(
            self.axes.isdisjoint(expr.axes()) for expr in exprs_of(stmt)
        )

    def run_in_order(self) -> None:
        """Make parallel loops such that their iterations see the buffers, and registers constant.

        Iterations of a parallel loop would not see one another's registers.
        """
        if not self.buffers and not self.shared:
            return
        has_registers = any(buffer.space == "register" for buffer in self.buffers.values())
        has_registers |= bool(self.shared) and self.space == "register"
        kinds: dict[LoopKind, LoopKind] = {"parallel": "serial"}
        if has_registers:
            kinds = {"parallel": "unroll", "serial": "unroll"}
        self.nest = [with_kind(loop, kinds.get(loop.kind, loop.kind)) for loop in self.nest]

    def check(self, parts: Sequence[_Part], facts: Mask) -> None:
        """Raise ScheduleError if a part reads or writes what another iteration needs first."""
        carrying = [loop for loop in self.nest if loop.kind != "parallel"]
        if not carrying:
            return
        nest = tuple(self.nest)
        facts += tuple(bound for loop in nest for bound in loop.bounds)
        groups = [outliving(tuple(part.body), facts, nest) for part in parts]
        if self.to == "innermost":
            # Each statement comes to its place for all iterations before the next one does.
            groups = [[access] for access in outliving(nest[-1].body, facts, nest)]
        found = [a for group in groups for a in group if a.buffer not in self.buffers]
        number_of = {id(access): n for n, group in enumerate(groups) for access in group}
        inner = frozenset(axis for access in found for axis in access.axes)
        for one, other in conflicts(found):
            if self.to == "parts" and number_of[id(one)] == number_of[id(other)]:
                continue
            for loop in carrying:
                if not meets_only_within(one, other, loop.axis, inner):
                    raise ScheduleError(
                        f"an iteration of loop {loop.name} needs what another one does with "
                        f"{one.buffer.name}",
                        fix="distribute loops whose iterations are independent",
                    )

    def block(self, items: Sequence[_Item]) -> Body:
        """The statements that items become, with the buffers of their scalars before them."""
        allocs: list[Stmt] = []
        result: list[Stmt] = []
        for item in items:
            if isinstance(item, _Outside):
                result.append(rebuilt(item.stmt, self.block(item.items)))
            elif isinstance(item, _Part):
                result += self.part(item, allocs)
            else:
                (allocs if isinstance(item, Alloc) else result).append(item)
        return (*allocs, *result)

    def part(self, part: _Part, allocs: list[Stmt]) -> Body:
        """The nest of a part.

        Scalars of earlier parts are loaded first, and those that later ones read are stored.
        """
        body: list[Stmt] = []
        copies: dict[Scalar, Scalar] = {}
        for stmt in statements(tuple(part.body)):
            for scalar in used_scalars(stmt):
                if scalar in copies or self.homes.get(scalar, part) is part:
                    continue
                if scalar in self.repeated:
                    self.repeat(scalar, body, copies)
                elif scalar in self.registers:
                    copy = copies[scalar] = self.names.scalar(scalar.name, scalar.dtype)
                    body.append(Load(copy, self.registers[scalar], self.point))
        body += Substitution({}, scalars=copies)(tuple(part.body))
        for stmt in part.body:
            if not isinstance(stmt, DEFINING) or stmt.result not in self.shared:
                continue
            name = self.names.buffer(f"v{stmt.result.name}")
            register = Buffer(name, stmt.result.dtype, self.points, self.space)
            self.registers[stmt.result] = register
            allocs.append(Alloc(register))
            body.append(Store(register, self.point, stmt.result))
        body = list(without_dead(tuple(body))) if self.repeats else body
        if not body:
            return ()
        return nested(self.nest, map_statements(tuple(body), self.spread))

    def spread(self, stmt: Stmt) -> Stmt:
        """An access to a buffer of the body: to the element of the iteration."""
        if not isinstance(stmt, ACCESSES) or stmt.buffer not in self.buffers:
            return stmt
        index = stmt.index * self.points + self.point
        return with_place(stmt, self.buffers[stmt.buffer], index)


def _parts(items: Sequence[_Item]) -> Iterator[_Part]:
    """The parts of a block, those within loops and conditions as well."""
    for item in items:
        if isinstance(item, _Part):
            yield item
        elif isinstance(item, _Outside):
            yield from _parts(item.items)


# ---- sink ------------------------------------------------------------------------------------


def sink(func: Func, loop: str) -> Func:
    """What stands beside a loop in its block happens in its first and in its last iteration.

    Scalars before the loop, and buffers, stay where they are.
    Raises ScheduleError for an unknown loop, for one whose iterations have no order or that may
    have none, and where the loop reads a scalar from what would move.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[8], y: out f32[1]) {
    ...   %0: f32 = 2.0
    ...   y[0] = %0
    ...   for i in 8 {
    ...     %1: f32 = x[i]
    ...     y[0] add= %1
    ...   }
    ... }''')
    >>> print(sink(func, "i"))
    func f(x: in f32[8], y: out f32[1]) {
      %0: f32 = 2.0
      for i in 8 {
        if 0 <= i < 1 {
          y[0] = %0
        }
        %1: f32 = x[i]
        y[0] add= %1
      }
    }
    """

    def walk(body: Body, facts: Mask) -> Body:
        result: list[Stmt] = []
        for number, stmt in enumerate(body):
            if isinstance(stmt, For) and stmt.name == loop:
                return _with_sunk(body, number, stmt, facts)
            if isinstance(stmt, NESTING):
                more = stmt.bounds if isinstance(stmt, For) else stmt.mask
                result.append(rebuilt(stmt, walk(stmt.body, facts + more)))
            else:
                result.append(stmt)
        return tuple(result)

    check_loops(func, (loop,))
    body = walk(func.body, ())
    return Func(func.name, func.params, body)


def _with_sunk(body: Body, number: int, loop: For, facts: Mask) -> Body:
    """The block of a loop with all that can move inside it."""
    if loop.kind not in ("serial", "unroll") or (
        loop.end is not None and span(loop.end, facts)[0] < 1
    ):
        raise ScheduleError(
            f"loop {loop.name} has no first and last iteration", fix="serialize or pad it first"
        )
    beside = (*body[:number], *body[number + 1 :])
    if loop.name in contents_in(beside).loops:
        raise ScheduleError(
            f"there are several loops {loop.name} in a block", fix="split one to rename it"
        )
    mine, others = (
        {s.buffer.name for s in statements(body) if isinstance(s, Alloc)}
        for body in (loop.body, beside)
    )
    if not mine.isdisjoint(others):
        raise ScheduleError(f"a buffer beside loop {loop.name} has the name of one in it")
    staying: list[Stmt] = [s for s in body[:number] if isinstance(s, Alloc)]
    moving = [s for s in body[:number] if not isinstance(s, Alloc)]
    while moving and isinstance(moving[0], (Let, Load)):
        staying.append(moving.pop(0))
    moved = {s.result for s in moving if isinstance(s, (Let, Load))}
    readers = statements((loop, *body[number + 1 :]))
    if moved and any(not moved.isdisjoint(used_scalars(s)) for s in readers):
        raise ScheduleError(
            f"loop {loop.name} reads scalars from behind other statements", fix="hoist them first"
        )
    if contents_in(body).has_barrier:
        raise ScheduleError("threads meet beside the loop", fix="sink before barriers are placed")
    inside = facts + loop.bounds
    axis = Expr.of(loop.axis)
    left = (axis * -1 + loop.axis.size) if loop.end is None else loop.end + axis * -1
    first = _sunk(Bound(axis, 0, 1), tuple(moving), inside)
    last = _sunk(Bound(left, 1, 2), body[number + 1 :], inside)
    return (*staying, with_body(loop, (*first, *loop.body, *last)))


def _sunk(condition: Bound, body: Body, facts: Mask) -> Body:
    if not body:
        return ()
    mask = decided((condition,), facts)
    assert mask is not None, "a loop without a first or last iteration"
    return guarded(mask, body)


# ---- hoist -----------------------------------------------------------------------------------


def hoist(func: Func, *loops: str) -> Func:
    """What does not change from iteration to iteration leaves the loops.

    Scalars leave, loads of memory that the loop does not write, and a condition that is all the
    loop holds.  A load that could be outside its buffer stays where the loop may have no iteration.
    Raises ScheduleError for an unknown loop.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[1], y: out f32[4]) {
    ...   for i in 4 {
    ...     %0: f32 = x[0]
    ...     %1: f32 = exp(%0)
    ...     y[i] = %1
    ...   }
    ... }''')
    >>> print(hoist(func, "i"))
    func f(x: in f32[1], y: out f32[4]) {
      %0: f32 = x[0]
      %1: f32 = exp(%0)
      for i in 4 {
        y[i] = %1
      }
    }
    """

    def change(old: For, _facts: Mask) -> Body:
        varying = {old.axis, *(loop.axis for loop in loops_of(old.body))}
        written = _written(func, old.body, is_concurrent=old.kind in CONCURRENT)
        fixed: list[Stmt] = []
        body: list[Stmt] = []
        changing: set[Scalar] = set()
        for stmt in old.body:
            if isinstance(stmt, (Let, Load)):
                if _is_fixed(stmt, varying, changing, written, old):
                    fixed.append(stmt)
                    continue
                changing.add(stmt.result)
            elif isinstance(stmt, Shuffle):
                changing.add(stmt.result)
            body.append(stmt)
        if not fixed and not (len(body) == 1 and isinstance(body[0], If)):
            return (old,)
        return (*fixed, *_without_fixed_condition(old, tuple(body), varying, changing))

    return rewrite_loops(func, loops, change)


def _written(func: Func, body: Body, *, is_concurrent: bool) -> Set[Buffer]:
    """The buffers that change while iterations of a loop with this body run."""
    inside = list(statements(body))
    written = {s.buffer for s in inside if isinstance(s, (Store, Alloc))}
    if is_concurrent:
        # Another thread may run on before this one reads, and write the same memory.
        written |= {p.buffer for p in func.params for w in written if may_share(p.buffer, w)}
    return written


def _is_fixed(
    stmt: Let | Load,
    varying: Set[Axis],
    changing: Set[Scalar],
    written: Set[Buffer],
    loop: For,
) -> bool:
    """Whether a scalar is the same in every iteration, and may be computed without any."""
    if not changing.isdisjoint(stmt.operands):
        return False
    if any(not varying.isdisjoint(expr.axes()) for expr in exprs_of(stmt)):
        return False
    if isinstance(stmt, Let):
        return True
    if stmt.buffer in written:
        return False
    always_runs = loop.axis.size > 0 and (loop.end is None or loop.end.first >= 1)
    return always_runs or (stmt.index.first >= 0 and stmt.index.last < stmt.buffer.size)


def _without_fixed_condition(
    loop: For, body: Body, varying: set[Axis], changing: set[Scalar]
) -> Body:
    """The loop, within the conditions of its body that are the same in every iteration."""
    if not body:
        return ()
    if len(body) > 1 or not isinstance(body[0], If):
        return (with_body(loop, body),)
    condition = body[0]
    fixed = tuple(b for b in condition.mask if varying.isdisjoint(b.expr.axes()))
    left = tuple(b for b in condition.mask if b not in fixed)
    test = condition.test if condition.test is not None and condition.test in changing else None
    fixed_test = condition.test if test is None else None
    if left or test is not None:
        body = (If(left, condition.body, test),)
    else:
        body = condition.body
    new = with_body(loop, body)
    return (If(fixed, (new,), fixed_test),) if fixed or fixed_test is not None else (new,)


__all__ = ["distribute", "hoist", "reorder", "sink"]
