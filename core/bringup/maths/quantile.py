"""The quantile of the normal distribution: M. J. Wichura, algorithm AS 241, Applied Statistics 37
(1988).  Rational functions of the centre, of the tail and of the far tail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic
from bringup.maths.portable import polynomial

V = TypeVar("V")

# Of each region the numerator and the denominator, lowest power first.
Region = tuple[tuple[float, ...], tuple[float, ...]]
#: For a relative error of 1e-16.
PRECISE = (
    (
        (
            3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
            1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
            3.3430575583588128105e4, 2.5090809287301226727e3,
        ),
        (
            1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
            2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
            5.2264952788528545610e3,
        ),
    ),
    (
        (
            1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
            3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
            2.27238449892691845833e-2, 7.74545014278341407640e-4,
        ),
        (
            1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
            1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
            1.05075007164441684324e-9,
        ),
    ),
    (
        (
            6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
            2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
            2.71155556874348757815e-5, 2.01033439929228813265e-7,
        ),
        (
            1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
            7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
            2.04426310338993978564e-15,
        ),
    ),
)  # fmt: skip
#: For a relative error of 1e-7.
SHORT = (
    (
        (3.3871327179e0, 5.0434271938e1, 1.5929113202e2, 5.9109374720e1),
        (1.0, 1.7895169469e1, 7.8757757664e1, 6.7187563600e1),
    ),
    (
        (1.4234372777e0, 2.7568153900e0, 1.3067284816e0, 1.7023821103e-1),
        (1.0, 7.3700164250e-1, 1.2021132975e-1),
    ),
    (
        (6.6579051150e0, 3.0812263860e0, 4.2868294337e-1, 1.7337203997e-2),
        (1.0, 2.4197894225e-1, 1.2258202635e-2),
    ),
)  # fmt: skip


def upper_quantile(
    m: Arithmetic[V],
    tail: V,
    centre: V,
    log: Callable[[V], V],
    regions: tuple[Region, Region, Region],
    *,
    deep: bool,
) -> V:
    """The number a standard normal variable exceeds with probability ``tail``.

    tail: above 0, up to 1/2.  centre: ``1/2 - tail``, where that is known better than ``tail``
    tells.  log: the natural logarithm.  deep: tails may be below 1e-11.
    """
    central = m.test("ole", centre, m.c(0.425))
    near = m.sub(m.c(0.180625), m.mul(centre, centre))
    root = m.sqrt(m.neg(log(m.select(central, m.c(0.5), tail))))
    inside, outside, beyond = regions
    over, under = (polynomial(m, m.sub(root, m.c(1.6)), row) for row in outside)
    if deep:
        far = m.test("ogt", root, m.c(5.0))
        far_over, far_under = (polynomial(m, m.sub(root, m.c(5.0)), row) for row in beyond)
        over, under = m.select(far, far_over, over), m.select(far, far_under, under)
    over = m.select(central, m.mul(polynomial(m, near, inside[0]), centre), over)
    return m.div(over, m.select(central, polynomial(m, near, inside[1]), under))
