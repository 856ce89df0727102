"""The cases of each level, in an order that depends on nothing but the seed, the device's
declaration and its budget.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from bringup.dtypes import BY_NAME, DType, f32
from bringup.errors import BringupError
from bringup.graph import Builder, Value
from bringup.ops.table import Kind, OpDef, all_ops, find, lookup
from bringup_conformance.cases import PROGRAMS, Case, Instance, Unsupported
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.generate import (
    derivatives,
    families,
    hazards,
    mapped,
    public,
    twins,
)
from bringup_conformance.generate.choices import Stream, pick
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.programs import draw_program, usable_dtypes
from bringup_conformance.generate.recipes import LAYOUTS, TOGETHER, Recipe
from bringup_conformance.oracle import special
from bringup_conformance.rules.carried import carrying
from bringup_conformance.rules.cells import cells_of

#: The levels, each with those before it.
LEVELS = ("smoke", "ops", "fusion", "runtime", "exhaustive")
#: Levels that hold no other.
APART = ("soak",)
#: The number of units of special cells.
SPECIAL = "special"
# Larger operands take a simulator longer than they are worth.
_SMALL = 8200
_SMOKE_PROGRAMS = 20
# One in so many programs is also run on many examples.
_MAPPED = 20


def ladder(level: str) -> tuple[str, ...]:
    """The levels that a run of one holds, in order.  Raises BringupError for an unknown name."""
    if level in APART:
        return (level,)
    if level not in LEVELS:
        known = (*LEVELS, *APART)
        close = difflib.get_close_matches(level, known, n=1)
        fix = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
        raise BringupError(f"no level is named {level!r}", fix=fix)
    return LEVELS[: LEVELS.index(level) + 1]


def units(plan: Plan, level: str) -> list[Unit]:
    """The cases of one level, without those of the levels below it."""
    return [
        replace(u, make=partial(carrying, plan, partial(_sampled, plan, u.make)))
        for u in MADE[level](plan)
    ]


def _sampled(plan: Plan, make: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Op by op, one in so many: parts are cases of their own, and half of the cost is theirs.
    Compiled to fast code, one in so many: compiling is most of a run, and the rest of the cases
    have the same kernels of other shapes and dtypes.
    """
    for item in make():
        if isinstance(item, Case):
            split = item.split and _chosen(plan, item, "split", plan.budget.split)
            plain = item.level == "smoke" or "hazard" in item.tags
            optimize = plain or _chosen(plan, item, "optimize", plan.budget.optimize)
            yield replace(item, split=split, optimize=optimize)
        else:
            yield item


def _chosen(plan: Plan, case: Case, what: str, every: int) -> bool:
    """Of programs by chance; of a row, which has few cases, in turn over its dtypes."""
    row = find(case.op)
    if every == 0:
        return False
    if row is None:
        return Stream(plan.seed, what, case.name).integer(1, every) == 1
    number = case.name.rpartition("/")[2]
    turn = Stream(plan.seed, what, row.name).integer(1, every)
    turn += row.dtypes.index(BY_NAME[case.dtype]) + (int(number) if number.isdigit() else 0)
    return turn % every == 0


def smoke(plan: Plan) -> list[Unit]:
    """Every name a device must have, on f32 or the first dtype it takes, three fused programs that
    everybody writes first, and a few random ones.
    """
    found = []
    for row in all_ops():
        if row.tier == 0:
            dtype = f32 if f32 in row.dtypes else row.dtypes[0]
            found.append(_row_unit(plan, row, dtype, "smoke", most=4))
    make = partial(families.everyday, plan.support, plan.capabilities.shapes.vector, plan.seed)
    found.append(Unit("smoke", PROGRAMS, f32.name, "", PROGRAMS, make))
    return found + _programs(plan, "smoke", _SMOKE_PROGRAMS)


def ops(plan: Plan) -> list[Unit]:
    """Every row with the dtypes it takes: boundary sizes, data of several kinds, special cells."""
    found = []
    for unit in table(plan):
        row, dtype = lookup(unit.op), BY_NAME[unit.dtype]
        if dtype in _dtypes(plan, row):
            found.append(unit)
        # Rules with ids of their own, and so with a test of their own, of all dtypes.
        if cells_of(row, dtype):
            make = partial(_special_cases, plan, row, dtype)
            found.append(replace(unit, number=SPECIAL, make=make))
    return found


def table(plan: Plan) -> list[Unit]:
    """Every row with every dtype it takes, whatever the device makes of it."""
    return [
        _row_unit(plan, row, dtype, "ops", most=None) for row in all_ops() for dtype in row.dtypes
    ]


