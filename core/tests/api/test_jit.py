from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.jit import layout
from bringup.backend.dispatch import ArrayLayout, FastEntry
from bringup.errors import (
    ConversionError,
    DeletedBufferError,
    DeviceError,
    OpTypeError,
    TraceError,
    UnsupportedError,
)
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """The function, and a list that grows whenever Python runs it."""
    runs: list[int] = []

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return fn(*args, **kwargs)

    return wrapper, runs


def test_it_traces_once_per_signature() -> None:
    fn, runs = counted(lambda x, y: x * y + 1)
    f = bu.jit(fn)
    x = bu.asarray([1.0, 2.0])
    for _ in range(3):
        assert f(x, x).tolist() == [2.0, 5.0]
    assert len(runs) == 1
    f(x, bu.asarray(3.0))
    f(bu.asarray([1, 2]), x)
    assert len(runs) == 3
    assert f(np.array([1.0, 2.0]), x).tolist() == [2.0, 5.0]
    assert len(runs) == 3
    assert repr(f) == "<jit wrapper: 3 signatures>"


def test_containers_go_in_and_come_out() -> None:
    @dataclass
    class State:
        weight: Any
        steps: Any

    @bu.jit
    def step(state: State, batch: dict[str, Any]) -> tuple[State, None, list[Any]]:
        return State(state.weight + batch["x"], state.steps + 1), None, [batch["x"]]

    state, nothing, (x,) = step(State(bu.zeros(2), 0), {"x": bu.ones(2)})
    assert isinstance(state, State)
    assert state.weight.tolist() == [1, 1]
    assert state.steps.item() == 1
    assert nothing is None
    assert x.tolist() == [1, 1]
    assert step(state, {"x": bu.ones(2)})[0].steps.item() == 2


def test_keywords_are_arguments() -> None:
    f = bu.jit(lambda x, *, scale, shift=0.0: x * scale + shift)
    x = bu.asarray([1.0])
    assert f(x, scale=2.0).tolist() == [2.0]
    assert f(x, shift=1.0, scale=2.0).tolist() == [3.0]


def test_python_scalars_are_not_baked() -> None:
    fn, runs = counted(lambda x, s: x * s)
    f = bu.jit(fn)
    x = bu.asarray([1.0, 2.0], dtype=bu.float32)
    for s in (2.0, 3.0, -0.0, float("nan")):
        np.testing.assert_array_equal(np.asarray(f(x, s)), np.float32([1, 2]) * np.float32(s))
    assert len(runs) == 1
    assert f(x, 2).dtype is bu.float32
    assert f(x, True).tolist() == [1.0, 2.0]
    assert len(runs) == 3


def test_python_scalars_yield_inside_as_outside() -> None:
    for x in (bu.asarray([1, 2], dtype=bu.int8), bu.asarray([1.0], dtype=bu.float16)):
        for s in (2, 0.5, True):
            plain = x * (s * 2) + s
            compiled = bu.jit(lambda x, s: x * (s * 2) + s)(x, s)
            assert compiled.dtype is plain.dtype
            assert compiled.tolist() == plain.tolist()
    assert bu.jit(lambda s: bu.exp(s))(1.0).dtype is bu.float64
    assert bu.jit(lambda s: s)(3).dtype is bu.int64


def test_a_python_scalar_is_converted_on_the_host_where_one_dtype_reads_it() -> None:
    f = bu.jit(lambda x, s: x * s + s)
    assert f.lower(bu.float32[3], 2.0).graph.inputs[1].type is bu.float32[()]
    assert f.lower(bu.int8[3], 2).graph.inputs[1].type is bu.int8[()]
    assert bu.jit(lambda s: s * 2).lower(1.0).graph.inputs[0].type is bu.float64[()]
    two = bu.jit(lambda x, y, s: (x * s, y * s))
    assert two.lower(bu.float32[3], bu.float16[3], 2.0).graph.inputs[2].type is bu.float64[()]
    with pytest.raises(ConversionError, match="300 is out of range for i8"):
        f(bu.asarray([1], dtype=bu.int8), 300)


