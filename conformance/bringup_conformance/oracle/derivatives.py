"""Derivatives of rows in every mode, against differences of their references in wider precision.

A derivative is a graph that core makes of rules, so a wrong rule gives the same wrong numbers on
every device and in every reference of its graph.  What is compared here is another thing: the slope
of the row's own reference, by central differences, which know no rule.

The bound is derived.  What the graph of a derivative may give is known as a span, as of any graph
(see `bounds`); the error of the differences is estimated by their extrapolation and by what
rounding makes of them.  The two must meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.graph import Graph, Value
from bringup.ops.evaluate import run_instr
from bringup.ops.subgraphs import run as run_wide
from bringup.ops.table import opdef
from bringup.records import record
from bringup.tracing import autodiff
from bringup.tracing.batching import batch_graph
from bringup_conformance.oracle.bounds import propagate
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.span import Span, spanning

#: The ways to differentiate that are compared.
MODES = ("reverse", "forward", "reverse over reverse", "forward over reverse")
#: Examples of a graph that `vmap` made.
EXAMPLES = 2
#: Steps of differences, each half of the one before.  The last is so large that rounding of a
#: reference that is good to f64 leaves ten digits of a second difference.
_STEPS = tuple(2.0**-n for n in (7, 8, 9))
_ROUNDING = 2.0**-52
#: What the error of a comparison may be, as a share of the values; more shows too little.
_SHOWN = 1e-5


@record
class Point:
    """Where a row is differentiated.

    arrays: of its operands.  moves: two directions for each float operand.  cotangents: of each
    float result.  slopes: of the row, by their order, once they are known.
    """

    arrays: list[Array]
    moves: tuple[list[Array], list[Array]]
    cotangents: list[Array]
    slopes: dict[int, list[Slope]] = field(default_factory=dict)


@record
class Slope:
    """A number or an array known by differences, and how far it may be from the truth.

    size: of the values that it was made of.
    """

    value: Array
    error: Array
    size: float

    @property
    def shows(self) -> bool:
        """Whether it tells anything: no kink and no pole lies within the steps."""
        limit = _SHOWN * (self.size + np.abs(self.value).max(initial=0))
        return bool(np.isfinite(self.value).all() and (self.error <= limit).all())


@record
class Differentiated:
    """The graphs of one row's derivatives.

    graph: one instruction.  wrt, of: its float operands and results, by position.
    """

    graph: Graph
    wrt: tuple[int, ...]
    of: tuple[int, ...]

    @classmethod
    def of_graph(cls, graph: Graph) -> Differentiated:
        """By all floats of a graph."""
        wrt, of = (
            tuple(i for i, v in enumerate(values) if v.dtype.is_float)
            for values in (graph.inputs, graph.outputs)
        )
        return cls(graph, wrt, of)

    def derivative(self, mode: str) -> Graph:
        """The graph of a mode.  Raises UnsupportedError where the row has no derivative."""
        if mode == "forward":
            return autodiff.jvp_graph(self.graph, self.wrt, self.of)
        pulled = autodiff.vjp_graph(self.graph, self.wrt, self.of)
        if mode == "reverse":
            return pulled
        outputs = len(self.graph.outputs)
        gradients = range(outputs, outputs + len(self.wrt))
        twice = mode == "reverse over reverse"
        derive = autodiff.vjp_graph if twice else autodiff.jvp_graph
        return derive(pulled, self.wrt, gradients)

    def arguments(self, mode: str, point: Point) -> list[Array]:
        """What a mode's graph takes at a point."""
        first, second = point.moves
        if mode == "forward":
            return [*point.arrays, *first]
        more = {
            "reverse": [],
            "reverse over reverse": first,
            "forward over reverse": second,
        }[mode]
        return [*point.arrays, *point.cotangents, *more]

    def results(self, mode: str) -> int:
        """How many of the last outputs of a mode's graph are the derivative."""
        return len(self.of) if mode == "forward" else len(self.wrt)

    def wanted(self, mode: str, point: Point) -> list[Slope]:
        """The derivatives by differences: of each result, or one number in the directions that the
        mode's own results are multiplied with.
        """
        first, second = point.moves
        order = 1 if mode in ("forward", "reverse") else 2
        if order not in point.slopes:  # modes of one order share them
            twice = order == 2
            slopes = [self._twice(point, first, second)] if twice else self._along(point, first)
            point.slopes[order] = slopes
        parts = point.slopes[order]
        if mode == "reverse":
            value = _dot([s.value for s in parts], point.cotangents)
            error = _dot([s.error for s in parts], [np.abs(c) for c in point.cotangents])
            return [Slope(value, error, max(s.size for s in parts))]
        return parts

    def factors(self, mode: str, point: Point) -> list[Array] | None:
        """The directions that results are multiplied with, or None where they are compared one by
        one.
        """
        first, second = point.moves
        return {
            "forward": None,
            "reverse": first,
            "reverse over reverse": second,
            "forward over reverse": first,
        }[mode]

    def _values(self, point: Point, *moves: tuple[float, Sequence[Array]]) -> list[Array]:
        """The float results of the reference at a moved point, in wider precision.

        Infinities count as 0: where they stay, as those of windows outside of an array do, nothing
        changes.
        """
        arrays = [
            a.astype(np.longdouble) if i in self.wrt else a for i, a in enumerate(point.arrays)
        ]
        for step, directions in moves:
            for i, direction in zip(self.wrt, directions, strict=True):
                arrays[i] = arrays[i] + np.longdouble(step) * direction
        with np.errstate(all="ignore"):
            results = run_wide(self.graph, arrays)
        return [np.where(np.isinf(results[i]), 0, results[i]) for i in self.of]

    def _size(self, point: Point) -> float:
        return max(float(np.abs(point.arrays[i]).max(initial=0)) for i in self.wrt)

    def _along(self, point: Point, moves: Sequence[Array]) -> list[Slope]:
        """The slopes of all results.  Of a kink between the steps these are a mean that no step
        changes; but the slopes of its two sides differ, however small the step.
        """
        middle = self._values(point)
        ends = [[self._values(point, (s * h, moves)) for s in (1, -1)] for h in _STEPS]
        slopes = []
        for k in range(len(self.of)):
            pairs = [(h, up[k], down[k]) for h, (up, down) in zip(_STEPS, ends, strict=True)]
            size = max(float(np.abs(up).max(initial=0)) for _, up, _ in pairs)
            size = max(size, self._size(point))
            slope = _extrapolated([(up - down) / (2 * h) for h, up, down in pairs], size, 1)
            jumps = [(up + down - 2 * middle[k]) / h for h, up, down in pairs]
            halves = [2 * fine - rough for rough, fine in pairwise(jumps)]
            kink = np.abs(8 * halves[1] - halves[0]) / 7
            slopes.append(Slope(slope.value, slope.error + kink, size))
        return slopes

    def _twice(self, point: Point, first: Sequence[Array], second: Sequence[Array]) -> Slope:
        """The second derivative of cotangents · results."""
        quotients, size = [], self._size(point)
        for h in _STEPS:
            total = np.zeros((), np.longdouble)
            for s in (1, -1):
                for t in (1, -1):
                    values = self._values(point, (s * h, first), (t * h, second))
                    total = total + s * t * _dot(values, point.cotangents)
                    sizes = [[np.abs(x) for x in each] for each in (values, point.cotangents)]
                    size = max(size, float(_dot(*sizes)))
            quotients.append(total / (4 * h * h))
        return _extrapolated(quotients, size, 2)


