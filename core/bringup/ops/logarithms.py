"""Composite rows: logarithms to base 2 and 10, exact where the power of 2 is."""

from __future__ import annotations

import math
from typing import Any

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite
from bringup.ops._numeric import via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Cotangents, OpDef, Trait, within

# log 2 to the base of each, the first part so short that its multiples by exponents are exact, and
# the factor of the natural logarithm in two parts; by width.
_PARTS: dict[str, dict[int, tuple[float, float, float, float]]] = {
    "log2": {
        32: (1.0, 0.0, 1.4426950216293335, 1.925963033500011e-08),
        64: (1.0, 0.0, 1.4426950408889634, 2.0355273740931033e-17),
    },
    "log10": {
        32: (0.301025390625, 4.605039066518657e-06, 0.4342944920063019, -1.0103049952192578e-08),
        64: (
            0.30102999566395283,
            2.8363394551044964e-14,
            0.4342944819032518,
            1.098319650216765e-17,
        ),
    },
}


def _decomposition(name: str) -> Any:
    def decompose(x: Value) -> Value:
        """The logarithm of a part near 1 times 2^k: k is exact, and the other logarithm small."""
        by_two, by_two_low, factor, factor_low = _PARTS[name][x.dtype.bits]
        inside = rows.and_(
            compare("gt", x, build.zeros_like(x)), compare("lt", x, like(x, math.inf))
        )
        m = GraphArithmetic(x)
        normal, shift = m.normalise(rows.select(inside, x, build.ones_like(x)))
        exponent, part = m.split(normal, m.format.root_half)
        k, logarithm = rows.add(m.to_float(exponent), shift), rows.log(part)
        rest = rows.add(rows.mul(k, like(x, by_two_low)), rows.mul(logarithm, like(x, factor_low)))
        rest = rows.add(rows.mul(logarithm, like(x, factor)), rest)
        result = rows.add(rows.mul(k, like(x, by_two)), rest)
        return rows.select(inside, result, rows.log(x))

    return in_f32(decompose)


def _row(name: str, base: int, reference: Any, exact: tuple[tuple[str, str], ...]) -> OpDef:
    def vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
        return (rows.div(ct, rows.mul(x, like(x, math.log(base)))),)

    return composite(
        name,
        doc=(
            f"The logarithm to base {base}. {name}(±0) is −inf, {name}(1) is +0, {name}(inf) is "
            "inf; x < 0, −inf and NaN give NaN."
        ),
        reference=via_wider(reference),
        vjp=vjp,
        special=(
            *(Special((x,), result) for x, result in exact),
            *cells(
                "0.0 -> -inf; -0.0 -> -inf; 1 -> 0.0; inf -> inf; -1 -> nan; -SUBNORMAL -> nan; "
                "-inf -> nan; nan -> nan",
            ),
        ),
        traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
        # 2 of log m, its products with two constants, and two sums.
        accuracy=within(4.0),
        decompose=_decomposition(name),
    )


log2 = _row("log2", 2, elementary.log2, (("8", "3"), ("0.25", "-2")))
log10 = _row("log10", 10, elementary.log10, (("100", "2"), ("1000", "3")))
