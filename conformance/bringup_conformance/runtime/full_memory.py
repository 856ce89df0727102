"""Work on large parts of a device's memory: what stays behind is missed soon.

Devices say nothing of the memory they hold for themselves, so that a leak inside one shows in
nothing but the allocation that fails in the end.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np

import bringup as bu
from bringup.api.deferred import run_graph
from bringup.errors import OutOfMemoryError
from bringup.graph import Builder, Graph, Literal
from bringup.ops.table import lookup
from bringup.runtime import transfer
from bringup.runtime.compiler import Options, compile_graph
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import DeviceFixture

#: Memory is taken in so many parts; more rounds than that find a part that is kept in each.
_PARTS = 10
_ROUNDS = 12
#: Declared memory that is filled in reasonable time.
_MOST = 4 << 30


def _part(dut: DeviceFixture) -> int | None:
    """Elements of one part, None if the device's memory is unknown or too large to fill."""
    total = dut.info.capabilities.limits.memory_bytes
    if not total or total > _MOST:
        return None
    return max(total // _PARTS // dut.dtype.itemsize, 1)


def _again(dut: DeviceFixture, what: str, do: Callable[[int], None]) -> None:
    """Call ``do`` with the number of each round."""
    for number in range(_ROUNDS):
        try:
            do(number)
            gc.collect()
            dut.device.synchronize()
        except OutOfMemoryError as error:
            dut.fail(f"{what}: there is no memory left in round {number}: {error.what}")


def calls(dut: DeviceFixture) -> None:
    """Calls, donated calls, and calls that need as much scratch as their plan says."""
    n = _part(dut)
    if n is None:
        return
    x = dut.small(n)
    for what, donate in (("calls", ()), ("donated calls", (0,))):
        step = dut.jit(lambda a: a + 1, donate_argnums=donate)

        def call(_round: int, step: Callable[..., bu.Array] = step) -> None:
            result = step(dut.array(x))
            dut.equal(dut.host(result[:3]), x[:3] + np.array(1, x.dtype), "a large result")

        _again(dut, f"{what} on a tenth of all memory", call)
    _planned(dut, n)


def _planned(dut: DeviceFixture, n: int) -> None:
    """A program whose inputs, results and scratch take some six tenths."""
    type_ = dut.type(n)
    graph = bu.trace(lambda a: bu.flip(bu.flip(a) + a) - a, type_)
    compiled = compile_graph(graph, dut.open, options=Options(fuse=False))
    scratch = sum(program.arena_bytes for program in compiled.programs)
    if scratch > 5 * type_.nbytes:
        return
    x = dut.small(n)
    with dut.handles() as held:
        try:
            (result,) = held.run(compiled, [held.put(x)])
        except OutOfMemoryError as error:
            planned = (scratch + 2 * type_.nbytes) >> 20
            dut.fail(f"a call that takes {planned} MiB by its plan: {error.what}")
        dut.equal(held.get(result, dut.type(3)), x[::-1][:3].copy(), "a large result")


def compiles(dut: DeviceFixture) -> None:
    """Programs with large tables, each dropped before the next is made."""
    n = _part(dut)
    if n is None:
        return
    x = dut.small(n)

    def compile_(number: int) -> None:
        table = _table(x, number)
        compiled = compile_graph(_plus_table(dut, table), dut.open)
        with dut.handles() as held:
            (result,) = held.run(compiled, [held.put(x)])
            dut.equal(held.get(result, dut.type(3)), (x + table)[:3], "a sum with a table")
        bu.clear_caches()

    _again(dut, "programs with tables of a tenth of all memory", compile_)


def caches(dut: DeviceFixture) -> None:
    """Programs with large tables that nothing but caches holds give way to what is run next."""
    n = _part(dut)
    if n is None:
        return
    x = dut.small(n)

    def run(number: int) -> None:
        table = _table(x, number)
        buffer = transfer.upload(dut.device, x)
        (result,) = run_graph(_plus_table(dut, table), [buffer], dut.open)
        computed = transfer.download(dut.device, result, dut.type(n))
        dut.equal(computed, x + table, "a sum with a table")

    _again(dut, "programs in caches with tables of a tenth of all memory", run)


def _table(x: Array, number: int) -> Array:
    """An array that no other round has."""
    table = x.copy()
    table[-1] = number
    return table


def _plus_table(dut: DeviceFixture, table: Array) -> Graph:
    with Builder() as builder:
        constant = lookup("constant")(value=Literal.of(table, dut.dtype))
        outputs = [lookup("add")(builder.input(dut.type(table.size)), constant)]
    return builder.build(outputs, "table")


def errors(dut: DeviceFixture) -> None:
    """Calls that fail for lack of memory behind their first result."""
    n = _part(dut)
    if n is None:
        return
    x = dut.small(n)
    many = dut.jit(lambda a: (a + 1, bu.broadcast_to(a, (_PARTS + 1, n)) + 1))

    def fail(_round: int) -> None:
        array = dut.array(x)
        try:
            many(array)
        except OutOfMemoryError:
            return
        dut.fail("more memory was given than there is", "errors.out-of-memory")

    _again(dut, "calls that fail for lack of memory", fail)
    step = dut.jit(lambda a: a + 2)

    def call(_round: int) -> None:
        step(dut.array(x))

    _again(dut, "calls after such as failed", call)
