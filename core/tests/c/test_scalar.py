"""Every elementwise op of every dtype, compiled as C, against the rows' references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import samples
from scalars import COUNT, Case, all_ops, cases, func_of
from toolchain import Array, Compiled

from bringup.c import C11, DIALECTS, Dialect, c_claims, render_c
from bringup.c.scalar import RENDER
from bringup.dtypes import FLOATS, STORED, DType
from bringup.maths import ELEMENTARY
from bringup.ops.table import lookup


def operands(cases: Sequence[Case], seed: int) -> dict[str, Array]:
    """By name: boundary values and numbers of every size."""
    dtypes = {n: d for case in cases for n, d in zip(case.names, case.dtypes, strict=True)}
    return {
        name: samples.values(dtype, (COUNT,), seed + int(name[1])) for name, dtype in dtypes.items()
    }


def check(case: Case, xs: Sequence[Array], y: Array) -> None:
    """Every result is as near the row's reference as the row says."""
    row = lookup(case.op)
    ulp = row.accuracy_for(case.attrs).ulp.get(case.dtypes[-1].name, 0.5)
    if not case.result.is_float or ulp == 0.5:
        right = samples.same(y, row.reference(*xs, **case.attrs))
    else:
        wide = samples.wider(case.result)
        reference = row.reference(*(x.astype(wide) for x in xs), **case.attrs)
        right = samples.ulps(y, reference, case.result) <= ulp
    off = np.flatnonzero(~right)
    assert not off.size, (case.name, [x[off[:3]] for x in xs], y[off[:3]])


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_op(dtype: DType) -> None:
    every = list(cases(dtype, C11))
    compiled = Compiled([func_of(case.name, [case]) for case in every])
    for seed in (0, 10):
        shared = operands(every, seed)
        for case in every:
            xs = [shared[name] for name in case.names]
            y = np.empty(COUNT, case.result.numpy)
            compiled.run(case.name, [*xs, y], parts=3)
            check(case, xs, y)


#: Plain C in which the library defines whatever it can.
OWN_FUNCTIONS = ("sqrt", "floor", "fma", "copysign", "abs", "round")
OWN = replace(C11, name="OWN", functions={n: C11.functions[n] for n in OWN_FUNCTIONS})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_own_functions(dtype: DType) -> None:
    """What dialects without good ones of their own get, also far from 0."""
    func, every = all_ops(dtype, OWN)
    assert {"sin", "cos", "tan", "rem", "exp", "pow"} < {case.op for case in every}
    compiled = Compiled([func], dialect=OWN)
    for seed in (0, 10, 20):
        shared = operands(every, seed)
        results = [np.empty(COUNT, case.result.numpy) for case in every]
        compiled.run(func.name, [*shared.values(), *results], parts=2)
        for case, y in zip(every, results, strict=True):
            check(case, [shared[name] for name in case.names], y)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_claims_are_what_is_rendered(dialect: Dialect) -> None:
    """Each row of elements that is claimed has a text for each dtype that is claimed."""
    claims = c_claims(dialect)
    rendered = {
        (lookup(case.op).claim(case.attrs), dtype)
        for dtype in STORED
        if dtype.name not in dialect.missing
        for case in all_ops(dtype, dialect)[1]
        if render_c(func_of("f", [case]), dialect)
    }
    for claim, dtype in rendered:
        assert dtype in claims[claim]
    for claim in claims:
        row = lookup(claim.partition(".")[0])
        if row.name in RENDER:
            takes = FLOATS if row.name in ELEMENTARY else row.dtypes
            for dtype in claims[claim].intersection(takes):
                assert (claim, dtype) in rendered
