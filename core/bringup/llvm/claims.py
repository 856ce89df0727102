"""What the emitters can put into a kernel, as capabilities."""

from __future__ import annotations

import bringup.ops  # noqa: F401  (fills the op table)
from bringup.dtypes import ALL, FLOATS, DType
from bringup.llvm.scalar import FLOAT_ONLY, RENDER
from bringup.ops.table import Kind, all_ops

_SHAPED = (Kind.SOURCE, Kind.MOVEMENT, Kind.REDUCTION, Kind.CONTRACTION)


def emitter_claims() -> dict[str, frozenset[DType]]:
    """Claims for `Capabilities.kernels` of a backend that renders through `bringup.llvm`, for every
    dtype of each row.
    """
    every, floats = frozenset(ALL), frozenset(FLOATS)
    rows = [row for row in all_ops() if row.name in RENDER or row.kind in _SHAPED]
    return {
        claim: floats if row.name in FLOAT_ONLY else every for row in rows for claim in row.claims
    }
