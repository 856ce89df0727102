"""The same call again: no state, no drift, no other way of rounding."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture

CHECKS = ContractChecks()

_N = 1543


def _rounded(dut: DeviceFixture) -> list[tuple[str, Callable[..., Any]]]:
    """Programs whose results depend on every rounding and every order of additions."""
    programs: list[tuple[str, Callable[..., Any]]] = [
        ("a chain", lambda a, b: (a * b + a) * b - a),
        ("a sum", lambda a, b: bu.sum(a * b)),
        ("sums of columns", lambda a, b: bu.sum(bu.reshape(a * b, (-1, 1)) + 0 * b[:3], axis=0)),
        ("a product", lambda a, b: bu.matmul(bu.reshape(a[:900], (30, 30)), b[:30])),
        ("a quotient", lambda a, b: a / (b * b + 1)),
        ("functions", lambda a, b: bu.exp(a) + bu.sin(b)),
        ("a running sum", lambda a, b: bu.cumulative_sum(a + b)),
    ]
    type_ = dut.type(_N)

    def has(fn: Callable[..., Any]) -> bool:
        return missing_from(dut.info.capabilities, bu.trace(fn, type_, type_)) is None

    return [(name, fn) for name, fn in programs if dut.dtype.is_float and has(fn)] or programs[:1]


def _data(dut: DeviceFixture) -> tuple[Array, Array]:
    type_ = dut.type(_N)
    return Recipe("signed", dut.info.seed).make(type_), Recipe("signed", 99).make(type_)


@CHECKS.shows("repeat.run-equal", needs="deterministic")
def _run_equal(dut: DeviceFixture) -> None:
    """Again and again on equal data, with other work and other memory in between."""
    x, y = _data(dut)
    compiled = [(name, dut.jit(fn)) for name, fn in _rounded(dut)]
    first = {name: dut.host(fn(dut.array(x), dut.array(y))) for name, fn in compiled}
    for turn in range(dut.count(6, 3)):
        padding = [dut.array(np.zeros(n + turn, x.dtype)) for n in (7, 333, _N)]
        for name, fn in compiled if turn % 2 else compiled[::-1]:
            actual = dut.host(fn(dut.array(x), dut.array(y)))
            dut.equal(actual, first[name], f"{name}, run {turn + 2}", kind="unstable")
        del padding


@CHECKS.shows("repeat.no-state")
def _no_state(dut: DeviceFixture) -> None:
    """A call between calls on other data, of the same program and of others, changes nothing."""
    x, y = dut.small(_N, seed=1), dut.small(_N, seed=2)
    fn = dut.jit(lambda a, b: (bu.flip(a) * b + a, bu.sum(a * 0 + 1, dtype=a.dtype)))
    right = np.flip(x) * y + x
    inputs = (dut.array(x), dut.array(y))
    for other in (np.zeros_like(x), np.full_like(x, 100), y):
        first, second = fn(*inputs)
        fn(dut.array(other), dut.array(other))
        dut.equal(dut.host(first), right, "a result with another call behind it")
        dut.equal(dut.host(fn(*inputs)[0]), right, "a call after one on other data")
        dut.equal(dut.host(second), np.array(_N, x.dtype), "a sum of ones")


@CHECKS.shows("repeat.float-state", needs="deterministic")
def _float_state(dut: DeviceFixture) -> None:
    """Overflows, NaN, subnormals and divisions leave rounding here and there as it was."""
    x, y = _data(dut)
    host = _own_arithmetic()
    programs = _rounded(dut)
    before = [dut.run(fn, x, y) for _, fn in programs]
    rough = Recipe("special", 3).make(dut.type(_N))
    with np.errstate(all="ignore"):
        for _, fn in programs:
            dut.run(fn, rough, rough[::-1].copy())
    dut.require(
        bool(same_bits(_own_arithmetic(), host).all()),
        "numpy on the host rounds or flushes otherwise after programs ran",
    )
    for (name, fn), right in zip(programs, before, strict=True):
        actual = dut.run(fn, x, y)
        dut.equal(actual, right, f"{name} after programs on NaN and infinities", kind="unstable")


def _own_arithmetic() -> Array:
    """What shows the host's rounding mode and whether it keeps subnormals."""
    third = np.float64(1) / np.array([3, -3, 7, 1e308, -1e-308], np.float64)
    tiny = np.array([5e-324, -1e-310, 1e-300, 2.0], np.float64)
    single = np.array([1e-45, 1e-40, 1.1, -1.1], np.float32)
    narrow = single * np.float32(0.5) + np.float32(1e-44)
    return np.concatenate([third, tiny * 0.5, tiny * 0.3, third + 1e-17, narrow.astype(np.float64)])


@CHECKS.shows("repeat.compile-equal", needs="deterministic")
def _compile_equal(dut: DeviceFixture) -> None:
    """Programs compiled anew, alone and beside other results, give the same bits."""
    x, y = _data(dut)
    for name, fn in _rounded(dut):
        first = dut.run(fn, x, y)
        for _ in range(2):
            bu.clear_caches()
            gc.collect()
            dut.equal(dut.run(fn, x, y), first, f"{name}, compiled anew", kind="unstable")
