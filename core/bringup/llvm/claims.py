"""What the emitters can put into a kernel, as capabilities."""

from __future__ import annotations

from bringup.dtypes import FLOATS, STORED, DType
from bringup.kernel.indexed import INDEXED
from bringup.kernel.movement import RULES
from bringup.llvm.scalar import FLOAT_ONLY, RENDER
from bringup.ops.table import lookup

_NESTS = ("constant", "iota", *RULES, *INDEXED, "reduce", "dot_general")


def emitter_claims() -> dict[str, frozenset[DType]]:
    """Claims for `Capabilities.kernels` of a backend that renders through `bringup.llvm`, for every
    dtype of each row.
    """
    every, floats = frozenset(STORED), frozenset(FLOATS)
    rows = map(lookup, dict.fromkeys((*RENDER, *_NESTS)))
    return {
        claim: floats if row.name in FLOAT_ONLY else every for row in rows for claim in row.claims
    }
