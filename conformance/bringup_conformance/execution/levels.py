"""The cases of each level.

Which they are and in which order follows from the seed, the device's declaration and its budget.
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
from bringup_conformance.cases import PROGRAMS, Case, Instance, Unsupported, keeps_bits
from bringup_conformance.execution.plan import Item, Plan, Unit
from bringup_conformance.generate import (
    attribute_variants,
    derivatives,
    families,
    hazards,
    mapped,
    public,
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
    """The units of one level, without those of the levels below it."""
    return [
        replace(u, make=partial(carrying, plan, partial(_sampled, plan, u.make)))
        for u in MADE[level](plan)
    ]


def _sampled(plan: Plan, make: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Choose the cases that also run op by op, and those that are compiled to fast code.

    One in so many runs op by op, as that is half of the cost, and single ops have cases of their
    own.  One in so many is compiled to fast code, as compiling is most of a run, and the others
    have the same kernels with other shapes and dtypes.
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
    """Whether a case is the one in `every`: of programs at random; of a row, which has few cases,
    evenly over its dtypes.
    """
    row = find(case.op)
    if every == 0:
        return False
    if row is None:
        return Stream(plan.seed, what, case.name).integer(1, every) == 1
    number = case.name.rpartition("/")[2]
    index = Stream(plan.seed, what, row.name).integer(1, every)
    index += row.dtypes.index(BY_NAME[case.dtype]) + (int(number) if number.isdigit() else 0)
    return index % every == 0


def smoke(plan: Plan) -> list[Unit]:
    """Every name a device must have, on f32 or the first dtype it takes, three fused programs that
    everybody writes first, and a few random ones.
    """
    units = []
    for row in all_ops():
        if row.tier == 0:
            dtype = f32 if f32 in row.dtypes else row.dtypes[0]
            units.append(_row_unit(plan, row, dtype, "smoke", most=4))
    make = partial(families.everyday, plan.support, plan.capabilities.shapes.vector, plan.seed)
    units.append(Unit("smoke", PROGRAMS, f32.name, "", PROGRAMS, make))
    return units + _programs(plan, "smoke", _SMOKE_PROGRAMS)


def ops(plan: Plan) -> list[Unit]:
    """Every row with the dtypes it takes: boundary sizes, data of several kinds, special cells."""
    units = []
    for unit in table(plan):
        row, dtype = lookup(unit.op), BY_NAME[unit.dtype]
        if dtype in _dtypes(plan, row):
            units.append(unit)
        # Special cells are rules with ids, so they are checked with all dtypes.
        if cells_of(row, dtype):
            make = partial(_special_cases, plan, row, dtype)
            units.append(replace(unit, number=SPECIAL, make=make))
    return units


def table(plan: Plan) -> list[Unit]:
    """Every row with every dtype it takes, whatever the device makes of it."""
    return [
        _row_unit(plan, row, dtype, "ops", most=None) for row in all_ops() for dtype in row.dtypes
    ]


def _dtypes(plan: Plan, row: OpDef) -> tuple[DType, ...]:
    """The dtypes with which a row is checked: all, or two if the device runs a decomposition of it,
    whose parts are checked with all: f32, or the first, and one that the seed chooses.
    """
    ops, kernels = plan.capabilities.ops, plan.capabilities.kernels
    if row.decompose is None or any(name in ops or name in kernels for name in row.claims):
        return row.dtypes
    first = f32 if f32 in row.dtypes else row.dtypes[0]
    others = [d for d in row.dtypes if d is not first]
    other = pick(Stream(plan.seed, "dtype", row.name), others) if others else first
    return tuple(d for d in row.dtypes if d in (first, other))


def fusion(plan: Plan) -> list[Unit]:
    """Programs that each hold one hazard, every way of reading with every use, programs of many
    inputs, launches and so on, public functions, random programs of many examples, then random
    programs, each fused and op by op.
    """
    support, seed, large = plan.support, plan.seed, plan.budget.large
    shapes, limits = plan.capabilities.shapes, plan.capabilities.limits
    makers: list[tuple[str, Callable[[], Iterator[Item]]]] = []
    for name in hazards.NAMES:
        makers.append((name, partial(hazards.cases, support, shapes, name, seed, few=not large)))
    for read in families.READS:
        makers.append((read, partial(families.pairs, support, shapes, read, seed, large=large)))
    for name in families.LADDERS:
        make = partial(families.many, support, limits, name, seed, few=not large)
        makers.append((f"many-{name}", make))
    for module in public.MODULES:
        makers.append((public.named(module), partial(public.cases, support, module, seed)))
    for n in range(plan.budget.programs // _MAPPED):
        makers.append((f"mapped-{n}", partial(_mapped_case, plan, n)))
    units = [Unit("fusion", PROGRAMS, "", name, PROGRAMS, make) for name, make in makers]
    return units + _programs(plan, "fusion", plan.budget.programs)


def runtime(plan: Plan) -> list[Unit]:
    """What a device promises beyond the values of one program: memory, order, copies, reuse."""
    from bringup_conformance.runtime import units as made

    return made(plan)


def exhaustive(plan: Plan) -> list[Unit]:
    """Every input of ops and casts of 16 bits, and arrays past 2^31 bytes."""
    from bringup_conformance.generate.exhaustive import units as made

    return made(plan)


def soak(_plan: Plan) -> list[Unit]:
    """Random programs without end, led to large errors in shares of their bounds, much scratch
    memory and many kernels; resumes from its corpus, and holds no other level.
    """
    return []  # each program depends on the results of those before: see `soak`


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
    program = draw_program(choices, config, large=budget.large and number % 16 == 15)
    yield program.case(level, config.exact, number)


def _row_unit(plan: Plan, row: OpDef, dtype: DType, level: str, most: int | None) -> Unit:
    make = partial(_row_cases, plan, row, dtype, level, most)
    return Unit(level, row.name, dtype.name, "", row.kind.value, make)


def _row_cases(
    plan: Plan, row: OpDef, dtype: DType, level: str, most: int | None
) -> Iterator[Item]:
    """The cases of a row and dtype, each with several instances; what is not supported, once for
    each reason.
    """
    shapes, few = plan.capabilities.shapes, not plan.budget.large
    candidates = instances(row, dtype, shapes, plan.seed, few=few)
    if few:
        candidates = [i for i in candidates if i.far or all(t.size <= _SMALL for t in i.operands)]
    usable: list[Instance] = []
    reasons: dict[str, None] = {}
    for instance in candidates:
        reason = plan.support.reason(row, instance.operands, dict(instance.attrs))
        if reason is None:
            usable.append(instance)
        else:
            reasons[reason] = None
    prefix = f"{level}/{row.name}/{dtype.name}"
    if not candidates:
        reasons["the suite has no operands for it"] = None
    for reason in reasons:
        yield Unsupported(prefix, level, row.name, dtype.name, reason)
    usable = usable[:most]
    for number, (first, group) in enumerate(_groups(usable, plan.budget.together)):
        yield _joint_case(plan, row, dtype, level, f"{prefix}/{number}", group, first)
    if level == "ops" and dtype is (f32 if f32 in row.dtypes else row.dtypes[0]):
        yield from attribute_variants.cases(plan.support, row, dtype.name, level, usable, plan.seed)
        yield from mapped.row_cases(plan.support, row, dtype, level, usable, plan.seed)
        yield from derivatives.checks(row, dtype, level, shapes, plan.seed)


def _groups(usable: Sequence[Instance], together: int) -> Iterator[tuple[int, Sequence[Instance]]]:
    """Groups of `together` instances, far ones apart from the others, each with the number of its
    first one.
    """
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
    """One program with an instruction and an output for each instance of a group.

    first: the number of the group's first instance among all of the row.
    """
    outputs: list[Value] = []
    with Builder() as builder:
        for instance in group:
            results = row(*map(builder.input, instance.operands), **dict(instance.attrs))
            outputs += results if isinstance(results, tuple) else (results,)
    # The reference of a decomposed row takes long, and so does its bound.
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
        bitwise=keeps_bits(row),
        # Only what is more than one instruction to the device may have other results op by op.
        split=row.decompose is not None or row.kind is Kind.CONTRACTION,
        tags=(row.kind.value,),
    )


def _data(
    plan: Plan, row: OpDef, group: Sequence[Instance], first: int, number: int
) -> tuple[Recipe, ...]:
    """Recipes of all inputs: the kinds of each instance, rotated by its number and the set's."""
    choices, domain = Stream(plan.seed, "data", row.name, number), row.domain
    recipes: list[Recipe] = []
    for which, instance in enumerate(group, first):
        kinds = instance.kinds or ("ramp",)
        for position in range(len(instance.operands)):
            rotation = plan.seed + number + which
            if kinds[rotation % len(kinds)] not in TOGETHER:
                rotation += position * (1 + number % 2)
            kind = kinds[rotation % len(kinds)]
            layout = LAYOUTS[choices.integer(0, 4)] if choices.integer(0, 7) == 7 else "dense"
            interval = domain.intervals[min(position, len(domain.intervals) - 1)]
            nonzero, matrix = position in domain.nonzero, domain.matrix(position)
            # Operands of equal types must not get equal data, so neighbours have other seeds.
            seed = 16 * plan.seed + (number + position) % 16
            recipes.append(Recipe(kind, seed, (), layout, interval, nonzero, matrix))
    return tuple(recipes)


def _special_cases(plan: Plan, row: OpDef, dtype: DType) -> Iterator[Item]:
    """One case of all special cells that are supported; why others are not."""
    capabilities, name = plan.capabilities, f"ops/{row.name}/{dtype.name}/{SPECIAL}"
    parts = special.groups(row, dtype, capabilities.numerics, capabilities.shapes.vector)
    graph, cells, reasons = special.program(row, dtype, parts, plan.support)
    for reason in reasons:
        yield Unsupported(name, "ops", row.name, dtype.name, reason)
    if cells:
        yield Case(
            name=name,
            level="ops",
            op=row.name,
            dtype=dtype.name,
            graph=graph,
            cells=cells,
            tags=(row.kind.value,),
            rules=tuple(dict.fromkeys(rule for each in cells for rule in each.rules)),
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
