"""``precision=`` of products: what asks for it, and that nothing on the way loses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from lowering import lower

import bringup as bu
from bringup.errors import GraphError, OpTypeError, ParseError
from bringup.graph import Graph, Instr
from bringup.graph.parser import parse_graph
from bringup.kernel.form import Fold, Kernel
from bringup.kernel.parser import parse_kernel
from bringup.kernel.verify import verify_kernel
from bringup.ops.table import find
from bringup.types import TensorType

f32 = bu.float32
PRODUCTS = ("dot_general", "convolution", "attention")


def instructions(graph: Graph) -> Iterator[Instr]:
    """All of a graph's, those of its bodies too."""
    for instr in graph.instrs:
        yield instr
        for value in instr.attrs.values():
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                if isinstance(part, Graph):
                    yield from instructions(part)


def asked(fn: Callable[..., Any], *types: TensorType) -> list[str]:
    """The precisions of the products of a traced function."""
    graph = bu.jit(fn).lower(*types).graph
    return [i.attrs["precision"] for i in instructions(graph) if i.op.name in PRODUCTS]


def kernels(fn: Callable[..., Any], *types: TensorType) -> list[Kernel]:
    """Those that a traced function becomes."""
    (program,) = lower(fn, *types).programs
    return list(program.kernels)


def folds(fn: Callable[..., Any], *types: TensorType) -> list[Fold]:
    """The sums of products in the kernels of a function."""
    found = [f for k in kernels(fn, *types) for s in k.stages for f in s.folds]
    return [f for f in found if f.product]


def product(x: bu.Array, y: bu.Array) -> bu.Array:
    return bu.matmul(x, y, precision="tf32")