def _dot(arrays: Sequence[Array], factors: Sequence[Array]) -> Array:
    """The sum of all products of elements."""
    total = np.zeros((), np.longdouble)
    for x, y in zip(arrays, factors, strict=True):
        total = total + (x * y).sum()
    return np.asarray(total)


def _extrapolated(quotients: Sequence[Array], size: float, order: int) -> Slope:
    """L. F. Richardson's extrapolation of central differences; the error of the last but one step
    is how much the last one changes.
    """
    table = [list(quotients)]
    for level in range(1, len(quotients)):
        weight = 4.0**level
        pairs = pairwise(table[-1])
        table.append([(weight * fine - rough) / (weight - 1) for rough, fine in pairs])
    last, before = table[-1][0], table[-2]
    rounding = _ROUNDING * size / _STEPS[-1] ** order
    error = np.abs(last - before[0]) + np.abs(last - before[1]) + 4 * rounding
    return Slope(np.asarray(last), np.asarray(error), float(size))


# -- what graphs of derivatives may give -----------------------------------------------------------


def spans_of(graph: Graph, inputs: Sequence[Array]) -> list[Span]:
    """The spans of a graph's outputs, if each row gives what its reference does.

    Results that devices have judged as a whole are those of the reference, which works in a wider
    float and rounds once.
    """
    numerics = Numerics()
    table: dict[Value, Span] = {
        value: Span.exactly(np.asarray(array), value.dtype)
        for array, value in zip(inputs, graph.inputs, strict=True)
    }
    with np.errstate(all="ignore"):
        for instr in graph.instrs:
            operands = [table[v] for v in instr.operands]
            row = opdef(instr)
            if row.accuracy_for(instr.attrs).residual is None:
                results = propagate(instr, operands, numerics)
            else:
                results = _near(instr, operands)
            table.update(zip(instr.results, results, strict=True))
    return [table[v] for v in graph.outputs]