def test_static_arguments_are_told_apart_by_type_and_bits() -> None:
    fn, runs = counted(lambda x, s: x + s)
    f = bu.jit(fn, static_argnums=1)
    x = bu.asarray([-0.0])
    for s in (0, False, 0.0, -0.0, float("nan"), float("nan")):
        f(x, s)
    assert len(runs) == 5
    assert np.signbit(np.asarray(f(x, -0.0)))
    assert not np.signbit(np.asarray(f(x, 0.0)))


def test_static_arguments_go_by_name_too() -> None:
    def power(x: bu.Array, n: int, flip: bool = False) -> bu.Array:
        for _ in range(n):
            x = x * 2
        return bu.flip(x) if flip else x

    for f in (
        bu.jit(power, static_argnames=("n", "flip")),
        bu.jit(power, static_argnums=(1, 2)),
        bu.jit(power, static_argnums=(-2, -1)),
        bu.jit(static_argnames=("n", "flip"))(power),
    ):
        x = bu.asarray([1.0, 2.0])
        assert f(x, 2).tolist() == [4, 8]
        assert f(x, n=2, flip=True).tolist() == [8, 4]
        assert f(x, 2, True).tolist() == [8, 4]
    with pytest.raises(ConversionError, match="must be hashable, and list is not"):
        bu.jit(power, static_argnums=1)(x, [2])
    with pytest.raises(OpTypeError, match="both static and donated"):
        bu.jit(power, static_argnums=0, donate_argnums=0)
    for wrong in ({"static_argnums": [[1]]}, {"static_argnums": "1"}, {"static_argnames": 1}):
        with pytest.raises(OpTypeError, match="names no parameters"):
            bu.jit(power, **wrong)
    with pytest.raises(OpTypeError, match="static_argnums=-4: power has 3 parameters"):
        bu.jit(power, static_argnums=-4)


def test_arguments_that_are_no_arrays_are_named() -> None:
    def f(x: Any, options: Any) -> Any:
        return x

    with pytest.raises(ConversionError) as caught:
        bu.jit(f)(bu.zeros(1), {"mode": "fast"})
    assert caught.value.what == "argument options['mode'] of f is a str, which is no array"
    with pytest.raises(ConversionError, match=r"argument options of f is a str"):
        bu.jit(f)(bu.zeros(1), options="fast")
    with pytest.raises(ConversionError, match=r"argument x of f"):
        bu.jit(f)(np.array(["a"]), 1)


def test_results_that_are_no_arrays_are_named() -> None:
    with pytest.raises(TraceError, match=r"the result\['a'\]\[1\] of 'lambda' is a str"):
        bu.jit(lambda x: {"a": (x, "text")})(bu.zeros(1))
    out = bu.jit(lambda x: (1, 2.5, np.arange(2), x))(bu.zeros(1))
    assert [v.tolist() for v in out] == [1, 2.5, [0, 1], [0]]


def test_python_cannot_branch_on_what_is_not_known() -> None:
    def f(x: bu.Array) -> Any:
        y = bu.sum(x) > 0
        if y:  # branch
            return x
        return -x

    with pytest.raises(TraceError) as caught:
        bu.jit(f)(bu.zeros(2))
    text = str(caught.value)
    assert "the truth of a bool[] value is needed while 'f' is traced" in text
    assert "the value was made at" in text
    assert "compare" not in text
    assert "fix: use where, cond or while_loop, or make the argument static" in text
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert caught.value.location.function == "f"


@pytest.mark.parametrize(
    "look", [float, int, bool, np.asarray, lambda x: x.tolist(), lambda x: [1][x.nosuch]]
)
def test_other_looks_are_refused_as_well(look: Any) -> None:
    with pytest.raises((TraceError, AttributeError)):
        bu.jit(lambda x: look(x))(bu.asarray(1))


