"""Recipes make the same arrays everywhere, and the arrays they promise."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.dtypes import BY_NAME, STORED, DType, bool_, f16, f32, i8, u8
from bringup_conformance.generate.recipes import KINDS, LAYOUTS, Recipe

dtypes = st.sampled_from(STORED)
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
recipes = st.builds(
    Recipe,
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 10**6),
    overrides=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["0", "1"])), max_size=2).map(
        tuple
    ),
    layout=st.sampled_from(LAYOUTS),
    interval=st.none() | st.just((0.0, 10.0)),
    nonzero=st.booleans(),
)


@given(recipes, dtypes, shapes)
def test_a_recipe_makes_one_array_of_its_type(
    recipe: Recipe, dtype: DType, shape: tuple[int, ...]
) -> None:
    first, second = recipe.make(dtype[shape]), recipe.make(dtype[shape])
    assert (first.shape, first.dtype) == (shape, dtype.numpy)
    assert first.tobytes() == second.tobytes()


@given(recipes)
def test_a_recipe_survives_plain_data(recipe: Recipe) -> None:
    assert Recipe.from_json(recipe.to_json()) == recipe


@given(recipes, dtypes, shapes)
def test_the_layout_changes_no_value(recipe: Recipe, dtype: DType, shape: tuple[int, ...]) -> None:
    arrays = [
        Recipe(recipe.kind, recipe.seed, recipe.overrides, layout).make(dtype[shape])
        for layout in LAYOUTS
    ]
    assert len({np.ascontiguousarray(array).tobytes() for array in arrays}) == 1


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 99), dtypes)
def test_values_stay_in_the_interval(kind: str, seed: int, dtype: DType) -> None:
    if dtype is bool_:
        return
    made = Recipe(kind, seed, interval=(1.0, 9.0), nonzero=True).make(dtype[61])
    if kind in ("special", "nans"):  # what is sprinkled over an array ignores it
        return
    assert made.min() >= 1
    assert made.max() <= 9


# What a failure file says must mean the same in every later version.
GOLDEN = {
    ("signed", "f32"): "b964ccc7ca4a4718",
    ("wide", "f16"): "6ac816e5e1fc980f",
    ("special", "f64"): "ca570bdb8a366e2e",
    ("small", "i8"): "27aeed029fef4d6a",
    ("ties", "bf16"): "6c57a99b9bf60b00",
    ("onehot", "u64"): "8a705e22dd2e69bc",
}


@pytest.mark.parametrize(("kind", "dtype"), GOLDEN)
def test_the_bytes_of_a_recipe_never_change(kind: str, dtype: str) -> None:
    made = Recipe(kind, 7).make(BY_NAME[dtype][100])
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == GOLDEN[kind, dtype]


@pytest.mark.parametrize("dtype", STORED, ids=lambda d: d.name)
def test_elements_of_random_kinds_differ(dtype: DType) -> None:
    made = Recipe("signed", 3).make(dtype[200]).astype(np.float64)
    found = len(set(made.tolist()))
    assert found == 2 if dtype is bool_ else found > (35 if dtype.is_storage else 85)


def test_seeds_and_types_tell_arrays_apart() -> None:
    made = [Recipe("signed", s).make(f32[n]).tobytes() for s in range(5) for n in (50, 51)]
    assert len(set(made)) == 10


def test_a_ramp_counts_while_the_dtype_can() -> None:
    assert Recipe().make(f16[2049]).tolist()[-3:] == [2047.0, 2048.0, 1.0]
    assert len(set(Recipe().make(u8[100]).tolist())) == 100


def test_small_numbers_have_exact_sums_in_any_order() -> None:
    made = Recipe("small", 1).make(f16[500])
    assert np.abs(made).sum(dtype=np.float64) <= 2048
    assert float(np.add.accumulate(made)[-1]) == float(made.astype(np.float64).sum())


def test_special_values_are_among_the_others() -> None:
    made = Recipe("special", 0).make(f32[500])
    assert np.isnan(made).any()
    assert np.isposinf(made).any()
    assert ((made == 0) & np.signbit(made)).any()
    tiny = np.finfo(np.float32).tiny
    assert ((made != 0) & (np.abs(made) < tiny)).any()
    assert -128 in Recipe("special", 0).make(i8[500])


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="no recipe of kind 'ramps'"):
        Recipe.from_json({"kind": "ramps"})
    with pytest.raises(TypeError):
        Recipe.from_json({"sort": "ramp"})
