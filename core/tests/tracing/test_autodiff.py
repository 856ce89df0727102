from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import f16, f32, f64, i32
from bringup.errors import OpTypeError, UnsupportedError
from bringup.graph import Builder, Graph, Value
from bringup.ops import build
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, OpDef
from bringup.tracing.autodiff import vjp_graph
from bringup.types import TensorType


def graph_of(fn: Callable[..., Sequence[Value]], *types: TensorType) -> Graph:
    builder = Builder()
    inputs = [builder.input(t) for t in types]
    with builder:
        outputs = fn(*inputs)
    return builder.build(outputs)


def gradients(graph: Graph, wrt: Sequence[int], inputs: Sequence[Any]) -> list[Any]:
    """Gradients of the sum of all float outputs."""
    of = [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]
    seeds = [np.ones(graph.outputs[i].shape, graph.outputs[i].dtype.numpy) for i in of]
    results = evaluate(vjp_graph(graph, wrt, of), [*inputs, *seeds])
    return results[len(graph.outputs) :]


def numeric(graph: Graph, wrt: int, inputs: Sequence[Any]) -> Any:
    """Central differences of the same sum."""
    result = np.zeros_like(inputs[wrt])
    for index in np.ndindex(result.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [np.array(x) for x in inputs]
            moved[wrt][index] += step
            outputs = evaluate(graph, moved)
            ends.append(sum(float(o.sum()) for o in outputs if o.dtype == np.float64))
        result[index] = (ends[0] - ends[1]) / 2e-6
    return result


CASES: dict[str, Callable[..., Sequence[Value]]] = {
    "reuse": lambda x, y: [ops.mul(ops.mul(x, x), ops.mul(x, y))],
    "two outputs": lambda x, y: [ops.exp(x), ops.mul(ops.exp(x), y)],
    "through select": lambda x, y: [ops.select(build.compare("lt", x, y), ops.sin(x), y)],
    "movement": lambda x, y: [
        ops.concatenate(build.reverse(x, (0,)), ops.mul(y, y), dim=0),
        build.slice_dim(y, 1, 1, 3),
    ],
    "reductions": lambda x, y: [
        ops.mul(build.kept(build.sum_(x, (1,)), (1,), x.shape), y),
        build.reduce("max", x, (0, 1)),
    ],
    "composites": lambda x, y: [
        ops.softmax(x, dims=(1,)),
        ops.layer_norm(
            y,
            build.reshape(build.slice_dim(x, 0, 0, 1), (3,)),
            build.splat(0, f64[3]),
            dims=(1,),
        ),
    ],
    "contraction": lambda x, y: [ops.dot_general(x, y, batch=((), ()), contract=((1,), (1,)))],
    "unused": lambda x, y: [ops.exp(x)],
    "an input returned": lambda x, y: [x, ops.mul(x, y)],
    "integers on the side": lambda x, y: [
        ops.mul(x, ops.convert(ops.convert(y, dtype=i32), dtype=f64)),
        ops.convert(x, dtype=i32),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_slopes(name: str) -> None:
    graph = graph_of(CASES[name], f64[2, 3], f64[2, 3])
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=(2, 3)) + 0.25 for _ in range(2)]
    for wrt, found in zip((0, 1), gradients(graph, (0, 1), inputs), strict=True):
        np.testing.assert_allclose(found, numeric(graph, wrt, inputs), rtol=1e-5, atol=1e-7)


def test_the_outputs_come_first() -> None:
    graph = graph_of(lambda x: [ops.exp(x), ops.neg(x)], f32[2])
    pulled = vjp_graph(graph, [0], [1])
    assert [v.type for v in pulled.inputs] == [f32[2], f32[2]]
    assert [v.type for v in pulled.outputs] == [f32[2]] * 3
    x, ct = np.float32([1, 2]), np.float32([3, 4])
    results = evaluate(pulled, [x, ct])
    assert results[1].tolist() == [-1, -2]
    assert results[2].tolist() == [-3, -4]


def test_second_derivatives() -> None:
    graph = graph_of(lambda x: [ops.mul(x, ops.mul(x, x))], f64[1])
    once = vjp_graph(graph, [0])
    slope = graph_of(lambda x: once_only(once, x), f64[1])
    twice = evaluate(vjp_graph(slope, [0]), [np.float64([2.0]), np.float64([1.0])])
    assert twice[1].tolist() == [12.0]


def once_only(once: Graph, x: Value) -> Sequence[Value]:
    from bringup.graph import replay

    return replay(once, arguments=[x, build.ones_like(x)])[1:]


def test_a_composite_without_vjp_is_differentiated_through_its_decomposition() -> None:
    inner = OpDef(
        name="cube",
        arity=1,
        kind=Kind.COMPOSITE,
        doc="x³.",
        infer=lambda types, _: types[0],
        reference=lambda x: x**3,
        decompose=lambda x: ops.mul(x, ops.mul(x, x)),
    )
    outer = OpDef(
        name="cube_of_cube",
        arity=1,
        kind=Kind.COMPOSITE,
        doc="x⁹.",
        infer=lambda types, _: types[0],
        reference=lambda x: x**9,
        decompose=lambda x: inner(inner(x)),
    )
    graph = graph_of(lambda x: [outer(x)], f64[1])
    (slope,) = gradients(graph, [0], [np.float64([1.5])])
    np.testing.assert_allclose(slope, [9 * 1.5**8])


def test_an_op_without_derivative_stops_the_sweep_where_it_is() -> None:
    scan = OpDef(
        name="shuffle",
        arity=1,
        kind=Kind.ORDER,
        doc="Some order.",
        infer=lambda types, _: types[0],
        reference=lambda x: x,
    )
    builder = Builder(located=True)
    x = builder.input(f32[3])
    with builder:
        y = ops.mul(scan(x), x)
    graph = builder.build([y])
    with pytest.raises(UnsupportedError) as caught:
        vjp_graph(graph, [0])
    assert "shuffle has no derivative" in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_a_primitive_that_is_constant_almost_everywhere_gives_zero() -> None:
    graph = graph_of(lambda x: [ops.mul(ops.floor(x), x)], f64[2])
    (slope,) = gradients(graph, [0], [np.float64([2.5, -0.5])])
    assert slope.tolist() == [2.0, -1.0]


def test_what_nothing_depends_on_has_zero_gradient() -> None:
    graph = graph_of(lambda x, y: [ops.exp(x)], f32[2], f32[3])
    (zero,) = gradients(graph, [1], [np.float32([1, 2]), np.float32([1, 2, 3])])
    assert zero.tolist() == [0, 0, 0]


def test_only_floats_have_derivatives() -> None:
    graph = graph_of(lambda x, y: [ops.add(x, x), ops.exp(y)], i32[2], f16[2])
    with pytest.raises(OpTypeError, match=r"input 0 is i32\[2\], and derivatives exist for floats"):
        vjp_graph(graph, [0], [1])
    with pytest.raises(OpTypeError, match="output 0 is i32"):
        vjp_graph(graph, [1])


def test_no_work_is_done_off_the_path() -> None:
    graph = graph_of(lambda x, y: [ops.add(ops.exp(x), ops.sin(ops.sin(y)))], f32[2], f32[2])
    names = [i.op.name for i in vjp_graph(graph, [0]).instrs]
    assert "cos" not in names
    assert "constant" not in names
