"""What the emitters can put into a kernel, and the steps that they run, as capabilities."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.backend.capabilities import Claims, RowClaims
from bringup.dtypes import FLOATS, STORED, DType
from bringup.llvm.scalar import RENDER
from bringup.loops.library import LIBRARY
from bringup.maths import ELEMENTARY
from bringup.ops.catalogue import MODULE_OF
from bringup.ops.table import Kind, OpDef, find, lookup

_EVERY, _FLOATS = frozenset(STORED), frozenset(FLOATS)
#: They become loops and constants.
_NESTS = (Kind.SOURCE, Kind.REDUCTION, Kind.CONTRACTION)


def emitter_claims() -> Claims:
    """Claims for `Capabilities.kernels` of a backend that renders through `bringup.llvm`, for every
    dtype of each row.
    """
    return _EmitterClaims()


def step_claims(*others: str) -> Claims:
    """Claims for `Capabilities.ops` of a backend that runs op steps through
    `bringup.llvm.loops.library`.

    others: names of further steps, which it runs in other ways.
    """
    return RowClaims(dict.fromkeys((*LIBRARY, *others), frozenset(STORED)))


class _EmitterClaims(Claims):
    """Rows are defined when they are first asked for, those that are rendered first."""

    def __getitem__(self, claim: str) -> frozenset[DType]:
        row = find(claim.partition(".")[0])
        if row is None or claim not in row.claims or not (dtypes := _dtypes_of(row)):
            raise KeyError(claim)
        return dtypes

    def __iter__(self) -> Iterator[str]:
        for name in dict.fromkeys((*RENDER, *MODULE_OF)):
            row = lookup(name)
            if _dtypes_of(row):
                yield from row.claims

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _dtypes_of(row: OpDef) -> frozenset[DType]:
    if row.name in ELEMENTARY:
        return _FLOATS
    emitted = row.name in RENDER or row.kind in _NESTS or row.index_map is not None
    return _EVERY if emitted else frozenset()
