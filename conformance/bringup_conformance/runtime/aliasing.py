"""Which memory may be the same: an output's is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup.graph import Builder, Literal
from bringup.ops.table import lookup
from bringup.runtime.compiled import Compiled
from bringup.runtime.compiler import compile_graph
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.programs import results_equal, samples, types_of

CHECKS = ContractChecks()

_N = 129


def _overwritten(
    dut: DeviceFixture, what: str, fn: Callable[..., Any], inputs: tuple[Array, ...], *right: Array
) -> None:
    """Write over each result of a call in turn: no input, no other result and no result of the
    calls before and after changes.
    """
    _overwrites(dut, what, dut.lower(fn, *types_of(inputs)), inputs, right)


def _overwrites(
    dut: DeviceFixture,
    what: str,
    compiled: Compiled,
    inputs: tuple[Array, ...],
    right: tuple[Array, ...],
) -> None:
    types = types_of(right)
    with dut.handles() as held:
        handles = [held.put(x) for x in inputs]
        before = held.run(compiled, handles)
        results = held.run(compiled, handles)
        for i, result in enumerate(results):
            held.fill(result, np.full(types[i].nbytes, 0xC3, np.uint8))
            for j in range(i + 1, len(results)):
                actual = held.get(results[j], types[j])
                dut.equal(actual, right[j], f"{what}: result {j} after result {i} was overwritten")
        results_equal(dut, held, before, right, f"{what}: {{}} of the call before")
        for j, (handle, x) in enumerate(zip(handles, inputs, strict=True)):
            actual = held.get(handle, types_of((x,))[0])
            dut.equal(actual, x, f"{what}: input {j} after the results were overwritten")
        after = held.run(compiled, handles)
        results_equal(dut, held, after, right, f"{what}: {{}} of the call after")


@CHECKS.shows("aliasing.outputs-own")
def _outputs_own(dut: DeviceFixture) -> None:
    for sample in samples(dut):
        _overwritten(dut, sample.name, sample.fn, sample.inputs, *sample.expected)
    x = dut.ramp(_N)
    table = np.flip(x).copy()
    with Builder() as builder:
        value = builder.input(dut.type(_N))
        constant = lookup("constant")(value=Literal.of(table, dut.dtype))
        outputs = [constant, lookup("add")(value, constant), constant]
    compiled = compile_graph(builder.build(outputs, "main"), dut.open)
    _overwrites(dut, "a constant as a result", compiled, (x,), (table, x + table, table))
    _overwritten(dut, "reshaped", lambda a: bu.reshape(a, (3, 43)), (x,), x.reshape(3, 43))


@CHECKS.shows("aliasing.outputs-disjoint")
def _outputs_disjoint(dut: DeviceFixture) -> None:
    x = dut.ramp(_N)
    two = x + x

    def same(a: bu.Array) -> tuple[bu.Array, ...]:
        y = a + a
        return y, y, a + a, bu.reshape(y, (_N, 1))

    _overwritten(dut, "equal results", same, (x,), two, two, two, two.reshape(_N, 1))
    one = np.ones(_N, x.dtype)
    _overwritten(
        dut,
        "equal constants",
        lambda a: (bu.ones(_N, dtype=a.dtype), bu.ones(_N, dtype=a.dtype), a),
        (x,),
        one,
        one,
        x,
    )


@CHECKS.shows("aliasing.input-returned")
def _input_returned(dut: DeviceFixture) -> None:
    x, y = dut.ramp(_N), dut.ramp(_N, seed=3)
    _overwritten(dut, "identity", lambda a: a, (x,), x)
    _overwritten(dut, "swapped inputs", lambda a, b: (b, a), (x, y), y, x)
    _overwritten(dut, "an input twice", lambda a: (a, a, a + a), (x,), x, x, x + x)


@CHECKS.shows("aliasing.operand-twice")
def _operand_twice(dut: DeviceFixture) -> None:
    """One handle as several operands, at the seam and by the interface."""
    x = dut.small(_N)
    right = x * x + x
    type_ = dut.type(_N)
    compiled = dut.lower(lambda a, b, c: a * b + c, type_, type_, type_)
    with dut.handles() as held:
        handle = held.put(x)
        for _ in range(2):
            (result,) = held.run(compiled, [handle, handle, handle])
            dut.equal(held.get(result, type_), right, "x * x + x of one operand three times")
        dut.equal(held.get(handle, type_), x, "the operand passed three times")
    array = dut.array(x)
    fn = dut.jit(lambda a, b: (a * b + a, b))
    for _ in range(2):
        first, second = fn(array, array)
        dut.equal(dut.host(first), right, "an array passed twice: the result")
        dut.equal(dut.host(second), x, "an array passed twice: its copy")
    dut.equal(dut.host(array), x, "an array passed twice, afterwards")


@CHECKS.shows("aliasing.in-place-safe")
def _in_place_safe(dut: DeviceFixture) -> None:
    """Updates of values that are read shifted or transposed, with and without donation."""
    x = dut.ramp(16, 16)
    for name, fn, reference in _HAZARDS:
        right = reference(x)
        for donate in ((), (0,)):
            compiled = dut.jit(fn, donate_argnums=donate)
            for _ in range(2):
                array = dut.array(x)
                results = compiled(array)
                where = f"{name}{' with donation' if donate else ''}"
                dut.all_equal(results, [np.asarray(x, order="C") for x in right], where)
                if not donate:
                    dut.equal(dut.host(array), x, f"{name}: the input")


def _shifted(a: bu.Array) -> tuple[bu.Array, ...]:
    b = a + a
    return b.at[1:].set(b[:-1]), b


def _shifted_right(x: Array) -> tuple[Array, ...]:
    b = x + x
    c = b.copy()
    c[1:] = b[:-1]
    return c, b


def _turned(a: bu.Array) -> tuple[bu.Array, ...]:
    b = a + bu.permute_dims(a, (1, 0))
    return b, bu.permute_dims(a, (1, 0)) + 0 * b, bu.reshape(bu.flip(a), (256,))


def _turned_right(x: Array) -> tuple[Array, ...]:
    return x + x.T, x.T, np.flip(x).reshape(256)


def _both_ways(a: bu.Array) -> tuple[bu.Array, ...]:
    return a.at[0].set(a[1]), a.at[1].set(a[0]), bu.flip(a, axis=0) + a


def _both_ways_right(x: Array) -> tuple[Array, ...]:
    first, second = x.copy(), x.copy()
    first[0], second[1] = x[1], x[0]
    return first, second, np.flip(x, 0) + x


_HAZARDS: tuple[tuple[str, Callable[..., Any], Callable[..., tuple[Array, ...]]], ...] = (
    ("rows moved down by one", _shifted, _shifted_right),
    ("a matrix and its transpose", _turned, _turned_right),
    ("two updates of one value", _both_ways, _both_ways_right),
)
