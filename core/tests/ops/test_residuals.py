"""Rows judged by what their results are for: triangular_solve, cholesky, lu, qr, fft and so on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import FLOATS, DType, bf16, f16, f32, f64
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph
from bringup.ops.evaluate import evaluate
from bringup.ops.structures import STRUCTURES
from bringup.ops.table import OpDef, lookup
from bringup.passes.base import as_results
from bringup.passes.decompose import decompose, expand
from bringup.tracing.autodiff import vjp_graph
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
Sites = Iterator[tuple[Shapes, dict[str, Any]]]

SIZES = ((1, 1), (5, 5), (2, 3, 3), (0, 0), (2, 0, 3, 3))
#: More than is written out, so that a loop runs.
LOOPING = ((11, 11), (2, 13, 13))
OBLONG = ((4, 2), (2, 3, 5), (6, 1), (1, 4), (3, 0), (0, 3), (12, 10))


def _solves() -> Sites:
    for left in (True, False):
        for lower in (True, False):
            for transpose in (True, False):
                attrs = {"left": left, "lower": lower, "transpose": transpose, "unit": lower}
                yield ((2, 4, 4), (2, 4, 3) if left else (2, 3, 4)), attrs
    for lower in (True, False):
        yield ((12, 12), (12, 2)), {"lower": lower}
    yield ((0, 0), (0, 2)), {}
    yield ((3, 3), (3, 0)), {}


def sites(row: OpDef) -> Sites:
    """Operand shapes and attributes worth trying."""
    if row.name == "triangular_solve":
        yield from _solves()
    elif row.name == "fft":
        for n in (0, 1, 2, 6, 16, 17, 24, 67, 289):
            yield ((2, n),) * 2, {}
        yield ((3, 2, 12),) * 2, {}
        yield ((0, 4),) * 2, {}
    else:
        flags = [a.name for a in row.attrs]
        oblong = OBLONG if row.name in ("lu", "qr", "svd") else ()
        for shape in (*SIZES, *oblong, *LOOPING):
            for chosen in product((True, False), repeat=len(flags)):
                yield (shape,), dict(zip(flags, chosen, strict=True))


def sites_of(row: OpDef, dtype: DType) -> Iterator[tuple[int, Shapes, dict[str, Any]]]:
    """Every site for f32, one in three for other dtypes.

    Flags come in twos and fours, so each dtype sees every choice of them.
    """
    turn = FLOATS.index(dtype) % 3
    for seed, (shapes, attrs) in enumerate(sites(row)):
        if dtype is f32 or seed % 3 == turn:
            yield seed, shapes, attrs


def drawn(row: OpDef, shapes: Shapes, dtype: DType, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    arrays = []
    for position, shape in enumerate(shapes):
        array = rng.normal(size=shape)
        if position < len(row.domain.matrices):
            array = STRUCTURES[row.domain.matrices[position]](array)
        arrays.append(array.astype(dtype.numpy))
    return arrays


def instruction(row: OpDef, arrays: Sequence[Array], attrs: Any, dtype: DType) -> Graph:
    with Builder() as b:
        operands = [b.input(TensorType(a.shape, dtype)) for a in arrays]
        return b.build(as_results(row(*operands, **attrs)))


def wide(arrays: Sequence[Array], dtype: DType) -> list[Array]:
    to = np.longdouble if dtype is f64 else np.float64
    return [a.astype(to) if a.dtype == dtype.numpy else a for a in arrays]


def residuals(graph: Graph, arrays: Sequence[Array], results: Sequence[Array], dtype: DType):
    """What the row says of results, and the largest share of what it allows."""
    (instr,) = graph.instrs
    row = instr.op
    operands = wide(arrays, dtype)
    references = row.reference(*operands, **instr.attrs)
    references = references if isinstance(references, tuple) else (references,)
    given = (operands, wide(results, dtype), references, instr.attrs, dtype)
    for what, error, allowed in row.accuracy.residual(*given):
        assert error.shape == allowed.shape
        with np.errstate(invalid="ignore"):
            good = (error <= allowed) | np.isinf(allowed)
        yield what, bool(good.all())


def assert_good(graph: Graph, arrays: Sequence[Array], results: Sequence[Array], dtype: DType):
    for array, value in zip(results, graph.outputs, strict=True):
        assert (array.shape, array.dtype) == (value.shape, value.dtype.numpy)
    for what, good in residuals(graph, arrays, results, dtype):
        assert good, (graph.instrs[0].attrs, [a.shape for a in arrays], dtype, what)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_reference_and_its_decomposition_are_good(residual_row: OpDef, dtype: DType) -> None:
    for seed, shapes, attrs in sites_of(residual_row, dtype):
        arrays = drawn(residual_row, shapes, dtype, seed)
        graph = instruction(residual_row, arrays, attrs, dtype)
        assert_good(graph, arrays, evaluate(graph, arrays), dtype)
        whole = decompose(lambda instr: instr.op.kind.value != "composite").run(graph)
        assert_good(graph, arrays, evaluate(whole, arrays), dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "values"),
    [
        ("eigh", f64, "normal"),
        ("svd", f32, "equal"),
    ],
    ids=str,
)
def test_errors_of_rotations_do_not_add_up(name: str, dtype: DType, values: str) -> None:
    """A loss with each rotation would grow with n; equal values would take rotations for ever."""
    row, n = lookup(name), 64
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n))
    if values == "equal":
        q, p = (np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(2))
        a = (q * np.repeat([3.0, 2.0, 1.0, -4.0], n // 4)) @ (q if name == "eigh" else p).T
    array = (a + a.T if name == "eigh" else a).astype(dtype.numpy)
    graph = instruction(row, [array], {}, dtype)
    whole = decompose(lambda instr: instr.op.kind.value != "composite").run(graph)
    assert_good(graph, [array], evaluate(whole, [array]), dtype)


def test_decompositions_do_not_grow_with_the_size(residual_row: OpDef) -> None:
    def length(n: int) -> int:
        shapes = next(s for s, _ in sites(residual_row))
        square = [(n, n) if residual_row.name != "fft" else (n,)] * len(shapes)
        arrays = [np.ones(shape) for shape in square]
        graph = decompose(lambda instr: instr.op.kind.value != "composite").run(
            instruction(residual_row, arrays, {}, f64)
        )
        return len(graph.instrs)

    assert length(1 << 9) <= 2 * length(1 << 5) + 40


@pytest.mark.parametrize("name", ["cholesky", "lu", "qr", "triangular_solve", "fft", "eigh", "svd"])
def test_a_wrong_element_is_seen(name: str) -> None:
    row = lookup(name)
    seen = 0
    for dtype in (f32, f64):
        for seed, shapes, attrs in sites_of(row, dtype):
            arrays = drawn(row, shapes, dtype, seed)
            graph = instruction(row, arrays, attrs, dtype)
            results = [r.copy() for r in evaluate(graph, arrays)]
            if not results[0].size or 0 in shapes[0]:
                continue
            flat = results[0].reshape(-1)
            flat[-1] += np.abs(results[0]).max() * 512 * np.finfo(dtype.numpy).eps * flat.size
            if flat[-1] == 0:
                continue
            assert not all(good for _, good in residuals(graph, arrays, results, dtype)), shapes
            seen += 1
    assert seen > 5


def test_factors_are_those_of_another_library() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 6, 4))
    q, r = lookup("qr").reference(x, complete=False)
    other_q, other_r = np.linalg.qr(x)
    assert np.allclose(q, other_q, atol=1e-13)
    assert np.allclose(r, other_r, atol=1e-13)
    a = STRUCTURES["definite"](rng.normal(size=(2, 7, 7)))
    assert np.allclose(lookup("cholesky").reference(a), np.linalg.cholesky(a), atol=1e-13)


def slope(row: OpDef, arrays: list[Array], directions: list[Array], cts: Any, attrs: Any) -> float:
    """The derivative of the sum of ct · result along directions of all operands at once."""
    step = np.longdouble(np.finfo(np.longdouble).eps) ** (1 / 3)
    ends = []
    for sign in (1, -1):
        moved = [a + sign * step * d for a, d in zip(arrays, directions, strict=True)]
        results = row.reference(*moved, **attrs)
        results = results if isinstance(results, tuple) else (results,)
        pairs = ((r, c) for r, c in zip(results, cts, strict=True) if c is not None)
        ends.append(sum((r * c).sum() for r, c in pairs))
    return float((ends[0] - ends[1]) / (2 * step))


def has_gradient(row: OpDef, shapes: Shapes, attrs: Any) -> bool:
    if 0 in shapes[0] or 0 in shapes[-1]:
        return False
    if not attrs.get("complete"):
        return True
    m, n = shapes[0][-2:]
    return m == n or (row.name == "qr" and m < n)


def test_the_gradient_is_the_slope(residual_row: OpDef) -> None:
    row, checked = residual_row, 0
    for seed, (shapes, attrs) in enumerate(sites(row)):
        if not has_gradient(row, shapes, attrs):
            continue
        rng = np.random.default_rng(seed)
        arrays = drawn(row, shapes, f64, seed)
        graph = instruction(row, arrays, attrs, f64)
        floats = [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]
        cts = [rng.normal(size=graph.outputs[i].shape) for i in floats]
        pulled = vjp_graph(graph, range(len(arrays)), floats)
        found = evaluate(pulled, [*arrays, *cts])[len(graph.outputs) :]
        directions = [rng.normal(size=a.shape) for a in arrays]
        given = [cts[floats.index(i)] if i in floats else None for i in range(len(graph.outputs))]
        extended = [a.astype(np.longdouble) for a in arrays]
        wanted = slope(row, extended, directions, given, graph.instrs[0].attrs)
        actual = sum(float((g * d).sum()) for g, d in zip(found, directions, strict=True))
        scale = sum(float(np.abs(g * d).sum()) for g, d in zip(found, directions, strict=True))
        assert abs(actual - wanted) <= 1e-7 * (scale + 1), (shapes, attrs, actual, wanted)
        checked += 1
    assert checked > 3


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_cotangents_have_the_operands_types(residual_row: OpDef, dtype: DType) -> None:
    for _, shapes, attrs in sites_of(residual_row, dtype):
        if has_gradient(residual_row, shapes, attrs):
            arrays = [np.ones(shape) for shape in shapes]
            graph = instruction(residual_row, arrays, attrs, dtype)
            floats = [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]
            pulled = vjp_graph(graph, range(len(arrays)), floats)
            found = pulled.outputs[len(graph.outputs) :]
            assert [v.type for v in found] == [v.type for v in graph.inputs]


def test_a_wrong_gradient_is_seen() -> None:
    right = lookup("cholesky")
    wrong = replace(right, vjp=lambda ct, factor, a: (ct,))
    with pytest.raises(AssertionError):
        test_the_gradient_is_the_slope(wrong)


def test_stacks_of_six_dimensions(residual_row: OpDef) -> None:
    shapes, attrs = next(sites(residual_row))
    last = (12,) if residual_row.name == "fft" else (2, 2)
    arrays = drawn(residual_row, ((2, 1, 2, 1, 1, 2, *last),) * len(shapes), f64, 0)
    graph = instruction(residual_row, arrays, attrs, f64)
    whole = decompose(lambda instr: instr.op.kind.value != "composite").run(graph)
    for instr in whole.instrs:
        assert all(len(v.shape) <= 8 for v in instr.results), instr
    assert_good(graph, arrays, evaluate(whole, arrays), f64)


WRONG: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("cholesky", ("f32[2,3]",), {}, "takes square matrices, got f32[2,3]"),
    ("eigh", ("f32[3]",), {}, "takes matrices in the last two dimensions, got f32[3]"),
    ("lu", ("i32[2,2]",), {}, "does not take i32"),
    ("triangular_solve", ("f32[2,2]", "f32[3,2]"), {}, "sizes differ: f32[2,2] and f32[3,2]"),
    ("triangular_solve", ("f32[2,2]", "f64[2,2]"), {}, "operand dtypes differ"),
    ("triangular_solve", ("f32[4,2,2]", "f32[2,2]"), {}, "leading dimensions differ"),
    ("triangular_solve", ("f32[2,2]", "f32[2,3]"), {"left": False}, "sizes differ"),
    ("fft", ("f32[3]", "f32[4]"), {}, "operand types differ"),
    ("fft", ("f32[]", "f32[]"), {}, "takes vectors in the last dimension, got f32[]"),
]


@pytest.mark.parametrize(("name", "types", "attrs", "said"), WRONG)
def test_wrong_operands(name: str, types: tuple[str, ...], attrs: Any, said: str) -> None:
    with Builder(located=True) as b:
        operands = [b.input(TensorType.parse(text)) for text in types]
        with pytest.raises(OpTypeError) as caught:
            lookup(name)(*operands, **attrs)
    assert caught.value.what.startswith(f"{name}: ")
    assert said in caught.value.what
    assert caught.value.fix
    assert caught.value.location is not None


def test_one_step_gives_what_is_inferred(residual_row: OpDef) -> None:
    for dtype in FLOATS:
        for _, shapes, attrs in sites_of(residual_row, dtype):
            arrays = [np.ones(shape) for shape in shapes]
            expand(instruction(residual_row, arrays, attrs, dtype).instrs[0])


@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_reference_of_equal_singular_values_turns_no_noise(n: int) -> None:
    """Columns stay as they are that are as orthogonal as rounding lets them be: each turn of what
    is left of rounding would add an error of its own.
    """
    made = np.linalg.qr(np.random.default_rng(0).standard_normal((200, n, n)))[0]
    u, s, vt = lookup("svd").reference(3 * made, complete=False, vectors=True)
    unit = np.finfo(np.float64).eps / 2
    for each in (u, vt):
        assert np.abs(np.swapaxes(each, -1, -2) @ each - np.eye(n)).max() < (8 * n**0.5 + 4) * unit
    assert np.abs(u * s[:, None] @ vt - 3 * made).max() < 3 * (8 * n**0.5 + 4) * unit
