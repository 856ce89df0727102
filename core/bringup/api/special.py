"""Special functions, as ``bringup.special``.

Integers become the default float first; f16 and bf16 are computed in f32.  Accuracy, special values
and derivatives are those of the rows of the op table.
"""

from __future__ import annotations

from bringup.api.array import Array
from bringup.api.broadcasting import float_unary
from bringup.api.names import publish
from bringup.api.promotion import Operand


def erf(x: Operand) -> Array:
    """The error function.

    >>> bu.special.erf(bu.asarray([bu.inf])).tolist()
    [1.0]
    """
    return float_unary("erf", x)


def erfc(x: Operand) -> Array:
    """``1 - erf(x)``, precise in its tail.

    >>> 0 < bu.special.erfc(bu.asarray([20.0])).item() < 1e-174
    True
    """
    return float_unary("erfc", x)


def erfinv(x: Operand) -> Array:
    """The inverse of `erf`; NaN beyond ±1.

    >>> bu.special.erfinv(bu.asarray([1.0])).tolist()
    [inf]
    """
    return float_unary("erfinv", x)


def lgamma(x: Operand) -> Array:
    """The logarithm of the size of the gamma function; infinite at 0, −1, −2, ….

    >>> bu.special.lgamma(bu.asarray([1.0, 2.0, 0.0])).tolist()
    [0.0, 0.0, inf]
    """
    return float_unary("lgamma", x)


def digamma(x: Operand) -> Array:
    """The derivative of `lgamma`; NaN at −1, −2, ….

    >>> round(bu.special.digamma(bu.asarray([1.0])).item(), 6)
    -0.577216
    """
    return float_unary("digamma", x)


__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
]

publish(globals(), "bringup.special")
