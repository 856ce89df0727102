"""The default float dtype: who follows it, who keeps its own, and what is computed again for it."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import FLOATS, DType
from bringup.errors import OpTypeError

f16, bf16, f32, f64 = bu.float16, bu.bfloat16, bu.float32, bu.float64
COMPLEX = {f16: bu.complex64, bf16: bu.complex64, f32: bu.complex64, f64: bu.complex128}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    bu.set_default_dtype(f64)


def key() -> Any:
    return bu.random.key(0)


INTS = np.arange(6).reshape(2, 3)

FLOAT_MAKERS: dict[str, Callable[[], Any]] = {
    "asarray of a float": lambda: bu.asarray(1.5),
    "asarray of floats": lambda: bu.asarray([[1.5], [2.0]]),
    "asarray of nothing": lambda: bu.asarray([]),
    "asarray of numpy": lambda: bu.asarray(np.linspace(0, 1, 3)),
    "asarray of a scalar of numpy": lambda: bu.asarray(np.float64(3)),
    "dtype=float": lambda: bu.asarray([1, 2], dtype=float),
    "astype": lambda: bu.arange(3).astype(float),
    "zeros": lambda: bu.zeros(3),
    "ones": lambda: bu.ones(3),
    "empty": lambda: bu.empty(3),
    "full": lambda: bu.full(3, 1.5),
    "full of numpy": lambda: bu.full(3, np.float64(1.5)),
    "eye": lambda: bu.eye(3),
    "arange": lambda: bu.arange(0.0, 1.0, 0.25),
    "linspace": lambda: bu.linspace(0, 1, 5),
    "fftfreq": lambda: bu.fft.fftfreq(4),
    "uniform": lambda: bu.random.uniform(key(), (3,)),
    "normal": lambda: bu.random.normal(key(), (3,)),
    "exponential": lambda: bu.random.exponential(key(), (3,)),
    "gamma": lambda: bu.random.gamma(key(), 2.0, (3,)),
    "glorot": lambda: bu.nn.init.glorot_uniform(key(), (3, 4)),
    "one_hot": lambda: bu.nn.one_hot(bu.asarray([1, 0]), 3),
    "mean of integers": lambda: bu.mean(bu.asarray(INTS)),
    "var of bools": lambda: bu.var(bu.asarray(INTS > 2)),
    "division of integers": lambda: bu.asarray(INTS) / 2,
    "integers and a float": lambda: bu.asarray(INTS) * 0.5,
    "bools and a float": lambda: bu.asarray(INTS > 2) + 0.5,
    "a root of integers": lambda: bu.sqrt(bu.asarray(INTS)),
    "atan2 of integers": lambda: bu.atan2(bu.asarray(INTS), 2),
    "softmax of integers": lambda: bu.nn.softmax(bu.asarray(INTS)),
    "layer_norm of integers": lambda: bu.nn.layer_norm(bu.asarray(INTS)),
    "a float of where": lambda: bu.where(bu.asarray(INTS > 2), 1.0, 0.0),
    "numpy between integers": lambda: np.float64(0.5) * bu.asarray(INTS),
    "a traced float": lambda: bu.jit(lambda a: a + 1.5)(0.5),
    "a traced array of numpy": lambda: bu.jit(lambda a: a + 1)(np.linspace(0, 1, 3)),
    "a traced scalar of numpy": lambda: bu.jit(lambda a: a + 1)(np.float64(0.5)),
    "vmap of numpy": lambda: bu.vmap(lambda a: a + 1)(np.linspace(0, 1, 3)),
    "grad by a float": lambda: bu.grad(lambda a: a * a)(0.5),
    "a loop over floats": lambda: bu.fori_loop(0, 3, lambda _i, y: y * 2, 1.0),
    "the real part": lambda: bu.real(bu.asarray([1 + 2j])).astype(float),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_MAKERS)
def test_floats_follow_it(name: str, dtype: DType) -> None:
    with bu.default_dtype(dtype):
        assert FLOAT_MAKERS[name]().dtype is dtype
        assert bu.result_type(1.0) is bu.result_type(bu.int32, 1.5) is dtype


COMPLEX_MAKERS: dict[str, Callable[[], Any]] = {
    "asarray": lambda: bu.asarray([1j, 2.0]),
    "asarray of numpy": lambda: bu.asarray(np.asarray([1j, 2.0])),
    "linspace": lambda: bu.linspace(0, 1j, 3),
    "integers and a complex number": lambda: bu.asarray(INTS) * 1j,
    "dtype=complex": lambda: bu.zeros(3, dtype=complex),
    "complex of integers": lambda: bu.complex(bu.asarray(INTS), 1),
    "fft of integers": lambda: bu.fft.fft(bu.arange(4)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", COMPLEX_MAKERS)
def test_complex_numbers_follow_it(name: str, dtype: DType) -> None:
    with bu.default_dtype(dtype):
        assert COMPLEX_MAKERS[name]().dtype is COMPLEX[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_namespace_tells_the_truth(dtype: DType) -> None:
    with bu.default_dtype(dtype):
        told = bu.__array_namespace_info__().default_dtypes()
    assert told == {
        "real floating": dtype,
        "complex floating": COMPLEX[dtype],
        "integral": bu.int64,
        "indexing": bu.int64,
    }


def test_integers_stay() -> None:
    with bu.default_dtype(bf16):
        made = [bu.arange(3), bu.asarray([1, 2]), bu.asarray(7), bu.sum(bu.asarray([True]))]
        made += [bu.argmax(bu.ones(3)), bu.random.randint(key(), (3,), 0, 5)]
        assert {x.dtype for x in made} == {bu.int64}


def test_what_was_chosen_is_kept() -> None:
    x = bu.asarray([0.1, 0.2])
    with bu.default_dtype(f32):
        assert x.dtype is (x * 2.5).dtype is f64
        assert bu.asarray(np.asarray([0.1]), dtype=f64).dtype is f64
        assert bu.zeros(2, dtype="float64").dtype is f64
        assert bu.asarray([x[0], 0.5]).dtype is f64
        assert (x * 1j).dtype is bu.complex128
        assert bu.from_dlpack(np.asarray([0.1])).dtype is f64
        assert pickle.loads(pickle.dumps(x)).tolist() == [0.1, 0.2]
        # Nothing is rounded on the way to an array of f64.
        assert (x + np.asarray([0.1, 0.2])).tolist() == [0.2, 0.4]
        assert (x * np.float64(0.1))[0].item() == 0.1 * 0.1
        assert bu.jit(lambda a, s: a * s)(x, 0.1)[0].item() == 0.1 * 0.1


def test_ramps_are_rounded_once() -> None:
    for dtype in (f32, f16):
        with bu.default_dtype(dtype):
            steps = bu.linspace(0.1, 0.7, 50)
            ramp = bu.arange(0.1, 5.0, 0.1)
        assert np.asarray(steps).tolist() == bu.linspace(0.1, 0.7, 50).astype(dtype).tolist()
        assert np.asarray(ramp).tolist() == bu.arange(0.1, 5.0, 0.1).astype(dtype).tolist()


# -- numbers of numpy ------------------------------------------------------------------------------


def gaussian(x: Any, mean: Any, covariance: Any) -> Any:
    """A logarithm of a density as a Kalman filter has it, written for numpy and JAX."""
    size = covariance.shape[0]
    apart = x - mean
    return -0.5 * (
        apart @ apart + np.log(2 * np.pi) * size + np.log(2 * np.pi) * bu.sum(covariance)
    )


def test_constants_of_numpy_do_not_widen() -> None:
    m = bu.ones((2, 2), dtype=f32)
    assert (np.log(2 * np.pi) * m).dtype is f64  # as with the 64-bit mode of JAX
    with bu.default_dtype(f32):
        assert (np.log(2 * np.pi) * m).dtype is (m * np.log(2 * np.pi)).dtype is f32
        assert (m + np.ones((2, 2))).dtype is f32
        assert gaussian(m[0], m[1], m).dtype is f32
        assert bu.jit(gaussian)(m[0], m[1], m).dtype is f32
        assert bu.result_type(m, np.float64(1)) is bu.result_type(m, np.zeros(3)) is f32
        assert bu.result_type(m, f64) is f64  # a dtype that was named


def test_numpys_scalars_are_not_weak() -> None:
    """As in JAX: they have a dtype, which only for f64 is the default's."""
    x = bu.ones(2, dtype=bf16)
    for default in (f64, f32):
        with bu.default_dtype(default):
            assert (x * 2.0).dtype is bf16
            assert (x * np.float32(2)).dtype is f32
            assert (x * np.float64(2)).dtype is default
            assert (bu.ones(2, dtype=bu.int8) + np.int64(1)).dtype is bu.int64


