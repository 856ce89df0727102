"""Every elementwise op of every dtype, compiled as C, against the rows' references."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import samples
from scalars import COUNT, Case, cases
from toolchain import Array, Compiled

from bringup.c import C11
from bringup.dtypes import STORED, DType
from bringup.ops.table import lookup


@cache
def compiled(dtype: DType) -> Compiled:
    return Compiled([case.func() for case in cases(dtype, C11)])


def operands(case: Case, seed: int) -> list[Array]:
    """Boundary values and numbers of every size; of small dtypes every value meets others."""
    return [samples.values(d, (COUNT,), seed + n) for n, d in enumerate(case.dtypes)]


def wrong(case: Case, xs: list[Array], y: Array) -> Array:
    """Where a result is further from the reference than the row allows."""
    row = lookup(case.op)
    accuracy = row.accuracy_for(case.attrs)
    ulp = accuracy.ulp.get(case.dtypes[-1].name)
    if ulp is None or not case.result.is_float or ulp == 0.5:
        return np.asarray(~samples.same(y, row.reference(*xs, **case.attrs)))
    wide = samples.wider(case.result)
    reference = row.reference(*(x.astype(wide) for x in xs), **case.attrs)
    return np.asarray(samples.ulps(y, reference, case.result) > ulp)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_op(dtype: DType) -> None:
    for case in cases(dtype, C11):
        for seed in (0, 10):
            xs = operands(case, seed)
            y = np.empty(COUNT, case.result.numpy)
            compiled(dtype).run(case.name, [*xs, y], parts=3)
            off = np.flatnonzero(wrong(case, xs, y))
            assert not off.size, (case.name, [x[off[:3]] for x in xs], y[off[:3]])
