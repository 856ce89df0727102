"""Sizes at the edge of what is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup.errors import UnsupportedError
from bringup.types import TensorType
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture

CHECKS = ContractChecks()

# The most dimensions that an array of the host has.
_HOST_RANK = 32
# More than a kernel needs, and than is worth the time to try to exceed.
_LONGEST = 1 << 20
_MOST_BUFFERS = 300


@CHECKS.shows("limits.rank")
def _rank(dut: DeviceFixture) -> None:
    """At the declared rank, and one and many beyond; elements beyond their limit too."""
    limits = dut.info.capabilities.limits
    rank = min(limits.rank, _HOST_RANK)
    shape = tuple(2 if d in (0, rank - 1) else 1 for d in range(rank))
    x = dut.ramp(*shape)
    for name, fn, right in (
        ("x + x", lambda a: a + a, x + x),
        ("x reversed", lambda a: bu.flip(a) + a, np.flip(x) + x),
        ("the sum", lambda a: bu.sum(a, dtype=a.dtype), x.sum(dtype=x.dtype)),
    ):
        dut.equal(dut.run(fn, x), np.asarray(right), f"{name} at rank {rank}")
    beyond = (
        ("rank", TensorType((1,) * (limits.rank + 1), dut.dtype)),
        ("rank", TensorType((1,) * (2 * limits.rank), dut.dtype)),
        ("elements", TensorType((limits.elements + 1,), dut.dtype)),
    )
    for name, type_ in beyond:
        try:
            dut.lower(lambda a: a + a, type_)
        except UnsupportedError as error:
            dut.require(name in str(error), f"the error does not name {name!r}: {error.what}")
            continue
        dut.fail(f"a program beyond the declared {name} of {getattr(limits, name)} went through")


@CHECKS.shows("limits.buffers")
def _buffers(dut: DeviceFixture) -> None:
    """More operands, and more results, than a kernel has buffers."""
    count = dut.info.capabilities.limits.buffers + 3
    if count > _MOST_BUFFERS:
        raise NotOffered(f"a kernel of it has {count - 3} buffers, more than are tried")
    arrays = [dut.small(19, seed=n) for n in range(count)]
    total = np.asarray(sum(arrays), dut.dtype.numpy)

    def added(*given: bu.Array) -> bu.Array:
        whole = given[0]
        for one in given[1:]:
            whole = whole + one
        return whole

    def apart(*given: bu.Array) -> list[bu.Array]:
        return [one + one for one in given]

    on_device = [dut.array(x) for x in arrays]
    dut.equal(dut.host(dut.jit(added)(*on_device)), total, f"the sum of {count} operands")
    for i, (result, x) in enumerate(zip(dut.jit(apart)(*on_device), arrays, strict=True)):
        dut.equal(dut.host(result), x + x, f"result {i} of {count}")


Kind = tuple[str, Callable[..., Any], Callable[..., Any]]


def _kinds() -> tuple[Kind, ...]:
    """A program of each kind, for a matrix and its first row."""
    return (
        ("a chain", lambda a: (a + 1) * 2, lambda a: (a + 1) * 2),
        ("a sum", lambda a: bu.sum(a, axis=0, dtype=a.dtype), lambda a: a.sum(0, dtype=a.dtype)),
        (
            "a whole sum",
            lambda a: bu.sum(a, dtype=a.dtype),
            lambda a: np.asarray(a.sum(dtype=a.dtype)),
        ),
        ("reversed", bu.flip, np.flip),
        ("transposed", lambda a: a.T + a.T, lambda a: a.T + a.T),
        ("joined", lambda a: bu.concat([a, a]), lambda a: np.concatenate([a, a])),
        (
            "a product",
            lambda a: bu.matmul(a, bu.permute_dims(a, (1, 0))),
            lambda a: np.matmul(a, a.T),
        ),
        (
            "a running sum",
            lambda a: bu.cumulative_sum(a, axis=0, dtype=a.dtype),
            lambda a: np.cumsum(a, axis=0, dtype=a.dtype),
        ),
        ("sorted", lambda a: bu.sort(a, axis=0), lambda a: np.sort(a, axis=0)),
        (
            "a loop",
            lambda a: bu.fori_loop(0, 3, lambda _i, b: b + a, a),
            lambda a: a * 4,
        ),
        ("chosen", lambda a: bu.where(a > 2, a, -a), lambda a: np.where(a > 2, a, -a)),
        (
            "gathered",
            lambda a: bu.take(a, bu.zeros(a.shape[0], dtype=bu.int32), axis=1),
            lambda a: np.take(a, np.zeros(a.shape[0], np.int32), axis=1),
        ),
    )


def _kind(dut: DeviceFixture, kind: Kind, x: Array, where: str) -> None:
    name, fn, reference = kind
    graph = bu.trace(fn, dut.type(*x.shape))
    if missing_from(dut.info.capabilities, graph) is not None:
        return
    right = np.asarray(reference(x)).astype(x.dtype)
    for turn in ("first", "again"):
        dut.equal(dut.run(fn, x), np.asarray(right, order="C"), f"{name} of {where}, {turn}")


@CHECKS.shows("limits.empty")
def _empty(dut: DeviceFixture) -> None:
    """No rows; no columns where that is anything; with full arrays in between."""
    for kind in _kinds():
        for shape in ((0, 4), (0, 1), (0, 0), (3, 3)):
            if kind[0] == "gathered" and 0 in shape[1:]:
                continue
            _kind(dut, kind, dut.ramp(*shape), f"shape {shape}")
        if kind[0] not in ("gathered",):
            _kind(dut, kind, dut.ramp(4, 0), "shape (4, 0)")


@CHECKS.shows("limits.scalars")
def _scalars(dut: DeviceFixture) -> None:
    """Rank 0 by itself, with arrays, and as what is left of them."""
    x = dut.ramp(7)
    three = np.array(3, x.dtype)
    cases: tuple[tuple[str, Callable[..., Any], tuple[Array, ...], Any], ...] = (
        ("s + s", lambda s: s + s, (three,), three + three),
        ("s * x", lambda s, a: s * a, (three, x), three * x),
        ("x − s", lambda s, a: a - s, (three, x), x - three),
        ("the sum of s", lambda s: bu.sum(s, dtype=s.dtype), (three,), three),
        ("s spread", lambda s: bu.broadcast_to(s, (2, 5)), (three,), np.full((2, 5), three)),
        ("s as [1]", lambda s: bu.reshape(s, (1,)), (three,), three.reshape(1)),
        ("the sum of x", lambda a: bu.sum(a, dtype=a.dtype), (x,), x.sum(dtype=x.dtype)),
        ("x[3]", lambda a: a[3], (x,), x[3]),
        ("s chosen", lambda s, t: bu.where(s > t, s, t), (three, x[4]), np.maximum(three, x[4])),
    )
    for name, fn, inputs, right in cases:
        scalars = [np.asarray(i) for i in inputs]
        dut.equal(dut.run(fn, *scalars), np.asarray(right), name)
        with bu.device(dut.open):
            actual = dut.host(fn(*map(dut.array, scalars)))
        dut.equal(actual, np.asarray(right), f"{name}, recorded")


@CHECKS.shows("limits.long-rows", ops=("add", "mul", "reduce"))
def _long_rows(dut: DeviceFixture) -> None:
    """Rows round the declared length: sums, extremes, and what is left when they are taken off."""
    row = dut.info.capabilities.limits.row_elements
    if row > _LONGEST:
        raise NotOffered(f"it revisits rows of up to {row} elements, more than are tried")
    one = np.array(1, dut.dtype.numpy)
    for n in (row - 1, row, row + 1, row + 67):
        x = np.zeros((2, n), dut.dtype.numpy)
        x[0, :: n // 3], x[1, -1], x[1, 5] = one, one + one, one
        largest, total = x.max(1, keepdims=True), x.sum(1, keepdims=True, dtype=x.dtype)

        def fn(a: bu.Array) -> tuple[bu.Array, ...]:
            top = bu.max(a, axis=1, keepdims=True)
            difference = top - a
            return difference, bu.sum(a, axis=1, keepdims=True, dtype=a.dtype) + difference

        first, second = dut.jit(fn)(dut.array(x))
        dut.equal(dut.host(first), largest - x, f"rows of {n}: what is left of the largest")
        right = total + (largest - x)
        dut.equal(dut.host(second), right, f"rows of {n}: the sum beside it")


@CHECKS.shows("limits.many-instructions")
def _many_instructions(dut: DeviceFixture) -> None:
    """A thousand instructions that no rule makes fewer."""
    x = dut.small(13)
    rounds = dut.count(500, 125)

    def fn(a: bu.Array) -> bu.Array:
        b = a
        for n in range(rounds):
            b = bu.maximum(bu.flip(b), a) if n % 2 else bu.minimum(bu.flip(b), a + n)
        return b

    right = x
    for n in range(rounds):
        other = x if n % 2 else x + np.array(n, x.dtype)
        right = (np.maximum if n % 2 else np.minimum)(np.flip(right), other)
    dut.equal(dut.run(fn, x), np.asarray(right, order="C"), f"{2 * rounds} instructions")
