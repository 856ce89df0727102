"""What of a kernel is a contraction: its rows, columns, batch and inner axes, and its two factors.

Read from the fused kernel form alone: the first stage folds a product of two values; whatever
computes each of them is its prologue, the stages after are the epilogue.  A convolution has several
axes of each sort and needs nothing else: its patches are index maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bringup.graph import Graph, Instr, Value
from bringup.graph.index import ZERO, Axis, Bound, Expr
from bringup.kernel.axes import merge_neighbours
from bringup.kernel.form import AxisLimit, Fold, Kernel, Stage, Store
from bringup.records import record

Axes = tuple[Axis, ...]


@record
class Factor:
    """One side of the products.

    value: of the folding stage's body.  narrow: the same before it was widened without a change,
    which is what machines with units for products take.  axes: its own axes, rows or columns.
    """

    value: Value
    narrow: Value
    axes: Axes


@record
class Contraction:
    """A kernel as sums of products: ``out[batch, rows, columns] = Σ left[rows] · right[columns]``.

    left: has the rows.  right: has the columns, along which results lie side by side in memory, if
    along either.
    """

    kernel: Kernel
    batch: Axes
    left: Factor
    right: Factor
    inner: Axes
    fold: Fold

    @property
    def limits(self) -> tuple[AxisLimit, ...]:
        """Of inner axes that end early, at expressions of batch axes."""
        return self.kernel.stages[0].limits

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        """What happens to a sum."""
        return self.kernel.stages[1:]


@record
class Panel:
    """A factor alone, as a matrix: its own axes by the inner ones.

    body: has the factor as output.  axes, inner: in order; neighbours that no index tells apart are
    one.
    """

    body: Graph
    axes: Axes
    inner: Axes


def size(axes: Iterable[Axis]) -> int:
    """Points of a space."""
    return math.prod(axis.size for axis in axes)


def recognise(kernel: Kernel) -> Contraction | None:
    """The kernel as a contraction; None if it has another form, or no row or column to share."""
    product = _product(kernel)
    if product is None:
        return None
    fold, body, (x, y) = product
    of_left, of_right = (_axes_of(steps_of(body, v)) for v in (x, y))
    rows = tuple(a for a in kernel.grid if a in of_left and a not in of_right)
    columns = tuple(a for a in kernel.grid if a in of_right and a not in of_left)
    if size(rows) < 2 or size(columns) < 2:
        return None
    batch = tuple(a for a in kernel.grid if a not in rows and a not in columns)
    sides = Factor(x, _narrow(x), rows), Factor(y, _narrow(y), columns)
    store = kernel.stages[-1].stores[0].index
    if run(store, columns) < run(store, rows):
        sides = sides[::-1]
    inner = _ordered(kernel.stages[0].axes, steps_of(body, body.outputs[0]))
    return Contraction(kernel, batch, *sides, inner, fold)


def _ordered(axes: Axes, steps: Iterable[Instr]) -> Axes:
    """Inner axes with the one last along which most loads read neighbours: channels of patches are
    not where the fold has them if they are last in memory.
    """
    loads = [step.attrs["index"] for step in steps if step.op.name == "load"]

    def beside(place: int) -> tuple[int, int]:
        axis = axes[place]
        return sum(axis.size > 1 and index.coefficient(axis) == 1 for index in loads), place

    best = max(range(len(axes)), key=beside)
    if not beside(best)[0]:
        return axes
    return (*axes[:best], *axes[best + 1 :], axes[best])


def panel(contraction: Contraction, factor: Factor) -> Panel:
    """A factor alone, its axes merged as far as its own indices allow."""
    body = contraction.kernel.stages[0].body
    alone = Graph((), steps_of(body, factor.value), (factor.value,))
    stage = Stage((), alone, (Store(0, ZERO),))
    stage, axes = merge_neighbours(stage, factor.axes)
    stage, inner = merge_neighbours(stage, contraction.inner)
    return Panel(stage.body, axes, inner)


def _product(kernel: Kernel) -> tuple[Fold, Graph, tuple[Value, Value]] | None:
    first = kernel.stages[0]
    if len(first.sinks) != 1 or not kernel.points or first.trips < 2:
        return None
    (fold,) = first.sinks
    instr = first.body.outputs[0].producer
    if not isinstance(fold, Fold) or not fold.product or instr is None or instr.op.name != "mul":
        return None
    if instr.result.dtype is not fold.dtype or (fold.dtype.is_float and fold.dtype.bits < 32):
        return None
    later_stages = kernel.stages[1:]
    if (
        not later_stages
        or any(s.axes or s.folds for s in later_stages)
        or not later_stages[-1].stores
    ):
        return None
    if any(d.role == "tile" for d in kernel.buffers):
        return None
    x, y = instr.operands
    return fold, first.body, (x, y)


def _narrow(value: Value) -> Value:
    """The value before conversions that change no number."""
    instr = value.producer
    while instr is not None and instr.op.name == "convert":
        (before,) = instr.operands
        # A negative number has no unsigned one, and a bool is no number.
        same = before.dtype.kind == instr.result.dtype.kind
        from_unsigned = before.dtype.kind == "uint" and instr.result.dtype.kind == "int"
        grows = before.dtype.bits < instr.result.dtype.bits
        if not grows or not (same or from_unsigned):
            break
        value, instr = before, before.producer
    return value


def steps_of(body: Graph, value: Value) -> tuple[Instr, ...]:
    """The instructions of a body that compute a value, in order."""
    values = {value}
    instrs: list[Instr] = []
    for instr in reversed(body.instrs):
        if not values.isdisjoint(instr.results):
            instrs.append(instr)
            values.update(instr.operands)
    return tuple(reversed(instrs))


def _axes_of(steps: Iterable[Instr]) -> frozenset[Axis]:
    axes: set[Axis] = set()
    for instr in steps:
        if "index" in instr.attrs:
            axes |= instr.attrs["index"].axes()
        for bound in instr.attrs.get("mask", ()):
            axes |= bound.expr.axes()
    return frozenset(axes)


def run(index: Expr, axes: Axes) -> int:
    """How many neighbours along axes, the last fastest, lie side by side in memory."""
    length = 1
    for axis in reversed(axes):
        if axis.size == 1:
            continue
        if index.coefficient(axis) != length:
            break
        length *= axis.size
    return length


def vector(index: Expr, mask: Iterable[Bound], axes: Axes, most: int) -> int:
    """Elements along axes that one aligned access may take: a power of two, at most ``most``."""
    length = run(index, axes)
    inside: set[Axis] = set()
    covered = 1
    for axis in reversed(axes):
        if covered >= length:
            break
        covered *= axis.size
        inside.add(axis)
    if any(not inside.isdisjoint(b.expr.axes()) for b in mask):
        return 1
    others = [c for a, c in index.terms if a not in inside]
    lanes = most
    while lanes > 1 and any(n % lanes for n in (length, index.const, *others)):
        lanes //= 2
    return lanes


__all__ = [
    "Axes",
    "Contraction",
    "Factor",
    "Panel",
    "panel",
    "recognise",
    "run",
    "size",
    "steps_of",
    "vector",
]
