"""Answers for foreign names compute what the foreign functions do."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api import foreign_names

_X, _Y = np.array([[1.5, -2.5, 0.5], [-3.5, 2.0, -0.25]]), np.array([[2.0, 1.5, -1], [3, -0.5, 4]])
_CUBE, _ROW = np.arange(24.0).reshape(2, 3, 4), np.array([4.0, -1.0, 3.0])
_NAN = np.array([1.0, np.nan, -2.0, np.nan])
_SHARES = np.array([0.25, 0.5, 0.75])

#: What the names in answers stand for, by the operands that a function is tried with.
SAMPLES: dict[str, dict[str, Any]] = {
    "matrices": {
        "x": _X, "y": _Y, "a": _X, "b": _Y, "c": _X, "arrays": [_X, _Y], "axis": 1, "low": -1.0,
        "high": 1.0, "alpha": 0.5, "slope": 0.1, "mask": _X > 0, "which": _X > 0, "on_true": _X,
        "on_false": _Y, "value": 7.0, "condition": _X > 0, "n": 2, "m": 3, "tolerance": 0.5,
        "q": 25, "shape": (3, 2), "i": np.array([2, 0]), "row": 1, "column": 2, "columns": 3,
        "table": _X, "indices": np.array([1, 0]), "log_p": _X, "labels": np.array([2, 0]),
        "axes": (1, 0),
    },
    "products": {
        "x": _X, "y": _Y.T, "a": _X, "b": _Y.T, "c": _X, "s": np.linalg.svd(_X)[1], "n": 6, "m": 6,
    },
    "cubes": {"x": _CUBE, "y": _CUBE + 1, "i": 0, "j": 2, "axis": 2, "arrays": [_CUBE, _CUBE]},
    "rows": {"x": _CUBE, "y": _CUBE[:, 0]},
    "rows first": {"x": _CUBE[:, :, 0], "y": _CUBE},
    "a layer": {"x": _X, "w": _Y, "b": np.array([1.0, -1.0])},
    "vectors": {
        "x": np.array([3.0, 1.0, 2.0, 1.0]), "y": np.array([1.0, 3.0, 3.0, 7.0]),
        "a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0]), "arrays": [_ROW, _ROW],
        "edges": np.array([-9.0, 1.0, 2.5]), "start": 1.0, "stop": 8.0, "num": 4, "n": 4,
        "i": 7, "columns": 3,
    },
    "integers": {
        "x": np.array([7, -7, 6, 1]), "y": np.array([3, 3, -4, 2]), "n": np.array([2, 0, 1, 3]),
    },
    "above 1": {"x": np.array([1.5, 2.0, 4.0]), "a": 1.5, "b": 3.0, "n": np.array([6.0]),
        "k": np.array([2.0])},
    "shares": {"x": _SHARES, "y": _SHARES ** 2, "p": _SHARES},
    "updates": {
        "x": np.array([1.0, 2.0, 3.0]), "i": np.array([0, 2]), "v": np.array([4.0, 5.0]),
        "segments": np.array([1, 0, 1]), "n": 2, "fn": lambda x: x + 1,
    },
}  # fmt: skip

#: By the operands: names, and what the library that they are from gives.  ``*`` is the name.  An
#: answer that is a name too gets the arguments of that call, or x.
CASES = {
    "matrices": """
rint iscomplexobj isrealobj modf special.exp2 | np.*(x)
row_stack | np.vstack(arrays)
cat | np.concatenate(arrays)
permute Array.permute | np.transpose(x, (1, 0))
reduce_and | np.all(x > 0)
reduce_or | np.any(x > 0)
array_equiv | np.array_equiv(x, y)
array_str | np.array2string(x)
iscomplex isreal ediff1d tril_indices_from triu_indices_from | np.*(x)
diag_indices | np.diag_indices(n)
compress extract | x[mask]
partition | np.sort(x)
argpartition | np.argsort(x)
special.gammasgn | [[1, -1, 1], [1, 1, -1]]
flatten Array.flat | x.ravel()
view_as | x.reshape(y.shape)
Array.view | x.reshape(shape)
issubdtype | np.issubdtype(x.dtype, np.floating)
choose | np.where(condition, x, y)
norm | np.linalg.norm(x)
nn.prelu | np.maximum(x, slope * x)
nn.hardtanh | np.minimum(np.maximum(x, -1), 1)
nn.hardsigmoid | np.minimum(np.maximum(x / 6 + 0.5, 0), 1)
nn.hardswish | x * np.clip(x / 6 + 0.5, 0, 1)
nn.softsign | x / (1 + np.abs(x))
nn.log_softplus | np.log(np.log(1 + np.exp(x)))
nn.SiLU | x / (1 + np.exp(-x))
nn.normalize | x / np.sqrt((x**2).sum(1))[:, None]
nn.adaptive_avg_pool2d | x.mean((-2, -1))
nn.embedding | table[indices]
nn.nll_loss | -log_p[[0, 1], labels][:, None]
nn.mse_loss | np.square(x - y).mean()
nn.l1_loss | np.abs(x - y).mean()
nn.softmax_cross_entropy | (y * (np.log(np.exp(x).sum(-1))[:, None] - x)).sum(-1)
nn.binary_cross_entropy_with_logits nn.sigmoid_binary_cross_entropy | \
np.mean(y * np.log(1 + np.exp(-x)) + (1 - y) * np.log(1 + np.exp(x)))
clamp_min | np.maximum(x, low)
clamp_max | np.minimum(x, high)
select_n | np.where(which, on_true, on_false)
masked_fill place | np.where(mask, value, x)
masked_select | x[mask]
index_select index_in_dim | np.take(x, i, axis)
eq | np.equal(x, y)
ne | np.not_equal(x, y)
lt | np.less(x, y)
le | np.less_equal(x, y)
gt | np.greater(x, y)
ge | np.greater_equal(x, y)
sub | np.subtract(x, y)
mul | np.multiply(x, y)
div | np.divide(x, y)
neg | np.negative(x)
reduce_sum | np.sum(x)
reduce_max | np.max(x)
reduce_min | np.min(x)
reduce_prod | np.prod(x)
rev | np.flip(x)
special.softmax | np.exp(x) / np.exp(x).sum()
special.log_softmax | x - np.log(np.exp(x).sum())
Array.fill | np.full_like(x, value)
Array.float | x.astype(np.float32)
Array.double | x.astype(np.float64)
Array.half | x.astype(np.float16)
Array.long | x.astype(np.int64)
Array.int | x.astype(np.int32)
Array.H Array.mH Array.t | x.T
Array.itemsize Array.element_size | x.itemsize
Array.dim | x.ndim
Array.numel | x.size
Array.numpy | x
Array.tobytes | x.tobytes()
""",
    "products": """
