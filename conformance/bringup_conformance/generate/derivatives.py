"""Where rows are differentiated: small instances of each kind of its attributes, smooth data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product

import numpy as np

from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType, f64
from bringup.errors import UnsupportedError
from bringup.graph import Value
from bringup.ops.table import OpDef
from bringup_conformance.cases import Check, Instance, Problem
from bringup_conformance.execution.support import single
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate.choices import derive
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Interval, Recipe
from bringup_conformance.oracle.derivatives import (
    EXAMPLES,
    MODES,
    Differentiated,
    Point,
    Unshown,
    disagreement,
)
from bringup_conformance.oracle.numbers import Array

#: Elements of all operands, if there is a choice; of the operands and results of a row that has
#: nothing smaller.
_FEW, _MOST = 40, 4000
#: Kinds of data that are tried until differences tell something, and where the row takes them.
_TRIED: tuple[tuple[str, Interval], ...] = (
    ("signed", (-np.inf, np.inf)),
    ("positive", (-np.inf, np.inf)),
    ("signed", (-1.0, 1.0)),
    ("positive", (0.25, 1.0)),
    ("ramp", (-np.inf, np.inf)),
    ("falling", (-np.inf, np.inf)),
    ("signed", (-1.0, 1.0)),
    ("signed", (-np.inf, np.inf)),
)
#: How often each is drawn, with other numbers, before a derivative counts as not shown.
_ROUNDS = 4
#: Instances of a row, those of other attributes first.
_SEVERAL = 4
#: Times that instances are drawn until one can be differentiated.
_DRAWS = 4


def checks(row: OpDef, dtype: DType, level: str, shapes: Shapes, seed: int) -> Iterator[Check]:
    """The check of a row's derivatives in all modes, if it has any.

    dtype: of the cases that it stands among; derivatives are those of f64.
    """
    if row.vjp is None and row.decompose is None:
        return  # no operand of such a primitive is differentiable
    chosen = _instances(row, shapes, seed)
    if chosen:

        def run(_target: Target) -> Problem | None:
            wrong = next(filter(None, (_judged(row, each, seed) for each in chosen)), None)
            return None if wrong is None else Problem("wrong", wrong)

        name, tags = f"{level}/{row.name}/{dtype}/derivatives", (row.kind.value, "derivatives")
        yield Check(name, level, row.name, (), run, dtype.name, tags, host=True)


def _instances(row: OpDef, shapes: Shapes, seed: int) -> list[Instance]:
    """Small instances: for each choice of attributes that have choices one, which the seed says."""
    groups: dict[tuple[object, ...], list[Instance]] = {}
    # The first operand of a choice is no float; and some draws have operands without elements.
    dtypes = [d for d in (f64, *row.dtypes) if d in row.dtypes and (d is f64 or not d.is_float)]
    for more, dtype in product(range(_DRAWS), dict.fromkeys(dtypes)):
        made = instances(row, dtype, shapes, seed + more, few=True)
        for instance in filter(partial(_differentiable, row), made):
            attrs = dict(instance.attrs)
            key = tuple(attrs.get(a.name) for a in row.attrs if a.choices or a.kind == "bool")
            groups.setdefault(key, []).append(instance)
        if groups:
            break
    differentiable = []
    for key, group in groups.items():
        small = [i for i in group if _size(i) <= _FEW]
        if small:
            differentiable.append(small[derive(seed, row.name, str(key)) % len(small)])
    if not differentiable:
        return [min(group, key=_size) for group in groups.values()][:1]
    first = derive(seed, row.name, "first") % max(len(differentiable), 1)
    return (differentiable[first:] + differentiable[:first])[:_SEVERAL]


def _size(instance: Instance) -> int:
    return sum(t.size for t in instance.operands)


def _differentiable(row: OpDef, instance: Instance) -> bool:
    """Whether it takes floats to floats, none of which is rounded to less than f64."""
    graph = single(row, instance.operands, dict(instance.attrs))
    floats = [[v for v in part if v.dtype.is_float] for part in (graph.inputs, graph.outputs)]
    sizes = [v.type.size for v in (*graph.inputs, *graph.outputs)]
    if not all(floats) or sum(sizes) > _MOST or 0 in sizes:
        return False
    if any(v.dtype is not f64 for part in floats for v in part):
        return False
    try:
        Differentiated.of_graph(graph).derivative("reverse")
    except UnsupportedError:
        return False
    return True


def _judged(row: OpDef, instance: Instance, seed: int) -> str | None:
    """What is wrong with the derivatives of an instance, in a sentence."""
    differentiated = Differentiated.of_graph(single(row, instance.operands, dict(instance.attrs)))

    @cache
    def points(attempt: int) -> list[Point]:
        seeds = [derive(seed, row.name, attempt, n) >> 32 for n in range(EXAMPLES)]
        kind = _TRIED[attempt % len(_TRIED)]
        return [_point(row, differentiated, instance, kind, own) for own in seeds]

    for mode in MODES:
        for attempt in range(_ROUNDS * len(_TRIED)):
            try:
                wrong = disagreement(differentiated, mode, points(attempt))
            except Unshown:
                continue
            if wrong is not None:
                types = ", ".join(map(str, instance.operands))
                attrs = "".join(f", {name}={value}" for name, value in instance.attrs)
                return f"{row.name}({types}{attrs}): {wrong}"
            break
        else:
            return f"{row.name}: no data shows its derivative, {mode}"
    return None


def _inner(domain: Interval | None, tried: Interval) -> Interval | None:
    """Both, without the ends of the domain, where slopes may be infinite."""
    low, high = (-np.inf, np.inf) if domain is None else domain
    margin = (high - low) / 5 if np.isfinite(high - low) else 0.0
    low, high = low + margin, high - margin
    both = max(low, tried[0]), min(high, tried[1])
    low, high = both if both[0] < both[1] else (low, high)
    return (low, high) if np.isfinite([low, high]).any() else None


def _point(
    row: OpDef,
    differentiated: Differentiated,
    instance: Instance,
    tried: tuple[str, Interval],
    seed: int,
) -> Point:
    """Arrays of a kind, and directions of at most one."""
    domain, (kind, near) = row.domain, tried
    arrays = []
    for position, type_ in enumerate(v.type for v in differentiated.graph.inputs):
        interval = domain.intervals[min(position, len(domain.intervals) - 1)]
        own = (instance.kinds or ("ramp",))[0]
        if type_.dtype.is_float:
            own, interval = kind, _inner(interval, near)
        nonzero, matrix = position in domain.nonzero, domain.matrix(position)
        recipe = Recipe(own, seed + position, (), "dense", interval, nonzero, matrix)
        arrays.append(recipe.make(type_))

    def directions(name: str, positions: tuple[int, ...], values: Sequence[Value]) -> list[Array]:
        seeds = [derive(seed, name, i) >> 32 for i in positions]
        pairs = zip(seeds, positions, strict=True)
        return [Recipe("signed", own).make(values[i].type) / 4 for own, i in pairs]

    inputs, outputs = differentiated.graph.inputs, differentiated.graph.outputs
    moves = tuple(directions(name, differentiated.wrt, inputs) for name in ("first", "second"))
    return Point(arrays, (moves[0], moves[1]), directions("cotangent", differentiated.of, outputs))