def test_values_that_depend_on_outer_arrays_alone_are_known() -> None:
    w = bu.asarray([1.0, -2.0])

    @bu.jit
    def f(x: bu.Array) -> bu.Array:
        return x + 1 if bu.sum(w) < 0 else x - 1

    assert f(bu.zeros(1)).tolist() == [1]


def test_arrays_of_outer_scopes_are_captured(reference: Any) -> None:
    w = bu.asarray([1.0, 2.0])
    deferred = w * 10
    f = bu.jit(lambda x: x * w + w + deferred + np.arange(2.0) + np.arange(40.0)[5])
    assert f(w).tolist() == [17.0, 32.0]
    graph = f.lower(w).graph
    assert [v.type for v in graph.inputs] == [bu.float64[2]] * 3
    large = bu.jit(lambda x: x + np.arange(40.0))
    assert large(bu.asarray(1.0)).tolist() == list(range(1, 41))
    assert len(large.lower(bu.float64[()]).graph.inputs) == 2


def test_types_and_text_inside() -> None:
    seen: list[Any] = []

    def f(x: bu.Array) -> bu.Array:
        seen.append((x.is_traced, x.shape, repr(x), str(x * 2)))
        rows = list(x)
        return rows[0] + rows[1]

    assert bu.jit(f)(bu.asarray([[1.0], [2.0]])).tolist() == [3.0]
    text = "Array<f64[2,1], traced in 'f'>"
    assert seen == [(True, (2, 1), text, text)]


def test_a_leaked_array_is_refused() -> None:
    kept: list[bu.Array] = []
    bu.jit(lambda x: kept.append(x * 2) or x)(bu.zeros(2))
    for use in (lambda: kept[0] + 1, kept[0].tolist, lambda: np.asarray(kept[0])):
        with pytest.raises(TraceError, match="was used outside the traced function"):
            use()
    with pytest.raises(TraceError, match="was used outside the traced function"):
        bu.jit(lambda x: x + kept[0])(bu.zeros(2))


def test_inner_functions_are_inlined() -> None:
    inner = bu.jit(lambda x, s: {"a": x * s})
    outer = bu.jit(lambda x, s: inner(x, s)["a"] + inner(x, 2.0)["a"])
    x = bu.asarray([1.0, 2.0], dtype=bu.float32)
    assert outer(x, 3.0).tolist() == [5.0, 10.0]
    assert [v.type for v in outer.lower(x, 3.0).graph.inputs] == [bu.float32[2], bu.float32[()]]
    scale = bu.asarray(5.0)
    closing = bu.jit(lambda y: bu.jit(lambda x: x * y + scale)(y))
    assert closing(bu.asarray(2.0)).item() == 9.0
    assert closing(bu.asarray(3.0)).item() == 14.0


def test_an_inner_function_that_captures_a_traced_array_is_not_kept() -> None:
    shared: dict[str, Any] = {}
    inner = bu.jit(lambda x: x + shared["y"])

    def outer(x: bu.Array, y: bu.Array) -> bu.Array:
        shared["y"] = y
        return inner(x)

    for _ in range(2):
        f = bu.jit(lambda x, y: outer(x, y))
        assert f(bu.asarray(1.0), bu.asarray(2.0)).item() == 3.0


def test_methods() -> None:
    class Scale:
        def __init__(self) -> None:
            self.factor = bu.asarray(3.0)

        @bu.jit
        def unusable(self, x: bu.Array) -> bu.Array:
            return x

    with pytest.raises(ConversionError, match="argument self of unusable is a Scale"):
        Scale().unusable(bu.zeros(1))

    @dataclass
    class Layer:
        factor: Any

        @bu.jit
        def __call__(self, x: bu.Array) -> bu.Array:
            return x * self.factor

    assert Layer(bu.asarray(3.0))(bu.ones(2)).tolist() == [3, 3]


def test_names_and_docs_are_the_functions() -> None:
    @bu.jit
    def double(x: bu.Array) -> bu.Array:
        """Twice as much."""
        return x * 2

    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."
    assert double.__wrapped__(bu.asarray(1)).item() == 2