LINE = f32[2, 3, 9], f32[4, 3, 3]
PLANE = f32[2, 3, 8, 8], f32[4, 3, 3, 3]
FUNCTIONS: dict[str, tuple[Callable[..., bu.Array], tuple[TensorType, ...]]] = {
    "matmul": (product, (f32[4, 8], f32[8, 3])),
    "matmul of stacks": (product, (f32[2, 1, 4, 8], f32[3, 8, 3])),
    "matmul of a vector": (product, (f32[8], f32[8, 3])),
    "matmul by a vector": (product, (f32[4, 8], f32[8])),
    "vecdot": (lambda x, y: bu.vecdot(x, y, precision="tf32"), (f32[4, 8], f32[4, 8])),
    "tensordot": (
        lambda x, y: bu.tensordot(x, y, axes=1, precision="tf32"),
        (f32[4, 8], f32[8, 3]),
    ),
    "einsum": (
        lambda x, y: bu.einsum("bij,bjk->bik", x, y, precision="tf32"),
        (f32[2, 4, 8], f32[2, 8, 3]),
    ),
    "linalg": (lambda x, y: bu.linalg.matmul(x, y, precision="tf32"), (f32[4, 8], f32[8, 3])),
    "conv": (lambda x, w: bu.nn.conv(x, w, padding="same", precision="tf32"), LINE),
    "conv of groups": (
        lambda x, w: bu.nn.conv(x, w, groups=2, stride=2, precision="tf32"),
        (f32[2, 6, 9], f32[4, 3, 3]),
    ),
    "conv_transpose": (
        lambda x, w: bu.nn.conv_transpose(x, w, stride=2, precision="tf32"),
        (f32[2, 4, 9], f32[4, 3, 3]),
    ),
    "attention": (
        lambda x, y: bu.nn.attention(x, y, y, causal=True, precision="tf32"),
        (f32[2, 1, 5, 8], f32[2, 1, 7, 8]),
    ),
    "conv of images": (lambda x, w: bu.nn.conv(x, w, precision="tf32"), PLANE),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_ask(name: str) -> None:
    fn, types = FUNCTIONS[name]
    assert asked(fn, *types) == ["tf32"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_ask_as_their_function_did(name: str) -> None:
    fn, types = FUNCTIONS[name]
    slopes = bu.grad(lambda x, y: bu.sum(fn(x, y)), argnums=(0, 1))
    found = asked(slopes, *types)
    assert len(found) >= 2
    assert set(found) == {"tf32"}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_examples_ask_as_one_does(name: str, axes: tuple[int | None, int | None]) -> None:
    fn, types = FUNCTIONS[name]
    pairs = zip(types, axes, strict=True)
    many = [t if axis is None else f32[5, *t.shape] for t, axis in pairs]
    found = asked(bu.vmap(fn, in_axes=axes), *many)
    assert found == ["tf32"] * (2 if name == "attention" and None in axes else 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_say_what_was_asked(name: str) -> None:
    fn, types = FUNCTIONS[name]
    found = folds(fn, *types)
    assert found
    assert {f.precision for f in found} == {"tf32"}


def test_nothing_asks_by_itself() -> None:
    def every(x: bu.Array, y: bu.Array) -> Any:
        line, heads = bu.reshape(x, (1, 8, 8)), bu.reshape(x, (1, 1, 8, 8))
        products = x @ y, bu.vecdot(x, x), bu.tensordot(x, y, axes=1), bu.einsum("ij,jk", x, y)
        named = bu.nn.conv(line, bu.reshape(y, (4, 8, 1))), bu.nn.attention(heads, heads, heads)
        return products, named, bu.linalg.matrix_power(x, 3), bu.fft.fft(x)

    found = folds(every, f32[8, 8], f32[8, 4])
    assert len(found) >= 6
    assert {f.precision for f in found} == {"highest"}


def test_complex_products_ask_for_those_of_their_parts() -> None:
    def parts(x: bu.Array, y: bu.Array) -> bu.Array:
        return bu.abs(bu.matmul(x + 1j * x, y + 1j * y, precision="tf32"))

    assert asked(parts, f32[4, 8], f32[8, 3]) == ["tf32"] * 4


def test_loops_ask_in_their_bodies() -> None:
    def loop(x: bu.Array, y: bu.Array) -> bu.Array:
        return bu.fori_loop(0, 3, lambda _i, v: product(v, y), x)

    assert asked(loop, f32[4, 4], f32[4, 4]) == ["tf32"]


def test_one_of_each_precision_stays_two_products() -> None:
    def both(x: bu.Array, y: bu.Array) -> tuple[bu.Array, ...]:
        return x @ y, product(x, y), product(x, y)

    assert sorted(f.precision for f in folds(both, f32[4, 8], f32[8, 3])) == ["highest", "tf32"]


def test_a_transposed_operand_changes_nothing() -> None:
    (fold,) = folds(lambda x, y: product(x.mT, y), f32[8, 4], f32[8, 3])
    assert fold.precision == "tf32"


def test_programs_of_both_precisions_are_two_for_every_cache() -> None:
    types = f32[4, 8], f32[8, 3]
    exact, less = (lower(fn, *types) for fn in (lambda x, y: x @ y, product))
    assert exact.graph.key != less.graph.key
    assert exact.programs[0].key != less.programs[0].key


def test_values_with_and_without() -> None:
    x, y = (bu.asarray(np.float32([[n, 0.1 * n]])) for n in (1, 3))
    wanted = np.asarray(x) @ np.asarray(y).T
    for result in (product(x, y.mT), bu.jit(product)(x, y.mT)):
        np.testing.assert_allclose(np.asarray(result), wanted, rtol=2 * 2.0**-11 + 2.0**-20)


# -- text


def test_text_says_it_and_reads_it() -> None:
    graph = bu.jit(product).lower(f32[4, 8], f32[8, 3]).graph
    assert 'precision="tf32"' in str(graph)
    assert str(parse_graph(str(graph), find)) == str(graph)


def test_text_without_it_means_all_bits() -> None:
    text = "graph g(%0: f32[4], %1: f32[4]) { %2: f32[] = dot_general(%0, %1) {batch=((), ()), "
    text += "contract=((0,), (0,)), accumulate=f32, result=f32} return %2 }"
    assert parse_graph(text, find).instrs[0].attrs["precision"] == "highest"


def test_text_of_kernels_says_it_and_reads_it() -> None:
    (kernel,) = kernels(product, f32[4, 8], f32[8, 3])
    text = str(kernel)
    assert "fold.add f32 product tf32\n" in text
    assert str(parse_kernel(text)) == text
    with pytest.raises(ParseError, match="'tf16' is no precision"):
        parse_kernel(text.replace("tf32", "tf16"))
    with pytest.raises(GraphError, match="tf32 is for products of f32"):
        verify_kernel(parse_kernel(text.replace("f32", "f64").replace("tf64", "tf32")))


def test_a_cut_sum_keeps_it_where_the_products_are() -> None:
    both = bu.jit(product).lower(f32[2, 500_000], f32[500_000, 2]).kernels
    precisions = [[f.precision for s in kernel.stages for f in s.folds] for kernel in both]
    assert precisions == [["tf32"], ["highest"]]


# -- mistakes


@pytest.mark.parametrize("dtype", [bu.float16, bu.bfloat16, bu.float64, bu.int32, bu.complex128])
def test_other_dtypes_are_refused(dtype: bu.DType) -> None:
    x = bu.ones((2, 2), dtype=dtype)
    with pytest.raises(OpTypeError, match="is for products of f32 summed in f32") as caught:
        product(x, x)
    assert caught.value.fix == "leave precision out, or convert the operands to f32"


def test_wider_sums_are_refused() -> None:
    x = bu.ones((2, 2), dtype=f32)
    with pytest.raises(OpTypeError, match=r"f32\[2,2\] summed in f64"):
        bu.matmul(x, x, dtype=bu.float64, precision="tf32")


def test_named_products_refuse_likewise() -> None:
    x = bu.ones((1, 1, 2), dtype=bu.float16)
    with pytest.raises(OpTypeError, match="conv: precision 'tf32' is for products of f32"):
        bu.nn.conv(x, x, precision="tf32")
    with pytest.raises(OpTypeError, match="attention: precision 'tf32' is for products of f32"):
        bu.nn.attention(x, x, x, precision="tf32")


def test_other_words_are_refused() -> None:
    x = bu.ones((2, 2), dtype=f32)
    with pytest.raises(OpTypeError, match="matmul: precision 'high' is unknown") as caught:
        bu.matmul(x, x, precision="high")  # type: ignore[arg-type]
    assert caught.value.fix == "use one of highest, tf32"
