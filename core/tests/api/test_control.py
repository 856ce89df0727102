"""Loops, scans and branches: containers, captures, jit, grad, deferred arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import bringup as bu
from bringup import float32 as f32
from bringup import float64 as f64
from bringup.errors import OpTypeError, UnsupportedError
from bringup.passes.dce import eliminate_inside

Wrap = Callable[[Any], Any]
WRAPS: dict[str, Wrap] = {"deferred": lambda fn: fn, "jit": bu.jit}


@pytest.fixture(params=list(WRAPS))
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """As it stands, and compiled."""
    return WRAPS[request.param]


class Pair(NamedTuple):
    """A container of one's own."""

    left: Any
    right: Any


def near(found: Any, wanted: Any, tolerance: float = 1e-6) -> bool:
    return bool(np.allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance))


# ---- loops


def test_a_loop_that_ends_by_its_values(wrap: Wrap) -> None:
    collatz = wrap(
        lambda n: bu.while_loop(
            lambda s: s[0] != 1,
            lambda s: (bu.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1),
            (n, 0),
        )[1]
    )
    assert collatz(bu.asarray(27)).item() == 111
    assert collatz(bu.asarray(1)).item() == 0


def test_states_are_any_container(wrap: Wrap) -> None:
    def run(x: Any) -> Any:
        def body(state: Pair) -> Pair:
            return Pair(state.left + 1, {"v": state.right["v"] * 2, "none": None})

        return bu.while_loop(lambda s: s.left < 5, body, Pair(0, {"v": x, "none": None}))

    found = wrap(run)(bu.ones(3, dtype=f32))
    assert type(found) is Pair
    assert found.left.item() == 5
    assert found.right["none"] is None
    assert found.right["v"].tolist() == [32.0] * 3


def test_outer_arrays_become_operands(wrap: Wrap) -> None:
    outer, limit = bu.full((3,), 2.0, dtype=f32), bu.asarray(10.0, dtype=f32)

    def run(x: Any) -> Any:
        scaled = x * outer
        return bu.while_loop(lambda v: bu.sum(v) < limit, lambda v: v + scaled, x)

    assert wrap(run)(bu.ones(3, dtype=f32)).tolist() == [5.0, 5.0, 5.0]


def test_a_state_may_exchange_its_parts(wrap: Wrap) -> None:
    run = wrap(lambda a, b: bu.fori_loop(0, 5, lambda _, s: (s[1], s[0]), (a, b)))
    a, b = bu.zeros(4), bu.ones(4)
    assert [x.tolist() for x in run(a, b)] == [b.tolist(), a.tolist()]


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_counted_loops(wrap: Wrap, trips: int) -> None:
    wanted = sum(range(3, 3 + trips))
    known = wrap(lambda x: bu.fori_loop(3, 3 + trips, lambda i, s: s + i, x))
    assert known(bu.asarray(0)).item() == wanted
    late = wrap(lambda x, n: bu.fori_loop(3, n, lambda i, s: s + i, x))
    assert late(bu.asarray(0), bu.asarray(3 + trips)).item() == wanted


def test_a_counted_loop_may_run_backwards_over_nothing() -> None:
    assert bu.fori_loop(5, 2, lambda _, x: x + 1, bu.asarray(4)).item() == 4


def test_python_numbers_of_a_state_take_the_dtype_they_meet(wrap: Wrap) -> None:
    x = bu.ones(3, dtype=f32)
    total = wrap(lambda x: bu.fori_loop(0, 3, lambda _, s: s + bu.sum(x), 0))(x)
    assert (total.item(), total.dtype) == (9.0, f32)
    kept = wrap(lambda x: bu.fori_loop(0, 3, lambda _, s: (s[0] * 0.5, 7), (x, 0)))(x)
    assert (kept[0].dtype, kept[1].item(), kept[1].dtype) == (f32, 7, bu.int64)


def test_loops_inside_loops_and_branches(wrap: Wrap) -> None:
    def run(x: Any) -> Any:
        def outer(i: Any, s: Any) -> Any:
            s = bu.fori_loop(0, i, lambda j, v: v + j, s)
            return bu.cond(s > 3, lambda v: v - 1, lambda v: v, s)

        return bu.fori_loop(0, 6, outer, x)

    wanted = 0
    for i in range(6):
        wanted += sum(range(i))
        wanted -= wanted > 3
    assert wrap(run)(bu.asarray(0)).item() == wanted