# ---- devices


def test_it_runs_where_its_arguments_are(second: OpenDevice) -> None:
    f = bu.jit(lambda x: x + 1)
    x = bu.zeros(1, device=second)
    assert f(x).device is second
    assert f(bu.zeros(1)).device is not second
    assert f(np.zeros(1)).device is devices.get()
    with bu.device(second):
        assert f(np.zeros(1)).device is second
    assert bu.jit(lambda x: x, device=second)(np.zeros(1)).device is second
    with pytest.raises(OpTypeError, match="an argument is on reference, not on reference:2"):
        bu.jit(lambda x: x, device=second)(bu.zeros(1))
    with pytest.raises(OpTypeError, match="an argument is on reference:2, not on reference"):
        bu.jit(lambda x, y: x)(bu.zeros(1), x)


def test_a_traced_function_has_one_device(second: OpenDevice) -> None:
    w = bu.zeros(1, device=second)
    with pytest.raises(OpTypeError, match="different devices"):
        bu.jit(lambda x: x + w)(bu.zeros(1))
    with pytest.raises(TraceError, match="cannot make an array on reference:2"):
        bu.jit(lambda x: x + bu.zeros(1, device=second))(bu.zeros(1))
    with pytest.raises(TraceError, match="cannot move to reference:2"):
        bu.jit(lambda x: x.to(second))(bu.zeros(1))
    inner = bu.jit(lambda x: x, device=second)
    with pytest.raises(TraceError, match="is compiled for"):
        bu.jit(lambda x: inner(x))(bu.zeros(1))


# ---- donation


def test_donated_arrays_are_deleted(reference: Any) -> None:
    f = bu.jit(lambda x, y: (x + y, y), donate_argnums=0)
    x, y = bu.asarray([1.0, 2.0]), bu.asarray([3.0, 4.0])
    assert f(x, y)[0].tolist() == [4.0, 6.0]
    assert x.is_deleted
    assert not y.is_deleted
    assert repr(x) == "Array<f64[2], deleted: it was donated>"
    for use in (lambda: x + 1, x.tolist, lambda: f(y, x), lambda: bu.jit(lambda: x + 1)()):
        with pytest.raises(DeletedBufferError, match=r"f64\[2\] was donated"):
            use()
    assert y.tolist() == [3.0, 4.0]


