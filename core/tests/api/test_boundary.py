"""Tracebacks show the frames of the user's code, and those of ours where they are asked for."""

from __future__ import annotations

import gc
import logging
import pickle
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.boundary import guarded
from bringup.errors import BringupError

OURS = str(Path(bu.__file__).parent)
X = np.ones((2, 3), np.float32)


def wrong(x: Any) -> Any:
    """Wrong on the line below, inside a function of ours."""
    return bu.sum(x @ x)


def raising(x: Any) -> Any:
    raise LookupError("the user's own")


def stepping(carry: Any, x: Any) -> tuple[Any, Any]:
    return wrong(carry), x


class Model:
    def call(self, x: Any) -> Any:
        return wrong(x)

    compiled = bu.jit(call, static_argnums=0)


@bu.jit
def taking_two(x: Any, y: Any) -> Any:
    return x + y


#: What to call, and the functions of this file that are on the way.
CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "function": (lambda: bu.reshape(X, (5,)), ["<lambda>"]),
    "nested namespace": (lambda: bu.nn.softmax(X, axis=4), ["<lambda>"]),
    "late namespace": (lambda: bu.linalg.cholesky(X), ["<lambda>"]),
    "late name": (lambda: bu.sort(X, axis=3), ["<lambda>"]),
    "operator": (lambda: bu.asarray(X) + bu.ones(4), ["<lambda>"]),
    "reflected operator": (lambda: np.ones(4, np.float32) - bu.asarray(X), ["<lambda>"]),
    "product": (lambda: wrong(bu.asarray(X)), ["<lambda>", "wrong"]),
    "method": (lambda: bu.asarray(X).item(), ["<lambda>"]),
    "property": (lambda: bu.ones(3).mT, ["<lambda>"]),
    "function as a method": (lambda: bu.ones(3).sum(1), ["<lambda>"]),
    "arguments of a method": (lambda: bu.ones(3).sum(axs=0), ["<lambda>"]),
    "index": (lambda: bu.ones(3)[7], ["<lambda>"]),
    "assignment": (lambda: bu.ones(3).__setitem__(0, 1), ["<lambda>"]),  # type: ignore[attr-defined]
    "update": (lambda: bu.ones(3).at[7].set(1.0), ["<lambda>"]),
    "attribute": (lambda: bu.ones(3).nosuch, ["<lambda>"]),  # type: ignore[attr-defined]
    "name": (lambda: bu.nosuch, ["<lambda>"]),  # type: ignore[attr-defined]
    "truth": (lambda: bool(bu.ones(3)), ["<lambda>"]),
    "jit": (lambda: bu.jit(wrong)(X), ["<lambda>", "wrong"]),
    "jit in jit": (lambda: bu.jit(bu.jit(wrong))(X), ["<lambda>", "wrong"]),
    "jit of a method": (lambda: Model().compiled(X), ["<lambda>", "call", "wrong"]),
    "lower": (lambda: bu.jit(wrong).lower(X), ["<lambda>", "wrong"]),
    "grad": (lambda: bu.grad(wrong)(X), ["<lambda>", "wrong"]),
    "value_and_grad": (lambda: bu.value_and_grad(wrong)(X), ["<lambda>", "wrong"]),
    "grad of vmap": (lambda: bu.grad(bu.vmap(wrong))(X[None]), ["<lambda>", "wrong"]),
    "vmap": (lambda: bu.vmap(wrong)(X[None]), ["<lambda>", "wrong"]),
    "jvp": (lambda: bu.jvp(wrong, (X,), (X,)), ["<lambda>", "wrong"]),
    "vjp": (lambda: bu.vjp(bu.sum, X)[1](X), ["<lambda>"]),
    "scan": (lambda: bu.scan(stepping, X, X), ["<lambda>", "stepping", "wrong"]),
    "tree_map": (lambda: bu.tree.tree_map(wrong, [bu.asarray(X)]), ["<lambda>", "wrong"]),
    "an error of the user": (lambda: bu.jit(raising)(X), ["<lambda>", "raising"]),
    "too few arguments": (lambda: taking_two(X), ["<lambda>"]),  # type: ignore[call-arg]
    "too many arguments": (lambda: bu.scan(raising, X, X), ["<lambda>"]),
    "arguments of ours": (lambda: bu.mean(X, 0, True), ["<lambda>"]),  # type: ignore[misc]
}