def test_states_without_elements_and_of_rank_8(wrap: Wrap) -> None:
    run = wrap(lambda x: bu.fori_loop(0, 3, lambda _, v: v + 1, x))
    assert run(bu.zeros((0, 3))).shape == (0, 3)
    deep = run(bu.zeros((1, 2, 1, 2, 1, 2, 1, 2), dtype=f32))
    assert deep.shape == (1, 2, 1, 2, 1, 2, 1, 2)
    assert near(deep, 3)


# ---- scan


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_stacks_what_it_gives(wrap: Wrap, reverse: bool) -> None:
    xs = np.arange(12, dtype=np.float32).reshape(4, 3)

    def run(xs: Any) -> Any:
        return bu.scan(lambda c, x: (c + x, {"sum": c + x, "x": x}), bu.zeros(3, dtype=f32), xs,
                       reverse=reverse)  # fmt: skip

    carry, ys = wrap(run)(bu.asarray(xs))
    ordered = xs[::-1] if reverse else xs
    sums = np.cumsum(ordered, axis=0)
    assert near(carry, sums[-1])
    assert near(ys["sum"], sums[::-1] if reverse else sums)
    assert near(ys["x"], xs)


def test_scan_without_rows_or_without_results(wrap: Wrap) -> None:
    carry, ys = wrap(lambda x: bu.scan(lambda c, _: (c * 2, c), x, None, length=4))(bu.asarray(1))
    assert (carry.item(), ys.tolist()) == (16, [1, 2, 4, 8])
    carry, none = wrap(lambda x: bu.scan(lambda c, r: (c + r, None), 0, x))(bu.arange(5))
    assert (carry.item(), none) == (10, None)
    none, ys = wrap(lambda x: bu.scan(lambda _, r: (None, r * r), None, x))(bu.arange(4))
    assert (none, ys.tolist()) == (None, [0, 1, 4, 9])
    none, ys = bu.scan(lambda _, __: (None, 3), None, None, length=2)
    assert (none, ys.tolist()) == (None, [3, 3])
    assert bu.scan(lambda _, __: (None, None), None, None, length=2) == (None, None)


def test_scan_over_no_rows(wrap: Wrap) -> None:
    carry, ys = wrap(lambda x: bu.scan(lambda c, r: (c + r, c), bu.ones(2), x))(bu.zeros((0, 2)))
    assert carry.tolist() == [1, 1]
    assert ys.shape == (0, 2)


# ---- branches


def test_one_branch_runs(wrap: Wrap) -> None:
    """The other one would not end."""
    endless = lambda x: bu.while_loop(lambda _: bu.asarray(True), lambda v: v + 1, x)  # noqa: E731
    run = wrap(lambda p, x: bu.cond(p, lambda v: v * 2, endless, x))
    assert run(bu.asarray(True), bu.asarray(4)).item() == 8


def test_switch_takes_the_last_branch_for_any_other_number(wrap: Wrap) -> None:
    steps = [lambda x: x, lambda x: x * 10, lambda x: x * 100]
    run = wrap(lambda k, x: bu.switch(k, steps, x))
    for number, wanted in ((0, 1), (1, 10), (2, 100), (3, 100), (-1, 100), (1 << 32, 100)):
        assert run(bu.asarray(number), bu.asarray(1)).item() == wanted
    assert run(bu.asarray(255, dtype=bu.uint8), bu.asarray(1)).item() == 100


def test_branches_that_give_python_numbers(wrap: Wrap) -> None:
    run = wrap(lambda p, x: bu.cond(p, lambda v: (v, 1), lambda v: (0, v), x))
    for flag, wanted in ((True, [2.5, 1.0]), (False, [0.0, 2.5])):
        found = run(bu.asarray(flag), bu.asarray(2.5, dtype=f32))
        assert [x.item() for x in found] == wanted
        assert [x.dtype for x in found] == [f32, f32]


