"""Arrays of more than 2³¹ elements, lowered without memory for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lowering import lower

import bringup as bu
from bringup import float32 as f32
from bringup import int32, int64
from bringup.kernel.verify import verify_kernel
from bringup.types import TensorType

Function = Callable[..., Any]
ROWS, COLUMNS = (1 << 17) + 1, (1 << 16) + 3
LARGE = f32[ROWS, COLUMNS]

FUNCTIONS: dict[str, tuple[Function, tuple[TensorType, ...]]] = {
    "elementwise": (lambda x: bu.exp(x) + 1, (LARGE,)),
    "moved": (lambda x: bu.flip(x.T)[::3, 1:] * 2, (LARGE,)),
    "joined": (lambda x: bu.concat([x, x], axis=1)[:, ::2], (LARGE,)),
    "flat": (lambda x: bu.reshape(x, (-1,))[5:] + 1, (LARGE,)),
    "sum": (bu.sum, (LARGE,)),
    "sums of columns": (lambda x: bu.sum(x, axis=0), (LARGE,)),
    "position": (lambda x: bu.argmax(bu.reshape(x, (-1,))), (LARGE,)),
    "softmax": (bu.nn.softmax, (LARGE,)),
    "variance": (lambda x: bu.var(x, axis=1), (LARGE,)),
    "counted": (lambda x: bu.sum((bu.arange(1 << 33) + x) % 7), (int64[()],)),
    "product": (bu.matmul, (LARGE, f32[COLUMNS, 40])),
    "outer": (bu.outer, (f32[ROWS], f32[COLUMNS])),
    "taken": (lambda x, i: bu.take(x, i, axis=0), (LARGE, int32[7])),
    "gradient": (bu.grad(lambda x: bu.sum(x * x)), (LARGE,)),
    "mapped": (bu.vmap(bu.sum), (LARGE,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_kind_of_kernel_is_made(name: str) -> None:
    fn, types = FUNCTIONS[name]
    made = lower(fn, *types)
    assert made.kernels
    for kernel in made.kernels:
        verify_kernel(kernel)
    assert made.cost().flops >= 0


def test_bytes_are_counted_exactly() -> None:
    nbytes = 4 * ROWS * COLUMNS
    cost = lower(lambda x: bu.exp(x) + 1, LARGE).cost()
    assert (cost.bytes_read, cost.bytes_written) == (nbytes, nbytes)


def test_what_is_kept_lies_beyond_what_was_kept_before() -> None:
    """Offsets into the arena pass 2³¹ too."""
    width = 30_000

    def twice(x: Any, w: Any) -> Any:
        first, second = bu.matmul(x, w), bu.matmul(x * 2, w)
        return bu.matmul(first.T, second)

    made = lower(twice, LARGE, f32[COLUMNS, width])
    assert made.cost().arena_bytes >= 2 * 4 * ROWS * width > 1 << 34
