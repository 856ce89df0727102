"""The kernel: one launch.  A grid of independent points; at each, stages that loop, compute and
reduce or store.

For every grid point the stages run in order.  A stage loops over its inner axes and evaluates
``body``, a graph of scalars (all types have rank 0).  Body inputs are the registers made so far;
each body output feeds one sink:

* `Fold` reduces it over the stage's inner axes into a new register of the grid point,
* `Store` writes it to a buffer at an index.

Inside a body, `load` reads a buffer at an index expression, `index` gives an expression's value,
`inside` tests bounds; everything else is an elementwise op of the op table.  A load whose mask is
false touches no memory and gives 0. Grid axes are numbered ``0 … len(grid) - 1``; the inner axes of
every stage continue from there, so that equal positions of different stages have equal expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar
from typing import Literal as OneOf

from bringup.dtypes import DType, Precision
from bringup.graph import Graph, Instr, Value
from bringup.graph.index import Axis, Bound, Expr
from bringup.graph.printer import print_graph
from bringup.ops.monoids import MONOIDS, Monoid
from bringup.records import record
from bringup.types import TensorType

Role = OneOf["in", "out", "tile"]


@record
class BufferDecl:
    """A buffer of a kernel: dense, row-major, indexed flat by element.

    role: ``in`` is only read; ``out`` is written entirely; ``tile`` is scratch private to a grid
    point, written by one stage and read by later ones, its contents gone after the grid point.
    """

    type: TensorType
    role: Role

    def __str__(self) -> str:
        return f"{self.role} {self.type}"


@record
class Fold:
    """Reduce over the inner axes with ``kind`` (a `reduce` kind) into a register of ``dtype``.

    The order is free within the declared longest chain.  An empty loop gives the identity.
    product: the body's output is a product whose rounding may be skipped (fused multiply-add), as
    contractions allow.
    precision: of the factors of such products; `evaluate_kernel` has all their bits.
    """

    kind: str
    dtype: DType
    product: bool = False
    precision: Precision = "highest"

    @property
    def monoid(self) -> Monoid:
        """What combines two values."""
        return MONOIDS[self.kind]

    def start(self, count: int) -> Any:
        """What a fold of so many values begins with, as a numpy scalar."""
        return self.monoid.start(self.dtype.numpy, count)

    def __str__(self) -> str:
        of = " product" if self.product else ""
        less = f" {self.precision}" if self.precision != "highest" else ""
        return f"fold.{self.kind} {self.dtype}{of}{less}"


@record
class Store:
    """Write to ``buffer`` at flat element ``index`` wherever every bound of ``mask`` holds."""

    buffer: int
    index: Expr
    mask: tuple[Bound, ...] = ()

    def __str__(self) -> str:
        where = f" if {' and '.join(map(str, self.mask))}" if self.mask else ""
        return f"store b{self.buffer}[{self.index}]{where}"


Sink = Fold | Store


@record
class AxisLimit:
    """An inner axis that ends early: iterations exist where ``axis < end``, an expression of grid
    axes.
    """

    axis: Axis
    end: Expr

    def __str__(self) -> str:
        return f"{self.axis} < {self.end}"

    @property
    def bound(self) -> Bound:
        """The same as a condition on ``end - axis``."""
        return Bound(self.end + Expr.of(self.axis) * -1, 1, self.end.last + 1)


@record
class Stage:
    """One loop nest at a grid point: inner axes, scalar body, one sink per body output.

    limits: of inner axes that end early, at most one each: the last chunk of a fold that was cut is
    shorter than the others.
    """

    axes: tuple[Axis, ...]
    body: Graph
    sinks: tuple[Sink, ...]
    limits: tuple[AxisLimit, ...] = ()

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The limits as conditions: an iteration exists where every one holds."""
        return tuple(limit.bound for limit in self.limits)

    @property
    def limiting_axes(self) -> frozenset[Axis]:
        """The grid axes on which the lengths of loops depend."""
        return frozenset[Axis]().union(*(limit.end.axes() for limit in self.limits))

    def end_of(self, axis: Axis) -> Expr | None:
        """Where an axis ends if it has a limit."""
        return next((limit.end for limit in self.limits if limit.axis == axis), None)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sinks that are folds, in order."""
        return tuple(s for s in self.sinks if isinstance(s, Fold))

    @property
    def stores(self) -> tuple[Store, ...]:
        """The sinks that are stores, in order."""
        return tuple(s for s in self.sinks if isinstance(s, Store))

    @property
    def trips(self) -> int:
        """Iterations per grid point; at some points fewer if there are limits."""
        product = 1
        for axis in self.axes:
            product *= axis.size
        return product

    def loads(self) -> Iterator[Instr]:
        """The body's `load` instructions."""
        return (i for i in self.body.instrs if i.op.name == "load")

    def data_axes(self) -> Mapping[Instr, frozenset[Axis]]:
        """The axes on which the loaded indices of `load` instructions depend."""
        used: dict[Value, frozenset[Axis]] = {}
        found: dict[Instr, frozenset[Axis]] = {}
        if not any(i.operands for i in self.loads()):
            return found
        for instr in self.body.instrs:
            exprs = [b.expr for b in instr.attrs.get("mask", ())]
            exprs += [instr.attrs["index"]] if "index" in instr.attrs else []
            axes = frozenset[Axis]().union(*(used.get(v, frozenset()) for v in instr.operands))
            if instr.op.name == "load" and instr.operands:
                found[instr] = axes
            used.update(dict.fromkeys(instr.results, axes.union(*(e.axes() for e in exprs))))
        return found


