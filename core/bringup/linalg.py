"""Linear algebra, as ``bringup.linalg``: the extension of the array API standard, and `lu`,
`solve_triangular`, `cho_factor`, `cho_solve`, `norm`, `lstsq`, `cond` and `multi_dot` besides.

All take stacks of matrices, in the last two dimensions.
"""

from __future__ import annotations

from bringup.api.linear import matmul, matrix_transpose, multi_dot, outer, tensordot, vecdot
from bringup.api.names import publish
from bringup.api.solving import (
    cho_factor,
    cho_solve,
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
    cond,
    eigh,
    eigvalsh,
    lstsq,
    matrix_norm,
    matrix_rank,
    norm,
    pinv,
    svd,
    svdvals,
    vector_norm,
)

__all__ = [
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
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