# -- who has which ---------------------------------------------------------------------------------


def elsewhere(fn: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fn()))
    thread.start()
    thread.join()
    return found[0]


def test_a_setting_is_for_all_threads_and_a_block_for_one() -> None:
    bu.set_default_dtype(f32)
    assert bu.zeros(1).dtype is elsewhere(lambda: bu.zeros(1).dtype) is f32
    with bu.default_dtype(f16):
        assert elsewhere(lambda: bu.zeros(1).dtype) is f32
        with bu.default_dtype("float64"):
            assert bu.zeros(1).dtype is f64
        bu.set_default_dtype(bf16)
        assert bu.zeros(1).dtype is f16
    assert bu.zeros(1).dtype is bf16


def test_a_block_ends_with_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), bu.default_dtype(f32):
        _ = 1 // 0
    assert bu.zeros(1).dtype is f64


def test_tasks_have_their_own() -> None:
    async def one(dtype: DType) -> list[DType]:
        found = []
        with bu.default_dtype(dtype):
            for _ in range(3):
                await asyncio.sleep(0)
                found.append(bu.zeros(1).dtype)
        return found

    async def both() -> Any:
        return await asyncio.gather(one(f32), one(f16))

    assert asyncio.run(both()) == [[f32] * 3, [f16] * 3]


