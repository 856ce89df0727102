"""Index expressions mean what their parts mean, however they are simplified."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.errors import ParseError
from bringup.graph.index import Axis, Bound, Div, Expr, Mod, flatten, unflatten
from bringup.kernel.parser import parse_bound, parse_expr
from bringup.kernel.ranges import Array, expr_value, is_row_major, mask_value, positions, span

AXES = (Axis(0, 4), Axis(1, 6), Axis(2, 1), Axis(3, 5))
TABLE = positions(AXES) or {}
small = st.integers(-7, 7)
divisors = st.integers(1, 8)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda e, n: e + n, inner, small),
        st.builds(lambda e, n: e * n, inner, small),
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda e, n: e // n, inner, divisors),
        st.builds(lambda e, n: e % n, inner, divisors),
    )


exprs = st.recursive(st.sampled_from(AXES).map(Expr.of) | small.map(Expr), _grow, max_leaves=8)
bounds = st.builds(lambda e, low, n: Bound(e, low, low + n), exprs, small, st.integers(0, 9))


def value(expr: Expr, table: Mapping[Axis, Array] = TABLE) -> Array:
    return np.broadcast_to(expr_value(expr, table), TABLE[AXES[0]].shape)


@settings(max_examples=200)
@given(a=exprs, b=exprs, n=small, by=divisors)
def test_arithmetic_is_that_of_the_values(a: Expr, b: Expr, n: int, by: int) -> None:
    for made, wanted in (
        (a + b, value(a) + value(b)),
        (a + n, value(a) + n),
        (a * n, value(a) * n),
        (a // by, value(a) // by),
        (a % by, value(a) % by),
    ):
        assert np.array_equal(value(made), wanted), f"{a} and {b} became {made}"


@settings(max_examples=200)
@given(e=exprs, by=divisors)
def test_a_quotient_and_its_remainder_make_the_whole_again(e: Expr, by: int) -> None:
    assert (e // by) * by + e % by == e


@settings(max_examples=200)
@given(e=exprs, new=st.tuples(exprs, exprs))
def test_substitution_is_that_of_the_values(e: Expr, new: tuple[Expr, Expr]) -> None:
    """Ranges of atoms rest on those of the axes, so what replaces an axis lies in its range."""
    table = {axis: by % axis.size for axis, by in zip(AXES[:2], new, strict=True)}
    replaced = {**TABLE, **{axis: value(by) for axis, by in table.items()}}
    assert np.array_equal(value(e.substitute(table)), value(e, replaced))


@settings(max_examples=200)
@given(e=exprs, mask=st.lists(bounds, max_size=2))
def test_ranges_hold_every_value(e: Expr, mask: list[Bound]) -> None:
    assert e.first <= value(e).min() <= value(e).max() <= e.last
    holds = np.broadcast_to(mask_value(mask, TABLE), value(e).shape)
    low, high = span(e, tuple(mask))
    if holds.any():
        assert e.first <= low <= value(e)[holds].min()
        assert value(e)[holds].max() <= high <= e.last
    for bound in mask:
        assert not bound.always or mask_value([bound], TABLE).all()
        assert not bound.never or not mask_value([bound], TABLE).any()


@settings(max_examples=200)
@given(e=exprs, bound=bounds)
def test_text_comes_back(e: Expr, bound: Bound) -> None:
    assert parse_expr(str(e)) == e
    assert parse_bound(str(bound)) == bound


@settings(max_examples=200)
@given(e=exprs)
def test_equal_sums_are_equal_however_they_were_put_together(e: Expr) -> None:
    terms = [Expr(0, (term,)) for term in e.terms]
    total = Expr(e.const)
    for term in reversed(terms):
        total = term + total
    assert total == e


@settings(max_examples=100)
@given(shape=st.lists(st.integers(1, 5), max_size=4), turn=st.integers(0, 3))
def test_flattening_and_its_inverse_leave_no_division(shape: list[int], turn: int) -> None:
    axes = [Axis(i, n) for i, n in enumerate(shape)]
    index = tuple(map(Expr.of, axes))
    assert unflatten(flatten(index, shape), tuple(shape)) == index
    whole = Axis(9, math.prod(shape))
    parts = unflatten(Expr.of(whole), tuple(shape))
    assert flatten(parts, shape) == Expr.of(whole)
    assert is_row_major(flatten(index, shape), axes)
    turned = axes[turn % max(len(axes), 1) :] + axes[: turn % max(len(axes), 1)]
    assert is_row_major(flatten(map(Expr.of, turned), [a.size for a in turned]), axes)


@pytest.mark.parametrize(
    "text", ["2*a0[4]", "a0[4] + 1", "a0[4]", "a0[4] + a1[4]", "(a0[4])//2", "2*a0[4] + 3*a1[2]"]
)
def test_what_is_not_dense_is_not_row_major(text: str) -> None:
    found = parse_expr(text)
    axes = [Axis(0, 4), Axis(1, 4)]
    assert not is_row_major(found, axes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an axis"),
        ("a0", "expected an axis"),
        ("a0[4] +", "text after"),
        ("2*", "expected an axis"),
        ("(a0[4])", "expected // or %"),
        ("(a0[4])//0", "expected // or %"),
        ("(a0[4]//2", "expected ')'"),
        ("a0[4] a1[4]", "text after"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=f"^{message.replace('%', '.').replace(')', '.')}"):
        parse_expr(text)


@pytest.mark.parametrize("text", ["0 <= a0[4]", "a0[4] < 4", "0 < a0[4] < 4", "0 <= a0[4] < n"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"^not a bound"):
        parse_bound(text)


def test_atoms_print_and_know_their_ranges() -> None:
    axis = Expr.of(AXES[1])
    div, mod = Div(axis + 1, 2), Mod(axis * 5, 4)
    assert str(Expr.of(div) * 3 + Expr.of(mod) + -1) == "3*(a1[6] + 1)//2 + (5*a1[6])%4 + -1"
    assert (div.first, div.last, mod.first, mod.last) == (0, 3, 0, 3)
    assert Expr.of(AXES[2]) == Expr(0)
    assert (Expr.of(div) + axis).coefficient(AXES[1]) is None
    assert (axis * 3).coefficient(AXES[0]) == 0


def test_windows_laid_out_by_copies_are_affine() -> None:
    """Copies of a line, cut anew one step longer: row k begins k steps further in the line."""
    length, step, stride = 20, 3, 2
    k, i = Axis(0, 4), Axis(1, 5)
    flat = Expr.of(k) * (length + step) + Expr.of(i) * stride
    (_, at) = unflatten(flat, (6, length))
    assert at == Expr.of(k) * step + Expr.of(i) * stride


def test_divisions_look_past_what_lies_below_every_step() -> None:
    """Groups of 4 features of 6 × 6 points each."""
    c, h, w = Axis(0, 8), Axis(1, 6), Axis(2, 6)
    flat = flatten((Expr.of(c), Expr.of(h), Expr.of(w)), (8, 6, 6))
    assert flat // 144 == Expr.of(c) // 4
    assert flat % 144 == (Expr.of(c) % 4) * 36 + Expr.of(h) * 6 + Expr.of(w)


def test_the_span_of_a_sum_with_a_quotient_is_that_of_the_whole_by_the_divisor() -> None:
    """A column that is split and fused again: its rows end where it does."""
    tile, column = Axis(0, 86), Axis(1, 24)
    row = Expr.of(tile) * 3 + Expr.of(column) // 2 // 4
    whole = Expr.of(tile) * 24 + Expr.of(column)
    assert span(row) == (0, 257)
    assert span(row, (Bound(whole, 0, 2048),)) == (0, 255)
    assert span(row // 8, (Bound(whole * -1 + 2048, 1, 2049),)) == (0, 31)
