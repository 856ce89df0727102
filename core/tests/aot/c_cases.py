"""Functions, arguments for them, and what numpy makes of these, for libraries of C source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import bringup as bu
from bringup import lax, nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A function, what it is called with, and what it should give.

    tolerance: of floats, relative and absolute; 0 for the same bits.
    """

    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    results: tuple[Array, ...]
    tolerance: float = 0.0


_random = np.random.default_rng(7)


def _normal(*shape: int, scale: float = 1.0) -> Array:
    return (_random.standard_normal(shape) * scale).astype(np.float32)


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


#: The weights of a classifier of digits.
MLP = {"w": _normal(784, 128, scale=0.05), "b": _normal(128), "v": _normal(128, 10, scale=0.1)}


def mlp(x: Any) -> Any:
    """Digits: a hidden layer of 128."""
    return nn.softmax(bu.maximum(x @ MLP["w"] + MLP["b"], 0) @ MLP["v"], axis=-1)


def _mlp(x: Array) -> Array:
    return _softmax(np.maximum(x @ MLP["w"] + MLP["b"], 0) @ MLP["v"])


LENET = {
    name: _normal(*shape, scale=0.2)
    for name, shape in {
        "c1": (6, 1, 5, 5), "b1": (6, 1, 1), "c2": (16, 6, 5, 5), "b2": (16, 1, 1),
        "f1": (400, 120), "d1": (120,), "f2": (120, 84), "d2": (84,), "f3": (84, 10), "d3": (10,),
    }.items()
}  # fmt: skip


def lenet(x: Any) -> Any:
    """LeNet-5: two convolutions, three products."""
    k = LENET
    first = bu.tanh(nn.conv(x, k["c1"], padding=[(2, 2), (2, 2)]) + k["b1"])
    second = bu.tanh(nn.conv(nn.max_pool(first, (2, 2)), k["c2"]) + k["b2"])
    flat = bu.reshape(nn.max_pool(second, (2, 2)), (x.shape[0], 400))
    hidden = bu.tanh(bu.tanh(flat @ k["f1"] + k["d1"]) @ k["f2"] + k["d2"])
    return hidden @ k["f3"] + k["d3"]


def _lenet(x: Array) -> Array:
    k = LENET

    def conv(x: Array, w: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), axis=(2, 3))
        return np.einsum("nchwij,ocij->nohw", windows, w)

    def pool(x: Array) -> Array:
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))

    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    first = pool(np.tanh(conv(padded, k["c1"]) + k["b1"]))
    second = pool(np.tanh(conv(first, k["c2"]) + k["b2"]))
    hidden = np.tanh(np.tanh(second.reshape(len(x), 400) @ k["f1"] + k["d1"]) @ k["f2"] + k["d2"])
    return hidden @ k["f3"] + k["d3"]


def _layer_norm(x: Array, g: Array, b: Array) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return g * (x - mean) / np.sqrt(var + 1e-5) + b


