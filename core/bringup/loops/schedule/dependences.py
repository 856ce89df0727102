"""Which iterations of loops touch the same memory, so that their order matters.

Folds of one monoid into one element may come in any order, so they never conflict.  An ``out``
parameter may have the memory of an ``in`` parameter that is read at the index at which it is
written (`bringup.loops.form.Param`), so those two count as one buffer there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from bringup.graph.index import Atom, Axis, Div, Dyn, Expr, Mask, Mod
from bringup.kernel.ranges import span
from bringup.loops.contents import contents_in
from bringup.loops.form import (
    DEFINING,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    If,
    Load,
    Scalar,
    Store,
    statements,
)
from bringup.records import record


@record(eq=False)
class Access:
    """One load or store within a block.

    facts: what holds wherever it happens.
    loops: those of the block round it.
    on_data: whether data decides, too, where it happens.
    outer: those of its operands that are defined outside the block.
    """

    stmt: Load | Store
    facts: Mask
    loops: tuple[For, ...]
    on_data: bool = False
    outer: frozenset[Scalar] = frozenset()

    @property
    def kind(self) -> str:
        """``load``, ``store``, or the monoid of a fold."""
        return "load" if isinstance(self.stmt, Load) else self.stmt.fold or "store"

    @property
    def is_atomic(self) -> bool:
        """Whether iterations side by side may do it to one element."""
        return isinstance(self.stmt, Store) and self.stmt.atomic

    @property
    def buffer(self) -> Buffer:
        """What it touches."""
        return self.stmt.buffer

    @property
    def index(self) -> Expr:
        """Where."""
        return self.stmt.index

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Those of the loops."""
        return tuple(loop.axis for loop in self.loops)


def accesses(
    body: Body, facts: Mask = (), loops: tuple[For, ...] = (), on_data: bool = False
) -> Iterator[Access]:
    """The accesses of a block, in order."""
    for stmt in body:
        match stmt:
            case Load() | Store():
                yield Access(stmt, facts + stmt.mask, loops, on_data)
            case For():
                yield from accesses(stmt.body, facts + stmt.bounds, (*loops, stmt), on_data)
            case If():
                tested = on_data or stmt.test is not None
                yield from accesses(stmt.body, facts + stmt.mask, loops, tested)


def outliving(body: Body, facts: Mask = (), loops: tuple[For, ...] = ()) -> list[Access]:
    """The accesses of a block to memory that outlives it."""
    found = list(accesses(body, facts, loops))
    if contents_in(body).buffers:
        private = {stmt.buffer for stmt in statements(body) if isinstance(stmt, Alloc)}
        found = [access for access in found if access.stmt.buffer not in private]
    if any(access.stmt.operands for access in found):
        inside = {stmt.result for stmt in statements(body) if isinstance(stmt, DEFINING)}
        found = [replace(a, outer=frozenset(a.stmt.operands) - inside) for a in found]
    return found


def private_accesses(func: Func) -> dict[Buffer, list[Access]]:
    """The accesses to each buffer that the function allocates, with the loops inside its scope."""
    found: dict[Buffer, list[Access]] = {}

    def walk(body: Body) -> None:
        for number, stmt in enumerate(body):
            if isinstance(stmt, Alloc):
                scope = accesses(body[number + 1 :])
                mine = [access for access in scope if access.buffer == stmt.buffer]
                found.setdefault(stmt.buffer, []).extend(mine)
            elif isinstance(stmt, NESTING):
                walk(stmt.body)

    walk(func.body)
    return found


def may_conflict(one: Access, other: Access) -> bool:
    """Whether the order of two accesses matters if they meet at one element."""
    if one.kind == other.kind and one.kind != "store":
        return False
    if one.buffer == other.buffer:
        return True
    if "load" not in (one.kind, other.kind) or not may_share(one.buffer, other.buffer):
        return False
    load, store = (one, other) if one.kind == "load" else (other, one)
    if _is_read_again(load, store):
        return False
    return one.axes != other.axes or _is_equal(one.index, other.index)


def _is_read_again(load: Access, store: Access) -> bool:
    """Whether iterations of a loop round both read one element, and each writes another.

    Then some would read what another has written, so the two are not the same memory.
    """
    written = store.index.axes() - load.index.axes()
    return not load.stmt.operands and any(
        axis.size > 1 and axis in written for axis in load.axes if axis in store.axes
    )


def may_share(one: Buffer, other: Buffer) -> bool:
    """Whether a parameter that is read may have the memory of one that is written.

    It may only if every element is read by the iteration that writes it.
    """
    return (
        one.space == other.space == "global"
        and one.dtype.itemsize == other.dtype.itemsize
        and one.size == other.size
    )


