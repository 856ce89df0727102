"""Linear algebra, as ``bringup.linalg``: the extension of the array API standard, and `lu`,
`solve_triangular`, `cho_factor`, `cho_solve`, `norm`, `lstsq`, `cond` and `multi_dot` besides.

All take stacks of matrices, in the last two dimensions.
"""

from __future__ import annotations

from bringup.api.boundary import publish
from bringup.api.decompositions import (
    cho_factor,
    cho_solve,
    cholesky,
    cond,
    cross,
    det,
    diagonal,
    eigh,
    eigvalsh,
    inv,
    lstsq,
    lu,
    matrix_norm,
    matrix_power,
    matrix_rank,
    norm,
    pinv,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svdvals,
    trace,
    vector_norm,
)
from bringup.api.products import matmul, matrix_transpose, multi_dot, outer, tensordot, vecdot

__all__ = [
    "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh",
    "inv", "lstsq", "lu", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

publish(globals(), "bringup.linalg")
