"""What the tests of schedules share: values of functions before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bringup.loops import Func, Store, evaluate_func, statements, verify_func
from bringup.ops.monoids import MONOIDS

Array = np.ndarray[Any, Any]


def small_inputs(func: Func, seed: int = 0) -> dict[str, Array]:
    """Small whole numbers for every input: sums and products of few of them are exact."""
    random = np.random.default_rng(seed)
    return {
        buffer.name: random.integers(0, 2, buffer.size).astype(buffer.dtype.numpy)
        if buffer.dtype.numpy == np.bool_
        else random.integers(-3 if buffer.dtype.numpy.kind in "if" else 0, 4, buffer.size).astype(
            buffer.dtype.numpy
        )
        for buffer in func.inputs
    }


def results(
    func: Func, inputs: Mapping[str, Array], shared: Mapping[str, str] | None = None
) -> list[Array]:
    """What a function writes.  shared: by output, the input whose memory it has."""
    memory = {name: array.copy() for name, array in inputs.items()}
    for buffer in func.outputs:
        source = (shared or {}).get(buffer.name)
        memory[buffer.name] = (
            np.zeros(buffer.size, buffer.dtype.numpy)
            if source is None
            else memory[source].view(buffer.dtype.numpy)
        )
    evaluate_func(func, [memory[param.buffer.name] for param in func.params])
    return [memory[buffer.name] for buffer in func.outputs]


def is_exact(func: Func) -> bool:
    """Whether folds give the same bits in every order."""
    folds = [s for s in statements(func.body) if isinstance(s, Store) and s.fold]
    return all(MONOIDS[s.fold].is_exact(s.buffer.dtype) for s in folds)


def assert_equal_values(
    before: Func, after: Func, shared: Mapping[str, str] | None = None, bound: float = 0.0
) -> None:
    """Both compute the same from the same inputs, and the second breaks no rule of the form.

    bound: how far results may be apart, relative to the expected ones.
    """
    verify_func(after)
    inputs = small_inputs(before)
    expected = results(before, inputs)
    for one, other in zip(expected, results(after, inputs, shared), strict=True):
        if bound:
            np.testing.assert_allclose(other, one, rtol=bound, atol=0)
        else:
            np.testing.assert_array_equal(other, one)
