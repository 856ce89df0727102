"""Products of tiles that several warps ask for together: both factors lie in shared memory, sums in
registers, which nothing but further products may touch until they are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.simt.target import GroupUnit
from bringup.llvm.simt.tiles import TileMemory
from bringup.llvm.text import Val
from bringup.loops.form import Body, Buffer, For, If, Load, Stmt, Store, statements
from bringup.loops.schedule.tensors import TileProduct
from bringup.records import record

#: Threads that multiply together; rows of a product, and bytes of its inner elements.
THREADS, ROWS, BYTES = 128, 64, 32
#: Bytes of a piece of a factor, and of those after which the change of places repeats.
PIECE, PERIOD = 128, 1024
#: Columns, or rows, that a lane has two of.
_EIGHT = 8


def asks(stmt: Stmt) -> bool:
    """Whether a statement asks for products that come later."""
    return any(isinstance(s, Store) and s.later and bool(s.fold) for s in statements((stmt,)))


def asking_threads(body: Body) -> int:
    """How many threads of a block ask for such products."""
    most = 1
    for stmt in body:
        if isinstance(stmt, For | If) and asks(stmt):
            own = stmt.axis.size if isinstance(stmt, For) and stmt.kind == "thread" else 1
            most = max(most, own * asking_threads(stmt.body))
    return most


def factors(body: Body) -> set[Buffer]:
    """The buffers that such products read."""
    asked = [s for s in statements(body) if isinstance(s, For) and s.by and asks(s)]
    return {s.buffer for loop in asked for s in statements(loop.body) if isinstance(s, Load)}


class GroupProducts:
    """The products of a function."""

    def __init__(self, memory: TileMemory, unit: GroupUnit) -> None:
        self.memory, self.unit = memory, unit
        self.b, self.indices = memory.b, memory.indices
        self.known: dict[For, _Asked] = {}
        #: Sums that have been asked for, each a buffer with its registers.
        self.sums: dict[tuple[str, int], tuple[Buffer, list[int]]] = {}
        self.forget()

    def forget(self) -> None:
        """What is described or fenced is not so any more."""
        self.described: dict[tuple[str, str], Val] = {}
        self.fenced: set[tuple[str, int]] = set()

    def emit(self, loop: For) -> None:
        """Ask for the products that a loop with a shape says.  Raises UnsupportedError."""
        if loop not in self.known:
            self.known[loop] = _Asked.of(loop, self.unit)
        asked = self.known[loop]
        first = self.indices.scalar(asked.first).integer
        assert first is not None, "sums are registers"
        sums = asked.product.sums.buffer
        name, places = (sums.name, first), [first + place for place in asked.places]
        self.sums[name] = sums, places
        if name not in self.fenced:
            self._replace(sums, places, self.unit.fence(self.b, self._values(sums, places)))
            self.fenced.add(name)
        left, right = (self.factor(factor) for factor in asked.factors)
        along = asked.factors[0].is_along, asked.factors[1].is_along
        kind, values = asked.product.left.result.dtype.name, self._values(sums, places)
        products = self.unit.multiply(self.b, kind, values, (left, right), along)
        self._replace(sums, places, products)

    def commit(self) -> None:
        """What was asked for becomes a group."""
        self.unit.commit(self.b)
        self.fenced.clear()

    def wait(self, pending: int) -> None:
        """Wait for all groups but the last ones."""
        if pending or not self.sums:
            self.unit.wait(self.b, pending, ())
            return
        for sums, places in self.sums.values():
            self._replace(sums, places, self.unit.wait(self.b, 0, self._values(sums, places)))

    def _values(self, buffer: Buffer, places: Sequence[int]) -> list[Val]:
        return [self.memory.registers.read(buffer, place, 1) for place in places]

    def _replace(self, buffer: Buffer, places: Sequence[int], values: Sequence[Val]) -> None:
        for place, value in zip(places, values, strict=True):
            self.memory.registers.write(buffer, place, value)

    def factor(self, factor: _Operand) -> Val:
        """The description of a factor."""
        name, size = factor.load.buffer.name, factor.load.buffer.dtype.itemsize
        constant, terms = factor.start.const, []
        for atom, c in factor.start.terms:
            known = self.indices.axes[atom].integer if isinstance(atom, Axis) else None
            if known is None:
                terms.append((atom, c))
            else:
                constant += c * known
        start = Expr(0, tuple(terms))
        key = name, str(start)
        if key not in self.described:
            address = self.memory.plain_address(name, start * size, (), ir.i8)
            address = self.b.ptrtoint(address, ir.i64)
            self.described[key] = self.unit.factor(self.b, address, factor.beside * size)
        return self.unit.moved(self.b, self.described[key], constant * size)


@record(eq=False)
class _Operand:
    """A factor in shared memory.

    start: the index of its first element.  is_along: whether pieces run along rows or columns.
    beside: elements from one such piece to the next, 0 where there is one.
    """

    load: Load
    start: Expr
    is_along: bool
    beside: int

    @staticmethod
    def of(load: Load, own: Sequence[For], inner: For) -> _Operand:
        """The factor that a load reads.  own: its loops over rows or columns, outermost first.

        Raises UnsupportedError.
        """
        size, buffer = load.buffer.dtype.itemsize, load.buffer
        start = load.index.substitute({loop.axis: Expr() for loop in (*own, inner)})
        line, step = PIECE // size, load.index.coefficient(inner.axis)
        places = _places(load.index, own)
        is_along, beside = step == line, 0
        if is_along and len(places) > line:
            beside = places[line]
        wanted = [
            n % line + n // line * beside if is_along else n * line for n in range(len(places))
        ]
        if step not in (1, line) or buffer.swizzle != line or places != wanted:
            raise UnsupportedError(f"{buffer.name} does not lie in pieces of {PIECE} bytes")
        parts = [n * size for n in (start.const, beside, *(c for _, c in start.terms))]
        if is_along:
            is_whole = all(n % PERIOD == 0 for n in parts)
        else:
            is_whole = all(n % PERIOD == 0 or (n < PIECE and n % BYTES == 0) for n in parts)
        if not is_whole:
            raise UnsupportedError(f"tiles of {buffer.name} begin within eight pieces")
        return _Operand(load, start, is_along, beside)


@record(eq=False)
class _Asked:
    """Products of a loop: the factors, left and right, and where the sums of a lane are.

    first: the index of the first sum among the registers.  places: how far behind it each is, in
    the order of the instruction.
    """

    product: TileProduct
    factors: tuple[_Operand, _Operand]
    first: Expr
    places: Sequence[int]

    @staticmethod
    def of(loop: For, unit: GroupUnit) -> _Asked:
        """The products that a loop says.  Raises UnsupportedError."""
        made = TileProduct.of(loop)
        if made is None:
            raise UnsupportedError(f"no unit of this GPU does what loop {loop.name} says")
        kind, sums = made.left.result.dtype, made.sums
        rows, columns, inner = (int(n) for n in made.shape.split("x"))
        is_known = sums.buffer.dtype.name in unit.dtypes.get(kind.name, ())
        is_known &= kind == made.right.result.dtype and len(made.inner) == 1
        is_known &= rows == ROWS and inner * kind.itemsize == BYTES
        is_known &= columns <= unit.columns and columns % _EIGHT == 0
        ends = (*made.columns[:1], *made.columns[-1:])
        lanes = [(v.kind, v.axis.size) for v in (*made.rows, *ends)]
        own = [("thread", 4), ("thread", 8), ("unroll", 2), ("thread", 4), ("unroll", 2)]
        blocks = made.columns[1:-1]
        if not is_known or lanes != own or any(v.kind != "unroll" for v in blocks):
            raise UnsupportedError(f"no unit multiplies as loop {loop.name} says: {loop.by}")
        warps, down, halves = made.rows
        across, pair = made.columns[0], made.columns[-1]
        factors = (
            _Operand.of(made.left, (warps, halves, down), made.inner[0]),
            _Operand.of(made.right, (*blocks, across, pair), made.inner[0]),
        )
        places = _places(sums.index, (*blocks, halves, pair))
        first = sums.index.substitute({v.axis: Expr() for v in (*made.rows, *made.columns)})
        return _Asked(made, factors, first, places)


def _places(index: Expr, nest: Sequence[For]) -> list[int]:
    """How far each iteration of a nest is behind the first."""
    places = [0]
    for loop in nest:
        step = index.coefficient(loop.axis) or 0
        places = [place + step * n for place in places for n in range(loop.axis.size)]
    return places


__all__ = [
    "PERIOD",
    "PIECE",
    "ROWS",
    "THREADS",
    "GroupProducts",
    "asking_threads",
    "asks",
    "factors",
]