mm mv bmm | np.matmul(x, y)
batch_matmul | np.matmul(x, y)
""",
    "rows": "matvec | np.einsum('nij,nj->ni', x, y)",
    "rows first": "vecmat | np.einsum('ni,nij->nj', x, y)",
    "a layer": "nn.linear | (x[:, None] * w).sum(-1) + b",
    "cubes": """
rollaxis | np.rollaxis(x, axis)
""",
    "vectors": """
ger | np.outer(x, y)
trapz | np.trapezoid(y, x)
diagflat | np.diagflat(x)
in1d | np.isin(x, y)
setdiff1d intersect1d union1d | np.*(x, y)
unique | np.unique(x)
""",
    "integers": """
ldexp | np.ldexp(x, n)
integer_pow | np.power(x, 3)
population_count | [3, 62, 2, 1]
""",
    "above 1": """
special.loggamma | [math.lgamma(v) for v in x]
special.comb | [15.0]
special.erfcx | [math.exp(v * v) * math.erfc(v) for v in x]
nn.log1mexp | np.log(1 - np.exp(-x))
nn.logmeanexp | np.log(np.exp(x).mean())
""",
    "shares": """
special.erfcinv | [0.8134198475976185, 0.4769362762044699, 0.22531205501217808]
""",
    "updates": """
put | [4.0, 2.0, 5.0]
scatter_sub | [-3.0, 2.0, -2.0]
scatter_apply | [2.0, 2.0, 4.0]
at.mul | [4.0, 2.0, 15.0]
index_add scatter_reduce | [5.0, 2.0, 8.0]
""",
}


ROWS = {f"{row.space}.{row.name}".lstrip("."): row for row in reversed(foreign_names.table())}
TRIED = [
    (name, operands, wanted.replace(".*(", f".{name.rpartition('.')[2]}("))
    for operands, text in CASES.items()
    for names, wanted in (line.split(" | ") for line in text.strip().splitlines())
    for name in names.split()
]


#: An answer that is one of our names.
NAME = re.compile(r"bringup[\w.]*")


def code(answer: str) -> str:
    """The answer as far as it is an expression, without the words behind it; "" if it is none."""
    ends = [found.start() for found in re.finditer(r"[,;]|$", answer)]
    return next((answer[:end] for end in reversed(ends) if parses(answer[:end])), "")


def parses(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def ours(value: Any) -> Any:
    """A sample, its arrays as arrays of ours."""
    if isinstance(value, list):
        return [ours(x) for x in value]
    return bu.asarray(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "operands", "wanted"), TRIED)
def test_answers_compute_what_the_foreign_functions_do(
    name: str, operands: str, wanted: str
) -> None:
    samples = SAMPLES[operands]
    answer = code(ROWS[name].answer)
    if NAME.fullmatch(answer):
        call = re.fullmatch(r"np\.[\w.]+(\(.*\))", wanted)
        answer += call[1] if call is not None and "np." not in call[1] else "(x)"
    names = {"bringup": bu, "numpy": np, "np": np, "math": math}
    found = eval(answer, names | {key: ours(value) for key, value in samples.items()})
    expected = eval(wanted, names | samples)
    if isinstance(found, bu.Array | np.ndarray | tuple):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
    else:
        assert found == expected


#: Expressions that are but the beginning of an answer, or hold a function, a file or a window.
UNTRIED = """
    array_repr bartlett blackman delete dtype fromfunction hamming hanning insert kaiser nn.bilinear
    nn.orthogonal nn.pixel_shuffle packbits savez unpackbits
"""


def test_every_expression_is_tried() -> None:
    numeric = ("numpy", "jax.nn", "jax.scipy")
    expressions = {
        name
        for name, row in ROWS.items()
        if row.section.startswith(numeric)
        and code(row.answer)
        and not NAME.fullmatch(code(row.answer))
    }
    assert expressions - {name for name, *_ in TRIED} == set(UNTRIED.split())
