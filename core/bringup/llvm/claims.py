"""What the emitters can put into a kernel, as capabilities."""

from __future__ import annotations

from bringup.backend.capabilities import Claims, RowClaims
from bringup.dtypes import FLOATS, STORED
from bringup.kernel.indexed import INDEXED
from bringup.kernel.movement import RULES
from bringup.llvm.scalar import FLOAT_ONLY, RENDER

_NESTS = ("constant", "iota", *RULES, *INDEXED, "reduce", "dot_general")


def emitter_claims() -> Claims:
    """Claims for `Capabilities.kernels` of a backend that renders through `bringup.llvm`, for every
    dtype of each row.
    """
    every = dict.fromkeys((*RENDER, *_NESTS), frozenset(STORED))
    return RowClaims({**every, **dict.fromkeys(FLOAT_ONLY, frozenset(FLOATS))})
