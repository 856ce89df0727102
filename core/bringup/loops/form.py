"""The loop level: one function of a machine as loops, scalar instructions and memory accesses.

A `Func` is a tree of statements over buffers.  Loops begin at 0 and have a constant number of
iterations, or end early at an expression of outer loops.  Indices are the expressions of
`bringup.graph.index`, flat by element, whose axes have the names of loops.  Scalars are computed
one op of the op table at a time.

The kind of a loop says how a machine runs it, never what it computes: every kind but ``thread``
means what a serial loop means.  Iterations of ``parallel`` and ``block`` loops are independent.
The ``thread`` loops of a block run side by side and meet at each `Barrier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar
from typing import Literal as OneOf

from bringup.dtypes import DType, Precision
from bringup.graph.index import Axis, Bound, Expr
from bringup.ops.table import OpDef
from bringup.records import record
from bringup.types import TensorType

Space = OneOf["global", "scratch", "shared", "register", "fragment"]
LoopKind = OneOf["serial", "parallel", "vector", "unroll", "block", "thread"]
Role = OneOf["in", "out", "inout"]
#: What threads start and do not wait for.
InFlight = OneOf["copies", "products"]
#: Kinds of loops whose iterations run side by side.
CONCURRENT: tuple[LoopKind, ...] = ("parallel", "block", "thread")
#: Spaces of which every thread has memory of its own.
PRIVATE: tuple[Space, ...] = ("register", "scratch")
#: Kinds of memory that a block has once.
OF_BLOCK: tuple[Space, ...] = ("shared", "fragment")


@record(keep_hash=True)
class Buffer:
    """Memory of ``size`` elements of one dtype, indexed flat.

    space: ``global`` is the device's memory, as all parameters are; ``scratch`` is private to an
    iteration of the parallel and thread loops round its `Alloc`; ``shared`` is common to the
    threads of a block; ``register`` is private as scratch is, and every index is constant once the
    loops of kind ``unroll`` and ``vector`` round it are written out; ``fragment`` is a tile of a
    block in registers of its threads, each element in those of one thread: all accesses have the
    same thread loops round them with the same strides, and what is left of an index is constant
    as that of a register.
    swizzle: the length of lines whose chunks of 16 bytes change places by the number of the line,
    so that a column of chunks is in several banks.  Nothing that reads or writes elements sees it.
    """

    name: str
    dtype: DType
    size: int
    space: Space = "global"
    swizzle: int = 0

    @property
    def type(self) -> TensorType:
        """The type, flat: ``f32[size]``."""
        return TensorType((self.size,), self.dtype)

    def __str__(self) -> str:
        swizzled = f" swizzle {self.swizzle}" if self.swizzle else ""
        return f"{self.name}: {self.space} {self.type}{swizzled}"


@record
class Param:
    """A buffer that the caller passes.

    role: ``in`` is only read; every element of ``out`` is written before it is read; ``inout``
    holds values at first, and any of its elements may be written.  An ``out`` buffer may share the
    memory of an ``in`` buffer of which each iteration of the outermost parallel loops reads only
    elements that it alone writes.
    """

    buffer: Buffer
    role: Role

    def __str__(self) -> str:
        return f"{self.buffer.name}: {self.role} {self.buffer.type}"


@record(keep_hash=True)
class Scalar:
    """A value in a register, named once in the blocks that see it."""

    name: str
    dtype: DType

    @property
    def type(self) -> TensorType:
        """The type, of rank 0."""
        return TensorType((), self.dtype)

    def __str__(self) -> str:
        return f"%{self.name}"


@record(eq=False)
class Let:
    """``result = op(operands) {attrs}``, in the rest of the block.

    op: a constant or elementwise row of the op table, or ``index`` or ``inside`` of
    `bringup.kernel.ops`, whose index expressions may name operands (`Dyn`).
    """

    result: Scalar
    op: OpDef
    operands: tuple[Scalar, ...]
    attrs: Mapping[str, Any]


@record(eq=False)
class Load:
    """``result = buffer[index]``, or 0, touching no memory, unless every bound of ``mask`` holds.

    operands: the integers that `Dyn` atoms of the index and the mask name.
    """

    result: Scalar
    buffer: Buffer
    index: Expr
    mask: tuple[Bound, ...] = ()
    operands: tuple[Scalar, ...] = ()


@record(eq=False)
class Store:
    """``buffer[index] = value`` where every bound of ``mask`` holds.

    fold: the name of a monoid of `bringup.ops.monoids`; the element becomes its combination with
    the value.  Folds into one element may happen in any order.
    atomic: of a fold that gives the same bits in any order: iterations side by side may fold into
    one element.
    factor: of a fold ``add``: what is added is ``value * factor``, whose rounding may be skipped.
    precision: of the two factors of such a product.
    operands: the integers that `Dyn` atoms name.
    later: the value, which a `Load` of the same block gives, is on its way from memory to memory
    until a `Wait`, and nobody reads the element before.  Of a fold, which is then in a loop with a
    shape: products of elements in shared memory are on their way to a fragment until a `Wait` for
    products; nobody changes the factors before, and nothing but such folds uses the sums.
    """

    buffer: Buffer
    index: Expr
    value: Scalar
    mask: tuple[Bound, ...] = ()
    fold: str = ""
    factor: Scalar | None = None
    precision: Precision = "highest"
    operands: tuple[Scalar, ...] = ()
    atomic: bool = False
    later: bool = False


@record(eq=False)
class Alloc:
    """A buffer for the rest of the block; it holds nothing at first."""

    buffer: Buffer


@record(eq=False, memo=True)
class If:
    """``body`` where every bound of ``mask`` holds and ``test``, a bool, is true."""

    #: What stands in it, once somebody has asked `bringup.loops.contents`.
    _memo: ClassVar[Any]

    mask: tuple[Bound, ...]
    body: tuple[Stmt, ...]
    test: Scalar | None = None


@record(eq=False, memo=True)
class For:
    """``body`` for each value of ``axis``.

    end: where the loop ends if that is before ``axis.size``; an expression of outer loops.
    by: the shape of an instruction that adds up the products of the loop and of those within it,
    as ``16x8x16`` for rows, columns and inner elements; it says how, never what.
    """

    #: What stands in it, once somebody has asked `bringup.loops.contents`.
    _memo: ClassVar[Any]
    axis: Axis
    body: tuple[Stmt, ...]
    kind: LoopKind = "serial"
    end: Expr | None = None
    by: str = ""

    @property
    def name(self) -> str:
        """What schedules call it: the name of its axis."""
        return self.axis.name

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The early end as a condition on the axis; empty if there is none."""
        if self.end is None:
            return ()
        return (Bound(self.end + Expr.of(self.axis) * -1, 1, self.end.last + 1),)

    @property
    def while_true(self) -> tuple[Load, Body] | None:
        """The load of a register and what happens only where it is true, if a loop is no more.

        As nothing happens any more where it is false, a renderer may end the loop there.
        """
        if self.kind != "serial" or len(self.body) != 2:
            return None
        load, test = self.body
        if not isinstance(load, Load) or not isinstance(test, If) or test.test != load.result:
            return None
        is_one = load.buffer.space == "register" and load.buffer.size == 1
        return (load, test.body) if is_one and not load.mask and not test.mask else None


