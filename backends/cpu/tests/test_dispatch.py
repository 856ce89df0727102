"""The native route of `jit`: what it takes, what it passes on, and that it keeps nothing."""

from __future__ import annotations

import gc
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.api.jit import Jitted
from bringup.backend.dispatch import FastArg, FastEntry
from bringup.errors import BringupError, DeletedBufferError, OpTypeError
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice
from bringup_cpu.dispatch import MAX_ENTRIES, dispatch_code
from bringup_cpu.memory import memory

pytestmark = pytest.mark.skipif(dispatch_code() is None, reason="no native route here")

Host = np.ndarray[Any, Any]


#: Calls before the native way is taken.
SLOW = 2


def double(x: Any) -> Any:
    """What most tests compile."""
    return x * 2 + 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Grows with every call that takes the slow way."""
    calls: list[tuple[Any, ...]] = []
    whole = Jitted._call

    def spy(self: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(args)
        return whole(self, args, kwargs)

    monkeypatch.setattr(Jitted, "_call", spy)
    return calls


def warm(fn: Callable[..., Any], *args: Any) -> Any:
    """A jitted function that answers such arguments natively."""
    made = bu.jit(fn)
    for _ in range(SLOW):
        made(*args)
    return made


@pytest.fixture
def second() -> OpenDevice:
    """Another device object over the same memory."""
    first = devices.get()
    return OpenDevice("cpu", 1, first.backend, first.backend.open(0), first.info)


FLOATS = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("make", [np.array, bu.asarray])
def test_a_repeated_call_takes_the_native_way(make: Any, slow: list[Any]) -> None:
    fn = warm(double, make(FLOATS))
    for k in range(5):
        x = FLOATS + np.float32(k)
        result = fn(make(x))
        assert type(result) is bu.Array
        assert result.shape == (4,)
        assert result.dtype is bu.float32
        assert str(result.device) == "cpu"
        assert np.array_equal(np.asarray(result), x * 2 + 1)
    assert len(slow) == SLOW


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, *"bhilBHILefd", ml_dtypes.bfloat16],
    ids=lambda d: np.dtype(d).name,
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3), (0, 5), (2, 1, 2, 1, 3)])
def test_every_dtype_and_rank(dtype: Any, shape: tuple[int, ...], slow: list[Any]) -> None:
    x = (np.arange(np.prod(shape, dtype=int)) % 5).astype(dtype).reshape(shape)
    fn = warm(lambda x: bu.where(x == x, x, x), x)
    for argument in (x, bu.asarray(x)):
        fn(argument)
        before = len(slow)
        result = np.asarray(fn(argument))
        assert len(slow) == before
        assert (result.dtype, result.shape) == (x.dtype, x.shape)
        assert result.tobytes() == x.tobytes()


def test_results_in_tuples_and_several_arguments(slow: list[Any]) -> None:
    fn = warm(lambda x, y, z: (x + y, y * z, x - z), FLOATS, FLOATS, FLOATS)
    a, b, c = FLOATS, FLOATS + 5, FLOATS * 3
    for args in ((a, b, c), (bu.asarray(a), b, bu.asarray(c)), (a, a, a)):
        fn(*args)
        before = len(slow)
        results = fn(*args)
        assert len(slow) == before
        assert type(results) is tuple
        x, y, z = map(np.asarray, args)
        for result, wanted in zip(results, (x + y, y * z, x - z), strict=True):
            assert np.array_equal(np.asarray(result), wanted)


def test_captured_arrays_take_part(slow: list[Any]) -> None:
    captured = bu.asarray(FLOATS * 10)
    fn = warm(lambda x: x + captured, FLOATS)
    for k in range(3):
        assert np.array_equal(np.asarray(fn(FLOATS + np.float32(k))), FLOATS * 11 + k)
    assert len(slow) == SLOW


def test_a_captured_array_that_is_donated_later_is_our_error(slow: list[Any]) -> None:
    captured = bu.asarray(FLOATS * 10)
    fn = warm(lambda x: x + captured, FLOATS)
    assert np.array_equal(np.asarray(fn(FLOATS)), FLOATS * 11)
    bu.jit(lambda y: y * 0 - 7, donate_argnums=0)(captured)
    for _ in range(2):
        with pytest.raises(DeletedBufferError):
            fn(FLOATS)


def test_captured_arrays_of_long_calls_are_held() -> None:
    captured, x = bu.asarray(np.ones(1 << 20, np.float32)), np.ones(1 << 20, np.float32)
    fn = warm(lambda x, y: bu.sin(x) + captured * y, x, bu.asarray(x))
    fn(x, bu.asarray(x))
    references = sys.getrefcount(captured._buffer)
    for _ in range(20):
        assert float(fn(x, bu.asarray(x))[0]) == pytest.approx(np.sin(1) + 1, rel=1e-6)
    after = sys.getrefcount(captured._buffer)
    assert after == references


class Sub(np.ndarray[Any, Any]):
    """A subclass that could mean anything."""


def offset_by_a_byte(x: Host) -> Host:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return raw[1:].view(x.dtype).reshape(x.shape)


def read_only(x: Host) -> Host:
    x = x.copy()
    x.flags.writeable = False
    return x


_SQUARE = np.arange(16, dtype=np.float32).reshape(4, 4)
_MISMATCHES: dict[str, tuple[Host, Any]] = {
    "another float": (FLOATS, FLOATS.astype(np.float64)),
    "half": (FLOATS, FLOATS.astype(np.float16)),
    "bfloat16": (FLOATS, FLOATS.astype(ml_dtypes.bfloat16)),
    "integer": (FLOATS, FLOATS.astype(np.int32)),
    "same size integer": (FLOATS.view(np.int32), FLOATS.view(np.uint32)),
    "longer": (FLOATS, np.arange(5, dtype=np.float32)),
    "shorter": (FLOATS, np.arange(3, dtype=np.float32)),
    "empty": (FLOATS, np.zeros(0, np.float32)),
    "another rank": (FLOATS, FLOATS.reshape(2, 2)),
    "one more axis": (FLOATS, FLOATS.reshape(4, 1)),
    "0-d": (FLOATS, np.array(3, np.float32)),
    "swapped axes": (_SQUARE[:2], np.ascontiguousarray(_SQUARE[:2].T)),
    "every second": (FLOATS, np.arange(8, dtype=np.float32)[::2]),
    "backwards": (FLOATS, FLOATS[::-1]),
    "broadcast": (FLOATS, np.broadcast_to(np.float32(7), (4,))),
    "transposed": (_SQUARE, _SQUARE.T),
    "a window": (_SQUARE, np.arange(64, dtype=np.float32).reshape(8, 8)[2:6, 1:5]),
    "an equal type of another C name": (np.arange(4), np.arange(4).astype(np.longlong)),
    "unaligned": (FLOATS, offset_by_a_byte(FLOATS)),
    "unaligned and strided": (FLOATS, offset_by_a_byte(np.arange(8, dtype=np.float32))[::2]),
    "a subclass": (FLOATS, FLOATS.view(Sub)),
    "an equal dtype with facts": (FLOATS, FLOATS.view(np.dtype("f4", metadata={"a": 1}))),
    "a numpy scalar": (np.array(1, np.float32), np.float32(5)),
    "a Python float": (np.array(1, np.float32), 5.5),
    "a Python int": (np.array(1, np.float32), 5),
    "a device array": (FLOATS, bu.asarray(FLOATS)),
}


@pytest.mark.parametrize("case", _MISMATCHES)
def test_what_does_not_match_takes_the_slow_way(case: str, slow: list[Any]) -> None:
    usual, other = _MISMATCHES[case]
    fn = warm(double, usual)
    wanted = np.asarray(double(np.asarray(other)))
    assert np.array_equal(np.asarray(fn(other)), wanted)
    assert len(slow) == SLOW + 1
    # Nor does having seen it confuse the route.
    assert np.array_equal(np.asarray(fn(other)), wanted)
    assert np.array_equal(np.asarray(fn(usual)), double(usual))


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (bu.asarray(FLOATS), bu.asarray(FLOATS.astype(np.int32))),
        (bu.asarray(FLOATS), bu.asarray(FLOATS.reshape(2, 2))),
        (bu.asarray(FLOATS), FLOATS),
        (bu.asarray(FLOATS), bu.asarray(np.arange(6, dtype=np.float32))),
    ],
)
def test_other_arrays_of_the_device_take_the_slow_way(
    usual: Any, other: Any, slow: list[Any]
) -> None:
    fn = warm(double, usual)
    assert np.array_equal(np.asarray(fn(other)), double(np.asarray(other)))
    assert len(slow) == SLOW + 1


def test_recorded_arrays_are_computed_first(slow: list[Any]) -> None:
    x = bu.asarray(FLOATS)
    fn = warm(double, x)
    recorded = x * 3
    assert np.array_equal(np.asarray(fn(recorded)), FLOATS * 6 + 1)
    assert len(slow) == SLOW + 1
    assert np.array_equal(np.asarray(fn(recorded)), FLOATS * 6 + 1)
    assert len(slow) == SLOW + 1


def test_read_only_arrays_are_only_read(slow: list[Any]) -> None:
    fn = warm(double, FLOATS)
    assert np.array_equal(np.asarray(fn(read_only(FLOATS))), double(FLOATS))
    assert len(slow) == SLOW


def test_a_result_shares_nothing_with_its_argument() -> None:
    fn = warm(lambda x: bu.reshape(x, (2, 2)), FLOATS)
    for make in (np.array, bu.asarray):
        x = make(FLOATS.copy())
        y = fn(x)
        if isinstance(x, np.ndarray):
            x[:] = 9
        del x
        fn(FLOATS + 100)
        assert np.array_equal(np.asarray(y), FLOATS.reshape(2, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        FLOATS.astype(">f4"),
        np.array(["a"] * 4),
        np.array([None] * 4),
        "text",
        object(),
    ],
    ids=lambda w: type(w).__name__ + str(getattr(w, "dtype", "")),
)
def test_what_is_no_array_is_our_error(wrong: Any, slow: list[Any]) -> None:
    fn = warm(double, FLOATS)
    for _ in range(2):
        with pytest.raises(BringupError):
            fn(wrong)
    assert np.array_equal(np.asarray(fn(FLOATS)), double(FLOATS))
    assert len(slow) == SLOW + 2


def test_complex_numbers_are_pairs_and_no_arrays_of_the_table() -> None:
    fn = bu.jit(bu.abs)
    for x in (np.array([3 + 4j, 1j]), FLOATS, np.array([3 + 4j, 1j])):
        for _ in range(3):
            assert np.array_equal(np.asarray(fn(x)), np.abs(x))


def test_wrong_counts_and_keywords(slow: list[Any]) -> None:
    def fn(x: Any, y: Any = 10) -> Any:
        return x + y

    jitted = warm(fn, FLOATS)
    assert np.array_equal(np.asarray(jitted(FLOATS, FLOATS)), FLOATS * 2)
    assert np.array_equal(np.asarray(jitted(FLOATS, y=FLOATS)), FLOATS * 2)
    assert np.array_equal(np.asarray(jitted(x=FLOATS)), FLOATS + 10)
    assert np.array_equal(np.asarray(jitted(*[FLOATS])), FLOATS + 10)
    assert len(slow) == SLOW + 3
    for args, kwargs in (((), {}), ((FLOATS,) * 3, {}), ((FLOATS,), {"z": 1})):
        with pytest.raises(TypeError):
            jitted(*args, **kwargs)
    assert len(slow) == SLOW + 6
    assert np.array_equal(np.asarray(jitted(FLOATS)), FLOATS + 10)
    assert len(slow) == SLOW + 6


def test_donated_arguments_take_the_slow_way(slow: list[Any]) -> None:
    fn = bu.jit(double, donate_argnums=0)
    for k in range(3):
        x = bu.asarray(FLOATS)
        assert np.array_equal(np.asarray(fn(x)), double(FLOATS))
        with pytest.raises(DeletedBufferError):
            fn(x)
        assert len(slow) == 2 * (k + 1)


def test_a_deleted_array_is_our_error() -> None:
    x = bu.asarray(FLOATS)
    fn = warm(double, x)
    bu.jit(double, donate_argnums=0)(x)
    for _ in range(2):
        with pytest.raises(DeletedBufferError):
            fn(x)


def test_another_device_takes_the_slow_way(second: OpenDevice, slow: list[Any]) -> None:
    here = bu.asarray(FLOATS)
    fn = warm(double, here)
    there = bu.asarray(FLOATS + 1, device=second)
    for k in range(2):
        result = fn(there)
        assert result._device is second
        assert np.array_equal(np.asarray(result), double(FLOATS + 1))
        assert len(slow) == SLOW + 1 + k
    assert fn(here)._device is devices.get()
    assert len(slow) == SLOW + 2
    two = warm(lambda x, y: x + y, here, here)
    for args in ((here, there), (there, here)):
        with pytest.raises(OpTypeError, match="is on"):
            two(*args)


def test_host_arrays_follow_the_default_device(second: OpenDevice) -> None:
    fn = warm(double, FLOATS)
    assert fn(FLOATS)._device is devices.get()
    with devices.use(second):
        assert fn(FLOATS)._device is second
        assert fn(FLOATS)._device is second
    assert fn(FLOATS)._device is devices.get()


def test_many_signatures() -> None:
    fn = bu.jit(double)
    inputs = [np.arange(n, dtype=np.float32) for n in range(1, MAX_ENTRIES + 8)]
    for _ in range(3):
        for x in inputs:
            assert np.array_equal(np.asarray(fn(x)), double(x))


def test_a_method_gets_its_instance(slow: list[Any]) -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = bu.asarray(np.float32(scale))

        @bu.jit
        def scaled(scale: Any, x: Any) -> Any:
            return scale * x

        def __call__(self, x: Any) -> Any:
            return type(self).__dict__["scaled"](self.scale, x)

    models = [Model(2.0), Model(3.0)]
    for _ in range(3):
        for model in models:
            wanted = FLOATS * model.scale.tolist()
            assert np.array_equal(np.asarray(model(FLOATS)), wanted)
    assert len(slow) == SLOW


def test_inside_a_trace_it_is_inlined() -> None:
    inner = warm(double, FLOATS)
    outer = bu.jit(lambda x: inner(x) + inner(x))
    for _ in range(3):
        assert np.array_equal(np.asarray(outer(FLOATS)), 2 * double(FLOATS))
    assert len(outer.lower(FLOATS).kernels) == 1


def test_an_empty_result_list_and_nested_results_stay_slow() -> None:
    nothing, nested = bu.jit(lambda x: ()), bu.jit(lambda x: {"a": [x + 1]})
    for _ in range(3):
        assert nothing(FLOATS) == ()
        assert np.array_equal(np.asarray(nested(FLOATS)["a"][0]), FLOATS + 1)


@pytest.fixture
def settled() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_calls_keep_nothing(settled: None) -> None:
    x, y = bu.asarray(FLOATS), FLOATS.copy()
    fn = warm(lambda x, y: (x + y, x * y), x, y)
    fn(x, y)
    state = memory().state
    objects = (x, y, x._device, x._type, x._buffer, y.dtype, fn, None, bu.Array)
    results = [None] * 10
    before = [sys.getrefcount(o) for o in objects]
    live = (state.live_allocations, state.live_bytes)
    for k in range(10_000):
        results[k % 10] = fn(x, y)
    results[:] = [None] * 10
    after = [sys.getrefcount(o) for o in objects]
    assert (state.live_allocations, state.live_bytes) == live
    assert after == pytest.approx(before, abs=20)


def test_calls_leave_no_python_memory(settled: None) -> None:
    x = bu.asarray(FLOATS)
    fn = warm(double, x)
    fn(x)
    tracemalloc.start()
    try:
        for _ in range(100):
            fn(x)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10_000):
            fn(x)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000


def test_calls_of_the_slow_way_keep_nothing(settled: None) -> None:
    x = bu.asarray(FLOATS)
    fn = warm(double, x)
    strided = FLOATS.astype(np.float64)[::2]
    fn(strided)
    state = memory().state
    live = (state.live_allocations, state.live_bytes)
    for _ in range(300):
        fn(strided)
    assert (state.live_allocations, state.live_bytes) == live


def test_a_function_and_its_code_go_with_its_last_reference() -> None:
    state = memory().state

    def made(k: int) -> weakref.ref[Any]:
        fn = warm(lambda x: x + k, FLOATS)
        assert fn(FLOATS).tolist() == (FLOATS + k).tolist()
        return weakref.ref(fn)

    made(0)
    gc.collect()
    live = state.live_allocations
    gone = [made(1) for _ in range(20)]
    gc.collect()
    assert [r() for r in gone] == [None] * 20
    assert state.live_allocations <= live + 5


def test_a_failed_allocation_is_our_error_and_leaves_nothing() -> None:
    x = bu.asarray(np.zeros(1 << 20, np.float32))
    fn = warm(lambda x: (x + 1, x + 2), x)
    fn(x)
    state = memory().state
    bu.clear_caches()  # as memory that is full does
    gc.collect()
    live = state.live_allocations
    budget, state.budget = state.budget, state.live_bytes + (5 << 20)
    try:
        for _ in range(3):
            with pytest.raises(BringupError, match="no memory"):
                fn(x)
            assert state.live_allocations == live
    finally:
        state.budget = budget
    assert np.asarray(fn(x)[1])[-1] == 2


def test_long_calls_let_other_threads_run(slow: list[Any]) -> None:
    x = np.linspace(0, 1, 1 << 22, dtype=np.float32)
    fn = warm(lambda x: bu.sum(bu.sin(bu.exp(bu.tanh(x)))), x)
    fn(x)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(1e-4):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    calls: list[tuple[float, float]] = []
    for _ in range(10):
        start = time.perf_counter()
        fn(x)
        calls.append((start, time.perf_counter()))
    done.set()
    thread.join()
    assert len(slow) == SLOW
    assert any(start < t < end for t in ticks for start, end in calls)


def test_threads_may_call_at_once() -> None:
    fn = bu.jit(lambda x, y: (x * y, bu.sum(x)))
    failures: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in (4, 4, 3000, 4, 3000, 1 << 18):
            x, y = rng.random((2, n), np.float32)
            for a, b in ((x, y), (bu.asarray(x), y), (bu.asarray(x), bu.asarray(y))):
                product, total = fn(a, b)
                if not np.array_equal(np.asarray(product), x * y):
                    failures.append((seed, n))
                if not np.isclose(float(total), x.sum(dtype=np.float64), rtol=1e-5):
                    failures.append((seed, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_entry_must_fit_its_program() -> None:
    from bringup.api.jit import layout

    device, x = devices.get(), bu.asarray(FLOATS)
    where = layout()
    assert where is not None
    dispatcher = device.device.dispatcher(where, double)
    assert dispatcher is not None
    compiled = bu.jit(double).lower(x)
    assert compiled.executable is not None

    def entry(type_: Any, outputs: Any, place: int = 0) -> FastEntry:
        args = (FastArg("array", type_, place),)
        return FastEntry(
            args=args, executable=compiled.executable, outputs=outputs, device=device, epoch=1
        )

    right, wrong = bu.float32[4], bu.float32[8]
    for bad in (entry(wrong, (right,)), entry(right, (wrong,)), entry(right, (right,), -1)):
        with pytest.raises(AssertionError):
            dispatcher.add(bad)
    assert dispatcher.add(entry(right, (right,)))
    assert np.array_equal(np.asarray(dispatcher.call(x)), double(FLOATS))
    dispatcher.clear()
    assert dispatcher.call(7) == 15


def test_a_call_costs_less_than_a_microsecond() -> None:
    def cost(*args: Any) -> float:
        fn = warm(lambda *xs: xs[0] + 1, *args)
        best = float("inf")
        for _ in range(50):
            start = time.perf_counter()
            for _ in range(1000):
                fn(*args)
            best = min(best, time.perf_counter() - start)
        return best / 1000

    assert cost(bu.asarray(FLOATS)) < 1e-6
    assert cost(FLOATS) < 1.5e-6


def test_launches_are_a_table_that_llvm_compiles_no_code_for() -> None:
    def entry_of(products: int) -> str:
        def run(x: Any) -> Any:
            for _ in range(products):
                x = x @ x
            return x

        text: str = bu.jit(run).lower(bu.float32[4, 4]).source
        assert text.count("{ ptr, i64, i64, i64 } {ptr @entry.0.") == products
        return text[text.index("define void @entry(") :].partition("\n}")[0]

    assert entry_of(40).count("\n") == entry_of(2).count("\n")
