"""The programs of the bench: what users write, a row each, at three sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import bringup as bu
from bringup.records import record
from bringup.runtime.compiled import Compiled
from bringup.types import TensorType

Made = tuple[Callable[..., Any], tuple[TensorType, ...]]
#: The names of the sizes.
SIZES = ("small", "medium", "large")
_f32, _i32 = bu.float32, bu.int32


@record
class Workload:
    """A program at three sizes.

    family: what kind of work it is.
    make: the function and the types of its arguments, of a size.
    sizes: from one that is over at once to one that caches do not hold.
    """

    name: str
    family: str
    make: Callable[[int], Made]
    sizes: tuple[int, int, int]

    def compiled(self, size: str) -> Compiled:
        """The program of a size of that name, for the default device."""
        function, types = self.make(self.sizes[SIZES.index(size)])
        return bu.jit(function).lower(*types)


def _vectors(fn: Callable[..., Any], count: int = 1) -> Callable[[int], Made]:
    """A function of so many arrays of one dimension."""
    return lambda n: (fn, (_f32[n],) * count)


def _matrices(fn: Callable[..., Any], count: int = 1) -> Callable[[int], Made]:
    """A function of so many square matrices."""
    return lambda n: (fn, (_f32[n, n],) * count)


def _rounds(x: Any, y: Any) -> Any:
    """Thirty-two multiplications and additions for every element of eight sums."""
    sums = [y + n for n in range(8)]
    for _ in range(32):
        sums = [each * x + y for each in sums]
    return sum(sums)


def _heads(n: int) -> Made:
    return bu.nn.attention, (_f32[1, 4, n, 64],) * 3


def _images(channels: int, fn: Callable[[Any], Any]) -> Callable[[int], Made]:
    return lambda n: (fn, (_f32[1, channels, n, n],))


def _filters(n: int) -> Made:
    def layer(x: Any, weights: Any, bias: Any) -> Any:
        return bu.nn.relu(bu.nn.conv(x, weights, padding="same") + bias)

    return layer, (_f32[1, 32, n, n], _f32[32, 32, 3, 3], _f32[32, 1, 1])


def _separate(n: int) -> Made:
    def layer(x: Any, weights: Any) -> Any:
        return bu.nn.conv(x, weights, padding="same", groups=64)

    return layer, (_f32[1, 64, n, n], _f32[64, 1, 3, 3])


def _layer(n: int) -> Made:
    def layer(x: Any, weights: Any, bias: Any) -> Any:
        return bu.nn.gelu(x @ weights + bias)

    return layer, (_f32[n, n], _f32[n, n], _f32[n])


def _stencil(x: Any) -> Any:
    around = [bu.roll(x, step, axis) for step in (1, -1) for axis in (0, 1)]
    return 0.25 * sum(around)


def _scattered(n: int) -> Made:
    def add(x: Any, rows: Any, values: Any) -> Any:
        return x.at[rows].add(values)

    return add, (_f32[n, 64], _i32[n], _f32[n, 64])


def _gathered(n: int) -> Made:
    return lambda x, rows: x[rows] * 2.0, (_f32[n, 64], _i32[n])


def _scaled(x: Any) -> Any:
    return bu.fori_loop(0, 16, lambda _, y: bu.tanh(y * 1.5), x)


def _products(n: int) -> Made:
    return lambda x, y: x @ y, (_f32[n, 64, 64], _f32[n, 64, 64])


def _cholesky(n: int) -> Made:
    def factor(x: Any) -> Any:
        return bu.linalg.cholesky(x @ x.T + n * bu.eye(n, dtype=_f32))

    return factor, (_f32[n, n],)


def _normal(n: int) -> Made:
    def draw(number: Any) -> Any:
        return bu.random.normal(bu.random.fold_in(bu.random.key(0), number), (n,), dtype=_f32)

    return draw, (_i32[()],)


def _half(x: Any) -> Any:
    return bu.astype(bu.astype(x, bu.float16) * 2, _f32)


_LINE, _SQUARE, _PRODUCT = (1 << 14, 1 << 19, 1 << 24), (128, 724, 4096), (64, 256, 1024)
#: What bandwidth is measured by: each element is read and written once.
COPY = Workload("negative", "roof", _vectors(lambda x: -x), _LINE)
#: What arithmetic is measured by: operations on elements in registers, and a product.
ARITHMETIC = (
    Workload("multiply and add", "roof", _vectors(_rounds, 2), (1 << 12, 1 << 16, 1 << 18)),
    Workload("product", "roof", _matrices(lambda x, y: x @ y, 2), (128, 512, 1024)),
)
WORKLOADS: Sequence[Workload] = (
    Workload("add", "elementwise", _vectors(lambda x, y: x + y, 2), _LINE),
    Workload("exp", "elementwise", _vectors(bu.exp), _LINE),
    Workload("sin", "elementwise", _vectors(bu.sin), _LINE),
    Workload("gelu", "elementwise", _vectors(bu.nn.gelu), _LINE),
    Workload("chain", "elementwise", _vectors(lambda x, y: bu.tanh(x * y) * bu.exp(-x * x) + y, 2),
             _LINE),
    Workload("through f16", "elementwise", _vectors(_half), _LINE),
    Workload("normal numbers", "elementwise", _normal, _LINE),
    Workload("sum", "folds", _vectors(bu.sum), _LINE),
    Workload("sum(x + y*z)", "folds", _vectors(lambda x, y, z: bu.sum(x + y * z), 3), _LINE),
    Workload("sum of rows", "folds", _matrices(lambda x: bu.sum(x, axis=1)), _SQUARE),
    Workload("sum of columns", "folds", _matrices(lambda x: bu.sum(x, axis=0)), _SQUARE),
    Workload("argmax of rows", "folds", _matrices(lambda x: bu.argmax(x, axis=1)), _SQUARE),
    Workload("softmax", "folds", _matrices(bu.nn.softmax), _SQUARE),
    Workload("layer norm", "folds", _matrices(bu.nn.layer_norm), _SQUARE),
    Workload("transpose", "layout", _matrices(lambda x: x.T + 1.0), _SQUARE),
    Workload("reverse", "layout", _vectors(lambda x: x[::-1] * 2.0), _LINE),
    Workload("pad and concat", "layout",
             _matrices(lambda x: bu.concat([bu.pad(x, ((1, 1), (1, 1))) * 2.0] * 2)),
             (128, 512, 2048)),
    Workload("every other", "layout", _vectors(lambda x: x[::2] * 2.0), _LINE),
    Workload("gather rows", "indices", _gathered, (128, 4096, 1 << 17)),
    Workload("scatter add", "indices", _scattered, (128, 4096, 1 << 17)),
    Workload("product", "products", _matrices(lambda x, y: x @ y, 2), _PRODUCT),
    Workload("product, transposed", "products", _matrices(lambda x, y: x.T @ y, 2), _PRODUCT),
    Workload("matrix and vector", "products", lambda n: (lambda x, y: x @ y, (_f32[n, n], _f32[n])),
             _SQUARE),
    Workload("many products", "products", _products, (8, 64, 1024)),
    Workload("dense layer", "products", _layer, _PRODUCT),
    Workload("attention", "products", _heads, (64, 256, 1024)),
    Workload("convolution", "windows", _filters, (14, 56, 224)),
    Workload("convolution, depthwise", "windows", _separate, (14, 56, 224)),
    Workload("max pool", "windows", _images(32, lambda x: bu.nn.max_pool(x, 2)), (16, 112, 448)),
    Workload("stencil", "windows", _matrices(_stencil), _SQUARE),
    Workload("cumulative sum", "steps", _matrices(lambda x: bu.cumsum(x, axis=1)), _SQUARE),
    Workload("sort", "steps", _matrices(lambda x: bu.sort(x, axis=1)), (64, 256, 1024)),
    Workload("cholesky", "steps", _cholesky, (32, 128, 512)),
    Workload("loop of 16", "steps", _vectors(_scaled), (1 << 12, 1 << 16, 1 << 20)),
)  # fmt: skip
