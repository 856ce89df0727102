"""What is refused, and how; and that everything works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import bringup as bu
from bringup.backend.capabilities import Capabilities, Claims
from bringup.dtypes import DType
from bringup.errors import (
    BackendError,
    BringupError,
    CompileError,
    DeviceError,
    OpTypeError,
    OutOfMemoryError,
    TraceError,
    UnsupportedError,
)
from bringup.ops.evaluate import evaluate
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.proxy_devices import (
    CountingDevice,
    FailingDevice,
    ProxyDevice,
    RefusingDevice,
)

CHECKS = ContractChecks()

#: More bytes than any device has.
_ABSURD = (1 << 50, 1 << 58, (1 << 62) + 64)


def works(dut: DeviceFixture, after: str) -> None:
    """The device runs a program that it has compiled, and one that it has not."""
    x = dut.ramp(77)
    for n in (1, 2):
        actual = dut.run(lambda a, n=n: bu.flip(a) * n + a, x)
        right = np.flip(x) * np.array(n, x.dtype) + x
        dut.equal(actual, right, f"a program after {after}", "errors.usable-after")


def _refused(
    dut: DeviceFixture,
    what: str,
    kind: type[BringupError],
    do: Callable[..., object],
    *args: object,
) -> BringupError:
    """The error of something that must not go through."""
    error = _error_of(kind, do, *args)
    return error if error is not None else dut.fail(f"{what} went through")


def _error_of(
    kind: type[BringupError], do: Callable[..., object], *args: object
) -> BringupError | None:
    try:
        do(*args)
    except kind as error:
        return error
    return None


def _told(dut: DeviceFixture, what: str, error: BringupError) -> None:
    """An error says what failed, where in the user's code, and what to do."""
    where = error.location
    dut.require(
        where is not None and where.file.endswith("rejections.py"),
        f"the error of {what} points at {where}, not at the line that is wrong",
    )
    dut.require(bool(error.what), f"the error of {what} says nothing")
    dut.require(error.fix is not None, f"the error of {what} names no fix: {error.what}")


@CHECKS.shows("errors.wrong-operands")
def _wrong_operands(dut: DeviceFixture) -> None:
    """Shapes, dtypes and numbers that do not fit are refused; nothing reaches the device."""
    counting = CountingDevice(dut.device)
    inner = dut.on_device(counting)
    x, y = inner.array(dut.ramp(8)), inner.array(dut.ramp(7))
    square, tall = inner.array(dut.ramp(4, 4)), inner.array(dut.ramp(5, 4))
    add = inner.jit(lambda a, b: a + b)
    cases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("a sum of 8 and 7 elements", lambda: x + y),
        ("a call on 8 and 7 elements", lambda: add(x, y)),
        ("a product of 4×4 and 5×4", lambda: square @ tall),
        ("a join of 4×4 and 8", lambda: bu.concat([square, x])),
        ("a reshape of 8 to 3×3", lambda: bu.reshape(x, (3, 3))),
        ("a sum over axis 2 of a matrix", lambda: bu.sum(square, axis=2)),
        ("axes turned twice the same", lambda: bu.permute_dims(square, (0, 0))),
    )
    for what, do in cases:
        _told(dut, what, _refused(dut, what, OpTypeError, do))
    dut.require(
        counting.compiled == 0,
        f"{counting.compiled} programs were compiled for operands that do not fit",
    )
    dut.equal(inner.host(x), dut.ramp(8), "an operand that was refused")
    works(dut, "operands that do not fit")


@CHECKS.shows("errors.family")
def _family(dut: DeviceFixture) -> None:
    """Whatever the device raises for what it cannot do is an error of bringup's."""
    for nbytes in _ABSURD:
        try:
            dut.device.alloc(nbytes)
        except DeviceError:
            continue
        except Exception as error:  # noqa: BLE001  (the family is what is asked for)
            kind = type(error)
            dut.fail(f"an allocation of {nbytes} bytes raised {kind.__module__}.{kind.__name__}")
        dut.fail(f"an allocation of {nbytes} bytes went through")
    for name in ("no such device", f"{dut.open.backend_name}:4095", ":0", "a:b"):
        what = f"device {name!r}"
        _told(
            dut,
            what,
            _refused(dut, what, BackendError, lambda n=name: bu.asarray(1.0, device=n)),
        )


@CHECKS.shows("errors.usable-after")
def _usable_after(dut: DeviceFixture) -> None:
    """Errors of every source, each followed by programs."""

    def leaking(a: bu.Array) -> bu.Array:
        refused.append(a)
        return a + a

    def raising(a: bu.Array) -> bu.Array:
        raise ZeroDivisionError

    def looking(a: bu.Array) -> bu.Array:
        return a if float(a[0]) > 0 else a + a

    refused: list[bu.Array] = []
    x = dut.array(dut.ramp(9))
    _refused(dut, "a function that looks at a value", TraceError, dut.jit(looking), x)
    works(dut, "a function that looks at a value")
    for _ in range(2):
        try:
            dut.jit(raising)(x)
        except ZeroDivisionError:
            works(dut, "a function that raises")
            continue
        dut.fail("a function that raises went through")
    dut.jit(leaking)(x)
    error = _refused(dut, "an array kept beyond its function", TraceError, lambda: refused[0] + 1)
    _told(dut, "an array kept beyond its function", error)
    works(dut, "an array kept beyond its function")
    _compilers(dut)


