"""Primitives that change the order of statements: reorder, distribute and hoist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal as OneOf

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Bound, Expr
from bringup.kernel.ranges import span
from bringup.loops.form import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Scalar,
    Space,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import (
    Access,
    accesses,
    conflicts,
    has_barrier,
    may_share,
    meets_only_within,
)
from bringup.loops.schedule.iteration import check_nesting
from bringup.loops.schedule.rewrite import (
    Body,
    Mask,
    Names,
    Substitution,
    decided,
    exprs_of,
    guarded,
    loop_names,
    loops_of,
    map_accesses,
    no_loop,
    rebuilt,
    rewrite_loops,
    used_scalars,
    with_body,
    with_kind,
    with_place,
    without_dead,
)

# ---- reorder ---------------------------------------------------------------------------------


def reorder(func: Func, *loops: str) -> Func:
    """The loops of a nest in this order, from the outermost to the innermost.

    The loops hold one another with nothing beside them but scalars and conditions, which go
    innermost (`hoist` brings them out again), and buffers of one iteration, which become buffers
    with a part for each and leave the nest.  Of several nests with such names those are reordered
    that have all.  An early end that names a loop which goes inside becomes the end of that loop.
    Raises ScheduleError for an unknown loop, where no nest has all loops, and for an order in
    which an element could be read or written at another time.

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
    names, found, free = frozenset(loops), 0, Names(func)
    for name in loops:
        if name not in loop_names(func):
            raise no_loop(func, name)
    if len(names) < len(loops):
        raise ScheduleError(f"{' '.join(loops)} names a loop twice", fix="name each loop once")

    def walk(body: Body, facts: Mask) -> Body:
        nonlocal found
        result: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                if stmt.name in names and names <= {loop.name for loop in loops_of((stmt,))}:
                    found += 1
                    result += _reordered(stmt, loops, facts, free)
                    continue
                result.append(rebuilt(stmt, walk(stmt.body, facts + stmt.bounds)))
            elif isinstance(stmt, If):
                result.append(rebuilt(stmt, walk(stmt.body, facts + stmt.mask)))
            else:
                result.append(stmt)
        return tuple(result)

    body = walk(func.body, ())
    if not found:
        raise ScheduleError(
            f"no nest has all of the loops {', '.join(loops)}",
            fix="name loops that hold one another",
        )
    result = Func(func.name, func.params, body)
    check_nesting(result)
    return result


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
        if not isinstance(last, For | If) or not all(
            isinstance(s, Let | Load | Alloc) for s in scalars
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
    body = map_accesses(body, lambda stmt: _in_part(stmt, spread))
    # Loops between those that are named keep their places.
    free = iter(order)
    wanted = [next(free) if name in order else name for name in nest]
    _check_order(list(nest.values()), wanted, body, sunk, facts)
    for stmt in reversed(sunk):
        body = (If(stmt.mask, body, stmt.test),) if isinstance(stmt, If) else (stmt, *body)
    loops, limits = _with_ends([nest[name] for name in wanted], facts)
    body = guarded(limits, body)
    for loop in reversed(loops):
        # Iterations of a parallel loop would not see the parts of one another.
        in_order = spread and loop.kind == "parallel"
        body = (with_body(with_kind(loop, "serial") if in_order else loop, body),)
    return (*(Alloc(buffer) for buffer, _ in spread.values()), *body)


def _spread(stmt: Alloc, outer: Sequence[For], names: Names) -> tuple[Buffer, Expr]:
    """A buffer with a part for each iteration of the loops round it, and where the part begins."""
    old, count, number = stmt.buffer, 1, Expr()
    for loop in outer:
        count *= loop.axis.size
        number = number * loop.axis.size + Expr.of(loop.axis)
    new = Buffer(names.outside(old.name), old.dtype, old.size * count, old.space)
    return new, number * old.size


def _in_part(stmt: Load | Store, spread: Mapping[Buffer, tuple[Buffer, Expr]]) -> Load | Store:
    if stmt.buffer not in spread:
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
    axes = tuple(loop.axis for loop in nest)
    ends = tuple(bound for loop in nest for bound in loop.bounds)
    inner = frozenset((*axes, *(loop.axis for loop in loops_of(body))))
    if has_barrier(body):
        raise ScheduleError(
            f"threads meet inside loop {nest[-1].name}", fix="reorder before barriers are placed"
        )
    ends += tuple(bound for stmt in sunk if isinstance(stmt, If) for bound in stmt.mask)
    found = accesses((*sunk, *body), facts + ends, axes)
    written = {a.buffer for a in found if a.kind != "load"}
    for stmt in sunk:
        if isinstance(stmt, Load) and stmt.buffer in written:
            raise ScheduleError(
                f"a load of {stmt.buffer.name} stands between the loops, and they write it",
                fix="distribute the loop round them",
            )
    old = [loop.name for loop in nest]
    # The outermost parallel loops carry nothing: their iterations are independent.
    while nest and nest[0].kind in ("parallel", "block"):
        nest = nest[1:]
    for one, other in conflicts(found):
        differ = {loop.name for loop in nest if not meets_only_within(one, other, loop.axis, inner)}
        before = [name for name in old if name in differ]
        if len(before) > 1 and before != [name for name in wanted if name in differ]:
            raise ScheduleError(
                f"iterations of the loops {' and '.join(before)} meet at elements of "
                f"{one.buffer.name}, so their order matters",
                fix=f"keep the order {', '.join(before)}",
            )


# ---- distribute ------------------------------------------------------------------------------


def distribute(
    func: Func, *loops: str, space: Space = "register", scalars: OneOf["keep", "repeat"] = "keep"
) -> Func:
    """One nest of the loops for each nest within them, and for the statements between those.

    What an iteration holds from one part to the next goes to buffers with an element for each
    iteration: a buffer of the block becomes as many times as large, and a scalar that a further
    part reads is stored and loaded.  All new nests have the same names.
    space: of these buffers; ``register`` unrolls the loops, ``scratch`` makes them serial.
    scalars: ``repeat`` computes a scalar again where a further part reads it, if the nest writes
    nothing that it is computed from.
    Raises ScheduleError for an unknown loop, for loops that hold other statements beside one
    another, and where an iteration needs what an earlier one wrote.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[12], y: out f32[12]) {
    ...   for i in 4 {
    ...     %0: f32 = x[3*i]
    ...     for j in 3 {
    ...       %1: f32 = x[3*i + j]
    ...       %2: f32 = sub(%1, %0)
    ...       y[3*i + j] = %2
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
          %1: f32 = x[3*i + j]
          %2: f32 = sub(%1, %0_1)
          y[3*i + j] = %2
        }
      }
    }
    """
    names = Names(func)
    if space not in ("register", "scratch"):
        raise ScheduleError(
            f"iterations do not share {space} buffers", fix="use register or scratch"
        )
    if not loops:
        raise ScheduleError("no loops to distribute", fix="name the loops, from the outermost in")

    def change(old: For, facts: Mask) -> Body:
        nest = _nest_of(old, loops[1:])
        return _Distribution(nest, names, facts, space, repeats=scalars == "repeat").blocks()

    return rewrite_loops(func, loops[:1], change)


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


#: The scalars of a block, each with the number of its part and its definition.
Defined = Mapping[Scalar, tuple[int, Let | Load]]


class _Distribution:
    """One nest of loops that is distributed over the parts of its body."""

    def __init__(
        self, nest: Sequence[For], names: Names, facts: Mask, space: Space, *, repeats: bool
    ) -> None:
        self.nest, self.names, self.facts, self.space = nest, names, facts, space
        self.repeats = repeats
        self.stored = {s.buffer for s in statements(tuple(nest)) if isinstance(s, Store)}
        self.points, self.point = 1, Expr()
        for loop in nest:
            self.points *= loop.axis.size
            self.point = self.point * loop.axis.size + Expr.of(loop.axis)

    def blocks(self) -> Body:
        """The new nests, with the buffers that connect them before them."""
        body = self.nest[-1].body
        buffers = {
            stmt.buffer: Buffer(
                self.names.outside(stmt.buffer.name),
                stmt.buffer.dtype,
                stmt.buffer.size * self.points,
                self.space if stmt.buffer.space == "register" else stmt.buffer.space,
            )
            for stmt in body
            if isinstance(stmt, Alloc)
        }
        parts = self.parts(body)
        self.check(parts, buffers)
        parts, registers = self.connected(parts)
        if self.repeats:
            parts = [list(without_dead(tuple(part))) for part in parts]
        allocs = [Alloc(b) for b in (*buffers.values(), *registers)]
        self.run_in_order(allocs)

        def spread(stmt: Load | Store) -> Load | Store:
            buffer = buffers.get(stmt.buffer)
            if buffer is None:
                return stmt
            return with_place(stmt, buffer, stmt.index * self.points + self.point)

        return (*allocs, *(self.nested(map_accesses(tuple(p), spread)) for p in parts if p))

    def run_in_order(self, allocs: Sequence[Alloc]) -> None:
        """Make parallel loops such that their iterations see the buffers, and registers constant.

        Iterations of a parallel loop would not see one another's registers.
        """
        if not allocs:
            return
        has_registers = any(alloc.buffer.space == "register" for alloc in allocs)
        kinds: dict[LoopKind, LoopKind] = {"parallel": "serial"}
        if has_registers:
            kinds = {"parallel": "unroll", "serial": "unroll"}
        self.nest = [with_kind(loop, kinds.get(loop.kind, loop.kind)) for loop in self.nest]

    def parts(self, body: Body) -> list[list[Stmt]]:
        """The body cut before and after each loop and condition."""
        parts: list[list[Stmt]] = [[]]
        for stmt in body:
            if isinstance(stmt, For | If):
                parts += [[stmt], []]
            elif not isinstance(stmt, Alloc):
                parts[-1].append(stmt)
        return parts

    def check(self, parts: Sequence[Sequence[Stmt]], private: Mapping[Buffer, Buffer]) -> None:
        """Raise ScheduleError if a part reads or writes what another iteration needs first."""
        carrying = [loop for loop in self.nest if loop.kind != "parallel"]
        if not carrying:
            return
        axes = tuple(loop.axis for loop in self.nest)
        facts = self.facts + tuple(bound for loop in self.nest for bound in loop.bounds)
        found: list[tuple[int, Access]] = []
        for number, part in enumerate(parts):
            mine = accesses(tuple(part), facts, axes)
            found += [(number, access) for access in mine if access.buffer not in private]
        inner = frozenset(axes).union(*(a.axes for _, a in found))
        number_of = {id(access): number for number, access in found}
        for one, other in conflicts([access for _, access in found]):
            if number_of[id(one)] == number_of[id(other)]:
                continue
            for loop in carrying:
                if not meets_only_within(one, other, loop.axis, inner):
                    raise ScheduleError(
                        f"an iteration of loop {loop.name} needs what another one does with "
                        f"{one.buffer.name}",
                        fix="distribute loops whose iterations are independent",
                    )

    def connected(self, parts: Sequence[Sequence[Stmt]]) -> tuple[list[list[Stmt]], list[Buffer]]:
        """The parts with scalars of earlier ones stored and loaded; constants are repeated."""
        defined: dict[Scalar, tuple[int, Let | Load]] = {}
        for number, part in enumerate(parts):
            for stmt in part:
                if isinstance(stmt, Let | Load):
                    defined[stmt.result] = (number, stmt)
        result = [list(part) for part in parts]
        registers: dict[Scalar, Buffer] = {}
        for number, part in enumerate(parts):
            reads = [s for stmt in statements(tuple(part)) for s in used_scalars(stmt)]
            before: list[Stmt] = []
            renamed: dict[Scalar, Scalar] = {}
            for scalar in dict.fromkeys(reads):
                if scalar not in defined or defined[scalar][0] == number or scalar in renamed:
                    continue
                home, stmt = defined[scalar]
                if self.is_repeated(stmt, defined):
                    self.repeat(scalar, defined, before, renamed)
                    continue
                copy = renamed[scalar] = self.names.scalar(scalar.name, scalar.dtype)
                if scalar not in registers:
                    name = self.names.buffer(f"v{scalar.name}")
                    register = Buffer(name, scalar.dtype, self.points, self.space)
                    registers[scalar] = register
                    result[home].append(Store(register, self.point, scalar))
                before.append(Load(copy, registers[scalar], self.point))
            if renamed:
                result[number] = [*before, *_renamed(result[number], renamed)]
        return result, list(registers.values())

    def is_repeated(self, stmt: Let | Load, defined: Defined) -> bool:
        """Whether a further part computes a scalar again; constants always are."""
        if isinstance(stmt, Let) and stmt.op.name == "constant":
            return True
        if not self.repeats or (isinstance(stmt, Load) and stmt.buffer in self.stored):
            return False
        inputs = [defined[s][1] for s in stmt.operands if s in defined]
        return all(self.is_repeated(each, defined) for each in inputs)

    def repeat(
        self,
        scalar: Scalar,
        defined: Defined,
        before: list[Stmt],
        renamed: dict[Scalar, Scalar],
    ) -> None:
        """Compute a scalar again, and first what it is computed from."""
        _, stmt = defined[scalar]
        for operand in stmt.operands:
            if operand in defined and operand not in renamed:
                self.repeat(operand, defined, before, renamed)
        copy = renamed[scalar] = self.names.scalar(scalar.name, scalar.dtype)
        operands = tuple(renamed.get(s, s) for s in stmt.operands)
        if isinstance(stmt, Let):
            before.append(Let(copy, stmt.op, operands, stmt.attrs))
        else:
            before.append(Load(copy, stmt.buffer, stmt.index, stmt.mask, operands))

    def nested(self, body: Body) -> For:
        """A part within the loops."""
        for loop in reversed(self.nest):
            body = (with_body(loop, body),)
        (result,) = body
        assert isinstance(result, For)
        return result


def _renamed(body: Sequence[Stmt], scalars: Mapping[Scalar, Scalar]) -> Body:
    """The statements reading other scalars."""
    place = Substitution({}, scalars=scalars)
    return place(tuple(body))


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
    found = False

    def walk(body: Body, facts: Mask) -> Body:
        nonlocal found
        result: list[Stmt] = []
        for number, stmt in enumerate(body):
            if isinstance(stmt, For) and stmt.name == loop:
                found = True
                return _with_sunk(body, number, stmt, facts)
            if isinstance(stmt, For | If):
                more = stmt.bounds if isinstance(stmt, For) else stmt.mask
                stmt = rebuilt(stmt, walk(stmt.body, facts + more))
            result.append(stmt)
        return tuple(result)

    body = walk(func.body, ())
    if not found:
        raise no_loop(func, loop)
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
    if any(inside.name == loop.name for inside in loops_of(beside)):
        raise ScheduleError(
            f"there are several loops {loop.name} in a block", fix="split one to rename it"
        )
    staying = [s for s in body[:number] if isinstance(s, Alloc)]
    moving = [s for s in body[:number] if not isinstance(s, Alloc)]
    while moving and isinstance(moving[0], Let | Load):
        staying.append(moving.pop(0))
    moved = {s.result for s in moving if isinstance(s, Let | Load)}
    readers = statements((loop, *body[number + 1 :]))
    if moved and any(not moved.isdisjoint(used_scalars(s)) for s in readers):
        raise ScheduleError(
            f"loop {loop.name} reads scalars from behind other statements", fix="hoist them first"
        )
    if has_barrier(body):
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
        inside = set(statements(old.body))
        written = {s.buffer for s in inside if isinstance(s, Store)}
        written |= {s.buffer for s in inside if isinstance(s, Alloc)}
        if old.kind in ("parallel", "block", "thread"):
            # Another thread may run on before this one reads, and write the same memory.
            written |= {p.buffer for p in func.params for w in written if may_share(p.buffer, w)}
        fixed: list[Stmt] = []
        body: list[Stmt] = []
        changing: set[Scalar] = set()
        for stmt in old.body:
            if isinstance(stmt, Let | Load):
                if _is_fixed(stmt, varying, changing, written, old):
                    fixed.append(stmt)
                    continue
                changing.add(stmt.result)
            body.append(stmt)
        if not fixed and not (len(body) == 1 and isinstance(body[0], If)):
            return (old,)
        return (*fixed, *_without_fixed_condition(old, tuple(body), varying, changing))

    return rewrite_loops(func, loops, change)


def _is_fixed(
    stmt: Let | Load, varying: set[Axis], changing: set[Scalar], written: set[Buffer], loop: For
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
    always_runs = loop.end is None or loop.end.first >= 1
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
