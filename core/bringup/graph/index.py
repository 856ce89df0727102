"""Index expressions: integer-valued, quasi-affine in the loop axes of a kernel.

An `Expr` is ``const + Σ coefficient · atom``; an atom is an `Axis`, or ``e // n`` (`Div`) or ``e %
n`` (`Mod`) of another expression, or the value of a loaded index (`Dyn`).  Every atom knows its
range, so that divisions introduced by reshapes fold away when the parts are put together again.
Equal expressions compare equal, and what adding and dividing them gives is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from bringup.graph import Value
from bringup.records import record


@record(keep_hash=True)
class Axis:
    """A loop variable running over ``0 … size - 1``.

    id: in a kernel, grid axes are numbered first, then inner axes.
    name: of a loop of a `bringup.loops.Func`, whose axes have names in place of numbers.
    """

    id: int
    size: int
    name: str = ""

    @property
    def last(self) -> int:
        """The greatest value it takes."""
        return self.size - 1 if self.size else 0

    @property
    def first(self) -> int:
        """The least value it takes."""
        return 0

    def __str__(self) -> str:
        return f"{self.name or f'a{self.id}'}[{self.size}]"


@record(keep_hash=True)
class Dyn:
    """The value of operand ``operand`` of the instruction that owns the expression, known to lie in
    ``first … last``.
    """

    operand: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"d{self.operand}[{self.first}:{self.last}]"


@record(keep_hash=True)
class Div:
    """Floor division of an expression by a positive integer."""

    of: Expr
    by: int

    @property
    def first(self) -> int:
        """The least value it takes."""
        return self.of.first // self.by

    @property
    def last(self) -> int:
        """The greatest value it takes."""
        return self.of.last // self.by

    def __str__(self) -> str:
        return f"({self.of})//{self.by}"


@record(keep_hash=True)
class Mod:
    """Remainder (never negative) of an expression by a positive integer."""

    of: Expr
    by: int

    @property
    def first(self) -> int:
        """The least value it takes."""
        return 0

    @property
    def last(self) -> int:
        """The greatest value it takes."""
        return self.by - 1

    def __str__(self) -> str:
        return f"({self.of})%{self.by}"


@record(keep_hash=True)
class Element:
    """The element ``index`` of a value, kept in ``0 … last``: an index that is data.

    It stands in expressions while a region is lowered; the kernel has a `Dyn` in its place.
    mask: where it may be read.
    """

    value: Value
    index: tuple[Expr, ...]
    mask: tuple[Bound, ...]
    last: int

    @property
    def first(self) -> int:
        """The least value it takes."""
        return 0

    def axes(self) -> frozenset[Axis]:
        """Every axis it depends on."""
        exprs = (*self.index, *(b.expr for b in self.mask))
        return frozenset[Axis]().union(*(e.axes() for e in exprs))

    def __str__(self) -> str:
        return f"{self.value.type}({', '.join(map(str, self.index))})[0:{self.last}]"


Atom = Axis | Dyn | Div | Mod | Element

#: How many results of each operation are remembered: the same few come up again and again while a
#: region is tried and lowered.
_MEMO = 1 << 16


@record(keep_hash=True)
class Expr:
    """``const + Σ coefficient · atom``; ``terms`` holds (atom, coefficient != 0) in a canonical
    order.
    """

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    def of(value: Expr | Atom | int) -> Expr:
        """An expression from an integer, an atom (axes of size 1 are the constant 0) or an
        expression.
        """
        if isinstance(value, Expr):
            return value
        if isinstance(value, int):
            return Expr(value)
        if isinstance(value, Axis) and value.size == 1:
            return ZERO
        return Expr(0, ((value, 1),))

    @property
    def is_const(self) -> bool:
        """Whether no axis occurs in it."""
        return not self.terms

    @property
    def first(self) -> int:
        """A lower bound of the value."""
        total = self.const
        for atom, c in self.terms:
            total += c * (atom.first if c > 0 else atom.last)
        return total

    @property
    def last(self) -> int:
        """An upper bound of the value."""
        total = self.const
        for atom, c in self.terms:
            total += c * (atom.last if c > 0 else atom.first)
        return total

    @property
    def axis(self) -> Axis | None:
        """The axis, if the expression is exactly one axis."""
        if self.const == 0 and len(self.terms) == 1:
            atom, coefficient = self.terms[0]
            if coefficient == 1 and isinstance(atom, Axis):
                return atom
        return None

    def coefficient(self, axis: Axis) -> int | None:
        """The stride along `axis`: 0 if absent, None if the axis stands inside a division,
        remainder or not alone.
        """
        stride = 0
        for atom, c in self.terms:
            if isinstance(atom, Axis):
                if atom is axis or atom == axis:
                    stride = c
            elif axis in _axes_within(atom):
                return None
        return stride

    def axes(self) -> frozenset[Axis]:
        """Every axis the value depends on."""
        found: set[Axis] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Axis):
                found.add(atom)
            else:
                found |= _axes_within(atom)
        return frozenset(found)

    def atoms(self) -> Iterable[Atom]:
        """Every atom, nested ones included."""
        for atom, _ in self.terms:
            yield atom
            if isinstance(atom, (Div, Mod)):
                yield from atom.of.atoms()

    @property
    def is_affine(self) -> bool:
        """No division or remainder anywhere."""
        return all(isinstance(atom, (Axis, Dyn)) for atom, _ in self.terms)

    def __add__(self, other: Expr | Atom | int) -> Expr:
        if isinstance(other, int):
            return Expr(self.const + other, self.terms) if other else self
        return _sum(self, Expr.of(other))

    def __mul__(self, factor: int) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Expr(self.const * factor, tuple([(a, c * factor) for a, c in self.terms]))

    def __floordiv__(self, by: int) -> Expr:
        return _quotient(self, by)

    def __mod__(self, by: int) -> Expr:
        return _remainder(self, by)

    def substitute(self, table: Mapping[Axis, Expr]) -> Expr:
        """Replace axes, simplifying on the way; the expression itself if it has none of them."""
        const, terms, is_changed = self.const, list[tuple[Atom, int]](), False
        for term in self.terms:
            atom, c = term
            part: Expr | None = None
            if isinstance(atom, Axis):
                part = table.get(atom)
            elif isinstance(atom, (Div, Mod)):
                of = atom.of.substitute(table)
                if of is not atom.of:
                    part = of // atom.by if isinstance(atom, Div) else of % atom.by
            if part is None:
                terms.append(term)
                continue
            is_changed = True
            const += part.const * c
            terms += part.terms if c == 1 else [(a, d * c) for a, d in part.terms]
        return _collect(const, terms) if is_changed else self

    def rewrite(self, leaf: Callable[[Axis | Dyn | Element], Expr | None]) -> Expr:
        """Replace leaves (None keeps one), simplifying on the way."""
        const, terms = self.const, list[tuple[Atom, int]]()
        for atom, c in self.terms:
            part: Expr | None
            if isinstance(atom, Div):
                part = atom.of.rewrite(leaf) // atom.by
            elif isinstance(atom, Mod):
                part = atom.of.rewrite(leaf) % atom.by
            else:
                part = leaf(atom)
            if part is None:
                terms.append((atom, c))
            else:
                const += part.const * c
                terms += [(a, d * c) for a, d in part.terms]
        return _collect(const, terms)

    def __str__(self) -> str:
        parts = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    def __ir__(self) -> str:
        return f"index<{self}>"


ZERO = Expr()


def _axes_within(atom: Atom) -> frozenset[Axis]:
    """The axes that an atom hides."""
    if isinstance(atom, (Div, Mod)):
        return atom.of.axes()
    return atom.axes() if isinstance(atom, Element) else frozenset()


@record(keep_hash=True)
class Bound:
    """The condition ``low <= expr < high``."""

    expr: Expr
    low: int
    high: int

    @property
    def always(self) -> bool:
        """Whether it holds wherever its axes stand."""
        return self.expr.first >= self.low and self.expr.last < self.high

    @property
    def never(self) -> bool:
        """Whether it holds nowhere."""
        return self.expr.last < self.low or self.expr.first >= self.high

    def __str__(self) -> str:
        return f"{self.low} <= {self.expr} < {self.high}"

    def __ir__(self) -> str:
        return f"bound<{self.low}:{self.high} {self.expr}>"


@lru_cache(maxsize=_MEMO)
def _sum(one: Expr, other: Expr) -> Expr:
    return _collect(one.const + other.const, (*one.terms, *other.terms))


@lru_cache(maxsize=_MEMO)
def _quotient(expr: Expr, by: int) -> Expr:
    whole, rest = _split(expr, by)
    if rest.first >= 0 and rest.last < by:
        return whole
    coarse = _coarser(rest, by)
    if coarse is not None:
        step, high, _ = coarse
        return whole + high // (by // step)
    return whole + Expr(0, ((Div(rest, by), 1),))


@lru_cache(maxsize=_MEMO)
def _remainder(expr: Expr, by: int) -> Expr:
    if by == 1:
        return ZERO
    _, rest = _split(expr, by)
    if rest.first >= 0 and rest.last < by:
        return rest
    coarse = _coarser(rest, by)
    if coarse is not None:
        step, high, low = coarse
        return (high % (by // step)) * step + low
    return Expr(0, ((Mod(rest, by), 1),))


def forget() -> None:
    """Let go of all results that are remembered; the values of `Element` live as long as they."""
    for memo in (_sum, _quotient, _remainder, _order):
        memo.cache_clear()


@lru_cache(maxsize=_MEMO)
def _order(atom: Atom) -> tuple[int, str]:
    if isinstance(atom, Axis):
        return (0, f"{atom.id:06d}{atom.name}")
    return ({Dyn: 1, Div: 2, Mod: 3, Element: 4}[type(atom)], str(atom))


def _collect(const: int, terms: Sequence[tuple[Atom, int]]) -> Expr:
    if len(terms) == 1:
        return Expr(const, tuple(terms)) if terms[0][1] else Expr(const)
    table: dict[Atom, int] = {}
    for atom, c in terms:
        before = len(table)
        known = table.setdefault(atom, c)
        if len(table) == before:
            table[atom] = known + c
    while (merged := _recombine(table)) is not None:
        extra, remove = merged
        for atom in remove:
            del table[atom]
        const += extra.const
        for atom, c in extra.terms:
            table[atom] = table.get(atom, 0) + c
    kept = [term for term in table.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=_order_of_term)
    return Expr(const, tuple(kept))


def _order_of_term(term: tuple[Atom, int]) -> tuple[int, str]:
    return _order(term[0])


def _recombine(table: Mapping[Atom, int]) -> tuple[Expr, tuple[Atom, ...]] | None:
    """``(e // n)·n·c + (e % n)·c  ->  e·c`` and ``((e // n) % m)·n·c + (e % n)·c  ->  (e %
    (n·m))·c``.
    """
    for atom, c in table.items():
        if not isinstance(atom, Mod) or c == 0:
            continue
        quotient, n = atom.of // atom.by, atom.by
        if len(quotient.terms) == 1 and quotient.const == 0 and quotient.terms[0][1] == 1:
            whole = quotient.terms[0][0]
            if table.get(whole, 0) == n * c:
                return atom.of * c, (atom, whole)
        for other, d in table.items():
            if isinstance(other, Mod) and d == n * c and other.of == quotient:
                return (atom.of % (n * other.by)) * c, (atom, other)
    return None


def _split(expr: Expr, by: int) -> tuple[Expr, Expr]:
    """``expr = by · whole + rest`` with everything divisible moved into ``whole``, and where the
    rest then lies below ``by``, every multiple of ``by`` in a coefficient too.
    """
    if any(abs(c) > by and c % by for _, c in expr.terms):
        least = Expr(expr.const % by, tuple((a, c % by) for a, c in expr.terms if c % by))
        if least.first >= 0 and least.last < by:
            parts = [(a, c // by) for a, c in expr.terms if c // by]
            return _collect(expr.const // by, parts), least
    whole = [(a, c // by) for a, c in expr.terms if c % by == 0]
    rest = [(a, c) for a, c in expr.terms if c % by != 0]
    return _collect(expr.const // by, whole), _collect(expr.const % by, rest)


def _coarser(expr: Expr, by: int) -> tuple[int, Expr, Expr] | None:
    """``(step, high, low)`` with ``expr = step · high + low``, ``step`` a divisor of ``by`` and
    ``low`` always below it: dividing by ``by`` then takes no look at ``low``.
    """
    for step in sorted({math.gcd(c, by) for _, c in expr.terms}, reverse=True):
        low = Expr(expr.const % step, tuple((a, c) for a, c in expr.terms if c % step))
        if step > 1 and low.first >= 0 and low.last < step:
            high = _collect(
                expr.const // step, [(a, c // step) for a, c in expr.terms if c % step == 0]
            )
            return step, high, low
    return None


def flatten(index: Iterable[Expr], shape: Iterable[int]) -> Expr:
    """The row-major offset of a multi-dimensional index."""
    offset = ZERO
    for e, n in zip(index, shape, strict=True):
        offset = offset * n + e
    return offset


def unflatten(offset: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """The multi-dimensional index of a row-major offset known to be in range."""
    if 0 in shape:
        return (ZERO,) * len(shape)
    index: list[Expr] = []
    step = 1
    for position, n in reversed(list(enumerate(shape))):
        part = offset // step
        index.append(part % n if position else part)
        step *= n
    return tuple(reversed(index))


Index = tuple[Expr, ...]
Mask = tuple[Bound, ...]


@record
class Source:
    """Where an element of a result comes from: operand number ``operand`` at ``index``, where every
    bound holds.

    inside: elements that must lie where they may; otherwise the element is 0.
    """

    operand: int
    index: Index
    bounds: Mask = ()
    inside: tuple[Element, ...] = ()


def elements_in(exprs: Iterable[Expr]) -> Iterator[Element]:
    """Every element of a value that the expressions name."""
    return (atom for e in exprs for atom in e.atoms() if isinstance(atom, Element))


def elements_of(source: Source) -> Iterator[Element]:
    """Every element of a value that a source needs before it can be read."""
    yield from source.inside
    yield from elements_in((*source.index, *(b.expr for b in source.bounds)))
