"""What `jit` and `grad` say of options that fit no parameter, and jitted functions as objects."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import BackendError, ConversionError, OpTypeError


@bu.jit
def doubled(x: Any) -> Any:
    """Twice."""
    return x * 2


def scaled(x: Any, n: int = 2) -> Any:
    return x * n


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"static_argnames": "m"}, "static_argnames='m': scaled has parameters x, n"),
        ({"static_argnums": 2}, "static_argnums=2: scaled has 2 parameters"),
        ({"static_argnums": -3}, "static_argnums=-3: scaled has 2 parameters"),
        ({"donate_argnums": (0, 7)}, "donate_argnums=7: scaled has 2 parameters"),
    ],
)
def test_an_option_that_names_no_parameter_is_refused(options: Any, said: str) -> None:
    with pytest.raises(OpTypeError, match=said):
        bu.jit(scaled, **options)


def test_open_signatures_take_any_position_and_name() -> None:
    f = bu.jit(lambda *args, **names: args[0] * args[1] * names["k"], static_argnums=1)
    assert f(bu.asarray([1.0]), 3, k=2).tolist() == [6.0]
    g = bu.jit(lambda x, **names: x * names["k"], static_argnames="k")
    assert g(bu.asarray([1.0]), k=2).tolist() == [2.0]
    h = bu.jit(lambda x, *, k: x * k, static_argnames=("k",))
    assert h(bu.asarray([1.0]), k=2).tolist() == [2.0]


def test_a_jitted_function_copies_and_pickles_like_a_function() -> None:
    assert copy.copy(doubled) is doubled
    assert copy.deepcopy({"f": doubled})["f"] is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(bu.jit(lambda x: x))


def test_a_type_is_no_argument_of_a_call() -> None:
    f = bu.jit(lambda x: x + 1)
    for meant in (bu.float32[3], bu.float32):
        with pytest.raises(ConversionError, match=r"argument x of lambda is the type f32"):
            f(meant)
        assert f.lower(meant).graph.outputs[0].dtype is bu.float32


def test_host_arrays_of_foreign_byte_order_are_refused_with_the_line_and_the_fix() -> None:
    swapped = np.arange(3, dtype=">i4")
    with pytest.raises(ConversionError, match=r"(?s)argument x of lambda.*>i4.*test_signatures.py"):
        bu.jit(lambda x: x)(swapped)
    assert bu.asarray(swapped).dtype is bu.int32
    assert bu.asarray(swapped).tolist() == [0, 1, 2]
    assert bu.asarray(swapped, dtype=bu.float32).tolist() == [0, 1, 2]


@pytest.mark.parametrize("argnums", [(0, 0), (0, -2), (-1, 1)])
def test_differentiating_twice_by_one_argument_is_refused(argnums: Any) -> None:
    with pytest.raises(OpTypeError, match=r"argnums .* name one argument twice"):
        bu.grad(lambda a, b: bu.sum(a * b), argnums=argnums)(bu.ones(2), bu.ones(2))


def test_what_is_no_name_of_a_device_is_refused() -> None:
    wrong: tuple[Any, ...] = (0, 1.5, b"cpu")
    for meant in wrong:
        with pytest.raises(BackendError, match="names no device"):
            bu.device(meant)
        with pytest.raises(BackendError, match="names no device"):
            bu.zeros(3, device=meant)


def test_an_integer_too_large_for_any_float_is_a_conversion_error() -> None:
    x = bu.asarray([1.0])
    with pytest.raises(ConversionError, match="too large for f64"):
        x + 10**400
    with pytest.raises(ConversionError, match="too large for f64"):
        bu.jit(lambda x, n: x * n)(x, 10**400)


def test_derivatives_are_of_functions() -> None:
    wrong: Any = 3
    for make in (bu.grad, bu.value_and_grad):
        with pytest.raises(OpTypeError, match="grad: int is no function"):
            make(wrong)


def test_signatures_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.api.jit.SIGNATURES", 3)
    traced: list[tuple[int, ...]] = []

    def successor(x: Any) -> Any:
        traced.append(x.shape)
        return x + 1

    f = bu.jit(successor)
    for n in (1, 2, 3, 4, 4, 1):
        assert f(bu.zeros(n)).shape == (n,)
    assert traced == [(1,), (2,), (3,), (4,), (1,)]
    assert repr(f).endswith("3 signatures>")