@record(eq=False)
class Barrier:
    """All threads of a block come here before any goes on, and see what the others wrote."""


@record(eq=False)
class Commit:
    """What a thread stores `later`, and is in no group yet, becomes a group.

    what: copies are groups of their own, and so are products.
    """

    what: InFlight = "copies"


@record(eq=False)
class Wait:
    """A thread waits until all its groups but the last ``pending`` ones have come."""

    pending: int
    what: InFlight = "copies"


@record(eq=False)
class Shuffle:
    """``result`` is the ``value`` of another thread: that whose iteration of the thread loop over
    ``axis`` is this one's with the bits of ``mask`` changed.  All threads of a block come here.
    """

    result: Scalar
    value: Scalar
    axis: Axis
    mask: int


Stmt = Let | Load | Store | Alloc | If | For | Barrier | Commit | Wait | Shuffle
Body = tuple[Stmt, ...]
# Groups of statements, as tuples because a union would be made anew for each test.
#: Statements with statements within them.
NESTING = (For, If)
#: Statements of which each computes, reads or writes elements once.
STRAIGHT = (Let, Load, Store)
#: Statements that give a scalar its value.
DEFINING = (Let, Load, Shuffle)
#: Statements that touch memory.
ACCESSES = (Load, Store)


@record(eq=False)
class Func:
    """A function of a machine: parameters in the order of the call, and what it does.

    >>> print(func)                                         # doctest: +SKIP
    func double(x: in f32[64], y: out f32[64]) {
      for i in 64 {
        %0: f32 = x[i]
        %1: f32 = add(%0, %0)
        y[i] = %1
      }
    }
    """

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters that are only read."""
        return tuple(p.buffer for p in self.params if p.role == "in")

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The parameters that are written."""
        return tuple(p.buffer for p in self.params if p.role != "in")

    @property
    def content(self) -> str:
        """The text but for the name: equal for functions that do the same in the same way."""
        return str(self).partition("(")[2]

    def __str__(self) -> str:
        from bringup.loops.text import print_func  # the printer stands on this module

        return print_func(self)

    def __repr__(self) -> str:
        loops = sum(1 for s in statements(self.body) if isinstance(s, For))
        return f"<Func {self.name}: {len(self.params)} buffers, {loops} loops>"


@lru_cache(maxsize=1 << 14)
def named_axis(name: str, size: int) -> Axis:
    """The axis of a loop of a `Func`; mostly the same object for the same loop, which compares
    faster than an equal one.
    """
    return Axis(0, size, name)


def statements(body: Body) -> Iterator[Stmt]:
    """Every statement, outer ones before those within them."""
    result: list[Stmt] = []
    _collect(body, result)
    return iter(result)


def _collect(body: Body, result: list[Stmt]) -> None:
    for stmt in body:
        result.append(stmt)
        kind = stmt.__class__
        if kind is For or kind is If:
            _collect(stmt.body, result)  # type: ignore[union-attr]


__all__ = [
    "ACCESSES",
    "CONCURRENT",
    "DEFINING",
    "NESTING",
    "OF_BLOCK",
    "PRIVATE",
    "STRAIGHT",
    "Alloc",
    "Barrier",
    "Body",
    "Buffer",
    "Commit",
    "For",
    "Func",
    "If",
    "InFlight",
    "Let",
    "Load",
    "LoopKind",
    "Param",
    "Role",
    "Scalar",
    "Shuffle",
    "Space",
    "Stmt",
    "Store",
    "Wait",
    "named_axis",
    "statements",
]
