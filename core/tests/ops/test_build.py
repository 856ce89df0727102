"""The emission helpers: what they emit, and that they emit nothing where nothing is to do."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.dtypes import bf16, bool_, f16, f32, f64, i8, i32, u8, u32
from bringup.graph import Builder
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.evaluate import evaluate
from bringup.ops.graph_arithmetic import polynomial


@pytest.fixture
def emitted():
    """Apply a function to inputs of the types of arrays; its value and the ops it used."""

    def run(function, *arrays):
        from bringup.dtypes import as_dtype
        from bringup.types import TensorType

        with Builder() as b:
            inputs = [b.input(TensorType(a.shape, as_dtype(a.dtype))) for a in arrays]
            graph = b.build([function(*inputs)])
        return evaluate(graph, arrays)[0], [i.op.name for i in graph.instrs]

    return run


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: build.convert(x, f32),
        lambda x: build.bitcast(x, f32),
        lambda x: build.reshape(x, (2, 3)),
        lambda x: build.transpose(x, (0, 1)),
        lambda x: build.broadcast_to(x, (2, 3)),
        lambda x: build.reduce("add", x, ()),
        lambda x: build.pad(x, 0, (0, 0), (0, 0)),
        lambda x: build.slice_dim(x, 1, 0, 3),
        lambda x: build.reverse(x, ()),
        build.widened,
    ],
)
def test_nothing_to_do_emits_nothing(emitted, function) -> None:
    value, names = emitted(function, X)
    assert names == []
    assert np.array_equal(value, X)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: build.like(x, 2.5), np.full((2, 3), 2.5)),
        (build.zeros_like, np.zeros((2, 3))),
        (build.ones_like, np.ones((2, 3))),
        (lambda x: build.transpose(x, (1, 0)), X.T),
        (lambda x: build.reshape(x, [3, 2]), X.reshape(3, 2)),
        (lambda x: build.broadcast_to(x, (4, 2, 3)), np.broadcast_to(X, (4, 2, 3))),
        (lambda x: build.sum_(x, (0,)), X.sum(0)),
        (lambda x: build.reduce("max", x, [0, 1]), np.array(5.0)),
        (lambda x: build.kept(build.sum_(x, (1,)), (1,), x.shape),
         np.tile(X.sum(1, keepdims=True), 3)),
        (lambda x: build.keepdims(build.sum_(x, (1,)), (1,), 2), X.sum(1, keepdims=True)),
        (lambda x: build.slice_dim(x, 1, 1, 3), X[:, 1:3]),
        (lambda x: build.reverse(x, (1,)), X[:, ::-1]),
        (lambda x: polynomial(x, (-1.0, 0.0, 2.0)), 2 * X * X - 1),
        (lambda x: build.pad(x, 9, (0, 1), (0, 0)), np.pad(X, ((0, 0), (1, 0)), constant_values=9)),
        (lambda x: build.pad(x, build.splat(9, f32[()]), (0, 1), (0, 0)),
         np.pad(X, ((0, 0), (1, 0)), constant_values=9)),
        (lambda x: rows.select(build.is_nan(x), x, build.like(x, 1)), np.ones((2, 3))),
    ],
)  # fmt: skip
def test_values(emitted, function, wanted) -> None:
    value, _ = emitted(function, X)
    assert value.shape == wanted.shape
    assert np.array_equal(value, wanted)


def test_constants_are_dense(emitted) -> None:
    value, _ = emitted(lambda: build.constant([[1, 2], [3, 4]], i8))
    assert value.dtype == np.int8
    assert value.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", [i8, i32, u8, bool_])
def test_not_inverts_every_bit(emitted, dtype) -> None:
    x = np.array([0, 1, 1, 0]).astype(dtype.numpy)
    value, _ = emitted(build.not_, x)
    assert np.array_equal(value, ~x)


def test_widths() -> None:
    assert build.unsigned(f32) is u32
    assert build.signed(f32) is i32
    assert build.all_ones(u8) == 255
    assert build.all_ones(i8) == -1
    assert build.all_ones(bool_) is True


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_decompositions_work_on_halves_in_f32(dtype) -> None:
    seen = []

    @build.in_f32
    def decompose(x, *, times):
        seen.append(x.dtype)
        return rows.mul(x, build.like(x, times))

    with Builder() as b:
        result = decompose(b.input(dtype[3]), times=2.0)
    assert result.dtype is dtype
    assert seen == [f32 if dtype in (f16, bf16) else dtype]


def test_rows_names_every_op() -> None:
    with Builder() as b:
        x = b.input(bool_[2])
        assert rows.and_(x, x).producer.op.name == "and"
    with pytest.raises(AttributeError, match="'nothing'"):
        rows.nothing(x)


def test_size_of() -> None:
    with Builder() as b:
        x = b.input(f32[2, 3, 4])
    assert build.size_of(x, (0, 2)) == 8
    assert build.size_of(x, ()) == 1
