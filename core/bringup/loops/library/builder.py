"""Functions of the loop level written as algorithms: each call adds a statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from bringup.dtypes import DType, Precision, f32
from bringup.graph import Literal
from bringup.graph.index import ZERO, Axis, Bound, Dyn, Expr
from bringup.kernel.ops import KERNEL_OPS
from bringup.loops.form import (
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
    Param,
    Role,
    Scalar,
    Shuffle,
    Space,
    Stmt,
    Store,
    Wait,
    named_axis,
)
from bringup.ops.table import Attrs, OpDef, lookup
from bringup.types import TensorType

#: Scalars that the `Dyn` atoms of an index name, by their numbers.
Named = Sequence[Scalar]


def below(expr: Expr, end: int) -> Bound:
    """The condition ``0 <= expr < end``."""
    return Bound(expr, 0, end)


def at_least_one(expr: Expr) -> Bound:
    """The condition ``1 <= expr``: that a loop which ends there has an iteration."""
    return Bound(expr, 1, max(expr.last, 1) + 1)


def data(size: int, number: int = 0) -> Expr:
    """The value of operand ``number`` of the access as an index, known to be in 0 … size − 1."""
    return Expr.of(Dyn(number, 0, max(size - 1, 0)))


def wide(dtype: DType) -> DType:
    """The dtype to compute in: f32 for narrower floats."""
    return f32 if dtype.is_float and dtype.bits <= 16 else dtype


@lru_cache(maxsize=1 << 10)
def _typed(
    name: str, dtypes: tuple[DType, ...], attrs: tuple[tuple[str, object], ...]
) -> tuple[OpDef, Attrs, DType]:
    """The row of an op on scalars, its attributes, and the dtype of its result."""
    row = lookup(name)
    bound = row.bind(dict(attrs))
    (type_,) = row.result_types(tuple(TensorType((), dtype) for dtype in dtypes), bound)
    return row, bound, type_.dtype


class FuncBuilder:
    """A function in the making.  Statements go into the block that is open.

    >>> from bringup.dtypes import f32
    >>> x, y = Buffer("x", f32, 6), Buffer("y", f32, 6)
    >>> b = FuncBuilder("double", [("in", x), ("out", y)])
    >>> with b.loop("i", 6, "parallel") as i:
    ...     value = b.load(x, i)
    ...     b.store(y, i, b.op("add", value, value))
    >>> print(b.func())
    func double(x: in f32[6], y: out f32[6]) {
      for i in 6 parallel {
        %0: f32 = x[i]
        %1: f32 = add(%0, %0)
        y[i] = %1
      }
    }
    """

    def __init__(self, name: str, params: Sequence[tuple[Role, Buffer]]) -> None:
        self.name = name
        self.params = tuple(Param(buffer, role) for role, buffer in params)
        self._block: list[Stmt] = []
        self._scalars = 0
        self._open: list[Bound] = []
        self._uses = Counter[str]()
        self._taken = {buffer.name for _, buffer in params}

    def func(self) -> Func:
        """What was built."""
        return Func(self.name, self.params, tuple(self._block))

    # -- blocks ------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        name: str,
        size: int,
        kind: LoopKind = "serial",
        until: Expr | None = None,
        by: str = "",
    ) -> Iterator[Expr]:
        """A loop, and its index; nothing if it is empty.

        until: an earlier end; below 1 there is no iteration.
        by: the shape of an instruction for it and the loops within it.
        """
        if until is not None and until.is_const:
            size = max(min(size, until.const), 0)
        if until is not None and until.first >= size:
            until = None
        outer, self._block = self._block, []
        axis = named_axis(name, size)
        yield Expr.of(axis)
        if not size:
            self._block = outer
            return
        stmt: Stmt = For(axis, tuple(self._block), kind, until, by)
        some = None if until is None else at_least_one(until)
        if some is not None and not some.always and some not in self._open:
            stmt = If((some,), (stmt,))
        self._block = outer
        self._block.append(stmt)

    @contextmanager
    def strided(self, name: str, stop: int | Expr, step: int, first: Expr) -> Iterator[Expr]:
        """A loop over every ``step``-th number from ``first`` to ``stop``."""
        count = (first * -1 + stop + (step - 1)) // step
        with self.loop(name, max(count.last, 0), until=count) as index:
            yield index * step + first

    @contextmanager
    def lines(self, outer: int, inner: int) -> Iterator[tuple[Expr, Expr]]:
        """Parallel loops over the lines along a dimension, with the dimensions round it."""
        with self.parallel(o=outer, i=inner) as (o, i):
            yield o, i

    @contextmanager
    def parallel(self, **sizes: int) -> Iterator[tuple[Expr, ...]]:
        """Parallel loops within each other, by their names; none for a size of 1."""
        with ExitStack() as stack:
            yield tuple(
                stack.enter_context(self.loop(name, size, "parallel")) if size != 1 else Expr()
                for name, size in sizes.items()
            )

    @contextmanager
    def where(self, *mask: Bound, test: Scalar | None = None) -> Iterator[None]:
        """A condition: what always holds is left out, and a body that never runs."""
        never = any(bound.never for bound in mask)
        mask = tuple(bound for bound in mask if not bound.always)
        outer, self._block = self._block, []
        self._open += mask
        yield
        del self._open[len(self._open) - len(mask) :]
        body = tuple(self._block)
        self._block = outer
        if not never:
            self._block += [If(mask, body, test)] if mask or test is not None else body

    @contextmanager
    def goes_on(self, more: Buffer) -> Iterator[None]:
        """All of a loop, which ends where a `variable` is false."""
        with self.where(test=self.load(more)):
            yield

    def barrier(self) -> None:
        """The threads of the block meet."""
        self._block.append(Barrier())

    def commit(self) -> None:
        """What was stored later, and is in no group yet, becomes a group."""
        self._block.append(Commit())

    def wait(self, pending: int) -> None:
        """Wait for all groups but the last ``pending`` ones."""
        self._block.append(Wait(pending))

    def shuffle(self, value: Scalar, thread: Expr, mask: int) -> Scalar:
        """The value of another thread, whose index differs in the bits of ``mask``."""
        ((axis, _),) = thread.terms
        assert isinstance(axis, Axis)
        result = self._fresh(value.dtype)
        self._block.append(Shuffle(result, value, axis, mask))
        return result

    # -- scalars -----------------------------------------------------------------------------------

    def op(self, name: str, *operands: Scalar, **attrs: object) -> Scalar:
        """One elementwise op of the op table."""
        row, bound, dtype = _typed(name, tuple([s.dtype for s in operands]), tuple(attrs.items()))
        result = self._fresh(dtype)
        self._block.append(Let(result, row, operands, dict(bound)))
        return result

    def compare(self, direction: str, x: Scalar, y: Scalar) -> Scalar:
        """A comparison."""
        return self.op("compare", x, y, direction=direction)

    def not_(self, x: Scalar) -> Scalar:
        """The opposite of a bool."""
        return self.op("xor", x, self.constant(True, x.dtype))

    def constant(self, value: object, dtype: DType) -> Scalar:
        """A constant, rounded to the dtype."""
        result = self._fresh(dtype)
        literal = Literal.of(dtype.numpy.type(value), dtype)
        self._block.append(Let(result, lookup("constant"), (), {"value": literal}))
        return result

    def convert(self, x: Scalar, dtype: DType) -> Scalar:
        """A value of another dtype."""
        return x if x.dtype is dtype else self.op("convert", x, dtype=dtype)

    def index(self, expr: Expr, dtype: DType, named: Named = ()) -> Scalar:
        """The value of an index expression."""
        result = self._fresh(dtype)
        attrs = {"index": expr, "dtype": dtype}
        self._block.append(Let(result, KERNEL_OPS["index"], tuple(named), attrs))
        return result

    def inside(self, *mask: Bound, named: Named = ()) -> Scalar:
        """Whether bounds hold."""
        row = KERNEL_OPS["inside"]
        result = self._fresh(row.result_types((), {"mask": mask})[0].dtype)
        self._block.append(Let(result, row, tuple(named), {"mask": mask}))
        return result

    # -- memory ------------------------------------------------------------------------------------

    def alloc(
        self, name: str, dtype: DType, size: int, space: Space = "scratch", swizzle: int = 0
    ) -> Buffer:
        """Memory of the block; a name that was used before gets a number."""
        first = name
        while True:
            self._uses[first] += 1
            name = f"{first}{self._uses[first]}" if self._uses[first] > 1 else first
            if name not in self._taken:
                break
        self._taken.add(name)
        buffer = Buffer(name, dtype, size, space, swizzle)
        self._block.append(Alloc(buffer))
        return buffer

    def variable(self, name: str, value: Scalar) -> Buffer:
        """A register that holds a value at first."""
        register = self.alloc(name, value.dtype, 1, "register")
        self.store(register, Expr(), value)
        return register

    def load(self, buffer: Buffer, index: Expr = ZERO, *mask: Bound, named: Named = ()) -> Scalar:
        """An element, 0 where a bound does not hold; the only one by default."""
        result = self._fresh(buffer.dtype)
        mask = tuple(bound for bound in mask if not bound.always)
        self._block.append(Load(result, buffer, index, mask, tuple(named)))
        return result

    def store(
        self,
        buffer: Buffer,
        index: Expr,
        value: Scalar,
        *,
        fold: str = "",
        factor: Scalar | None = None,
        precision: Precision = "highest",
        mask: Sequence[Bound] = (),
        named: Named = (),
        atomic: bool = False,
        later: bool = False,
    ) -> None:
        """Write an element where bounds hold, or fold a value into it, times a factor."""
        mask = tuple(bound for bound in mask if not bound.always)
        how = fold, factor, precision, tuple(named), atomic, later
        stmt = Store(buffer, index, value, mask, *how)
        self._block.append(stmt)

    def set(
        self,
        variable: Buffer,
        value: Scalar,
        fold: str = "",
        factor: Scalar | None = None,
        precision: Precision = "highest",
    ) -> None:
        """Change a `variable`."""
        self.store(variable, Expr(), value, fold=fold, factor=factor, precision=precision)

    def _fresh(self, dtype: DType) -> Scalar:
        self._scalars += 1
        return Scalar(str(self._scalars - 1), dtype)
