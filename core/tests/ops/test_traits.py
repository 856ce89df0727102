"""Each trait a row claims holds for its reference, on boundary values of every dtype."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from bringup.dtypes import bool_, f32, i8
from bringup.ops.table import Kind, OpDef, Trait, all_ops, lookup


def operands(kit, row: OpDef, dtype, count: int):
    x = np.unique(kit.values(dtype, (400,), 7))[:40]
    return [np.array(column, dtype.numpy) for column in zip(*product(x, repeat=count), strict=True)]


def negated(x):
    return lookup("neg").reference(x)


def commutative(kit, row, dtype):
    x, y = operands(kit, row, dtype, 2)
    return kit.same(row.reference(x, y), row.reference(y, x))


def associative(kit, row, dtype):
    if dtype.is_float:
        return np.True_
    x, y, z = operands(kit, row, dtype, 3)
    f = row.reference
    return kit.same(f(f(x, y), z), f(x, f(y, z)))


def idempotent(kit, row, dtype):
    (x,) = operands(kit, row, dtype, 1)
    if row.arity == 2:
        return kit.same(row.reference(x, x), x)
    once = row.reference(x)
    return kit.same(row.reference(once), once)


def involution(kit, row, dtype):
    (x,) = operands(kit, row, dtype, 1)
    return kit.same(row.reference(row.reference(x)), x)


def lines(kit, row, dtype, position):
    """Values of one operand in ascending order, and results along it, a column for each choice of
    the others.
    """
    x = kit.values(dtype, (400,), 7)
    x = np.unique(x[~np.isnan(x)] if dtype.is_float else x)
    x = x[:: max(1, x.size // (40 if row.arity < 3 else 12))]
    grid = row.reference(*np.meshgrid(*[x] * row.arity, indexing="ij"))
    return x, np.moveaxis(grid, position, 0).reshape(x.size, -1)


def ascends(results):
    """Whether no result is less than one before it; for each column."""
    pairs = results[:, None] > results[None]
    later = np.triu(np.ones((len(results),) * 2, bool), 1)
    return ~(pairs & later[..., None]).any(axis=(0, 1))


def monotone(kit, row, dtype):
    return np.array([ascends(lines(kit, row, dtype, p)[1]) for p in range(row.arity)])


def piecewise_monotone(kit, row, dtype):
    if not dtype.is_float:
        return np.True_
    good = np.True_
    for position in range(row.arity):
        x, results = lines(kit, row, dtype, position)
        zeros = [row.reference(*zeros_at(row, position, dtype, z)) for z in (0.0, -0.0)]
        pole = np.isinf(zeros[0]) & (zeros[0] == -zeros[1])
        parts = [x < 0, x > 0] if Trait.EVEN in row.traits or pole else [np.full(x.shape, True)]
        for part in parts:
            rises, falls = ascends(results[part]), ascends(-results[part])
            good = good & np.all(rises | falls)
    return good


def zeros_at(row, position, dtype, zero):
    return [np.array(zero if p == position else 1, dtype.numpy) for p in range(row.arity)]


def odd(kit, row, dtype):
    if not dtype.is_float:
        return np.True_
    (x,) = operands(kit, row, dtype, 1)
    return kit.same(row.reference(negated(x)), negated(row.reference(x)))


def even(kit, row, dtype):
    if not dtype.is_float:
        return np.True_
    (x,) = operands(kit, row, dtype, 1)
    return kit.same(row.reference(negated(x)), row.reference(x))


def pointwise(kit, row, dtype):
    """The value at an element does not change with its neighbours."""
    arrays = [kit.values(dtype, (30,), seed) for seed in range(row.arity)]
    forms = [{}] if not row.attrs else [{a.name: c} for a in row.attrs for c in a.choices]

    def results(part, form):
        found = row.reference(*[a[part] for a in arrays], **form)
        return np.stack(found if isinstance(found, tuple) else (found,), axis=1)

    alone = [np.concatenate([results(slice(i, i + 1), f) for i in range(30)]) for f in forms]
    whole = [results(slice(30), f) for f in forms]
    return np.array([kit.same(a, w) for a, w in zip(alone, whole, strict=True)])


LAWS = {
    Trait.COMMUTATIVE: commutative,
    Trait.ASSOCIATIVE: associative,
    Trait.IDEMPOTENT: idempotent,
    Trait.INVOLUTION: involution,
    Trait.MONOTONE: monotone,
    Trait.PIECEWISE_MONOTONE: piecewise_monotone,
    Trait.ODD: odd,
    Trait.EVEN: even,
    Trait.POINTWISE: pointwise,
}
CLAIMS = [
    (row, trait)
    for row in all_ops()
    for trait in sorted(row.traits, key=lambda t: t.value)
    if trait in LAWS
]


@pytest.mark.parametrize(("row", "trait"), CLAIMS, ids=lambda v: getattr(v, "name", v).lower())
def test_the_row_keeps_the_law(kit, row: OpDef, trait: Trait) -> None:
    with np.errstate(all="ignore"):
        for dtype in row.dtypes:
            assert np.all(LAWS[trait](kit, row, dtype)), (row.name, trait, dtype)


# A row without the trait that breaks the law, so that each check is seen to fail.
BREAKS = [
    ("sub", Trait.COMMUTATIVE, f32),
    ("sub", Trait.ASSOCIATIVE, i8),
    ("neg", Trait.IDEMPOTENT, f32),
    ("add", Trait.IDEMPOTENT, f32),
    ("abs", Trait.INVOLUTION, f32),
    ("neg", Trait.MONOTONE, f32),
    ("neg", Trait.MONOTONE, i8),
    ("sub", Trait.MONOTONE, f32),
    ("sin", Trait.PIECEWISE_MONOTONE, f32),
    ("pow", Trait.PIECEWISE_MONOTONE, f32),
    ("abs", Trait.ODD, f32),
    ("neg", Trait.EVEN, f32),
]


@pytest.mark.parametrize(("name", "trait", "dtype"), BREAKS)
def test_the_law_is_no_triviality(kit, name: str, trait: Trait, dtype) -> None:
    with np.errstate(all="ignore"):
        assert not np.all(LAWS[trait](kit, lookup(name), dtype))


def test_a_neighbour_is_seen(kit) -> None:
    row = replace(lookup("square"), reference=lambda x: x - x.max(initial=0))
    with np.errstate(all="ignore"):
        assert not np.all(pointwise(kit, row, i8))


def test_only_elementwise_composites_are_pointwise() -> None:
    for row in all_ops():
        if Trait.POINTWISE in row.traits:
            assert row.kind is Kind.COMPOSITE
            assert all(attr.choices for attr in row.attrs)


def test_every_trait_with_a_law_is_claimed_somewhere() -> None:
    claimed = {trait for _, trait in CLAIMS}
    assert claimed == set(LAWS)
    # These are no laws of values.
    no_laws = {
        Trait.ADAPTS,
        Trait.EXPENSIVE,
        Trait.IN_PLACE,
        Trait.EFFECT,
        Trait.LOOP,
        Trait.BRANCH,
    }
    assert set(Trait) == claimed | no_laws
    assert bool_ in lookup("and").dtypes
