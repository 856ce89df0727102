"""The pause of Python's search for garbage during compilation."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import bringup as bu
from bringup.passes.base import Pass
from bringup.passes.run import PassContext
from bringup.runtime import compiler
from bringup.runtime.collection import PAUSED


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    assert PAUSED.inside == 0


def test_nothing_is_searched_while_a_program_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def looking(_self: object, _name: str) -> None:
        seen.append(gc.isenabled())

    context = PassContext(record=lambda name, _seconds: looking(None, name))
    monkeypatch.setattr(PassContext, "from_environment", lambda _record=None: context)
    bu.jit(lambda x: x * 3 + 1)(np.ones(7, "f4"))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_an_error_turns_it_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_options: object) -> list[Pass]:
        raise KeyError("lost")

    monkeypatch.setattr(compiler, "passes_for", fails)
    with pytest.raises(KeyError):
        bu.jit(lambda x: x * 5 + 1)(np.ones(7, "f4"))
    assert gc.isenabled()


def test_who_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    with PAUSED:
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_last_of_several_threads_turns_it_on() -> None:
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with PAUSED:
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with PAUSED, PAUSED:
        pass
    assert not gc.isenabled()
    go.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_fork_searches_again() -> None:
    with PAUSED:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() and PAUSED.inside == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
