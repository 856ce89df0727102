"""The coefficients in the code are those that ``derive.py`` derives."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpmath")

#: One or two of each module; `log` and `atan`, not among them, take as long as all of these.
TABLES = [
    ("exp", "f32", "maths.exponential", "_EXP_32"),
    ("expm1", "f32", "maths.exponential", "_EXPM1_32"),
    ("exp2", "f32", "maths.power", "_EXP2[32]"),
    ("sin", "f32", "maths.circular", "_SIN[32]"),
    ("cos", "f64", "maths.circular", "_COS[64]"),
    ("log2_f32", "f32", "maths.power", "_TAIL[32]"),
    ("log2_f64", "f64", "maths.power", "_TAIL[64]"),
    ("erf_small", "f32", "maths.errorfunction", "_SMALL[32]"),
    ("asin", "f32", "ops.trigonometry", "ASIN[32]"),
    ("sinh", "f64", "ops.hyperbolic", "SINH[64]"),
    ("asinh", "f32", "ops.hyperbolic", "ASINH[32]"),
    ("atanh_wide", "f32", "ops.hyperbolic", "ATANH[32]"),
    ("lgamma", "f32", "ops.gamma", "LGAMMA[32]"),
    ("stirling", "f64", "ops.gamma", "STIRLING[64]"),
    ("erfcx", "f32", "ops.error_functions", "ERFCX[32]"),
    ("bessel_i0_far", "f32", "ops.bessel", "FAR[0][32]"),
    ("bessel_i1", "f32", "ops.bessel", "NEAR[1][32]"),
]


@pytest.mark.parametrize(("fit", "dtype", "module", "table"), TABLES, ids=[t[0] for t in TABLES])
def test_coefficients_are_derived(fit: str, dtype: str, module: str, table: str) -> None:
    derive: Any = importlib.import_module("derive")
    coefficients, error = derive.derive(derive.FITS[fit], dtype)
    name, *indices = re.findall(r"\w+", table)
    kept: Any = getattr(importlib.import_module(f"bringup.{module}"), name)
    for index in indices:
        kept = kept[int(index)]
    kind = np.float32 if dtype == "f32" else np.float64
    assert [kind(float(c)) for c in coefficients] == [kind(c) for c in kept]
    assert error < (-24 if dtype == "f32" else -53)