def _dtypes(plan: Plan, row: OpDef) -> tuple[DType, ...]:
    """All of them.  Of what the device runs as a decomposition, whose parts are checked with all:
    f32, or the first, and one more that the seed chooses.
    """
    ops, kernels = plan.capabilities.ops, plan.capabilities.kernels
    if row.decompose is None or any(name in ops or name in kernels for name in row.claims):
        return row.dtypes
    first = f32 if f32 in row.dtypes else row.dtypes[0]
    rest = [d for d in row.dtypes if d is not first]
    other = pick(Stream(plan.seed, "dtype", row.name), rest) if rest else first
    return tuple(d for d in row.dtypes if d in (first, other))


def fusion(plan: Plan) -> list[Unit]:
    """Programs that each hold one hazard, every way of reading with every use, programs of many
    inputs, launches and so on, public functions, random programs of many examples, then random
    programs, each fused and op by op.
    """
    found = [
        Unit("fusion", PROGRAMS, "", name, PROGRAMS, partial(_hazard, plan, name))
        for name in hazards.NAMES
    ]
    found += [
        Unit("fusion", PROGRAMS, "", read, PROGRAMS, partial(_pairs, plan, read))
        for read in families.READS
    ]
    found += [
        Unit("fusion", PROGRAMS, "", f"many-{name}", PROGRAMS, partial(_ladder, plan, name))
        for name in families.LADDERS
    ]
    found += [
        Unit("fusion", PROGRAMS, "", public.named(module), PROGRAMS, partial(_public, plan, module))
        for module in public.MODULES
    ]
    for n in range(plan.budget.programs // _MAPPED):
        make = partial(_mapped_case, plan, n)
        found.append(Unit("fusion", PROGRAMS, "", f"mapped-{n}", PROGRAMS, make))
    return found + _programs(plan, "fusion", plan.budget.programs)


def runtime(plan: Plan) -> list[Unit]:
    """What a device promises beyond the values of one program: memory, order, copies, reuse."""
    from bringup_conformance.runtime import units as made

    return made(plan)


def exhaustive(plan: Plan) -> list[Unit]:
    """Every input of ops and casts of 16 bits, and what is heavy."""
    from bringup_conformance.generate.exhaustive import units as made

    return made(plan)


def soak(_plan: Plan) -> list[Unit]:
    """Random programs without end, led to large errors in shares of their bounds, much scratch
    memory and many kernels; resumes from its corpus, and holds no other level.
    """
    return []  # what comes next depends on what came of the last: see `soak`


def _hazard(plan: Plan, name: str) -> Iterator[Item]:
    few = not plan.budget.large
    return hazards.cases(plan.support, plan.capabilities.shapes, name, plan.seed, few=few)


def _pairs(plan: Plan, read: str) -> Iterator[Item]:
    shapes, large = plan.capabilities.shapes, plan.budget.large
    return families.pairs(plan.support, shapes, read, plan.seed, large=large)


def _ladder(plan: Plan, name: str) -> Iterator[Item]:
    few, limits = not plan.budget.large, plan.capabilities.limits
    return families.many(plan.support, limits, name, plan.seed, few=few)


def _public(plan: Plan, module: str) -> Iterator[Item]:
    return public.cases(plan.support, module, plan.seed)


def _programs(plan: Plan, level: str, count: int) -> list[Unit]:
    dtypes = usable_dtypes(plan.support)
    make = partial(_program_case, plan, level, dtypes)
    return [Unit(level, PROGRAMS, "", str(n), PROGRAMS, partial(make, n)) for n in range(count)]


def _mapped_case(plan: Plan, number: int) -> Iterator[Item]:
    config = plan.config(usable_dtypes(plan.support), number % 2 == 0)
    yield mapped.mapped_program(config, "fusion", plan.seed, number)


def _program_case(
    plan: Plan, level: str, dtypes: tuple[tuple[int, DType], ...], number: int
) -> Iterator[Item]:
    budget = plan.budget
    config = plan.config(dtypes, number % 5 in (1, 3))
    choices = Stream(plan.seed, level, number)
    made = draw_program(choices, config, large=budget.large and number % 16 == 15)
    yield made.case(level, config.exact, number)


def _row_unit(plan: Plan, row: OpDef, dtype: DType, level: str, most: int | None) -> Unit:
    make = partial(_row_cases, plan, row, dtype, level, most)
    return Unit(level, row.name, dtype.name, "", row.kind.value, make)


def _row_cases(
    plan: Plan, row: OpDef, dtype: DType, level: str, most: int | None
) -> Iterator[Item]:
    """The instances of a row and dtype, several to a program; what is not supported, once for each
    reason.
    """
    shapes, few = plan.capabilities.shapes, not plan.budget.large
    found = instances(row, dtype, shapes, plan.seed, few=few)
    if few:
        found = [i for i in found if i.far or all(t.size <= _SMALL for t in i.operands)]
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
    for number, (first, group) in enumerate(_groups(usable, plan.budget.together)):
        yield _joint_case(plan, row, dtype, level, f"{place}/{number}", group, first)
    if level == "ops" and dtype is (f32 if f32 in row.dtypes else row.dtypes[0]):
        yield from twins.cases(plan.support, row, dtype.name, level, usable, plan.seed)
        yield from mapped.row_cases(plan.support, row, dtype, level, usable, plan.seed)
        yield from derivatives.checks(row, dtype, level, shapes, plan.seed)


def _groups(usable: Sequence[Instance], together: int) -> Iterator[tuple[int, Sequence[Instance]]]:
    """So many instances at a time, far ones apart from the others, each with the first's number."""
    for far in (False, True):
        part = [instance for instance in usable if instance.far is far]
        for first in range(0, len(part), together):
            yield first, part[first : first + together]


def _joint_case(
    plan: Plan,
    row: OpDef,
    dtype: DType,
    level: str,
    name: str,
    group: Sequence[Instance],
    first: int,
) -> Case:
    """One program with an instruction and an output for each instance.  first: the number of the
    first of them among all of the row.
    """
    outputs: list[Value] = []
    with Builder() as builder:
        for instance in group:
            results = row(*map(builder.input, instance.operands), **dict(instance.attrs))
            outputs += results if isinstance(results, tuple) else (results,)
    # The reference of what is made of many instructions takes long, and so does its bound.
    sets = plan.budget.data if row.decompose is None else max(2, plan.budget.data // 2)
    if group[0].far:
        sets = min(sets, 2)
    data = tuple(_data(plan, row, group, first, number) for number in range(sets))
    return Case(
        name=name,
        level=level,
        op=row.name,
        dtype=dtype.name,
        graph=builder.build(outputs, row.name),
        data=data if any(i.operands for i in group) else ((),),
        bitwise=row.kind in (Kind.MOVEMENT, Kind.SOURCE) or row.name == "select",
        # What is not one instruction to the device may come out otherwise when it is taken apart.
        split=row.decompose is not None or row.kind is Kind.CONTRACTION,
        tags=(row.kind.value,),
    )


def _data(
    plan: Plan, row: OpDef, group: Sequence[Instance], first: int, number: int
) -> tuple[Recipe, ...]:
    """Recipes of all inputs: the kinds of each instance, turned by its number and the set's."""
    choices = Stream(plan.seed, "data", row.name, number)
    recipes: list[Recipe] = []
    for which, instance in enumerate(group, first):
        kinds = instance.kinds or ("ramp",)
        for position in range(len(instance.operands)):
            turn = plan.seed + number + which
            if kinds[turn % len(kinds)] not in TOGETHER:
                turn += position * (1 + number % 2)
            kind = kinds[turn % len(kinds)]
            layout = LAYOUTS[choices.integer(0, 4)] if choices.integer(0, 7) == 7 else "dense"
            # Equal types must not get equal data, and neighbours only differ by their seeds.
            own = 16 * plan.seed + (number + position) % 16
            recipes.append(Recipe.for_operand(row, position, kind, own, layout))
    return tuple(recipes)


def _special_cases(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    """One case of all special cells that are supported; why others are not."""
    capabilities, place = plan.capabilities, f"ops/{row.name}/{dtype.name}/{SPECIAL}"
    parts = special.groups(row, dtype, capabilities.numerics, capabilities.shapes.vector)
    for reason in special.missing(row, dtype, parts, plan.support):
        yield Unsupported(place, "ops", row.name, dtype.name, reason)
    graph, kept = special.program(row, dtype, parts, plan.support)
    if kept:
        yield Case(
            name=place,
            level="ops",
            op=row.name,
            dtype=dtype.name,
            graph=graph,
            cells=kept,
            tags=(row.kind.value,),
            rules=tuple(dict.fromkeys(rule for cells in kept for rule in cells.rules)),
        )


#: What makes the units of each level.
MADE: dict[str, Callable[[Plan], list[Unit]]] = {
    "smoke": smoke,
    "ops": ops,
    "fusion": fusion,
    "runtime": runtime,
    "exhaustive": exhaustive,
    "soak": soak,
}