@record(memo=True)
class Kernel:
    """One launch: at every point of a grid, in any order, stages run one after the other.

    grid: the axes of the points, numbered from 0.
    buffers: inputs and outputs in the order of the launch's slots, and tiles, which have none.
    stages: what each point runs; their own axes are numbered on from the grid's.
    source: the names of the graph instructions it computes, for people.
    ``str`` gives all of it as text, which `bringup.kernel.parser.parse_kernel` reads.
    """

    #: The text that `content` made.
    _memo: ClassVar[Any]
    name: str
    grid: tuple[Axis, ...]
    buffers: tuple[BufferDecl, ...]
    stages: tuple[Stage, ...]
    source: tuple[str, ...] = field(default=(), compare=False)

    @property
    def points(self) -> int:
        """Number of grid points."""
        product = 1
        for axis in self.grid:
            product *= axis.size
        return product

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the buffers that are read from outside."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role == "in")

    @property
    def outputs(self) -> tuple[int, ...]:
        """Numbers of the buffers that the kernel writes."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role == "out")

    def __repr__(self) -> str:
        grid = "×".join(str(axis.size) for axis in self.grid) or "1"
        ops = f" of {', '.join(self.source)}" if self.source else ""
        return f"<kernel {self.name}{ops}: grid {grid}, {len(self.buffers)} buffers>"

    def __str__(self) -> str:
        return f"kernel {self.name}\n{self.content}"

    @property
    def content(self) -> str:
        """The text but for the name, deterministic and complete: equal for kernels that do the
        same, and a part of cache keys.
        """
        try:
            text: str = self._memo
        except AttributeError:
            text = "\n".join(self._lines())
            object.__setattr__(self, "_memo", text)
        return text

    def _lines(self) -> Iterator[str]:
        yield from (f"  b{n}: {decl}" for n, decl in enumerate(self.buffers))
        yield f"  grid {' '.join(map(str, self.grid)) or '()'}"
        for number, stage in enumerate(self.stages):
            yield f"  stage {number} over {_loops(stage)}"
            yield from (f"    {line}" for line in print_graph(stage.body).splitlines())
            yield from (f"    {sink}" for sink in stage.sinks)


def _loops(stage: Stage) -> str:
    """The axes of a stage and their limits: ``a1[4] if a1[4] < -4*a0[3] + 10``."""
    axes = " ".join(map(str, stage.axes)) or "()"
    return f"{axes} if {' and '.join(map(str, stage.limits))}" if stage.limits else axes
