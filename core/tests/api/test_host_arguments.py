"""Functions whose annotations take numpy arrays and scalars take them, with the same results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu

S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
M = np.array([[0.9, 0.25, 0.5], [0.125, 0.75, 0.3]], np.float32)
N = np.array([[1, 2, 3], [4, 5, 6]])
V = np.array([0.5, 0.25, 0.75], np.float32)
I3 = np.array([2, 0, 1])
IMAGE = np.arange(32.0, dtype=np.float32).reshape(1, 2, 4, 4)
KEY = "a key"

#: Positional arguments and options of functions for which one matrix will not do.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "bitwise_and": ((N, N), {}),
    "bitwise_or": ((N, N), {}),
    "bitwise_xor": ((N, N), {}),
    "bitwise_left_shift": ((N, N), {}),
    "bitwise_right_shift": ((N, N), {}),
    "bitwise_invert": ((N,), {}),
    "bitwise_count": ((N,), {}),
    "count_leading_zeros": ((N,), {}),
    "matmul": ((S, S), {}),
    "where": ((M > 0.5, M, 0.0), {}),
    "tensordot": ((S, S), {}),
    "outer": ((V, V), {}),
    "linalg.outer": ((V, V), {}),
    "broadcast_to": ((V, (2, 3)), {}),
    "expand_dims": ((V,), {"axis": 0}),
    "moveaxis": ((M, 0, 1), {}),
    "permute_dims": ((M, (1, 0)), {}),
    "squeeze": ((M[None], 0), {}),
    "reshape": ((M, (3, 2)), {}),
    "roll": ((M, 1), {}),
    "tile": ((M, (2, 1)), {}),
    "repeat": ((M, 2), {"axis": 0}),
    "take": ((V, I3), {}),
    "take_along_axis": ((M, np.zeros((2, 1), int)), {"axis": 1}),
    "put_along_axis": ((M, np.zeros((2, 1), int), 1.0), {"axis": 1}),
    "dynamic_slice": ((M, (0, 1), (1, 2)), {}),
    "dynamic_update_slice": ((M, M[:1], (1, 0)), {}),
    "full_like": ((M, 3.0), {}),
    "meshgrid": ((V, V), {}),
    "searchsorted": ((np.sort(V), M), {}),
    "isin": ((N, I3), {}),
    "cumulative_sum": ((V,), {}),
    "cumulative_prod": ((V,), {}),
    "quantile": ((M, 0.5), {}),
    "top_k": ((M, 2), {}),
    "einsum": (("ij,kj->ik", M, M), {}),
    "astype": ((M, bu.float64), {}),
    "complex": ((M, M), {}),
    "cross": ((V, V), {}),
    "matrix_power": ((S, 2), {}),
    "solve": ((S, S), {}),
    "solve_triangular": ((S, S), {}),
    "cho_solve": (((S, True), S), {}),
    "conv": ((IMAGE, np.ones((3, 2, 2, 2), np.float32)), {}),
    "conv_transpose": ((IMAGE, np.ones((2, 3, 2, 2), np.float32)), {}),
    "max_pool": ((IMAGE, 2), {}),
    "avg_pool": ((IMAGE, 2), {}),
    "attention": ((M, M, M), {}),
    "group_norm": ((IMAGE, 2), {}),
    "instance_norm": ((IMAGE,), {}),
    "batch_norm": ((IMAGE,), {"mean": np.ones(2, np.float32), "var": np.ones(2, np.float32)}),
    "batch_norm_train": ((IMAGE,), {"mean": np.ones(2, np.float32), "var": np.ones(2, np.float32)}),
    "resize": ((IMAGE, (2, 2)), {"axis": (2, 3)}),
    "one_hot": ((I3, 4), {}),
    "cross_entropy": ((M, np.array([1, 2])), {}),
    "dropout": ((M, KEY, 0.5), {}),
    **dict.fromkeys(("invert", "bitwise_not"), ((N,), {})),
    **dict.fromkeys(("left_shift", "right_shift"), ((N, N), {})),
    **dict.fromkeys(("split", "array_split"), ((M, 3), {"axis": 1})),
    "hsplit": ((M, 3), {}),
    "vsplit": ((M, 2), {}),
    "dsplit": ((M[None], 3), {}),
    "pad": ((M, 1), {}),
    "swapaxes": ((M, 0, 1), {}),
    "unravel_index": ((I3, (2, 3)), {}),
    "ravel_multi_index": (((I3, I3), (4, 4)), {}),
    **dict.fromkeys(("percentile", "nanpercentile"), ((M, 30), {})),
    "nanquantile": ((M, 0.5), {}),
    "dot": ((S, S), {}),
    **dict.fromkeys(("convolve", "correlate"), ((V, V), {})),
    "bincount": ((I3,), {}),
    "digitize": ((M, np.sort(V)), {}),
    "interp": ((M, np.sort(V), V), {}),
    "gradient": ((M,), {}),
    "vander": ((V,), {}),
    "polyval": ((V, M), {}),
    "polyfit": ((V, V, 1), {}),
    "select": (([M > 0.5], [M]), {}),
    "piecewise": ((M, [M > 0.5], [1.0]), {}),
    "apply_along_axis": ((bu.sum, 1, M), {}),
    "bitcast_convert_type": ((M, bu.int32), {}),
    "dynamic_slice_in_dim": ((M, 0, 1), {}),
    "dynamic_index_in_dim": ((M, 1), {}),
    "dynamic_update_slice_in_dim": ((M, M[:1], 1), {}),
    "dynamic_update_index_in_dim": ((M, M[0], 1), {}),
    **dict.fromkeys(
        [f"segment_{kind}" for kind in ("sum", "prod", "max", "min")],
        ((V, np.zeros(V.size, int), 2), {}),
    ),
    "glu": ((M,), {"axis": 0}),
    "polygamma": ((1, M), {}),
}
#: Functions of one square matrix, which is symmetric and positive definite.
SQUARE = {"cho_factor", "cholesky", "det", "eigh", "eigvalsh", "inv", "slogdet"}


def taking_operands() -> list[tuple[str, Callable[..., Any]]]:
    found = []
    for path in ("", "nn", "linalg", "fft", "special"):
        module = bu if not path else getattr(bu, path)
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function):
                continue
            text = " ".join(
                str(p.annotation) for p in inspect.signature(function).parameters.values()
            )
            if "Operand" in text:
                found.append((f"{path}.{name}" if path else name, function))
    return found


FUNCTIONS = taking_operands()


def test_most_functions_take_them() -> None:
    assert len(FUNCTIONS) > 150


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_numpy_arguments_give_the_same(name: str, function: Callable[..., Any]) -> None:
    last = name.rpartition(".")[2]
    args, options = CALLS.get(name) or CALLS.get(last) or (None, {})
    if args is None:
        required = [
            p for p in inspect.signature(function).parameters.values() if p.default is p.empty
        ]
        args = (S if last in SQUARE else M,) * len(required)

    def changed(value: Any, to: Callable[[Any], Any]) -> Any:
        if value is KEY:
            return bu.random.key(0)
        return to(value) if isinstance(value, np.ndarray) else value

    results = []
    for to in (bu.asarray, lambda x: x):
        given = [changed(x, to) for x in args]
        named = {k: changed(x, to) for k, x in options.items()}
        results.append([np.asarray(x) for x in bu.tree.flatten(function(*given, **named))[0]])
    ours, theirs = results
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
