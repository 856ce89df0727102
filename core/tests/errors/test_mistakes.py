"""Typical mistakes of users: each message says what, where, with which op or types, and the fix.

A mistake is a function; its faulty line ends in ``# here``, and the error has to point there.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

import bringup as bu
from bringup import config
from bringup.backend import (
    BufferView,
    Capabilities,
    DeviceInfo,
    OpsDevice,
    SimpleBackend,
    claims,
)
from bringup.errors import BringupError, OutOfMemoryError
from bringup.runtime import devices

from . import loops

Mistake = Callable[[], Any]
MISTAKES: dict[str, Mistake] = {**loops.MISTAKES}
#: Where the faulty lines stand.
FILES = (__file__, loops.__file__)


def mistake(function: Mistake) -> Mistake:
    MISTAKES[function.__name__] = function
    return function


def ones(*shape: int, dtype: object = bu.float32) -> bu.Array:
    return bu.asarray(np.ones(shape, np.float32), dtype=dtype)


# ---- types and shapes


@mistake
def shapes_that_do_not_broadcast() -> None:
    ones(4, 8) + ones(3)  # here


@mistake
def a_value_per_row() -> None:
    ones(4, 8) * ones(4)  # here


@mistake
def an_array_of_numpy_of_another_shape() -> None:
    np.ones(3, np.float32) - ones(4)  # here


@mistake
def a_comparison_of_shapes_that_do_not_broadcast() -> None:
    _ = ones(3) > ones(4)  # here


@mistake
def bits_of_shapes_that_do_not_broadcast() -> None:
    bu.jit(lambda x, y: bu.bitwise_left_shift(x, y))(ones(3), ones(4))  # here


@mistake
def dtypes_that_do_not_meet() -> None:
    ones(2, dtype=bu.uint64) + ones(2, dtype=bu.int8)  # here


@mistake
def bits_of_a_float() -> None:
    ones(4) & ones(4)  # here


@mistake
def a_condition_that_is_no_bool() -> None:
    bu.where(ones(3), 1, 2)  # here


@mistake
def a_product_of_matrices_that_do_not_fit() -> None:
    ones(4, 8) @ ones(4, 8)  # here


@mistake
def an_axis_out_of_range() -> None:
    bu.sum(ones(4, 8), axis=2)  # here


@mistake
def an_axis_of_a_scalar() -> None:
    bu.nn.softmax(ones(), axis=-1)  # here


@mistake
def an_axis_by_name() -> None:
    bu.nn.softmax(ones(4, 8), axis="rows")  # type: ignore[arg-type]  # here


@mistake
def another_number_of_elements() -> None:
    bu.reshape(ones(4, 8), (5, 7))  # here


@mistake
def a_negative_size() -> None:
    bu.zeros((2, -1))  # here


@mistake
def joined_arrays_that_differ() -> None:
    bu.concat([ones(2, 3), ones(2, 4)])  # here


@mistake
def the_maximum_of_nothing() -> None:
    bu.max(ones(0, 4), axis=0)  # here


@mistake
def a_dtype_that_does_not_exist() -> None:
    bu.zeros(3, dtype="float31")  # here


# ---- values


@mistake
def a_number_that_overflows() -> None:
    ones(2, dtype=bu.int8) + 300  # here


@mistake
def numbers_that_overflow() -> None:
    bu.asarray([1, 300], dtype=bu.int8)  # here


@mistake
def a_ragged_list() -> None:
    bu.asarray([[1, 2], [3]])  # here


@mistake
def words() -> None:
    bu.asarray(["one", "two"])  # here


@mistake
def a_float_of_an_array() -> None:
    float(ones(3))  # here


@mistake
def the_truth_of_an_array() -> None:
    if ones(3) > 0:  # here
        pass


@mistake
def the_length_of_a_scalar() -> None:
    len(bu.sum(ones(3)))  # here


@mistake
def an_integer_to_a_negative_power() -> None:
    ones(2, dtype=bu.int32) ** -1  # here


# ---- indices and attributes


@mistake
def an_index_out_of_range() -> None:
    ones(3, 4)[1, 4]  # here


@mistake
def too_many_indices() -> None:
    ones(3)[0, 0]  # here


@mistake
def a_list_of_indices() -> None:
    ones(3)[[0, 3]]  # here


@mistake
def an_assignment() -> None:
    x = ones(3)
    x[0] = 1.0  # here


@mistake
def a_method_of_numpy() -> None:
    ones(3).exp()  # type: ignore[attr-defined]  # here


@mistake
def a_misspelt_attribute() -> None:
    ones(3).shpae  # type: ignore[attr-defined]  # noqa: B018  # here


@mistake
def a_function_of_numpy() -> None:
    bu.unique(ones(2))  # type: ignore[attr-defined]  # here


@mistake
def a_misspelt_function() -> None:
    bu.maximun(ones(2), 1)  # type: ignore[attr-defined]  # here


@mistake
def a_function_that_others_make_up_for() -> None:
    bu.histogram2d(ones(2), ones(2))  # type: ignore[attr-defined]  # here


@mistake
def a_format_for_many_elements() -> None:
    format(ones(2), ".3f")  # here


@mistake
def a_function_that_is_not_there() -> None:
    bu.roots(ones(2))  # type: ignore[attr-defined]  # here


# ---- tracing, jit, grad


@mistake
def an_if_on_a_traced_value() -> None:
    @bu.jit
    def relu(x: bu.Array) -> bu.Array:
        if bu.sum(x) > 0:  # here
            return x
        return x * 0

    relu(ones(3))


@mistake
def a_float_of_a_traced_value() -> None:
    @bu.jit
    def scaled(x: bu.Array) -> bu.Array:
        return x * float(bu.max(x))  # here

    scaled(ones(3))


@mistake
def a_traced_value_kept_outside() -> None:
    kept: list[bu.Array] = []

    @bu.jit
    def leak(x: bu.Array) -> bu.Array:
        kept.append(x * 2)
        return x

    leak(ones(3))
    kept[0] + 1  # here


@mistake
def a_value_instead_of_a_function() -> None:
    bu.jit(ones(3))  # here


@mistake
def a_static_list() -> None:
    power = bu.jit(lambda x, sizes: bu.reshape(x, sizes), static_argnums=1)
    power(ones(4), [2, 2])  # here


@mistake
def a_word_as_argument() -> None:
    act = bu.jit(lambda x, name: x)
    act(ones(4), "relu")  # here


@mistake
def a_type_as_text() -> None:
    bu.trace(lambda x: x + 1, "f32[4,8]")  # here


@mistake
def a_result_that_is_no_array() -> None:
    described = bu.jit(lambda x: {"x": x, "name": "x"})
    described(ones(3))  # here


@mistake
def a_donated_array() -> None:
    x = ones(3)
    step = bu.jit(lambda p: p + 1, donate_argnums=0)
    step(x)
    x * 2  # here


@mistake
def the_gradient_of_a_vector() -> None:
    bu.grad(lambda x: x * x)(ones(3))  # here


@mistake
def the_gradient_by_integers() -> None:
    bu.grad(lambda x: bu.sum(x * 1.5))(ones(3, dtype=bu.int32))  # here


@mistake
def the_gradient_by_a_field_that_is_a_number_of_something() -> None:
    @dataclass
    class Layer:
        w: bu.Array
        heads: int

    bu.grad(lambda layer: bu.sum(layer.w * layer.heads))(Layer(ones(3), 2))  # here


# ---- vmap


@mistake
def examples_of_two_counts() -> None:
    bu.vmap(lambda x, y: x + y)(ones(3, 4), ones(5, 4))  # here


@mistake
def another_number_of_examples() -> None:
    bu.vmap(lambda x: x, axis_size=4)(ones(3))  # here


@mistake
def a_number_mapped() -> None:
    bu.vmap(lambda x, k: x * k)(ones(3), 2.0)  # here


@mistake
def a_mapped_axis_out_of_range() -> None:
    bu.vmap(lambda p: p["w"], in_axes=2)({"w": ones(3, 4)})  # here


@mistake
def axes_of_too_few_arguments() -> None:
    bu.vmap(lambda x, y: x + y, in_axes=(0,))(ones(3), ones(3))  # here


@mistake
def axes_of_another_container() -> None:
    bu.vmap(lambda p: p["w"], in_axes=({"w": 0, "b": 0},))({"w": ones(3)})  # here


@mistake
def axes_of_results_of_another_container() -> None:
    bu.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(ones(3))  # here


@mistake
def an_axis_that_is_a_float() -> None:
    bu.vmap(lambda x: x, in_axes=0.5)(ones(3))  # here


@mistake
def a_mapped_result_without_axis() -> None:
    bu.vmap(lambda x: {"y": x + 1}, out_axes=None)(ones(3))  # here


@mistake
def a_result_axis_out_of_range() -> None:
    bu.vmap(lambda x: x + 1, out_axes=2)(ones(3, 4))  # here


@mistake
def nothing_to_map() -> None:
    bu.vmap(lambda x: x, in_axes=None)(ones(3))  # here


@mistake
def a_word_mapped() -> None:
    bu.vmap(lambda x, kind: x)(ones(3), "relu")  # here


@mistake
def an_if_on_one_example() -> None:
    def step(x: bu.Array) -> bu.Array:
        return x if x > 0 else -x  # here

    bu.vmap(step)(ones(3))


@mistake
def a_negative_count_of_examples() -> None:
    bu.vmap(lambda x: x, in_axes=None, axis_size=-1)(ones(3))  # here


@mistake
def a_matrix_of_derivatives_of_integers() -> None:
    bu.jacrev(lambda x: {"place": bu.argmax(x)})(ones(3))  # here


@mistake
def a_cotangent_of_another_type() -> None:
    _, pull = bu.vjp(lambda x: bu.sum(x), ones(3))
    pull(ones(3))  # here


@mistake
def a_tangent_too_few() -> None:
    bu.jvp(lambda x, y: x * y, (ones(3), ones(3)), (ones(3),))  # here


@mistake
def a_map_of_no_function() -> None:
    bu.vmap(ones(3))  # type: ignore[arg-type]  # here


# ---- devices


def host(view: BufferView) -> np.ndarray[Any, Any]:
    data = np.frombuffer(view.handle, view.type.dtype.numpy, view.type.size, view.offset)
    return data.reshape(view.type.shape)


def add(x: BufferView, y: BufferView, out: BufferView) -> None:
    host(out)[...] = host(x) + host(y)


class SmallDevice(OpsDevice):
    """Has one op on one dtype, and room for arrays of 1 KiB."""

    ops: ClassVar = {"add": add}
    capabilities = Capabilities(ops=claims(ops, ["f32"]))

    def alloc(self, nbytes: int) -> bytearray:
        if nbytes > 1024:
            raise OutOfMemoryError(f"no room for {nbytes} bytes", fix="use smaller arrays")
        return bytearray(nbytes)

    def free(self, handle: bytearray) -> None:
        handle.clear()

    def upload(self, handle: bytearray, data: memoryview) -> None:
        handle[: len(data)] = data

    def download(self, handle: bytearray, out: memoryview) -> None:
        out[:] = memoryview(handle)[: len(out)]

    def copy(self, target: bytearray, source: bytearray, nbytes: int) -> None:
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None:
        pass


@contextmanager
def small_device() -> Iterator[None]:
    backend = SimpleBackend("small", lambda index: SmallDevice(), SmallDevice.capabilities)
    opened = devices.OpenDevice("small", 0, backend, SmallDevice(), DeviceInfo(0, "a small chip"))
    with bu.device(opened):
        yield


@mistake
def a_device_that_is_not_there() -> None:
    bu.asarray([1.0], device="nothing")  # here


@mistake
def a_device_that_is_not_there_in_a_block() -> None:
    with bu.device("nothing"):  # here
        pass


@mistake
def a_target_that_is_not_there() -> None:
    bu.jit(lambda x: x + 1).lower(bu.float32[3], target="nothing:v1")  # here


@mistake
def operands_on_two_devices() -> None:
    here = ones(3)
    with small_device():
        there = bu.asarray(np.ones(3, np.float32))
    here + there  # here


@mistake
def an_op_the_device_lacks() -> None:
    with small_device():
        y = bu.exp(ones(3))  # here
        y.tolist()


@mistake
def an_op_the_device_lacks_in_a_jit() -> None:
    @bu.jit
    def f(x: bu.Array) -> bu.Array:
        return bu.exp(x + x)  # here

    with small_device():
        f(ones(3))


@mistake
def a_dtype_the_device_lacks() -> None:
    with small_device():
        y = ones(3, dtype=bu.float64) + 1  # here
        y.tolist()


@mistake
def more_memory_than_there_is() -> None:
    with small_device():
        x = bu.asarray(np.ones(300, np.float32))  # here
        x.tolist()


def told(error: BringupError) -> str:
    """The message, with the text of a line in place of its file and number."""

    def line(match: re.Match[str]) -> str:
        return f"`{linecache.getline(match[1], int(match[2])).split('  #')[0].strip()}`"

    text = f"{type(error).__name__}: {error}"
    text = re.sub(rf"({'|'.join(map(re.escape, FILES))}):(\d+) \((?:\w+|<lambda>)\)", line, text)
    default = devices.get().name
    text = re.sub(r"installed: .*", "installed: …", text)
    return text.replace(f" {default}", " DEFAULT").replace(f'"{default}"', '"DEFAULT"')


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_has_four_facts(name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(BringupError) as caught:
        MISTAKES[name]()
    error = caught.value
    assert error.what
    assert error.location is not None, error
    assert error.location.file in FILES
    faulty = linecache.getline(error.location.file, error.location.line)
    assert faulty.rstrip().endswith("# here"), error
    assert error.fix
    assert told(error) == snapshot


@pytest.mark.parametrize(
    ("name", "value", "levels"),
    [
        ("BRINGUP_CHECK", "yes", "0, 1, 2"),
        ("BRINGUP_CHECK", "3", "0, 1, 2"),
        ("BRINGUP_CHECK", "-1", "0, 1, 2"),
        ("BRINGUP_DEBUG", "5", "0, 1, 2, 3, 4"),
    ],
)
def test_a_level_that_does_not_exist(
    name: str, value: str, levels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BringupError) as caught:
        config.level(name)
    assert caught.value.what == f"{name}={value!r} is no value of {name}"
    assert caught.value.fix == f"set {name} to one of {levels}, or unset it"


def test_a_level_is_read_when_a_program_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "thorough")
    with pytest.raises(BringupError, match="BRINGUP_CHECK='thorough' is no value"):
        bu.jit(lambda x: x * 1.2345)(ones(3))


def test_an_empty_level_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "")
    assert config.level("BRINGUP_CHECK") == 0


def test_probes_for_protocols_find_nothing() -> None:
    assert not hasattr(ones(2), "__array_interface__")
    assert not hasattr(ones(2), "_repr_svg_")
    assert not hasattr(ones(2), "exp")
    assert not hasattr(bu, "histogram2d")
    assert not hasattr(bu, "__path_hooks__")


def test_a_deleted_array_still_prints() -> None:
    x = ones(3)
    bu.jit(lambda p: p + 1, donate_argnums=0)(x)
    assert repr(x) == "Array<f32[3], deleted: it was donated>"