def test_containers_are_donated_whole() -> None:
    f = bu.jit(lambda n, p: {k: v * n for k, v in p.items()}, donate_argnums=1)
    p = {"a": bu.ones(2), "b": bu.ones(3)}
    q = f(2.0, p)
    assert all(v.is_deleted for v in p.values())
    assert q["b"].tolist() == [2, 2, 2]
    assert f(2.0, {"a": np.ones(2), "b": q["b"]})["b"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("device", ["reference", "shared"])
def test_what_still_reads_a_donated_array_reads_its_old_value(
    device: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(device)
    f = bu.jit(lambda x: x * 0 - 1, donate_argnums=0)
    x = bu.asarray([1.0, 2.0])
    pending = x * 10
    host = np.asarray(x)
    f(x).tolist()
    assert x.is_deleted
    assert pending.tolist() == [10.0, 20.0]
    assert host.tolist() == [1.0, 2.0]
    y = bu.asarray([1.0]) + 1
    late = y + 1
    y.tolist()
    f(y).tolist()
    assert late.tolist() == [3.0]


def test_an_array_donated_and_passed_twice_is_copied() -> None:
    f = bu.jit(lambda x, y: x + y, donate_argnums=0)
    x = bu.asarray([1.0])
    assert f(x, x).tolist() == [2.0]
    assert x.is_deleted


def test_a_wrong_call_does_not_cost_the_donated_argument() -> None:
    f = bu.jit(lambda x, y: x + y, donate_argnums=0)
    x, y = bu.asarray([1.0]), bu.asarray([1.0])
    bu.jit(lambda y: y, donate_argnums=0)(y)
    with pytest.raises(DeletedBufferError):
        f(x, y)
    assert not x.is_deleted


# ---- seeing inside


def test_lower_shows_every_level() -> None:
    f = bu.jit(lambda p: bu.sum(p["x"] * 2))
    lowered = f.lower({"x": bu.float32[8]})
    assert [i.op.name for i in lowered.graph.instrs] == ["constant", "mul", "reduce"]
    assert lowered.program.inputs == (bu.float32[8],)
    assert lowered.cost().flops >= 8
    assert lowered.kernels == ()
    with pytest.raises(UnsupportedError, match="does not lower"):
        _ = lowered.source


def test_trace_takes_types_arrays_and_scalars() -> None:
    graph = bu.trace(lambda x, y, s: x @ y + s, bu.float32[2, 3], np.ones(3, np.float32), 1.0)
    assert [v.type for v in graph.inputs] == [bu.float32[2, 3], bu.float32[3], bu.float64[()]]
    assert bu.trace(lambda x: x, bu.int8).outputs[0].type is bu.int8[()]
    w = bu.asarray([1.0])
    assert len(bu.trace(lambda: w * 2).inputs) == 1
    assert graph.instrs[0].location is not None
    assert graph.instrs[0].location.file == __file__


def test_errors_while_running_pass_through(reference: Any) -> None:
    f = bu.jit(bu.exp)
    reference.fail_on = "exp"
    with pytest.raises(DeviceError, match="exp failed on demand"):
        f(bu.zeros(2))


# ---- the native way


class Table:
    """A dispatcher in Python: what a device does natively, spelled out."""

    def __init__(self, where: ArrayLayout, slow: Callable[..., Any]) -> None:
        self.entries: list[FastEntry] = []
        self.hits = 0
        self.where = where
        self.slow = slow
        table = self

        def call(*args: Any, **kwargs: Any) -> Any:
            found = None if kwargs else table.find(args)
            return table.slow(*args, **kwargs) if found is None else table.run(found, args)

        # Like a builtin, it does not bind to the object it is called on.
        self.call = staticmethod(call)

    def find(self, args: Sequence[Any]) -> FastEntry | None:
        return next((e for e in self.entries if self.matches(e, args)), None)

    def matches(self, entry: FastEntry, args: Sequence[Any]) -> bool:
        if len(args) != len(entry.args):
            return False
        if all(a.kind == "host" for a in entry.args) and entry.epoch != self.where.epoch.value:
            return False
        return all(
            type(x) is self.where.array_class
            and x._type is a.type
            and x._device is entry.device
            and x._buffer is not None
            if a.kind == "array"
            else type(x) is np.ndarray and bu.trace(lambda v: v, x).inputs[0].type is a.type
            for a, x in zip(entry.args, args, strict=True)
        )

    def run(self, entry: FastEntry, args: Sequence[Any]) -> Any:
        self.hits += 1
        device: Any = entry.device
        handles: dict[int, Any] = {i: array._buffer for i, array in entry.bound}
        for a, x in zip(entry.args, args, strict=True):
            handles[a.input] = x._buffer if a.kind == "array" else self.upload(device, x)
        made = entry.executable([handles[i] for i in sorted(handles)])
        results = []
        for type_, handle in zip(entry.outputs, made, strict=True):
            result = object.__new__(self.where.array_class)
            result._type, result._device, result._buffer, result._node = type_, device, handle, None
            results.append(result)
        return tuple(results) if entry.tuple_out else results[0]

    def upload(self, device: OpenDevice, x: Any) -> Any:
        handle = device.device.alloc(x.nbytes)
        device.device.upload(handle, memoryview(x.tobytes()))
        return handle

    def add(self, entry: FastEntry) -> bool:
        self.entries.append(entry)
        return True

    def clear(self) -> None:
        self.entries.clear()


@pytest.fixture
def tables(shared: Any) -> list[Table]:
    """The dispatchers the default device has made."""
    made: list[Table] = []

    def dispatcher(where: ArrayLayout, slow: Callable[..., Any]) -> Table:
        made.append(Table(where, slow))
        return made[-1]

    shared.dispatcher = dispatcher
    return made


def test_arrays_lie_as_the_layout_says() -> None:
    where = layout()
    assert where is not None
    x = bu.asarray([1.0])
    for offset, value in (
        (where.type_slot, x._type),
        (where.device_slot, x._device),
        (where.buffer_slot, x._buffer),
    ):
        assert ctypes.c_void_p.from_address(id(x) + offset).value == id(value)
    assert [value for _, value in where.defaults] == [None]
    assert where.epoch is devices.epoch


def test_calls_go_to_the_device_once_repeated(tables: list[Table]) -> None:
    fn, runs = counted(lambda x, y: x * y)
    f = bu.jit(fn)
    x = bu.asarray([1.0, 2.0])
    for _ in range(4):
        assert f(x, x).tolist() == [1.0, 4.0]
    assert [t.hits for t in tables] == [2]
    assert type(f).__call__ is tables[0].call.__func__
    assert f(x * 1, x).tolist() == [1.0, 4.0]
    assert tables[0].hits == 2
    assert f(f(x, x), x).tolist() == [1.0, 8.0]
    assert f(y=x, x=x).tolist() == [1.0, 4.0]
    assert len(runs) == 2


def test_results_of_several_arrays_and_captured_ones(tables: list[Table]) -> None:
    w = bu.asarray([10.0])
    f = bu.jit(lambda x: (x + w, x * w))
    for _ in range(4):
        a, b = f(bu.asarray([2.0]))
        assert (a.item(), b.item()) == (12.0, 20.0)
    assert tables[0].hits == 2


@pytest.mark.parametrize(
    ("fn", "args", "options"),
    [
        (lambda p: p["x"], lambda: ({"x": bu.zeros(2)},), {}),
        (lambda x: [x, x], lambda: (bu.zeros(2),), {}),
        (lambda x, s: x * s, lambda: (bu.zeros(2), 2.0), {}),
        (lambda x, n: x * n, lambda: (bu.zeros(2), 2), {"static_argnums": 1}),
        (lambda x: x + 1, lambda: (bu.zeros(2) * 1,), {"donate_argnums": 0}),
    ],
)
def test_other_calls_take_the_slow_way(
    tables: list[Table], fn: Any, args: Any, options: dict[str, Any]
) -> None:
    f = bu.jit(fn, **options)
    for _ in range(3):
        given = args()
        for value in given:
            if isinstance(value, bu.Array):
                value.tolist()
        f(*given)
    assert not any(t.entries for t in tables)


def test_a_native_call_inside_a_trace_is_staged(tables: list[Table]) -> None:
    inner = bu.jit(lambda x: x + 1)
    inner(bu.zeros(1))
    inner(bu.zeros(1))
    outer = bu.jit(lambda x: inner(x) * 2)
    assert outer(bu.zeros(1)).tolist() == [2.0]
    assert [i.op.name for i in outer.lower(bu.float64[1]).graph.instrs].count("add") == 1


def test_host_arguments_follow_the_default_device(shared: Any) -> None:
    made: list[Table] = []

    def dispatcher(where: ArrayLayout, slow: Callable[..., Any]) -> Table:
        made.append(Table(where, slow))
        return made[-1]

    shared.dispatcher = dispatcher
    f = bu.jit(lambda x: x + 1)
    for _ in range(3):
        assert f(np.zeros(2)).tolist() == [1, 1]
    # The fixture keeps a default device chosen for this thread alone, so nothing may be remembered.
    assert not made


def test_a_dropped_function_leaves_nothing_behind(tables: list[Table]) -> None:
    f = bu.jit(lambda x: x + 1)
    f(bu.zeros(1))
    reference = weakref.ref(f)
    tables.clear()
    del f
    gc.collect()
    assert reference() is None
