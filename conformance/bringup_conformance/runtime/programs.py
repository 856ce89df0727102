"""Programs that checks run: of many live values, sizes and dtypes, exact on small integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import bringup as bu
from bringup.backend.device import Handle
from bringup.dtypes import DType, as_dtype
from bringup.ops.table import lookup
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import DeviceFixture, Handles

#: Sizes that no word, vector or alignment divides, and their neighbours.
ODD = (1, 3, 7, 13, 17, 31, 63, 65, 127, 257)
#: Bytes at which drivers take another way: in pieces, through pinned memory, by another engine.
_WAYS = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26)


def long_transfers(dut: DeviceFixture) -> tuple[int, ...]:
    """Bytes past each length at which a transfer may take another way; few fit a small device."""
    if dut.info.simulated:
        return tuple(n + 5 for n in _WAYS[:3])
    room = dut.info.capabilities.limits.memory_bytes // 8 or _WAYS[3]
    return tuple(n + 5 for n in _WAYS if n <= room)


def pattern(nbytes: int, first: int = 0) -> Array:
    """Bytes that repeat after a number of them that divides no length of a piece."""
    return np.resize((np.arange(first, first + 251) % 251).astype(np.uint8), nbytes)


@record
class Sample:
    """A program with data and the right results.

    fn: on arrays.  expected: in order, exact.
    """

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Of the inputs."""
        return types_of(self.inputs)


def types_of(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    """Types as programs know them."""
    return tuple(TensorType(a.shape, as_dtype(a.dtype)) for a in arrays)


class _Host:
    """numpy, with those of bringup's functions that it lacks or calls otherwise."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def astype(self, a: Array, dtype: DType) -> Array:
        return a.astype(dtype.numpy)

    def cumulative_sum(self, a: Array, *, axis: int, dtype: Any) -> Array:
        return np.cumsum(a, axis=axis, dtype=dtype)

    def sort(self, a: Array, *, descending: bool = False, axis: int = -1) -> Array:
        ordered = np.sort(a, axis=axis)
        return np.flip(ordered, axis) if descending else ordered

    def fori_loop(self, first: int, end: int, body: Callable[..., Any], state: Any) -> Any:
        for i in range(first, end):
            state = body(i, state)
        return state

    def while_loop(self, cond: Callable[..., Any], body: Callable[..., Any], state: Any) -> Any:
        while cond(state):
            state = body(state)
        return state

    def cond(self, flag: Array, yes: Callable[..., Any], no: Callable[..., Any], x: Any) -> Any:
        return yes(x) if flag else no(x)

    def scan(self, body: Callable[..., Any], carry: Any, stack: Array) -> Any:
        rows = []
        for row in stack:
            carry, each = body(carry, row)
            rows.append(each)
        return carry, np.stack(rows)


def sample(name: str, fn: Callable[..., Any], *inputs: Array) -> Sample:
    """A program, and what numpy makes of it.

    fn: of a library, which is bringup or numpy, and of arrays.
    """

    def ours(*arrays: bu.Array) -> Any:
        return fn(bu, *arrays)

    right = fn(_Host(), *inputs)
    listed = right if isinstance(right, tuple | list) else (right,)
    return Sample(name, ours, inputs, tuple(np.asarray(x, order="C") for x in listed))


def samples(dut: DeviceFixture) -> list[Sample]:
    """A few programs of different shapes: chains, several results, folds, joins, moves."""
    x, y = dut.small(33, seed=1), dut.small(33, seed=2)
    square = dut.small(9, 9, seed=3)

    def spread(lib: Any, a: Any) -> Any:
        return a + lib.expand_dims(lib.sum(a, axis=1, dtype=a.dtype), axis=1)

    return [
        sample("chain", lambda _, a, b: (a * b + 1) * 2 - b, x, y),
        sample("results", lambda _, a, b: (a + b, a - b, a * b), x, y),
        sample("moves", lambda lib, a: (lib.flip(a * 3), lib.permute_dims(a + 1, (1, 0))), square),
        sample("joined", lambda lib, a, b: lib.concat([a + 1, b * 2, a[3:20]]), x, y),
        sample("spread", spread, square),
    ]


def many_live_values(dut: DeviceFixture) -> Sample:
    """Many values of odd sizes and different dtypes that are live at the same time."""
    dtypes = [d for d in dut.info.dtypes if d.kind != "bool" and adds(dut, d)] or [dut.dtype]
    inputs = tuple(dut.small(n, seed=i, dtype=dtypes[i % len(dtypes)]) for i, n in enumerate(ODD))

    def fn(lib: Any, *arrays: Any) -> list[Any]:
        first = [lib.flip(a + a) for a in arrays]
        second = [lib.concat([a, b]) for a, b in zip(first, arrays, strict=True)]
        third = [lib.flip(c) for c in reversed(second)]
        return [a + b for a, b in zip(second, reversed(third), strict=True)]

    return sample("many live values", fn, *inputs)


def call_sample(
    dut: DeviceFixture, sample: Sample, what: str, *rules: str, fn: Callable[..., Any] | None = None
) -> None:
    """Run a program once and compare its results with the right ones.

    fn: the program, compiled before; for this call alone if not given.
    """
    compiled = dut.jit(sample.fn) if fn is None else fn
    dut.all_equal(compiled(*map(dut.array, sample.inputs)), sample.expected, what, *rules)


def results_equal(
    dut: DeviceFixture, held: Handles, results: Sequence[Handle], right: Sequence[Array], what: str
) -> None:
    """Fail unless handles hold the right results.  what: with ``{}`` for the result's number."""
    for i, (handle, expected) in enumerate(zip(results, right, strict=True)):
        (type_,) = types_of((expected,))
        dut.equal(held.get(handle, type_), expected, what.format(f"result {i}"))


def long_chain(dut: DeviceFixture, x: bu.Array, rounds: int) -> bu.Array:
    """So much work that whoever does not wait sees it undone: the values stay below 256."""
    for _ in range(rounds):
        x = bu.flip(x) + 1
    return x


def adds(dut: DeviceFixture, dtype: DType) -> bool:
    """Whether the device adds a dtype."""
    type_ = TensorType((3,), dtype)
    return dut.info.support.has(lookup("add"), (type_, type_), {})
