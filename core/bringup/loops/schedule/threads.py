"""Primitives for machines whose blocks of threads meet at barriers: bind, set_space and others."""

from __future__ import annotations

from functools import partial

from bringup.errors import ScheduleError
from bringup.graph.index import Expr, Mask
from bringup.loops.contents import contents_in
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    Func,
    Let,
    Load,
    Space,
    Stmt,
    Store,
    named_axis,
)
from bringup.loops.schedule.dependences import accesses, outliving
from bringup.loops.schedule.iteration import with_independent_kind
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_new_names,
    check_word,
    checked,
    loop_names,
    loops_of,
    map_statements,
    rewrite_loops,
    with_body,
    with_fragments,
    with_place,
    without_dead,
    without_unread,
)


def bind(func: Func, *loops_and_kind: str) -> Func:
    """Each iteration of the loops is a block of threads, or a thread of its block.

    loops_and_kind: the loops, then ``block`` or ``thread``.
    Raises ScheduleError if two of them touch one element, or fold into it, and where a thread needs
    what another one, or the block, wrote with no barrier between them.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[6]) {
    ...   for i in 2 parallel {
    ...     for j in 3 parallel {
    ...       %0: f32 = 2.0
    ...       y[3*i + j] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(bind(func, "i", "j", "block"))
    func f(y: out f32[6]) {
      for i in 2 block {
        for j in 3 block {
          %0: f32 = 2.0
          y[3*i + j] = %0
        }
      }
    }
    """
    *loops, word = loops_and_kind or ("",)
    check_word("a loop cannot be bound to", word, "block", "thread")
    if not loops:
        raise ScheduleError(f"no loop to bind to {word}", fix=f"write bind i {word}")
    if word == "block":
        return with_independent_kind(func, loops, "block")
    bound = dict.fromkeys(loops, True)
    for old in loops_of(func.body):
        if old.name in bound:
            bound[old.name] &= old.kind == "parallel"
    return with_independent_kind(func, loops, "thread", partial(checked, bound=bound))


def add_loop(func: Func, name: str) -> Func:
    """The whole function is the only iteration of a parallel loop, so that a block can run it.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[1]) {
    ...   %0: f32 = 2.0
    ...   y[0] = %0
    ... }''')
    >>> print(bind(add_loop(func, "b"), "b", "block"))
    func f(y: out f32[1]) {
      for b in 1 block {
        %0: f32 = 2.0
        y[0] = %0
      }
    }
    """
    check_new_names(func, name)
    return Func(func.name, func.params, (For(named_axis(name, 1), func.body, "parallel"),))


def set_space(func: Func, buffer: str, space: Space) -> Func:
    """A buffer that the function allocates lies in another space.

    Raises ScheduleError if there is no such buffer, and where its users could not see one another's
    elements in the new space, or index registers by loops that are not written out.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[4], y: out f32[4]) {
    ...   for b in 1 block {
    ...     alloc t: scratch f32[4]
    ...     for i in 4 {
    ...       %0: f32 = x[i]
    ...       t[i] = %0
    ...     }
    ...     for i in 4 {
    ...       %0: f32 = t[i]
    ...       y[i] = %0
    ...     }
    ...   }
    ... }''')
    >>> print(bind(set_space(func, "t", "shared"), "i", "thread"))
    func f(x: in f32[4], y: out f32[4]) {
      for b in 1 block {
        alloc t: shared f32[4]
        for i in 4 thread {
          %0: f32 = x[i]
          t[i] = %0
        }
        for i in 4 thread {
          %0_1: f32 = t[i]
          y[i] = %0_1
        }
      }
    }
    """
    check_word("nothing is allocated in", space, "scratch", "shared", "register", "fragment")
    moved = _moved(func, buffer, space)
    # Threads that share nothing but fragments need no barrier.
    return with_fragments(moved) if space == "fragment" else checked(moved)