def test_what_python_knows_decides_at_once() -> None:
    text = str(bu.trace(lambda x: bu.cond(True, bu.exp, bu.log, x), f32[3]))
    assert "case" not in text
    text = str(bu.trace(lambda x: bu.switch(-4, [bu.exp, bu.log], x), f32[3]))
    assert "log" in text
    assert "case" not in text
    two, three = (lambda: bu.ones(2)), (lambda: bu.ones(3))
    assert bu.cond(True, two, three).shape == bu.switch(0, [two, three]).shape == (2,)
    with pytest.raises(OpTypeError, match="the result is"):
        bu.cond(bu.asarray(True), two, three)


# ---- gradients


def slope(fn: Callable[..., Any], x: np.ndarray[Any, Any], step: float = 1e-6) -> Any:
    found = np.empty_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(fn(bu.asarray(moved)).item())
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def through_scan(w: Any) -> Any:
    xs = bu.asarray(np.linspace(-1, 1, 12).reshape(4, 3))
    carry, ys = bu.scan(
        lambda c, x: (bu.tanh(c * w + x), bu.sum(c * w)), bu.zeros(3, dtype=f64), xs
    )
    return bu.sum(carry) + bu.sum(ys * ys)


def through_a_counted_loop(w: Any) -> Any:
    return bu.sum(bu.fori_loop(1, 4, lambda i, s: bu.sin(s * w) + i, w))


def through_branches(w: Any) -> Any:
    steps = [bu.exp, lambda v: v * v, lambda v: bu.sin(v) * 2]
    return bu.sum(bu.fori_loop(0, 3, lambda i, s: bu.switch(i, steps, s * w), w))


def through_cond(w: Any) -> Any:
    return bu.cond(bu.sum(w) > 0, lambda v: bu.sum(v * v), lambda v: bu.sum(v), w)


@pytest.mark.parametrize(
    "fn", [through_scan, through_a_counted_loop, through_branches, through_cond]
)
def test_gradients_are_slopes(wrap: Wrap, fn: Callable[[Any], Any]) -> None:
    w = np.array([0.3, -0.7, 1.1])
    found = wrap(bu.grad(fn))(bu.asarray(w))
    assert near(found, slope(fn, w), 1e-7)


def test_gradients_of_gradients(wrap: Wrap) -> None:
    cube = lambda x: bu.fori_loop(0, 2, lambda _, v: v * x, x)  # noqa: E731
    assert near(wrap(bu.grad(bu.grad(cube)))(bu.asarray(2.0)), 12.0)
    first = lambda w: bu.sum(bu.grad(through_scan)(w) ** 2)  # noqa: E731
    w = np.array([0.3, -0.7, 1.1])
    assert near(wrap(bu.grad(first))(bu.asarray(w)), slope(first, w), 1e-5)


def cell(params: Any, state: Any, x: Any) -> Any:
    """One step of an LSTM."""
    h, c = state
    z = bu.concat([x, h], axis=1) @ params["w"] + params["b"]
    n = h.shape[1]
    i, f, g, o = (z[:, k * n : (k + 1) * n] for k in range(4))
    c = c / (1 + bu.exp(-f)) + bu.tanh(g) / (1 + bu.exp(-i))
    return bu.tanh(c) / (1 + bu.exp(-o)), c


