"""Programs that are nearly the same: each differs from the next in one thing that the key of a
cache must hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import bringup as bu
from bringup.api.apply import apply
from bringup.dtypes import DType
from bringup.graph import Literal
from bringup.types import TensorType
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import DeviceFixture
from bringup_conformance.runtime.programs import Sample, adds, sample

_N = 12


def families(dut: DeviceFixture) -> dict[str, list[Sample]]:
    """By rule, the programs that the device can run."""
    makers = {
        "cache.key-shape": _shapes,
        "cache.key-dtype": _dtypes,
        "cache.key-constant": _constants,
        "cache.key-attribute": _attributes,
        "cache.key-operands": _operands,
        "cache.key-structure": _structures,
    }
    capabilities = dut.info.capabilities
    return {
        rule: [s for s in make(dut) if missing_from(capabilities, bu.trace(s.fn, *s.types)) is None]
        for rule, make in makers.items()
    }


def _shapes(dut: DeviceFixture) -> Iterator[Sample]:
    for shape in ((12,), (13,), (12, 1), (1, 12), (3, 4), (4, 3), (2, 6), (6, 2), (2, 2, 3), ()):
        x = dut.ramp(*shape)
        yield sample(f"x * x + x on {shape}", lambda _, a: a * a + a, x)
        yield sample(f"the sum of {shape}", lambda lib, a: lib.sum(a, dtype=a.dtype), x)


def _dtypes(dut: DeviceFixture) -> Iterator[Sample]:
    wide = [dtype for dtype in dut.info.dtypes if dtype.bits >= 32]
    for dtype in dut.info.dtypes:
        if dtype.kind != "bool" and adds(dut, dtype):
            yield sample(f"x + x of {dtype}", lambda _, a: a + a, dut.ramp(_N, dtype=dtype))
        for other in wide if dtype in wide else ():
            if other is not dtype:
                x = dut.ramp(_N, dtype=dtype)
                yield sample(f"{dtype} as {other}", lambda lib, a, to=other: lib.astype(a, to), x)


def _constants(dut: DeviceFixture) -> Iterator[Sample]:
    """Scalars beside operands, and tables too large for that."""
    dtype = dut.dtype
    zero = np.full(_N, -0.0 if dtype.is_float else 0, dtype.numpy)
    values: list[Any] = [0, 1, 2]
    if dtype.is_float:
        one = np.array(1, dtype.numpy)
        above = np.nextafter(one, np.array(2, dtype.numpy))
        values = [0.0, -0.0, 1.0, above, -1.0, 1e-7, 1.1e-7, 123456.7, 123456.8, np.inf]
    for value in values:
        yield _literal_added(f"−0 + {float(value)!r}", np.array(value, dtype.numpy), zero, dtype)
    for python in (True, 1, 1.0, False, 0, 0.0, -0.0):
        if dtype.is_float or not isinstance(python, float):
            yield _scalar_chosen(python, zero)
    table = dut.ramp(40, 40)
    for where in ((0, 0), (0, 1), (20, 20), (39, 39)):
        other = table.copy()
        other[where] = 0
        name = f"a table with a zero at {where}"
        yield _literal_added(name, other, np.zeros_like(table), dtype)


def _scalar_chosen(python: Any, x: Array) -> Sample:
    def fn(a: bu.Array) -> bu.Array:
        return bu.where(bu.equal(a, a), python, a)

    return Sample(f"x and {python!r}", fn, (x,), (np.full(_N, np.array(python, x.dtype)),))


def _literal_added(name: str, value: Array, x: Array, dtype: DType) -> Sample:
    """An addition with a literal as the graph holds it, whatever interfaces make of scalars."""

    def fn(a: Any) -> Any:
        shape = value.shape or a.shape
        return apply("add", (a, Literal(value.reshape(-1), TensorType(shape, dtype))))

    return Sample(name, fn, (x,), (np.asarray(x + value, order="C"),))


def _attributes(dut: DeviceFixture) -> Iterator[Sample]:
    x, cube = dut.ramp(6, 6), dut.ramp(3, 3, 3)
    for axis in (0, 1):
        yield from _along(axis, x)
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        yield sample(f"axes {order}", lambda lib, a, o=order: lib.permute_dims(a + a, o), cube)
    yield from _directions(dut)
    yield from _windows(dut)


def _along(axis: int, x: Array) -> Iterator[Sample]:
    """What an axis alone tells apart."""
    down = bool(axis)
    for name, fn in (
        ("sum, axis", lambda lib, a: lib.sum(a, axis=axis, dtype=a.dtype)),
        ("flip, axis", lambda lib, a: lib.flip(a + a, axis=axis)),
        ("max, axis", lambda lib, a: lib.max(a, axis=axis)),
        ("argmax, axis", lambda lib, a: lib.argmax(lib.flip(a), axis=axis)),
        ("running sum, axis", lambda lib, a: lib.cumulative_sum(a, axis=axis, dtype=a.dtype)),
    ):
        yield sample(f"{name} {axis}", fn, x)
    yield sample(f"sort, descending {down}", lambda lib, a: lib.sort(a, descending=down), x)


def _directions(dut: DeviceFixture) -> Iterator[Sample]:
    a, b = dut.small(_N, seed=1), dut.small(_N, seed=2)
    b[::3] = a[::3]
    for sign, name in (
        ("==", "equal"),
        ("!=", "not_equal"),
        ("<", "less"),
        ("<=", "less_equal"),
        (">", "greater"),
        (">=", "greater_equal"),
        ("max", "maximum"),
        ("min", "minimum"),
    ):
        yield sample(f"a {sign} b", lambda lib, x, y, n=name: getattr(lib, n)(x, y), a, b)
    for low, high in ((-1, 1), (-1, 2), (0, 2)):
        ends = (low, high)
        yield sample(f"clip {low} {high}", lambda lib, x, ends=ends: lib.clip(x, *ends), a)


def _windows(dut: DeviceFixture) -> Iterator[Sample]:
    x = dut.ramp(_N)
    for part in (slice(1, 9, 2), slice(1, 9, 3), slice(2, 9, 2), slice(1, 10, 2), slice(9, 1, -2)):
        name = f"x[{part.start}:{part.stop}:{part.step}]"
        yield sample(name, lambda _, a, p=part: a[p] + a[p], x)
    for shift in (1, 2, -1):
        yield sample(f"rolled by {shift}", lambda lib, a, n=shift: lib.roll(a + a, n), x)
    for rounds in (3, 4, 5):

        def loop(lib: Any, a: Any, n: int = rounds) -> Any:
            return lib.fori_loop(0, n, lambda _i, b: b + a, a)

        yield sample(f"{rounds} rounds of a loop", loop, x)


def _operands(dut: DeviceFixture) -> Iterator[Sample]:
    a, b = dut.ramp(_N), dut.small(_N, seed=4)
    yield sample("a - b", lambda _, a, b: a - b, a, b)
    yield sample("b - a", lambda _, a, b: b - a, a, b)
    yield sample("a - (b - a)", lambda _, a, b: a - (b - a), a, b)
    yield sample("(a - b) - a", lambda _, a, b: (a - b) - a, a, b)
    yield sample("a or b", lambda lib, c, a, b: lib.where(c, a, b), a > b, a, b)
    yield sample("a or b in a row", lambda lib, a, b: lib.concat([a, b]), a, b)
    yield sample("b or a", lambda lib, c, a, b: lib.where(c, b, a), a > b, a, b)
    yield sample("b or a in a row", lambda lib, a, b: lib.concat([b, a]), a, b)
    yield sample("7 - a", lambda _, a: 7 - a, a)
    yield sample("a - 7", lambda _, a: a - 7, a)


def _structures(dut: DeviceFixture) -> Iterator[Sample]:
    a, b = dut.ramp(_N), dut.small(_N, seed=4)
    yield sample("(a + b) * a", lambda _, a, b: (a + b) * a, a, b)
    yield sample("(a + b) * b", lambda _, a, b: (a + b) * b, a, b)
    yield sample("a * b + a", lambda _, a, b: a * b + a, a, b)
    yield sample("a * b + b", lambda _, a, b: a * b + b, a, b)
    yield sample("a + b, a * b", lambda _, a, b: (a + b, a * b), a, b)
    yield sample("a * b, a + b", lambda _, a, b: (a * b, a + b), a, b)
    yield sample("a + b alone", lambda _, a, b: a + b, a, b)
    yield sample("a + b twice", lambda _, a, b: (a + b, a + b), a, b)

    def doubled(x: Any) -> Any:
        return x + x

    def cubed(x: Any) -> Any:
        return x * x * x

    for name, yes, no in (
        ("doubled or cubed", doubled, cubed),
        ("cubed or doubled", cubed, doubled),
    ):
        branches = (yes, no)
        yield sample(name, lambda lib, n, x, bs=branches: lib.cond(n, *bs, x), np.array(True), b)
