"""The cases of each level, in an order that depends on nothing but the seed, the device's
declaration and its budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bringup.backend.capabilities import Capabilities
from bringup.dtypes import ALL, BY_NAME, DType, f32
from bringup.graph import Builder, Value
from bringup.ops.table import Kind, OpDef, all_ops, lookup
from bringup_conformance import special
from bringup_conformance.cases import Case, Instance, Unsupported
from bringup_conformance.choices import Stream
from bringup_conformance.growing import Setting
from bringup_conformance.instances import instances
from bringup_conformance.programs import draw_program, usable_dtypes
from bringup_conformance.recipes import LAYOUTS, Recipe
from bringup_conformance.support import Support

Item = Case | Unsupported
#: Instructions checked in one program, so that compiling does not dominate.
_TOGETHER = 6


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a level is run.

    programs: random ones.  limit: elements of their largest arrays.  large: whether sizes past
    8,192 are drawn.
    data: data sets of an op's case.
    """

    programs: int
    limit: int
    large: bool
    data: int


#: For devices that compile and run at the speed of hardware, and for simulators.
BUDGETS = {"full": Budget(400, 4096, True, 4), "simulated": Budget(120, 300, False, 2)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cases are made for."""

    capabilities: Capabilities
    support: Support
    seed: int
    budget: Budget


def cases(plan: Plan, level: str) -> Iterator[Item]:
    """The cases of one level, without those of the levels below it."""
    return {"smoke": smoke, "ops": ops, "fusion": fusion}[level](plan)


def smoke(plan: Plan) -> Iterator[Item]:
    """Every name a device must have, on f32 or the first dtype it takes, and a few fused programs
    of every day.
    """
    for row in all_ops():
        if row.tier == 0:
            dtype = f32 if f32 in row.dtypes else row.dtypes[0]
            yield from _row_cases(plan, row, dtype, "smoke", most=2)
    yield from _everyday(plan)


def ops(plan: Plan) -> Iterator[Item]:
    """Every row with every dtype it takes: boundary sizes, data of several kinds, special cells."""
    for row in all_ops():
        for dtype in row.dtypes:
            yield from _row_cases(plan, row, dtype, "ops", most=None)
            yield from _special_cases(plan, row, dtype)


def fusion(plan: Plan) -> Iterator[Item]:
    """Random programs."""
    budget, dtypes = plan.budget, usable_dtypes(plan.support)
    for number in range(budget.programs):
        setting = Setting(
            support=plan.support,
            numerics=plan.capabilities.numerics,
            shapes=plan.capabilities.shapes,
            exact=number % 5 in (1, 3),
            limit=budget.limit,
            dtypes=dtypes,
        )
        choices = Stream(plan.seed, "program", number)
        made = draw_program(choices, setting, large=budget.large and number % 16 == 15)
        yield Case(
            name=f"fusion/program/{number}",
            level="fusion",
            op="programs",
            dtype=made.graph.outputs[0].dtype.name,
            graph=made.graph,
            data=made.data,
            split=number % 4 == 0,
        )


def _row_cases(
    plan: Plan, row: OpDef, dtype: DType, level: str, most: int | None
) -> Iterator[Item]:
    """The instances of a row and dtype, several to a program; what is not supported, once for each
    reason.
    """
    found = instances(row, dtype, plan.capabilities.shapes, plan.seed)
    if not plan.budget.large:
        found = [i for i in found if all(t.size <= 2048 for t in i.operands)]
    usable: list[Instance] = []
    reasons: dict[str, None] = {}
    for instance in found:
        reason = plan.support.reason(row, instance.operands, dict(instance.attrs))
        if reason is None:
            usable.append(instance)
        else:
            reasons[reason] = None
    place = f"{level}/{row.name}/{dtype.name}"
    if not found:
        reasons["the suite has no operands for it"] = None
    for reason in reasons:
        yield Unsupported(place, level, row.name, dtype.name, reason)
    usable = usable[:most]
    for first in range(0, len(usable), _TOGETHER):
        group = usable[first : first + _TOGETHER]
        yield _joint_case(plan, row, dtype, level, f"{place}/{first // _TOGETHER}", group)


def _joint_case(
    plan: Plan, row: OpDef, dtype: DType, level: str, name: str, group: Sequence[Instance]
) -> Case:
    """One program with an instruction and an output for each instance."""
    builder = Builder()
    outputs: list[Value] = []
    with builder:
        for instance in group:
            results = row(*map(builder.input, instance.operands), **dict(instance.attrs))
            outputs += results if isinstance(results, tuple) else (results,)
    data = tuple(_data(plan, row, group, number) for number in range(plan.budget.data))
    return Case(
        name=name,
        level=level,
        op=row.name,
        dtype=dtype.name,
        graph=builder.build(outputs, row.name),
        data=data if any(i.operands for i in group) else ((),),
        bitwise=row.kind in (Kind.MOVEMENT, Kind.SOURCE) or row.name == "select",
    )


def _data(plan: Plan, row: OpDef, group: Sequence[Instance], number: int) -> tuple[Recipe, ...]:
    """Recipes of all inputs: the kinds of each instance, turned by the number of the set."""
    choices = Stream(plan.seed, "data", row.name, number)
    domain = row.domain
    recipes: list[Recipe] = []
    for which, instance in enumerate(group):
        kinds = instance.kinds or ("ramp",)
        for position in range(len(instance.operands)):
            kind = kinds[(number + which + position * (1 + number % 2)) % len(kinds)]
            layout = LAYOUTS[choices.integer(0, 4)] if choices.integer(0, 7) == 7 else "dense"
            interval = domain.intervals[min(position, len(domain.intervals) - 1)]
            recipes.append(
                Recipe(kind, plan.seed + number, (), layout, interval, position in domain.nonzero)
            )
    return tuple(recipes)


def _special_cases(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Case]:
    capabilities = plan.capabilities
    parts = special.groups(row, dtype, capabilities.numerics, capabilities.shapes.vector)
    graph, kept = special.program(row, dtype, parts, plan.support)
    if kept:
        yield Case(
            f"ops/{row.name}/{dtype.name}/special", "ops", row.name, dtype.name, graph, cells=kept
        )


def _everyday(plan: Plan) -> Iterator[Item]:
    """Programs everybody writes first."""
    w = plan.capabilities.shapes.vector
    for name, build in (
        ("weighted_sum", _weighted_sum),
        ("softmax", _softmax),
        ("dense_layer", _dense),
    ):
        for dtype in (f32,):
            graph_builder = Builder()
            with graph_builder:
                output = build(graph_builder, dtype, w)
            graph = graph_builder.build([output], name)
            place = f"smoke/{name}/{dtype.name}"
            reason = next(
                (r for i in graph.instrs if (r := plan.support.reason(
                    lookup(i.op.name), [v.type for v in i.operands], i.attrs
                ))),
                None,
            )  # fmt: skip
            if reason is not None:
                yield Unsupported(place, "smoke", "programs", dtype.name, reason)
                continue
            data = tuple(
                tuple(Recipe(kind, plan.seed + i) for i in range(len(graph.inputs)))
                for kind in ("signed", "small")
            )
            yield Case(place, "smoke", "programs", dtype.name, graph, data, split=True)


def _weighted_sum(builder: Builder, dtype: DType, w: int) -> Value:
    x, y, z = (builder.input(dtype[5, 4 * w + 3]) for _ in range(3))
    total: Value = lookup("reduce")(lookup("add")(x, lookup("mul")(y, z)), kind="add", dims=(0, 1))
    return total


def _softmax(builder: Builder, dtype: DType, w: int) -> Value:
    result: Value = lookup("softmax")(builder.input(dtype[7, 2 * w + 5]), dims=(1,))
    return result


def _dense(builder: Builder, dtype: DType, w: int) -> Value:
    x, weights, bias = (
        builder.input(dtype[5, w + 1]),
        builder.input(dtype[w + 1, 7]),
        builder.input(dtype[7]),
    )
    product = lookup("dot_general")(x, weights, batch=((), ()), contract=((1,), (0,)))
    spread = lookup("broadcast_in_dim")(bias, shape=(5, 7), dims=(1,))
    result: Value = lookup("relu")(lookup("add")(product, spread))
    return result


__all__ = ["ALL", "BUDGETS", "BY_NAME", "Budget", "Item", "Plan", "cases"]