def _compilers(dut: DeviceFixture) -> None:
    """A compiler that refuses once: the error is told, and the next call compiles."""
    refusing = RefusingDevice(dut.device)
    inner = dut.on_device(refusing)
    x = dut.ramp(21)
    fn = inner.jit(lambda a: a * 3 - 1)
    array = inner.array(x)
    refusing.refuses = True
    for _ in range(2):
        error = _refused(dut, "a program that is refused", CompileError, fn, array)
        dut.require("refused on demand" in str(error), "the error of a compiler is lost")
    refusing.refuses = False
    right = x * np.array(3, x.dtype) - np.array(1, x.dtype)
    dut.equal(inner.host(fn(array)), right, "a program after its compiler refused it")


@CHECKS.shows("errors.out-of-memory", "errors.usable-after")
def _out_of_memory(dut: DeviceFixture) -> None:
    """Far too much at the seam and by the interface, with other memory alive."""
    data = np.arange(1000) % 251
    with dut.handles() as held:
        buffer = held.put(data.astype(np.uint8))
        for nbytes in _ABSURD:
            what = f"an allocation of {nbytes} bytes"
            _refused(dut, what, OutOfMemoryError, dut.device.alloc, nbytes)
            works(dut, what)
        dut.equal(held.bytes(buffer, 1000), data.astype(np.uint8), "memory beside one too many")
    small = dut.array(dut.ramp(3))
    rows = min(1 << 45, dut.info.capabilities.limits.elements // 4)
    if rows * small.nbytes < 1 << 44:
        return  # no array of so many bytes has a shape that it takes

    def large(a: bu.Array) -> bu.Array:
        return bu.broadcast_to(bu.expand_dims(a, axis=0), (rows, 3)) + 1

    what, fn = "a result of too many bytes", dut.jit(large)
    _refused(dut, what, OutOfMemoryError, lambda: dut.host(fn(small)))
    dut.equal(dut.host(small), dut.ramp(3), "the operand of a program without memory")
    works(dut, what)


@CHECKS.shows("errors.late-error-told", needs="asynchronous")
def _late_told(dut: DeviceFixture) -> None:
    """Work that fails late: whoever reads its results is told, at once or at a wait."""
    failing = FailingDevice(dut.device, late=True)
    inner = dut.on_device(failing)
    x = dut.ramp(55)
    fn = inner.jit(lambda a: a * 2)
    array = inner.array(x)
    failing.fails = True
    lost = fn(array)
    failing.fails = False
    after = inner.jit(lambda a: a + 1)(lost)
    for what, result in (
        ("the result", lost),
        ("what reads it", after),
        ("the result again", lost),
    ):
        error = _refused(dut, f"{what} of failed work", DeviceError, inner.host, result)
        dut.require("failed on demand" in str(error), f"{what}: the error is {error}")
    _refused(dut, "work on a lost result", DeviceError, lambda: inner.host(lost + 1))
    dut.equal(inner.host(array), x, "the operand of failed work")


@CHECKS.shows("errors.late-error-once", needs="asynchronous")
def _late_once(dut: DeviceFixture) -> None:
    """Work beside failed work, before, between and after it, is what it would be."""
    failing = FailingDevice(dut.device, late=True)
    inner = dut.on_device(failing)
    x = dut.ramp(55)
    two = x + x
    double, other = inner.jit(lambda a: a + a), inner.jit(bu.flip)
    array = inner.array(x)
    before = double(array)
    failing.fails = True
    lost = other(array)
    failing.fails = False
    between = double(array)
    for when, result in (("before", before), ("behind", between), ("after", double(array))):
        what = f"work {when} failed work"
        dut.equal(_independent(dut, what, inner.host, result), two, what)
    _refused(dut, "a look at failed work", DeviceError, inner.host, lost)
    failing.fails = True
    del lost
    other(array)
    failing.fails = False
    for thing, result, right in (("an array", array, x), ("work", double(array), two)):
        what = f"{thing} beside an error that nobody asks for"
        dut.equal(_independent(dut, what, inner.host, result), right, what)


def _independent(
    dut: DeviceFixture, what: str, look: Callable[..., Array], result: object
) -> Array:
    """What is looked at, though a wait meets an error of other work."""
    try:
        return look(result)
    except DeviceError as error:
        return dut.fail(f"{what} is hit by an error of other work: {error.what}")


@CHECKS.shows("errors.no-trap")
def _no_trap(dut: DeviceFixture) -> None:
    """Operands at which hardware traps, each against the reference."""
    ran = 0
    for dtype in dut.info.dtypes:
        for name, fn, inputs in _traps(dtype):
            types = [bu.asarray(x).type for x in inputs]
            graph = bu.trace(fn, *types)
            if missing_from(dut.info.capabilities, graph) is not None:
                continue
            ran += 1
            right = evaluate(graph, inputs)[0]
            dut.equal(dut.run(fn, *inputs), np.array(right), f"{name} of {dtype}")
    if not ran:
        raise NotOffered("it has none of the ops that trap")
    works(dut, "operands that trap")


def _traps(dtype: DType) -> list[tuple[str, Callable[..., Any], tuple[Array, ...]]]:
    programs: list[tuple[str, Callable[..., Any], tuple[Array, ...]]] = []
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        a = np.array([info.min, info.max, 7, 0, info.min, 1] * 3, dtype.numpy)
        b = np.array([info.max, 0, 0, 0, info.min, 0] * 3, dtype.numpy)
        minus = np.full(18, -1 if dtype.is_signed else 1, dtype.numpy)
        wide = np.full(18, dtype.bits + 3, dtype.numpy)
        programs += [
            ("x // 0", lambda a, b: a // b, (a, b)),
            ("x % 0", lambda a, b: a % b, (a, b)),
            ("INT_MIN // −1", lambda a, b: a // b, (a, minus)),
            ("INT_MIN % −1", lambda a, b: a % b, (a, minus)),
            ("x << too much", lambda a, b: a << b, (a, wide)),
            ("x >> too much", lambda a, b: a >> b, (a, wide)),
        ]
    if dtype.name in ("i32", "i64"):
        x = np.arange(10, dtype=dtype.numpy)
        far = np.array([100, -100, 10, 9, -1], dtype.numpy)
        programs += [("an index out of range", bu.take, (x, far))]
    if dtype.is_float and dtype.bits >= 32:
        x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.5], dtype.numpy)
        programs += [("a cast of what does not fit", lambda a: bu.astype(a, bu.int32), (x,))]
    return programs


@CHECKS.shows("errors.unsupported-refused")
def _unsupported_refused(dut: DeviceFixture) -> None:
    """The device with parts of its declaration taken away: what is gone is refused by its name."""
    x, refused = dut.ramp(24), 0
    for claim, fn in (
        ("add", lambda a: a + 1),
        ("mul", lambda a: a * a),
        ("exp", bu.exp),
    ):
        capabilities = dut.info.capabilities
        if not any(claim in claims for claims in (capabilities.ops, capabilities.kernels)):
            continue
        fewer = replace(
            capabilities,
            ops=_without(capabilities.ops, claim),
            kernels=_without(capabilities.kernels, claim),
        )
        refused += _refuses_it(dut, fewer, claim, fn, x)
    others = [d for d in dut.info.dtypes if d.name in ("f64", "i64", "f16", "i8")]
    for dtype in others:
        if dtype is not dut.dtype:
            fewer = _less(dut.info.capabilities, dtype)
            y = dut.ramp(24, dtype=dtype)
            refused += _refuses_it(dut, fewer, dtype.name, lambda a: a + a, y)
    if not refused:
        raise NotOffered("what it has makes up for each op and dtype that was taken away")


def _refuses_it(
    dut: DeviceFixture, capabilities: Capabilities, name: str, fn: Callable[..., Any], x: Array
) -> bool:
    """Whether something was asked for that is not there: else what is left makes up for it."""
    graph = bu.trace(fn, bu.asarray(x).type)
    if missing_from(capabilities, graph) is None:
        return False
    counting = _Recording(dut.device, capabilities)
    inner = dut.on_device(counting)
    for way in (lambda: inner.jit(fn)(inner.array(x)), lambda: inner.host(fn(inner.array(x)))):
        error = _refused(dut, f"a program without {name}", UnsupportedError, way)
        dut.require(name in str(error), f"the error does not name {name}: {error.what}")
        dut.require(error.fix is not None, f"the error names no fix: {error.what}")
    dut.require(not counting.ran, f"a program without {name} ran {counting.ran} times")
    return True


class _Recording(ProxyDevice):
    """Counts the programs it is given."""

    ran = 0

    def compile(self, program: Any) -> Any:
        self.ran += 1
        return super().compile(program)


def _without(claims: Claims, name: str) -> Claims:
    return {claim: dtypes for claim, dtypes in claims.items() if claim != name}


def _less(capabilities: Capabilities, dtype: DType) -> Capabilities:
    def rest(claims: Mapping[str, frozenset[DType]]) -> Claims:
        return {claim: dtypes - {dtype} for claim, dtypes in claims.items()}

    return replace(capabilities, ops=rest(capabilities.ops), kernels=rest(capabilities.kernels))
