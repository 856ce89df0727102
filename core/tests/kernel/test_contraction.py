"""Contractions read off kernels, whatever device they are for."""

from __future__ import annotations

from typing import Any

import pytest

import bringup as bu
from bringup.kernel.contraction import Contraction, panel, recognise, size
from bringup.kernel.form import Kernel

f32, bf16 = bu.float32, bu.bfloat16


def kernels(function: Any, *types: Any) -> tuple[Kernel, ...]:
    return tuple(bu.jit(function).lower(*types).kernels)


def found(function: Any, *types: Any) -> Contraction:
    contraction = recognise(kernels(function, *types)[-1])
    assert contraction is not None
    return contraction


@pytest.mark.parametrize("turn", [False, True])
def test_rows_and_columns_of_a_product(turn: bool) -> None:
    made = found(lambda x, y: (x @ y).mT if turn else x @ y, f32[5, 30, 40], f32[5, 40, 50])
    rows, columns = (50, 30) if turn else (30, 50)
    sizes = [size(a) for a in (made.batch, made.left.axes, made.right.axes, made.inner)]
    assert sizes == [5, rows, columns, 40]


def test_patches_of_a_convolution() -> None:
    made = found(lambda x, w: bu.nn.conv(x, w), f32[2, 6, 12, 13], f32[8, 6, 3, 3])
    assert size(made.left.axes) == 8
    assert [a.size for a in made.right.axes] == [2, 10, 11]
    # The kernel's own elements lie side by side, the patches do not.
    assert [a.size for a in panel(made, made.left).inner] == [54]
    assert [a.size for a in panel(made, made.right).inner] == [6, 3, 3]


def test_what_was_widened() -> None:
    made = found(lambda x, y: x @ y, bf16[30, 40], bf16[40, 50])
    assert made.fold.dtype is f32
    assert [f.narrow.dtype for f in (made.left, made.right)] == [bf16, bf16]


@pytest.mark.parametrize(
    "function",
    [lambda x: bu.sum(x * x, axis=1), lambda x: x + 1, lambda x: x @ x[0]],
    ids=["no product of two", "a map", "no columns"],
)
def test_what_is_none(function: Any) -> None:
    assert [recognise(k) for k in kernels(function, f32[30, 30])] == [None]
