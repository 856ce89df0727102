"""Primitives that change the order of statements: reorder, distribute and hoist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.form import (
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
    Space,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import (
    Access,
    conflicts,
    has_barrier,
    may_share,
    meets_only_within,
    outliving,
)
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_word,
    exprs_of,
    guarded,
    loops_of,
    map_statements,
    nested,
    points_of,
    rewrite_loops,
    used_scalars,
    with_body,
    with_kind,
    with_place,
)

# ---- reorder ---------------------------------------------------------------------------------


def reorder(func: Func, *loops: str) -> Func:
    """The loops of a nest in this order, from the outermost to the innermost.

    The loops hold one another with nothing beside them but scalars and conditions, which go
    innermost (`hoist` brings them out again).  Of several nests with such names those are reordered
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
    names = frozenset(loops)
    if len(names) < len(loops):
        raise ScheduleError(f"{' '.join(loops)} names a loop twice", fix="name each loop once")
    found = False

    def change(old: For, facts: Mask) -> Body:
        nonlocal found
        if not names <= {loop.name for loop in loops_of((old,))}:
            return (old,)
        found = True
        return _reordered(old, loops, facts)

    result = rewrite_loops(func, loops, change)
    if not found:
        raise ScheduleError(
            f"no nest has all of the loops {', '.join(loops)}",
            fix="name loops that hold one another",
        )
    return result


def _reordered(outermost: For, order: Sequence[str], facts: Mask) -> Body:
    """One nest in another order."""
    nest: dict[str, For] = {}
    sunk: list[Stmt] = []
    conditions: list[If] = []
    body: Body = (outermost,)
    missing = set(order)
    while missing:
        *scalars, last = body
        if not isinstance(last, For | If) or not all(isinstance(s, Let | Load) for s in scalars):
            raise _not_perfect(nest, missing)
        sunk += scalars
        if isinstance(last, If):
            conditions.append(If(last.mask, (), last.test))
            sunk.append(conditions[-1])
        else:
            nest[last.name] = last
            missing.discard(last.name)
        body = last.body
    # Loops between those that are named keep their places.
    names = list(nest)
    free = iter(order)
    wanted = [next(free) if name in order else name for name in names]
    _check_order(list(nest.values()), wanted, body, sunk, facts)
    for stmt in reversed(sunk):
        body = (If(stmt.mask, body, stmt.test),) if isinstance(stmt, If) else (stmt, *body)
    loops, limits = _with_ends([nest[name] for name in wanted], facts)
    return nested(loops, guarded(limits, body))


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
    if has_barrier(body):
        raise ScheduleError(
            f"threads meet inside loop {nest[-1].name}", fix="reorder before barriers are placed"
        )
    found = outliving((*sunk, *body), facts + ends, tuple(nest))
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


def distribute(func: Func, *loops: str, space: Space = "register") -> Func:
    """One nest of the loops for each nest within them, and for the statements between those.

    What an iteration holds from one part to the next goes to buffers with an element for each
    iteration: a buffer of the block becomes as many times as large, and a scalar that a further
    part reads is stored and loaded.  All new nests have the same names.
    space: of these buffers; ``register`` unrolls the loops, ``scratch`` makes them serial.
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
    check_word("no parts are connected by buffers in", space, "register", "scratch")
    if not loops:
        raise ScheduleError("no loops to distribute", fix="name the loops, from the outermost in")

    def change(old: For, facts: Mask) -> Body:
        return _Distribution(_nest_of(old, loops[1:]), names, facts, space).blocks()

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


class _Distribution:
    """One nest of loops that is distributed over the parts of its body."""

    def __init__(self, nest: Sequence[For], names: Names, facts: Mask, space: Space) -> None:
        self.nest, self.names, self.facts, self.space = nest, names, facts, space
        self.points, self.point = points_of(loop.axis for loop in nest)

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
        allocs = [Alloc(b) for b in (*buffers.values(), *registers)]
        self.run_in_order(allocs)

        def spread(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, Load | Store) or stmt.buffer not in buffers:
                return stmt
            index = stmt.index * self.points + self.point
            return with_place(stmt, buffers[stmt.buffer], index)

        result: Body = tuple(allocs)
        for part in parts:
            if part:
                result += nested(self.nest, map_statements(tuple(part), spread))
        return result

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
            if isinstance(stmt, NESTING):
                parts += [[stmt], []]
            elif not isinstance(stmt, Alloc):
                parts[-1].append(stmt)
        return parts

    def check(self, parts: Sequence[Sequence[Stmt]], private: Mapping[Buffer, Buffer]) -> None:
        """Raise ScheduleError if a part reads or writes what another iteration needs first."""
        carrying = [loop for loop in self.nest if loop.kind != "parallel"]
        if not carrying:
            return
        facts = self.facts + tuple(bound for loop in self.nest for bound in loop.bounds)
        found: list[tuple[int, Access]] = []
        for number, part in enumerate(parts):
            mine = outliving(tuple(part), facts, tuple(self.nest))
            found += [(number, access) for access in mine if access.buffer not in private]
        inner = frozenset(axis for _, access in found for axis in access.axes)
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
                if scalar not in defined or defined[scalar][0] == number:
                    continue
                home, stmt = defined[scalar]
                copy = renamed[scalar] = self.names.scalar(scalar.name, scalar.dtype)
                if isinstance(stmt, Let) and stmt.op.name == "constant":
                    before.append(Let(copy, stmt.op, (), stmt.attrs))
                    continue
                if scalar not in registers:
                    name = self.names.buffer(f"v{scalar.name}")
                    register = Buffer(name, scalar.dtype, self.points, self.space)
                    registers[scalar] = register
                    result[home].append(Store(register, self.point, scalar))
                before.append(Load(copy, registers[scalar], self.point))
            if renamed:
                result[number] = [*before, *_renamed(result[number], renamed)]
        return result, list(registers.values())


def _renamed(body: Sequence[Stmt], scalars: Mapping[Scalar, Scalar]) -> Body:
    """The statements reading other scalars."""
    place = Substitution({}, scalars=scalars)
    return place(tuple(body))


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


__all__ = ["distribute", "hoist", "reorder"]
