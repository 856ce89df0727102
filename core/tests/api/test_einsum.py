"""einsum against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

SIZES = {"i": 2, "j": 3, "k": 4, "l": 5, "m": 6}
FORMS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "i,j->ij", "i,i->", "ij->ji", "ij->", "ij->j", "ijk->kji",
    "ij,ij->ij", "ij,ij->", "ij,i->ij", "ijk,ikl->ijl", "ijk,kl,lm->ijm", "ij,jk,kl,lm->im",
    "i,j,k->kij", "ij,j,k->ik", "ijk,jil->kl", "ba", "ij,jk,ik->", "ijkl,jl->ki", "ij,jk,kl,li",
]  # fmt: skip


def operands(terms: str) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = [
        [SIZES.get(c, 3) for c in term] for term in terms.split("->", maxsplit=1)[0].split(",")
    ]
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimize", ["greedy", "optimal"])
def test_forms(form: str, optimize: str) -> None:
    arrays = operands(form)
    found = bu.einsum(form, *map(bu.asarray, arrays), optimize=optimize)
    wanted = np.einsum(form, *arrays)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "shapes"),
    [
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iji->ji", [(3, 2, 3)]),
        ("iii->i", [(3, 3, 3)]),
        ("ii,i->i", [(3, 3), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i...,i->...", [(3, 4, 5), (3,)]),
        ("...,...", [(3, 1), (2,)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
        (" i j , j -> i ", [(2, 3), (3,)]),
        (",->", [(), ()]),
    ],
)
def test_diagonals_dots_and_stretching(form: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in shapes]
    found = bu.einsum(form, *map(bu.asarray, arrays))
    wanted = np.einsum(form, *arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-10, atol=1e-12)


def test_dtypes_meet_and_integers_stay() -> None:
    x, y = bu.ones((2, 3), dtype=bu.float32), bu.ones((3,), dtype=bu.int8)
    assert bu.einsum("ij,j", x, y).dtype is bu.float32
    assert bu.einsum("i,i", y, y).tolist() == 3


def test_a_chain_is_multiplied_in_the_cheap_order() -> None:
    """(a·b)·c takes 2 · 1000 · 1000 products more than a·(b·c)."""
    a, b, c = bu.ones((1000, 2)), bu.ones((2, 1000)), bu.ones((1000,))
    shown = str(bu.trace(lambda a, b, c: bu.einsum("ij,jk,k->i", a, b, c), a, b, c))
    assert "f64[1000,1000]" not in shown


def test_gradients_pass() -> None:
    a, b = operands("ij,jk")
    x, y = bu.asarray(a), bu.asarray(b)
    found = bu.grad(lambda x: bu.einsum("ij,jk->", x, y))(x)
    np.testing.assert_allclose(np.asarray(found), np.broadcast_to(b.sum(1), a.shape))


TWO = bu.ones((2, 3))


@pytest.mark.parametrize(
    ("form", "given", "fix"),
    [
        ("ij,jk", [TWO], "one per operand"),
        ("ijk", [TWO], "letter"),
        ("ij->ik", [TWO], "once each"),
        ("ij->ii", [TWO], "once each"),
        ("i1", [TWO], "a to z"),
        ("ij,ij", [TWO, bu.ones((2, 4))], "sizes equal"),
        ("ij", [TWO > 0], "convert"),
        ("ij", [], "an array for each term"),
    ],
)
def test_wrong_subscripts_are_explained(form: str, given: list[bu.Array], fix: str) -> None:
    with pytest.raises(OpTypeError) as caught:
        bu.einsum(form, *given)
    assert fix in str(caught.value)


def test_an_unknown_order_is_explained() -> None:
    with pytest.raises(OpTypeError, match="greedy"):
        bu.einsum("ij", TWO, optimize="best")
