"""Programs that checks run: of many live values, sizes and dtypes, exact on small integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bringup as bu
from bringup.dtypes import DType, as_dtype
from bringup.types import TensorType
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.bench import Bench

#: Sizes that no word, vector or alignment divides, and their neighbours.
ODD = (1, 3, 7, 13, 17, 31, 63, 65, 127, 257)
#: Bytes at which drivers take another way: in pieces, through pinned memory, by another engine.
_WAYS = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26)


def long_transfers(bench: Bench) -> tuple[int, ...]:
    """Bytes past each length at which a transfer may take another way; few fit a small device."""
    if bench.facts.simulated:
        return tuple(n + 5 for n in _WAYS[:3])
    room = bench.facts.capabilities.limits.memory_bytes // 8 or _WAYS[3]
    return tuple(n + 5 for n in _WAYS if n <= room)


def pattern(nbytes: int, first: int = 0) -> Array:
    """Bytes that repeat after a number of them that divides no length of a piece."""
    return np.resize((np.arange(first, first + 251) % 251).astype(np.uint8), nbytes)


@dataclass(frozen=True, slots=True)
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


def samples(bench: Bench) -> list[Sample]:
    """A few programs of different shapes: chains, several results, folds, joins, moves."""
    dtype = bench.dtype.numpy
    x, y = bench.small(33, seed=1), bench.small(33, seed=2)
    square = bench.small(9, 9, seed=3)
    one, two, three = (np.array(n, dtype) for n in (1, 2, 3))
    return [
        Sample("chain", lambda a, b: (a * b + 1) * 2 - b, (x, y), (_c((x * y + one) * two - y),)),
        Sample(
            "results",
            lambda a, b: (a + b, a - b, a * b),
            (x, y),
            (_c(x + y), _c(x - y), _c(x * y)),
        ),
        Sample(
            "moves",
            lambda a: (bu.flip(a * 3), bu.permute_dims(a + 1, (1, 0))),
            (square,),
            (_c(np.flip(square * three)), _c((square + one).T)),
        ),
        Sample(
            "joined",
            lambda a, b: bu.concat([a + 1, b * 2, a[3:20]]),
            (x, y),
            (_c(np.concatenate([x + one, y * two, x[3:20]])),),
        ),
        Sample(
            "spread",
            lambda a: a + bu.expand_dims(bu.sum(a, axis=1, dtype=a.dtype), axis=1),
            (square,),
            (_c(square + square.sum(axis=1, dtype=dtype, keepdims=True)),),
        ),
    ]


def crowded(bench: Bench) -> Sample:
    """Many values of odd sizes and different dtypes that are live at the same time."""
    kept = [d for d in bench.facts.dtypes if d.kind != "bool" and adds(bench, d)] or [bench.dtype]
    inputs = tuple(bench.small(n, seed=i, dtype=kept[i % len(kept)]) for i, n in enumerate(ODD))

    def fn(*arrays: bu.Array) -> list[bu.Array]:
        first = [bu.flip(a + a) for a in arrays]
        second = [bu.concat([a, b]) for a, b in zip(first, arrays, strict=True)]
        third = [bu.flip(c) for c in reversed(second)]
        return [a + b for a, b in zip(second, reversed(third), strict=True)]

    expected = []
    for array in inputs:
        whole = np.concatenate([np.flip(array + array), array])
        expected.append(_c(whole + np.flip(whole)))
    return Sample("crowded", fn, inputs, tuple(expected))


def long_chain(bench: Bench, x: bu.Array, rounds: int) -> bu.Array:
    """So much work that whoever does not wait sees it undone: the values stay below 256."""
    for _ in range(rounds):
        x = bu.flip(x) + 1
    return x


def adds(bench: Bench, dtype: DType) -> bool:
    """Whether the device adds a dtype."""
    from bringup.ops.table import lookup

    type_ = TensorType((3,), dtype)
    return bench.facts.support.has(lookup("add"), (type_, type_), {})


def _c(array: Array) -> Array:
    return np.asarray(array, order="C")