def _is_equal(one: Expr, other: Expr) -> bool:
    """Whether two expressions are equal; parsed ones have their terms in the order of the text."""
    return one is other or (one.const == other.const and dict(one.terms) == dict(other.terms))


def conflicts(body: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Every pair of accesses whose order may matter, those of one statement with itself too."""
    for number, one in enumerate(body):
        if one.kind == "load":
            pairs = [other for other in body[number + 1 :] if other.kind != "load"]
        else:
            pairs = list(body[number:])
        for other in pairs:
            if may_conflict(one, other):
                yield one, other


def is_apart(one: Access, other: Access, inner: frozenset[Axis]) -> bool:
    """Whether intervals show that two accesses meet at no element; ``inner``: see
    `meets_only_within`.
    """
    first, second = _parts(one, inner), _parts(other, inner)
    if first.fixed == second.fixed:
        return _is_apart(first, second)
    # Loops that both are in may be in different iterations.
    if not inner.isdisjoint(_named(one) & _named(other)):
        return False
    low, high = span(one.index + other.index * -1, one.facts + other.facts)
    return low > 0 or high < 0


def _named(access: Access) -> frozenset[Axis]:
    """The loops in the index of an access and in the conditions round it."""
    return access.index.axes().union(*(bound.expr.axes() for bound in access.facts))


def meets_only_within(one: Access, other: Access, axis: Axis, inner: frozenset[Axis]) -> bool:
    """Whether two accesses that meet at one element do so in the same iteration of ``axis``.

    inner: the axes that may differ between the two; all others have one value.

    With the index ``a·x + b·y + c·z``, where ``a`` and every greater coefficient is a multiple of
    more than ``b·y + c·z`` can differ by, equal indices have equal parts ``a·x``, and equal rests;
    so do then ``y`` and ``z``.
    """
    if one.index == other.index and axis in _settled(one.index):
        return True
    first, second = _parts(one, inner), _parts(other, inner)
    if first.fixed == second.fixed:
        if _has_agreed(first, second, axis):
            return True
        if first is not second and _is_apart(first, second):
            return True
        if _is_in_agreeing_quotients(first, second, axis):
            return True
    return _has_one_value(Expr.of(axis), one.facts, other.facts)


def _has_agreed(one: _Parts, other: _Parts, atom: Atom) -> bool:
    """Whether an atom stands in both indices and has one value wherever they are equal."""
    c = one.terms.get(atom)
    return c is not None and c == other.terms.get(atom) and _agrees(one, other, atom)


def _is_in_agreeing_quotients(one: _Parts, other: _Parts, axis: Axis) -> bool:
    """Whether equal quotients and remainders leave the axis one value.

    A loop that was fused, or a sum of loops that it was split into, stands in the index as its
    digits: ``x//32``, ``(x//4)%8`` and ``x%4`` are all of ``x``.  A whole of which all digits agree
    may have quotients as terms, which are digits of another one.
    """
    digits: dict[Expr, dict[int, int | None]] = {}
    wholes: set[Expr] = set()
    new = [(one, other)]
    while new:
        first, second = new.pop()
        for atom in first.terms:
            if not _has_agreed(first, second, atom):
                continue
            if atom == axis:
                return True
            if isinstance(atom, (Div, Mod)):
                whole, low, high = _digit(atom)
                digits.setdefault(whole, {})[low] = high
        for whole in [w for w in digits if w not in wholes]:
            if _has_all_digits(whole, digits[whole], one.facts, other.facts):
                wholes.add(whole)
                parts = one.of(whole), other.of(whole)
                new += [parts] if parts[0].fixed == parts[1].fixed else []
    return False


def _has_all_digits(
    whole: Expr, digits: Mapping[int, int | None], facts: Mask, others: Mask
) -> bool:
    """Whether digits, by the place where each begins, with the place where it ends, are a whole."""
    below: int | None = 1
    for low in sorted(digits):
        if below is not None and low > below and not low % below:
            # The digit between has no choice, or the whole has more values than the parts.
            between = whole // below % (low // below)
            below = low if _has_one_value(between, facts, others) else below
        below = digits[low] if low == below else below
    return below is None or _has_one_value(whole // below, facts, others)


def _digit(atom: Div | Mod) -> tuple[Expr, int, int | None]:
    """What a quotient or a remainder is a digit of: ``whole//low``, modulo ``high//low`` if any."""
    whole, low, count = atom.of, 1, atom.by if isinstance(atom, Mod) else None
    if isinstance(atom, Div):
        low = atom.by
    # A sum of a quotient and of integers is the quotient of a sum.
    while len(inner := [a for a, c in whole.terms if c == 1 and isinstance(a, Div)]) == 1:
        (part,) = inner
        whole = part.of + (whole + Expr.of(part) * -1) * part.by
        low *= part.by
    return whole, low, None if count is None else low * count


def _has_one_value(expr: Expr, facts: Mask, others: Mask) -> bool:
    """Whether conditions leave the expression one value, the same where the others hold."""
    low, high = span(expr, facts)
    return low == high and span(expr, others) == (low, low)


@lru_cache(maxsize=1 << 10)
def _settled(index: Expr) -> frozenset[Axis]:
    """The axes that have one value wherever the index has one, under any conditions."""
    if any(isinstance(atom, Dyn) for atom in index.atoms()):
        return frozenset()
    parts = _Parts(index, index.axes())
    return frozenset(a for a, _ in index.terms if isinstance(a, Axis) and _agrees(parts, parts, a))


class _Parts:
    """The terms of an index that may differ between two iterations, and what is fixed."""

    def __init__(
        self,
        index: Expr,
        inner: frozenset[Axis],
        facts: Mask = (),
        operands: Sequence[Scalar] = (),
        outer: frozenset[Scalar] = frozenset(),
    ) -> None:
        """operands, outer: as in `Load` and `Access`."""
        self.const = index.const
        self.inner, self.facts = inner, facts
        self.operands, self.outer = operands, outer
        self.terms: dict[Atom, int] = {}
        fixed: list[tuple[object, int]] = []
        for atom, c in index.terms:
            if isinstance(atom, Axis):
                varies = atom in inner
            elif isinstance(atom, Dyn) and operands[atom.operand] in outer:
                fixed.append((operands[atom.operand], c))
                continue
            else:
                # A loaded index may differ as the memory that it came from.
                varies = isinstance(atom, Dyn) or not inner.isdisjoint(Expr(0, ((atom, 1),)).axes())
                varies = varies or any(isinstance(a, Dyn) for a in Expr(0, ((atom, 1),)).atoms())
            if varies:
                self.terms[atom] = c
            else:
                fixed.append((atom, c))
        self.fixed = tuple(fixed)

    def of(self, expr: Expr) -> _Parts:
        """The parts of another expression at the same access."""
        return _Parts(expr, self.inner, self.facts, self.operands, self.outer)

    def span(self, below: int | None = None, but: Atom | None = None) -> tuple[int, int]:
        """The range of the terms with coefficients up to ``below``, all if None, but one atom."""
        terms = tuple(
            (a, c) for a, c in self.terms.items() if a != but and (below is None or abs(c) <= below)
        )
        return span(Expr(0, terms), self.facts) if terms else (0, 0)


@lru_cache(maxsize=1 << 8)
def _parts(access: Access, inner: frozenset[Axis]) -> _Parts:
    """Those of an access: a check compares it with every other one, loop by loop."""
    return _Parts(access.index, inner, access.facts, access.stmt.operands, access.outer)


def are_apart(one: Access, other: Access) -> bool:
    """Whether no iterations of any loops touch one element by these two accesses.

    False also where ranges and divisors of indices do not decide.
    """
    inner = frozenset((*one.index.axes(), *other.index.axes()))
    return _is_apart(_parts(one, inner), _parts(other, inner))


def _is_apart(one: _Parts, other: _Parts) -> bool:
    """Whether no element is touched by both."""
    low, high = one.span()
    least, most = other.span()
    shift = one.const - other.const
    if low + shift > most or high + shift < least:
        return True
    divisor = math.gcd(*one.terms.values(), *other.terms.values())
    return divisor > 1 and shift % divisor != 0


def _agrees(one: _Parts, other: _Parts, atom: Atom) -> bool:
    """Whether the atom has one value wherever the two indices are equal; both have it."""
    c = abs(one.terms[atom])
    if isinstance(atom, Dyn) or any(isinstance(a, Dyn) for a in Expr(0, ((atom, 1),)).atoms()):
        return False
    shift = one.const - other.const
    greater = [f for p in (one, other) for f in p.terms.values() if abs(f) > c]
    # Greater parts are equal, and out of question, where smaller ones cannot make up for a step.
    group: list[int] = []
    for size in sorted(set(map(abs, greater)), reverse=True):
        group += [f for f in greater if abs(f) == size]
        (low, high), (least, most) = one.span(size - 1), other.span(size - 1)
        if max(high - least + shift, most - low - shift) < math.gcd(*group):
            group = []
    if group:
        return False
    (low, high), (least, most) = one.span(c, atom), other.span(c, atom)
    return max(high - least + shift, most - low - shift) < c


__all__ = [
    "Access",
    "accesses",
    "are_apart",
    "conflicts",
    "is_apart",
    "may_conflict",
    "may_share",
    "meets_only_within",
    "outliving",
    "private_accesses",
]