def frames(call: Callable[[], Any]) -> list[traceback.FrameSummary]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return list(traceback.extract_tb(caught.value.__traceback__))[1:]


@pytest.mark.parametrize("name", CALLS)
def test_only_the_users_frames_are_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_TRACEBACK", raising=False)
    call, functions = CALLS[name]
    shown = frames(call)
    assert [f.name for f in shown] == functions
    assert {f.filename for f in shown} == {__file__}


@pytest.mark.parametrize("name", ["function", "operator", "jit", "grad", "index"])
def test_a_variable_shows_all_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_TRACEBACK", "full")
    call, functions = CALLS[name]
    shown = frames(call)
    assert [f.name for f in shown if f.filename == __file__] == functions
    assert sum(f.filename.startswith(OURS) for f in shown) >= 2
    places = [(f.filename, f.lineno, f.name) for f in shown if f.name != "boundary"]
    assert len(set(places)) == len(places), "a frame is shown twice"


@pytest.mark.parametrize(
    "fails",
    [
        lambda x: bu.sum(x, axis=7),
        lambda x: bu.sum(x, 0, 1, 2),
        lambda x: x + "text",
        lambda x: bu.jit(lambda y: bu.sum(y, axis=7))(x),
        lambda x: bu.grad(lambda y: y)(x),
    ],
)
def test_an_error_that_was_caught_holds_nothing(fails: Callable[[Any], Any]) -> None:
    """Nothing waits for a search for cycles, least of all the memory of arguments."""
    gc.collect()
    gc.disable()
    try:
        x = bu.ones(10) * 2
        alive = weakref.ref(x)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            fails(x)
        del caught, x
        assert alive() is None
    finally:
        gc.enable()


def test_causes_may_form_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_TRACEBACK", raising=False)
    errors = [ValueError("first"), ValueError("second")]

    def fails(x: Any) -> Any:
        for error in errors:
            try:
                raise error
            except ValueError:
                pass
        errors[0].__cause__, errors[1].__cause__ = errors[1], errors[0]
        raise errors[0]

    with pytest.raises(ValueError, match="first"):
        bu.jit(fails)(X)


def test_a_defect_of_ours_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_TRACEBACK", raising=False)
    monkeypatch.setattr("bringup.api.boundary.NOT_USERS", (OURS, __file__))
    monkeypatch.setattr("bringup.api.reductions._fold", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError) as caught:
        bu.sum(X)
    assert any(f.name == "sum" for f in traceback.extract_tb(caught.value.__traceback__))


def test_logs_show_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("BRINGUP_TRACEBACK", raising=False)
    try:
        bu.jit(wrong)(X)
    except BringupError:
        logging.getLogger("user").exception("failed")
    assert OURS not in caplog.text
    assert "in wrong" in caplog.text
    assert "fix: make the contracted dimensions equal" in caplog.text


def test_a_script_ends_with_the_users_lines(python: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = (
        "import bringup as bu",
        "@bu.jit",
        "def f(x):",
        "    return x @ x",
        "f(bu.ones((2, 3)))",
    )
    script.write_text("\n".join(lines))
    code = (
        "import runpy, traceback\n"
        f"try: runpy.run_path({str(script)!r})\n"
        "except Exception: traceback.print_exc()"
    )
    shown = python(code).stderr
    assert OURS not in shown
    assert "line 5, in <module>" in shown
    assert "line 4, in f" in shown
    assert OURS in python(code, BRINGUP_TRACEBACK="full").stderr


def test_guarded_functions_are_the_functions() -> None:
    assert bu.nn.sigmoid is bu.nn.logistic
    assert guarded(bu.sum) is bu.sum
    for function in (bu.sum, bu.nn.softmax, bu.linalg.inv, bu.sort):
        assert pickle.loads(pickle.dumps(function)) is function
    assert bu.sum.__name__ == "sum"
    assert (bu.sum.__doc__ or "").startswith("The sum")
