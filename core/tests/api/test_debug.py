"""`bringup.debug.print`: every line, in order, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

show = bu.debug.print
Lines = Callable[[], list[str]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    return lambda: capsys.readouterr().out.splitlines()


def at(x: Any) -> bu.Array:
    return bu.asarray(x, dtype=bu.float64)


def test_at_once_where_nothing_is_traced(lines: Lines) -> None:
    show("{} {n:.2f} {{}} {}", at([1.0, 2.0]), 5, n=at(1.5))
    assert lines() == ["[1. 2.] 1.50 {} 5"]
    show("nothing")
    assert lines() == ["nothing"]


def test_compiled_functions_print_at_every_call(lines: Lines) -> None:
    def f(x: bu.Array) -> bu.Array:
        show("first {}", x)
        show("same {}", x * 2)
        show("same {}", x * 2)
        show("no value")
        return bu.sum(x) + 1

    silent = bu.jit(lambda x: bu.sum(x) + 1)
    run = bu.jit(f)
    for _ in range(4):
        assert run(at([1.0, 2.0])).item() == silent(at([1.0, 2.0])).item()
        wanted = ["first [1. 2.]", "same [2. 4.]", "same [2. 4.]", "no value"]
        assert lines() == wanted
    assert bu.jit(lambda x: show("only {}", x))(at(1.0)) is None
    assert lines() == ["only 1.0"]
    lowered = run.lower(at([1.0, 2.0]))
    assert lowered.cost().kernels >= 1
    assert sum("print" in str(row) for row in lowered.placement()) == 4
    assert lines() == []


def told(x: bu.Array) -> bu.Array:
    y = bu.sin(x)
    show("y {y:.3f}", y=y)
    return y * x


MODES: dict[str, tuple[Callable[..., Any], float]] = {
    "grad": (bu.grad(told), np.sin(3.0) + 3 * np.cos(3.0)),
    "twice": (bu.grad(bu.grad(told)), 2 * np.cos(3.0) - 3 * np.sin(3.0)),
    "hessian": (bu.hessian(told), 2 * np.cos(3.0) - 3 * np.sin(3.0)),
    "jvp": (lambda x: bu.jvp(told, (x,), (x,))[1], 3 * np.sin(3.0) + 9 * np.cos(3.0)),
    "checkpoint": (bu.grad(bu.checkpoint(told)), np.sin(3.0) + 3 * np.cos(3.0)),
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("maybe", [lambda f: f, bu.jit], ids=["recorded", "compiled"])
def test_derivatives_print_once(name: str, maybe: Callable[..., Any], lines: Lines) -> None:
    fn, wanted = MODES[name]
    np.testing.assert_allclose(maybe(fn)(at(3.0)).item(), wanted, rtol=1e-12)
    assert lines() == ["y 0.141"]


@pytest.mark.parametrize("maybe", [lambda f: f, bu.jit], ids=["recorded", "compiled"])
def test_maps_loops_and_branches(maybe: Callable[..., Any], lines: Lines) -> None:
    maybe(bu.vmap(told))(at([1.0, 2.0]))
    assert lines() == ["y 0.841", "y 0.909"]
    maybe(bu.vmap(bu.grad(told)))(at([1.0, 2.0]))
    assert lines() == ["y 0.841", "y 0.909"]

    def scanned(x: bu.Array) -> bu.Array:
        def step(c: bu.Array, r: bu.Array) -> tuple[bu.Array, bu.Array]:
            show("c {} r {}", c, r)
            return c * r, c

        return bu.scan(step, x, at([2.0, 3.0]))[0]

    assert maybe(scanned)(at(1.0)).item() == 6.0
    assert lines() == ["c 1.0 r 2.0", "c 2.0 r 3.0"]
    assert maybe(bu.grad(scanned))(at(1.0)).item() == 6.0
    assert lines() == ["c 1.0 r 2.0", "c 2.0 r 3.0"]

    def doubled(c: bu.Array) -> bu.Array:
        show("w {}", c)
        return c * 2

    assert maybe(lambda x: bu.while_loop(lambda c: c < 8, doubled, x))(at(3.0)).item() == 12.0
    assert lines() == ["w 3.0", "w 6.0"]

    def negative(x: bu.Array) -> bu.Array:
        show("neg {}", x)
        return -x

    branch = maybe(lambda x: bu.cond(x > 0, lambda: x, lambda: negative(x)))
    assert [branch(at(v)).item() for v in (2.0, -2.0)] == [2.0, 2.0]
    assert lines() == ["neg -2.0"]


def test_loops_whose_results_nobody_reads_print(lines: Lines) -> None:
    def f(x: bu.Array) -> bu.Array:
        bu.fori_loop(0, 3, lambda i, c: (show("i {}", i), c + 1)[1], x)
        return x * 2

    assert bu.jit(f)(at(1.0)).item() == 2.0
    assert lines() == ["i 0", "i 1", "i 2"]
    f(at(1.0))
    assert lines() == ["i 0", "i 1", "i 2"]


def test_texts_that_do_not_fit_the_values() -> None:
    x = at(1.0)
    for text, args in (("{} {}", (x,)), ("no place", (x,)), ("{a}", (x,)), ("{", ())):
        with pytest.raises(OpTypeError, match="print: "):
            show(text, *args)
    with pytest.raises(OpTypeError, match="object is no array"):
        show("{}", object())
