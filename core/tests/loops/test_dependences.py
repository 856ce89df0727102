"""Which iterations meet at an element, against every pair of iterations."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.dtypes import f32
from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Bound, Expr
from bringup.loops import Buffer, For, Load, Scalar, named_axis, parse_func
from bringup.loops.schedule import Schedule, apply
from bringup.loops.schedule.dependences import Access, meets_only_within

FIRST, SECOND, THIRD = (named_axis(name, size) for name, size in (("i", 3), ("j", 4), ("k", 2)))
AXES = (FIRST, SECOND, THIRD)
LOOPS = tuple(For(axis, ()) for axis in AXES)


def access(index: Expr, facts: tuple[Bound, ...] = ()) -> Access:
    return Access(Load(Scalar("0", f32), Buffer("x", f32, 100), index), facts, LOOPS)


def linear(*terms: int, const: int = 0) -> Expr:
    """The sum of the axes times these coefficients."""
    total = Expr(const)
    for axis, c in zip(AXES, terms, strict=True):
        total = total + Expr.of(axis) * c
    return total


def value(expr: Expr, point: dict[Axis, int]) -> int:
    return expr.substitute({axis: Expr(n) for axis, n in point.items()}).const


def points(of: Access) -> list[dict[Axis, int]]:
    """The iterations in which an access happens."""
    every = (
        dict(zip(AXES, numbers, strict=True)) for numbers in product(*(range(a.size) for a in AXES))
    )
    return [
        point
        for point in every
        if all(bound.low <= value(bound.expr, point) < bound.high for bound in of.facts)
    ]


def really_meets_only_within(one: Access, other: Access, axis: Axis) -> bool:
    return all(
        a[axis] == b[axis]
        for a in points(one)
        for b in points(other)
        if value(one.index, a) == value(other.index, b)
    )


def test_columns_are_apart_where_lines_have_gaps() -> None:
    """A step along a line is no multiple of what its parts are."""
    loops = [named_axis(name, size) for name, size in (("r", 4), ("q", 2), ("w", 2), ("l", 32))]
    index = Expr()
    for axis, c in zip(loops, (136, 64, 32, 1), strict=True):
        index = index + Expr.of(axis) * c
    place = Access(Load(Scalar("0", f32), Buffer("x", f32, 600), index), (), ())
    for axis in loops:
        assert meets_only_within(place, place, axis, frozenset(loops))


@pytest.mark.parametrize(
    ("one", "other", "axis", "decided"),
    [
        pytest.param(linear(8, 2, 1), linear(8, 2, 1), FIRST, True, id="row-major"),
        pytest.param(linear(8, 2, 1), linear(8, 2, 1), THIRD, True, id="row-major, innermost"),
        pytest.param(linear(2, 0, 1), linear(2, 0, 1), SECOND, False, id="a fold over j"),
        pytest.param(linear(2, 0, 1), linear(2, 0, 1), FIRST, True, id="a fold over j, by i"),
        pytest.param(linear(1, 1, 0), linear(1, 1, 0), FIRST, False, id="a diagonal"),
        pytest.param(linear(8, 2, 1), linear(8, 2, 1, const=1), SECOND, False, id="a neighbour"),
        pytest.param(linear(8, 2, 1), linear(8, 2, 1, const=2), FIRST, False, id="two further"),
        pytest.param(linear(16, 2, 1), linear(16, 2, 1, const=2), FIRST, True, id="within a row"),
        pytest.param(linear(2, 0, 0), linear(2, 0, 0, const=1), FIRST, True, id="odd and even"),
        pytest.param(linear(1, 0, 0), linear(1, 0, 0, const=50), FIRST, True, id="far apart"),
    ],
)
def test_what_coefficients_decide(one: Expr, other: Expr, axis: Axis, decided: bool) -> None:
    pair = access(one), access(other)
    assert meets_only_within(*pair, axis, frozenset(AXES)) == decided
    assert really_meets_only_within(*pair, axis) or not decided


def test_facts_decide_where_ranges_do_not() -> None:
    """Rows of 3 in which j and k together stay below 3."""
    index = linear(3, 2, 1)
    short = (Bound(linear(0, 2, 1), 0, 3),)
    assert not meets_only_within(access(index), access(index), FIRST, frozenset(AXES))
    assert meets_only_within(access(index, short), access(index, short), FIRST, frozenset(AXES))


def test_one_thread_meets_itself_alone() -> None:
    only = (Bound(Expr.of(FIRST), 0, 1),)
    assert meets_only_within(access(Expr(), only), access(Expr(), only), FIRST, frozenset(AXES))


def test_a_fused_loop_stands_in_quotient_and_remainder() -> None:
    fused = named_axis("f", 12)
    whole = Expr.of(fused)
    one = access(whole // 4 * 10 + whole % 4)
    assert meets_only_within(one, one, fused, frozenset([fused]))
    folded = access(whole // 4)
    assert not meets_only_within(folded, folded, fused, frozenset([fused]))


coefficients = st.tuples(*[st.integers(-9, 9)] * 3)
bounds = st.builds(
    lambda terms, low, size: Bound(linear(*terms), low, low + size),
    coefficients,
    st.integers(-4, 4),
    st.integers(1, 12),
)


@given(
    coefficients,
    coefficients,
    st.booleans(),
    st.integers(-6, 6),
    st.lists(bounds, max_size=2),
    st.sampled_from(AXES),
)
def test_what_it_says_is_true(
    terms: tuple[int, ...],
    others: tuple[int, ...],
    is_same: bool,
    shift: int,
    facts: list[Bound],
    axis: Axis,
) -> None:
    one = access(linear(*terms), tuple(facts))
    other = access(linear(*(terms if is_same else others), const=shift), tuple(facts[:1]))
    if meets_only_within(one, other, axis, frozenset(AXES)):
        assert really_meets_only_within(one, other, axis)


#: A quotient, a remainder, or a digit in between, of a sum of loops.
digits = st.tuples(
    st.integers(1, 9), coefficients, st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([0, 2, 3, 5])
)


@given(st.lists(digits, min_size=1, max_size=3), coefficients, st.lists(bounds, max_size=1))
def test_what_it_says_of_digits_is_true(
    parts: list[tuple[int, tuple[int, ...], int, int]], terms: tuple[int, ...], facts: list[Bound]
) -> None:
    index = linear(*terms)
    for scale, inner, by, count in parts:
        digit = linear(*map(abs, inner)) // by
        index = index + (digit % count if count else digit) * scale
    one = access(index, tuple(facts))
    for axis in AXES:
        if meets_only_within(one, one, axis, frozenset(AXES)):
            assert really_meets_only_within(one, one, axis)


FUSED = """\
func spread(y: inout f32[10260]) {
  for i in 5 {
    for j in 5 {
      for k in 4 {
        %0: f32 = 2.0
        y[2560*i + 4*j + k] = %0
      }
    }
  }
}"""
_FUSE = """
fuse i j ij
fuse ij k all
split all o v 2
split o own x 32
reorder x own
"""


def test_quotients_of_sums_with_quotients_are_digits_of_one_whole() -> None:
    func = apply(parse_func(FUSED), Schedule.parse(_FUSE))
    assert "//2)//5" in str(func)  # a quotient in a quotient, beside a remainder of the whole sum


GATHERED = """\
func window(at: in i32[4], x: in f32[4], y: inout f32[100]) {
  for i in 4 {
    %0: i32 = at[i]
    for j in 4 {
      %1: i32 = at[j]
      %2: f32 = x[j]
      y[d0[0:96] + j](%0) = %2
    }
  }
}"""


def test_an_index_that_is_loaded_outside_of_a_loop_is_one_for_all_of_its_iterations() -> None:
    func = parse_func(GATHERED)
    assert "for j in 4 vector" in str(apply(func, Schedule.parse("vectorize j")))
    with pytest.raises(ScheduleError, match="iterations of loop i touch the same elements of y"):
        apply(func, Schedule.parse("parallelize i"))
    inside = parse_func(GATHERED.replace("](%0)", "](%1)"))
    with pytest.raises(ScheduleError, match="iterations of loop j touch the same elements of y"):
        apply(inside, Schedule.parse("vectorize j"))
    two = GATHERED.replace("%1: i32 = at[j]", "%1: f32 = y[d0[0:96] + j](%3)")
    two = parse_func(two.replace("    for j", "    %3: i32 = at[0]\n    for j"))
    with pytest.raises(ScheduleError, match="iterations of loop j touch the same elements of y"):
        apply(two, Schedule.parse("vectorize j"))