def _near(instr: Any, operands: Sequence[Span]) -> list[Span]:
    """The reference of the middles, as far off as rounding and the operands' own spans move it.

    How far these move it is measured: at both ends of the spans, twice over.
    """
    middles = run_instr(instr, [x.middle for x in operands])
    ends = (
        [
            run_instr(instr, [e for x in operands for e in (x.low if low else x.high,)])
            for low in (True, False)
        ]
        if not all(x.exact for x in operands)
        else []
    )
    near = []
    for k, (middle, value) in enumerate(zip(middles, instr.results, strict=True)):
        if not value.dtype.is_float:
            near.append(Span.exactly(middle, value.dtype))
            continue
        radius = 2 * np.finfo(middle.dtype).eps * np.abs(middle).max(initial=0)
        for end in ends:
            radius = radius + 2 * np.abs(end[k] - middle).max(initial=0)
        nothing = np.zeros(middle.shape, np.bool_)
        low, high = middle - radius, middle + radius
        near.append(spanning(value.dtype, low, middle, high, nothing))
    return near


# -- comparing -------------------------------------------------------------------------------------


def disagreement(row: Differentiated, mode: str, points: Sequence[Point]) -> str | None:
    """What is wrong with a mode's derivative at some points, alone at the first and by `vmap` at
    all; None if nothing is.  Raises Unshown if that tells nothing, UnsupportedError.
    """
    graph = row.derivative(mode)
    batched, flags = batch_graph(graph, [True] * len(graph.inputs), len(points))
    each = [row.arguments(mode, point) for point in points]
    wanted = [row.wanted(mode, point) for point in points]
    if not all(slope.shows for slopes in wanted for slope in slopes):
        raise Unshown
    count = row.results(mode)
    single = spans_of(graph, each[0])[-count:]
    together = spans_of(batched, [np.stack(rows) for rows in zip(*each, strict=True)])[-count:]
    several = [
        [_example(s, n) if flag else s for s, flag in zip(together, flags[-count:], strict=True)]
        for n in range(len(points))
    ]
    for what, spans, point, slopes in [
        (mode, single, points[0], wanted[0]),
        *((f"vmap of {mode}", s, p, w) for s, p, w in zip(several, points, wanted, strict=True)),
    ]:
        wrong = _compared(spans, row.factors(mode, point), slopes)
        if wrong is not None:
            values = run_wide(row.graph, point.arrays)
            if "not finite" in wrong and any(np.isinf(v).any() for v in values):
                raise Unshown
            return f"{what}: {wrong}"
    return None


class Unshown(Exception):
    """Raised where a comparison tells nothing: a kink lies near, or bounds are too wide."""


def _example(span: Span, n: int) -> Span:
    return Span(span.dtype, span.low[n], span.middle[n], span.high[n])


def _compared(
    spans: Sequence[Span], factors: Sequence[Array] | None, slopes: Sequence[Slope]
) -> str | None:
    wide = [[np.asarray(a, np.longdouble) for a in (s.low, s.middle, s.high)] for s in spans]
    middles = [middle for _, middle, _ in wide]
    room = [np.maximum(high - middle, middle - low) for low, middle, high in wide]
    if factors is not None:
        middles, room = [_dot(middles, factors)], [_dot(room, [np.abs(f) for f in factors])]
    for middle, radius, slope in zip(middles, room, slopes, strict=True):
        scale = slope.size + np.abs(slope.value).max(initial=0)
        if not np.all(radius <= _SHOWN * scale):  # NaN too
            if not np.isfinite(middle).all():
                return f"it is not finite, the slope of the reference is {_worst(slope.value)}"
            raise Unshown
        far = np.abs(middle - slope.value) - radius - slope.error
        if not np.all(far <= 0):
            worst = np.unravel_index(int(np.argmax(far)), np.shape(far))
            allowed = float(np.asarray(radius + slope.error)[worst])
            return (
                f"{float(np.asarray(middle)[worst]):.9g}, and the slope of the reference is "
                f"{float(slope.value[worst]):.9g}, known to {allowed:.2g}"
            )
    return None


def _worst(value: Array) -> str:
    return f"{float(np.abs(value).max(initial=0)):.9g}"
