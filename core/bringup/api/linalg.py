"""Linear algebra, as ``bringup.linalg``: the extension of the array API standard, and `lu` and
`solve_triangular` besides.

All take stacks of matrices, in the last two dimensions.
"""

from __future__ import annotations

from bringup.api.linear import matmul, matrix_transpose, outer, tensordot, vecdot
from bringup.api.names import publish
from bringup.api.solving import (
    cholesky,
    cross,
    det,
    diagonal,
    inv,
    lu,
    matrix_power,
    qr,
    slogdet,
    solve,
    solve_triangular,
    trace,
)
from bringup.api.spectra import (
    eigh,
    eigvalsh,
    matrix_norm,
    matrix_rank,
    pinv,
    svd,
    svdvals,
    vector_norm,
)

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

publish(globals(), "bringup.linalg")
