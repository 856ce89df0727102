from __future__ import annotations

import threading

import pytest

from bringup.dtypes import f32
from bringup.errors import TraceError
from bringup.ops import lookup
from bringup.tracing.context import Trace, Traced, current


def test_traces_nest() -> None:
    assert current() is None
    with Trace("outer") as outer:
        with Trace("inner") as inner:
            assert current() is inner
            assert outer.is_open
        assert current() is outer
        assert not inner.is_open
    assert current() is None


def test_another_thread_has_traces_of_its_own() -> None:
    seen: list[object] = []
    with Trace():
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_outer_objects_become_inputs_once() -> None:
    trace, outer = Trace(), object()
    x = trace.argument(f32[2])
    value = trace.capture(outer, f32[3])
    assert trace.capture(outer, f32[3]) is value
    assert trace.captured == [outer]
    graph = trace.graph([x, value])
    assert [v.type for v in graph.inputs] == [f32[2], f32[3]]


def test_a_prefix_holds_what_one_value_needs() -> None:
    trace, known, outer = Trace(), object(), object()
    x = trace.argument(f32[2], known=known)
    unknown = trace.argument(f32[2])
    y = trace.capture(outer, f32[2])
    emit = trace.builder.emit
    (a,) = emit(lookup("exp"), (x,), {})
    (b,) = emit(lookup("add"), (a, unknown), {})
    (c,) = emit(lookup("mul"), (a, y), {})
    found = trace.prefix(c)
    assert found is not None
    graph, inputs = found
    assert inputs == [known, outer]
    assert [i.op.name for i in graph.instrs] == ["exp", "mul"]
    assert trace.prefix(b) is None


def test_a_leaked_value_is_told_where_it_was_made() -> None:
    with Trace("f") as trace:
        x = trace.argument(f32[2])
        (a,) = trace.builder.emit(lookup("exp"), (x,), {})
        leaked = Traced(trace, a)
        leaked.check_open()
    with pytest.raises(TraceError) as caught:
        leaked.check_open()
    text = str(caught.value)
    assert "an array of type f32[2] was used outside the traced function" in text
    assert "test_context.py" in text
    assert " while 'f' was traced" in text
