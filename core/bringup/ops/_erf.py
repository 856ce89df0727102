"""erf from tier 0 ops: the rational approximations of Cephes (S. Moshier, 1984–2000)."""

from __future__ import annotations

from bringup.graph import Value
from bringup.ops import build
from bringup.ops._pairs import copy_sign
from bringup.ops.build import like, rows

# erf(x) = x · T(x²) / U(x²) for |x| <= 1.
_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
# erfc(x) = exp(−x²) · P(x) / Q(x) for 1 <= x <= 8.
P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)


def erf_near(x: Value) -> Value:
    """Erf of an f32 or f64 value up to 1 in size; anything beyond."""
    square = rows.mul(x, x)
    return rows.mul(x, rows.div(build.polynomial(square, _T), build.polynomial(square, _U)))


def erf_decompose(x: Value) -> Value:
    """Erf of an f32 or f64 value."""
    near = erf_near(x)
    # Beyond 8 the complement is below half a unit in the last place of 1.
    size = rows.min(rows.abs(x), like(x, 8.0))
    ratio = rows.div(build.polynomial(size, P), build.polynomial(size, Q))
    complement = rows.mul(rows.exp(rows.neg(rows.mul(size, size))), ratio)
    far = copy_sign(rows.sub(build.ones_like(x), complement), x)
    return rows.select(build.compare("lt", size, build.ones_like(x)), near, far)
