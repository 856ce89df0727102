"""Convolutions natively, against the rows' references in double precision: every edge of a register
tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.apply import apply
from bringup.ops.table import lookup

LAST = {"lhs_dims": (0, 3, 1, 2), "rhs_dims": (3, 2, 0, 1), "out_dims": (0, 3, 1, 2)}
PLAIN = {key: tuple(range(4)) for key in LAST}


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wanted(x: Any, w: Any, places: dict[str, Any], pad: int, stride: int) -> Any:
    wide = [a.astype(np.float64) for a in (x, w)]
    row, one = lookup("convolution"), (1, 1)
    attrs = {"strides": (stride,) * 2, "lo": (pad,) * 2, "hi": (pad,) * 2, "groups": 1}
    dilations = {"lhs_dilation": one, "rhs_dilation": one}
    types = {"accumulate": bu.float64, "result": bu.float64}
    return row.reference(*wide, **attrs, **dilations, **places, **types)


MADE, SIZES, WINDOWS = (1, 5, 13, 16, 31, 64), (3, 9, 18, 33, 56), ((0, 1), (1, 1), (1, 2))


@pytest.mark.parametrize(
    ("made", "size", "pad", "stride"),
    [(m, n, *WINDOWS[(i + j) % 3]) for i, m in enumerate(MADE) for j, n in enumerate(SIZES)],
)
def test_both_layouts(made: int, size: int, pad: int, stride: int) -> None:
    """Any two of channels, size and window meet."""
    x, w, bias = numbers(2, 3, 5, size), numbers(made, 3, 3, 3, seed=1), numbers(made, seed=2)
    expected = np.maximum(wanted(x, w, PLAIN, pad, stride) + bias[:, None, None], 0)

    def first(x: Any, w: Any, b: Any) -> Any:
        y = bu.nn.conv(x, w, padding=pad, stride=stride)
        return bu.nn.relu(y + bu.reshape(b, (-1, 1, 1)))

    def last(x: Any, w: Any, b: Any) -> Any:
        return bu.nn.relu(bu.nn.conv(x, w, padding=pad, stride=stride, layout="NHWC") + b)

    found = bu.jit(first)(*map(bu.asarray, (x, w, bias)))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)
    turned = np.moveaxis(x, 1, -1), np.transpose(w, (2, 3, 1, 0)), bias
    found = bu.jit(last)(*map(bu.asarray, turned))
    found = np.moveaxis(np.asarray(found), -1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients(layout: str) -> None:
    x, w = numbers(3, 4, 7, 19), numbers(17, 4, 3, 3, seed=1)
    ct = numbers(3, 17, 7, 19, seed=2)
    places = PLAIN if layout == "NCHW" else LAST
    if layout == "NHWC":
        x, ct = np.moveaxis(x, 1, -1), np.moveaxis(ct, 1, -1)
        w = np.transpose(w, (2, 3, 1, 0))

    def weighed(x: Any, w: Any) -> Any:
        return bu.sum(bu.nn.conv(x, w, padding="same", layout=layout) * bu.asarray(ct))

    by_x, by_w = bu.grad(lambda a: weighed(*a))((bu.asarray(x), bu.asarray(w)))
    for n, (array, found) in enumerate(((x, by_x), (w, by_w))):
        step = numbers(*array.shape, seed=3)
        pair = (step, w) if n == 0 else (x, step)  # linear in each operand
        slope = np.sum(wanted(*pair, places, 1, 1) * ct)
        np.testing.assert_allclose(np.sum(np.asarray(found, np.float64) * step), slope, rtol=1e-3)


def test_a_layer_is_one_launch() -> None:
    x, w = bu.ones((2, 8, 20, 20), dtype=bu.float32), bu.ones((16, 8, 3, 3), dtype=bu.float32)
    made = bu.jit(lambda x, w: bu.nn.relu(bu.nn.conv(x, w) + 1)).lower(x, w)
    assert made.cost().kernels == 1


@pytest.mark.parametrize("rows", [1, 2, 7, 12, 13, 15, 25, 27])
@pytest.mark.parametrize("columns", [1, 16, 40, 48, 54, 65])
def test_products_of_every_tile(rows: int, columns: int) -> None:
    a, b = numbers(rows, 9), numbers(9, columns, seed=1)
    found = np.asarray(bu.asarray(a) @ bu.asarray(b))
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_windows_of_eight_dimensions() -> None:
    x = numbers(2, 3, 2, 2, 2, 3, 3, 4)
    ones, none = (1,) * 8, (0,) * 8
    attrs = {"kind": "max", "window": (1, 2, 1, 2, 1, 2, 2, 3), "strides": ones, "lo": none}
    attrs |= {"hi": (0, 0, 0, 1, 0, 0, 0, 1), "dilation": ones}
    found = np.asarray(apply("reduce_window", (bu.asarray(x),), attrs))
    np.testing.assert_array_equal(found, lookup("reduce_window").reference(x, **attrs))
