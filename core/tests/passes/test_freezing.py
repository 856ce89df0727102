"""What is known of a graph, the cut at it, and scales that move into weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.graph import Graph
from bringup.graph.verify import verify
from bringup.ops.evaluate import evaluate
from bringup.passes.fold_scales import fold_scales
from bringup.passes.known import repeated, split
from bringup.passes.panels import in_panels
from bringup.passes.pipeline import freezing_passes
from bringup.passes.run import PassContext, run_pipeline

nn = bu.nn
f16, f32, f64, i32 = bu.float16, bu.float32, bu.float64, bu.int32
Parse = Callable[[str], Graph]
X, W, C = f64[2, 4, 5, 5], f64[6, 4, 3, 3], f64[6]


def column(v: Any) -> Any:
    return bu.reshape(v, (-1, 1, 1))


def affine(y: Any, s: Any, b: Any) -> Any:
    """Nothing that is named after a batch norm."""
    return -((y - b) / s) * 0.5 + (b - s)


def scaled_and(fn: Callable[[Any], Any], y: Any, s: Any) -> tuple[Any, Any]:
    return y * column(s), fn(y)


#: A function of (x, weights, per-feature numbers …), types; what is left of arithmetic after the
#: product, in order.
FOLDED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "convolution, scaled": (
        lambda x, w, s: nn.conv(x, w) * column(s), (X, W, C), []
    ),
    "convolution, batch norm": (
        lambda x, w, m, v, g, b: nn.batch_norm(nn.conv(x, w), g, b, mean=m, var=v * v),
        (X, W, C, C, C, C), ["add"],
    ),
    "convolution, bias, scales and shifts": (
        lambda x, w, s, b: affine(nn.conv(x, w) + column(b), column(s), column(b)),
        (X, W, C, C), ["add"],
    ),
    "convolution, features last": (
        lambda x, w, s, b: nn.conv(x, w, layout="NHWC", padding=1) * s + b,
        (f64[2, 5, 5, 4], f64[3, 3, 4, 6], C, C), ["add"],
    ),
    "convolution in groups": (
        lambda x, w, s: nn.conv(x, w, groups=2) * column(s), (X, f64[6, 2, 3, 3], C), []
    ),
    "convolution, squeezed": (
        lambda x, w, s, b: bu.squeeze(nn.conv(x, w), axis=3) * bu.reshape(s, (-1, 1)) + b[:, None],
        (X, f64[6, 4, 3, 5], C, C), ["add"],
    ),
    "transposed convolution": (
        lambda x, w, s: nn.conv_transpose(x, w, stride=2) * column(s), (X, f64[4, 6, 3, 3], C), []
    ),
    "product": (
        lambda x, w, s, b: (x @ w) * s + b, (f64[3, 4], f64[4, 6], C, C), ["add"]
    ),
    "product, weights left": (
        lambda x, w, s: (w @ x) / s[:, None], (f64[4, 3], f64[6, 4], C), []
    ),
    "product, transposed": (
        lambda x, w, s: (x @ w).T * s[:, None], (f64[3, 4], f64[4, 6], C), []
    ),
    "stacked products": (
        lambda x, w, s: (x @ w) * s, (f64[5, 3, 4], f64[5, 4, 6], f64[5, 1, 6]), []
    ),
    "scaled and shifted twice": (
        lambda x, w, s, b: (nn.conv(x, w) * column(s) + column(b)) * column(b) + column(s),
        (X, W, C, C), ["add"],
    ),
    "one number": (lambda x, w, s: (x @ w) * -s, (f64[3, 4], f64[4, 6], f64[()]), []),
}  # fmt: skip

#: What has to stay as it is.
KEPT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "a scale by place": (lambda x, w, s: nn.conv(x, w) * s, (X, W, f64[3, 3]), ["mul"]),
    "a scale by row": (
        lambda x, w, s: (x @ w) * s[:, None], (f64[3, 4], f64[4, 6], f64[3]), ["mul"]
    ),
    "a product read twice": (
        lambda x, w, s: scaled_and(bu.negative, nn.conv(x, w), s), (X, W, C), ["mul", "neg"]
    ),
    "a product that is returned": (
        lambda x, w, s: scaled_and(bu.asarray, nn.conv(x, w), s), (X, W, C), ["mul"]
    ),
    "a function between": (
        lambda x, w, s: nn.relu(nn.conv(x, w)) * column(s), (X, W, C), ["relu", "mul"]
    ),
    "a divisor": (lambda x, w, s: s / (x @ w), (f64[3, 4], f64[4, 6], C), ["div"]),
    "a square": (lambda x, w: bu.square(x @ w), (f64[3, 4], f64[4, 6]), ["square"]),
    "integers": (lambda x, w, s: (x @ w) * s, (i32[3, 4], i32[4, 6], i32[6]), ["mul"]),
    "a wider result": (
        lambda x, w, s: bu.matmul(x, w, dtype=f32) * s, (f16[3, 4], f16[4, 6], f32[6]), ["mul"]
    ),
    "no weights": (lambda x, s, b: (x - b) * s + b, (f64[3, 6], C, C), ["sub", "mul", "add"]),
    # The trick that rounds to whole numbers is made of constants, not of parameters.
    "literal shifts": (
        lambda x, w: (x @ w + 3e15) - 3e15, (f64[3, 4], f64[4, 6]), ["add", "sub"]
    ),
}  # fmt: skip

ARITHMETIC = ("add", "sub", "mul", "div", "neg", "relu", "exp", "square")


def frozen(fn: Callable[..., Any], types: tuple[Any, ...]) -> tuple[Graph, Graph, Graph]:
    """The graph of a function, that of its constants and that of the rest, all but the first
    argument known.
    """
    graph = bu.trace(fn, *types)
    known = frozenset(range(1, len(types)))
    passed = run_pipeline(graph, freezing_passes(known), context=PassContext(check=2))
    return (graph, *split(passed, known))


@pytest.mark.parametrize("name", [*FOLDED, *KEPT])
def test_arithmetic_after_products(name: str) -> None:
    fn, types, left = {**FOLDED, **KEPT}[name]
    graph, constants, rest = frozen(fn, types)
    verify(constants)
    verify(rest)
    names = [instr.op.name for instr in rest.instrs if instr.op.name in ARITHMETIC]
    assert names == left
    if "batch norm" in name:
        return  # has a root, which no test of exact numbers passes; see test_freeze
    inputs = [exact(v.type) for v in graph.inputs]
    wanted = evaluate(graph, inputs)
    found = evaluate(rest, [inputs[0], *evaluate(constants, inputs[1:])])
    for a, b in zip(wanted, found, strict=True):
        assert np.array_equal(a, b)


def exact(type_: Any) -> np.ndarray[Any, Any]:
    """Numbers whose sums, products and quotients have few digits: whole ones for a product, and
    powers of two for a scale.
    """
    rng = np.random.default_rng(type_.size)
    whole = rng.integers(-4, 5, type_.shape)
    few = len([n for n in type_.shape if n > 1]) < 2
    return (2 ** np.abs(whole) if few else whole).astype(type_.dtype.numpy)


def test_golden(parse: Parse) -> None:
    before = """
    graph f(%0: f32[2,3], %1: f32[3,4], %2: f32[4]) {
      %3: f32[2,4] = dot_general(%0, %1) {batch=((), ()), contract=((1,), (0,)), accumulate=f32, result=f32, precision="highest"}
      %4: f32[2,4] = broadcast_in_dim(%2) {shape=(2, 4), dims=(1,)}
      %5: f32[2,4] = sub(%3, %4)
      %6: f32[2,4] = mul(%5, %4)
      %7: f32[2,4] = add(%6, %4)
      return %7
    }
    """  # noqa: E501
    constants = """
    graph f(%0: f32[3,4], %1: f32[4]) {
      %2: f32[3,4] = broadcast_in_dim(%1) {shape=(3, 4), dims=(1,)}
      %3: f32[3,4] = mul(%0, %2)
      %4: f32[4] = mul(%1, %1)
      %5: f32[4] = sub(%1, %4)
      return %3, %5
    }
    """
    rest = """
    graph f(%0: f32[2,3], %1: f32[3,4], %2: f32[4]) {
      %3: f32[2,4] = dot_general(%0, %1) {batch=((), ()), contract=((1,), (0,)), accumulate=f32, result=f32, precision="highest"}
      %4: f32[2,4] = broadcast_in_dim(%2) {shape=(2, 4), dims=(1,)}
      %5: f32[2,4] = add(%3, %4)
      return %5
    }
    """  # noqa: E501
    known = frozenset({1, 2})
    graph = parse(before)
    folded = run_pipeline(graph, freezing_passes(known), context=PassContext(check=2))
    parts = split(folded, known)
    cleaned = run_pipeline(parts[0], freezing_passes(frozenset()), context=PassContext(check=2))
    assert str(cleaned) == inspect.cleandoc(constants)
    assert str(parts[1]) == inspect.cleandoc(rest)
    assert str(graph) == inspect.cleandoc(before), "the pass changed its argument"


def test_golden_panels(parse: Parse) -> None:
    """Eighteen columns in panels of eight; weights are laid out as they are read."""
    constants = parse("""
    graph f(%0: f32[18,16,2], %1: f32[18]) {
      return %0, %1
    }
    """)
    rest = parse("""
    graph f(%0: f32[20,32], %1: f32[18,16,2], %2: f32[18]) {
      %3: f32[18,32] = reshape(%1) {shape=(18, 32)}
      %4: f32[20,18] = dot_general(%0, %3) {batch=((), ()), contract=((1,), (1,)), accumulate=f32, result=f32, precision="highest"}
      %5: f32[20,18] = broadcast_in_dim(%2) {shape=(20, 18), dims=(1,)}
      %6: f32[20,18] = add(%4, %5)
      return %6
    }
    """)  # noqa: E501
    made, left = in_panels(constants, rest, bits=8 * 32, products=20 * 32 * 18)
    assert str(made) == inspect.cleandoc("""
    graph f(%0: f32[18,16,2], %1: f32[18]) {
      %2: f32[18,32] = reshape(%0) {shape=(18, 32)}
      %3: f32[32,18] = transpose(%2) {permutation=(1, 0)}
      %4: f32[1,32,18] = reshape(%3) {shape=(1, 32, 18)}
      %5: f32[] = constant() {value=f32[](0.0)}
      %6: f32[1,32,24] = pad(%4, %5) {lo=(0, 0, 0), hi=(0, 0, 6), interior=(0, 0, 0)}
      %7: f32[1,32,3,8] = reshape(%6) {shape=(1, 32, 3, 8)}
      %8: f32[1,3,32,8] = transpose(%7) {permutation=(0, 2, 1, 3)}
      return %1, %8
    }
    """)
    assert str(left) == inspect.cleandoc("""
    graph f(%0: f32[20,32], %1: f32[18], %2: f32[1,3,32,8]) {
      %3: f32[1,32,3,8] = transpose(%2) {permutation=(0, 2, 1, 3)}
      %4: f32[1,32,24] = reshape(%3) {shape=(1, 32, 24)}
      %5: f32[1,32,18] = slice(%4) {start=(0, 0, 0), limit=(1, 32, 18), stride=(1, 1, 1)}
      %6: f32[32,18] = reshape(%5) {shape=(32, 18)}
      %7: f32[18,32] = transpose(%6) {permutation=(1, 0)}
      %8: f32[20,18] = dot_general(%0, %7) {batch=((), ()), contract=((1,), (1,)), accumulate=f32, result=f32, precision="highest"}
      %9: f32[20,18] = broadcast_in_dim(%1) {shape=(20, 18), dims=(1,)}
      %10: f32[20,18] = add(%8, %9)
      return %10
    }
    """)  # noqa: E501
    x, *known = (exact(t) for t in (f32[20, 32], f32[18, 16, 2], f32[18]))
    (found,) = evaluate(left, [x, *evaluate(made, known)])
    (wanted,) = evaluate(rest, [x, *known])
    assert np.array_equal(found, wanted)
    same = in_panels(constants, rest, bits=8 * 32, products=20 * 32 * 18 + 1)
    assert same == (constants, rest), "small products are not packed"


def test_nothing_is_folded_where_nothing_is_known() -> None:
    for fn, types, _ in FOLDED.values():
        graph = bu.trace(fn, *types)
        assert fold_scales(frozenset()).run(graph) is graph


def test_a_second_run_folds_nothing_more() -> None:
    for fn, types, _ in FOLDED.values():
        known = frozenset(range(1, len(types)))
        passes = freezing_passes(known)
        once = run_pipeline(bu.trace(fn, *types), passes, context=PassContext())
        again = run_pipeline(once, passes, context=PassContext())
        first, second = (split(graph, known)[1] for graph in (once, again))
        assert [v.type for v in first.inputs] == [v.type for v in second.inputs]
        assert sorted(i.op.name for i in first) == sorted(i.op.name for i in second)


def test_known_chains_may_be_long() -> None:
    def fn(x: Any, p: Any) -> Any:
        wide, small = bu.broadcast_to(p, (10, 4)), bu.astype(p, bu.float64)
        for n in range(2000):
            wide, small = wide * p + n % 2, small * 1.5
        return x + wide, small

    graph = bu.trace(fn, f32[10, 4], f32[4])
    constants, rest = split(graph, [1])
    x, p = np.zeros((10, 4), np.float32), np.full(4, 0.5, np.float32)
    found = evaluate(rest, [x, *(evaluate(constants, [p]))])
    for a, b in zip(found, evaluate(graph, [x, p]), strict=True):
        assert np.array_equal(a, b)


def test_what_a_value_repeats() -> None:
    def fn(p: Any) -> Any:
        wide = bu.broadcast_to(column(p), (2, 6, 3, 3))
        return bu.permute_dims(wide, (1, 0, 2, 3)), bu.reshape(wide, (2, 6, 9)), wide + wide

    graph = bu.trace(fn, C)
    (p,) = graph.inputs
    moved, cut, total = graph.outputs
    assert repeated(moved) == (p, {0: 0})
    assert repeated(cut) == (cut, {0: 0, 1: 1, 2: 2})
    assert repeated(total) == (total, {0: 0, 1: 1, 2: 2, 3: 3})


def test_small_weights_stay_small() -> None:
    """8-bit weights are made wide in the kernel that reads them, not once for all in memory."""

    def fn(x: Any, w: Any, s: Any) -> Any:
        return (x @ (bu.astype(w, f32) * s)) * s

    _, _, rest = frozen(fn, (f32[2, 64], bu.int8[64, 32], f32[32]))
    assert [v.type for v in rest.inputs] == [f32[2, 64], bu.int8[64, 32], f32[32]]
    # The other way round they are kept as they are read.
    _, _, rest = frozen(lambda x, w: x @ bu.astype(w, f16), (f16[2, 64], f32[64, 32]))
    assert [v.type for v in rest.inputs] == [f16[2, 64], f16[64, 32]]
    # What costs more than memory is computed once, larger or not.
    _, _, rest = frozen(lambda x, a: x @ bu.exp(a[:, None] * a), (f32[2, 64], f32[64]))
    assert [v.type for v in rest.inputs] == [f32[2, 64], f32[64, 64]]
