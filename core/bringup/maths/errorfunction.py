"""erf: a polynomial up to 1, and 1 - exp(polynomial) beyond.

Polynomials by ``core/tests/llvm/derive.py`` (erf_small, erf_f32, erf_f64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic

V = TypeVar("V")

# erf x = x + x p(x^2)
_SMALL = {
    32: (
        0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806903e-05,
    ),
    64: (
        0.12837916709551256, -0.37612638903183343, 0.11283791670936949, -0.026866170641958603,
        0.0052239775967283806, -0.0008548325484474378, 0.00012055280475631876,
        -1.4924465132432097e-05, 1.644414298744189e-06, -1.6183922882590512e-07,
        1.3616359876584514e-08, -7.607097819254735e-10,
    ),
}  # fmt: skip
# log(1 - erf x) = p(x - 1)
_LARGE = {
    32: (
        -1.8496056, -2.638961, -0.84323186, -0.040703915, 0.007313507, 0.0024483122, -0.0035404726,
        0.0016112815, -0.00027062884,
    ),
    64: (
        -1.8496055099332482, -2.638967514234794, -0.8431072563583903, -0.04156109804753558,
        0.010033825434294224, -0.0019779029444449998, 0.00023732402710862643,
        2.6273508145130097e-05, -2.7150315994267925e-05, 9.595968551118707e-06,
        -2.0456902584327904e-06, 1.3143297137330617e-07, 1.0448888236309053e-07,
        -5.5159570004504793e-08, 1.593489981597632e-08, -3.1011857898583898e-09,
        4.0496780727497255e-10, -3.221802843446568e-11, 1.181530179554412e-12,
    ),
}  # fmt: skip
# 1 - erf is below half an ULP of 1 from here on.
_ENOUGH = {32: 4.0, 64: 6.0}


def erf_near_0(m: Arithmetic[V], x: V) -> V:
    """Erf of numbers up to 1 in size."""
    return m.muladd(x, m.horner(m.mul(x, x), _SMALL[m.width]), x)


def erf(m: Arithmetic[V], x: V, exp: Callable[[V], V]) -> V:
    """The error function; ±1 at ±infinity.

    exp: e^x, of numbers between -40 and -1.
    """
    one = m.c(1.0)
    size = m.abs(x)
    small = erf_near_0(m, x)
    beyond = m.sub(m.at_most(size, _ENOUGH[m.width]), one)
    large = m.copysign(m.sub(one, exp(m.horner(beyond, _LARGE[m.width]))), x)
    return m.select(m.test("ult", size, one), small, large)
