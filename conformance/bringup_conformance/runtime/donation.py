"""Inputs whose memory a call may take."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup.errors import DeletedBufferError
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture, by_dlpack
from bringup_conformance.runtime.guard_bands import with_guard_bands

CHECKS = ContractChecks()

_N = 1031


@CHECKS.shows("donation.deleted")
def _deleted(dut: DeviceFixture) -> None:
    """Every use of a donated array raises, a second donation too; others go on."""
    x = dut.small(_N)
    step = dut.jit(lambda a: a + 1, donate_argnums=0)
    plain = dut.jit(lambda a: a + 1)
    for inputs in (dut.array(x), dut.array(x) * 2):
        step(inputs)
        dut.require(inputs.is_deleted, "a donated array does not say that it is deleted")
        for name, use in _uses(inputs, step, plain):
            _refuses(dut, name, use)
        for name, use in _uses(inputs, step, plain):
            _refuses(dut, f"{name}, asked again,", use)
    dut.equal(dut.host(step(dut.array(x))), x + np.array(1, x.dtype), "a donated call afterwards")


def _uses(array: bu.Array, step: Any, plain: Any) -> tuple[tuple[str, Callable[[], Any]], ...]:
    return (
        ("a second donation", lambda: step(array)),
        ("a call", lambda: plain(array)),
        ("numpy.asarray", lambda: np.asarray(array)),
        ("an operation", lambda: np.asarray(array + 1)),
        ("tolist", array.tolist),
        ("DLPack", lambda: by_dlpack(array)),
    )


def _refuses(dut: DeviceFixture, name: str, use: Callable[[], Any]) -> None:
    try:
        use()
    except DeletedBufferError as error:
        dut.require(
            "donated" in str(error) and error.fix is not None,
            f"the error of {name} does not name the donation: {error}",
        )
        return
    dut.fail(f"{name} of a donated array went through")


@CHECKS.shows("donation.values-same")
def _values_same(dut: DeviceFixture) -> None:
    """With donation and without: one input, several of equal size, results that read old values."""
    x, y = dut.ramp(_N), dut.ramp(_N, seed=3)
    shape = (_N,)
    cases: tuple[tuple[str, Callable[..., Any], Any], ...] = (
        ("a + b", lambda a, b: a + b, 0),
        ("a + b, both", lambda a, b: a + b, (0, 1)),
        ("b - a and a - b", lambda a, b: (b - a, a - b), (0, 1)),
        ("b and a", lambda a, b: (b, a), (0, 1)),
        ("a reversed and a", lambda a, b: (bu.flip(a), a + b), 0),
        ("a shifted", lambda a, b: bu.concat([a[1:], b[:1]]), (0, 1)),
        ("a alone, b unused", lambda a, b: a + a, (0, 1)),
        ("a, and its sum with b reversed", lambda a, b: (a + bu.flip(b), a), (0, 1)),
        ("a column of a", lambda a, b: bu.reshape(a, (_N, 1)) + 1, 0),
    )
    for name, fn, donate in cases:
        plain, taking = dut.jit(fn), dut.jit(fn, donate_argnums=donate)
        right = [dut.host(result) for result in _listed(plain(dut.array(x), dut.array(y)))]
        for _ in range(2):
            actual = taking(dut.array(x), dut.array(y))
            dut.all_equal(actual, right, f"{name} on {shape}, with donation")
    _other_dtypes(dut)


def _other_dtypes(dut: DeviceFixture) -> None:
    """Donated inputs of the same number of bytes and different dtypes."""
    sizes: dict[int, list[Any]] = {}
    for dtype in dut.info.dtypes:
        if dtype.kind != "bool":
            sizes.setdefault(dtype.itemsize, []).append(dtype)
    for kinds in sizes.values():
        if len(kinds) < 2:
            continue
        x, y = (dut.small(_N, seed=i, dtype=d) for i, d in enumerate(kinds[:2]))
        swap = dut.jit(lambda a, b: (bu.flip(b), bu.flip(a)), donate_argnums=(0, 1))
        first, second = swap(dut.array(x), dut.array(y))
        where = f"{kinds[0]} and {kinds[1]} donated together"
        dut.equal(dut.host(first), np.flip(y).copy(), f"{where}: result 0")
        dut.equal(dut.host(second), np.flip(x).copy(), f"{where}: result 1")


@CHECKS.shows("donation.others-untouched")
def _others_untouched(dut: DeviceFixture) -> None:
    """Inputs beside a donated one, in both places, keep their bytes."""
    x, y = dut.ramp(_N), dut.ramp(_N, seed=5)
    for donate in (0, 1):
        fn = dut.jit(lambda a, b: (a + b, a - b), donate_argnums=donate)
        for _ in range(3):
            arrays = [dut.array(x), dut.array(y)]
            fn(*arrays)
            other = 1 - donate
            actual = dut.host(arrays[other])
            dut.equal(actual, (x, y)[other], f"input {other} when input {donate} was donated")
            dut.require(not arrays[other].is_deleted, f"input {other} counts as donated too")
    type_ = dut.type(_N)
    compiled = dut.lower(lambda a, b: (a + b, a - b), type_, type_, donate=0)
    with dut.handles() as held:
        handles = [held.put(x), held.put(y)]
        held.run(compiled, handles, compiled.donated)
        dut.equal(held.get(handles[1], type_), y, "the handle beside a donated one")


@CHECKS.shows("donation.passed-twice")
def _passed_twice(dut: DeviceFixture) -> None:
    """One array in a donated place and another: both read the old values."""
    x = dut.ramp(_N)
    for fn, right in (
        (lambda a, b: (a + 1, b), (x + np.array(1, x.dtype), x)),
        (lambda a, b: (bu.flip(a) - b, a + b), (np.flip(x) - x, x + x)),
    ):
        for donate in (0, 1, (0, 1)):
            array = dut.array(x)
            results = dut.jit(fn, donate_argnums=donate)(array, array)
            dut.all_equal(results, right, f"an array passed twice, {donate} donated")


@CHECKS.shows("donation.view-kept")
def _view_kept(dut: DeviceFixture) -> None:
    """Arrays of numpy and of DLPack, recorded operations and parts keep a donated value."""
    x = dut.ramp(_N)
    step = dut.jit(lambda a: a * 0 + 5, donate_argnums=0)
    for way in ("numpy", "DLPack", "a recorded operation", "a part"):
        array = dut.array(x) + 0
        view = _kept(way, array)
        step(array)
        for _ in range(3):
            dut.array(np.full(_N, 7, x.dtype))
        right = {"a recorded operation": x + x, "a part": x[5:900]}.get(way, x)
        dut.equal(np.array(view), np.asarray(right), f"what {way} shows of a donated array")


def _kept(way: str, array: bu.Array) -> Any:
    """Something that reads the memory of an array, now or later."""
    if way == "numpy":
        return np.asarray(array)
    if way == "DLPack":
        return by_dlpack(array)
    return array[5:900] if way == "a part" else array + array


@CHECKS.shows("donation.still-read")
def _still_read(dut: DeviceFixture) -> None:
    """A chain of results that each read a donated value at another place, the last one when there
    is an output of its size already.
    """
    x = dut.ramp(32, 32)

    def fn(a: bu.Array) -> tuple[bu.Array, ...]:
        first = a + bu.permute_dims(a, (1, 0))
        second = bu.flip(a) + first
        third = bu.expand_dims(a[0], axis=0) + second
        return third, bu.max(bu.minimum(a, bu.min(third)), axis=0)

    for fuse in ("fused", "in parts"):
        compiled = dut.jit(fn, donate_argnums=0)
        array = dut.array(x)
        results = compiled(array if fuse == "fused" else array + 0)
        third = x[0] + (x + x.T + np.flip(x))
        right = (third, np.minimum(x, third.min()).max(axis=0))
        dut.all_equal(results, list(map(np.asarray, right)), fuse)


@CHECKS.shows("donation.returned-once")
def _returned_once(dut: DeviceFixture) -> None:
    """Memory of donated inputs is counted: an output's or given back, and never both."""
    guard = with_guard_bands(dut.device)
    inner = dut.on_device(guard)
    x = dut.ramp(_N)
    fns: tuple[tuple[Callable[..., Any], Any], ...] = (
        (lambda a, b: a + b, 0),
        (lambda a, b: bu.sum(a, dtype=a.dtype), (0, 1)),
        (lambda a, b: (a + b, a - b), (0, 1)),
        (lambda a, b: (b, a), (0, 1)),
    )
    for fn, donate in fns:
        compiled = inner.jit(fn, donate_argnums=donate)
        for _ in range(3):
            results = _listed(compiled(inner.array(x), inner.array(x)))
            for result in results:
                inner.host(result)
            del results, result
        del compiled
    gc.collect()
    if guard.ledger.faults:
        dut.fail(guard.ledger.faults[0])


def _listed(results: Any) -> list[bu.Array]:
    return list(results) if isinstance(results, tuple | list) else [results]
