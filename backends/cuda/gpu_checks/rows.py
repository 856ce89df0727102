"""What is measured: programs, their operands, how many bytes they must move, and how others say
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

#: Of which bar a row is; "other" is of none.
Kind = Literal["elementwise", "reduction", "rows", "matmul", "fused", "call", "other"]
Function = Callable[..., Any]
#: The module of a framework, to its way of saying a program.
Way = Callable[[Any], Function]


@dataclass(frozen=True, slots=True)
class Operand:
    """Normal numbers of a shape, or with ``high`` integers from 0."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int = 0

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return int(np.prod(self.shape)) * {"float32": 4, "bfloat16": 2, "int32": 4}[self.dtype]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    results: bytes that it writes.  flops: of products: additions and multiplications.
    ours, torch, jax: how each says it; None where it has no such thing.
    plain: for ``fused``, the program without what is fused into it.
    difference: how far results of two sides may lie apart, as a share of the largest.
    """

    name: str
    kind: Kind
    operands: tuple[Operand, ...]
    results: int
    ours: Way
    torch: Way | None = None
    jax: Way | None = None
    plain: Way | None = None
    flops: int = 0
    difference: float = 1e-4

    @property
    def bytes(self) -> int:
        """Each operand read once, each result written once."""
        return sum(operand.nbytes for operand in self.operands) + self.results


def _chain(xp: Any) -> Function:
    return lambda x, y, z: xp.tanh(x * y + z) * xp.exp(-x * x) + y


def _jax_norm(jax: Any) -> Function:
    xp = jax.numpy

    def run(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / xp.sqrt(variance + 1e-5) * scale + shift

    return run


def _gelu(xp: Any, gelu: Function) -> Function:
    return lambda x, w, b: gelu(x @ w + b)


def _ten(xp: Any) -> Function:
    def run(a: Any, b: Any, c: Any, d: Any) -> Any:
        x = xp.tanh(a * b + c) - d
        return xp.exp(-x * x) * a + xp.sqrt(b * b + d * d)

    return run


def memory(quick: bool) -> Sequence[Row]:
    """Programs bound by memory, which have bars."""
    return (*_elementwise(quick), *_reductions(quick), *_by_rows(quick))


def _elementwise(quick: bool) -> Sequence[Row]:
    n = 10**4 if quick else 10**8
    v = Operand((n,))
    return (
        Row(
            "x + y*z", "elementwise", (v, v, v), 4 * n,
            lambda bu: lambda x, y, z: x + y * z,
            lambda torch: lambda x, y, z: x + y * z,
            lambda jax: lambda x, y, z: x + y * z,
        ),
        Row(
            "tanh(x*y + z) * exp(-x*x) + y", "elementwise", (v, v, v), 4 * n,
            _chain, _chain, lambda jax: _chain(jax.numpy),
        ),
    )  # fmt: skip


def _reductions(quick: bool) -> Sequence[Row]:
    side = 100 if quick else 10**4
    v, square = Operand((side**2,)), Operand((side, side))
    return (
        Row(
            "sum(x)", "reduction", (v,), 4,
            lambda bu: bu.sum, lambda torch: torch.sum, lambda jax: jax.numpy.sum,
        ),
        Row(
            "sum(x + y*z)", "reduction", (v, v, v), 4,
            lambda bu: lambda x, y, z: bu.sum(x + y * z),
            lambda torch: lambda x, y, z: torch.sum(x + y * z),
            lambda jax: lambda x, y, z: jax.numpy.sum(x + y * z),
        ),
        Row(
            "max of rows", "reduction", (square,), 4 * side,
            lambda bu: lambda x: bu.max(x, axis=1),
            lambda torch: lambda x: torch.amax(x, 1),
            lambda jax: lambda x: jax.numpy.max(x, axis=1),
        ),
        Row(
            "sum of columns", "reduction", (square,), 4 * side,
            lambda bu: lambda x: bu.sum(x, axis=0),
            lambda torch: lambda x: torch.sum(x, 0),
            lambda jax: lambda x: jax.numpy.sum(x, axis=0),
        ),
    )  # fmt: skip


def _by_rows(quick: bool) -> Sequence[Row]:
    m, k = (16, 256) if quick else (8192, 4096)
    big, line = Operand((m, k)), Operand((k,))
    half = Operand((m, k), "bfloat16")
    return (
        Row(
            "softmax f32", "rows", (big,), big.nbytes,
            lambda bu: lambda x: bu.nn.softmax(x, axis=-1),
            lambda torch: lambda x: torch.softmax(x, -1),
            lambda jax: jax.nn.softmax,
        ),
        Row(
            "layer norm f32", "rows", (big, line, line), big.nbytes,
            lambda bu: lambda x, g, b: bu.nn.layer_norm(x, gain=g, bias=b),
            lambda torch: lambda x, g, b: torch.nn.functional.layer_norm(x, (k,), g, b),
            _jax_norm,
        ),
        Row(
            "softmax bf16", "rows", (half,), half.nbytes,
            lambda bu: lambda x: bu.nn.softmax(x, axis=-1),
            lambda torch: lambda x: torch.softmax(x, -1),
            lambda jax: jax.nn.softmax,
            difference=1e-2,
        ),
    )  # fmt: skip


def matrices(quick: bool) -> Sequence[Row]:
    """Products, which have bars."""
    n = 128 if quick else 8192
    a, line = Operand((n, n), "bfloat16"), Operand((n,), "bfloat16")
    flops = 2 * n**3
    return (
        Row(
            f"bf16 product {n}³", "matmul", (a, a), a.nbytes,
            lambda bu: lambda x, w: x @ w,
            lambda torch: torch.matmul,
            lambda jax: jax.numpy.matmul,
            flops=flops, difference=2e-2,
        ),
        Row(
            f"gelu(x @ w + b), bf16 {n}³", "fused", (a, a, line), a.nbytes,
            lambda bu: _gelu(bu, lambda x: bu.nn.gelu(x, approximate=True)),
            lambda torch: _gelu(
                torch, lambda x: torch.nn.functional.gelu(x, approximate="tanh")
            ),
            lambda jax: _gelu(jax, jax.nn.gelu),
            plain=lambda bu: lambda x, w, b: x @ w,
            flops=flops, difference=2e-2,
        ),
    )  # fmt: skip


def calls(quick: bool) -> Sequence[Row]:
    """Programs of which the call is all the cost."""
    v = Operand((8,))
    return (
        Row("10 ops on 4 vectors of 8", "call", (v,) * 4, v.nbytes, _ten, _ten,
            lambda jax: _ten(jax.numpy)),
        Row(
            "x + 1", "other", (v,), v.nbytes,
            lambda bu: lambda x: x + 1, lambda torch: lambda x: x + 1,
            lambda jax: lambda x: x + 1,
        ),
    )  # fmt: skip


def _torch_tf32(torch: Any) -> Function:
    """Its switch is global, and off for all other rows."""

    def run(x: Any, w: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return torch.matmul(x, w)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return run


def more(quick: bool) -> Sequence[Row]:
    """Others, without bars."""
    return (*_products(quick), *_moving(quick))


def _products(quick: bool) -> Sequence[Row]:
    n = 64 if quick else 4096
    square, half, few = Operand((n, n)), Operand((n, n), "bfloat16"), Operand((8, n), "bfloat16")
    b, h, length, depth = (1, 2, 32, 16) if quick else (4, 16, 2048, 64)
    heads = Operand((b, h, length, depth), "bfloat16")
    return (
        Row(
            "f32 product", "other", (square, square), square.nbytes,
            lambda bu: lambda x, w: x @ w, lambda torch: torch.matmul,
            lambda jax: lambda x, w: jax.numpy.matmul(x, w, precision="highest"),
            flops=2 * n**3, difference=1e-3,
        ),
        Row(
            "tf32 product", "other", (square, square), square.nbytes,
            lambda bu: lambda x, w: bu.matmul(x, w, precision="tf32"), _torch_tf32,
            lambda jax: lambda x, w: jax.numpy.matmul(x, w, precision="tensorfloat32"),
            flops=2 * n**3, difference=1e-2,
        ),
        Row(
            "bf16 product, 8 rows", "other", (few, half), few.nbytes,
            lambda bu: lambda x, w: x @ w, lambda torch: torch.matmul,
            lambda jax: jax.numpy.matmul, flops=16 * n * n, difference=2e-2,
        ),
        Row(
            "causal attention bf16", "other", (heads,) * 3, heads.nbytes,
            lambda bu: lambda q, k, v: bu.nn.attention(q, k, v, causal=True),
            lambda torch: lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True
            ),
            None, flops=2 * b * h * length**2 * depth, difference=2e-2,
        ),
    )  # fmt: skip


def _moving(quick: bool) -> Sequence[Row]:
    n = 64 if quick else 4096
    square, lines = Operand((n, n)), Operand((16, 64) if quick else (1024, 16384))
    table, words = Operand((1000, 64)), Operand((500 if quick else 10**6,), "int32", 1000)
    return (
        Row(
            "transpose + 1", "other", (square,), square.nbytes,
            lambda bu: lambda x: bu.matrix_transpose(x) + 1,
            lambda torch: lambda x: x.mT + 1, lambda jax: lambda x: x.T + 1,
        ),
        Row(
            "running sums of rows", "other", (lines,), lines.nbytes,
            lambda bu: lambda x: bu.cumulative_sum(x, axis=1),
            lambda torch: lambda x: torch.cumsum(x, 1),
            lambda jax: lambda x: jax.numpy.cumsum(x, axis=1), difference=1e-3,
        ),
        Row(
            "sort of rows", "other", (lines,), lines.nbytes,
            lambda bu: lambda x: bu.sort(x, axis=1),
            lambda torch: lambda x: torch.sort(x, 1).values,
            lambda jax: lambda x: jax.numpy.sort(x, axis=1), difference=0,
        ),
        Row(
            "rows of a table", "other", (table, words), 256 * words.shape[0],
            lambda bu: lambda t, i: bu.take(t, i, axis=0),
            lambda torch: lambda t, i: t[i.long()],
            lambda jax: lambda t, i: jax.numpy.take(t, i, axis=0), difference=0,
        ),
    )  # fmt: skip


GROUPS = {"memory": memory, "matrices": matrices, "calls": calls, "more": more}