def test_an_lstm_through_scan_has_the_gradient_of_the_unrolled_one() -> None:
    rng = np.random.default_rng(0)
    params = {
        "w": bu.asarray(rng.standard_normal((7, 16)) * 0.4),
        "b": bu.asarray(rng.standard_normal(16) * 0.1),
    }
    xs, start = bu.asarray(rng.standard_normal((6, 5, 3))), bu.zeros((5, 4), dtype=f64)

    def rolled(params: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = cell(params, state, x)
            return state, state[0]

        (h, c), hs = bu.scan(step, (start, start), xs)
        return bu.sum(h * c) + bu.sum(hs * hs)

    def unrolled(params: Any) -> Any:
        state, total = (start, start), 0.0
        for k in range(6):
            state = cell(params, state, xs[k])
            total = total + bu.sum(state[0] * state[0])
        return bu.sum(state[0] * state[1]) + total

    found, wanted = (bu.jit(bu.value_and_grad(fn))(params) for fn in (rolled, unrolled))
    assert near(found[0], wanted[0].item(), 1e-12)
    for name, gradient in wanted[1].items():
        assert near(found[1][name], np.asarray(gradient), 1e-12)


def test_a_loop_of_unknown_length_has_no_gradient() -> None:
    def run(x: Any) -> Any:
        return bu.while_loop(lambda v: v < 100, lambda v: v * x, x)

    with pytest.raises(UnsupportedError, match="while has no derivative") as caught:
        bu.grad(run)(bu.asarray(2.0))
    assert "scan" in (caught.value.fix or "")
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_gradients_go_round_such_a_loop() -> None:
    def run(x: Any) -> Any:
        count = bu.while_loop(lambda n: n < 10, lambda n: n + 3, bu.asarray(0))
        return x * x * count

    assert bu.grad(run)(bu.asarray(2.0)).item() == 48.0


# ---- what is compiled


def test_a_loop_is_compiled_once() -> None:
    traced = []

    def body(_i: Any, x: Any) -> Any:
        traced.append(1)
        return x * 2

    run = bu.jit(lambda x: bu.fori_loop(0, 1000, body, x))
    assert run(bu.asarray(0.0)).item() == 0.0
    before = len(traced)
    run(bu.asarray(1.0))
    assert len(traced) == before


def test_rows_that_nobody_reads_are_not_made() -> None:
    """The gradient by what is scanned over, of a function that is differentiated by another."""

    def run(w: Any, xs: Any) -> Any:
        return bu.sum(bu.scan(lambda c, x: (c * w + x, None), w, xs)[0])

    graph = bu.trace(bu.grad(run), f32[3], f32[5, 3])
    back = [instr for instr in graph.instrs if instr.op.name == "scan"][-1]
    assert (5, 3) in [v.shape for v in back.results]
    smaller = eliminate_inside(graph)
    back = [instr for instr in smaller.instrs if instr.op.name == "scan"][-1]
    assert (5, 3) not in [v.shape for v in back.results]


def test_what_no_iteration_changes_is_kept_once() -> None:
    """Parameters that a carry holds: their gradient needs no copy for each row."""

    def run(w: Any, xs: Any) -> Any:
        (_, last), _ = bu.scan(lambda c, x: ((c[0], bu.tanh(c[0] * c[1] + x)), None), (w, w), xs)
        return bu.sum(last)

    graph = eliminate_inside(bu.trace(bu.grad(run), f32[3], f32[5, 3]))
    first, back = (instr for instr in graph.instrs if instr.op.name == "scan")
    assert [v.shape for v in first.results].count((5, 3)) == 1
    assert (first.attrs["consts"], first.attrs["carries"]) == (1, 1)
    w = np.array([0.3, -0.7, 1.1])
    xs = bu.asarray(np.linspace(-1, 1, 15).reshape(5, 3))
    found = bu.grad(run)(bu.asarray(w), xs)
    assert near(found, slope(lambda v: run(v, xs), w), 1e-7)
    assert len(back.results) == 2


def test_a_carry_that_stays_is_the_array_itself() -> None:
    x = bu.ones(3)
    (a, _), _ = bu.scan(lambda c, _: ((c[0], c[1] + 1), None), (x, x), None, length=2)
    assert a is x
    assert bu.while_loop(lambda s: bu.sum(s[1]) < 9, lambda s: (s[0], s[1] * 2), (x, x))[0] is x
    assert bu.scan(lambda c, _: (c, None), x, None, length=2)[0] is x


def test_branches_nested_beyond_the_stack_are_refused() -> None:
    def nested(levels: int) -> Any:
        if not levels:
            return lambda x: x + 1
        inner = nested(levels - 1)
        return lambda x: bu.cond(bu.sum(x) > levels, inner, lambda y: y * 2, x)

    assert bu.jit(nested(10))(bu.ones(2)).tolist() == [2.0, 2.0]
    for levels in (120, 400):
        with pytest.raises(UnsupportedError, match="too many levels deep"):
            bu.jit(nested(levels))(bu.ones(2))
    assert bu.jit(nested(3))(bu.ones(2)).tolist() == [2.0, 2.0]


def test_a_function_that_calls_itself_without_end_is_at_fault_itself() -> None:
    def endless(x: bu.Array) -> bu.Array:
        return endless(x + 1)

    with pytest.raises(RecursionError):
        bu.jit(endless)(bu.ones(2))
