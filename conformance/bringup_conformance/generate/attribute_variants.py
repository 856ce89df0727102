"""Instructions that differ in one attribute alone, in one program and in several: a device that
merges or caches by less than all attributes gives one of them for the other.

The attributes and their values come from the op table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from bringup.dtypes import STORED
from bringup.graph import Builder
from bringup.ops.table import Attr, OpDef
from bringup.passes.base import as_results
from bringup_conformance.cases import Case, Instance
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.drawing import bound, valid
from bringup_conformance.generate.recipes import Recipe

#: Attributes that promise something of the data, which the data would break.
_PROMISES = frozenset({"per_column", "per_row", "unique"})
#: Kinds of data for which any attributes have results.
_PLAIN = frozenset({"signed", "small", "ramp", "positive", "negative", "ties", "units"})
#: Elements of the operands: small ones show as much as large ones.
_MOST = 1 << 11
Attrs = dict[str, Any]


def variants(row: OpDef, instance: Instance) -> dict[str, Instance]:
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


def cases(
    support: Support, row: OpDef, dtype: str, level: str, usable: Sequence[Instance], seed: int
) -> Iterator[Case]:
    """Of the instance with the most variants, a program of all of them, and then each alone."""
    small = [i for i in usable if 0 < sum(t.size for t in i.operands) <= _MOST]
    pairs = [(instance, variants(row, instance)) for instance in small]
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
