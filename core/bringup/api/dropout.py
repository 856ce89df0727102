"""Dropout, as ``bringup.nn.dropout``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.api.array import Array
from bringup.api.broadcasting import as_float, convert, spread
from bringup.api.elementwise import where
from bringup.api.promotion import Operand
from bringup.errors import OpTypeError
from bringup.graph import user_location

if TYPE_CHECKING:
    from bringup.api.keys import Key


def dropout(x: Operand, key: Key, rate: float | Array) -> Array:
    """`x` with elements replaced by 0 with probability `rate`, the others divided by 1 - rate.

    So the expected value stays `x`.  Which ones is a function of the key: a new one for every step
    (`bringup.random.fold_in`).  The choice is made where `x` is read, also in the gradient, and
    takes no memory.
    rate: a number of [0, 1], or a 0-d array.

    >>> x = bu.nn.dropout(bu.ones(1000), bu.random.key(0), 0.2)
    >>> sorted(set(x.tolist())), 750 < float(bu.sum(x != 0)) < 850
    ([0.0, 1.25], True)
    """
    from bringup.api.keys import checked
    from bringup.api.samplers import bernoulli
    from bringup.api.sampling import parameter

    x, key = as_float(x), checked("dropout", key)
    rate = parameter("dropout", "rate", rate, key)
    if isinstance(rate, Array):
        kept = 1 - convert(rate, x.dtype)
        return where(bernoulli(key, spread(kept, x.shape)), x / kept, 0.0)
    if not 0 <= rate <= 1:
        raise OpTypeError(
            f"dropout: rate={rate} is no probability",
            location=user_location(),
            fix="give the share to drop, 0 <= rate <= 1",
        )
    return where(bernoulli(key, 1 - rate, x.shape), x * (1 / (1 - rate) if rate < 1 else 0.0), 0.0)
