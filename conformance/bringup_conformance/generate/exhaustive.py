"""Every input of ops that have few enough of them, inputs at equal distances of the others, and
arrays past 2^31 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from bringup.dtypes import STORED, DType, bool_
from bringup.graph import Builder, Graph, Value
from bringup.ops.table import Kind, OpDef, Trait, all_ops, lookup
from bringup_conformance.cases import Case, Instance, Unsupported
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.generate import huge_arrays
from bringup_conformance.generate.choices import Stream, pick
from bringup_conformance.generate.drawing import valid
from bringup_conformance.generate.recipes import Recipe

LEVEL = "exhaustive"
#: Bits of a dtype all of whose values are one array, and of one all of whose pairs are.
ALL_BITS, PAIR_BITS = 16, 8
# Inputs of wider dtypes, at equal distances: on hardware, and on simulators.
_SAMPLED, _SAMPLED_FEW = 1 << 20, 1 << 14
# Rows whose domain ends between here and the largest f32 say less of the last binade of any dtype.
_LAST_BINADE = 1e38
_EVERY, _SPACED, _PAIRS = Recipe("every"), "spaced", (Recipe("every"), Recipe("slow"))


def units(plan: Plan) -> list[Unit]:
    """All values of 16 bits through every op of one operand and every cast, all pairs of 8 bits
    through those of two, 2^20 values of wider dtypes, chains of casts, arrays past 2^31 bytes.
    """
    listed = []
    for row in all_ops():
        if _is_cast(row):
            listed += [
                _unit(plan, row, dtype, _casts) for dtype in row.dtypes if dtype is not bool_
            ]
        elif _by_elements(row) and row.arity == 1:
            listed += [
                _unit(plan, row, dtype, _unary) for dtype in row.dtypes if dtype is not bool_
            ]
        elif _by_elements(row) and row.arity == 2:
            listed += [_unit(plan, row, d, _binary) for d in row.dtypes if d.bits == PAIR_BITS]
    convert = lookup("convert")
    listed += [_unit(plan, convert, d, _chains, "chain") for d in STORED if _is_short(d)]
    return listed + huge_arrays.units(plan)


def _by_elements(row: OpDef) -> bool:
    return row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits


def _is_cast(row: OpDef) -> bool:
    """Whether all that a row asks for is a dtype to give."""
    return row.kind is Kind.ELEMENTWISE and [a.kind for a in row.attrs] == ["dtype"]


def _is_short(dtype: DType) -> bool:
    return dtype.bits <= ALL_BITS and dtype is not bool_


def _unit(plan: Plan, row: OpDef, dtype: DType, make: Any, number: str = "") -> Unit:
    return Unit(
        LEVEL, row.name, dtype.name, number, row.kind.value, partial(make, plan, row, dtype)
    )


def _unary(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    size, data, tag = _values(plan, dtype)
    interval = row.domain.intervals[0]
    if interval is not None and interval[1] > _LAST_BINADE:
        data = (Recipe("inner", plan.seed),)
    graphs = [_program(row, [dtype[size]], [attrs]) for attrs in _variants(row)]
    yield from _cases(plan, row, dtype, tag, graphs, data)


def _binary(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    types = [dtype[1 << 2 * PAIR_BITS]] * 2
    data = (Recipe("signed"),) * 2 if dtype is bool_ else _PAIRS
    graphs = [_program(row, types, [attrs]) for attrs in _variants(row)]
    yield from _cases(plan, row, dtype, "pairs", graphs, data)


def _casts(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    size, data, tag = _values(plan, dtype)
    variants = [(("dtype", target),) for target in STORED]
    taken = [dict(v) for v in variants if valid(row, Instance((dtype[size],), v))]
    graphs = [_program(row, [dtype[size]], [attrs]) for attrs in taken]
    # A cast to dtypes of one width reinterprets bits, those of NaNs too.
    bitwise = {attrs["dtype"].bits for attrs in taken} == {dtype.bits}
    yield from _cases(plan, row, dtype, tag, graphs, data, bitwise=bitwise)


def _chains(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    """Through every dtype to every other; on simulators back, and to one more."""
    graphs = []
    for through in STORED:
        last: Sequence[DType] = STORED
        if not plan.budget.large:
            other = pick(Stream(plan.seed, "chain", dtype.name, through.name), STORED)
            last = list(dict.fromkeys((dtype, other)))
        with Builder() as builder:
            x = builder.input(dtype[1 << dtype.bits])
            middle = row(x, dtype=through)
            outputs = [row(middle, dtype=target) for target in last if target is not through]
            graphs.append(builder.build(outputs or [middle], "chain"))
    yield from _cases(plan, row, dtype, "chain", graphs, (_EVERY,))


def _values(plan: Plan, dtype: DType) -> tuple[int, tuple[Recipe, ...], str]:
    """How many inputs an op of one operand gets, the data, and what to call them."""
    if _is_short(dtype):
        return 1 << dtype.bits, (_EVERY,), "every"
    size = _SAMPLED if plan.budget.large else _SAMPLED_FEW
    return size, (Recipe(_SPACED, plan.seed),), "spaced"


def _variants(row: OpDef) -> list[dict[str, Any]]:
    chosen = [a for a in row.attrs if a.choices]
    return [
        {a.name: choice for a, choice in zip(chosen, choices, strict=True)}
        for choices in product(*(a.choices for a in chosen))
    ]


def _program(row: OpDef, types: Sequence[Any], variants: Sequence[dict[str, Any]]) -> Graph:
    with Builder() as builder:
        operands = [builder.input(type_) for type_ in types]
        outputs: list[Value] = [row(*operands, **attrs) for attrs in variants]
        return builder.build(outputs, row.name)


def _cases(
    plan: Plan,
    row: OpDef,
    dtype: DType,
    tag: str,
    graphs: Sequence[Graph],
    data: Sequence[Recipe],
    *,
    bitwise: bool = False,
) -> Iterator[Item]:
    prefix = f"{LEVEL}/{row.name}/{dtype.name}/{tag}"
    reasons: dict[str, None] = {}
    for number, graph in enumerate(graphs):
        reason = plan.support.reason_of(graph)
        if reason is not None:
            reasons[reason] = None
            continue
        yield Case(
            name=f"{prefix}/{number}",
            level=LEVEL,
            op=row.name,
            dtype=dtype.name,
            graph=graph,
            data=(tuple(data),),
            bitwise=bitwise,
            split=row.decompose is not None or len(graph) > 1,
            tags=(tag, row.kind.value),
        )
    for reason in reasons:
        yield Unsupported(prefix, LEVEL, row.name, dtype.name, reason)
