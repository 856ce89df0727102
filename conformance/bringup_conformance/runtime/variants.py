"""Programs that are nearly the same: each differs from the next in one thing that the key of a
cache must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bringup as bu
from bringup.dtypes import DType
from bringup.graph import Graph, Literal
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.bench import Bench
from bringup_conformance.runtime.programs import Sample, adds

_N = 12
Reference = Callable[..., Any]


def families(bench: Bench) -> dict[str, list[Sample]]:
    """By rule, the programs that the device can run."""
    made = {
        "cache.key-shape": _shapes,
        "cache.key-dtype": _dtypes,
        "cache.key-constant": _constants,
        "cache.key-attribute": _attributes,
        "cache.key-operands": _operands,
        "cache.key-structure": _structures,
    }
    return {
        rule: [s for s in make(bench) if missing_from(bench.facts.capabilities, _graph(s)) is None]
        for rule, make in made.items()
    }


def _graph(sample: Sample) -> Graph:
    return bu.trace(sample.fn, *sample.types)


def _sample(name: str, fn: Callable[..., Any], reference: Reference, *inputs: Array) -> Sample:
    right = reference(*inputs)
    right = right if isinstance(right, tuple) else (right,)
    return Sample(name, fn, inputs, tuple(np.asarray(r, order="C") for r in right))


def _alike(name: str, fn: Callable[..., Any], *inputs: Array) -> Sample:
    """A function of operators alone, which numpy computes as well."""
    return _sample(name, fn, fn, *inputs)


def _shapes(bench: Bench) -> Iterator[Sample]:
    for shape in ((12,), (13,), (12, 1), (1, 12), (3, 4), (4, 3), (2, 6), (6, 2), (2, 2, 3), ()):
        x = bench.ramp(*shape)
        yield _alike(f"x * x + x on {shape}", lambda a: a * a + a, x)
        yield _sample(
            f"the sum of {shape}",
            lambda a: bu.sum(a, dtype=a.dtype),
            lambda a: a.sum(dtype=a.dtype),
            x,
        )


def _dtypes(bench: Bench) -> Iterator[Sample]:
    for dtype in bench.facts.dtypes:
        if dtype.kind != "bool" and adds(bench, dtype):
            x = bench.ramp(_N, dtype=dtype)
            yield _alike(f"x + x of {dtype}", lambda a: a + a, x)
        if dtype.bits >= 32:
            for other in bench.facts.dtypes:
                if other.bits >= 32 and other is not dtype:
                    x = bench.ramp(_N, dtype=dtype)
                    yield _converted(dtype, other, x)


def _converted(dtype: DType, other: DType, x: Array) -> Sample:
    return _sample(
        f"{dtype} as {other}", lambda a: bu.astype(a, other), lambda a: a.astype(other.numpy), x
    )


def _constants(bench: Bench) -> Iterator[Sample]:
    """Scalars beside operands, and tables too large for that."""
    dtype = bench.dtype
    zero = np.full(_N, -0.0 if dtype.is_float else 0, dtype.numpy)
    values: list[Any] = [0, 1, 2]
    if dtype.is_float:
        one = np.array(1, dtype.numpy)
        above = np.nextafter(one, np.array(2, dtype.numpy))
        values = [0.0, -0.0, 1.0, above, -1.0, 1e-7, 1.1e-7, 123456.7, 123456.8, np.inf]
    for value in values:
        yield _added(f"−0 + {float(value)!r}", np.array(value, dtype.numpy), zero, dtype)
    for python in (True, 1, 1.0, False, 0, 0.0, -0.0):
        if isinstance(python, float) and not dtype.is_float:
            continue
        scalar = np.array(python, dtype.numpy)
        yield _chosen(f"x and {python!r}", python, scalar, zero)
    table = bench.ramp(40, 40)
    for where in ((0, 0), (0, 1), (20, 20), (39, 39)):
        other = table.copy()
        other[where] = 0
        yield _added(f"a table with a zero at {where}", other, np.zeros_like(table), dtype)


def _chosen(name: str, python: Any, scalar: Array, x: Array) -> Sample:
    def fn(a: bu.Array) -> bu.Array:
        return bu.where(bu.equal(a, a), python, a)

    return _sample(name, fn, lambda a: np.full(_N, scalar), x)


def _added(name: str, value: Array, x: Array, dtype: DType) -> Sample:
    """An addition with a literal as the graph holds it, whatever interfaces make of scalars."""

    def fn(a: Any) -> Any:
        return _literal(a, value, dtype)

    return _sample(name, fn, lambda a: a + value, x)


def _literal(a: Any, value: Array, dtype: DType) -> Any:
    from bringup.api.apply import apply
    from bringup.types import TensorType

    shape = a.shape if not value.shape else value.shape
    literal = Literal(value.reshape(-1), TensorType(shape, dtype))
    return apply("add", (a, literal))


def _attributes(bench: Bench) -> Iterator[Sample]:
    x, cube = bench.ramp(6, 6), bench.ramp(3, 3, 3)
    for axis in (0, 1):
        yield from _along(axis, x)
    for turn in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        yield _sample(
            f"axes {turn}",
            lambda a, turn=turn: bu.permute_dims(a + a, turn),
            lambda a, turn=turn: (a + a).transpose(turn),
            cube,
        )
    yield from _directions(bench)
    yield from _windows(bench)


def _along(axis: int, x: Array) -> Iterator[Sample]:
    """What an axis alone tells apart."""
    yield _sample(
        f"sum, axis {axis}",
        lambda a: bu.sum(a, axis=axis, dtype=a.dtype),
        lambda a: a.sum(axis=axis, dtype=a.dtype),
        x,
    )
    yield _sample(
        f"flip, axis {axis}",
        lambda a: bu.flip(a + a, axis=axis),
        lambda a: np.flip(a + a, axis),
        x,
    )
    yield _sample(
        f"max, axis {axis}", lambda a: bu.max(a, axis=axis), lambda a: a.max(axis=axis), x
    )
    yield _sample(
        f"argmax, axis {axis}",
        lambda a: bu.argmax(bu.flip(a), axis=axis),
        lambda a: np.argmax(np.flip(a), axis=axis),
        x,
    )
    yield _sample(
        f"running sum, axis {axis}",
        lambda a: bu.cumulative_sum(a, axis=axis, dtype=a.dtype),
        lambda a: np.cumsum(a, axis=axis, dtype=a.dtype),
        x,
    )
    yield _sample(
        f"sort, descending {bool(axis)}",
        lambda a: bu.sort(a, descending=bool(axis)),
        lambda a: np.sort(a)[:, :: -1 if axis else 1],
        x,
    )


def _directions(bench: Bench) -> Iterator[Sample]:
    a, b = bench.small(_N, seed=1), bench.small(_N, seed=2)
    b[::3] = a[::3]
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("==", bu.equal, np.equal),
        ("!=", bu.not_equal, np.not_equal),
        ("<", bu.less, np.less),
        ("<=", bu.less_equal, np.less_equal),
        (">", bu.greater, np.greater),
        (">=", bu.greater_equal, np.greater_equal),
        ("max", bu.maximum, np.maximum),
        ("min", bu.minimum, np.minimum),
    )
    for name, ours, theirs in pairs:
        yield _sample(f"a {name} b", ours, theirs, a, b)
    for low, high in ((-1, 1), (-1, 2), (0, 2)):
        yield _sample(
            f"clip {low} {high}",
            lambda a, low=low, high=high: bu.clip(a, low, high),
            lambda a, low=low, high=high: np.clip(a, low, high).astype(a.dtype),
            a,
        )


def _windows(bench: Bench) -> Iterator[Sample]:
    x = bench.ramp(_N)
    for part in (slice(1, 9, 2), slice(1, 9, 3), slice(2, 9, 2), slice(1, 10, 2), slice(9, 1, -2)):
        yield _alike(f"x[{part.start}:{part.stop}:{part.step}]", lambda a, p=part: a[p] + a[p], x)
    for shift in (1, 2, -1):
        yield _sample(
            f"rolled by {shift}",
            lambda a, n=shift: bu.roll(a + a, n),
            lambda a, n=shift: np.roll(a + a, n),
            x,
        )
    for rounds in (3, 4, 5):
        yield _sample(
            f"{rounds} rounds of a loop",
            lambda a, n=rounds: bu.fori_loop(0, n, lambda _i, b: b + a, a),
            lambda a, n=rounds: a * np.array(n + 1, a.dtype),
            x,
        )


def _operands(bench: Bench) -> Iterator[Sample]:
    a, b = bench.ramp(_N), bench.small(_N, seed=4)
    flags = a > b
    yield _alike("a - b", lambda a, b: a - b, a, b)
    yield _alike("b - a", lambda a, b: b - a, a, b)
    yield _alike("a - (b - a)", lambda a, b: a - (b - a), a, b)
    yield _alike("(a - b) - a", lambda a, b: (a - b) - a, a, b)
    for name, pick in (("a or b", (0, 1)), ("b or a", (1, 0))):
        yield _sample(
            name,
            lambda c, *ab, p=pick: bu.where(c, ab[p[0]], ab[p[1]]),
            lambda c, *ab, p=pick: np.where(c, ab[p[0]], ab[p[1]]),
            flags,
            a,
            b,
        )
        yield _sample(
            f"{name} in a row",
            lambda *ab, p=pick: bu.concat([ab[p[0]], ab[p[1]]]),
            lambda *ab, p=pick: np.concatenate([ab[p[0]], ab[p[1]]]),
            a,
            b,
        )
    yield _alike("7 - a", lambda a: 7 - a, a)
    yield _alike("a - 7", lambda a: a - 7, a)


def _structures(bench: Bench) -> Iterator[Sample]:
    a, b = bench.ramp(_N), bench.small(_N, seed=4)
    yield _alike("(a + b) * a", lambda a, b: (a + b) * a, a, b)
    yield _alike("(a + b) * b", lambda a, b: (a + b) * b, a, b)
    yield _alike("a * b + a", lambda a, b: a * b + a, a, b)
    yield _alike("a * b + b", lambda a, b: a * b + b, a, b)
    yield _alike("a + b, a * b", lambda a, b: (a + b, a * b), a, b)
    yield _alike("a * b, a + b", lambda a, b: (a * b, a + b), a, b)
    yield _alike("a + b alone", lambda a, b: a + b, a, b)
    yield _alike("a + b twice", lambda a, b: (a + b, a + b), a, b)
    flag = np.array(True)
    for name, order in (("doubled or cubed", (0, 1)), ("cubed or doubled", (1, 0))):
        yield _sample(
            name,
            lambda n, x, o=order: bu.cond(n, _BRANCHES[o[0]], _BRANCHES[o[1]], x),
            lambda _n, x, o=order: _BRANCHES[o[0]](x),
            flag,
            b,
        )


_BRANCHES: tuple[Reference, ...] = (lambda x: x + x, lambda x: x * x * x)
