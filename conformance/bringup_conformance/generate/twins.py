"""Instructions that differ in one attribute alone, in one program and in two: what merges or caches
by less than all attributes gives one of them for the other.

The attributes and their values come from the op table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from bringup.dtypes import STORED
from bringup.errors import OpTypeError
from bringup.graph import Builder, Value
from bringup.ops.table import Attr, OpDef
from bringup.passes.base import as_results
from bringup.types import TensorType
from bringup_conformance.cases import Case, Instance
from bringup_conformance.execution.support import Support, single
from bringup_conformance.generate.recipes import Recipe

#: Attributes that promise something of the data, which the data would break.
_PROMISES = frozenset({"per_column", "per_row", "unique"})
#: Kinds of data for which any attributes have results.
_PLAIN = frozenset({"signed", "small", "ramp", "positive", "negative", "ties", "units"})
#: Elements of the operands: what twins show, small ones show.
_MOST = 1 << 11
_PRIMES = (3, 5, 7, 11, 13, 2, 17)
Attrs = dict[str, Any]


def bound(row: OpDef, instance: Instance) -> Attrs:
    """All attributes of an instance, with defaults.  Raises OpTypeError."""
    attrs = dict(instance.attrs)
    filled = dict(row.fill(instance.operands, attrs)) if row.fill is not None else {}
    return row.bind({**filled, **attrs})


def results_of(row: OpDef, instance: Instance) -> tuple[Value, ...] | None:
    """What the row gives for an instance; None if it does not take it."""
    try:
        return single(row, instance.operands, dict(instance.attrs)).outputs
    except OpTypeError:
        return None


def valid(row: OpDef, instance: Instance) -> bool:
    """Whether the row takes an instance."""
    return results_of(row, instance) is not None


def twins(row: OpDef, instance: Instance) -> dict[str, Instance]:
    """For each attribute that has another valid value, the instance with that value."""
    if row.effects or not instance.operands:
        return {}
    others = {}
    attrs = bound(row, instance)
    for attr in row.attrs:
        for value in () if attr.name in _PROMISES else _others(attr, attrs[attr.name], instance):
            other = Instance(
                instance.operands, tuple({**attrs, attr.name: value}.items()), instance.kinds
            )
            if valid(row, other):
                others[attr.name] = other
                break
    return others


def _others(attr: Attr, value: Any, instance: Instance) -> Iterator[Any]:
    """Values that an attribute may have instead, those first that are likely to be valid."""
    if attr.choices:
        yield from (choice for choice in attr.choices if choice != value)
    elif attr.kind == "bool":
        yield not value
    elif attr.kind == "float":
        yield value + 1.0
    elif attr.kind == "int":
        yield from (n for n in (value + 1, value - 1) if n >= 0)
    elif attr.kind == "dtype":
        yield from (dtype for dtype in STORED if dtype is not value)
    elif attr.kind == "ints":
        yield from (other for other in _tuples(value) if other != value)
    elif attr.kind == "dims":
        ranks = [range(type_.rank) for type_ in instance.operands[:2]]
        swapped = (value[0], value[1][::-1])
        pairs = (((a,), (b,)) for a, b in product(*ranks))
        yield from (other for other in (swapped, *pairs) if other != value)


def _tuples(value: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield value[::-1]
    for position in reversed(range(len(value))):
        for step in (1, -1):
            yield (*value[:position], value[position] + step, *value[position + 1 :])


def resized(row: OpDef, instances: Sequence[Instance]) -> Iterator[Instance]:
    """The first instance that can be so with all sizes equal, and the first with primes for sizes,
    other ones for other sizes.
    """
    ranked = [i for i in instances if max((t.rank for t in i.operands), default=0) > 1]
    for equal in (True, False):
        for instance in ranked:
            sizes = dict.fromkeys(n for t in instance.operands for n in t.shape if n > 1)
            table = {n: 5 if equal else p for n, p in zip(sizes, _PRIMES, strict=False)}
            types = tuple(_with_sizes(t, table) for t in instance.operands)
            other = Instance(types, instance.attrs, instance.kinds)
            if types != instance.operands and valid(row, other):
                yield other
                break


def _with_sizes(type_: TensorType, table: dict[int, int]) -> TensorType:
    return type_.with_shape(tuple(table.get(n, n) for n in type_.shape))


def cases(
    support: Support, row: OpDef, dtype: str, level: str, usable: Sequence[Instance], seed: int
) -> Iterator[Case]:
    """Of the instance with the most twins, a program of it and all of them, and then each alone."""
    small = [i for i in usable if 0 < sum(t.size for t in i.operands) <= _MOST]
    pairs = [(instance, twins(row, instance)) for instance in small]
    first, others = max(pairs, key=lambda pair: len(pair[1]), default=(None, {}))
    supported = [
        other
        for other in others.values()
        if support.reason(row, other.operands, dict(other.attrs)) is None
    ]
    if first is None or not supported:
        return
    kinds = [kind for kind in first.kinds if kind in _PLAIN][:2] or ["signed"]
    positions = range(len(first.operands))
    data = tuple(
        tuple(Recipe.for_operand(row, n, kind, 16 * seed + n) for n in positions) for kind in kinds
    )
    for number, together in enumerate(
        ([first, *supported], [first], *([other] for other in supported))
    ):
        with Builder() as builder:
            operands = [builder.input(type_) for type_ in first.operands]
            results = [as_results(row(*operands, **dict(each.attrs))) for each in together]
        outputs = [value for each in results for value in each]
        yield Case(
            name=f"{level}/{row.name}/{dtype}/twins-{number}",
            level=level,
            op=row.name,
            dtype=dtype,
            graph=builder.build(outputs, f"{row.name}_twins"),
            data=data,
            tags=(row.kind.value, "twins"),
        )