def _moved(func: Func, buffer: str, space: Space) -> Func:
    """The function with a buffer in another space."""
    moved: dict[Buffer, Buffer] = {}

    def change(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer.name == buffer:
            old = stmt.buffer
            moved[old] = Buffer(old.name, old.dtype, old.size, space)
            return Alloc(moved[old])
        if isinstance(stmt, ACCESSES) and stmt.buffer in moved:
            return with_place(stmt, moved[stmt.buffer], stmt.index)
        return stmt

    body = map_statements(func.body, change)
    if not moved:
        raise ScheduleError(
            f"{func.name} allocates no buffer {buffer}", fix="name one of its alloc statements"
        )
    for access in accesses(body) if space == "register" else ():
        written_out = {w.axis for w in access.loops if w.kind in ("unroll", "vector")}
        others = access.index.axes() - written_out
        if access.buffer.name == buffer and others:
            raise ScheduleError(
                f"{buffer} is indexed by {', '.join(sorted(axis.name for axis in others))}, which "
                "is not written out",
                fix="unroll the loop first",
            )
    return Func(func.name, func.params, body)


def share(func: Func, *names: str, pad: int = 0) -> Func:
    """Scalars of a nest of parallel loops go through memory that the block shares.

    names: the loops, then the scalars, as ``%1``.  A nest of loops ``name.in`` in this order
    computes the scalars and stores them, with an element for each iteration, the last loop's side
    by side; behind a barrier the nest itself loads them.  So one nest may go along one axis and the
    other one along another.  Loops within the nest that fill private memory go to the first.
    pad: elements between two rows, so that a column is in several banks of the memory.
    Raises ScheduleError for an unknown loop or scalar, for loops that are no perfect nest of
    parallel loops, where loops within them write other memory, and outside of a block.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[6], y: out f32[6]) {
    ...   for b in 1 block {
    ...     for i in 2 parallel {
    ...       for j in 3 parallel {
    ...         %0: f32 = x[i + 2*j]
    ...         y[3*i + j] = %0
    ...       }
    ...     }
    ...   }
    ... }''')
    >>> print(share(func, "j", "i", "%0", pad=1))
    func f(x: in f32[6], y: out f32[6]) {
      for b in 1 block {
        alloc v0: shared f32[9]
        for j.in in 3 parallel {
          for i.in in 2 parallel {
            %0_1: f32 = x[i.in + 2*j.in]
            v0[i.in + 3*j.in] = %0_1
          }
        }
        barrier
        for i in 2 parallel {
          for j in 3 parallel {
            %0: f32 = v0[i + 3*j]
            y[3*i + j] = %0
          }
        }
      }
    }
    """
    loops = tuple(name for name in names if not name.startswith("%"))
    scalars = [name[1:] for name in names if name.startswith("%")]
    if not loops or not scalars:
        raise ScheduleError("no loops or no scalars to share", fix="write share i j %0")
    check_new_names(func, *(f"{loop}.in" for loop in loops))
    free = Names(func)
    order = [name for name in loop_names(func) if name in loops] or list(loops)

    def change(old: For, facts: Mask) -> Body:
        return _shared_nest(old, loops, scalars, pad, free, facts)

    return rewrite_loops(func, order[:1], change)


def _shared_nest(
    outermost: For,
    loops: tuple[str, ...],
    scalars: list[str],
    pad: int,
    names: Names,
    facts: Mask,
) -> Body:
    nest: dict[str, For] = {}
    body: Body = (outermost,)
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        nest[body[0].name] = body[0]
        body = body[0].body
    inside = [stmt for stmt in body if isinstance(stmt, NESTING)]
    writes = [access for access in outliving(body) if access.kind != "load"]
    is_cut = all(access.stmt in body for access in writes) and not contents_in(body).has_barrier
    if set(nest) != set(loops) or not is_cut:
        raise ScheduleError(
            f"{', '.join(loops)} are no perfect nest of parallel loops round straight code",
            fix="name all loops of a nest before they are bound",
        )
    results = [access.stmt for access in writes]
    # One element, which straight code only reads behind the loops that fill it.
    sums = {s.buffer for s in body if isinstance(s, Alloc) and s.buffer.size == 1 and inside}
    defined = {s.result.name: s for s in body if isinstance(s, (Let, Load))}
    missing = [name for name in scalars if name not in defined]
    if missing:
        raise ScheduleError(
            f"loop {outermost.name} computes no %{missing[0]}", fix="name a scalar of its body"
        )
    inner = {nest[name].axis: named_axis(f"{name}.in", nest[name].axis.size) for name in loops}
    *outer, last = (nest[name].axis for name in loops)
    index, size = Expr.of(last), last.size + pad
    for axis in reversed(outer):
        index, size = index + Expr.of(axis) * size, size * axis.size
    stores: list[Store] = []
    loads: list[Stmt] = []
    known: dict[Buffer, Buffer] = {}
    for name in scalars:
        source = defined[name]
        scalar = source.result
        register = source.buffer if isinstance(source, Load) and source.buffer in sums else None
        if register not in known:
            buffer = Buffer(names.buffer(f"v{name}"), scalar.dtype, size, "shared")
            stores.append(Store(buffer, index, scalar))
        if register is not None:
            buffer = known.setdefault(register, buffer)
        loads.append(Load(scalar, buffer, index))
    place = Substitution({a: Expr.of(b) for a, b in inner.items()}, facts, names)
    first = place(without_dead((*(s for s in body if s not in results), *stores)))
    rest = tuple(s for s in body if not (isinstance(s, (Let, Load)) and s.result.name in scalars))
    rest = without_unread(rest) if inside else rest
    for name in reversed(loops):
        first = (For(inner[nest[name].axis], first, "parallel", nest[name].end),)
    rest = without_dead((*loads, *rest))
    for loop in reversed(nest.values()):
        rest = (with_body(loop, rest),)
    return (*(Alloc(store.buffer) for store in stores), *first, Barrier(), *rest)


__all__ = ["add_loop", "bind", "set_space", "share"]
