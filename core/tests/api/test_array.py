"""What an array is, and when it is computed."""

from __future__ import annotations

import copy
import ctypes
import gc
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.api import deferred, dlpack
from bringup.errors import (
    ArrayIndexError,
    BackendError,
    ConversionError,
    DeviceError,
    OpTypeError,
    TraceError,
)
from bringup.runtime.devices import OpenDevice
from bringup.tracing.lazy import MAX_PENDING


def line_of(text: str) -> int:
    """The number of the only line of this file that ends with a comment."""
    with open(__file__, encoding="utf-8") as source:
        return next(i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {text}"))


def test_recording_runs_nothing(reference: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    y = bu.sum(bu.exp(x) * 2 + x[::-1])
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes) == ((), bu.float64, 0, 1, 8)
    assert reference.compiled == 0
    assert y.item() == pytest.approx(2 * (np.e + np.e**2) + 3)
    assert reference.compiled == 1


def test_what_is_alive_on_the_way_is_computed_once(reference: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    y = bu.exp(x)
    z = bu.sum(y)
    float(z)
    reference.ran.clear()
    y.tolist()
    (y + 1).tolist()
    assert "exp" not in reference.ran


def test_equal_code_is_compiled_once(reference: Any) -> None:
    for start in range(20):
        x = bu.asarray([float(start), 2.0])
        assert (x * x + 1).tolist() == [start * start + 1, 5]
    assert reference.compiled == 1


def test_scalars_that_keep_changing_become_inputs(reference: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    for i in range(20):
        assert (x * (i + 0.5) - i).tolist() == [0.5, i + 1.0]
        assert bu.full(2, i).tolist() == [i, i]
    assert reference.compiled <= 2 * (deferred.VARIANTS + 1)


def test_a_deep_expression_neither_recurses_nor_piles_up(reference: Any) -> None:
    x = bu.asarray(0.0)
    for _ in range(3 * MAX_PENDING):
        x = x + 1
    assert reference.compiled == 2  # up to the first cut, and from one cut to the next
    assert x.item() == 3 * MAX_PENDING
    with_diamonds = bu.asarray(1.0)
    for _ in range(200):
        with_diamonds = with_diamonds * 0.5 + with_diamonds * 0.5
    assert with_diamonds.item() == 1.0


def test_memory_is_given_back(reference: Any) -> None:
    def use() -> int:
        x = bu.asarray(np.ones(100))
        (x * x).tolist()
        bu.exp(x)
        jitted(x)
        gc.collect()
        return len(reference.alive)

    jitted = bu.jit(lambda x: (x, x * 2, {"a": x[1:]}))
    # Programs keep their constants; nothing else stays but `x` itself.
    assert [use() for _ in range(4)] == [use()] * 4
    held = len(reference.alive)
    x = bu.asarray(np.ones(3))
    assert len(reference.alive) == held + 1
    del x
    assert len(reference.alive) == held


def test_handles_that_count_references_are_never_freed(shared: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    host = np.asarray(x)
    assert not host.flags.writeable
    assert np.shares_memory(host, np.asarray(x))
    del x
    gc.collect()
    assert host.tolist() == [1.0, 2.0]


def test_an_error_of_the_device_points_at_the_line_that_recorded(reference: Any) -> None:
    x = bu.asarray([1.0, 2.0])

    def lines() -> tuple[bu.Array, bu.Array]:
        first = bu.exp(x) + 1  # first
        second = bu.exp(x) + 1  # second
        return first, second

    first, second = lines()
    first.tolist()
    reference.fail_on = "exp"
    with pytest.raises(DeviceError) as caught:
        second.tolist()
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert caught.value.location.line == line_of("second")
    reference.fail_on = ""
    assert second.tolist() == first.tolist()


def test_a_type_error_is_raised_where_it_is_made() -> None:
    x = bu.exp(bu.zeros(3))
    with pytest.raises(OpTypeError) as caught:
        bu.tensordot(x, bu.zeros(4), axes=1)  # contracted
    assert caught.value.location is not None
    assert caught.value.location.line == line_of("contracted")


@pytest.mark.parametrize("dtype", [bu.float64, bu.float32, bu.bfloat16, bu.int8, bu.bool])
def test_conversion_to_numpy(dtype: Any) -> None:
    x = bu.asarray([0, 1, 1], dtype=dtype)
    host = np.asarray(x)
    assert host.dtype == dtype.numpy
    assert host.tolist() == [0, 1, 1]
    assert np.array(x, dtype=np.float32).dtype == np.float32
    assert np.add(np.ones(3), np.asarray(x)).tolist() == [1, 2, 2]


def test_copies_for_numpy() -> None:
    x = bu.asarray([1.0, 2.0])
    host = np.array(x, copy=True)
    host[0] = 9
    assert x.tolist() == [1.0, 2.0]
    with pytest.raises(ConversionError, match="without a copy"):
        np.array(x, copy=False)


def test_shared_memory_for_numpy(shared: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    assert np.shares_memory(np.array(x, copy=False), np.asarray(x))
    copied = np.array(x, copy=True)
    copied[0] = 9
    assert x.tolist() == [1.0, 2.0]
    with pytest.raises(ConversionError, match="without a copy"):
        np.array(x, dtype=np.float32, copy=False)


def test_python_scalars() -> None:
    assert float(bu.asarray(2.5)) == 2.5
    assert int(bu.asarray(2.5)) == 2
    assert bool(bu.asarray(0)) is False
    assert [10, 20][bu.asarray(1)] == 20
    assert type(bu.asarray(True).item()) is bool
    assert type(bu.asarray([3]).item()) is int
    assert bu.asarray(1.5, dtype=bu.bfloat16).item() == 1.5
    assert f"{bu.asarray(0.123456):.3f}" == "0.123"
    for convert in (float, int, bool):
        with pytest.raises(ConversionError, match="is ambiguous: it is not 0-d"):
            convert(bu.zeros(2))
    with pytest.raises(ConversionError, match="has 2 elements, not one"):
        bu.zeros(2).item()
    with pytest.raises(ArrayIndexError, match=r"only integers index, not f64\[\]"):
        [1][bu.asarray(0.0)]


def test_containers_protocols() -> None:
    x = bu.asarray([[1, 2], [3, 4]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert [int(v) for v in x[0]] == [1, 2]
    assert 3 in x
    assert 5 not in x
    for misuse in (len, list):
        with pytest.raises(OpTypeError, match="is 0-d"):
            misuse(bu.asarray(1))


def test_identity() -> None:
    x, y = bu.asarray([1]), bu.asarray([1])
    assert (x == None) is False  # noqa: E711
    assert (x == y).tolist() == [True]


def test_in_place_operators_rebind() -> None:
    x = y = bu.asarray([1.0, 2.0])
    x += 1
    x *= 2
    assert x.tolist() == [4.0, 6.0]
    assert y.tolist() == [1.0, 2.0]
    x @= bu.eye(2)
    assert x.tolist() == [4.0, 6.0]


def test_text() -> None:
    x = bu.asarray([[1.0, 2.5], [-0.0, bu.nan]], dtype=bu.float32)
    assert str(x) == str(np.asarray(x))
    assert repr(x) == (
        "Array([[ 1. ,  2.5],\n       [-0. ,  nan]], dtype=float32, device=reference)"
    )
    assert repr(bu.asarray(3)) == "Array(3, dtype=int64, device=reference)"
    assert str(bu.asarray(3)) == "3"
    assert str(bu.asarray([True])) == "[ True]"
    assert repr(bu.asarray([1.5], dtype=bu.bfloat16)) == (
        "Array([1.5], dtype=bfloat16, device=reference)"
    )
    assert repr(bu.zeros((0, 2))) == "Array([], shape=(0, 2), dtype=float64, device=reference)"


def test_devices(second: OpenDevice) -> None:
    x = bu.asarray([1.0, 2.0])
    y = (x + 1).to(second)
    assert y.device is second
    assert y.to(second) is y
    assert x.to_device(second).tolist() == [1.0, 2.0]
    assert (y * 2).device is second
    assert (y * 2).tolist() == [4.0, 6.0]
    assert bu.zeros_like(y).device is second
    assert (y + np.ones(2)).device is second
    assert bu.zeros(2, device=second).device is second
    assert bu.asarray([1.0], device=second).device is second
    with bu.device(second):
        assert bu.ones(1).device is second
    assert bu.ones(1).device is not second
    with pytest.raises(OpTypeError) as caught:
        x + y
    assert "operands are on different devices: reference and reference:2" in str(caught.value)
    assert 'fix: move one of them first: x.to("reference")' in str(caught.value)
    with pytest.raises(BackendError, match="no backend is named 'nothing'"):
        x.to("nothing")


def test_dlpack() -> None:
    x = bu.asarray([1.0, 2.0], dtype=bu.float32)
    assert x.__dlpack_device__() == (1, 0)
    host = np.from_dlpack(x)
    assert host.tolist() == [1.0, 2.0]
    back = bu.from_dlpack(host)
    assert back.dtype is bu.float32
    assert back.tolist() == [1.0, 2.0]
    assert bu.from_dlpack(x) is x
    with pytest.raises(BufferError, match="in host memory only"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="leave out copy=False"):
        x.__dlpack__(copy=False)
    with pytest.raises(ConversionError, match="copies always"):
        bu.from_dlpack(host, copy=False)


def flags_of(capsule: Any) -> int:
    pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer(capsule, b"dltensor_versioned")
    return ctypes.c_uint64.from_address(address + 8 + 2 * ctypes.sizeof(ctypes.c_void_p)).value


needs_versions = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy makes no capsules with versions"
)


@needs_versions
def test_dlpack_says_what_is_a_copy_and_has_no_streams_on_the_host() -> None:
    x = bu.asarray(np.arange(6, dtype=np.int32))
    copied = 2
    assert flags_of(x.__dlpack__(max_version=(1, 0))) == copied
    assert flags_of(x.__dlpack__(max_version=(1, 0), copy=True)) == copied
    for stream in (1, -1, "s"):
        with pytest.raises(BufferError, match="no streams"):
            x.__dlpack__(stream=stream)


def test_dlpack_copies_where_numpy_cannot_say_that_memory_is_read_only(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlpack, "_VERSIONED_BY_NUMPY", False)
    x = bu.asarray([1.0, 2.0])
    host = np.from_dlpack(x)
    assert host.tolist() == [1.0, 2.0]
    assert not np.shares_memory(host, np.asarray(x))


@needs_versions
def test_dlpack_shares_memory_where_the_host_sees_it(shared: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    host = np.from_dlpack(x)
    assert np.shares_memory(host, np.asarray(x))
    assert not host.flags.writeable
    read_only, copied = 1, 2
    assert flags_of(x.__dlpack__(max_version=(1, 0))) == read_only
    assert flags_of(x.__dlpack__(max_version=(1, 0), copy=True)) == copied
    old = x.__dlpack__()
    assert old is not None


def test_numpy_leaves_operators_to_us() -> None:
    x = bu.asarray([1.0, 2.0])
    assert isinstance(np.ones(2) * x, bu.Array)
    assert isinstance(np.float32(2) - x, bu.Array)
    assert (np.array([3.0, 1.0]) > x).tolist() == [True, False]
    half = np.ones(2, ml_dtypes.bfloat16)
    assert (half + bu.asarray(half)).dtype is bu.bfloat16


def test_threads_share_arrays(reference: Any) -> None:
    x = bu.asarray(np.arange(50.0))
    y = bu.exp(x) * 0 + x
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(20):
                assert (y * k + i).tolist() == [v * k + i for v in range(50)]
        except BaseException as error:  # noqa: BLE001  (reported below)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert reference.ran.count("exp") == 1


def test_a_copy_is_the_array_and_a_deep_one_survives_donation() -> None:
    x = bu.asarray([1.0, 2.0])
    step = bu.jit(lambda p: p * 0, donate_argnums=0)
    assert copy.copy(x) is x
    before = copy.deepcopy({"w": x, "same": x})
    assert before["w"] is before["same"]
    step(x)
    assert x.is_deleted
    assert before["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [bu.float32, bu.bfloat16, bu.bool, bu.int8])
def test_pickles_hold_type_and_values(dtype: Any) -> None:
    x = bu.asarray([[1, 0], [2, 1]], dtype=dtype) + 0 if dtype is not bu.bool else bu.ones(3) > 0
    again = pickle.loads(pickle.dumps(x))
    assert again.type is x.type
    assert again.tolist() == x.tolist()


def test_traced_arrays_do_not_pickle() -> None:
    with pytest.raises(TraceError, match="a pickle of"):
        bu.jit(lambda x: pickle.dumps(x) and x)(bu.ones(2))


def test_operators_with_numpy_on_the_left_are_ours() -> None:
    a, x = np.array([1.5, -2.0, 3.0]), bu.asarray([2.0, 3.0, -4.0])
    b = np.asarray(x)
    for op in (
        operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
        operator.mod, operator.matmul, operator.eq, operator.ne, operator.lt, operator.le,
        operator.gt, operator.ge,
    ):  # fmt: skip
        for left in (a, a[0]) if op is not operator.matmul else (a,):
            for found, wanted in ((op(left, x), op(left, b)), (op(x, left), op(b, left))):
                assert isinstance(found, bu.Array), op
                np.testing.assert_array_equal(found, wanted, err_msg=str(op))
    for op in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
        i, j = np.array([6, 3]), bu.asarray([1, 2])
        assert isinstance(op(i, j), bu.Array)
        np.testing.assert_array_equal(op(i, j), op(i, np.asarray(j)))
    np.testing.assert_array_equal(np.abs(a) ** x, np.abs(a) ** b)
    np.testing.assert_array_equal(np.multiply(2, bu.asarray([1j])), [2j])


def test_numpy_sees_the_values() -> None:
    x = bu.asarray([1.0, 4.0])
    for found, wanted in (
        (np.sqrt(x), [1, 2]),
        (np.sum(x), 5),
        (np.std(x, ddof=1), np.sqrt(4.5)),
        (np.add.accumulate(x), [1, 5]),
        (np.concatenate([x, [2.0]]), [1, 4, 2]),
    ):
        assert isinstance(found, np.ndarray | np.generic)
        np.testing.assert_array_equal(found, wanted)
    total = other = np.zeros(2)
    total += x
    assert other.tolist() == [1, 4]
    np.sqrt(x, out=total)
    assert other.tolist() == [1, 2]
    with pytest.raises(ConversionError, match="arrays are immutable: numpy's sqrt"):
        np.sqrt(other, out=x)
    with pytest.raises(TypeError):
        np.add(np.zeros(2), x, "text")  # type: ignore[call-overload]


#: Methods with what numpy's give: those that are functions of ours, and those that are not.
METHODS = (  # noqa: SIM905
    "all any argmax argmin argsort(0) clip(1,3) conj cumsum(1) cumprod(0) diagonal max(0) mean(-1)"
    " min nonzero prod(1) ravel repeat(2,0) round squeeze std(0) sum sum(0) sum(1,np.int8)"
    " sum(axis=(0,1),keepdims=True) swapaxes(0,1) take([1,0],0) trace transpose transpose(1,0)"
    " transpose((1,0)) var(1) flatten reshape(3,2) reshape((3,2)) reshape(-1) reshape([6]) T mT"
    " astype(np.int32)"
).split()


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_as_numpys(method: str) -> None:
    host = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    for ours in (bu.asarray(host), bu.jit(lambda x: x)(host)):
        name, open_, rest = method.partition("(")
        get = f"{name}({rest}" if open_ else name if name in ("T", "mT") else f"{name}()"
        wanted = eval(f"x.{get}", {"x": host, "np": np})
        found = eval(f"x.{get}", {"x": ours, "np": np})
        for mine, right in zip(*(x if name == "nonzero" else (x,) for x in (found, wanted))):  # noqa: B905
            np.testing.assert_allclose(np.asarray(mine), right)
            assert mine.shape == np.shape(right)


def test_methods_work_while_traced_and_on_arrays_of_every_kind() -> None:
    made = bu.jit(lambda x: x.sum(0).reshape(1, -1).T.astype(bu.int32))(bu.ones((2, 3)))
    assert made.tolist() == [[2], [2], [2]]
    assert bu.grad(lambda x: (x * x).sum())(bu.asarray(3.0)).item() == 6.0
    assert bu.vmap(lambda x: x.max())(bu.asarray([[1, 5], [7, 2]])).tolist() == [5, 7]
    z = bu.asarray([1 + 2j, 3])
    assert z.sum().item() == 4 + 2j
    assert z.conj().reshape(2, 1).T.tolist() == [[1 - 2j, 3]]
    assert bu.zeros((2, 1, 3)).T.shape == (3, 1, 2)
    assert bu.asarray([1, 3, 5]).searchsorted(bu.asarray([4])).tolist() == [2]
    assert bu.asarray([3, 1, 2]).sort().tolist() == [1, 2, 3]
    x = bu.ones(3)
    assert x.block_until_ready() is x


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (np.arctan, "use bringup.arctan"),
        (np.sum, "use bringup.sum"),
        (lambda x: np.mean(x) * x, "use bringup.mean"),
        (lambda x: np.concatenate([x[None], x[None]]), "use bringup.concat"),
        (np.frexp, "return the array"),
    ],
)
def test_numpy_sees_no_traced_arrays(call: Callable[[Any], Any], fix: str) -> None:
    """Also where the value is known, as under grad: the derivative would be lost in silence."""
    for trace in (bu.jit, bu.grad):
        with pytest.raises(TraceError) as caught:
            trace(lambda x: call(x))(2.0)
        assert (caught.value.fix or "").startswith(fix)
        assert caught.value.location is not None
        assert caught.value.location.file == __file__