def norm_softmax(x: Any, g: Any, b: Any) -> Any:
    """Rows of a layer norm, then a softmax."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return nn.softmax(g * (x - mean) / bu.sqrt(var + 1e-5) + b, axis=-1)


def collatz(n: Any) -> Any:
    """Steps to 1: a loop whose state moves between two memories."""

    def step(state: Any) -> Any:
        n, count = state
        return bu.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lax.while_loop(lambda state: state[0] > 1, step, (n, bu.zeros((), bu.int32)))


def _collatz(n: int) -> tuple[Array, Array]:
    count = 0
    while n > 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return np.array(n, np.int32), np.array(count, np.int32)


def recurrence(x: Any, w: Any, *, reverse: bool) -> Any:
    """A recurrent layer: state and stack of all of its values."""

    def step(h: Any, row: Any) -> Any:
        h = bu.tanh(h @ w + row)
        return h, h * 2

    return lax.scan(step, bu.zeros(4, bu.float32), x, reverse=reverse)


def _recurrence(x: Array, w: Array, *, reverse: bool) -> tuple[Array, Array]:
    h, stack = np.zeros(4, np.float32), np.zeros_like(x)
    for n in reversed(range(len(x))) if reverse else range(len(x)):
        h = np.tanh(h @ w + x[n])
        stack[n] = h * 2
    return h, stack


def running(x: Any) -> Any:
    """Rows so short that few of them begin at a multiple of what wide loads need."""
    return lax.scan(lambda h, row: (h + row, h * row), bu.zeros(3, bu.float32), x)


def _running(x: Array) -> tuple[Array, Array]:
    h, stack = np.zeros(3, np.float32), np.zeros_like(x)
    for n, row in enumerate(x):
        h, stack[n] = h + row, h * row
    return h, stack


def sieve(x: Any) -> Any:
    """A loop that changes its array in place."""
    return lax.fori_loop(0, 6, lambda i, y: y.at[i].set(y[i] + y[(i + 1) % 6]), x)


def _sieve(x: Array) -> Array:
    y = x.copy()
    for i in range(6):
        y[i] = y[i] + y[(i + 1) % 6]
    return y


def choose(n: Any, x: Any) -> Any:
    """One of three branches, one of which has a loop."""
    branches = [
        lambda x: x * 2,
        lambda x: lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x),
        lambda x: bu.sort(x),
    ]
    return lax.switch(n, branches, x)


def _choose(n: int, x: Array) -> Array:
    n = n if n in (0, 1) else 2
    if n == 1:
        for i in range(5):
            x = x * np.float32(0.5) + np.float32(i)
        return x
    return x * 2 if n == 0 else np.sort(x)


_CONSTANTS = {
    "f32": np.float32([np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38, 1 / 3, 0, 1]),
    "f64": np.array([np.inf, -0.0, 5e-324, 1 / 3, -1.7976931348623157e308, 0, 1, 2]),
    "i64": np.array([-(2**63), 2**63 - 1, -1, 0, 1, 2, 3, 4]),
    "i32": np.int32([-(2**31), 2**31 - 1, -1, 0, 1, 2, 3, 4]),
    "u64": np.uint64([2**64 - 1, 0, 1, 2, 3, 4, 5, 6]),
    "i8": np.int8([-128, 127, -1, 0, 1, 2, 3, 4]),
    "f16": np.float16([np.inf, -0.0, 6e-8, 1 / 3, 65504, 0, 1, 2]),
    "bool": np.array([True, False, True, True, False, False, True, False]),
}


def constants(i: Any) -> Any:
    """Rows of arrays that are known, picked by a number that is not."""
    return tuple(bu.asarray(table)[i] for table in _CONSTANTS.values())


def _spd(n: int) -> Array:
    a = _normal(n, n)
    return a @ a.T + n * np.eye(n, dtype=np.float32)


def _scatter(x: Array, i: Array, v: Array) -> Array:
    y = x.copy()
    np.add.at(y, i, v)
    return y


def _uniform() -> Array:
    return np.asarray(bu.random.uniform(bu.random.key(3), (64,)))


def _networks() -> dict[str, Case]:
    x1, x8, image = _normal(1, 784), _normal(8, 784), _normal(1, 1, 28, 28)
    rows, gain, bias = _normal(5, 33), _normal(33), _normal(33)
    normed = _softmax(_layer_norm(rows, gain, bias))
    return {
        "mlp": Case(mlp, (x1,), (_mlp(x1),), 1e-5),
        "mlp_batch": Case(mlp, (x8,), (_mlp(x8),), 1e-5),
        "lenet": Case(lenet, (image,), (_lenet(image),), 1e-4),
        "norm_softmax": Case(norm_softmax, (rows, gain, bias), (normed,), 1e-5),
    }


def _control() -> dict[str, Case]:
    steps, w, line = _normal(7, 4), _normal(4, 4, scale=0.5), _normal(6)
    thirds = _normal(5, 3)
    choices = {
        f"choose{n}": Case(choose, (np.int32([number])[0], line), (_choose(number, line),), 1e-6)
        for n, number in enumerate((0, 1, 2, 9, -4))
    }
    return {
        "collatz": Case(collatz, (np.array(27, np.int32),), _collatz(27)),
        "collatz_at_once": Case(collatz, (np.array(1, np.int32),), _collatz(1)),
        **{
            f"recurrence{n}_{reverse}": Case(
                partial(recurrence, reverse=reverse),
                (steps[:n], w),
                _recurrence(steps[:n], w, reverse=reverse),
                1e-5,
            )
            for n, reverse in ((7, False), (4, True), (1, False))
        },
        "running": Case(running, (thirds,), _running(thirds), 1e-6),
        "sieve": Case(sieve, (line,), (_sieve(line),), 1e-6),
        **choices,
    }


def _library() -> dict[str, Case]:
    many, spd, right, line = _normal(3, 50), _spd(9), _normal(9, 2), _normal(6)
    where, extra, long = np.int32([3, 0, 3, 5]), _normal(4), _normal(300, 300)
    order = np.sort(many), np.argsort(many, kind="stable")
    added = _scatter(line, where, extra)
    return {
        "sort": Case(lambda x: (bu.sort(x), bu.argsort(x)), (many,), order),
        "cumsum": Case(lambda x: bu.cumsum(x, axis=1), (many,), (np.cumsum(many, 1),), 1e-5),
        "scatter": Case(lambda x, i, v: x.at[i].add(v), (line, where, extra), (added,), 1e-6),
        "cholesky": Case(bu.linalg.cholesky, (spd,), (np.linalg.cholesky(spd),), 1e-4),
        "solve": Case(bu.linalg.solve, (spd, right), (np.linalg.solve(spd, right),), 1e-3),
        "eigvalsh": Case(bu.linalg.eigvalsh, (spd,), (np.linalg.eigvalsh(spd),), 1e-4),
        "uniform": Case(
            lambda x: x + bu.random.uniform(bu.random.key(3), (64,)), (line[0] * 0,), (_uniform(),)
        ),
        "large": Case(lambda x: (x @ x).sum(0), (long,), ((long @ long).sum(0),), 1e-3),
    }


def _types() -> dict[str, Case]:
    half, small = _normal(4, 9).astype(np.float16), _random.integers(-100, 100, (6, 5), np.int8)
    mask, z = _normal(13) > 0, (_normal(10) + 1j * _normal(10)).astype(np.complex64)
    double, brain = _random.standard_normal(20), _normal(12).astype(bu.bfloat16.numpy)
    twice = (brain.astype(np.float32) * 2).astype(brain.dtype)
    none, picks = np.zeros((0, 4), np.float32), np.int32([7, 0, 3, 3, 1, 2, 5, 4, 6])
    parts = (z * z).real, (z * z).imag, abs(z)
    tables = tuple(table[picks] for table in _CONSTANTS.values())
    return {
        "halves": Case(lambda x: x * x + 1, (half,), (half * half + np.float16(1),), 2e-3),
        "bf16": Case(lambda x: x + x, (brain,), (twice,)),
        "int8": Case(lambda x: (x * x, x // 7), (small,), (small * small, small // np.int8(7))),
        "uint8": Case(
            lambda x, v: (bu.minimum(x, np.uint8(0)), v[x]),
            (picks.astype(np.uint8), double),
            (picks.astype(np.uint8) * 0, double[picks]),
        ),
        "bools": Case(lambda m: (~m, m.sum()), (mask,), (~mask, np.array(mask.sum()))),
        "complex": Case(lambda a: (a * a, bu.abs(a)), (z,), parts, 1e-5),
        "doubles": Case(bu.exp, (double,), (np.exp(double),), 1e-14),
        "constants": Case(constants, (picks,), tables),
        "nothing": Case(
            lambda x: (x * 2, x.sum(1), x.sum()),
            (none,),
            (none, np.zeros(0, np.float32), np.zeros((), np.float32)),
        ),
        "given": Case(lambda: bu.arange(5) * 2, (), (np.arange(5) * 2,)),
    }


CASES = {**_networks(), **_control(), **_library(), **_types()}
