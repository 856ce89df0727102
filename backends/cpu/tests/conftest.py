"""What the tests of this backend share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import ALL, DType
from bringup.graph import Builder, Graph
from bringup.ops.evaluate import evaluate
from bringup.runtime import devices, transfer
from bringup.runtime.compiler import compile_graph
from bringup.types import TensorType

Array = np.ndarray[Any, Any]


class Kit:
    """Graphs computed on this device, and by the reference; tests get it through the fixture."""

    @staticmethod
    def graph(build: Callable[..., Any], *types: TensorType) -> Graph:
        """The graph of a function of values."""
        with Builder() as b:
            made = build(*[b.input(t) for t in types])
            return b.build(made if isinstance(made, list | tuple) else [made])

    @staticmethod
    def types(arrays: Sequence[Array]) -> list[TensorType]:
        return [TensorType(a.shape, DTYPE_OF[a.dtype]) for a in arrays]

    @staticmethod
    def run(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, by a program compiled for this device."""
        device = devices.get("cpu")
        compiled = compile_graph(graph, device)
        assert compiled.executable is not None
        inputs = [transfer.upload(device.device, a) for a in arrays]
        made = compiled.executable(inputs)
        pairs = zip(made, graph.outputs, strict=True)
        return [transfer.download(device.device, h, v.type) for h, v in pairs]

    @staticmethod
    def both(build: Callable[..., Any], *arrays: Array) -> tuple[list[Array], list[Array]]:
        """Outputs of this device and of the reference."""
        graph = Kit.graph(build, *Kit.types(arrays))
        return Kit.run(graph, arrays), evaluate(graph, arrays)

    @staticmethod
    def same(actual: Array, wanted: Array) -> bool:
        """Equal in type and bits, any NaN being like any other."""
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
        bits = np.dtype(f"u{actual.dtype.itemsize}")
        equal = actual.copy().view(bits) == wanted.copy().view(bits)
        if DTYPE_OF[actual.dtype].is_float:
            equal = equal | (np.isnan(actual) & np.isnan(wanted))
        return bool(np.all(equal))

    @staticmethod
    def exact(build: Callable[..., Any], *arrays: Array) -> None:
        """The device gives what the reference gives, to the bit."""
        for actual, wanted in zip(*Kit.both(build, *arrays), strict=True):
            assert Kit.same(actual, wanted), f"{actual}\nand not\n{wanted}"

    @staticmethod
    def equal(build: Callable[..., Any], *arrays: Array) -> None:
        """The device gives the reference's numbers; sums that are zero have no certain sign."""
        for actual, wanted in zip(*Kit.both(build, *arrays), strict=True):
            pair = [np.where(x == 0, x.dtype.type(0), x) for x in (actual, wanted)]
            assert Kit.same(*pair), f"{actual}\nand not\n{wanted}"

    @staticmethod
    def values(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
        """Small whole numbers, whose sums and products are exact for a while in any dtype."""
        rng = np.random.default_rng(seed)
        low = 0 if dtype.kind in ("uint", "bool") else -4
        drawn = rng.integers(low, 2 if dtype.kind == "bool" else 5, shape)
        return np.asarray(drawn).astype(dtype.numpy)


DTYPE_OF = {d.numpy: d for d in ALL}


@pytest.fixture
def kit() -> Kit:
    return Kit()


_FORKS = """
import os, sys
import numpy
import bringup
import bringup_cpu.device
for environment in {environments}:
    sys.stdout.flush()
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, environment
        print(chr(0))
    else:
        os.environ.update(environment)
        exec({code}, {{"__name__": "__main__"}})
        sys.stdout.flush()
        os._exit(0)
"""


@pytest.fixture
def forks(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[[str, Sequence[Mapping[str, str]]], list[str]]:
    """What code prints in each of several environments.

    Each runs in a fork of one interpreter, which has imported the backend and used nothing of it.
    """

    def run(code: str, environments: Sequence[Mapping[str, str]]) -> list[str]:
        program = _FORKS.format(code=repr(code), environments=repr(list(environments)))
        return python(program).stdout.split("\0\n")[:-1]

    return run