def test_the_environment_sets_it() -> None:
    code = "import bringup as bu; print(bu.result_type(1.0), bu.result_type(1j))"
    for word, said in (("float32", "f32 c64"), ("bfloat16", "bf16 c64"), ("", "f64 c128")):
        environment = {"BRINGUP_DEFAULT_DTYPE": word, "PATH": ""}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stdout.strip() == said, ran.stderr
    environment["BRINGUP_DEFAULT_DTYPE"] = "double"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "BRINGUP_DEFAULT_DTYPE='double' is no value of BRINGUP_DEFAULT_DTYPE" in ran.stderr
    assert "fix: set BRINGUP_DEFAULT_DTYPE to one of float64, float32" in ran.stderr


@pytest.mark.parametrize("dtype", [bu.int32, bu.float8_e5m2, bu.complex64, "no dtype"], ids=str)
@pytest.mark.parametrize("choose", [bu.default_dtype, bu.set_default_dtype])
def test_other_dtypes_are_refused(choose: Callable[[object], Any], dtype: object) -> None:
    with pytest.raises(OpTypeError, match="dtype"):
        choose(dtype)
    assert bu.zeros(1).dtype is f64


# -- what is compiled ------------------------------------------------------------------------------


@pytest.fixture
def native() -> Iterator[None]:
    """The default device of the package, which answers repeated calls without the interpreter."""
    with bu.device("cpu"):
        yield


@bu.jit
def with_ones(x: Any) -> Any:
    return x + bu.ones(3)


@bu.jit
def around(x: Any) -> Any:
    return with_ones(x) * 2


@bu.jit
def doubled(x: Any) -> Any:
    return x * 2.0


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("fn", [with_ones, around])
def test_a_signature_holds_for_one_default(fn: Any) -> None:
    x = bu.ones(3, dtype=f16)
    for _ in range(2):
        for dtype in (f64, f32, f16, f32):
            bu.set_default_dtype(dtype)
            assert [fn(x).dtype for _ in range(4)] == [dtype] * 4
            with bu.default_dtype(bf16):
                assert [fn(x).dtype for _ in range(4)] == [f32] * 4  # f16 and bf16 meet there
            assert [fn(x).dtype for _ in range(4)] == [dtype] * 4


@pytest.mark.usefixtures("native")
def test_arguments_of_numpy_come_in_the_default() -> None:
    host, ours = np.asarray([0.1, 0.2, 0.3]), bu.asarray([0.1, 0.2, 0.3])
    for dtype in (f64, f32, f64):
        bu.set_default_dtype(dtype)
        assert [doubled(host).dtype for _ in range(4)] == [dtype] * 4
        assert [doubled(ours).dtype for _ in range(4)] == [f64] * 4
        assert doubled(host).tolist() == (host.astype(dtype.numpy) * 2).tolist()


@pytest.mark.usefixtures("native")
def test_only_what_depends_on_it_is_looked_up_again() -> None:
    independent, dependent = bu.jit(lambda x: x * 2.5), bu.jit(lambda x: x + bu.ones(3))
    x = bu.ones(3, dtype=f32)
    for _ in range(3):
        independent(x), dependent(x)
    assert independent._fast._served
    assert dependent._fast._served
    bu.set_default_dtype(f32)
    assert independent._fast._served
    assert not dependent._fast._served
    with bu.default_dtype(f16):
        for _ in range(3):
            dependent(x)
        assert not dependent._fast._served  # other threads have another default
    for _ in range(3):
        dependent(x)
    assert dependent._fast._served


@pytest.mark.usefixtures("native")
def test_threads_with_different_defaults_share_a_function() -> None:
    wrong: list[Any] = []
    x = bu.ones(3, dtype=bf16)
    shared = bu.jit(lambda x: x + bu.ones(3))

    def work(dtype: DType) -> None:
        for _ in range(50):
            with bu.device("cpu"), bu.default_dtype(dtype):
                wrong.extend(d for d in [shared(x).dtype for _ in range(5)] if d is not dtype)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in (f64, f32, bf16)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with bu.device("cpu"):
            found = shared(x).dtype
        assert found is f64
    for thread in threads:
        thread.join()
    assert wrong == []


def test_recorded_operations_keep_the_default_of_their_line() -> None:
    with bu.default_dtype(f32):
        x = bu.ones(3) * 2
    y = bu.ones(3) * 2
    assert (x.dtype, y.dtype) == (f32, f64)
    assert x.tolist() == y.tolist() == [2.0] * 3


def test_it_is_a_decorator() -> None:
    @bu.default_dtype(f32)
    def made() -> Any:
        return bu.linspace(0, 1, 3)

    assert made().dtype is made().dtype is f32
    assert bu.zeros(1).dtype is f64
