"""`compare`: a function with fusion and without, on the same arguments."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.api.arguments import integer_of
from bringup.api.array import Array
from bringup.api.jit import Jitted, jit
from bringup.api.trace import graph_name
from bringup.errors import OpTypeError, TraceError
from bringup.program.program import Cost
from bringup.records import record
from bringup.tracing.context import current
from bringup.tracing.pytree import flatten
from bringup.types import TensorType

Host = np.ndarray[Any, Any]


@record
class Side:
    """One of the two programs that are compared.

    cost: exact counts of one run; see `Compiled.cost`.
    seconds: the median time of a call, with the time until the device has done its work.
    """

    cost: Cost
    seconds: float

    @property
    def bytes_moved(self) -> int:
        """Bytes that the kernels read and write."""
        return self.cost.bytes_read + self.cost.bytes_written


@record
class Comparison:
    """What `compare` found; ``print`` shows it as a table.

    name: of the function.
    device: where both ran.
    fused, unfused: with fusion, and with one launch for every operation.
    types: of the results, leaf by leaf.
    ulp: the largest difference in each of them.  For floats it is the number of steps from one
    result to the other, through the numbers that the dtype holds; inf where only one of them is
    NaN.  For integers it is the difference itself.
    """

    name: str
    device: str
    fused: Side
    unfused: Side
    types: tuple[TensorType, ...]
    ulp: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as long the program without fusion takes."""
        return self.unfused.seconds / self.fused.seconds

    def __str__(self) -> str:
        """A table of the two programs, then the differences of their results."""
        rows = [(f"{self.name} on {self.device}", "fused", "op by op", "ratio")]
        fused, unfused = self.fused, self.unfused
        for quantity, a, b in (
            ("launches", fused.cost.kernels, unfused.cost.kernels),
            ("bytes moved", fused.bytes_moved, unfused.bytes_moved),
        ):
            rows.append((quantity, f"{a:,}", f"{b:,}", f"{b / a:.2f}" if a else ""))
        times = f"{fused.seconds * 1e3:.3f} ms", f"{unfused.seconds * 1e3:.3f} ms"
        rows.append(("median time", *times, f"{self.ratio:.2f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        leaves = zip(self.types, self.ulp, strict=True)
        lines += [
            f"result {i}, {t}: at most {ulp:g} ULP apart" for i, (t, ulp) in enumerate(leaves)
        ]
        return "\n".join(lines)


def compare(fn: Callable[..., Any], *args: Any, repeats: int = 20, **kwargs: Any) -> Comparison:
    """Run a function fused and op by op on the same arguments, and say how the two differ.

    fn: a function, or one that `jit` made, whose device and static arguments then hold; arguments
    that it would take for itself are left alone here.
    args, kwargs: as in a call.
    repeats: how many times each of the two is called for its median time, in alternation, after one
    call that compiles and one that warms up.

    Counts of launches and bytes are exact, times are not.  Differences of results are expected
    where sums are taken in another order; elsewhere each operation rounds as it does alone.
    Raises TraceError inside a function that is traced, where nothing runs, and what `jit` raises.

    >>> found = bu.compare(lambda x: bu.nn.softmax(x), bu.ones((64, 256), dtype=bu.float32))
    >>> found.fused.cost.kernels < found.unfused.cost.kernels, found.ulp
    (True, (0.0,))
    """
    if current() is not None:
        raise TraceError(
            "compare runs a function, and nothing runs while a function is traced",
            fix="call it outside, with arrays",
        )
    if integer_of("compare", "repeats", repeats) < 1:
        raise OpTypeError(
            f"compare: {repeats} calls have no median time", fix="give repeats of at least 1"
        )
    base: Any = fn if isinstance(fn, Jitted) else jit(fn)
    pair = base._alike(fuse=True), base._alike(fuse=False)
    results = [_leaves(function(*args, **kwargs)) for function in pair]
    times = _times(pair, args, kwargs, repeats)
    fused, unfused = (
        Side(function.lower(*args, **kwargs).cost(), statistics.median(taken))
        for function, taken in zip(pair, times, strict=True)
    )
    differences = [_difference(np.asarray(a), np.asarray(b)) for a, b in zip(*results, strict=True)]
    types = tuple(x.type for x in results[0])
    device = str(base._device_of(flatten((args, kwargs))[0]))
    return Comparison(graph_name(fn), device, fused, unfused, types, tuple(differences))


def _leaves(result: Any) -> list[Array]:
    leaves: list[Array] = flatten(result)[0]
    for leaf in leaves:
        leaf.block_until_ready()
    return leaves


def _times(
    pair: Sequence[Callable[..., Any]], args: Any, kwargs: Any, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each call of both; they alternate in which is called first."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            _leaves(pair[which](*args, **kwargs))
            times[which].append(time.perf_counter() - start)
    return times[0][1:], times[1][1:]


def _difference(a: Host, b: Host) -> float:
    """The largest difference of two arrays, in ULP."""
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind not in "biu":
        lost = np.isnan(a)
        if np.any(lost != np.isnan(b)):
            return math.inf
        a, b = _places(a[~lost]), _places(b[~lost])
    # 64-bit integers wrap in this subtraction, but the wrapped difference is still correct.
    low, high = np.minimum(a, b).astype(np.uint64), np.maximum(a, b).astype(np.uint64)
    return float(np.max(high - low, initial=0))


def _places(x: Host) -> Host:
    """The place of each float among all of its dtype; zeros of both signs have place 0."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    smallest = np.int64(-(2 ** (8 * x.dtype.itemsize - 1)))
    return np.where(bits < 0, smallest - bits, bits)


__all__ = ["Comparison", "Side", "compare"]
