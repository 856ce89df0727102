"""Every public function given junk raises errors of ours, or none."""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import BringupError

SPACES: dict[str, Any] = {
    "": bu, "nn": bu.nn, "linalg": bu.linalg, "fft": bu.fft, "random": bu.random,
    "special": bu.special, "nn.init": bu.nn.init, "amp": bu.amp, "lax": bu.lax,
    "quant": bu.quant,
}  # fmt: skip
#: What takes functions of the user, whose own errors come back; or whole programs, which take long.
OTHERS = {
    "cond", "fori_loop", "scan", "switch", "while_loop", "jit", "grad", "value_and_grad", "vmap",
    "vjp", "jvp", "hessian", "jacfwd", "jacrev", "trace", "clear_caches", "devices", "device",
    "TensorType", "BringupError", "map", "associative_scan", "apply_along_axis", "vectorize",
    "piecewise", "compare", "linearize", "eval_shape",
    "quant.calibrate", "quant.fake_params", "quant.quantize_params",
}  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for space, module in SPACES.items():
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if f"{space}.{name}".lstrip(".") in OTHERS or name.startswith("_"):
                continue
            if space == "lax" and value is getattr(bu, name, None):
                continue
            # Namespaces without `__all__` hold what their functions are made of, too.
            home = getattr(value, "__module__", "").rpartition(".")[2]
            own = hasattr(module, "__all__") or home in space
            if isinstance(value, types.FunctionType) and own:
                yield f"{space}.{name}".lstrip("."), value


FUNCTIONS = dict(functions())


def junk() -> list[Any]:
    """Values of every kind, good for some parameter or none."""
    matrix = np.arange(6.0).reshape(2, 3)
    return [
        None, True, False, 0, 1, -1, 2, 10**30, 1.5, -0.0, float("nan"), float("inf"), 2j, "", "a",
        "float32", "i,j->ij", b"x", (), (0,), (1, 2), (2, 3), (-1,), (0, 0), (1.5,), [], [1, 2],
        [[1], [2, 3]], ["a"], {}, {"a": 1}, {1}, set(), slice(None), slice(1, 2), ...,
        object(), object, float, int, len, (lambda x: x), bu.float32, bu.complex64, bu.int8,
        bu.float32[2, 3], np.float32, np.dtype(">f4"), np.float32(2), np.int8(3), np.bool_(True),
        np.array(3), np.array("a"), np.array([None, 1], object), np.ones(2), np.ones((2, 2), bool),
        np.array([1, 0], np.uint8), matrix, bu.asarray(matrix), bu.asarray(matrix @ matrix.T),
        bu.asarray(3), bu.asarray(1.5), bu.asarray(True), bu.asarray([1, 0]), bu.asarray([1j, 2]),
        bu.asarray([True, False]), bu.zeros((0, 3)), bu.zeros((2, 2, 2), dtype=bu.float16),
        bu.asarray([1, 2], dtype=bu.uint8), bu.random.key(0), bu.devices, range(3), iter([1]),
    ]  # fmt: skip


def calls(f: Callable[..., Any], rng: random.Random, count: int) -> Iterator[tuple[Any, Any]]:
    """Arguments that fit the signature."""
    signature = inspect.signature(f)
    values = junk()
    arrays = [v for v in values if isinstance(v, bu.Array)]
    for _ in range(count):
        args: list[Any] = []
        named: dict[str, Any] = {}
        for n, parameter in enumerate(signature.parameters.values()):
            optional = parameter.default is not parameter.empty
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if optional and rng.random() < 0.6:
                continue
            value = rng.choice(arrays if n == 0 and rng.random() < 0.5 else values)
            if parameter.kind is parameter.KEYWORD_ONLY or optional:
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    continue
                named[parameter.name] = value
            else:
                args.append(value)
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            args += rng.choices(values, k=rng.randrange(3))
        yield args, named


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """Some junk is a dtype."""
    yield
    bu.set_default_dtype(bu.float64)


@pytest.mark.filterwarnings("ignore:Data type alias")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_junk_raises_errors_of_ours(name: str) -> None:
    f = FUNCTIONS[name]
    rng = random.Random(f"seed of {name}")
    for args, named in calls(f, rng, 60):
        try:
            f(*args, **named)
        except BringupError:
            pass
        except Exception as error:
            shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in named.items())])
            raise AssertionError(f"{name}({shown}) raised {error!r}") from error


@pytest.mark.parametrize(
    "call",
    [
        lambda: bu.eye(None),
        lambda: bu.arange(()),
        lambda: bu.quantile(bu.ones(3), slice(None)),
        lambda: bu.switch(0, object()),
        lambda: bu.switch(0, [1]),
        lambda: bu.cond(True, 1, 2),
        lambda: bu.fft.fftn(bu.ones((2, 2)), s=-1),
        lambda: bu.fft.fftfreq(bu.random.key(0)),
        lambda: bu.mean(bu.ones(3), keepdims=np.ones(2)),
        lambda: bu.dynamic_slice(bu.ones(3), 1.5, (1,)),
        lambda: bu.dynamic_slice(bu.ones(3), bu.float32, (1,)),
        lambda: bu.stack(0),
        lambda: bu.einsum((), bu.ones(3)),
        lambda: bu.astype(bu.ones(3), bu.ones(3)),
        lambda: bu.linspace(True, (0, 0), 9),
        lambda: bu.full((0, 0), bu.random.key(0)),
        lambda: bu.zeros(10**30),
    ],
)
def test_errors_tell_the_line_and_the_fix(call: Any) -> None:
    with pytest.raises(BringupError) as caught:
        call()
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert caught.value.fix


def test_dtypes_are_no_iterables() -> None:
    """Else a list of one would never end, as an item of it is a type of arrays."""
    with pytest.raises(TypeError):
        list(bu.float32)  # type: ignore[call-overload]


def test_quantiles_of_no_shares() -> None:
    found = bu.quantile(bu.ones((2, 3)), [], axis=0)
    assert found.shape == np.quantile(np.ones((2, 3)), [], axis=0).shape


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("q", [0.25, [0.0, 0.3, 1.0], []], ids=str)
def test_quantiles_at_shares_that_are_data(q: Any, keepdims: bool) -> None:
    x = np.random.default_rng(0).normal(size=(5, 4))
    x[0, 0], x[2, 1] = np.nan, np.inf
    f = bu.jit(lambda v, q: bu.quantile(v, q, axis=0, keepdims=keepdims))
    with np.errstate(invalid="ignore"):
        wanted = np.quantile(x, q, axis=0, keepdims=keepdims)
    known = bu.quantile(bu.asarray(x), q, axis=0, keepdims=keepdims)
    for found in (f(bu.asarray(x), np.asarray(q)), known):
        assert found.shape == wanted.shape
        finite = np.isfinite(wanted)
        np.testing.assert_allclose(np.asarray(found)[finite], wanted[finite], rtol=1e-14)
    assert np.isnan(np.asarray(f(bu.asarray(x), np.asarray([1.5, -0.1])))).all()
