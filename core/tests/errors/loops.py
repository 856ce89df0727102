"""Mistakes with loops and branches; `test_mistakes` says what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu

MISTAKES: dict[str, Callable[[], Any]] = {}


def mistake(function: Callable[[], Any]) -> Callable[[], Any]:
    MISTAKES[function.__name__] = function
    return function


def ones(*shape: int, dtype: object = bu.float32) -> bu.Array:
    return bu.asarray(np.ones(shape, np.float32), dtype=dtype)


@mistake
def a_state_that_changes_its_shape() -> None:
    bu.fori_loop(0, 3, lambda _, s: {"w": bu.concat([s["w"], s["w"]])}, {"w": ones(4)})  # here


@mistake
def a_state_that_changes_its_dtype() -> None:
    bu.while_loop(lambda x: bu.sum(x) < 9, lambda x: x * ones(4, dtype=bu.float64), ones(4))  # here


@mistake
def a_state_that_changes_its_containers() -> None:
    bu.fori_loop(0, 3, lambda _, s: (s, s), ones(4))  # here


@mistake
def a_carry_that_changes_its_dtype() -> None:
    bu.scan(lambda c, x: (c + x, None), ones(2, dtype=bu.int32), ones(3, 2))  # here


@mistake
def a_step_that_gives_one_thing() -> None:
    bu.scan(lambda c, x: c + x, ones(2), ones(3, 2))  # here


@mistake
def rows_of_different_counts() -> None:
    bu.scan(lambda c, x: (c, x[0]), ones(2), (ones(3, 2), ones(4, 2)))  # here


@mistake
def a_scan_over_a_number() -> None:
    bu.scan(lambda c, x: (c, x), ones(2), {"x": ones()})  # here


@mistake
def a_scan_of_unknown_length() -> None:
    bu.scan(lambda c, _: (c, c), ones(2))  # here


@mistake
def a_condition_of_a_loop_that_is_an_array() -> None:
    bu.while_loop(lambda x: x < 9, lambda x: x * 2, ones(4))  # here


@mistake
def a_bound_that_is_a_float() -> None:
    bu.fori_loop(0, 2.5, lambda _, s: s, ones(4))  # here


@mistake
def a_predicate_that_is_an_array() -> None:
    bu.cond(ones(3) > 0, lambda x: x, lambda x: -x, ones(3))  # here


@mistake
def branches_of_different_shapes() -> None:
    bu.cond(bu.any(ones(3) > 0), lambda x: x, lambda x: bu.sum(x), ones(3))  # here


@mistake
def branches_of_different_containers() -> None:
    bu.switch(bu.asarray(1), [lambda x: x, lambda x: (x, x)], ones(3))  # here


@mistake
def a_branch_that_is_no_function() -> None:
    bu.cond(bu.any(ones(3) > 0), ones(3), ones(3))  # here


@mistake
def the_gradient_of_a_loop_of_unknown_length() -> None:
    def run(x: bu.Array) -> bu.Array:
        return bu.while_loop(lambda v: v < 9, lambda v: v * x, x)  # here

    bu.grad(run)(bu.asarray(2.0))
