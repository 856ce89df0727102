"""What rendered kernels may hold in a dialect, as capabilities."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.backend.capabilities import Claims
from bringup.c.circular import CIRCULAR
from bringup.c.dialect import Dialect
from bringup.c.maths import OWN
from bringup.c.scalar import RENDER
from bringup.dtypes import FLOATS, STORED, DType
from bringup.maths import ELEMENTARY
from bringup.ops.catalogue import MODULE_OF
from bringup.ops.table import Kind, OpDef, find, lookup

#: They become loops and constants.
_NESTS = (Kind.SOURCE, Kind.REDUCTION, Kind.CONTRACTION)


def c_claims(dialect: Dialect) -> Claims:
    """Claims for `Capabilities.kernels` of a backend that renders C, for every dtype of each row
    that the dialect has.

    >>> from bringup.c import C11, OPENCL
    >>> "tanh" in c_claims(C11), "tanh" in c_claims(OPENCL), "exp" in c_claims(OPENCL)
    (True, False, True)
    """
    return _DialectClaims(dialect)


class _DialectClaims(Claims):
    """Rows are defined when they are first asked for, those that are rendered first."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __getitem__(self, claim: str) -> frozenset[DType]:
        row = find(claim.partition(".")[0])
        if row is None or claim not in row.claims or not (dtypes := self._dtypes_of(row)):
            raise KeyError(claim)
        return dtypes

    def __iter__(self) -> Iterator[str]:
        for name in dict.fromkeys((*RENDER, *MODULE_OF)):
            row = lookup(name)
            if self._dtypes_of(row):
                yield from row.claims

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _dtypes_of(self, row: OpDef) -> frozenset[DType]:
        dialect = self._dialect
        rendered = row.name in RENDER or row.kind in _NESTS or row.index_map is not None
        dtypes = frozenset(FLOATS) if row.name in ELEMENTARY else frozenset(STORED)
        if row.name in ELEMENTARY:
            rendered = row.name in (*OWN, *CIRCULAR) or row.name in dialect.functions
        if not rendered:
            return frozenset()
        return frozenset(dtype for dtype in dtypes if dtype.name not in dialect.missing)


__all__ = ["c_claims"]
